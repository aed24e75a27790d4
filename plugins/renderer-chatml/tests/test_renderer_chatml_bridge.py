"""What new messages add: exact, literal, and only what is new; on the real Qwen3 tokenizer, and the others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrule import Message, NoBridge, Rendered, Tail, TokenKind, ToolCall, ToolSpec, clean_text, token_kinds

TOOL = ToolSpec("run", "Runs.", {"type": "object", "properties": {"code": {"type": "string"}}})
CALL = '<tool_call>\n{"name": "run", "arguments": {"code": "1"}}\n</tool_call>'
END = "<|im_end|>"
PIECES = [
    *(" ", "\n", "\n\n", "\r\n", "\t", "a", "yo", "é", "e\u0301", "\u0338", "😀", "👩‍👩‍👧", "日本語", "1", "12", "'s", "!", ".\n", "<", "</"),
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "</tool_response>", "<tool_response>", "<|im_end|>", "<|im_start|>"),
    *("<|endoftext|>", "|im_end|>", "\ud800", "\x00", '{"name": "run"}', "<function=run>"),
]  # fmt: skip
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=6), max_size=8).map("".join)


def news(calls: int = 0) -> st.SearchStrategy[list[Message]]:
    answers = st.lists(texts, min_size=calls, max_size=calls)
    rest = st.lists(st.tuples(st.sampled_from(["user", "system", "tool"]), texts), max_size=3)

    @st.composite
    def made(draw: st.DrawFn) -> list[Message]:
        out = [Message("tool", t, tool_call_id=f"id{n}") for n, t in enumerate(draw(answers))]
        out += [Message(role, t) for role, t in draw(rest)]
        return out or [Message("user", draw(texts))]

    return made()


def framed(new: list[Message]) -> tuple[str, list[tuple[int, int]]]:
    """The text of a delta after a closed completion, written out, with the spans of its contents."""
    parts, spans, at = [], [], 0

    def put(text: str) -> None:
        nonlocal at
        parts.append(text)
        at += len(text)

    put("\n")
    for n, message in enumerate(new):
        content = clean_text(message.content)
        tool = message.role == "tool"
        if tool:
            if not n or new[n - 1].role != "tool":
                put("<|im_start|>user")
            put("\n<tool_response>\n")
        else:
            put(f"<|im_start|>{message.role}\n")
        spans.append((at, at + len(content)))
        put(content)
        if tool:
            put("\n</tool_response>")
        if not tool or n + 1 == len(new) or new[n + 1].role != "tool":
            put("<|im_end|>\n")
    put("<|im_start|>assistant\n")
    return "".join(parts), spans


@pytest.mark.parametrize("tokenizer", ["qwen3", "qwen25"])
@settings(max_examples=150, deadline=None)
@given(new=news())
def test_a_delta_is_its_text_encoded_as_one(kit, tokenizer, new) -> None:
    """Ids and kinds against the whole text read at once, with contents literal: nothing was lost by going piece by
    piece.
    """
    k = kit(tokenizer)
    _, _, tail = k.sampled([Message("user", "Q")], "Fine." + END)
    delta = k.renderer.bridge(tail, new)
    assert isinstance(delta, Rendered)
    text, spans = framed(new)
    guards = [(a, b, frozenset()) for a, b in spans]
    # The close stands before, as it does in the conversation.
    tokens = k.renderer._encoder.tokenize(END + text, (), [(a + len(END), b + len(END), c) for a, b, c in guards])
    assert delta.ids.tolist() == tokens.ids[1:]
    kinds = token_kinds(END + text, tokens, [(a + len(END), b + len(END)) for a, b in spans if a < b])
    assert delta.kinds.tolist() == kinds.tolist()[1:]
    assert delta.spans[0][0] == 1
    assert [b for _, b in delta.spans[:-1]] == [a for a, _ in delta.spans[1:]]
    assert k.renderer.decode(delta.ids[delta.spans[-1][1] :]) == "<|im_start|>assistant\n"


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_prompt_begins_with_the_prompt_and_completion_before_it(kit, data) -> None:
    k = kit("qwen3", thinking="keep")
    messages = [Message("system", data.draw(texts)), Message("user", data.draw(texts))]
    prompt = k.renderer.render(messages, (TOOL,))
    held = prompt.ids.tolist()
    generation = prompt.ids[prompt.spans[-1][1] :]
    strippable = False
    for _ in range(data.draw(st.integers(1, 3))):
        words = data.draw(st.sampled_from(["", "<think>\nhm\n</think>\n\n", "<think>\n"])) + data.draw(texts)
        count = data.draw(st.integers(0, 2))
        ids = k.ids(clean_text(words) + f"\n{CALL}" * count + data.draw(st.sampled_from([END, "<|endoftext|>", ""])))
        ids = ids[: data.draw(st.integers(0, len(ids)))] if data.draw(st.booleans()) else ids
        parsed = k.renderer.parse(np.array(ids, np.int32), (TOOL,))
        stop = ids[-1] if ids and ids[-1] in k.renderer.stop_ids else "length"
        roles = tuple(m.role for m in messages)[-8:]
        tail = Tail(
            np.concatenate([generation, np.array(ids, np.int32)]),
            len(generation), stop, parsed.message, len(messages), roles, (), (TOOL,), strippable,
        )  # fmt: skip
        new = [Message("tool", data.draw(texts), tool_call_id=c.id) for c in parsed.message.tool_calls]
        new += [Message("user", data.draw(texts))] if not new or data.draw(st.booleans()) else []
        delta = k.renderer.bridge(tail, new, (TOOL,))
        assert isinstance(delta, Rendered)
        before = [*held, *ids]
        held = [*before, *delta.ids.tolist()]
        control = k.renderer._encoder.control
        marks = [control[i] for i in delta.ids.tolist() if i in control]
        assert marks.count("<|im_start|>") == marks.count("<|im_end|>") + 1 - (stop != k.ids(END)[0])
        assert not (delta.kinds == TokenKind.ACTION).any()
        assert k.renderer.decode(delta.ids).endswith("<|im_end|>\n<|im_start|>assistant\n")
        messages += [parsed.message, *new]
        strippable |= bool(parsed.message.reasoning)
        generation = delta.ids[delta.spans[-1][1] :]


@pytest.mark.parametrize("tokenizer", ["qwen3", "qwen25", "qwen35", "smollm2"])
@pytest.mark.parametrize("content", ["", "\nyo", "yo\n", "  yo  ", "\n", "😀", "a<|im_end|>b"])
def test_a_bridged_prompt_is_the_prompt_rendered_anew(kit, tokenizer, content) -> None:
    """Where the model wrote what the template would write."""
    k = kit(tokenizer)
    messages = [Message("system", "S"), Message("user", "Q")]
    said = Message("assistant", "Let me see.", "Hm." if k.renderer.family.thinks else None)
    whole = k.renderer.render([*messages, said], generation=False)
    completion = whole.ids[whole.kinds == TokenKind.ACTION].tolist()
    prompt, ids, tail = k.sampled(messages, completion)
    new = [Message("tool", content), Message("tool", "next")]
    delta = k.renderer.bridge(tail, new)
    again = k.renderer.render([*messages, said, *new])
    assert [*prompt, *ids, *delta.ids] == again.ids.tolist()
    shift = len(prompt) + len(ids)
    assert [(a + shift, b + shift) for a, b in delta.spans] == list(again.spans[3:])
    assert delta.kinds.tolist() == again.kinds.tolist()[shift:]
    assert delta.opened == again.opened


CUT = "<think>\nI add 😀 them.\n</think>\n\nWell.\n" + CALL + "\n" + CALL


@pytest.mark.parametrize("at", range(44))
def test_a_completion_cut_anywhere_is_closed_as_what_it_was(kit, at) -> None:
    """Inside <think>, the block closes first; inside <tool_call>, the call; then the turn."""
    k = kit("qwen3", thinking="keep")
    full = k.ids(CUT)
    ids = full[: min(at, len(full))]
    _, _, tail = k.sampled([Message("user", "Q")], ids, (TOOL,))
    delta = k.renderer.bridge(tail, [Message("user", "go on")], (TOOL,))
    written = k.renderer.decode(ids)
    opened, called = written.count("<think>") > written.count("</think>"), written.count("<tool_call>")
    close = "\n</think>\n\n" if opened else "\n</tool_call>" if called > written.count("</tool_call>") else ""
    assert (
        k.renderer.decode(delta.ids) == f"{close}<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"
    )
    assert delta.spans[0][0] == len(k.ids(f"{close}<|im_end|>\n"))
    whole = [*ids, *delta.ids.tolist()]
    end = whole.index(k.ids(END)[0]) + 1
    again = k.renderer.parse(np.array(whole[:end], np.int32), (TOOL,))
    assert again.closed
    assert again.message.reasoning == tail.message.reasoning or not tail.message.reasoning


def test_the_whole_of_a_cut_completion_was_tried(kit) -> None:
    assert len(kit("qwen3", thinking="keep").ids(CUT)) < 60


@pytest.mark.parametrize(("completion", "close"), [("I think", "\n</think>\n\n"), ("so\n</think>\n\nA", "")])
def test_a_block_that_the_prompt_opened_is_closed(kit, completion, close) -> None:
    k = kit("qwen35")
    _, _, tail = k.sampled([Message("user", "Q")], completion, (TOOL,))
    delta = k.renderer.bridge(attrs_evolved(tail, message=Message("assistant", "")), [Message("user", "go")], (TOOL,))
    assert k.renderer.decode(delta.ids).startswith(f"{close}<|im_end|>\n<|im_start|>user\ngo")
    assert delta.opened == ("think",)


def attrs_evolved(tail: Tail, **changes) -> Tail:
    import attrs

    return attrs.evolve(tail, **changes)


@pytest.mark.parametrize("tokenizer", ["qwen25", "smollm2"])
def test_tags_that_are_no_tokens_close_as_well(kit, tokenizer) -> None:
    k = kit(tokenizer)
    for completion, close in (
        ("<think>\nI thi", "\n</think>\n\n"),
        ("<think>\nI <tool_call> thi", "\n</think>\n\n"),
        ("<think>x</think>A", ""),
        ('<think>x</think>\n<tool_call>\n{"na', "\n</tool_call>"),
    ):
        _, _, tail = k.sampled([Message("user", "Q")], completion, (TOOL,))
        delta = k.renderer.bridge(tail, [Message("user", "go")], (TOOL,))
        assert k.renderer.decode(delta.ids).startswith(f"{close}<|im_end|>\n<|im_start|>user\ngo")


def test_the_end_of_text_is_not_the_close_of_a_turn(kit) -> None:
    k = kit("qwen3")
    prompt, ids, tail = k.sampled([Message("user", "Q")], "A<|endoftext|>")
    delta = k.renderer.bridge(tail, [Message("user", "R")])
    text = k.renderer.decode([*prompt, *ids, *delta.ids])
    assert "A<|endoftext|><|im_end|>\n<|im_start|>user\nR" in text


def test_answers_are_paired_with_their_calls_by_id(kit) -> None:
    k = kit("qwen3")
    _, _, tail = k.sampled([Message("user", "Q")], f"{CALL}\n{CALL}{END}", (TOOL,))
    a, b = (Message("tool", f"for {n}", tool_call_id=c.id) for n, c in enumerate(tail.message.tool_calls))
    straight, crossed = (k.renderer.bridge(tail, new, (TOOL,)) for new in ([a, b], [b, a]))
    assert crossed.ids.tolist() == straight.ids.tolist()
    assert crossed.spans == straight.spans[::-1]


def test_it_says_why_it_cannot_extend(kit) -> None:
    k = kit("qwen3")
    _, _, tail = k.sampled([Message("user", "Q")], f"A{END}", (TOOL,))

    def reason(new: list[Message], tools=(TOOL,), tail=tail) -> str:
        found = k.renderer.bridge(tail, new, tools)
        assert isinstance(found, NoBridge)
        return found.reason

    assert reason([]) == "empty_delta"
    assert reason([Message("assistant", "B")]) == "empty_delta"
    assert reason([Message("assistant", "B"), Message("user", "R")]) == "no_bridge"
    assert reason([Message("user", "R")], ()) == "tools_changed"
    qwen35 = kit("qwen35")
    _, _, other = qwen35.sampled([Message("user", "Q")], f"x</think>A{END}")
    assert isinstance(qwen35.renderer.bridge(other, [Message("system", "S")]), NoBridge)


@pytest.mark.parametrize(
    ("tokenizer", "thinking", "new", "extends"),
    [
        ("qwen3", "template", Message("user", "R"), False),
        ("qwen3", "template", Message("tool", "R"), True),
        ("qwen3", "template", Message("user", "<tool_response>R</tool_response>"), True),
        ("qwen3", "keep", Message("user", "R"), True),
        ("qwen3", "strip", Message("tool", "R"), False),
        ("qwen25", "template", Message("user", "R"), True),
        ("qwen25", "strip", Message("user", "R"), False),
    ],
)
def test_it_extends_just_where_no_thinking_goes(kit, tokenizer, thinking, new, extends) -> None:
    k = kit(tokenizer, thinking=thinking)
    messages = [Message("user", "Q")]
    thought = k.sampled(messages, f"<think>\nhm\n</think>\n\nA{END}")[2]
    assert isinstance(k.renderer.bridge(thought, [new]), Rendered) is extends
    bare = k.sampled(messages, f"A{END}")[2]
    assert isinstance(k.renderer.bridge(bare, [new]), Rendered)
    assert isinstance(k.renderer.bridge(attrs_evolved(bare, strippable=True), [new]), Rendered) is extends
    # An empty block is nothing that could be lost.
    empty = k.sampled(messages, f"<think>\n\n</think>\n\nA{END}")[2]
    assert isinstance(k.renderer.bridge(empty, [new]), Rendered)


def test_thoughts_of_a_conversation_without_a_query_are_shown_to_nobody(kit) -> None:
    k = kit("qwen3")
    _, _, tail = k.sampled([Message("system", "S")], f"<think>\nhm\n</think>\n\nA{END}", (TOOL,))
    assert isinstance(k.renderer.bridge(tail, [Message("tool", "x")], (TOOL,)), NoBridge)


def test_a_bridge_looks_at_the_end_of_the_conversation_alone(kit) -> None:
    """However long the history was, the delta is the same, and so is the tail that it was made from."""
    k = kit("qwen3")
    call = ToolCall("a", "run", {"code": "1"})
    deltas = []
    for turns in (1, 40):
        messages = [Message("user", "Q")]
        for _ in range(turns):
            messages += [Message("assistant", "", None, (call,)), Message("tool", "x" * 50, tool_call_id="a")]
        prompt, _, tail = k.sampled(messages, CALL + END, (TOOL,))
        assert len(tail.ids) < 60 < len(prompt)
        deltas.append(
            k.renderer.bridge(tail, [Message("tool", "y", tool_call_id=tail.message.tool_calls[0].id)], (TOOL,))
        )
    assert deltas[0].ids.tolist() == deltas[1].ids.tolist()
