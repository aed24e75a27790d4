"""A configuration of toy plugins that passes every check, to be spoiled one way at a time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ferrule.config import Loaded, load
from ferrule.errors import ConfigError
from ferrule.plugins import Registry

SOUND = """\
name = "toy"

[taskset]
use = "toy"
path = "tasks.json"

[harness]
use = "toy_tools"

[trainer]
use = "toy"
threads = 2

[trainer.tiny]
layers = 3

[renderer]
use = "toy"

[advantage]
use = "toy_grpo"

[[losses]]
use = "toy_echo"
coef = 0.1

[train]
steps = 4
"""

TASKS = {"train": [{"id": "t1"}, {"id": "t2"}], "eval": [{"id": "e1"}]}


@pytest.fixture
def project(site, tmp_path: Path) -> Path:
    """A folder with ``run.toml`` and ``tasks.json``, the toy plugins being installed."""
    site.toy()
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "tasks.json").write_text(json.dumps(TASKS))
    (folder / "run.toml").write_text(SOUND)
    return folder


@pytest.fixture
def registry(site) -> Registry:
    return Registry.discover([str(site.path)])


@pytest.fixture
def loads(project: Path, site) -> Callable[..., Loaded]:
    """Load the sound configuration with a piece of it replaced, text added, and overrides."""

    def call(*sets: str, replace: tuple[str, str] = ("", ""), add: str = "", tasks: object = None) -> Loaded:
        if tasks is not None:
            (project / "tasks.json").write_text(json.dumps(tasks))
        assert replace[0] in SOUND
        (project / "run.toml").write_text(SOUND.replace(*replace, 1) + add if replace[0] else SOUND + add)
        return load(project / "run.toml", sets, Registry.discover([str(site.path)]))

    return call


@pytest.fixture
def problems(loads) -> Callable[..., list[str]]:
    """What is wrong, one text for each mistake: ``line path: message``."""

    def call(*sets: str, **changes: object) -> list[str]:
        try:
            loads(*sets, **changes)
        except ConfigError as error:
            return [f"{p.line or p.source} {p.where}: {p.message}" for p in error.problems]
        return []

    return call
