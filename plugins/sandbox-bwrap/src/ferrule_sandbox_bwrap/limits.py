"""Limits by control groups, version 1 or 2, where this process may make them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import attrs

CONTROLLERS = ("memory", "pids", "cpu")


@attrs.frozen
class Wanted:
    """Limits of one sandbox user: bytes of memory, number of processes, processors; 0 for none."""

    memory: int = 0
    pids: int = 0
    cpus: float = 0.0

    def of(self, controller: str) -> float:
        return {"memory": self.memory, "pids": self.pids, "cpu": self.cpus}[controller]


@attrs.frozen
class Groups:
    """Where control groups can be made: a folder per controller (version 1), or one for all of them (version 2)."""

    v1: dict[str, Path] = attrs.field(factory=dict)
    v2: Path | None = None

    @classmethod
    def find(cls, mounts: str = "/proc/self/mounts", own: str = "/proc/self/cgroup") -> Groups:
        """Version 1 below this process's own group, so that limits on it hold; version 2 in a group ``ferrule`` at
        the top, since a group that holds processes may not hand its controllers on.
        """
        paths = {}
        for line in _text(own).splitlines():
            _, names, path = line.split(":", 2)
            paths.update(dict.fromkeys(names.split(","), path))
        v1: dict[str, Path] = {}
        v2: Path | None = None
        for line in _text(mounts).splitlines():
            _, where, kind, options, *_ = line.split()
            if kind == "cgroup":
                for name in set(options.split(",")) & set(CONTROLLERS):
                    below = Path(where, paths.get(name, "/").lstrip("/"))
                    v1[name] = below if below.is_dir() else Path(where)
            elif kind == "cgroup2" and v2 is None:
                v2 = _hand_on(Path(where))
        return cls({name: path for name, path in v1.items() if os.access(path, os.W_OK)}, v2)

    def plan(self, name: str) -> dict[str, str]:
        """The folders that :meth:`make` would make for *name*, by controller (``v2`` for all that version 2 has)."""
        found = {controller: str(path / name) for controller, path in self.v1.items()}
        if self.v2 is not None:
            found["v2"] = str(self.v2 / name)
        return found

    def make(self, name: str, wanted: Wanted) -> tuple[list[str], set[str]]:
        """Make the groups; the files into which a process writes its pid to enter, and the controllers whose limits
        hold.
        """
        enter, held = [], set()
        for controller, folder in self.plan(name).items():
            try:
                os.mkdir(folder)
            except OSError:
                continue
            names = CONTROLLERS if controller == "v2" else (controller,)
            held |= {c for c in names if c not in held and _limit(Path(folder), c, wanted.of(c), controller == "v2")}
            enter.append(f"{folder}/cgroup.procs")
        return enter, held


def remove(folders: list[str], seconds: float = 2.0) -> list[str]:
    """Remove groups whose processes are dead or dying; those that are still there after *seconds*."""
    end = time.monotonic() + seconds
    left = [folder for folder in folders if os.path.isdir(folder)]
    while left:
        for folder in tuple(left):
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                pass
            except OSError:
                continue
            left.remove(folder)
        if not left or time.monotonic() > end:
            break
        time.sleep(0.005)
    return left


def _hand_on(top: Path) -> Path | None:
    """A group below *top* whose children get the controllers; None where version 2 has none to give here."""
    group = top / "ferrule"
    have = set(_text(top / "cgroup.controllers").split()) & set(CONTROLLERS)
    if not have:
        return None
    text = " ".join(f"+{name}" for name in sorted(have))
    try:
        _write(top / "cgroup.subtree_control", text)
        group.mkdir(exist_ok=True)
        _write(group / "cgroup.subtree_control", text)
    except OSError:
        return None
    return group


def _limit(folder: Path, controller: str, value: float, v2: bool) -> bool:
    """Write one limit; whether it holds (none wanted holds)."""
    if not value:
        return True
    try:
        if controller == "memory":
            _write(folder / ("memory.max" if v2 else "memory.limit_in_bytes"), str(int(value)))
            # swap would double it; a kernel may not account for swap
            swap = folder / ("memory.swap.max" if v2 else "memory.memsw.limit_in_bytes")
            if swap.exists():
                _write(swap, "0" if v2 else str(int(value)))
        elif controller == "pids":
            _write(folder / "pids.max", str(int(value)))
        elif v2:
            _write(folder / "cpu.max", f"{max(1000, int(value * 100_000))} 100000")
        else:
            _write(folder / "cpu.cfs_period_us", "100000")
            _write(folder / "cpu.cfs_quota_us", str(max(1000, int(value * 100_000))))
    except OSError:
        return False
    return True


def _write(path: Path, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
