"""What is alive, written down on disk before it is made, so that what a killed run leaves can be found and removed."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import attrs

from .processes import start_time


@attrs.frozen
class RegisterEntry:
    """One sandbox: its name, the run and process that own it, and the facts that its backend needs to remove it."""

    name: str
    run: str
    pid: int
    start: int
    boot: str
    facts: dict[str, Any] = attrs.field(factory=dict)

    @property
    def alive(self) -> bool:
        """Whether the owning process still runs: the very one, not a later one of the same pid."""
        if self.boot != _boot():
            return False
        if self.start:
            return start_time(self.pid) == self.start
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


class SandboxRegister:
    """The register of one backend: a folder with a small JSON file for each sandbox.

    It stands in ``$XDG_STATE_HOME/ferrule/sandboxes/<backend>`` (``~/.local/state`` where that is unset), or below the
    system's folder for temporary files where no home is writable.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend

    @property
    def folder(self) -> Path:
        state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
        folder = Path(state, "ferrule", "sandboxes", self.backend)
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if os.access(folder, os.W_OK):
                return folder
        except OSError:
            pass
        top = Path(tempfile.gettempdir(), f"ferrule-{os.getuid()}")
        top.mkdir(mode=0o700, exist_ok=True)
        if top.is_symlink() or top.stat().st_uid != os.getuid():
            raise PermissionError(f"{top} belongs to somebody else; set XDG_STATE_HOME to a folder of your own")
        folder = top / "sandboxes" / self.backend
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def add(self, name: str, run: str, **facts: Any) -> RegisterEntry:
        """Write down a sandbox of this process. Call it before anything of the sandbox exists."""
        entry = RegisterEntry(name, run, os.getpid(), start_time(os.getpid()) or 0, _boot(), facts)
        path = self.folder / f"{name}.json"
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_text(json.dumps(attrs.asdict(entry)))
        part.replace(path)
        return entry

    def remove(self, name: str) -> None:
        """Strike out a sandbox. Call it after nothing of the sandbox is left."""
        (self.folder / f"{name}.json").unlink(missing_ok=True)

    def entries(self) -> list[RegisterEntry]:
        """All that are written down, by name; a file that is not an entry is passed over."""
        found = []
        for path in sorted(self.folder.glob("*.json")):
            try:
                found.append(RegisterEntry(**json.loads(path.read_text())))
            except (OSError, ValueError, TypeError):
                continue
        return found

    def left_behind(self, run: str | None = None) -> list[RegisterEntry]:
        """The sandboxes whose owner is dead, of *run* only where it is given. What a living process owns is never
        among them.
        """
        return [entry for entry in self.entries() if (run is None or entry.run == run) and not entry.alive]


def _boot() -> str:
    """Tells one boot of the machine from the next; pids and start times begin anew with each."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
