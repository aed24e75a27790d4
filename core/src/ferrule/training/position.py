"""Where the loop stands: all that a resumed run must know beside the trainer's own checkpoint."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from ..data import Checkpoint
from ..errors import CheckpointError
from ..store import RunStore

VERSION = 1


@attrs.define
class Position:
    """Changed only when a whole unit of work is done (an SFT step, an RL step, an evaluation), so that it can be saved
    at any time.

    ``step`` counts RL steps; ``optimizer_steps`` those at which weights changed; ``evaluated`` the evaluations done, by
    label. ``checkpoint`` is the trainer's state that belongs to it, None for the model as the trainer starts it.
    """

    sft_step: int = 0
    sft_done: bool = False
    sft_rewards: list[float] = attrs.field(factory=list)
    step: int = 0
    optimizer_steps: int = 0
    evaluated: list[str] = attrs.field(factory=list)
    evals: list[dict[str, Any]] = attrs.field(factory=list)
    dropped: Counter[str] = attrs.field(factory=Counter, converter=Counter)
    skipped: Counter[str] = attrs.field(factory=Counter, converter=Counter)
    warnings: list[str] = attrs.field(factory=list)
    episodes: int = 0
    seconds: float = 0.0
    offsets: dict[str, int] = attrs.field(factory=dict)
    checkpoint: Checkpoint | None = None
    kept: list[Checkpoint] = attrs.field(factory=list)

    @property
    def unit(self) -> tuple[bool, int, int]:
        """What the weights depend on: two positions of equal unit have the same weights."""
        return self.sft_done, self.sft_step, self.step

    def to_state(self, folder: Path) -> dict[str, Any]:
        """Plain data; paths below *folder* relative, so that a run's folder can be moved."""
        state = attrs.asdict(self, recurse=False)
        state["checkpoint"] = None if self.checkpoint is None else _write(self.checkpoint, folder)
        state["kept"] = [_write(checkpoint, folder) for checkpoint in self.kept]
        return {"version": VERSION, **state, "dropped": dict(self.dropped), "skipped": dict(self.skipped)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], folder: Path) -> Position:
        if state.get("version") != VERSION:
            raise CheckpointError(
                f"{folder / 'state.json'} has version {state.get('version')}, and this Ferrule reads {VERSION}"
            )
        try:
            fields = {field.name: state[field.name] for field in attrs.fields(cls)}
            fields["checkpoint"] = None if state["checkpoint"] is None else _read(state["checkpoint"], folder)
            fields["kept"] = [_read(item, folder) for item in state["kept"]]
            return cls(**fields)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{folder / 'state.json'} is damaged ({type(error).__name__}: {error}); the run cannot be resumed"
            ) from error


def _write(checkpoint: Checkpoint, folder: Path) -> dict[str, Any]:
    path = Path(checkpoint.path)
    inside = path.is_absolute() and path.is_relative_to(folder)
    return {
        **attrs.asdict(checkpoint),
        "path": str(path.relative_to(folder)) if inside else checkpoint.path,
        "inside": inside,
    }


def _read(item: Mapping[str, Any], folder: Path) -> Checkpoint:
    path = str(folder / item["path"]) if item["inside"] else item["path"]
    if item["inside"] and not Path(path).exists():
        raise CheckpointError(f"the checkpoint {path} is gone")
    return Checkpoint(path, item["step"], dict(item["metadata"]))


def save(store: RunStore, position: Position) -> None:
    """Write *position* to the run's ``state.json``."""
    store.save_state(position.to_state(store.dir))


def keep_only(store: RunStore, position: Position, count: int) -> None:
    """Forget all but the last *count* checkpoints, and remove those that lie in the run's folder; called after the
    state was saved.
    """
    while len(position.kept) > count:
        _remove(position.kept.pop(0), store.dir)


def sweep(store: RunStore, position: Position) -> None:
    """Remove what a killed run saved and no longer came to write down."""
    known = {Path(checkpoint.path).resolve() for checkpoint in position.kept}
    for path in (store.dir / "checkpoints").glob("*"):
        if path.resolve() not in known:
            _remove(Checkpoint(str(path)), store.dir)


def _remove(checkpoint: Checkpoint, folder: Path) -> None:
    path = Path(checkpoint.path)
    if not path.is_absolute() or not path.is_relative_to(folder / "checkpoints") or path == folder / "checkpoints":
        return
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
