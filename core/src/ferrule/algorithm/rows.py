"""Trajectories and demonstrations to training sequences: one row per segment, its arrays being the segment's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data import Row, TokenKind, Trajectory
from ..kinds import Rendered

Source = tuple[str, int]
"""Where a trajectory came from: (task id, attempt)."""


def rows_of(trajectories: Sequence[Trajectory], sources: Sequence[Source] | None = None) -> list[Row]:
    """One row per segment of each trajectory, in order; empty segments make none.

    ``Row.trajectory`` is the trajectory's index in *trajectories*. *sources* gives the task id and attempt of each.
    Arrays are views of the segments' where these have the row's dtype.
    """
    rows = []
    for index, trajectory in enumerate(trajectories):
        task_id, attempt = sources[index] if sources is not None else ("", 0)
        rows += [
            Row(
                _contiguous(segment.ids, np.int32),
                _contiguous(segment.kind, np.uint8),
                _contiguous(segment.logprobs, np.float32),
                _contiguous(segment.version, np.int32),
                index,
                task_id,
                attempt,
                trajectory.name,
                number,
            )
            for number, segment in enumerate(trajectory.segments)
            if len(segment)
        ]
    return rows


def supervised_row(rendered: Rendered, task_id: str = "") -> Row:
    """A demonstration as a row: its ACTION tokens are what the model is to say, and all before the first of them is
    PROMPT.

    No weights sampled it: ``logprobs`` are 0 and ``version`` is -1 throughout.
    """
    kind = np.array(rendered.kinds, np.uint8)
    said = np.flatnonzero(kind == TokenKind.ACTION)
    kind[: said[0] if len(said) else len(kind)] = TokenKind.PROMPT
    length = len(kind)
    return Row(
        _contiguous(rendered.ids, np.int32),
        kind,
        np.zeros(length, np.float32),
        np.full(length, -1, np.int32),
        task_id=task_id,
    )


class Flat:
    """Rows laid end to end, so that per-token work is one array operation: R rows, M tokens in all.

    lengths  int64[R]; owner  int64[M], the row of each token; kind  uint8[M]
    inner    bool[M], False at position 0 of each row, which nothing predicts and which never carries weight
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self.lengths = np.array([len(row) for row in rows], np.int64)
        self.owner = np.repeat(np.arange(len(rows)), self.lengths)
        self.ends = np.cumsum(self.lengths)
        self.kind = self.join([row.kind for row in rows], np.uint8)
        self.inner = np.ones(len(self.owner), bool)
        self.inner[(self.ends - self.lengths)[self.lengths > 0]] = False

    def join(self, arrays: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
        """One array of M of R arrays, one per row."""
        return np.concatenate(arrays).astype(dtype, copy=False) if arrays else np.zeros(0, dtype)

    def split(self, flat: NDArray[Any]) -> tuple[NDArray[np.float32], ...]:
        """float32 per row of an array of M."""
        return tuple(np.split(np.asarray(flat, np.float32), self.ends[:-1])) if len(self.lengths) else ()


def _contiguous(array: NDArray[Any], dtype: Any) -> NDArray[Any]:
    return np.ascontiguousarray(array, dtype)
