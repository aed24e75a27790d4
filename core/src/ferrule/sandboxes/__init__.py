"""What sandbox backends that run on this machine share: running a command, bounding its output, killing what it started,
files below a root that the agent may have filled with traps, and the register of what is alive."""

from ..kinds.sandbox import OUTPUT_LIMIT
from .commands import Commands, settle
from .files import FileView, Mount
from .output import BoundedOutput
from .processes import kill_all, marked_processes, process_table
from .register import RegisterEntry, SandboxRegister

__all__ = [
    "OUTPUT_LIMIT", "BoundedOutput", "Commands", "FileView", "Mount", "RegisterEntry", "SandboxRegister", "kill_all",
    "marked_processes", "process_table", "settle",
]
