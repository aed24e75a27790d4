"""Looking runs and episodes up in a folder of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs

from ..errors import FerruleError
from .index import EpisodeRow, Index
from .runs import RunStore

SHOWN = 12
"""How many episodes a message lists."""


@attrs.frozen
class RunSummary:
    """A run in a listing. ``status`` is ``killed`` where it says running and nobody writes it."""

    run: str
    name: str
    kind: str
    created: str
    status: str
    step: int
    dir: Path

    def to_dict(self) -> dict[str, Any]:
        return {**attrs.asdict(self), "dir": str(self.dir)}


def list_runs(root: Path) -> list[RunSummary]:
    """Every run in *root*, oldest first. The folders say what there is, so that a lost index hides none."""
    if not root.is_dir():
        return []
    known = {}
    if (root / "index.sqlite").exists():
        index = Index(root)
        try:
            known = index.runs()
        finally:
            index.close()
    out = []
    for path in root.glob("*/manifest.json"):
        try:
            store = RunStore.open(path.parent)
            manifest = store.manifest
            row = known.get(store.id, {})
            status = row.get("status", "unknown")
            if status == "running" and not store.held:
                status = "killed"
            out.append(
                RunSummary(
                    store.id,
                    manifest["name"],
                    manifest["kind"],
                    manifest["created"],
                    status,
                    row.get("step", 0),
                    path.parent,
                )
            )
        except (FerruleError, OSError, ValueError, KeyError, TypeError):  # a folder that only looks like a run
            continue
    return sorted(out, key=lambda run: (run.created, run.run))


def find_episodes(root: Path, episode_id: str) -> list[EpisodeRow]:
    """The episodes that *episode_id* names: ``<run>/<episode>``, or its id alone, which several runs may have."""
    if not (root / "index.sqlite").exists():
        return []
    index = Index(root)
    try:
        found = index.find(episode=episode_id)
        run, _, rest = episode_id.partition("/")
        if not found and rest:
            found = index.find(run=run, episode=rest)
        return found
    finally:
        index.close()


def _below(root: Path, path: str) -> list[EpisodeRow]:
    """The filed episodes of a run, or of a path (``eval/step-20``) of one run or of all."""
    if not (root / "index.sqlite").exists():
        return []
    index = Index(root)
    try:
        run, _, rest = path.strip("/").partition("/")
        return index.find(path=path.strip("/"), status="filed") or index.find(
            run=run, path=rest or None, status="filed"
        )
    finally:
        index.close()


def find_episode(root: Path, episode_id: str) -> tuple[EpisodeRow, dict[str, Any]]:
    """The one episode that *episode_id* names, and its line. Of those filed and abandoned under one id, the filed one.

    Raises FerruleError where there is none, or several runs have one of that id: it then says how to tell them apart.
    """
    found = find_episodes(root, episode_id)
    filed = [row for row in found if row.status == "filed"]
    found = filed or found[-1:]
    if not found:
        below = _below(root, episode_id)
        if not below:
            raise FerruleError(f"no episode {episode_id!r} in the runs of {root.absolute()}")
        names = [f"  {row.run}/{row.episode}" for row in below[:SHOWN]]
        more = [f"  … and {len(below) - SHOWN} more"] if len(below) > SHOWN else []
        raise FerruleError("\n".join([f"{episode_id!r} holds {len(below)} episodes; name one:", *names, *more]))
    if len(found) > 1:
        names = "\n".join(f"  {row.run}/{row.episode}" for row in found)
        raise FerruleError(f"several runs have an episode {episode_id!r}; name one of:\n{names}")
    store = RunStore.open(root, found[0].run)
    try:
        return found[0], store.read_episode(found[0])
    finally:
        store.close()
