"""Captured turns on disk: one file per session, a line per turn, so that a kill loses nothing that was captured.

A line holds what a turn added to its segment: ``from`` says at which token, what stood there and beyond being cut off
(a turn that was sampled again). Lines are written whole, before the reply is sent; one that a kill cut short is left out
when the file is read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from ferrule import FerruleError, Trajectory, get_logger

from .errors import WireError
from .trajectories import segment_body, step_body

log = get_logger("ferrule_gateway")

SUFFIX = ".jsonl"

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,127}")
"""What a session may be called: nothing that means more in a URL, or in the name of a file."""


class Store:
    """The folder *root*, readable by its owner alone."""

    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise FerruleError(f"gateway.store = {str(root)!r} cannot be made: {error.strerror}") from error

    def create(self, id_: str, facts: Mapping[str, Any]) -> Writer:
        """The file of a new session, opened by a line of *facts*."""
        return Writer(self.root / f"{id_}{SUFFIX}", facts)

    def __contains__(self, id_: str) -> bool:
        return ID.fullmatch(id_) is not None and (self.root / f"{id_}{SUFFIX}").is_file()

    def ids(self) -> list[str]:
        """Every session that has a file."""
        names = (path.name.removesuffix(SUFFIX) for path in self.root.glob(f"*{SUFFIX}") if path.is_file())
        return sorted(filter(ID.fullmatch, names))

    def facts(self, id_: str) -> dict[str, Any]:
        """What the session was created with, and how many turns it has; ``error`` where that cannot be read."""
        try:
            lines = self._lines(id_)
            facts = orjson.loads(lines[0]) if lines else {}
            return {**facts, "turns": max(0, len(lines) - 1)}
        except WireError as error:
            return {"error": str(error)}
        except (orjson.JSONDecodeError, TypeError):
            return {"error": f"{id_}{SUFFIX} does not begin as a session's file does"}

    def read(self, id_: str) -> dict[str, Any]:
        """Segments and steps, as :func:`.trajectories.trajectory_body` gives those of an open session. Raises WireError
        where they cannot be read.
        """
        segments: list[dict[str, list[Any]]] = []
        steps: list[dict[str, Any]] = []
        for number, raw in enumerate(self._lines(id_)[1:], 2):
            try:
                line = orjson.loads(raw)
                step, start = line["step"], line["from"]
                while len(segments) <= step["segment"]:
                    segments.append({name: [] for name in line["tokens"]})
                segment = segments[step["segment"]]
                for name, values in line["tokens"].items():
                    segment[name][start:] = values
                # By where it began too: a completion without a token ends where the one in its place begins.
                steps = [
                    each
                    for each in steps
                    if each["segment"] != step["segment"] or (each["stop"] <= start and each["start"] < step["start"])
                ]
            except (orjson.JSONDecodeError, KeyError, TypeError) as error:
                what = f"line {number} of {id_}{SUFFIX} is no captured turn: {type(error).__name__}"
                raise WireError(500, "store_failed", what) from error
            steps.append(step)
        return {"segments": segments, "steps": steps}

    def delete(self, id_: str) -> None:
        (self.root / f"{id_}{SUFFIX}").unlink(missing_ok=True)

    def _lines(self, id_: str) -> list[bytes]:
        """The whole lines of its file: a kill may have cut the last one short."""
        path = self.root / f"{id_}{SUFFIX}"
        try:
            return path.read_bytes().split(b"\n")[:-1]
        except OSError as error:
            raise failed("read", path, error) from error


class Writer:
    """Appends to the file of an open session. The file is open only for as long as a line takes, so that as many sessions
    may be open as memory holds, and not as many as a process may have files. Raises WireError where it cannot write.
    """

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        self._path = path
        self._lengths: dict[int, int] = {}
        self._open = self._whole = True
        try:
            self._write([dict(facts)], os.O_CREAT | os.O_EXCL)
        except WireError:
            path.unlink(missing_ok=True)
            raise

    def turn(self, trajectory: Trajectory) -> None:
        """Append what the last step of *trajectory* added; all of it where a turn before could not be written."""
        if not self._open:
            return
        lengths = dict(self._lengths) if self._whole else {}
        lines = []
        for step in trajectory.steps[-1:] if self._whole else trajectory.steps:
            start = min(lengths.get(step.segment_index, 0), step.start)
            lengths[step.segment_index] = step.stop
            tokens = segment_body(step.segment, start, step.stop)
            lines.append({"from": start, "tokens": tokens, "step": step_body(step)})
        self._whole = False
        self._write(lines)
        self._lengths, self._whole = lengths, True

    def close(self) -> None:
        """Write no more."""
        self._open = False

    def _write(self, lines: Sequence[Any], flags: int = 0) -> None:
        data = memoryview(b"".join(orjson.dumps(line, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n" for line in lines))
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | flags, 0o600)
            try:
                size = os.fstat(handle).st_size
                try:
                    while data:
                        data = data[os.write(handle, data) :]
                except OSError:
                    os.ftruncate(handle, size)  # half a line would hide all that follow it
                    raise
            finally:
                os.close(handle)
        except OSError as error:
            raise failed("write", self._path, error) from error


def failed(what: str, path: Path, error: OSError) -> WireError:
    """The answer where the store cannot *what* the file at *path*."""
    log.error("store_failed", file=str(path), error=error.strerror)
    return WireError(507, "store_failed", f"the store cannot {what} {path.name}: {error.strerror}")
