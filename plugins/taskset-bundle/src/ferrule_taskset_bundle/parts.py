"""What a bundle's file and a task's file may both say: functions, turns, tools, sandbox. A task's parts start from
its bundle's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs

from ferrule import Message, SandboxSpec

from .code import find, load, restrict
from .gold import messages_of
from .reader import Reader
from .tools import Tool, bash_tool, tool_of

ASKED = ("state", "sandbox", "params", "attempt", "reply")
"""What setup, close and verifier functions may take, by parameter name."""


@attrs.frozen
class TurnText:
    """A turn as written: None where ``system`` or ``tools`` stay as they were."""

    prompt: str
    system: str | None = None
    tools: tuple[str, ...] | None = None


@attrs.frozen(eq=False)
class Parts:
    """Everything about a task but its id and params. ``tools`` holds every tool that a turn may offer, by name."""

    modules: tuple[ModuleType, ...] = ()
    state: Callable[..., Any] | None = None
    setup: Callable[..., Any] | None = None
    close: Callable[..., Any] | None = None
    system: str | None = None
    offered: tuple[str, ...] = ()
    turns: tuple[TurnText, ...] | Callable[..., Any] = ()
    verifiers: Mapping[str, Callable[..., Any]] = attrs.field(factory=dict)
    verifier_timeout: float = 600.0
    gold: tuple[Message, ...] | Callable[..., Any] | None = None
    sandbox: SandboxSpec | None = None
    isolation: bool = False
    bash_timeout: float = 60.0
    bash_output: int = 16384
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    tools: Mapping[str, Tool] = attrs.field(factory=dict)


def read_parts(reader: Reader, folder: Path, parent: Parts) -> Parts:
    """The parts that *reader*'s table, of a file in *folder*, makes of *parent*; mistakes are noted."""
    modules = parent.modules
    python = reader.take("python", str)
    broken = False
    if python is not None:
        try:
            modules = (load(folder / python), *modules)
        except ValueError as error:
            reader.wrong("python", f"{folder / python} {error}")
            broken = True

    def function(key: str, *allowed: str, checked: bool = True, at: str | None = None) -> Callable[..., Any] | None:
        name = at if at is not None else reader.take(key, str)
        if name is None or broken:  # names of a file that does not load are not the author's mistake
            return None
        try:
            found = find(list(modules), name)
            if checked:
                restrict(found, allowed)
        except ValueError as error:
            reader.wrong(key, str(error))
            return None
        return found

    changes: dict[str, Any] = {
        "modules": modules,
        "state": function("state", checked=False) or parent.state,
        "setup": function("setup", *ASKED[:4]) or parent.setup,
        "close": function("close", *ASKED) or parent.close,
        "system": reader.take("system", str, default=parent.system),
        "metadata": {**parent.metadata, **reader.take("metadata", dict, default={})},
        "verifier_timeout": reader.positive("verifier_timeout", parent.verifier_timeout),
    }
    offered = reader.texts("tools")
    changes["offered"] = parent.offered if offered is None else offered
    changes["turns"] = _turns(reader, function) or parent.turns
    verifiers = reader.take("verifiers", dict)
    if verifiers is not None:
        changes["verifiers"] = {}
        for score, name in verifiers.items():
            if not isinstance(name, str):
                reader.wrong(f"verifiers.{score}", f"must be the name of a function, not {name!r}")
            elif (found := function(f"verifiers.{score}", *ASKED, at=name)) is not None:
                changes["verifiers"][score] = found
    changes["gold"] = _gold(reader, function) or parent.gold
    changes |= _sandbox(reader, folder, parent)
    bash = reader.table_at("bash")
    changes["bash_timeout"] = bash.positive("timeout", parent.bash_timeout)
    changes["bash_output"] = int(bash.positive("output_limit", parent.bash_output))
    bash.done()
    parts = attrs.evolve(parent, **changes)
    return parts if broken else attrs.evolve(parts, tools=_tools(reader, parts))


def _turns(reader: Reader, function: Callable[..., Any]) -> Any:
    prompt = reader.take("prompt", str)
    turns = reader.table.get("turns")
    if prompt is not None and turns is not None:
        reader.wrong("prompt", "prompt is short for a single turn: give it, or turns, not both")
    if isinstance(turns, str):
        return function("turns", *ASKED)
    if isinstance(turns, dict):
        reader.known.append("turns")
        reader.wrong("turns", 'turns is a list: write [[turns]], or turns = [{ prompt = "…" }]')
        return ()
    out = []
    for turn in reader.tables("turns"):
        text = turn.take("prompt", str)
        if text is None and "prompt" not in turn.table:
            turn.wrong("prompt", "is missing: each turn asks something")
        out.append(TurnText(text or "", turn.take("system", str), turn.texts("tools")))
        turn.done()
    return tuple(out) or (() if prompt is None else (TurnText(prompt),))


def _gold(reader: Reader, function: Callable[..., Any]) -> Any:
    value = reader.table.get("gold")
    if isinstance(value, str):
        return function("gold", "params", "id")
    items = reader.take("gold", list)
    try:
        return None if items is None else messages_of(items)
    except ValueError as error:
        reader.wrong("gold", str(error))
        return None


def _sandbox(reader: Reader, folder: Path, parent: Parts) -> dict[str, Any]:
    if "sandbox" not in reader.table:
        reader.known.append("sandbox")
        return {}
    table = reader.table_at("sandbox")
    base = parent.sandbox or SandboxSpec()
    env = table.take("env", dict, default={})
    if not all(isinstance(value, str) for value in env.values()):
        table.wrong("env", "the values must be texts")
        env = {}
    values = {
        "image": table.take("image", str, default=base.image),
        "cpus": table.take("cpus", float, default=base.cpus),
        "memory_mb": table.take("memory_mb", int, default=base.memory_mb),
        "workdir": table.take("workdir", str, default=base.workdir),
        "network": table.take("network", bool, default=base.network),
        "lifetime": table.take("lifetime", float, default=base.lifetime),
        "env": {**base.env, **env},
        "files": {**base.files, **_files(table, folder)},
    }
    isolation = table.take("needs_isolation", bool, default=parent.isolation)
    table.done()
    try:
        spec = SandboxSpec(**values)
    except ValueError as error:
        table.wrong("", str(error.args[0] if error.args else error))
        spec = base
    return {"sandbox": spec, "isolation": isolation}


def _files(table: Reader, folder: Path) -> dict[str, bytes]:
    name = table.take("files", str)
    if name is None:
        return {}
    root = folder / name
    if not root.is_dir():
        table.wrong("files", f"no folder {root}")
        return {}
    paths = sorted(path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    try:
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}
    except OSError as error:
        table.wrong("files", f"{error.filename} cannot be read: {error.strerror}")
        return {}


def _tools(reader: Reader, parts: Parts) -> dict[str, Tool]:
    """Every tool that the parts name, in order; a task that adds no Python keeps what its bundle resolved."""
    named: dict[str, str] = dict.fromkeys(parts.offered, "tools")
    if not callable(parts.turns):
        for i, turn in enumerate(parts.turns):
            for name in turn.tools or ():
                named.setdefault(name, f"turns[{i}].tools")
    out: dict[str, Tool] = {}
    for name, key in named.items():
        try:
            function = find(list(parts.modules), name)
        except ValueError as error:
            if name != "bash":
                reader.wrong(key, str(error))
            elif parts.sandbox is None:
                reader.wrong(key, "bash runs in a sandbox, and the bundle asks for none: add a [sandbox] table")
            else:
                out[name] = bash_tool(parts.bash_timeout, parts.bash_output)
            continue
        try:
            out[name] = tool_of(function, name)
        except ValueError as error:
            reader.wrong(key, f"tool {name!r}: {error}")
    return out
