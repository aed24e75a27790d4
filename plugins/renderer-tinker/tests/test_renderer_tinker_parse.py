from __future__ import annotations

import pytest

from ferrule import ToolSpec

PROPERTIES = {
    "s": {"type": "string"},
    "n": {"type": "integer"},
    "e": {"anyOf": [{"type": "string"}, {"type": "boolean"}]},
}
TOOL = ToolSpec("f", "", {"type": "object", "properties": PROPERTIES})


def read(k, text: str, stop: str = "", opened=()):
    return k.renderer.parse(k.ids(text) + ([k.id(stop)] if stop else []), (TOOL,), opened=opened)


def glm(*calls: str) -> str:
    return "".join(f"<tool_call>{call}</tool_call>" for call in calls)


def pair(key: str, value: str) -> str:
    return f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>"


@pytest.mark.parametrize("text", ["19122", "1e5", "1.10", "-0", "null", "true", '"q"', "[1,2]", "NaN", "  in\n\tdent "])
def test_text_for_a_string_is_that_text_where_the_cookbook_would_type_it(kit, text):
    k = kit("glm", "glm5_3_max_reasoning")
    parsed = read(
        k,
        "Hm.</think>" + glm("f" + pair("s", text) + pair("n", "7.0") + pair("e", "maybe")),
        "<|observation|>",
        ("think",),
    )
    (call,) = parsed.message.tool_calls
    assert call.arguments == {"s": text, "n": 7, "e": "maybe"}
    assert (parsed.status, parsed.message.reasoning, parsed.message.content) == ("ok", "Hm.", "")


def test_a_malformed_call_is_told_with_its_span_and_the_good_ones_count(kit):
    k = kit("glm", "glm5_3_max_reasoning")
    bad = "f<arg_key>s</arg_key>oops"
    said = "So</think>Both: " + glm("f" + pair("s", "a"), bad, "f" + pair("n", "seven"), "f") + " end"
    parsed = read(k, said, "<|observation|>", ("think",))
    assert [(c.name, c.error is None) for c in parsed.message.tool_calls] == [
        ("f", True), ("f", False), ("f", False), ("f", True),
    ]  # fmt: skip
    assert parsed.status == "malformed"
    assert parsed.message.tool_calls[1].raw == glm(bad)
    ids = k.ids(said)
    assert [k.text(ids[a:b]) for a, b in (p.span for p in parsed.problems)] == [glm(bad), glm("f" + pair("n", "seven"))]
    assert "must be an integer" in parsed.problems[1].message
    assert parsed.message.content == "Both: \n end"


def test_calls_of_kimi_keep_the_ids_that_the_model_gave_them(kit):
    k = kit("kimi", "kimi_k25")
    one = "<|tool_call_begin|>functions.f:{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
    wrapped = "<|tool_calls_section_begin|>{}<|tool_calls_section_end|>"
    calls = one.format(4, '{"s": 1.10}') + one.format(5, "{}") + one.format(6, '{"s": ')
    parsed = read(k, "Hm.</think>Go." + wrapped.format(calls), "<|im_end|>", ("think",))
    assert [c.id for c in parsed.message.tool_calls] == ["functions.f:4", "functions.f:5", "functions.f:6"]
    assert [c.arguments for c in parsed.message.tool_calls] == [{"s": "1.10"}, {}, {}]
    assert parsed.message.tool_calls[2].raw == one.format(6, '{"s": ')
    assert parsed.message.content == "Go."
    assert len(parsed.problems) == 1
    cut = read(k, "Hm.</think><|tool_calls_section_begin|>" + one.format(0, "{}"), "", ("think",))
    assert (cut.status, cut.closed) == ("truncated", False)
    open_ = read(k, "Hm.</think><|tool_calls_section_begin|>" + one.format(0, "{}"), "<|im_end|>", ("think",))
    assert (open_.status, open_.closed) == ("malformed", False)
    assert "<|tool_calls_section_end|>" in open_.problems[0].message


def test_an_open_call_is_told_in_its_own_words(kit):
    k = kit("deepseek", "deepseekv3")
    begun = '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"s": "a'
    parsed = read(k, begun, "<｜end▁of▁sentence｜>")
    (call,) = parsed.message.tool_calls
    assert (call.name, call.raw) == ("f", '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"s": "a')
    assert call.error == "the call never closes with <｜tool▁call▁end｜>"
    assert not parsed.closed
    assert parsed.beyond_use


def test_what_the_cookbook_alone_can_read_is_typed_by_the_schema_too(kit):
    k = kit("gpt_oss", "gpt_oss_no_sysprompt")
    head = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>"
    parsed = read(k, head + '{"s": 1.10, "n": "7"}', "<|call|>")
    (call,) = parsed.message.tool_calls
    assert (call.name, call.arguments, call.error) == ("f", {"s": "1.10", "n": 7}, None)
    assert (parsed.message.reasoning, parsed.message.content, parsed.status) == ("Hm.", "", "ok")
    broken = read(k, head + '{"s": 1.10', "<|call|>")
    assert broken.status == "malformed"
    assert "Invalid JSON" in (broken.message.tool_calls[0].error or "")
    (problem,) = broken.problems
    assert '{"s": 1.10' in k.text(k.ids(head + '{"s": 1.10')[slice(*problem.span)])
    cut = read(k, head + '{"s": "a"}')
    assert (cut.status, cut.closed) == ("truncated", False)
    assert cut.message.tool_calls[0].error
    answer = read(k, "<|channel|>final<|message|>Do")
    assert (answer.status, answer.closed, answer.message.content) == ("truncated", True, "Do")


def test_a_completion_that_the_cookbook_raises_on_is_malformed(kit):
    k = kit("deepseek", "deepseekv4_1")
    end = "<｜end▁of▁sentence｜>"
    parsed = read(k, f"a</think>b{end}c", end, ("think",))
    assert parsed.status == "malformed"
    assert "cannot be read" in parsed.problems[0].message
    assert "b" in parsed.message.content


def test_text_after_the_text_that_ends_a_reply_is_told(kit):
    k = kit("llama", "role_colon")
    parsed = read(k, " Done.\n\nUser: I ask", "<|end_of_text|>")
    assert parsed.message.content == "Done."
    assert parsed.status == "malformed"
    assert k.text(k.ids(" Done.\n\nUser: I ask")[slice(*parsed.problems[0].span)]).endswith("User: I ask")
    assert read(k, " Done.", "<|end_of_text|>").status == "ok"
