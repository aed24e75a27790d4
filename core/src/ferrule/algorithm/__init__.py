"""The algebra between episodes and a trainer: grouping, filtering, advantages onto tokens, rows, lowering. Pure numpy."""

from .batch import COMPACT, Batch, build_batch
from .lowering import FOLDABLE, fold, lower, needs, supervised
from .masks import label
from .metrics import accuracy, loss_metrics
from .rows import rows_of, supervised_row

__all__ = [
    "COMPACT",
    "FOLDABLE",
    "Batch",
    "accuracy",
    "build_batch",
    "fold",
    "label",
    "loss_metrics",
    "lower",
    "needs",
    "rows_of",
    "supervised",
    "supervised_row",
]
