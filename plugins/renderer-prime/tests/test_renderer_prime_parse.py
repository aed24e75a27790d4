"""Calls as each family writes them: strings exactly as they stood, other types by the schema, errors on their own call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

GLM = "</think><tool_call>weather<arg_key>{}</arg_key><arg_value>{}</arg_value></tool_call><|user|>"
DEEPSEEK = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{}\n```<｜tool▁call▁end｜>"
    "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>"
)
KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:3<|tool_call_argument_begin|>{}<|tool_call_end|>"
    "<|tool_calls_section_end|><|im_end|>"
)
MINIMAX = '</think>\n<minimax:tool_call>\n<invoke name="weather">{}</invoke>\n</minimax:tool_call>[e~['
DSML = (
    '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="{}">{}'
    "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls><｜end▁of▁sentence｜>"
)
HY = (
    "<tool_calls:opensource>\n<tool_call:opensource>weather<tool_sep:opensource>\n<arg_key:opensource>city"
    "</arg_key:opensource>\n<arg_value:opensource>{}</arg_value:opensource>\n</tool_call:opensource>\n"
    "</tool_calls:opensource><｜hy_eos:opensource｜>"
)


@pytest.fixture
def read(renderer: Any, weather: Any) -> Any:
    def parse(family: str, text: str) -> Any:
        made = renderer(family)
        opened = ("think",) if text.startswith("</think>") else ()
        return made.parse(np.array(made._parts.encoder.encode(text), np.int32), [weather], opened=opened)

    return parse


@pytest.mark.parametrize(
    ("family", "text", "arguments"),
    [
        ("glm-5", GLM.format("city", "  </parameter> 1e5\n"), {"city": "  </parameter> 1e5\n"}),
        ("glm-5", GLM.format("days", "7.0"), {"days": 7}),
        ("glm-5", GLM.format("either", "maybe"), {"either": "maybe"}),
        ("glm-5", GLM.format("spots", '["a"]'), {"spots": ["a"]}),
        ("laguna-xs-2.1", GLM.format("city", " NaN").replace("<|user|>", "</assistant>"), {"city": " NaN"}),
        ("hy3", HY.format(" 19122"), {"city": " 19122"}),
        ("deepseek-v3", DEEPSEEK.format('{"city": 1.10, "days": 7.0}'), {"city": "1.10", "days": 7}),
        ("deepseek-r1", "</think>\n\n" + DEEPSEEK.format('{"city": 1.10, "days": 7.0}'), {"city": "1.10", "days": 7}),
        ("deepseek-v4", DSML.format("false", "1.10"), {"city": "1.10"}),
        ("deepseek-v4", DSML.format("true", " null"), {"city": " null"}),
        ("kimi-k2", KIMI.format('{"city": -0}'), {"city": "-0"}),
        ("minimax-m2", MINIMAX.format('<parameter name="city"> true\n</parameter>'), {"city": " true\n"}),
        ("llama-3", '{"name": "weather", "parameters": {"city": 1e5}}<|eot_id|>', {"city": "1e5"}),
        (
            "gemma4",
            '<|tool_call>call:weather{city:1e5,exact:true,spots:[<|"|>a<|"|>]}<tool_call|><|tool_response>',
            {"city": "1e5", "exact": True, "spots": ["a"]},
        ),
        (
            "inkling",
            '<|message_model|>weather<|content_invoke_tool_json|>{"name":"weather","args":{"city":1.10}}<|end_message|>'
            "<|content_model_end_sampling|>",
            {"city": "1.10"},
        ),
    ],
)
def test_arguments_are_read_by_the_schema_from_what_stood_there(
    read: Any, family: str, text: str, arguments: dict[str, Any]
) -> None:
    parsed = read(family, text)
    assert parsed.status == "ok", parsed
    (call,) = parsed.message.tool_calls
    assert (call.name, call.arguments, call.error) == ("weather", arguments, None)
    assert all(type(call.arguments[key]) is type(value) for key, value in arguments.items())


@pytest.mark.parametrize(
    ("family", "text", "why"),
    [
        ("glm-5", GLM.format("days", "seven"), "'days' must be an integer"),
        ("glm-5", GLM.replace("</arg_value>", "").format("days", "7"), "in turn"),
        ("glm-5", GLM.replace("weather", "").format("days", "7"), "names no function"),
        ("deepseek-v3", DEEPSEEK.format('{"city": }'), "not valid JSON"),
        ("deepseek-r1", "</think>" + DEEPSEEK.format('{"days": "seven"}'), "'days' must be an integer"),
        ("kimi-k2", KIMI.format('{}, "name": "evil"'), "not valid JSON"),
        ("deepseek-v4", DSML.format("false", "NaN"), "NaN is not valid JSON"),
        ("minimax-m2", MINIMAX.format('<parameter name="days">x</parameter>'), "'days' must be an integer"),
        ("gemma4", "<|tool_call>weather()<tool_call|><|tool_response>", "call:name"),
    ],
)
def test_a_malformed_call_says_what_is_wrong_and_where(read: Any, family: str, text: str, why: str) -> None:
    parsed = read(family, text)
    assert parsed.status == "malformed"
    (call,) = parsed.message.tool_calls
    assert why in (call.error or "")
    assert call.raw
    assert call.arguments == {}
    (problem,) = parsed.problems
    assert problem.span[0] < problem.span[1]


def test_a_mark_spelled_in_ordinary_tokens_is_text_in_a_value(renderer: Any, weather: Any) -> None:
    made = renderer("glm-5")
    encoder = made._parts.encoder
    head, tail = GLM.format("city", "@").split("@")
    quoted = encoder.encode("a <") + encoder.encode("/arg_value> b")
    parsed = made.parse(np.array([*encoder.encode(head), *quoted, *encoder.encode(tail)]), [weather], opened=("think",))
    assert parsed.message.tool_calls[0].arguments == {"city": "a </arg_value> b"}


def test_kimis_own_ids_are_kept_and_a_second_one_alike_is_not(read: Any) -> None:
    parsed = read(
        "kimi-k2",
        KIMI.format(
            '{"city": "a"}<|tool_call_end|><|tool_call_begin|>functions.weather:3'
            '<|tool_call_argument_begin|>{"city": "b"}'
        ),
    )
    first, second = parsed.message.tool_calls
    assert first.id == "functions.weather:3"
    assert second.id != first.id


def test_text_after_a_malformed_call_spares_the_good_one(read: Any) -> None:
    bad = GLM.format("days", "seven").replace("<|user|>", "")
    parsed = read("glm-5", bad + GLM.format("city", "x").replace("</think>", "").replace("<|user|>", "after<|user|>"))
    assert [(c.name, c.error is None) for c in parsed.message.tool_calls] == [("weather", False), ("weather", True)]
    assert parsed.status == "malformed"
    assert parsed.message.content == "after"


def test_reasoning_that_never_closes_is_no_answer(read: Any, renderer: Any) -> None:
    made = renderer("glm-5")
    parsed = made.parse(np.array(made._parts.encoder.encode("hm, so<|user|>")), opened=("think",))
    assert (parsed.message.content, parsed.message.reasoning) == ("", "hm, so")
    assert (parsed.status, parsed.closed) == ("malformed", False)
    cut = made.parse(np.array(made._parts.encoder.encode("hm, so")), opened=("think",))
    assert (cut.status, cut.closed) == ("truncated", False)
    # The same tokens after a prompt that opened nothing are an answer.
    plain = renderer("glm-4.5").parse(np.array(renderer("glm-4.5")._parts.encoder.encode("hm, so<|user|>")))
    assert (plain.message.content, plain.status) == ("hm, so", "ok")
