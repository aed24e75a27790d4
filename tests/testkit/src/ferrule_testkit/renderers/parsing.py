"""Checks of completions read back: by the tools' schemas, from whatever tokens a model may sample."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest

from ferrule import Message, Parsed, Renderer, ToolCall, ToolSpec

from .base import ASK, CALLING, READING, SAID, TOOLS, Ids, RendererBase, call, group

TEXTS = (
    "19122",
    "1e5",
    "1.10",
    "-0",
    "null",
    "true",
    '"q"',
    "[1,2]",
    "NaN",
    "Zürich 🦜",
    "  indented\n\ttext",
    "",
    "a </parameter> b",
)
VALUES: dict[str, tuple[str, Any, Any]] = {
    "integer": ("count", 7, 7),
    "integer as float": ("count", 7.0, 7),
    "number": ("share", 0.5, 0.5),
    "boolean": ("done", True, True),
    "list": ("list", [1, 2], [1, 2]),
    "word for text or boolean": ("either", "maybe", "maybe"),
}
TWO = (call("find", 0, query="north"), call("note", 1, text="south", count=3))


def spoiled(parsed: Parsed) -> list[ToolCall]:
    return [each for each in parsed.message.tool_calls if each.error is not None]


class ParseChecks(RendererBase):
    """``parse``."""

    def read(self, renderer: Renderer, reply: Message, tools: tuple[ToolSpec, ...] = TOOLS) -> Parsed:
        """What comes back of *reply*, as a model would have written it."""
        return self.said(renderer, reply, (ASK,), tools if self.calls else ()).parsed

    def _span_ok(self, renderer: Renderer, parsed: Parsed, ids: Ids) -> None:
        for problem in parsed.problems:
            start, stop = problem.span
            assert 0 <= start < stop <= len(ids), f"a problem's span {problem.span} of {len(ids)} tokens"
            assert problem.message

    @pytest.mark.parametrize("content", ["At the harbour.", "one\n\n  two", "Zürich, 東京 and a 🦜", "a < b > c & d"])
    def test_text_comes_back_as_it_stands(self, renderer: Renderer, content: str) -> None:
        parsed = self.read(renderer, Message("assistant", content))
        assert parsed.message == Message("assistant", content, parsed.message.reasoning)
        assert not (parsed.message.reasoning or "").strip()
        assert parsed.status == "ok"
        assert parsed.closed
        assert not parsed.problems

    def test_reasoning_is_told_apart(self, renderer: Renderer) -> None:
        self.needs_reasoning()
        parsed = self.read(renderer, Message("assistant", "At the harbour.", "They both flow\nsouth."))
        assert parsed.status == "ok"
        assert (parsed.message.reasoning or "").strip() == "They both flow\nsouth."
        assert parsed.message.content.strip() == "At the harbour."

    @group(READING)
    def test_a_call_comes_back_with_its_arguments(self, renderer: Renderer) -> None:
        self.needs_calls()
        parsed = self.read(renderer, CALLING)
        assert parsed.status == "ok", parsed
        (found,) = parsed.message.tool_calls
        assert (found.name, found.arguments, found.error) == ("find", {"query": "harbour"}, None)
        assert not parsed.message.content.strip()

    @group(READING)
    def test_text_beside_a_call_comes_back(self, renderer: Renderer) -> None:
        self.needs_calls()
        parsed = self.read(renderer, attrs.evolve(CALLING, content="Let me look."))
        assert [(c.name, c.arguments) for c in parsed.message.tool_calls] == [("find", {"query": "harbour"})]
        assert parsed.message.content.strip() == "Let me look."

    @group(READING)
    def test_several_calls_come_back_in_order_with_ids_of_their_own(self, renderer: Renderer) -> None:
        self.needs_calls()
        parsed = self.read(renderer, Message("assistant", "", tool_calls=TWO))
        assert [(c.name, c.arguments, c.error) for c in parsed.message.tool_calls] == [
            ("find", {"query": "north"}, None),
            ("note", {"text": "south", "count": 3}, None),
        ]
        assert len({c.id for c in parsed.message.tool_calls}) == 2

    @group(READING)
    def test_a_call_after_reasoning_comes_back(self, renderer: Renderer) -> None:
        self.needs_calls()
        self.needs_reasoning()
        parsed = self.read(renderer, Message("assistant", "", "I had better look.", tool_calls=CALLING.tool_calls))
        (found,) = parsed.message.tool_calls
        assert (found.name, found.arguments) == ("find", {"query": "harbour"})
        assert (parsed.message.reasoning or "").strip() == "I had better look."

    @group(READING)
    def test_a_call_without_arguments_has_none(self, renderer: Renderer) -> None:
        self.needs_calls()
        parsed = self.read(renderer, Message("assistant", "", tool_calls=(call("find"),)))
        (found,) = parsed.message.tool_calls
        assert (found.name, found.arguments, found.error) == ("find", {}, None)

    @group(READING)
    def test_a_call_of_an_unknown_tool_comes_back_as_it_was_made(self, renderer: Renderer) -> None:
        """That nobody offers such a tool is for the tool loop to answer."""
        self.needs_calls()
        parsed = self.read(renderer, Message("assistant", "", tool_calls=(call("vanish", text="19122"),)))
        (found,) = parsed.message.tool_calls
        assert found.name == "vanish"
        assert found.error is None

    @group(READING)
    @pytest.mark.parametrize("text", TEXTS)
    def test_text_for_a_string_parameter_comes_back_as_exactly_that_text(self, renderer: Renderer, text: str) -> None:
        self.needs_calls()
        parsed = self.read(renderer, Message("assistant", "", tool_calls=(call("note", text=text),)))
        (found,) = parsed.message.tool_calls
        assert found.error is None
        assert found.arguments == {"text": text}
        assert type(found.arguments["text"]) is str

    @group(READING)
    @pytest.mark.parametrize("case", VALUES)
    def test_other_parameters_are_typed_by_the_schema(self, renderer: Renderer, case: str) -> None:
        self.needs_calls()
        name, written, value = VALUES[case]
        parsed = self.read(renderer, Message("assistant", "", tool_calls=(call("note", **{name: written}),)))
        (found,) = parsed.message.tool_calls
        assert found.error is None, found
        assert found.arguments == {name: value}
        assert type(found.arguments[name]) is type(value)

    @group(READING)
    @pytest.mark.parametrize(("name", "value"), [("count", "seven"), ("done", "perhaps"), ("share", "half")])
    def test_an_argument_of_the_wrong_type_is_an_error_on_its_call(
        self, renderer: Renderer, name: str, value: str
    ) -> None:
        self.needs_calls()
        parsed = self.read(renderer, Message("assistant", "", tool_calls=(call("note", **{name: value}),)))
        (found,) = parsed.message.tool_calls
        assert found.name == "note"
        assert found.error is not None, f"{value!r} went through for {name}: {found.arguments}"
        assert found.raw, "the text of a call that is not run must be kept"
        assert value in found.raw
        assert parsed.status == "malformed"
        assert parsed.problems

    def _broken(self, renderer: Renderer) -> tuple[Ids, Ids, Parsed]:
        """(a reply of a good call and one with a piece missing, the stop token, what comes back of it).

        The piece begins where the second call's value ends and is as small as spoils the call.
        """
        reply = Message("assistant", "", tool_calls=(TWO[0], call("note", 1, text="zebra")))
        ids = self.completion(renderer, reply, (ASK,), TOOLS)
        opened = renderer.render([ASK], TOOLS).opened
        value = next(n for n in range(len(ids)) if "zebra" in renderer.decode(ids[: n + 1])) + 1
        for missing in range(1, len(ids) - value - 1):
            body = np.concatenate([ids[:value], ids[value + missing : -1]]).astype(np.int32)
            parsed = renderer.parse(np.concatenate([body, ids[-1:]]), TOOLS, opened=opened)
            if parsed.status == "malformed" and parsed.closed:
                return body, ids[-1:], parsed
        pytest.fail("whatever piece of a call is missing, it is not reported malformed")

    @group(READING)
    def test_a_malformed_call_is_told_and_spares_the_good_one(self, renderer: Renderer) -> None:
        self.needs_calls()
        body, stop, parsed = self._broken(renderer)
        good = [c for c in parsed.message.tool_calls if c.error is None]
        assert [(c.name, c.arguments) for c in good] == [("find", {"query": "north"})]
        assert len(spoiled(parsed)) == 1
        (bad,) = spoiled(parsed)
        assert bad.raw
        assert "zebra" in bad.raw
        assert parsed.problems
        self._span_ok(renderer, parsed, np.concatenate([body, stop]))
        shown = [renderer.decode(body[slice(*p.span)]) for p in parsed.problems]
        assert any("zebra" in text for text in shown), f"no problem's span holds the malformed call: {shown}"

    @group(READING)
    def test_text_after_a_malformed_call_changes_nothing_of_that(self, renderer: Renderer) -> None:
        self.needs_calls()
        body, stop, parsed = self._broken(renderer)
        text = self.completion(renderer, SAID)[:-1]
        after = np.concatenate([body, text[-3:], stop]).astype(np.int32)
        again = renderer.parse(after, TOOLS, opened=renderer.render([ASK], TOOLS).opened)
        assert again.status == "malformed"
        assert ("find", None) in [(c.name, c.error) for c in again.message.tool_calls], "the good call is lost"
        assert [(c.name, c.error is None) for c in again.message.tool_calls] == [
            (c.name, c.error is None) for c in parsed.message.tool_calls
        ]
        self._span_ok(renderer, again, after)

    def test_a_reply_cut_anywhere_is_truncated_and_raises_nothing(self, renderer: Renderer) -> None:
        tools = TOOLS if self.calls else ()
        reasoning = "They flow south." if self.reasoning else None
        reply = Message("assistant", "A 🦜.", reasoning, tool_calls=CALLING.tool_calls if self.calls else ())
        ids = self.completion(renderer, reply, (ASK,), tools)
        opened = renderer.render([ASK], tools).opened
        for size in range(len(ids)):
            parsed = renderer.parse(ids[:size], tools, opened=opened)
            assert parsed.status == "truncated", renderer.decode(ids[:size])
            assert all(c.error or c.arguments == {"query": "harbour"} for c in parsed.message.tool_calls)
            self._span_ok(renderer, parsed, ids)

    def test_reasoning_that_is_cut_is_no_answer(self, renderer: Renderer) -> None:
        self.needs_reasoning()
        reply = Message("assistant", "At the harbour.", "They both flow south.")
        ids = self.completion(renderer, reply)
        opened = renderer.render([ASK]).opened
        inside = next(n for n in range(len(ids)) if "both" in renderer.decode(ids[: n + 1])) + 1
        parsed = renderer.parse(ids[:inside], (), opened=opened)
        assert "both" in (parsed.message.reasoning or "")
        assert not parsed.message.content.strip()
        assert not parsed.closed

    def test_any_tokens_at_all_are_read_without_raising(self, renderer: Renderer) -> None:
        rng = np.random.default_rng(11)
        used = renderer.render([ASK, CALLING], TOOLS).ids if self.calls else renderer.render([ASK, SAID]).ids
        cases = [np.array([], np.int32), np.array([min(renderer.stop_ids)] * 3, np.int32)]
        cases += [np.array([renderer.vocab_size, renderer.vocab_size + 7], np.int32)]
        for _ in range(60):
            anything = rng.integers(0, renderer.vocab_size, rng.integers(1, 30)).astype(np.int32)
            # Shuffled pieces of the format itself reach further into a parser than noise does.
            cases += [anything, rng.choice(used, rng.integers(1, 40)).astype(np.int32)]
        for ids in cases:
            for opened in ((), ("think",)):
                try:
                    parsed = renderer.parse(ids, TOOLS, opened=opened)
                except Exception as error:
                    pytest.fail(f"parse raised {type(error).__name__}: {error} on {ids.tolist()}")
                assert isinstance(parsed, Parsed)
                assert parsed.message.role == "assistant"
                self._span_ok(renderer, parsed, ids)

    def test_reading_repeats(self, renderer: Renderer) -> None:
        tools = TOOLS if self.calls else ()
        reply = Message("assistant", "Look.", tool_calls=TWO if self.calls else ())
        ids = self.completion(renderer, reply, (ASK,), tools)
        one, two = renderer.parse(ids, tools), renderer.parse(ids, tools)
        assert one == two, "the same tokens were read in two ways"

    def test_each_stop_token_ends_a_reply(self, renderer: Renderer) -> None:
        ids = self.completion(renderer, SAID)
        for stop in sorted(renderer.stop_ids):
            parsed = renderer.parse(np.array([*ids[:-1], stop], np.int32))
            assert parsed.status == "ok"
            assert parsed.message.content.strip() == SAID.content, "a stop token is no part of the content"
