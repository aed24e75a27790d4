"""Renderers: messages to tokens and back, for one family of models."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs

from ..data import Message, ModelSpec, ToolSpec
from ..errors import PluginError
from .base import Plugin, hookspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@attrs.frozen(eq=False)
class Rendered:
    """Tokens and what each is.

    ids    int32[T]
    kinds  uint8[T], a TokenKind each: ACTION for what the model would have sampled of an assistant message (its stop
           token
           included), OBSERVATION for the content of every other message, SCAFFOLD for the rest. Never PROMPT: that a
           token lies before the first sample is for the ledger to say.
    spans  (start, stop) of each message
    opened blocks that the generation prompt leaves open (``think``)
    """

    ids: NDArray[np.int32]
    kinds: NDArray[np.uint8]
    spans: tuple[tuple[int, int], ...] = ()
    opened: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)


@attrs.frozen
class NoBridge:
    """The history cannot be extended by these messages: a new segment must start. ``reason`` is one word, ``detail``
    a sentence.
    """

    reason: str
    detail: str = ""


@attrs.frozen(eq=False)
class Tail:
    """The end of a conversation, which is all that a bridge may look at: bounded, never the history.

    ids            int32[K]: the last generation prompt and the completion sampled after it
    prompt_length  how many of them are the generation prompt
    stop           the stop token that ended the completion, or ``length``
    message        the completion, parsed
    index          how many messages came before it; roles: of the last of them, at most 8
    opened         blocks still open at the end of the completion
    tools          the tools that were offered
    strippable     whether any earlier assistant message came with reasoning: a template may strip it when a user
                   speaks again
    """

    ids: NDArray[np.int32]
    prompt_length: int
    stop: int | Literal["length"]
    message: Message
    index: int
    roles: tuple[str, ...] = ()
    opened: tuple[str, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    strippable: bool = False


@attrs.frozen
class ParseProblem:
    """A malformed piece of a completion: its token span (start, stop), its text, and what is wrong with it."""

    span: tuple[int, int]
    text: str
    message: str


@attrs.frozen
class Parsed:
    """A completion, read.

    status   ``ok``; ``malformed``: a piece does not parse; ``truncated``: no stop token came
    closed   False where a structure (a call, a think block) never closes
    A malformed call stands in ``message.tool_calls`` with its ``error``, so that the model is answered.
    """

    message: Message
    status: Literal["ok", "malformed", "truncated"] = "ok"
    closed: bool = True
    problems: tuple[ParseProblem, ...] = ()

    @property
    def beyond_use(self) -> bool:
        """No call in it parses, and its structure never closes: nothing can be answered to the model."""
        return not self.closed and not any(call.error is None for call in self.message.tool_calls)


class Renderer(Plugin, abc.ABC):
    """Messages ↔ tokens. Settled once per run; one object serves every turn, the parser and the trainer's rows.

    Methods are called from the event loop's thread; they do not block for long and keep no state of a conversation.
    """

    serves: ClassVar[tuple[str, ...]] = ()
    """Model ids (``Qwen/Qwen3-8B``) and, with a ``*`` at the end, families (``Qwen/Qwen3-*``) that it was written for.
    Those for which ``use = "auto"`` may choose it stand beside its entry point, in the group ``ferrule.auto_renderers``.
    """

    extends: ClassVar[bool] = True
    """Whether :meth:`bridge` can extend a history at all."""

    thinking_choices: ClassVar[tuple[str, ...]] = ("template",)
    """The values of ``Config.thinking`` that it can do."""

    special_text: ClassVar[str] = "literal"
    """How the text of a control token inside a content is read: ``literal``, as text; ``control``, as the token itself
    (an injection), where the library behind cannot do better.
    """

    @attrs.frozen
    class Config(Plugin.Config):
        """``thinking``: what becomes of earlier reasoning. ``template``: what the model's template does; ``keep``: what
        was sampled stays in view, and every reply extends the history (where a history must be rendered anew all the
        same, a renderer shows what its template can show); ``strip``: none of it is shown again.
        """

        thinking: Literal["template", "keep", "strip"] = "template"

    stop_ids: frozenset[int]
    """Tokens that end a completion. A sampled one belongs to the action."""

    vocab_size: int
    """Ids at or beyond it are invalid."""

    def __init__(self, config: Any, model: ModelSpec) -> None:
        """Loads the tokenizer that *model* names. Raises FerruleError with the path where it cannot."""
        super().__init__(config)
        self.model = model
        if config.thinking not in self.thinking_choices:
            raise PluginError(
                f"renderer {self.name!r} cannot do thinking = {config.thinking!r}; it can do "
                f"{', '.join(map(repr, self.thinking_choices))}"
            )

    @abc.abstractmethod
    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, generation: bool = True
    ) -> Rendered:
        """The whole conversation, with a generation prompt at its end unless *generation* is False.

        Raises EpisodeFailed(render_failed) naming the renderer where the template refuses the messages or drops one.
        """

    def supervised(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Rendered:
        """A demonstration: the whole conversation, ACTION being what is to be learned. By default, :meth:`render`
        without a generation prompt.
        """
        return self.render(messages, tools, generation=False)

    @abc.abstractmethod
    def bridge(self, tail: Tail, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Rendered | NoBridge:
        """What *messages* add after *tail*, up to and with the next generation prompt; only the delta.

        Closes the completion where its close is missing (an open block first). Never an exception for messages that the
        template refuses: that is NoBridge.
        """

    @abc.abstractmethod
    def parse(self, ids: NDArray[np.int32], tools: Sequence[ToolSpec] = (), *, opened: Sequence[str] = ()) -> Parsed:
        """Read a completion, int32[T], stop token included where one was sampled. Arguments are read by the tool's
        schema. Never raises.
        """

    @abc.abstractmethod
    def decode(self, ids: NDArray[np.int32]) -> str:
        """Text for people; lossy where a token is cut."""


class RendererSpecs:
    @hookspec(firstresult=True)
    def ferrule_renderer(self, ref: Any) -> type[Renderer] | None:
        """The renderer class that *ref* (:class:`ferrule.plugins.Ref`) names, or None where it is not yours."""
