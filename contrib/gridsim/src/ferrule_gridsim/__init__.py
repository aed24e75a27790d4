"""GridSim: the recipe that trains a small agent to schedule a battery."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["demonstrations", "home"]


def home() -> Path:
    """The folder of the recipe (``train.toml``, ``bundle/``, ``tokenizer/``): beside this package once installed,
    else the checkout's.

    Raises FileNotFoundError where neither is there.
    """
    here = Path(__file__).resolve().parent
    for folder in (here / "recipe", here.parents[1]):
        if (folder / "bundle" / "bundle.toml").is_file():
            return folder
    raise FileNotFoundError(f"no GridSim recipe beside {here}: install ferrule-gridsim again, or run from a checkout")


def demonstrations(split: str, count: int, seed: int) -> Sequence[Any]:
    """*count* of the bundle's demonstrations (:class:`ferrule.Demonstration`) on days of *split*, a function of *seed*."""
    from ferrule_taskset_bundle import BundleTaskset

    return BundleTaskset(BundleTaskset.Config(path=home() / "bundle")).demonstrations(split, count, seed)
