"""The sandbox ``bwrap``: what an agent runs cannot read or change what is outside, by Linux namespaces through
bubblewrap.
"""

from .backend import BwrapSandboxes
from .box import BwrapSandbox

__all__ = ["BwrapSandbox", "BwrapSandboxes"]
