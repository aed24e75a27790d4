"""A bundle's Python: loaded from its file, its functions found by name and called with what they ask for."""

from __future__ import annotations

import difflib
import hashlib
import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any


def load(path: Path) -> ModuleType:
    """The module in *path*, under a name made of its path and content, so that no other file is ever mistaken for it.

    ``sys.path`` is left alone. Raises ValueError saying what went wrong, whatever the file raised.
    """
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}") from None
    digest = hashlib.blake2b(str(path.resolve()).encode() + b"\0" + source, digest_size=8).hexdigest()
    name = f"ferrule_bundle_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # before it runs: attrs and string annotations look their module up
    try:
        # exactly the bytes that were hashed: a cached .pyc of the same second and size could be another file's
        exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ValueError(_reason(path, error)) from error
    return module


def _reason(path: Path, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        head = error.name.split(".")[0]
        if (path.parent / f"{head}.py").exists() or (path.parent / head).is_dir():
            return (
                f"imports {head!r} from its own folder; a bundle's Python is one file, loaded by itself: "
                f"move {head} into it, or install it as a package"
            )
    line = next((frame.lineno for frame in reversed(_frames(error)) if frame.filename == str(path)), None)
    if isinstance(error, SyntaxError):
        line = error.lineno
    at = f" (line {line})" if line else ""
    return f"raised {type(error).__name__} on import{at}: {error}"


def _frames(error: BaseException) -> list[Any]:
    import traceback

    return list(traceback.extract_tb(error.__traceback__))


def find(modules: list[ModuleType], name: str) -> Callable[..., Any]:
    """What *name* is in the first of *modules* that has it. Raises ValueError, with the nearest name, where none does."""
    for module in modules:
        value = getattr(module, name, None)
        if callable(value):
            return value  # type: ignore[no-any-return]
        if value is not None:
            raise ValueError(f"{name!r} in {_file(module)} is not a function or class but a {type(value).__name__}")
    if not modules:
        raise ValueError(f'no Python file to find {name!r} in: add python = "file.py"')
    own = [n for module in modules for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
    near = difflib.get_close_matches(name, own, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"no function or class {name!r} in {' or '.join(_file(m) for m in modules)}{hint}")


def _file(module: ModuleType) -> str:
    return Path(module.__file__ or module.__name__).name


_VAR = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of *function*; none where it is a built-in type that tells no signature."""
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:
        return []


def asks(function: Callable[..., Any], *, required: bool = False) -> list[str]:
    """The names of the parameters of *function*; with *required*, only of those without a default."""
    named = [p for p in parameters(function) if p.kind not in _VAR]
    return [p.name for p in named if not required or p.default is p.empty]


def restrict(function: Callable[..., Any], known: Collection[str]) -> None:
    """Check that *function* asks, without a default, only for names in *known*. Raises ValueError naming the others."""
    wrong = [name for name in asks(function, required=True) if name not in known]
    if wrong:
        raise ValueError(
            f"{function.__name__} takes {', '.join(map(repr, wrong))}; it may take: {', '.join(known) or 'nothing'}"
        )


def pick(function: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """Of *offered*, by name, what *function* has a parameter for; all of it where it takes ``**kwargs``."""
    if any(p.kind is p.VAR_KEYWORD for p in parameters(function)):
        return dict(offered)
    return {name: offered[name] for name in asks(function) if name in offered}


async def call(function: Callable[..., Any], offered: Mapping[str, Any], extra: Mapping[str, Any] | None = None) -> Any:
    """Call *function*, plain or async, with what it asks for of *offered*, and with all of *extra*."""
    result = function(**pick(function, offered), **(extra or {}))
    return await result if inspect.isawaitable(result) else result
