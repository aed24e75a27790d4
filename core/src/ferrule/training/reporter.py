"""What a run tells the person who started it. This one is silent, as a library should be; the command line brings its
own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .summary import Summary


class Reporter:
    """Every method is called from the event loop's thread, and does nothing here."""

    def header(self, facts: Sequence[tuple[str, str]]) -> None:
        """What is really enforced in this run: name and value, once, before anything is played."""

    def say(self, text: str) -> None:
        """One line worth reading."""

    def warn(self, text: str) -> None:
        """Something is likely wrong, and the run goes on."""

    def begin(self, title: str, total: int, unit: str, done: int = 0) -> None:
        """A piece of work of *total* units begins, *done* of them earlier; the one before it has ended."""

    def advance(self, count: int = 1, live: Mapping[str, float] | None = None) -> None:
        """*count* more units of it are done; *live* are running figures (``reward``)."""

    def end(self) -> None:
        """The piece of work is over, or was broken off."""

    def metrics(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """A line of metrics was written."""

    def finish(self, summary: Summary) -> None:
        """The run is over and everything is closed."""
