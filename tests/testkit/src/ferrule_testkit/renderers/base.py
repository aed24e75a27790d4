"""What the checks of a renderer stand on: the author's declarations, conversations to play, and completions made by the
renderer itself, so that no check needs to know a model's format.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import attrs
import numpy as np
import pytest
from numpy.typing import NDArray

from ferrule import Message, ModelSpec, NoBridge, Parsed, Rendered, Renderer, Tail, TokenKind, ToolCall, ToolSpec

from ..making import make_renderer

Ids = NDArray[np.int32]
READING = "reading calls"
"""The checks that fail together where a renderer writes calls and cannot read them back."""

Check = TypeVar("Check", bound=Callable[..., None])

ASK = Message("user", "Where does the river meet the sea?")
AGAIN = Message("user", "And the other river?")
SAID = Message("assistant", "At the old harbour.")

NOTE = ToolSpec(
    "note",
    "Writes something down.",
    {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "count": {"type": "integer"},
            "share": {"type": "number"},
            "done": {"type": "boolean"},
            "either": {"anyOf": [{"type": "string"}, {"type": "boolean"}]},
            "list": {"type": "array", "items": {"type": "integer"}},
        },
    },
)
FIND = ToolSpec(
    "find", "Looks something up.", {"type": "object", "properties": {"query": {"type": "string"}}, "required": []}
)
TOOLS = (NOTE, FIND)


def group(name: str) -> Callable[[Check], Check]:
    """Checks that stand or fall together: ``xfails`` may name them as one."""

    def mark(check: Check) -> Check:
        check.group = name  # type: ignore[attr-defined]
        return check

    return mark


def call(name: str, number: int = 0, /, **arguments: Any) -> ToolCall:
    """A call whose id has the nine letters and digits that the templates that check it want."""
    return ToolCall(f"callabc{number:02d}", name, arguments)


CALLING = Message("assistant", "", tool_calls=(call("find", query="harbour"),))
ANSWER = Message("tool", "It lies in the south.", tool_call_id="callabc00", name="find")


def answers_to(message: Message, *texts: str) -> list[Message]:
    """A tool message for each call of *message*, in the order of the calls."""
    said = [*texts, *(f"answer {n} of several" for n in range(len(texts), len(message.tool_calls)))]
    return [
        Message("tool", text, tool_call_id=c.id, name=c.name) for c, text in zip(message.tool_calls, said, strict=False)
    ]


@attrs.frozen(eq=False)
class Turn:
    """One sampled reply: what was shown, what was sampled after it, and how a bridge is told of both."""

    history: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    prompt: Rendered
    completion: Ids
    parsed: Parsed
    tail: Tail

    @property
    def message(self) -> Message:
        return self.tail.message


class RendererBase:
    """Declarations of a suite, and the helpers of its checks."""

    use: ClassVar[Any] = None
    options: ClassVar[Mapping[str, Any]] = {}
    model: ClassVar[ModelSpec | Path | str | Callable[[], Any] | None] = None
    calls: ClassVar[bool] = True
    reasoning: ClassVar[bool] = True
    xfails: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        checks = {name: getattr(cls, name) for name in dir(cls) if name.startswith("test_")}
        known = [*checks, *{check.group for check in checks.values() if hasattr(check, "group")}]
        for name in cls.xfails:
            if name.partition("[")[0] not in known:
                near = difflib.get_close_matches(name, known, 1)
                raise TypeError(f"{cls.__name__}.xfails: no check is called {name!r}" + f"; {near}" * bool(near))
            if not cls.xfails[name].strip():
                raise TypeError(f"{cls.__name__}.xfails: {name!r} has no reason")

    @classmethod
    def make(cls, **options: Any) -> Renderer:
        """The renderer under test, with *options* in place of the suite's own."""
        base = Path(inspect.getfile(cls)).parent
        # Not cls.model: a function in a class body would be bound to the class.
        model = inspect.getattr_static(cls, "model")
        model = model.__func__ if isinstance(model, (staticmethod, classmethod)) else model
        return make_renderer(cls.use, {**cls.options, **options}, model, base)

    @pytest.fixture(scope="class")
    @classmethod
    def renderer(cls) -> Renderer:
        """The renderer under test: one object for all checks, as in a run."""
        return cls.variant()

    @classmethod
    def variant(cls, **options: Any) -> Renderer:
        """As :meth:`make`, each variant of this suite made once: a vocabulary takes seconds to load."""
        kept = cls.__dict__.get("_made")
        if kept is None:
            kept = {}
            cls._made = kept  # type: ignore[attr-defined]
        name = tuple(sorted((k, repr(v)) for k, v in options.items() if v != cls._default(k)))
        if name not in kept:
            kept[name] = cls.make(**options)
        return kept[name]  # type: ignore[no-any-return]

    @classmethod
    def _default(cls, option: str) -> Any:
        return cls.options.get(option, "template" if option == "thinking" else None)

    @pytest.fixture(autouse=True)
    def _declared_gap(self, request: pytest.FixtureRequest) -> None:
        for name in (request.node.name, request.node.originalname, getattr(request.function, "group", "")):
            if name in self.xfails:
                request.applymarker(pytest.mark.xfail(reason=self.xfails[name], strict=True))
                return

    # -- what a check may ask for ----------------------------------------------------------------------------------

    def needs_calls(self) -> None:
        if not self.calls:
            pytest.skip("the format has no tool calls")

    def needs_reasoning(self) -> None:
        if not self.reasoning:
            pytest.skip("replies are written without their reasoning")

    def needs_bridge(self, renderer: Renderer) -> None:
        if not renderer.extends:
            pytest.skip("the renderer extends no history")

    def needs_literal(self, renderer: Renderer) -> None:
        if renderer.special_text == "control":
            pytest.skip("the library behind reads a control token's text as the token")

    # -- playing ---------------------------------------------------------------------------------------------------

    def completion(
        self,
        renderer: Renderer,
        reply: Message,
        history: Sequence[Message] = (ASK,),
        tools: Sequence[ToolSpec] = (),
        after: Message | None = None,
    ) -> Ids:
        """What a model would have sampled to say *reply* after *history*, stop token included.

        *after* is the message that follows: in formats where the next message's opener is the stop, it decides which.
        """
        alone = renderer.render([*history, reply], tools, generation=False)
        ids = self.action(alone, len(history))
        if len(ids) and int(ids[-1]) in renderer.stop_ids:
            return ids
        if after is None:
            after = answers_to(reply)[0] if reply.tool_calls else AGAIN
        followed = self.action(renderer.render([*history, reply, after], tools, generation=False), len(history))
        stop = [i for i in followed[-1:] if int(i) in renderer.stop_ids]
        assert stop, f"the reply ends in no stop token: {renderer.decode(followed)!r}"
        return np.array([*ids, *stop], np.int32)

    @staticmethod
    def action(rendered: Rendered, index: int) -> Ids:
        """The ACTION tokens of message *index*."""
        start, stop = rendered.spans[index]
        return rendered.ids[start:stop][rendered.kinds[start:stop] == TokenKind.ACTION]

    def turn(
        self,
        renderer: Renderer,
        completion: Ids,
        history: Sequence[Message] = (ASK,),
        tools: Sequence[ToolSpec] = (),
    ) -> Turn:
        """*completion*, as sampled after *history*; cut by length where it does not end in a stop token."""
        prompt = renderer.render(history, tools)
        completion = np.asarray(completion, np.int32)
        parsed = renderer.parse(completion, tools, opened=prompt.opened)
        end = prompt.spans[-1][1]
        last = int(completion[-1]) if len(completion) else -1
        tail = Tail(
            ids=np.concatenate([prompt.ids[end:], completion]).astype(np.int32),
            prompt_length=len(prompt) - end,
            stop=last if last in renderer.stop_ids else "length",
            message=parsed.message,
            index=len(history),
            roles=tuple(m.role for m in history)[-8:],
            opened=() if parsed.closed else prompt.opened,
            tools=tuple(tools),
            strippable=any(m.role == "assistant" and m.reasoning for m in history),
        )
        return Turn(tuple(history), tuple(tools), prompt, completion, parsed, tail)

    def said(
        self,
        renderer: Renderer,
        reply: Message,
        history: Sequence[Message] = (ASK,),
        tools: Sequence[ToolSpec] = (),
        after: Message | None = None,
    ) -> Turn:
        """*reply*, as sampled after *history*. The tail holds *reply* itself: how it is read back is checked apart."""
        turn = self.turn(renderer, self.completion(renderer, reply, history, tools, after), history, tools)
        return attrs.evolve(turn, tail=attrs.evolve(turn.tail, message=reply))

    def extended(self, renderer: Renderer, turn: Turn, new: Sequence[Message]) -> Rendered:
        """The delta, which must be there."""
        delta = renderer.bridge(turn.tail, new, turn.tools)
        assert isinstance(delta, Rendered), f"no bridge where one must be: {delta}"
        check_rendered(renderer, delta, len(new))
        return delta

    def never_raises(self, renderer: Renderer, turn: Turn, new: Sequence[Message]) -> Rendered | NoBridge:
        """The bridge's answer, whatever the messages."""
        try:
            found = renderer.bridge(turn.tail, new, turn.tools)
        except Exception as error:
            pytest.fail(f"bridge raised {type(error).__name__}: {error}; it must answer NoBridge")
        assert isinstance(found, Rendered | NoBridge)
        return found


def check_rendered(renderer: Renderer, rendered: Rendered, messages: int) -> None:
    """Shapes, types, vocabulary and spans of anything rendered."""
    assert isinstance(rendered, Rendered)
    assert rendered.ids.ndim == 1, f"ids have {rendered.ids.ndim} dimensions"
    assert rendered.ids.dtype == np.int32, f"ids are {rendered.ids.dtype}, not int32"
    assert rendered.kinds.dtype == np.uint8, f"kinds are {rendered.kinds.dtype}, not uint8"
    assert rendered.kinds.shape == rendered.ids.shape, "there must be one kind for each token"
    allowed = {int(TokenKind.ACTION), int(TokenKind.OBSERVATION), int(TokenKind.SCAFFOLD)}
    assert set(rendered.kinds.tolist()) <= allowed, "only ACTION, OBSERVATION and SCAFFOLD are a renderer's to give"
    assert len(rendered.ids)
    assert rendered.ids.min() >= 0
    assert rendered.ids.max() < renderer.vocab_size, "an id at or beyond vocab_size"
    assert len(rendered.spans) == messages, "there must be one span for each message"
    assert all(0 <= a <= b <= len(rendered.ids) for a, b in rendered.spans), (
        f"spans outside the tokens: {rendered.spans}"
    )
    assert isinstance(rendered.opened, tuple)
