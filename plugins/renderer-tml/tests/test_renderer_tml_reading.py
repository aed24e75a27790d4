"""Completions in the families' own formats: arguments by schema, malformed pieces with their spans, replies that were cut."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from ferrule_renderer_tml import TmlRenderer

from ferrule import Message, ModelSpec, Parsed, Rendered, Tail, ToolSpec

NOTE = ToolSpec(
    "note",
    "Notes.",
    {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "count": {"type": "integer"},
            "either": {"anyOf": [{"type": "string"}, {"type": "boolean"}]},
        },
    },
)
TEXTS = ("19122", "1e5", "1.10", "-0", "null", "true", '"q"', "[1,2]", "NaN", "  indented\n\ttext", "a</parameter>\nb")
_BLOCK = "</think>{}<｜DSML｜tool_calls>\n{}</｜DSML｜tool_calls><｜end▁of▁sentence｜>"


@cache
def renderer(family: str) -> TmlRenderer:
    return TmlRenderer(TmlRenderer.Config(family=family), ModelSpec())


def ids_of(family: str, text: str) -> np.ndarray:
    return np.array(renderer(family)._parts.vocabulary.encode(text).ids, np.int32)


def read(family: str, text: str) -> Parsed:
    made = renderer(family)
    return made.parse(ids_of(family, text), (NOTE,), opened=made.render([Message("user", "x")]).opened)


def glm(*pairs: tuple[str, str]) -> str:
    body = "".join(f"<arg_key>{k}</arg_key><arg_value>{v}</arg_value>" for k, v in pairs)
    return f"</think>ok<tool_call>note{body}</tool_call><|observation|>"


def dsml(*pairs: tuple[str, str], string: str = "true") -> str:
    body = "".join(f'<｜DSML｜parameter name="{k}" string="{string}">{v}</｜DSML｜parameter>\n' for k, v in pairs)
    return _BLOCK.format("ok\n\n", f'<｜DSML｜invoke name="note">\n{body}</｜DSML｜invoke>\n')


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(("family", "write"), [("glm_5_2", glm), ("deepseek_v4", dsml)])
def test_text_for_a_string_parameter_comes_back_as_that_text(family: str, write: object, text: str) -> None:
    parsed = read(family, write(("text", text)))  # type: ignore[operator]
    (call,) = parsed.message.tool_calls
    assert call.arguments == {"text": text}
    assert (parsed.status, parsed.message.content.strip()) == ("ok", "ok")


def test_other_types_are_read_by_the_schema() -> None:
    assert read("glm_5_2", glm(("count", "7.0"))).message.tool_calls[0].arguments == {"count": 7}
    assert read("glm_5_2", glm(("either", "maybe"))).message.tool_calls[0].arguments == {"either": "maybe"}
    assert read("deepseek_v4", dsml(("count", "7"), string="false")).message.tool_calls[0].arguments == {"count": 7}
    assert read("deepseek_v4", dsml(("text", "1e5"), string="false")).message.tool_calls[0].arguments == {"text": "1e5"}


@pytest.mark.parametrize(
    ("family", "text"), [("glm_5_2", glm(("count", "seven"))), ("deepseek_v4", dsml(("count", "seven")))]
)
def test_a_value_of_the_wrong_type_is_the_calls_error(family: str, text: str) -> None:
    parsed = read(family, text)
    (call,) = parsed.message.tool_calls
    assert call.error is not None
    assert "must be an integer" in call.error
    assert parsed.status == "malformed"
    assert "seven" in renderer(family).decode(ids_of(family, text)[slice(*parsed.problems[0].span)])


def test_a_malformed_glm_call_spares_the_good_one() -> None:
    good = "<tool_call>note<arg_key>text</arg_key><arg_value>a</arg_value></tool_call>"
    bad = "<tool_call>note<arg_key>text</arg_key></tool_call>"
    parsed = read("glm_5_2", f"</think>{bad}{good}<|observation|>")
    assert [c.error is None for c in parsed.message.tool_calls] == [False, True]
    assert [p.text for p in parsed.problems] == [bad]


def test_a_malformed_dsml_call_spares_the_good_one() -> None:
    good = dsml(("text", "a")).partition("tool_calls>\n")[2].partition("</｜DSML｜tool_calls>")[0]
    parsed = read("deepseek_v4", _BLOCK.format("", '<｜DSML｜invoke name="note">\n<oops>\n</｜DSML｜invoke>\n' + good))
    assert [c.error is None for c in parsed.message.tool_calls] == [False, True]
    assert parsed.status == "malformed"
    assert parsed.closed


def test_a_kimi_call_keeps_the_id_by_which_its_answer_names_it() -> None:
    body = '<|tool_call_begin|>functions.note:3<|tool_call_argument_begin|>{"text": 1e5}<|tool_call_end|>'
    text = f"<think>hm</think>ok<|tool_calls_section_begin|>{body}<|tool_calls_section_end|><|im_end|>"
    parsed = read("kimi_k2", text)
    (call,) = parsed.message.tool_calls
    assert (call.id, call.name, call.arguments) == ("functions.note:3", "note", {"text": "1e5"})
    assert (parsed.message.reasoning, parsed.message.content) == ("hm", "ok")
    twice = read("kimi_k2", text.replace(body, body + body))
    assert len({c.id for c in twice.message.tool_calls}) == 2


def test_harmony_channels_are_reasoning_content_and_calls() -> None:
    text = (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>Let me see.<|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.note <|constrain|>json<|message|>{"text": 1.10}<|call|>'
    )
    parsed = read("gpt_oss", text)
    assert (parsed.message.reasoning, parsed.message.content) == ("hm", "Let me see.")
    assert [(c.name, c.arguments) for c in parsed.message.tool_calls] == [("note", {"text": "1.10"})]
    assert parsed.status == "ok"


def test_harmonys_broken_json_is_the_calls_error() -> None:
    parsed = read("gpt_oss", '<|channel|>commentary to=functions.note <|constrain|>json<|message|>{"text": <|call|>')
    (call,) = parsed.message.tool_calls
    assert call.name == "note"
    assert call.error is not None
    assert parsed.status == "malformed"


@pytest.mark.parametrize(
    ("cut", "close"),
    [
        ("<|channel|>analysis<|message|>hm", "<|end|>"),
        ("<|channel|>final", "<|message|><|end|>"),
        ("", "<|channel|>final<|message|><|end|>"),
        ("<|channel|>final<|message|>So", "<|end|>"),
    ],
)
def test_a_harmony_message_that_was_cut_is_closed(cut: str, close: str) -> None:
    made, completion = renderer("gpt_oss"), ids_of("gpt_oss", cut)
    prompt = made.render([Message("user", "x")])
    parsed = made.parse(completion)
    assert parsed.status == "truncated"
    end = prompt.spans[-1][1]
    ids = np.concatenate([prompt.ids[end:], completion])
    message = Message("assistant", parsed.message.content)
    delta = made.bridge(Tail(ids, len(prompt) - end, "length", message, 1, ("user",)), [Message("user", "y")])
    assert isinstance(delta, Rendered)
    assert made.decode(delta.ids) == f"{close}<|start|>user<|message|>y<|end|><|start|>assistant"


def test_reasoning_that_was_never_opened_is_told_from_the_answer() -> None:
    made = renderer("glm_5_2")
    parsed = made.parse(ids_of("glm_5_2", "hm</think>So.<|user|>"))
    assert (parsed.message.reasoning, parsed.message.content, parsed.status) == ("hm", "So.", "ok")
