"""The families' fixed texts, and tool calls as they write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ferrule import ToolCall, ToolSpec, clean_text

from .writing import SCAFFOLD, Writer

START, END = "<|im_start|>", "<|im_end|>"
GENERATION = "<|im_start|>assistant\n"
THINK_OPEN, THINK_CLOSE, NO_THOUGHT = "<think>\n", "\n</think>\n\n", "<think>\n\n</think>\n\n"

HERMES_TOOLS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
HERMES_CALLS = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)
XML_TOOLS = "# Tools\n\nYou have access to the following functions:\n\n<tools>"
XML_CALLS = (
    "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
    "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
    "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple lines\n"
    "</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n"
    "- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within "
    "<tool_call></tool_call> XML tags\n"
    "- Required parameters MUST be specified\n"
    "- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT "
    "after\n"
    "- If there is no function call available, answer the question like normal with your current knowledge and do not "
    "tell the user about function calls\n</IMPORTANT>"
)


def write_tools(writer: Writer, tools: Sequence[ToolSpec], xml: bool) -> None:
    """The declarations, between their instructions."""
    writer.fixed(XML_TOOLS if xml else HERMES_TOOLS)
    for tool in tools:
        writer.fixed("\n")
        writer.content(clean_text(json.dumps(tool.to_openai(), ensure_ascii=False)), SCAFFOLD)
    writer.fixed(XML_CALLS if xml else HERMES_CALLS)


def write_calls(writer: Writer, calls: Sequence[ToolCall], content: str, xml: bool, markup: frozenset[int]) -> None:
    """The calls after *content*, each where it stood; a malformed one as it was written."""
    for n, call in enumerate(calls):
        if n:
            writer.fixed("\n")
        elif content.strip() if xml else content:
            writer.fixed("\n\n" if xml else "\n")
        if call.error is not None and call.raw:
            writer.content(clean_text(call.raw), allowed=markup)
        elif xml:
            _xml(writer, call)
        else:
            writer.fixed('<tool_call>\n{"name": "')
            writer.content(clean_text(call.name))
            writer.fixed('", "arguments": ')
            writer.content(_json(call.arguments))
            writer.fixed("}\n</tool_call>")


def _xml(writer: Writer, call: ToolCall) -> None:
    writer.fixed("<tool_call>\n<function=")
    writer.content(clean_text(call.name))
    writer.fixed(">\n")
    for name, value in call.arguments.items():
        writer.fixed("<parameter=")
        writer.content(clean_text(name))
        writer.fixed(">\n")
        writer.content(_json(value) if isinstance(value, (Mapping, list, tuple)) else clean_text(str(value)))
        writer.fixed("\n</parameter>\n")
    writer.fixed("</function>\n</tool_call>")


def _json(value: Any) -> str:
    return clean_text(json.dumps(dict(value) if isinstance(value, Mapping) else value, ensure_ascii=False))
