"""Tools: typed Python functions, shown to the model as JSON schemas that come from their signatures and docstrings."""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import attrs

from ferrule import CommandTimeout, Sandbox, ToolError, ToolSpec

from .code import call
from .schema import Mismatch, Unsupported, arguments_of, converter, schema_of

INJECTED = ("state", "sandbox")
"""Parameters that the task set fills in and the model is not shown."""

_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns?|Raises|Yields|Examples?|Notes?):\s*$")
_ENTRY = re.compile(r"^(\w+)(?:\s*\([^)]*\))?:\s*(.*)$")


@attrs.frozen(eq=False)
class Tool:
    """A function, and the face that the model sees of it."""

    spec: ToolSpec
    function: Callable[..., Any]
    converters: Mapping[str, Callable[[Any], Any]]

    @property
    def needs_sandbox(self) -> bool:
        """Whether it cannot be called without a sandbox: it has a parameter ``sandbox``, and no default for it."""
        parameter = inspect.signature(self.function).parameters.get("sandbox")
        return parameter is not None and parameter.default is parameter.empty

    async def run(self, given: Mapping[str, Any], inject: Mapping[str, Any]) -> str:
        """Check *given* against the schema, call, and give the answer as text. Raises ToolError where an argument
        does not fit.
        """
        try:
            arguments = arguments_of(self.spec.parameters, given)
        except Mismatch as problem:
            raise ToolError(f"{self.spec.name}: {problem}") from None
        for name, convert in self.converters.items():
            if name in arguments:
                arguments[name] = convert(arguments[name])
        answer = await call(self.function, inject, arguments)
        if isinstance(answer, str):
            return answer
        return "ok" if answer is None else json.dumps(answer, ensure_ascii=False)


def tool_of(function: Callable[..., Any], name: str) -> Tool:
    """The tool that *function* is. Raises ValueError saying which parameter cannot be shown to a model, and why."""
    shown = [p for p in inspect.signature(function).parameters.values() if p.name not in INJECTED]
    hints = _types(function, shown)
    text, described = docstring(inspect.getdoc(function) or "")
    properties: dict[str, Any] = {}
    required: list[str] = []
    converters: dict[str, Callable[[Any], Any]] = {}
    for parameter in shown:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ValueError(f"parameter {parameter} must have a name of its own: a model passes arguments by name")
        if parameter.name not in hints:
            raise ValueError(f"parameter {parameter.name!r} has no type: write {parameter.name}: str, or another type")
        kind = hints[parameter.name]
        try:
            schema = schema_of(kind)
        except Unsupported as problem:
            raise ValueError(f"parameter {parameter.name!r}: {problem}") from None
        if parameter.name in described:
            schema = {**schema, "description": described[parameter.name]}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif parameter.default is not None:
            schema = {**schema, "default": getattr(parameter.default, "value", parameter.default)}
        properties[parameter.name] = schema
        make = converter(kind)
        if make is not None:
            converters[parameter.name] = make
    parameters = {"type": "object", "properties": properties, "required": required}
    return Tool(ToolSpec(name, text, parameters), function, converters)


def _types(function: Callable[..., Any], parameters: list[inspect.Parameter]) -> dict[str, Any]:
    """The types of *parameters* by name, those written as text looked up where *function* was written."""
    written = SimpleNamespace(__annotations__={p.name: p.annotation for p in parameters if p.annotation is not p.empty})
    try:
        return typing.get_type_hints(written, getattr(inspect.unwrap(function), "__globals__", {}), include_extras=True)
    except Exception as error:
        raise ValueError(f"its types cannot be read: {type(error).__name__}: {error}") from None


def docstring(text: str) -> tuple[str, dict[str, str]]:
    """A Google-style docstring as what stands before its sections, and its ``Args:`` by name."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if _SECTION.match(line)), len(lines))
    described: dict[str, str] = {}
    inside, name, indent = False, "", 0
    for line in lines[start:]:
        if (header := _SECTION.match(line)) is not None:
            inside = header[1] in ("Args", "Arguments", "Parameters")
            name, indent = "", 0
            continue
        if not inside or not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        indent = indent or depth
        entry = _ENTRY.match(line.strip()) if depth <= indent else None
        if entry is not None:
            name = entry[1]
            described[name] = entry[2]
        elif name:
            described[name] = f"{described[name]} {line.strip()}".strip()
    return "\n".join(lines[:start]).strip(), described


def bash_tool(timeout: float, output_limit: int) -> Tool:
    """The built-in ``bash``: a command in the attempt's sandbox, as the agent's user, killed after *timeout* seconds."""

    async def bash(sandbox: Sandbox, command: str) -> str:
        """Run a command in the sandbox with bash. Answers what it printed and its exit code.

        Args:
            command: The command line.
        """
        try:
            result = await sandbox.exec(command, user="agent", timeout=timeout, output_limit=output_limit)
        except CommandTimeout as cut:
            return printed(cut.stdout, cut.stderr) + f"[killed after {timeout:g} s]"
        return printed(result.stdout, result.stderr) + f"[exit code {result.exit_code}]"

    return tool_of(bash, "bash")


def printed(stdout: str, stderr: str) -> str:
    """Both streams, stdout first, each ending in a newline where it is not empty."""
    return "".join(text if text.endswith("\n") else text + "\n" for text in (stdout, stderr) if text)
