"""Keys and values of many conversations in one tensor, so that all of them decode together.

Rows are right-aligned: the context of row b lies at the physical positions ``[end - lens[b], end)``, and all rows are
written at the same place. Where a row begins is hidden from attention by a bias; rotary positions are logical ones,
so a row may be moved about freely.
"""

from __future__ import annotations

import torch

HIDDEN = -1e30
"""Added to the attention scores of positions that a row does not have. Finite, so that a row of none gives no NaN."""


class KVBatch:
    """``store`` is [layers, 2, rows, kv heads, positions, head size]; rows and positions grow as needed."""

    def __init__(self, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> None:
        self.layers, self.heads, self.size = shape
        self.dtype, self.device = dtype, device
        self.clear()

    def clear(self) -> None:
        """Forget all rows, and their memory: what is left behind must never be multiplied by a zero weight as NaN."""
        self.store = torch.zeros(self.layers, 2, 0, self.heads, 0, self.size, dtype=self.dtype, device=self.device)
        self.lens: list[int] = []
        self.end = 0

    @property
    def start(self) -> int:
        """The first physical position that any row has."""
        return self.end - max(self.lens, default=0)

    def view(self) -> torch.Tensor:
        """The store's rows that are in use."""
        return self.store[:, :, : len(self.lens)]

    def reserve(self, rows: int, positions: int) -> None:
        """Make room for *rows* in all and for *positions* more behind ``end``, dropping what lies before every row."""
        have_rows, have_positions = self.store.shape[2], self.store.shape[4]
        start = self.start
        used = self.end - start
        if rows <= have_rows and self.end + positions <= have_positions:
            return
        if rows <= have_rows and used + positions <= have_positions * 3 // 4:
            self.store[..., :used, :] = self.store[..., start : self.end, :].clone()
        else:
            rows = rows if rows <= have_rows else max(rows, min(2 * have_rows, have_rows + 64))
            if used + positions > have_positions:
                have_positions = max(64, (used + positions) * 3 // 2)
            fresh = self.store.new_zeros(self.layers, 2, max(rows, have_rows), self.heads, have_positions, self.size)
            n = len(self.lens)
            fresh[:, :, :n, :, :used] = self.store[:, :, :n, :, start : self.end]
            self.store = fresh
        self.end = used

    def append(self, piece: torch.Tensor) -> int:
        """Add a row that holds *piece*, [layers, 2, kv heads, n, head size]; its index."""
        n = piece.shape[3]
        # from where the contexts would end once moved to the front, as making room may do
        self.reserve(len(self.lens) + 1, max(0, n - (self.end - self.start)))
        if n > self.end:
            self._move_right(n - self.end)
        row = len(self.lens)
        self.lens.append(n)
        if n:
            self.store[:, :, row, :, self.end - n : self.end] = piece
        return row

    def _move_right(self, by: int) -> None:
        rows, start = len(self.lens), self.start
        self.store[:, :, :rows, :, start + by : self.end + by] = self.store[:, :, :rows, :, start : self.end].clone()
        self.end += by

    def piece(self, row: int) -> torch.Tensor:
        """A view of one row's keys and values, [layers, 2, kv heads, n, head size]."""
        return self.store[:, :, row, :, self.end - self.lens[row] : self.end]

    def crop(self, row: int, keep: int) -> None:
        """Forget all but the first *keep* tokens of *row*."""
        n = self.lens[row]
        if keep == n:
            return
        begin = self.end - n
        self.store[:, :, row, :, self.end - keep : self.end] = self.store[:, :, row, :, begin : begin + keep].clone()
        self.lens[row] = keep

    def remove(self, row: int) -> int | None:
        """Drop *row*; the last row takes its place, and its old index is returned where there was one to move."""
        last = len(self.lens) - 1
        n = self.lens.pop()
        if row == last:
            return None
        self.store[:, :, row, :, self.end - n : self.end] = self.store[:, :, last, :, self.end - n : self.end]
        self.lens[row] = n
        return last

    def advance(self, by: int) -> None:
        """*by* tokens were written behind every row."""
        self.end += by
        self.lens = [n + by for n in self.lens]

    def bias(self, positions: int) -> torch.Tensor | None:
        """float[rows, end + positions], ``HIDDEN`` before a row's beginning; None where all rows begin together."""
        if not self.lens or min(self.lens) == max(self.lens):
            return None
        return self.bias_for([self.end - n for n in self.lens], self.end + positions)

    def bias_for(self, begins: list[int], positions: int) -> torch.Tensor:
        """float[rows, positions]: ``HIDDEN`` before each of *begins*, 0 from there."""
        where = torch.arange(positions, device=self.device)
        return torch.where(where >= torch.tensor(begins, device=self.device)[:, None], 0.0, HIDDEN).to(self.dtype)
