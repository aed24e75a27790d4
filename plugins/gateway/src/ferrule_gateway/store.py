"""Captured turns on disk: one file per session, a line per turn, so that a kill loses nothing that was captured.

A line holds what a turn added to its segment: ``from`` says at which token, what stood there and beyond being cut off
(a turn that was sampled again). Lines are written whole, before the reply is sent; one that a kill cut short is left out
when the file is read.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from ferrule import FerruleError, Trajectory

from .trajectories import segment_body, step_body

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
        return sorted(path.name.removesuffix(SUFFIX) for path in self.root.glob(f"*{SUFFIX}"))

    def facts(self, id_: str) -> dict[str, Any]:
        """What the session was created with, and how many turns it has."""
        lines = list(self._lines(id_))
        return {**(lines[0] if lines else {}), "turns": len(lines) - 1 if lines else 0}

    def read(self, id_: str) -> dict[str, Any]:
        """Segments and steps, as :func:`.trajectories.trajectory_body` gives those of an open session."""
        segments: list[dict[str, list[Any]]] = []
        steps: list[dict[str, Any]] = []
        for line in list(self._lines(id_))[1:]:
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
            steps.append(step)
        return {"segments": segments, "steps": steps}

    def delete(self, id_: str) -> None:
        (self.root / f"{id_}{SUFFIX}").unlink(missing_ok=True)

    def _lines(self, id_: str) -> Iterator[dict[str, Any]]:
        for line in (self.root / f"{id_}{SUFFIX}").read_bytes().split(b"\n")[:-1]:
            try:
                yield orjson.loads(line)
            except orjson.JSONDecodeError:
                return


class Writer:
    """The file of an open session."""

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL, 0o600)
        self._lengths: dict[int, int] = {}
        try:
            self._write(dict(facts))
        except FerruleError:
            self.close()
            path.unlink()
            raise

    def turn(self, trajectory: Trajectory) -> None:
        """Append what the last step of *trajectory* added. FerruleError where it cannot be written, the file being as
        it was.
        """
        step = trajectory.steps[-1]
        start = min(self._lengths.get(step.segment_index, 0), step.start)
        tokens = segment_body(step.segment, start, step.stop)
        self._write({"from": start, "tokens": tokens, "step": step_body(step)})
        self._lengths[step.segment_index] = step.stop

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, data: Any) -> None:
        if self._file < 0:
            return
        line = orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n"
        size = os.fstat(self._file).st_size
        try:
            if os.write(self._file, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            os.ftruncate(self._file, size)  # half a line would take the next one with it
            raise FerruleError(f"the turn cannot be written to {self._path}: {error.strerror}") from error
