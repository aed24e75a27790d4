from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ferrule import Message, ToolSpec

STRINGS = [
    "19122",
    "1e5",
    "1.10",
    "-0",
    "null",
    "true",
    '"q"',
    "[1,2]",
    "NaN",
    "  indented",
    "two\nlines",
    "",
    "é<b>",
    "a </parameter> b",
]
TOOL = ToolSpec(
    "f",
    "F.",
    {
        "type": "object",
        "properties": {
            "s": {"type": "string"},
            "i": {"type": "integer"},
            "n": {"type": "number"},
            "b": {"type": "boolean"},
            "l": {"type": "array"},
            "o": {"type": "object"},
            "sb": {"anyOf": [{"type": "string"}, {"type": "boolean"}]},
            "ni": {"type": ["null", "integer"]},
            "r": {"$ref": "#/$defs/R"},
            "e": {"enum": ["x", "y"]},
            "any": {},
        },
        "$defs": {"R": {"type": "integer"}},
    },
)


def xml(**arguments: str) -> str:
    body = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in arguments.items())
    return f"<tool_call>\n<function=f>\n{body}</function>\n</tool_call>"


def hermes(arguments: object, name: str = "f") -> str:
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


@pytest.fixture
def parse(kit):
    k = kit("chatml")

    def run(text, tools=(TOOL,), stop=True, opened=(), kit=k):
        ids = np.array(kit.ids(text) + [kit.id("<|im_end|>")] * stop, np.int32)
        return kit.renderer.parse(ids, tools, opened=opened)

    return run


def test_plain_text_is_the_content_as_it_stands(parse):
    parsed = parse(" Hello\n\n")
    assert parsed.message == Message("assistant", " Hello\n\n")
    assert (parsed.status, parsed.closed, parsed.problems) == ("ok", True, ())


def test_a_completion_without_its_stop_token_is_truncated(parse):
    parsed = parse("Hel", stop=False)
    assert (parsed.message.content, parsed.status, parsed.closed) == ("Hel", "truncated", True)


def test_hermes_calls_all_of_them_in_order_with_the_text_around_as_content(parse):
    parsed = parse(f"First this.\n{hermes({'s': 'a'})}\n{hermes({'s': 'b'}, 'g')}\nand then?")
    assert [(c.name, dict(c.arguments), c.error) for c in parsed.message.tool_calls] == [
        ("f", {"s": "a"}, None),
        ("g", {"s": "b"}, None),
    ]
    assert parsed.message.content == "First this.\nand then?"
    assert parsed.status == "ok"


def test_ids_of_calls_differ_within_a_completion_and_repeat_with_it(parse):
    text = f"{hermes({'s': 'a'})}\n{hermes({'s': 'a'})}"
    first, second = parse(text).message.tool_calls
    assert first.id != second.id
    assert [c.id for c in parse(text).message.tool_calls] == [first.id, second.id]
    assert parse(hermes({"s": "other"})).message.tool_calls[0].id not in (first.id, second.id)
    assert len(first.id) == 9
    assert first.id.isalnum()


@pytest.mark.parametrize(
    ("inner", "arguments"),
    [
        ('{"name": "f"}', {}),
        ('{"name": "f", "arguments": {}}', {}),
        ('{"name": "f", "arguments": null}', {}),
        ('{"name": "f", "parameters": {"s": "x"}}', {"s": "x"}),
        ('{"function": {"name": "f"}}', {}),
        ('{"type": "function", "function": {"name": "f", "arguments": "{\\"s\\": \\"x\\"}"}}', {"s": "x"}),
        ("<function=f></function>", {}),
        ("<function=f>\n</function>\n", {}),
    ],
)
def test_forms_of_a_call(parse, inner, arguments):
    (call,) = parse(f"<tool_call>\n{inner}\n</tool_call>").message.tool_calls
    assert (call.name, dict(call.arguments), call.error) == ("f", arguments, None)


@pytest.mark.parametrize("text", STRINGS)
def test_a_string_parameter_comes_back_as_exactly_its_text(parse, text):
    (call,) = parse(xml(s=text)).message.tool_calls
    assert call.error is None
    assert call.arguments["s"] == text
    (call,) = parse(hermes({"s": text})).message.tool_calls
    assert call.arguments["s"] == text


@pytest.mark.parametrize(("name", "text", "value"), [
    ("i", "7", 7), ("i", "7.0", 7), ("i", "-3", -3), ("r", "7", 7), ("n", "1e5", 1e5), ("n", "2", 2), ("b", "true", True),
    ("b", "False", False), ("l", "[1, 2]", [1, 2]), ("o", '{"a": 1}', {"a": 1}), ("sb", "word", "word"), ("sb", "true", True),
    ("ni", "null", None), ("ni", "4", 4), ("e", "x", "x"), ("any", "12", "12"),
])  # fmt: skip
def test_other_parameters_are_typed_by_the_schema(parse, name, text, value):
    (call,) = parse(xml(**{name: text})).message.tool_calls
    assert call.error is None
    assert call.arguments[name] == value
    assert type(call.arguments[name]) is type(value)


@pytest.mark.parametrize(("name", "text", "word"), [
    ("i", "seven", "integer"), ("i", "7.5", "integer"), ("n", "NaN", "number"), ("n", "1e999", "number"), ("b", "yes", "true or false"),
    ("l", "{}", "array"), ("o", "[", "object"), ("ni", "none", "integer or null"),
])  # fmt: skip
def test_an_argument_of_the_wrong_type_is_an_error_on_its_call(parse, name, text, word):
    parsed = parse(f"{xml(**{name: text})}\n{xml(s='fine')}")
    bad, good = parsed.message.tool_calls
    assert good.error is None
    assert repr(name) in bad.error
    assert word in bad.error
    assert bad.name == "f"
    assert parsed.status == "malformed"
    assert not parsed.beyond_use


@pytest.mark.parametrize(("raw", "value"), [("7.0", 7), ('"7"', 7), ("7", 7)])
def test_an_integer_in_json_is_an_integer(parse, raw, value):
    (call,) = parse(f'<tool_call>{{"name": "f", "arguments": {{"i": {raw}}}}}</tool_call>').message.tool_calls
    assert call.arguments["i"] == value
    assert type(call.arguments["i"]) is int
    (bad,) = parse(hermes({"i": "seven"})).message.tool_calls
    assert "'i' must be an integer, got 'seven'" in bad.error
    (bad,) = parse(hermes({"i": 7.5})).message.tool_calls
    assert bad.error


@pytest.mark.parametrize("raw", ["19122", "1e5", "1.10", "-0", "true"])
def test_a_bare_json_value_for_a_string_parameter_is_its_own_text(parse, raw):
    text = f'<tool_call>{{"name": "f", "arguments": {{"any": {{"s": 1}}, "s": {raw}, "i": 3}}}}</tool_call>'
    (call,) = parse(text).message.tool_calls
    assert dict(call.arguments) == {"any": {"s": 1}, "s": raw, "i": 3}


@pytest.mark.parametrize("value", [None, [1], {"a": 1}])
def test_what_is_no_text_at_all_is_an_error_for_a_string_parameter(parse, value):
    (call,) = parse(hermes({"s": value})).message.tool_calls
    assert "must be a string" in call.error


@pytest.mark.parametrize(
    "inner",
    ['{"name": "f", "arguments": {', '{"name": f}', "not json", '{"name": ""}', '{"arguments": {}}', '["f"]', '{"name": "f", "arguments": [1]}',
     '{"name": "f"} {"name": "f"}', '{"name": "f", "arguments": {"n": NaN}}', "<function=f><parameter=s>x</function>", "<function=f>x</function>",
     "<function=f>", "<function=></function>", "<function=f><parameter=s>1</parameter><parameter=s>2</parameter></function>",
     "<function=f><parameter=nosuch>1</parameter></function>", "[" * 100_000, ""],
)  # fmt: skip
def test_a_malformed_call_is_told_with_its_text_and_span_and_spares_the_others(parse, kit, inner):
    k = kit("chatml")
    text = f"Look.\n<tool_call>\n{inner}\n</tool_call>\n{hermes({'s': 'good'})}\nafter"
    parsed = parse(text)
    bad, good = parsed.message.tool_calls
    assert (good.error, good.arguments["s"]) == (None, "good")
    assert bad.error
    assert bad.raw == f"<tool_call>\n{inner}\n</tool_call>"
    assert parsed.status == "malformed"
    assert parsed.closed
    (problem,) = parsed.problems
    assert problem.message == bad.error
    start, stop = problem.span
    assert k.text(k.ids(text)[start:stop]) == bad.raw
    assert parsed.message.content == "Look.\nafter"


def test_a_parameter_with_its_own_end_tag_inside_is_not_cut(parse):
    (call,) = parse(xml(s="use </parameter> to end", i="1")).message.tool_calls
    assert dict(call.arguments) == {"s": "use </parameter> to end", "i": 1}
    (call,) = parse(xml(s="a</parameter>\n<parameter=nosuch>b")).message.tool_calls
    assert "no parameter 'nosuch'" in call.error


def test_a_call_that_never_closes(parse):
    parsed = parse('<tool_call>\n{"name": "f", "arg')
    assert (parsed.status, parsed.closed, parsed.beyond_use) == ("malformed", False, True)
    assert parsed.message.tool_calls[0].name == "f"
    whole = parse('<tool_call>\n{"name": "f", "arguments": {"s": "x"}}')
    assert (whole.status, whole.closed, whole.beyond_use) == ("malformed", False, False)
    assert whole.message.tool_calls[0].error is None
    cut = parse('<tool_call>\n{"name": "f", "arguments": {"s": "x"}}', stop=False)
    assert (cut.status, cut.closed) == ("truncated", False)
    assert cut.message.tool_calls[0].error
    twice = parse(f'<tool_call>{{"name": "f"\n{hermes({"s": "x"})}')
    assert [bool(c.error) for c in twice.message.tool_calls] == [True, False]
    assert not twice.beyond_use


def test_a_tag_that_closes_nothing_is_malformed(parse):
    parsed = parse("a</tool_call>b")
    assert parsed.status == "malformed"
    assert parsed.problems[0].span == (1, 2)
    assert parsed.message.content == "a</tool_call>b"


@pytest.mark.parametrize(
    ("text", "opened", "reasoning", "content"),
    [
        ("<think>\nhm\n</think>\n\nYes.", (), "hm", "Yes."),
        ("hm\n</think>\n\nYes.", ("think",), "hm", "Yes."),
        ("hm\n</think>\n\nYes.", (), "hm", "Yes."),
        ("<think>\n\n</think>\n\nYes.", (), "", "Yes."),
        ("Well. <think>hm</think>Yes.", (), "hm", "Well. Yes."),
        ("<think>a</think>b<think>c</think>d", (), "a\nc", "bd"),
        ("Yes.", (), None, "Yes."),
        ("<think>use <tool_call> so</think>Yes.", (), "use <tool_call> so", "Yes."),
    ],
)
def test_reasoning_is_told_apart(parse, text, opened, reasoning, content):
    parsed = parse(text, opened=opened)
    assert (parsed.message.reasoning, parsed.message.content, parsed.status) == (reasoning, content, "ok")
    assert not parsed.message.tool_calls


@pytest.mark.parametrize(("text", "opened"), [("<think>Adding them", ()), ("Adding them", ("think",))])
def test_reasoning_that_is_cut_is_no_answer(parse, text, opened):
    cut = parse(text, opened=opened, stop=False)
    assert (cut.message.reasoning, cut.message.content, cut.status, cut.closed) == (
        "Adding them",
        "",
        "truncated",
        False,
    )
    ended = parse(text, opened=opened)
    assert (ended.status, ended.closed, ended.beyond_use) == ("malformed", False, True)


def test_markup_counts_only_as_its_token_where_it_is_one(kit, parse):
    k = kit("chatml")
    spelled = k.ids("<tool") + k.ids("_call>") + k.ids('{"name": "f"}') + k.ids("</tool") + k.ids("_call>")
    parsed = k.renderer.parse(np.array([*spelled, k.id("<|im_end|>")]), (TOOL,))
    assert not parsed.message.tool_calls
    assert parsed.message.content == '<tool_call>{"name": "f"}</tool_call>'


def test_markup_is_read_from_text_where_it_is_no_token(kit, parse):
    k = kit("chatml", spelled=("<think>", "</think>", "<tool_call>", "</tool_call>"))
    text = f"<think>\nhm\n</think>\n\nSo:\n<tool_call>broken</tool_call>{hermes({'s': 'x'})}"
    parsed = parse(text, kit=k)
    assert parsed.message.reasoning == "hm"
    assert parsed.message.content == "So:"
    assert [bool(c.error) for c in parsed.message.tool_calls] == [True, False]
    start, stop = parsed.problems[0].span
    assert "broken" in k.text(k.ids(text)[start:stop])
    assert "So" not in k.text(k.ids(text)[start:stop])


def test_text_keeps_its_blanks_between_tags_whatever_the_tokenizer(kit, parse):
    k = kit("chatml", kind="blanks")
    parsed = parse('<think>hm</think> Yes. <tool_call> {"name": "f", "arguments": {"s": " x"}}</tool_call>', kit=k)
    assert parsed.message.content == " Yes. "
    assert parsed.message.tool_calls[0].arguments["s"] == " x"


def test_half_of_a_surrogate_pair_does_not_get_through(parse):
    (call,) = parse('<tool_call>{"name": "f", "arguments": {"s": "\\ud83d"}}</tool_call>').message.tool_calls
    call.arguments["s"].encode()


def test_ids_beyond_the_vocabulary_and_empty_completions_raise_nothing(kit):
    k = kit("chatml")
    assert k.renderer.parse(np.zeros(0, np.int32)).status == "truncated"
    assert k.renderer.parse(np.array([10**9, -5, *k.ids("hi")], np.int64)).message.content == "\ufffd\ufffdhi"
    assert k.renderer.parse(np.array([k.id("<|im_end|>")])).message == Message("assistant", "")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_completion_raises(kit, data):
    k = kit("chatml")
    tags = [k.id(t) for t in ("<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>")]
    bits = [
        k.ids(t)
        for t in (
            '{"name": "f", "arguments": {',
            '"s": ',
            '"i": 7',
            "}}",
            "<function=f>",
            "<parameter=s>",
            "</parameter>",
            "</function>",
            "\\ud800",
        )
    ]
    piece = st.one_of(
        st.sampled_from(tags).map(lambda i: [i]),
        st.sampled_from(bits),
        st.lists(st.integers(-3, k.renderer.vocab_size + 3), max_size=4),
    )
    ids = [i for part in data.draw(st.lists(piece, max_size=12)) for i in part]
    opened = data.draw(st.sampled_from([(), ("think",)]))
    parsed = k.renderer.parse(np.array(ids, np.int64), (TOOL,), opened=opened)
    assert len({c.id for c in parsed.message.tool_calls}) == len(parsed.message.tool_calls)
    assert all(0 <= p.span[0] <= p.span[1] <= len(ids) for p in parsed.problems)
    assert (parsed.status == "ok") <= parsed.closed
    for call in parsed.message.tool_calls:
        json.dumps(call.arguments).encode()
        assert (call.error is None) or (call.raw is not None and not call.arguments)
