from __future__ import annotations

import enum
from typing import Annotated, Any, Literal, Optional

import pytest
from ferrule_taskset_bundle.tools import docstring, tool_of

import ferrule


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


def order(
    state: Any,
    dish: str,
    count: int,
    size: Size = Size.SMALL,
    extras: list[str] | None = None,
    spice: Literal["mild", "hot"] = "mild",
    tip: float = 0.5,
    note: Optional[str] = None,  # noqa: UP045 - both spellings must work
    now: Annotated[bool, "Whether to start at once."] = True,
    limits: dict[str, int] = {},  # noqa: B006
) -> Any:
    """Order a dish.

    It is cooked at once.

    Args:
        dish: Its name,
            as on the card.
        count (int): How many.

    Returns:
        The bill.
    """
    return {"dish": dish, "count": count, "size": size.name, "tip": tip, "extras": extras}


def test_schema_comes_from_signature_and_docstring():
    spec = tool_of(order, "order").spec
    assert spec.name == "order"
    assert spec.description == "Order a dish.\n\nIt is cooked at once."
    assert spec.parameters["required"] == ["dish", "count"]
    assert spec.parameters["properties"] == {
        "dish": {"type": "string", "description": "Its name, as on the card."},
        "count": {"type": "integer", "description": "How many."},
        "size": {"enum": ["small", "large"], "type": "string", "default": "small"},
        "extras": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
        "spice": {"enum": ["mild", "hot"], "type": "string", "default": "mild"},
        "tip": {"type": "number", "default": 0.5},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "now": {"type": "boolean", "description": "Whether to start at once.", "default": True},
        "limits": {"type": "object", "additionalProperties": {"type": "integer"}, "default": {}},
    }


async def test_arguments_reach_the_function_as_its_types_say():
    answer = await tool_of(order, "order").run(
        {"dish": "19122", "count": 2.0, "size": "large", "tip": 1}, {"state": None}
    )
    assert answer == '{"dish": "19122", "count": 2, "size": "LARGE", "tip": 1.0, "extras": null}'


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"count": 1}, "order: argument 'dish' is missing"),
        ({"dish": "x", "count": "seven"}, "argument 'count' must be an integer, not 'seven'"),
        ({"dish": "x", "count": True}, "argument 'count' must be an integer, not True"),
        ({"dish": "x", "count": 1.5}, "argument 'count' must be an integer, not 1.5"),
        ({"dish": "x", "count": float("inf")}, "must be an integer"),
        ({"dish": 4, "count": 1}, "argument 'dish' must be a string, not 4"),
        ({"dish": "x", "count": 1, "spice": "wild"}, "must be one of 'mild', 'hot', not 'wild'"),
        ({"dish": "x", "count": 1, "extras": ["a", 2]}, "must be an array or null"),
        ({"dish": "x", "count": 1, "limits": {"a": "b"}}, "key 'a' must be an integer"),
        ({"dish": "x", "count": 1, "tp": 1}, "unknown argument 'tp', did you mean 'tip'?"),
        ({"dish": 1}, "argument 'dish' must be a string, not 1; argument 'count' is missing"),
        ({"dish": "x", "count": 1, "state": 3}, "unknown argument 'state'"),
    ],
)
async def test_argument_that_does_not_fit_is_answered_and_the_function_not_called(given, said):
    def never(state, dish: str, count: int, **kw):
        raise AssertionError

    tool = tool_of(order, "order")
    with pytest.raises(ferrule.ToolError) as caught:
        await tool.run(given, {"state": None})
    assert said in str(caught.value)


async def test_async_tools_and_answers_that_are_not_text():
    async def look(state: Any, sandbox: Any) -> None:
        state.append(sandbox)

    def pair() -> list[str]:
        return ["ä", "b"]

    seen: list[str] = []
    look_tool = tool_of(look, "look")
    assert look_tool.spec.parameters == {"type": "object", "properties": {}, "required": []}
    assert await look_tool.run({}, {"state": seen, "sandbox": "box"}) == "ok"
    assert seen == ["box"]
    assert await tool_of(pair, "pair").run({}, {}) == '["ä", "b"]'


def test_parameter_that_no_model_can_fill_is_refused_with_its_name():
    def untyped(state, x):
        return x

    def odd(x: bytes):
        return x

    def rest(*names: str):
        return names

    def keyed(x: dict[int, str]):
        return x

    def lost(x: Nowhere):  # noqa: F821
        return x

    for function, said in [
        (untyped, "'x' has no type"),
        (odd, "'x': bytes is not among str"),
        (rest, "a name of its own"),
        (keyed, "keys"),
        (lost, "Nowhere"),
    ]:
        with pytest.raises(ValueError, match=said):
            tool_of(function, "f")


def test_docstring_without_sections_is_the_description():
    assert docstring("Do it.\nNow: or never.") == ("Do it.\nNow: or never.", {})
    assert docstring("") == ("", {})
