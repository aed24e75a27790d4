"""The gateway: an OpenAI-compatible server that captures, token for token, what agents over HTTP were shown and sampled.

Names are resolved on first access: importing the package loads neither the server nor its libraries.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import UpstreamError as UpstreamError
    from .errors import WireError as WireError
    from .http import HttpSampler as HttpSampler
    from .http import UpstreamOptions as UpstreamOptions
    from .server import Gateway as Gateway
    from .server import GatewayOptions as GatewayOptions
    from .source import Source as Source

_HOMES = {
    "Gateway": "server",
    "GatewayOptions": "server",
    "HttpSampler": "http",
    "Source": "source",
    "UpstreamError": "errors",
    "UpstreamOptions": "http",
    "WireError": "errors",
}

__all__ = [
    "Gateway",
    "GatewayOptions",
    "HttpSampler",
    "Source",
    "UpstreamError",
    "UpstreamOptions",
    "WireError",
]


def __getattr__(name: str) -> Any:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module 'ferrule_gateway' has no attribute {name!r}") from None
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value
