"""Classes from a user's own file: registered under path and hash before the file runs, and checked to stand alone."""

from __future__ import annotations

import ast
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from ..errors import PluginError


class _Source(importlib.abc.InspectLoader):
    """Runs exactly the bytes that were hashed."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source = path, source

    def get_source(self, fullname: str) -> str:
        return importlib.util.decode_source(self.source)

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.source, self.path, "exec", dont_inherit=True)

    def is_package(self, fullname: str) -> bool:
        return False


def read(path: Path) -> tuple[bytes, str]:
    """The file's bytes and their sha256. PluginError where it cannot be read."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise PluginError(f"no such file: {path}" if not path.exists() else f"cannot read {path}: {error}") from error
    return source, hashlib.sha256(source).hexdigest()


def load(path: Path, source: bytes, digest: str) -> ModuleType:
    """The module that *source* is, run once per path and hash in a process. Raises whatever the file raises."""
    place = os.path.realpath(path)
    name = f"ferrule_file_{path.stem}_{hashlib.sha256(place.encode()).hexdigest()[:12]}_{digest[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    stray = sibling_import(path, source)
    if stray is not None:
        raise PluginError(_refusal(path, *stray))
    spec = importlib.util.spec_from_loader(name, _Source(place, source), origin=place)
    assert spec is not None
    spec.has_location = True
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        module.__spec__.loader.exec_module(module)  # type: ignore[union-attr]
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _refusal(path: Path, imported: str, line: int) -> str:
    return (
        f"{path.name} imports {imported} beside it (line {line}): a class from a file must stand alone, because a worker "
        "elsewhere would not find the other file; make it a package"
    )


def sibling_import(path: Path, source: bytes) -> tuple[str, int] | None:
    """The first import of *source* that only a file beside *path* can answer, with its line; None where it stands
    alone.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None  # running it says so, with the line
    for name, line in _imports(tree):
        if name.startswith("."):
            return f"{name!r}", line
        top = name.partition(".")[0]
        beside = path.parent / f"{top}.py", path.parent / top
        if (beside[0].is_file() or beside[1].is_dir()) and not _found_without_folder(top):
            return f"{top!r}", line
    return None


def _imports(node: ast.AST) -> Iterator[tuple[str, int]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name, node.lineno
    elif isinstance(node, ast.ImportFrom):
        yield "." * node.level + (node.module or ""), node.lineno
    elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        for other in node.orelse:
            yield from _imports(other)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _imports(child)


def _found_without_folder(top: str) -> bool:
    """Whether ``import top`` works without the working directory or a script's folder at the head of ``sys.path``."""
    if top in sys.builtin_module_names or top in sys.stdlib_module_names:
        return True
    path = [entry for entry in sys.path if entry]
    if sys.path and sys.path[0] and not sys.flags.safe_path:
        path = path[1:]
    for finder in sys.meta_path:
        if finder is importlib.machinery.PathFinder:
            spec: Any = importlib.machinery.PathFinder.find_spec(top, path)
        else:
            spec = finder.find_spec(top, None) if hasattr(finder, "find_spec") else None
        # A namespace package is any folder of that name, so it proves nothing.
        if spec is not None and spec.origin is not None:
            return True
    return False
