"""Ends what the programs of a run have started, and what they were given, also where the run itself was killed.

A process of its own waits for the run to end, by a pipe that the system closes however that happens.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ferrule import kill_all, marked_processes, process_table

RUN = "FERRULE_PROGRAMS"
"""The environment variable that marks the processes of a run's programs; its value is the run's folder for them."""


class Guard:
    """Holds ``folder``, where the run keeps what it gives to its programs."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ferrule-programs-"))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(self.folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except BaseException:
            self.folder.rmdir()
            raise

    async def close(self) -> None:
        """Kill what is left, remove the folder, and wait until that is done."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await asyncio.to_thread(self._process.wait)


def family(name: str, value: str) -> dict[int, int]:
    """What the environment variable *name* = *value* marks, and what descends from it (a child may have cleared its
    environment), by pid; each with when it started.
    """
    found = set(marked_processes(name, value))
    if not found:
        return {}
    table = process_table()
    for process in sorted(table.values(), key=lambda process: process.start):
        if process.parent in found or process.session in found:
            found.add(process.pid)
    return {pid: table[pid].start for pid in found if pid in table}


def kill_marked(name: str, value: str, known: Mapping[int, int] | None = None) -> bool:
    """Kill the :func:`family`, and of the *known* members of an earlier one those that live: a child that has lost its
    parent meanwhile is nobody's. False where something is left.
    """

    def find() -> set[int]:
        found = set(family(name, value))
        if known:
            table = process_table()
            found.update(pid for pid, start in known.items() if pid in table and table[pid].start == start)
        return found

    return kill_all(find)


def main(folder: str) -> None:
    """Wait for the run's end, then tidy up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    kill_marked(RUN, folder)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
