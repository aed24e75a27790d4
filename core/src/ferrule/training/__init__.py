"""Training and evaluation: the loop over everything else."""

from .loop import evaluate, train
from .reporter import Reporter
from .stop import StopFlag, Stopped, on_signals
from .summary import Summary

__all__ = ["Reporter", "StopFlag", "Stopped", "Summary", "evaluate", "on_signals", "train"]
