"""A run's folder: its manifest and configuration, metrics, episodes, checkpoints and the loop's position."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs

from ..config.secrets import redacted
from ..data import Episode, ModelSpec, RunInfo
from ..errors import CheckpointError, FerruleError
from .codec import Decode, episode_to_line
from .ids import new_run_id, run_folder
from .index import EpisodeRow, Index, insert_missing, row_of
from .jsonl import JsonLines, dumps, lines, read_at, repair, set_aside, write_atomically

METRICS = "metrics.jsonl"


@attrs.frozen
class Rewound:
    """What :meth:`RunStore.rewind` moved aside: episodes and lines of metrics that came after the checkpoint."""

    episodes: int = 0
    metrics: int = 0


class RunStore:
    """One run's folder, written by one process at a time.

    ``manifest.json`` what it is made of; ``config.json`` the configuration as given (readable by its owner alone, as it
    may hold secrets); ``metrics.jsonl``; ``episodes/<stage>.jsonl``; ``checkpoints/``; ``state.json`` the position to
    resume from.
    """

    def __init__(self, root: Path, run_id: str) -> None:
        self.root, self.id, self.dir = root, run_id, root / run_id
        self._files: dict[str, JsonLines] = {}
        self._index: Index | None = None
        self._lock: int | None = None

    @classmethod
    def create(
        cls, root: Path, name: str, config_raw: Mapping[str, Any], manifest: Mapping[str, Any], *, kind: str = "train"
    ) -> RunStore:
        """A new folder below *root*, whose name no other run has; this process holds it until :meth:`close`."""
        root = root.absolute()
        index = Index(root)  # first, so that one that cannot be read leaves no folder of a run that never was
        while True:
            store = cls(root, new_run_id(name))
            store._index = index
            try:
                store.dir.mkdir()  # exclusive: of two runs of one second and one draw, the second draws again
                break
            except FileExistsError:
                continue
        created = datetime.now(UTC).isoformat(timespec="milliseconds")  # two runs of one second keep their order
        whole = {
            "run": store.id,
            "name": name,
            "kind": kind,
            "created": created,
            **manifest,
            "config": redacted(config_raw),
        }
        (store.dir / "episodes").mkdir()
        (store.dir / "checkpoints").mkdir()
        write_atomically(store.dir / "config.json", dumps(config_raw).encode(), mode=0o600)
        write_atomically(store.dir / "manifest.json", json.dumps(whole, indent=2, default=str).encode())
        store.hold()
        store.index.put_run(store.id, name, kind, created, "running")
        return store

    @classmethod
    def open(cls, place: Path, run_id: str | None = None, *, write: bool = False) -> RunStore:
        """The run *run_id* below *place*, or the run whose folder *place* is. *write* holds it: FerruleError where
        another process does.
        """
        folder = run_folder(place, run_id) if run_id is not None else place
        if not (folder / "manifest.json").is_file():
            raise FerruleError(f"{folder} is not the folder of a run: it has no manifest.json")
        folder = folder.absolute()
        store = cls(folder.parent, folder.name)
        if write:
            store.hold()
            manifest = store.manifest
            store.index.put_run(store.id, manifest["name"], manifest["kind"], manifest["created"], "running")
        return store

    # -- who writes -----------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Be the one process that writes this run. Raises FerruleError where another one is."""
        import fcntl

        descriptor = os.open(self.dir / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        for last in (False, False, False, True):  # a listing of runs holds the lock for an instant, too
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                busy = error.errno in (errno.EWOULDBLOCK, errno.EACCES)
                if busy and not last:
                    time.sleep(0.05)
                    continue
                os.close(descriptor)
                if not busy:
                    raise
                raise FerruleError(f"run {self.id!r} is being written by another process") from None
        self._lock = descriptor

    @property
    def held(self) -> bool:
        """Whether any process is writing this run now."""
        if self._lock is not None:
            return True
        import fcntl

        if not (self.dir / ".lock").exists():
            return False
        with (self.dir / ".lock").open("r") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return True
        return False

    def close(self) -> None:
        """Make all that was written last, and let the run go."""
        for file in self._files.values():
            file.sync()
            file.close()
        self._files.clear()
        if self._index is not None:
            self._index.close()
            self._index = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # -- what it is -----------------------------------------------------------------------------------------------

    @property
    def index(self) -> Index:
        if self._index is None:
            self._index = Index(self.root)
        return self._index

    @property
    def manifest(self) -> dict[str, Any]:
        return self._read("manifest.json")

    @property
    def config_raw(self) -> dict[str, Any]:
        """The configuration as it was given, secrets included."""
        return self._read("config.json")

    def _read(self, name: str) -> dict[str, Any]:
        try:
            return dict(json.loads((self.dir / name).read_bytes()))
        except OSError as error:
            raise FerruleError(f"{self.dir / name} cannot be read: {error.strerror}") from error
        except (ValueError, TypeError) as error:
            raise FerruleError(f"{self.dir / name} is damaged ({error}); the run cannot be read") from error

    def info(self, seed: int, model: ModelSpec, config_dir: Path) -> RunInfo:
        return RunInfo(self.id, self.dir, seed, model, config_dir)

    def set_status(self, status: str, step: int | None = None) -> None:
        """``running``, ``done``, ``stopped`` or ``failed``."""
        self.index.update_run(self.id, status=status, step=step)

    # -- what happens ---------------------------------------------------------------------------------------------

    def _file(self, name: str) -> JsonLines:
        if name not in self._files:
            repair(self.dir / name)
            self._files[name] = JsonLines(self.dir / name)
        return self._files[name]

    def file_episode(self, episode: Episode, decode: Decode | None = None) -> EpisodeRow:
        """Write *episode* under its ``group`` (``train/step-3``), once: FerruleError where its id is filed already."""
        name = f"episodes/{episode.group.split('/')[0] or 'other'}.jsonl"
        file, line = self._file(name), episode_to_line(episode, decode)
        row = row_of(self.id, line, name, file.size)
        text = dumps(line)
        self.index.begin()
        try:
            self.index.insert(row)
            file.append(text)
        except BaseException:
            with contextlib.suppress(FerruleError):  # a full disk may have rolled back already
                self.index.rollback()
            raise
        self.index.commit()
        return row

    def write_metrics(self, stage: str, step: int, metrics: Mapping[str, float], **labels: Any) -> None:
        """One line: ``{"stage", "step", labels, "time", metric: value, …}``."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._file(METRICS).append(dumps({"stage": stage, "step": step, **labels, "time": now, **metrics}))

    def metrics(self) -> Iterator[dict[str, Any]]:
        for _, line in lines(self.dir / METRICS):
            yield line

    def read_episode(self, row: EpisodeRow) -> dict[str, Any]:
        """The line that *row* points to."""
        line = read_at(self.dir / row.file, row.offset)
        if line.get("id") != row.episode:
            raise FerruleError(f"{self.dir / row.file} holds another episode at byte {row.offset} than the index says")
        return line

    # -- position and resume --------------------------------------------------------------------------------------

    def mark(self) -> dict[str, int]:
        """How far each file goes now, in bytes: everything before it belongs to the position that is saved with it."""
        names = [
            METRICS,
            *(
                f"episodes/{p.name}"
                for p in sorted((self.dir / "episodes").glob("*.jsonl"))
                if ".abandoned-" not in p.name
            ),
        ]
        return {name: (self.dir / name).stat().st_size for name in names if (self.dir / name).exists()}

    def save_state(self, state: Mapping[str, Any]) -> None:
        """Replace ``state.json`` by *state* at once, after all that was written before it is safe on the disk."""
        for file in self._files.values():
            file.sync()
        write_atomically(self.dir / "state.json", json.dumps(state, indent=1).encode())

    def load_state(self) -> dict[str, Any] | None:
        """The last position saved; None where the run was ended before its first."""
        path = self.dir / "state.json"
        if not path.exists():
            return None
        try:
            return dict(json.loads(path.read_bytes()))
        except (ValueError, TypeError) as error:
            raise CheckpointError(f"{path} cannot be read ({error}); the run cannot be resumed") from None

    def rewind(self, offsets: Mapping[str, int]) -> Rewound:
        """Go back to :meth:`mark` *offsets*: later episodes are marked abandoned, later lines of metrics are cut, both
        moved aside.
        """
        episodes = metrics = 0
        for file in self._files.values():
            file.close()
        self._files.clear()
        for name in self.mark():
            path, offset = self.dir / name, offsets.get(name, 0)
            repair(path)
            if path.stat().st_size < offset:
                raise CheckpointError(f"{path} is shorter than when the checkpoint was made; the run cannot be resumed")
            aside = set_aside(path, offset)
            if name == METRICS:
                metrics = sum(1 for _ in lines(aside)) if aside else 0
                continue
            self.index.begin()
            try:
                self.index.forget(self.id, name, offset)
                insert_missing(self.index, self.id, name, lines(path), "filed")
                for old in sorted(path.parent.glob(f"{path.stem}.abandoned-*.jsonl")):
                    gone = insert_missing(self.index, self.id, f"episodes/{old.name}", lines(old), "abandoned")
                    episodes += gone if old == aside else 0
            except BaseException:
                self.index.rollback()
                raise
            self.index.commit()
        return Rewound(episodes, metrics)
