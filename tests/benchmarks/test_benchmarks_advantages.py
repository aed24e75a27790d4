"""The estimators stay vectorised: over many groups they take a small multiple of what plain numpy takes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import ferrule_advantage_grpo
import numpy as np
import pytest

import ferrule


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_advantages", Path(__file__).with_name("bench_advantages.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_estimating_many_groups_costs_a_small_multiple_of_the_floor(bench):
    found = bench.bench_estimators(groups=20_000, repeats=5)
    # Measured at 0.4 to 3 times; one Python step per trajectory would be over 50.
    assert all(found[name] < 10 * found["floor"] for name in found), found


def test_the_floor_and_the_estimator_agree(bench):
    rewards = np.random.default_rng(1).integers(0, 5, 800) / 4
    batch = ferrule.RewardBatch(rewards, np.repeat(np.arange(100), 8))
    found = ferrule_advantage_grpo.Grpo(ferrule_advantage_grpo.Grpo.Config()).estimate(batch)
    np.testing.assert_allclose(found, bench.floor(rewards), atol=1e-12)
