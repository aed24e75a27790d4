"""Workers in other processes get plain data and resolve it again."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

LOSS = """
import attrs
import numpy as np

import ferrule


class LengthTax(ferrule.AuxLoss, name="length_tax"):
    @attrs.frozen
    class Config(ferrule.AuxLoss.Config):
        knee: int = 64

    def weight(self, row, ctx):
        return (np.arange(len(row)) > self.config.knee).astype(np.float32)
"""

WORKER = '''
import os

import numpy as np

import ferrule
from ferrule.config import load_data


def weights(raw, path, length):
    """What the configuration's first loss gives a row of *length* tokens, where it came from, and where this process is."""
    loaded = load_data(raw, path)
    loss = loaded.config.losses[0].make()
    row = ferrule.Row(*(np.zeros(length, kind) for kind in ("int32", "uint8", "float32", "int32")))
    (line,) = [line for line in loaded.registry.manifest() if line["kind"] == "loss"]
    return loss.weight(row, ferrule.LossContext()).tolist(), loss.config.coef, line["sha256"], os.getcwd()
'''


def test_a_loss_in_a_users_file_works_in_a_spawned_worker_started_from_another_directory(
    site, loads, project, tmp_path
):
    (project / "my_losses.py").write_text(LOSS)
    site.add("acme-worker", modules={"acme_worker": WORKER})
    loaded = loads(replace=('use = "toy_echo"\ncoef = 0.1', 'use = "my_losses.py:LengthTax"\ncoef = 0.5\nknee = 2'))
    raw, elsewhere = json.loads(json.dumps(loaded.raw)), tmp_path / "elsewhere"
    elsewhere.mkdir()
    worker = importlib.import_module("acme_worker")
    here = worker.weights(raw, str(loaded.path), 5)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), os.chdir, (elsewhere,)) as pool:
        there = pool.submit(worker.weights, raw, str(loaded.path), 5).result(timeout=60)
    assert there == ([0.0, 0.0, 0.0, 1.0, 1.0], 0.5, here[2], str(elsewhere))
    assert here[:2] == there[:2]
