"""Checks of the class itself, and of whole conversations as tokens."""

from __future__ import annotations

import importlib.machinery
import inspect
import subprocess
import sys
from collections.abc import Sequence

import attrs
import numpy as np
import pytest

from ferrule import EpisodeFailed, Failure, Message, PluginError, Rendered, Renderer, TokenKind, ToolSpec

from .base import AGAIN, ANSWER, ASK, CALLING, SAID, TOOLS, RendererBase, answers_to, call, check_rendered

HEAVY = ("torch", "transformers", "tokenizers", "jax", "tensorflow")
THINKING = ("template", "keep", "strip")
TWO = Message("assistant", "", tool_calls=(call("find", 0, query="north"), call("note", 1, text="south", count=3)))
CONVERSATIONS: dict[str, tuple[tuple[Message, ...], tuple[ToolSpec, ...]]] = {
    "one": ((ASK,), ()),
    "plain": ((ASK, SAID, AGAIN), ()),
    "answered": ((ASK, SAID, AGAIN, Message("assistant", "In the west.")), ()),
    "unicode": ((Message("user", "Zürich, 東京, and a 🦜 beside the 🙂."), SAID, AGAIN), ()),
    "lines": ((Message("user", "one\n\n  two\n\tthree"), SAID, AGAIN), ()),
    "call": ((ASK, CALLING, ANSWER, SAID, AGAIN), TOOLS),
    "call and text": ((ASK, attrs.evolve(CALLING, content="Let me look."), ANSWER, SAID, AGAIN), TOOLS),
    "several": ((ASK, TWO, *answers_to(TWO, "cold up there", "written down"), SAID), TOOLS),
}


class RenderChecks(RendererBase):
    """``render``, ``supervised`` and what the class says of itself."""

    def conversation(self, case: str) -> tuple[tuple[Message, ...], tuple[ToolSpec, ...]]:
        messages, tools = CONVERSATIONS[case]
        if tools:
            self.needs_calls()
        return messages, tools

    def test_the_module_is_imported_without_heavy_libraries(self, renderer: Renderer) -> None:
        """Listing plugins and checking a configuration import the class; the libraries wait for the constructor."""
        cls = type(renderer)
        top = cls.__module__.partition(".")[0]
        # As a new process would find it: a class of a file may stand in sys.modules under a name of its own.
        if importlib.machinery.PathFinder.find_spec(top) is not None:
            code = f"import importlib; importlib.import_module({cls.__module__!r})"
        else:
            code = f"import runpy; runpy.run_path({inspect.getfile(cls)!r})"
        code += f"\nimport sys; print([m for m in {HEAVY!r} if m in sys.modules])"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == "[]", f"importing {cls.__module__} imports {done.stdout.strip()}"

    def test_it_says_what_it_is(self, renderer: Renderer) -> None:
        assert renderer.name
        assert isinstance(renderer.extends, bool)
        assert renderer.special_text in ("literal", "control")
        assert renderer.thinking_choices
        assert set(renderer.thinking_choices) <= set(THINKING)
        assert renderer.serves, "serves must name the models or families that it was written for"
        assert all(p and "*" not in p[:-1] for p in renderer.serves), "a * stands at the end of a family, only there"
        assert isinstance(renderer.vocab_size, int)
        assert renderer.stop_ids, "there must be a token at which a sampler stops"
        assert isinstance(renderer.stop_ids, frozenset)
        assert all(0 <= i < renderer.vocab_size for i in renderer.stop_ids)

    def test_a_way_of_thinking_that_it_cannot_do_is_refused(self, renderer: Renderer) -> None:
        others = [way for way in THINKING if way not in renderer.thinking_choices]
        if not others:
            pytest.skip("it can do all of them")
        for way in others:
            with pytest.raises(PluginError, match=way):
                self.make(thinking=way)

    @pytest.mark.parametrize("case", CONVERSATIONS)
    def test_tokens_kinds_and_spans_have_their_shapes(self, renderer: Renderer, case: str) -> None:
        messages, tools = self.conversation(case)
        for generation in (True, False):
            check_rendered(renderer, renderer.render(messages, tools, generation=generation), len(messages))

    @pytest.mark.parametrize("case", CONVERSATIONS)
    def test_every_content_stands_in_the_span_of_its_message(self, renderer: Renderer, case: str) -> None:
        messages, tools = self.conversation(case)
        rendered = renderer.render(messages, tools)
        for message, (start, stop) in zip(messages, rendered.spans, strict=True):
            text = renderer.decode(rendered.ids[start:stop])
            assert message.content in text, f"the {message.role} message is not in its span, which reads {text!r}"
            for each in message.tool_calls:
                assert each.name in text, f"the call of {each.name!r} is not in its span, which reads {text!r}"
                assert all(str(value) in text for value in each.arguments.values())

    @pytest.mark.parametrize("case", CONVERSATIONS)
    def test_spans_follow_each_other(self, renderer: Renderer, case: str) -> None:
        messages, tools = self.conversation(case)
        rendered = renderer.render(messages, tools)
        assert all(a[1] <= b[0] for a, b in zip(rendered.spans, rendered.spans[1:], strict=False)), rendered.spans

    @pytest.mark.parametrize("case", CONVERSATIONS)
    def test_observation_is_the_content_of_what_the_model_did_not_write(self, renderer: Renderer, case: str) -> None:
        messages, tools = self.conversation(case)
        rendered = renderer.render(messages, tools)
        for message, (start, stop) in zip(messages, rendered.spans, strict=True):
            kinds = rendered.kinds[start:stop]
            if message.role == "assistant":
                assert TokenKind.OBSERVATION not in kinds, "a reply's tokens are no observation"
                continue
            text = renderer.decode(rendered.ids[start:stop][kinds == TokenKind.OBSERVATION])
            assert message.content in text, f"observation reads {text!r} of the {message.role} message"
            # A token may hold the content's edge and a character or two of the template.
            extra = len(text) - len(message.content)
            assert extra <= 4, f"observation takes in framing: {text!r}"
            assert TokenKind.ACTION not in kinds, f"tokens of a {message.role} message are no action"

    @pytest.mark.parametrize("case", CONVERSATIONS)
    def test_action_is_what_the_model_would_have_sampled(self, renderer: Renderer, case: str) -> None:
        messages, tools = self.conversation(case)
        rendered = renderer.render(messages, tools)
        inside = np.zeros(len(rendered), bool)
        for i, message in enumerate(messages):
            if message.role != "assistant":
                continue
            start, stop = rendered.spans[i]
            inside[start:stop] = True
            ids = self.action(rendered, i)
            text = renderer.decode(ids)
            assert message.content in text, f"action reads {text!r} of a reply"
            assert all(c.name in text for c in message.tool_calls)
            places = np.flatnonzero(rendered.kinds[start:stop] == TokenKind.ACTION)
            assert len(places) == places[-1] - places[0] + 1, "a reply's action has holes"
            if i + 1 < len(messages):
                assert int(ids[-1]) in renderer.stop_ids, f"action does not end with a stop token: {text!r}"
        outside = rendered.kinds[~inside]
        assert TokenKind.ACTION not in outside, "there are action tokens outside the assistant's messages"

    def test_the_last_reply_ends_with_a_stop_token_too(self, renderer: Renderer) -> None:
        ids = self.action(renderer.render([ASK, SAID], generation=False), 1)
        assert len(ids)
        assert int(ids[-1]) in renderer.stop_ids

    @pytest.mark.parametrize("case", ["plain", "call", "reasoning"])
    def test_a_prompt_is_a_prefix_of_what_holds_its_reply(self, renderer: Renderer, case: str) -> None:
        """The boundary between prompt and reply is where sampling begins, though a tokenizer may merge across it."""
        history, tools, reply = (ASK, SAID, AGAIN), (), Message("assistant", "\nIn the west.")
        if case == "call":
            self.needs_calls()
            tools, reply = TOOLS, CALLING  # type: ignore[assignment]
        if case == "reasoning":
            self.needs_reasoning()
            reply = Message("assistant", "In the west.", "The other one flows west.")
        prompt = renderer.render(history, tools)
        whole = renderer.render([*history, reply], tools, generation=False)
        first = int(np.flatnonzero(whole.kinds == TokenKind.ACTION)[-1])
        while first and whole.kinds[first - 1] == TokenKind.ACTION:
            first -= 1
        assert whole.ids[: len(prompt)].tolist() == prompt.ids.tolist(), (
            f"prompt: {renderer.decode(prompt.ids)!r}\nwith its reply: {renderer.decode(whole.ids)!r}"
        )
        assert first == len(prompt), "the reply's action does not begin where the prompt ends"

    def test_the_generation_prompt_comes_after_all_messages(self, renderer: Renderer) -> None:
        asked, bare = renderer.render([ASK, SAID, AGAIN]), renderer.render([ASK, SAID, AGAIN], generation=False)
        assert asked.ids[: len(bare)].tolist() == bare.ids.tolist()
        assert TokenKind.ACTION not in asked.kinds[asked.spans[-1][1] :]
        assert len(asked) >= len(bare)

    def test_a_system_message_is_written_or_refused_by_name(self, renderer: Renderer) -> None:
        orders = Message("system", "Speak like a sailor.")
        for messages in ((orders, ASK), (ASK, SAID, orders, AGAIN)):
            self._written_or_refused(renderer, messages, ())

    @pytest.mark.parametrize(
        "messages",
        [
            (Message("user", ""),),
            (ASK, Message("assistant", ""), AGAIN),
            (ASK, AGAIN),
            (ASK, Message("tool", "An answer to nothing.", tool_call_id="callabc77")),
            (SAID, AGAIN),
            (ASK, SAID),
        ],
        ids=["empty user", "empty reply", "two users", "answer without call", "reply first", "nothing to answer"],
    )
    def test_odd_conversations_are_written_whole_or_refused_by_name(
        self, renderer: Renderer, messages: tuple[Message, ...]
    ) -> None:
        self._written_or_refused(renderer, messages, ())

    def test_calls_are_written_or_refused_by_name(self, renderer: Renderer) -> None:
        found = self._written_or_refused(renderer, (ASK, CALLING, ANSWER), TOOLS)
        assert (found is not None) == self.calls, (
            "it writes tool calls: take `calls = False` away"
            if found
            else "it refuses tool calls: say `calls = False` where its format has none"
        )

    def _written_or_refused(
        self, renderer: Renderer, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Rendered | None:
        try:
            rendered = renderer.render(messages, tools)
        except EpisodeFailed as failed:
            refusal = failed
        else:
            refusal = None
        if refusal is not None:
            assert refusal.reason == Failure.RENDER_FAILED
            assert renderer.name in refusal.detail, f"the refusal does not name the renderer: {refusal.detail}"
            return None
        check_rendered(renderer, rendered, len(messages))
        for message, (start, stop) in zip(messages, rendered.spans, strict=True):
            text = renderer.decode(rendered.ids[start:stop])
            assert message.content in text, f"a {message.role} message was dropped in silence"
            assert all(c.name in text for c in message.tool_calls), "a call was dropped in silence"
        return rendered

    def test_answers_stand_in_the_order_of_their_calls(self, renderer: Renderer) -> None:
        self.needs_calls()
        one, two = answers_to(TWO, "cold up there", "written down")
        straight = renderer.render([ASK, TWO, one, two, SAID], TOOLS)
        crossed = renderer.render([ASK, TWO, two, one, SAID], TOOLS)
        assert crossed.ids.tolist() == straight.ids.tolist()
        assert crossed.spans[2] == straight.spans[3]
        assert crossed.spans[3] == straight.spans[2]

    def test_tools_are_shown(self, renderer: Renderer) -> None:
        self.needs_calls()
        text = renderer.decode(renderer.render([ASK], TOOLS).ids)
        assert all(tool.name in text and tool.description in text for tool in TOOLS)

    def test_a_demonstration_teaches_its_replies(self, renderer: Renderer) -> None:
        messages = (ASK, SAID, AGAIN, Message("assistant", "In the west."))
        shown = renderer.supervised(messages)
        check_rendered(renderer, shown, len(messages))
        text = renderer.decode(shown.ids[shown.kinds == TokenKind.ACTION])
        assert "In the west." in text
        assert ASK.content not in text
        assert int(shown.ids[shown.kinds == TokenKind.ACTION][-1]) in renderer.stop_ids

    def test_rendering_repeats(self, renderer: Renderer) -> None:
        one, two = renderer.render([ASK, SAID, AGAIN]), renderer.render([ASK, SAID, AGAIN])
        assert one.ids.tolist() == two.ids.tolist()
        assert one.kinds.tolist() == two.kinds.tolist()
        assert one.spans == two.spans

    @pytest.mark.parametrize("way", THINKING)
    def test_earlier_reasoning_goes_as_the_choice_says(self, renderer: Renderer, way: str) -> None:
        self.needs_reasoning()
        if way not in renderer.thinking_choices:
            pytest.skip(f"it cannot do thinking = {way!r}")
        made = self.variant(thinking=way)
        thought = Message("assistant", "At the harbour.", "They both flow south.")
        text = made.decode(made.render([ASK, thought, AGAIN]).ids)
        assert thought.content in text
        if way == "strip":
            assert "both flow south" not in text
