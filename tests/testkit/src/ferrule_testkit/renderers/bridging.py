"""Checks of deltas: what new messages add to a conversation whose tokens stay as they were sampled."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import pytest

from ferrule import Message, NoBridge, Rendered, Renderer, TokenKind, ToolSpec

from .base import AGAIN, ASK, CALLING, SAID, TOOLS, RendererBase, Turn, answers_to, call, check_rendered

LONG = (ASK, SAID, AGAIN, Message("assistant", "In the west.")) * 4
TWICE = Message("assistant", "", tool_calls=(call("find", 0, query="north"), call("find", 1, query="south")))
ODD: dict[str, tuple[Message, ...]] = {
    "answer without call": (Message("tool", "An answer to nothing.", tool_call_id="callabc77"),),
    "answer without id": (Message("tool", "An answer to nothing."),),
    "system": (Message("system", "Speak like a sailor."),),
    "system then user": (Message("system", "Speak like a sailor."), AGAIN),
    "two users": (AGAIN, Message("user", "And the third?")),
    "empty": (Message("user", ""),),
    "blank": (Message("user", " \n\t "),),
    "half a surrogate pair": (Message("user", "half \ud83e of a parrot"),),
    "private use": (Message("user", "".join(chr(c) for c in (0xE000, 0xF0000, 0xFFFFD, 0x100000, 0x10FFFD))),),
    "zero": (Message("user", "a\x00b"),),
    "long": (Message("user", "word " * 3000),),
}


class BridgeChecks(RendererBase):
    """``bridge``."""

    def framed(self, renderer: Renderer, turn: Turn, new: Sequence[Message]) -> Rendered:
        """The delta, which must be what a rendering of the whole conversation has at its end.

        The reply was rendered by the renderer itself, so its end is canonical. What stands before it is not compared:
        a template may write history otherwise than a model sampled it.
        """
        delta = self.extended(renderer, turn, new)
        whole = renderer.render([*turn.history, turn.message, *new], turn.tools)
        overlap = min(2, len(turn.completion))
        ours = [*turn.completion[-overlap:].tolist(), *delta.ids.tolist()]
        theirs = whole.ids[-len(ours) :].tolist()
        assert ours == theirs, (
            f"after the reply come {renderer.decode(np.array(ours, np.int32))!r}, "
            f"rendered whole {renderer.decode(np.array(theirs, np.int32))!r}"
        )
        assert delta.kinds.tolist() == whole.kinds[-len(delta) :].tolist()
        assert delta.opened == whole.opened
        for message, (start, stop) in zip(new, delta.spans, strict=True):
            assert message.content in renderer.decode(delta.ids[start:stop])
        assert TokenKind.ACTION not in delta.kinds, "nothing of a delta was sampled"
        return delta

    @pytest.mark.parametrize("history", [(ASK,), (ASK, SAID, AGAIN), (*LONG, ASK)], ids=["first", "second", "long"])
    def test_a_users_message_extends_as_a_rendering_has_it(
        self, renderer: Renderer, history: tuple[Message, ...]
    ) -> None:
        self.needs_bridge(renderer)
        self.framed(renderer, self.said(renderer, SAID, history), [AGAIN])

    @pytest.mark.parametrize("history", [(ASK,), (ASK, SAID, AGAIN)], ids=["first", "second"])
    def test_a_tools_answer_extends_as_a_rendering_has_it(
        self, renderer: Renderer, history: tuple[Message, ...]
    ) -> None:
        self.needs_bridge(renderer)
        self.needs_calls()
        turn = self.said(renderer, CALLING, history, TOOLS)
        self.framed(renderer, turn, answers_to(turn.message, "It lies in the south."))

    def test_answers_come_in_any_order_and_are_paired_by_id(self, renderer: Renderer) -> None:
        self.needs_bridge(renderer)
        self.needs_calls()
        turn = self.said(renderer, TWICE, (ASK,), TOOLS)
        one, two = answers_to(turn.message, "cold up there", "warm down there")
        straight = self.framed(renderer, turn, [one, two])
        crossed = self.extended(renderer, turn, [two, one])
        assert crossed.ids.tolist() == straight.ids.tolist()
        assert "warm down there" in renderer.decode(crossed.ids[slice(*crossed.spans[0])])
        assert "cold up there" in renderer.decode(crossed.ids[slice(*crossed.spans[1])])

    def test_the_delta_repeats_and_does_not_depend_on_earlier_ones(self, renderer: Renderer) -> None:
        self.needs_bridge(renderer)
        turn = self.said(renderer, SAID)
        contents = ["first", "  padded ", 'with "quotes" and \\', "", "Zürich 🦜", "first", "last"]
        fresh = self.variant(thinking="keep") if "keep" in renderer.thinking_choices else self.make()
        ours = [renderer.bridge(turn.tail, [Message("user", content)]) for content in contents]
        theirs = [fresh.bridge(turn.tail, [Message("user", content)]) for content in reversed(contents)]
        for content, one, two in zip(contents, ours, reversed(theirs), strict=True):
            assert isinstance(one, Rendered) == isinstance(two, Rendered), f"{content!r}: {one}, after others {two}"
            if isinstance(one, Rendered) and isinstance(two, Rendered):
                assert one.ids.tolist() == two.ids.tolist(), f"{content!r} depends on what was bridged before it"
        self.extended(renderer, turn, [Message("user", "first")])

    def test_the_delta_depends_on_the_tail_alone(self, renderer: Renderer) -> None:
        """A conversation of thousands of messages extends as one of a dozen does, from the same few tokens."""
        self.needs_bridge(renderer)
        turn = self.said(renderer, SAID, (*LONG, ASK))
        far = attrs.evolve(turn.tail, index=turn.tail.index + 5000)
        before = turn.tail.ids.copy()
        near = self.extended(renderer, turn, [AGAIN])
        found = renderer.bridge(far, [AGAIN])
        assert isinstance(found, Rendered)
        assert found.ids.tolist() == near.ids.tolist()
        assert turn.tail.ids.tolist() == before.tolist(), "the tail was changed"
        text = renderer.decode(near.ids)
        assert SAID.content not in text, "the delta holds what was there before"
        assert ASK.content not in text, "the delta holds what was there before"

    def test_what_was_sampled_need_not_be_canonical(self, renderer: Renderer) -> None:
        """A reply in tokens that no tokenizer would choose: the delta is the same, for nothing is encoded again."""
        self.needs_bridge(renderer)
        turn = self.said(renderer, Message("assistant", "a b c d e f g h"))
        pieces = [self.completion(renderer, Message("assistant", c))[:-1] for c in "abcdefgh"]
        odd = self.turn(renderer, np.concatenate([*pieces, turn.completion[-1:]]))
        canonical = self.extended(renderer, turn, [AGAIN])
        assert self.extended(renderer, odd, [AGAIN]).ids.tolist() == canonical.ids.tolist()

    def _cuts(self, renderer: Renderer, reply: Message, tools: Sequence[ToolSpec], thinking: str) -> None:
        """Cut *reply* after each token; what comes next must close what is open and go on as after a whole reply."""
        whole = self.completion(renderer, reply, (ASK,), tools)
        for size in range(len(whole)):
            turn = self.turn(renderer, whole[:size], (ASK,), tools)
            message = turn.message
            new = answers_to(message) if message.tool_calls else [AGAIN]
            found = self.never_raises(renderer, turn, new)
            where = f"cut after {renderer.decode(turn.completion)!r}"
            if isinstance(found, NoBridge):
                excused = bool(message.reasoning) and thinking != "keep"
                excused |= any(c.error is not None for c in message.tool_calls)
                assert excused, f"{where}: {found}"
                continue
            check_rendered(renderer, found, len(new))
            text = renderer.decode(found.ids)
            assert all(text.count(m.content) == 1 for m in new), f"{where}: the delta reads {text!r}"
            stops = [n for n, i in enumerate(found.ids.tolist()) if i in renderer.stop_ids]
            first = min(int(np.flatnonzero(found.kinds == TokenKind.OBSERVATION)[0]), len(found))
            assert stops, f"{where}: the turn is never closed in {text!r}"
            assert stops[0] < first, f"{where}: the turn is not closed before the next message in {text!r}"
            closed = np.concatenate([turn.completion, found.ids[: stops[0] + 1]]).astype(np.int32)
            again = renderer.parse(closed, tools, opened=turn.prompt.opened)
            assert again.closed, f"{where}: a block stays open in {renderer.decode(closed)!r}"
            assert again.message.content.strip() == message.content.strip(), f"{where}: closing changes the content"
            assert (again.message.reasoning or "").strip() == (message.reasoning or "").strip(), (
                f"{where}: closing changes the reasoning"
            )
            if turn.parsed.closed:
                lead = renderer.decode(found.ids[: stops[0]]).strip()
                assert not lead, f"{where}: nothing is open, yet {lead!r} is put before the close"

    def test_a_cut_reply_is_closed_wherever_it_was_cut(self, renderer: Renderer) -> None:
        self.needs_bridge(renderer)
        self._cuts(renderer, Message("assistant", "A 🦜 at the harbour, 東京 and Zürich."), (), "template")

    def test_an_open_call_is_closed_before_the_turn(self, renderer: Renderer) -> None:
        self.needs_bridge(renderer)
        self.needs_calls()
        self._cuts(renderer, CALLING, TOOLS, "template")

    def test_open_reasoning_is_closed_before_the_turn(self, renderer: Renderer) -> None:
        self.needs_bridge(renderer)
        self.needs_reasoning()
        thought = Message("assistant", "At the harbour.", "They both flow south.")
        if "keep" in renderer.thinking_choices:
            self._cuts(self.variant(thinking="keep"), thought, (), "keep")
        else:
            self._cuts(renderer, thought, (), "template")

    def test_kept_reasoning_never_starts_a_segment(self, renderer: Renderer) -> None:
        self.needs_bridge(renderer)
        self.needs_reasoning()
        if "keep" not in renderer.thinking_choices:
            pytest.skip("it cannot do thinking = 'keep'")
        made = self.variant(thinking="keep")
        thought = Message("assistant", "At the harbour.", "They both flow south.")
        turn = self.said(made, thought)
        delta = self.extended(made, turn, [AGAIN])
        plain = self.extended(made, self.said(made, SAID), [AGAIN])
        assert delta.ids.tolist() == plain.ids.tolist()

    @pytest.mark.parametrize("case", ODD)
    def test_messages_that_cannot_be_written_are_no_bridge_and_none_is_dropped(
        self, renderer: Renderer, case: str
    ) -> None:
        self.needs_bridge(renderer)
        turn = self.said(renderer, SAID)
        new = ODD[case]
        found = self.never_raises(renderer, turn, new)
        if isinstance(found, NoBridge):
            assert found.reason
            assert found.reason != "empty_delta"
            return
        check_rendered(renderer, found, len(new))
        for message, (start, stop) in zip(new, found.spans, strict=True):
            content = message.content.strip().encode("utf-8", "replace").decode()
            assert content in renderer.decode(found.ids[start:stop]), f"a {message.role} message was dropped"

    def test_nothing_new_is_an_empty_delta(self, renderer: Renderer) -> None:
        self.needs_bridge(renderer)
        turn = self.said(renderer, SAID)
        for new in ([], [Message("assistant", "And more.")]):
            found = self.never_raises(renderer, turn, new)
            assert isinstance(found, NoBridge)
            assert found.reason == "empty_delta"

    def test_a_reply_among_the_new_messages_is_no_bridge(self, renderer: Renderer) -> None:
        self.needs_bridge(renderer)
        turn = self.said(renderer, SAID)
        found = self.never_raises(renderer, turn, [AGAIN, Message("assistant", "In the west."), ASK])
        assert isinstance(found, NoBridge)
        assert found.reason == "no_bridge"

    def test_other_tools_are_no_bridge(self, renderer: Renderer) -> None:
        self.needs_bridge(renderer)
        self.needs_calls()
        turn = self.said(renderer, SAID, (ASK,), TOOLS)
        same = tuple(attrs.evolve(tool, parameters=dict(tool.parameters)) for tool in TOOLS)
        assert isinstance(renderer.bridge(turn.tail, [AGAIN], same), Rendered)
        for other in ((), TOOLS[:1], (ToolSpec("else", "Does else."),)):
            found = renderer.bridge(turn.tail, [AGAIN], other)
            assert isinstance(found, NoBridge)
            assert found.reason == "tools_changed"

    def test_a_renderer_that_extends_nothing_says_so(self, renderer: Renderer) -> None:
        if renderer.extends:
            pytest.skip("it extends histories")
        assert isinstance(self.never_raises(renderer, self.said(renderer, SAID), [AGAIN]), NoBridge)
