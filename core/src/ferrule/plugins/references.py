"""References: ``name``, ``name@distribution``, ``package.module:Class`` and ``path/to/file.py:Class``."""

from __future__ import annotations

import importlib
import traceback
from pathlib import Path
from typing import Any

import attrs

from ..errors import PluginError
from . import files
from .compat import core_mismatch, nearest
from .discovery import Candidate


@attrs.frozen(eq=False)
class Ref:
    """What a reference was resolved to: one candidate, or a class in a module or in a file; nothing imported yet.

    ``sha256`` is what the file must hash to, where the reference came from another process.
    """

    kind: str
    text: str
    candidate: Candidate | None = None
    module: str | None = None
    file: Path | None = None
    attribute: str = ""
    sha256: str | None = None

    @property
    def origin(self) -> str:
        """How messages name it."""
        if self.candidate is None:
            return f"{self.kind} {self.text!r}"
        return f"{self.kind} {self.candidate.name!r} of {self.candidate.dist}"


def direct(kind: str, text: str, base: Path, sha256: str | None = None) -> Ref | None:
    """The module or file reference that *text* is, or None where it is a name."""
    left, colon, attribute = text.rpartition(":")
    if not colon:
        if text.endswith(".py"):
            raise PluginError(f"{kind} {text!r}: say which class of the file: {text}:Class")
        return None
    if not left or not all(part.isidentifier() for part in attribute.split(".")):
        raise PluginError(
            f"{kind} {text!r} is no reference: write name, name@distribution, package.module:Class or file.py:Class"
        )
    if left.endswith(".py") or "/" in left or "\\" in left:
        return Ref(kind, text, file=(base / Path(left).expanduser()).absolute(), attribute=attribute, sha256=sha256)
    return Ref(kind, text, module=left, attribute=attribute)


def load(ref: Ref) -> Any:
    """Import what *ref* names. Everything that goes wrong in the plugin, ``SystemExit`` included, becomes a
    PluginError.
    """
    if ref.candidate is not None:
        return _load_candidate(ref, ref.candidate)
    if ref.file is not None:
        source, digest = files.read(ref.file)
        if ref.sha256 is not None and ref.sha256 != digest:
            raise PluginError(
                f"{ref.origin}: {ref.file} is not the file that the run was started with "
                f"(sha256 {digest[:12]} here, {ref.sha256[:12]} there)"
            )
        try:
            module = files.load(ref.file, source, digest)
        except PluginError as error:
            raise PluginError(f"{ref.origin}: {error}") from error
        except (Exception, SystemExit) as error:
            raise PluginError(f"{ref.origin} did not load: {reason(error, str(ref.file.resolve()))}") from error
    else:
        assert ref.module is not None
        try:
            module = importlib.import_module(ref.module)
        except (Exception, SystemExit) as error:
            hint = ""
            if isinstance(error, ModuleNotFoundError) and error.name == ref.module.partition(".")[0]:
                hint = f"; a file is written {ref.module.replace('.', '/')}.py:{ref.attribute}"
            raise PluginError(f"{ref.origin} did not load: {reason(error)}{hint}") from error
    return _attribute(ref, module, ref.attribute)


def _load_candidate(ref: Ref, candidate: Candidate) -> Any:
    mismatch = core_mismatch(candidate.dist)
    if mismatch:
        raise PluginError(f"{candidate.kind} {candidate.name!r} cannot be used: {mismatch}")
    module, _, attribute = candidate.value.partition(":")
    try:
        loaded = importlib.import_module(module.strip())
    except (Exception, SystemExit) as error:
        raise PluginError(f"{ref.origin} did not load: {reason(error)}") from error
    return _attribute(ref, loaded, attribute.partition("[")[0].strip())


def _attribute(ref: Ref, module: Any, attribute: str) -> Any:
    found = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            classes = [
                name
                for name, value in vars(module).items()
                if isinstance(value, type) and value.__module__ == module.__name__
            ]
            raise PluginError(f"{ref.origin}: there is no {attribute!r} in it{nearest(attribute, classes)}") from None
    return found


def reason(error: BaseException, file: str | None = None) -> str:
    """The error in one line; with the line of *file* where it passed through it."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if file is not None:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        if lines:
            text += f" (line {lines[-1]})"
    return text
