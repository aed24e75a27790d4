"""Files of one JSON object a line, that survive a killed writer: a torn last line is dropped, a tail moved aside."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any


def dumps(value: Any) -> str:
    """One line of strict JSON: what is not JSON becomes text, and a float that is not finite becomes null."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain, separators=(",", ":"))
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, default=_plain, separators=(",", ":"))


def _plain(value: Any) -> Any:
    for method in ("tolist", "item"):  # numpy arrays and scalars
        if hasattr(value, method):
            return getattr(value, method)()
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    if isinstance(value, (bytes, bytearray)):
        return value.decode("utf-8", "replace")
    return str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


class JsonLines:
    """An append-only file. Each line reaches the operating system at once; :meth:`sync` makes all of it survive a power
    loss.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None

    @property
    def size(self) -> int:
        """Bytes so far: where the next line will begin."""
        return self.path.stat().st_size if self.path.exists() else 0

    def append(self, line: str) -> int:
        """Write *line*; the byte offset at which it begins."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab", buffering=0)
        offset = self._file.tell()
        rest = memoryview(line.encode("utf-8", "surrogatepass") + b"\n")
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except BaseException:
            self._file.truncate(offset)  # half a line, where the disk is full, would be the beginning of the next
            raise
        return offset

    def sync(self) -> None:
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def lines(path: Path, start: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """``(offset, object)`` of each whole line from byte *start* on. A last line without its end is not there yet."""
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(start)
        offset = start
        for raw in file:
            if not raw.endswith(b"\n"):
                return
            try:
                value = json.loads(raw)
            except ValueError:  # a hole that a power loss left in the middle
                value = None
            if isinstance(value, dict):
                yield offset, value
            offset += len(raw)


def read_at(path: Path, offset: int) -> dict[str, Any]:
    """The object whose line begins at byte *offset*. Raises ValueError where none does."""
    with path.open("rb") as file:
        file.seek(offset)
        value = json.loads(file.readline())
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no object at byte {offset}")
    return value


def repair(path: Path) -> int:
    """Cut a torn last line off; the bytes removed."""
    if not path.exists():
        return 0
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        keep = end
        block = 64 * 1024
        while keep > 0:
            start = max(0, keep - block)
            file.seek(start)
            found = file.read(keep - start).rfind(b"\n")
            if found >= 0:
                keep = start + found + 1
                break
            keep = start
        if keep < end:
            file.truncate(keep)
            os.fsync(file.fileno())
        return end - keep


def set_aside(path: Path, offset: int) -> Path | None:
    """Move all that lies at and after byte *offset* into ``<stem>.abandoned-<k>.jsonl`` beside it; that file, or None
    where nothing lay there.

    The copy is complete before the original is cut, and repeating it after a kill in between makes no second copy.
    """
    if not path.exists() or path.stat().st_size <= offset:
        return None
    with path.open("rb") as file:
        file.seek(offset)
        tail = file.read()
    k = 1
    while (aside := path.with_name(f"{path.stem}.abandoned-{k}.jsonl")).exists():
        if aside.read_bytes() == tail:
            break
        k += 1
    else:
        write_atomically(aside, tail)
    with path.open("rb+") as file:
        file.truncate(offset)
        os.fsync(file.fileno())
    return aside


def write_atomically(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace *path* by *data*, whole or not at all, even across a power loss."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
