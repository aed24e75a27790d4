"""The house's loggers: structlog's, and silent until an application configures structlog."""

from __future__ import annotations

import sys
from typing import Any

from .masking import masked

__all__ = ["Logger", "get_logger"]


class Logger:
    """One event per fact: ``log.info("segment_reset", reason=...)``.

    A library has no business printing, and unconfigured structlog prints; so nothing is emitted, and structlog is not
    even imported, until somebody called ``structlog.configure``.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def _emit(self, level: str, event: str, values: dict[str, Any]) -> None:
        structlog = sys.modules.get("structlog")
        if structlog is not None and structlog.is_configured():
            safe = {key: masked(value) if isinstance(value, str) else value for key, value in values.items()}
            getattr(structlog.get_logger(self.name), level)(event, logger=self.name, **safe)

    def debug(self, event: str, **values: Any) -> None:
        self._emit("debug", event, values)

    def info(self, event: str, **values: Any) -> None:
        self._emit("info", event, values)

    def warning(self, event: str, **values: Any) -> None:
        self._emit("warning", event, values)

    def error(self, event: str, **values: Any) -> None:
        self._emit("error", event, values)

    def exception(self, event: str, **values: Any) -> None:
        """An error with the traceback of the exception that is being handled."""
        self._emit("exception", event, values)


def get_logger(name: str) -> Logger:
    """The logger called *name* (``ferrule.rollout``; a plugin's ``__name__``): silent until an application
    configures structlog.
    """
    return Logger(name)
