"""Calls read by their tools' schemas, and answers paired with the calls that they answer."""

from __future__ import annotations

import pytest

from ferrule import Message, ToolCall, ToolSpec, Unreadable, answer_order, read_call, typed_arguments

TOOL = ToolSpec(
    "f",
    parameters={
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "count": {"type": "integer"},
            "share": {"type": "number"},
            "flag": {"anyOf": [{"type": "string"}, {"type": "boolean"}]},
            "part": {"$ref": "#/$defs/part"},
        },
        "$defs": {"part": {"type": "array"}},
    },
)


def xml(**parameters: str) -> str:
    inner = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in parameters.items())
    return f"<function=f>\n{inner}</function>"


@pytest.mark.parametrize("text", ["19122", "1e5", "1.10", "-0", "null", "true", '"q"', "[1,2]", "NaN", "  x", ""])
def test_text_for_a_string_parameter_is_exactly_that_text(text):
    call, problem = read_call(xml(text=text), (TOOL,), "c1", "")
    assert (problem, call.arguments) == (None, {"text": text})


@pytest.mark.parametrize(("text", "value"), [("7", 7), ("7.0", 7), ("-3", -3)])
def test_an_integer_parameter_reads_whole_numbers(text, value):
    call, _ = read_call(xml(count=text), (TOOL,), "c1", "")
    assert call.arguments == {"count": value}
    assert type(call.arguments["count"]) is int


def test_a_word_for_an_integer_is_an_error_that_names_the_argument():
    call, problem = read_call(xml(count="seven"), (TOOL,), "c1", "as written")
    assert "argument 'count' must be an integer, got 'seven'" in problem
    assert (call.error, call.raw, call.name) == (problem, "as written", "f")


@pytest.mark.parametrize(("text", "value"), [("maybe", "maybe"), ("true", True)])
def test_of_string_or_boolean_a_bare_word_is_that_word(text, value):
    assert read_call(xml(flag=text), (TOOL,), "c1", "")[0].arguments == {"flag": value}


def test_a_parameter_that_holds_its_own_end_tag_is_whole():
    text = "close it with </parameter> and go on"
    assert read_call(xml(text=text), (TOOL,), "c1", "")[0].arguments == {"text": text}


def test_hermes_json_in_its_forms():
    assert read_call('{"name": "f", "arguments": {"count": 7.0}}', (TOOL,), "c1", "")[0].arguments == {"count": 7}
    assert read_call('{"name": "f"}', (TOOL,), "c1", "")[0].arguments == {}
    call, problem = read_call('{"function": {"name": "f"}}', (TOOL,), "c1", "")
    assert (call.name, call.arguments, problem) == ("f", {}, None)
    assert 'no "name"' in read_call('{"arguments": {}}', (TOOL,), "c1", "")[1]


def test_json_arguments_are_typed_without_losing_how_they_stood():
    raws = {"text": "1e5"}
    assert typed_arguments("f", {"text": 100000.0}, (TOOL,), lambda: raws) == {"text": "1e5"}
    assert typed_arguments("unknown", {"text": 1.5}, (TOOL,)) == {"text": 1.5}
    assert typed_arguments("f", {"part": [1, 2]}, (TOOL,)) == {"part": [1, 2]}
    with pytest.raises(Unreadable, match="argument 'part' must be a JSON array"):
        typed_arguments("f", {"part": 5}, (TOOL,))


def test_answers_are_paired_with_their_calls_by_id():
    asked = Message("assistant", tool_calls=(ToolCall("a", "f"), ToolCall("b", "f")))
    answers = [Message("tool", "of b", tool_call_id="b"), Message("tool", "of a", tool_call_id="a")]
    assert answer_order([Message("user", "u"), asked, *answers, Message("user", "v")]) == [0, 1, 3, 2, 4]
    stray = Message("tool", "of nobody", tool_call_id="z")
    assert answer_order([asked, answers[0], stray]) == [0, 1, 2]


def typed(schema, text):
    tool = ToolSpec("f", parameters={"type": "object", "properties": {"x": schema}})
    call, problem = read_call(f'{{"name": "f", "arguments": {{"x": {text}}}}}', (tool,), "c1", "")
    return problem or call.arguments["x"]


@pytest.mark.parametrize(
    "schema", [{"allOf": 5}, {"enum": 5}, {"anyOf": 5}, {"type": 5}, {"type": "any"}, {"enum": "ab"}]
)
def test_a_schema_that_cannot_be_understood_says_nothing_of_types(schema):
    assert typed(schema, "7") == 7
    assert typed(schema, '"seven"') == "seven"


def test_nullable_adds_null_to_the_types():
    assert typed({"type": "integer", "nullable": True}, "null") is None
    assert typed({"type": "integer", "nullable": True}, "7.0") == 7
    assert "must be an integer, got" in typed({"type": "integer"}, "null")


@pytest.mark.parametrize("text", ["1e400", "[1, -1e999]", '{"a": [{"b": 1e400}]}'])
def test_a_number_that_json_cannot_write_back_is_an_error(text):
    assert typed({}, text) == "a number in the call is too large"


def test_a_number_too_large_is_the_text_that_it_was_for_a_string():
    assert typed({"type": "string"}, "1e400") == "1e400"


@pytest.mark.parametrize("levels", [150, 900, 100_000])
def test_arguments_nested_beyond_all_use_are_an_error(levels):
    assert typed({}, "[" * levels + "]" * levels) == "the call is nested too deeply"
    assert typed({}, "[" * 90 + "]" * 90) != "the call is nested too deeply"
