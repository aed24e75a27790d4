"""Completions read back: thinking, Hermes JSON and XML, by the tools' schemas; whatever was cut or is malformed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrule import Message, ToolCall, ToolSpec

TOOL = ToolSpec(
    "run",
    "",
    {"type": "object", "properties": {"code": {"type": "string"}, "n": {"type": "integer"}, "xs": {"type": "array"}}},
)
ODD = [
    "19122",
    "1e5",
    "1.10",
    "-0",
    "null",
    "true",
    '"q"',
    "[1,2]",
    "NaN",
    "  indented\n    more",
    "a </parameter> b",
    "<b>é😀",
]


def read(k, text: str, opened=()):
    return k.renderer.parse(np.array(k.ids(text), np.int32), (TOOL,), opened=opened)


@pytest.mark.parametrize("tokenizer", ["qwen3", "qwen25", "qwen35", "smollm2"])
@pytest.mark.parametrize("tool_format", ["hermes", "xml"])
@pytest.mark.parametrize("value", ODD)
def test_calls_come_back_as_they_were_written(kit, tokenizer, tool_format, value) -> None:
    k = kit(tokenizer, tool_format=tool_format)
    calls = (ToolCall("a", "run", {"code": value, "n": 7, "xs": [1, {"k": "v"}]}), ToolCall("b", "run"))
    said = Message("assistant", "I do.", "Thought." if k.renderer.family.thinks else None, calls)
    whole = k.renderer.render([Message("user", "Q"), said], (TOOL,), generation=False)
    completion = whole.ids[whole.kinds == 1]
    parsed = k.renderer.parse(completion, (TOOL,), opened=k.renderer.render([Message("user", "Q")]).opened)
    assert parsed.status == "ok"
    assert (parsed.message.content, parsed.message.reasoning) == (said.content, said.reasoning)
    assert [(c.name, dict(c.arguments), c.error) for c in parsed.message.tool_calls] == [
        (c.name, dict(c.arguments), None) for c in calls
    ]


def test_a_completion_cut_in_a_block_that_the_prompt_opened_is_all_thought(kit) -> None:
    parsed = read(kit("qwen35"), "Adding them", ("think",))
    assert (parsed.message.content, parsed.message.reasoning) == ("", "Adding them")
    assert (parsed.status, parsed.closed) == ("truncated", False)


def test_a_cut_call_is_no_call(kit) -> None:
    parsed = read(kit("qwen3"), 'x<tool_call>\n{"name": "run", "argu')
    assert (parsed.status, parsed.closed, parsed.beyond_use) == ("truncated", False, True)
    assert parsed.message.tool_calls[0].error


def test_a_malformed_call_leaves_the_good_one_beside_it(kit) -> None:
    k = kit("qwen3")
    text = (
        '<tool_call>\n{"name": "run", oops}\n</tool_call>\n<tool_call>\n{"name": "run"}\n</tool_call> after<|im_end|>'
    )
    parsed = read(k, text)
    assert [c.error is None for c in parsed.message.tool_calls] == [False, True]
    assert parsed.status == "malformed"
    (start, stop), ids = parsed.problems[0].span, k.ids(text)
    assert k.renderer.decode(np.array(ids[start:stop])) == '<tool_call>\n{"name": "run", oops}\n</tool_call>'


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_tokens_make_it_raise(kit, data) -> None:
    k = kit("qwen3")
    control = st.sampled_from(sorted(k.renderer._encoder.control))
    ids = data.draw(st.lists(control | st.integers(-2, k.renderer.vocab_size + 2), max_size=12))
    opened = data.draw(st.sampled_from([(), ("think",)]))
    parsed = k.renderer.parse(np.array(ids, np.int32), (TOOL,), opened=opened)
    assert (parsed.status == "truncated") is not (bool(ids) and ids[-1] in k.renderer.stop_ids)
