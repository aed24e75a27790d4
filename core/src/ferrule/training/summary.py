"""What is left to tell when a run is over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs


@attrs.define
class Summary:
    """The end of a run.

    status    ``done``, ``stopped`` (by a signal; it can be resumed) or ``failed``
    evals     one table of metrics per evaluation: ``label`` (``untrained``, ``step-20``), ``step``, and the metrics
              by name
    dropped   trajectories that were not learned from, and failed episodes of evaluations, by reason, over the whole run
    skipped   optimizer steps that were not taken, by reason
    warnings  what the reader should know
    """

    run: str
    dir: Path
    status: str
    kind: str = "train"
    steps: int = 0
    episodes: int = 0
    evals: list[dict[str, Any]] = attrs.field(factory=list)
    dropped: dict[str, int] = attrs.field(factory=dict)
    skipped: dict[str, int] = attrs.field(factory=dict)
    warnings: list[str] = attrs.field(factory=list)
    seconds: float = 0.0
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {**attrs.asdict(self), "dir": str(self.dir)}
