"""Finding and killing processes that do not want to be found, by what Linux tells of each in ``/proc``."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable

import attrs


@attrs.frozen
class Process:
    """One live process. ``start`` is in clock ticks since boot; ``pid`` and ``start`` together never come twice."""

    pid: int
    parent: int
    session: int
    start: int


def _stat(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # the command's name stands in brackets and may itself hold brackets and blanks
    fields = text[text.rindex(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return Process(pid, int(fields[1]), int(fields[3]), int(fields[19]))


def process_table() -> dict[int, Process]:
    """Every live process (zombies left out) by its pid; empty where there is no ``/proc``."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return {}
    found = (_stat(int(name)) for name in names if name.isdigit())
    return {process.pid: process for process in found if process is not None}


def start_time(pid: int) -> int | None:
    """When *pid* started, in clock ticks since boot; None where there is no such process, or no way to tell."""
    process = _stat(pid)
    return process.start if process else None


def marked_processes(name: str, value: str) -> list[int]:
    """Pids of the processes that were started with the environment variable *name* set to *value*.

    A child inherits the mark whatever session or parent it moves to; one that clears its environment loses it.
    """
    mark, found = f"{name}={value}".encode(), []
    for pid in process_table():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                environ = file.read()
        except OSError:
            continue
        if mark in environ.split(b"\0"):
            found.append(pid)
    return found


def kill_all(find: Callable[[], Iterable[int]], seconds: float = 5.0) -> bool:
    """Kill what *find* finds until it finds nothing more; False where something is left after *seconds*.

    Everything found is stopped first and killed once nothing new turns up, so that forking faster does not help.
    """
    stopped: set[int] = set()
    end = time.monotonic() + seconds
    # whatever a caller's rule says: neither the system's first process nor this one
    while found := {pid for pid in find() if pid > 1 and pid != os.getpid()}:
        if time.monotonic() > end:
            return False
        new = found - stopped
        for pid in new or found:
            try:
                os.kill(pid, signal.SIGSTOP if new else signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        stopped |= new
        if not new:
            time.sleep(0.002)
    return True
