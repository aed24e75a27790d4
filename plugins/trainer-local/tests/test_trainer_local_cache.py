from __future__ import annotations

import random

import pytest
import torch
from ferrule_trainer_local.cache import KVBatch


def fresh() -> KVBatch:
    return KVBatch((2, 1, 2), torch.float32, torch.device("cpu"))


def piece(n: int) -> torch.Tensor:
    return torch.randn(2, 2, 1, n, 2)


def test_a_long_row_joins_short_ones_that_stand_far_back():
    batch, short = fresh(), piece(80)
    batch.append(short)
    batch.crop(0, 5)
    room = batch.store.shape[4]
    long = piece(room + 10)
    batch.append(long)
    assert torch.equal(batch.piece(0), short[:, :, :, :5])
    assert torch.equal(batch.piece(1), long)


@pytest.mark.parametrize("seed", range(3))
def test_rows_keep_what_was_written_whatever_joins_leaves_grows_and_is_cropped(seed):
    rng, batch, rows = random.Random(seed), fresh(), []
    torch.manual_seed(seed)
    for _ in range(250):
        kind = rng.choice(["append", "append", "remove", "crop", "crop", "advance"])
        if kind == "append" and len(rows) < 6:
            rows.append(piece(rng.choice([0, 1, 30, 150])))
            assert batch.append(rows[-1]) == len(rows) - 1
        elif kind == "remove" and rows:
            row, last = rng.randrange(len(rows)), rows.pop()
            assert batch.remove(row) == (len(rows) if row < len(rows) else None)
            if row < len(rows):
                rows[row] = last
        elif kind == "crop" and rows:
            row = rng.randrange(len(rows))
            keep = rng.randint(0, rows[row].shape[3])
            batch.crop(row, keep)
            rows[row] = rows[row][:, :, :, :keep]
        elif kind == "advance" and rows:
            width = rng.randint(1, 20)
            batch.reserve(len(rows), width)
            new = torch.randn(2, 2, len(rows), 1, width, 2)
            batch.view()[..., batch.end : batch.end + width, :] = new
            batch.advance(width)
            rows = [torch.cat([old, new[:, :, i]], 3) for i, old in enumerate(rows)]
        for i, row in enumerate(rows):
            assert torch.equal(batch.piece(i), row)
