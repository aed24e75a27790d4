"""What sandbox backends that run on this machine share: running a command, bounding its output, killing what it
started,
files below a root that the agent may have filled with traps, and the register of what is alive.
"""

from ..kinds.sandbox import OUTPUT_LIMIT
from .commands import Commands, RunningCommand, exited, settle
from .files import FileView, Mount
from .output import BoundedOutput
from .processes import kill_all, marked_processes, process_table
from .register import RegisterEntry, SandboxRegister

__all__ = [
    "OUTPUT_LIMIT",
    "BoundedOutput",
    "Commands",
    "FileView",
    "Mount",
    "RegisterEntry",
    "RunningCommand",
    "SandboxRegister",
    "exited",
    "kill_all",
    "marked_processes",
    "process_table",
    "settle",
]
