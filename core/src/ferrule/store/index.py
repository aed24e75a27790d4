"""The index over all runs of a folder, ``<runs>/index.sqlite``: where each episode lies, by ``run`` and
``train|eval/step-n``.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from ..errors import FerruleError

SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
  run TEXT PRIMARY KEY, name TEXT NOT NULL, kind TEXT NOT NULL, created TEXT NOT NULL, status TEXT NOT NULL,
  step INTEGER NOT NULL DEFAULT 0, updated REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS episodes (
  run TEXT NOT NULL, path TEXT NOT NULL, episode TEXT NOT NULL, task TEXT NOT NULL, attempt INTEGER NOT NULL,
  file TEXT NOT NULL, offset INTEGER NOT NULL, reward REAL, termination TEXT NOT NULL, failure TEXT,
  status TEXT NOT NULL CHECK (status IN ('filed', 'abandoned')),
  PRIMARY KEY (run, file, offset)
);
CREATE UNIQUE INDEX IF NOT EXISTS filed_once ON episodes (run, episode) WHERE status = 'filed';
CREATE INDEX IF NOT EXISTS by_path ON episodes (run, path);
CREATE INDEX IF NOT EXISTS by_episode ON episodes (episode);
"""


@attrs.frozen
class EpisodeRow:
    """Where an episode lies. ``file`` is relative to the run's folder; ``path`` is ``train/step-3`` and the like."""

    run: str
    path: str
    episode: str
    task: str
    attempt: int
    file: str
    offset: int
    reward: float | None
    termination: str
    failure: str | None
    status: str = "filed"


class Index:
    """Many processes may use one index at once; each change is one short transaction."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.path = root / "index.sqlite"
        self._db = sqlite3.connect(self.path, timeout=60.0, isolation_level=None)
        try:
            self._db.execute("PRAGMA busy_timeout = 60000")
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.executescript(SCHEMA)
        except sqlite3.DatabaseError as error:
            self._db.close()
            if self.path.exists() and not (os.access(root, os.W_OK) and os.access(self.path, os.W_OK)):
                self._db = self._unchanging()
                return
            raise FerruleError(
                f"{self.path} is not a readable index ({error}); move it away, and it is made anew from the runs"
            ) from None

    def _unchanging(self) -> sqlite3.Connection:
        """The index on a medium that takes no writes, for looking things up. FerruleError where it holds none."""
        db = sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None)
        try:
            db.execute("SELECT 1 FROM runs, episodes LIMIT 1")
        except sqlite3.DatabaseError as error:
            db.close()
            raise FerruleError(f"{self.path} cannot be read ({error}), and its folder takes no writes") from None
        return db

    def close(self) -> None:
        self._db.close()

    def _execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """FerruleError where the disk is full, takes no writes or fails."""
        try:
            return self._db.execute(statement, values)
        except sqlite3.OperationalError as error:
            raise FerruleError(f"{self.path}: {error}") from error

    def begin(self) -> None:
        self._execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        self._execute("COMMIT")

    def rollback(self) -> None:
        self._execute("ROLLBACK")

    def put_run(self, run: str, name: str, kind: str, created: str, status: str) -> None:
        self._execute(
            "INSERT INTO runs VALUES (?, ?, ?, ?, ?, 0, ?)"
            " ON CONFLICT (run) DO UPDATE SET status = excluded.status, updated = excluded.updated",
            (run, name, kind, created, status, time.time()),
        )

    def update_run(self, run: str, *, status: str | None = None, step: int | None = None) -> None:
        self._execute(
            "UPDATE runs SET status = coalesce(?, status), step = coalesce(?, step), updated = ? WHERE run = ?",
            (status, step, time.time(), run),
        )

    def runs(self) -> dict[str, dict[str, Any]]:
        rows = self._execute("SELECT run, name, kind, created, status, step, updated FROM runs")
        return {
            row[0]: dict(zip(("run", "name", "kind", "created", "status", "step", "updated"), row, strict=True))
            for row in rows
        }

    def insert(self, row: EpisodeRow) -> None:
        """Raises FerruleError where an episode of that id is filed already."""
        try:
            self._execute(f"INSERT INTO episodes VALUES ({', '.join('?' * 11)})", attrs.astuple(row))
        except sqlite3.IntegrityError:
            raise FerruleError(f"episode {row.episode!r} of run {row.run!r} is filed already") from None

    def known(self, run: str, file: str) -> set[int]:
        """Offsets of *file* that are in the index."""
        return {row[0] for row in self._execute("SELECT offset FROM episodes WHERE run = ? AND file = ?", (run, file))}

    def forget(self, run: str, file: str, offset: int) -> None:
        """Drop the rows of *file* at and after *offset*, whose lines were moved away."""
        self._execute("DELETE FROM episodes WHERE run = ? AND file = ? AND offset >= ?", (run, file, offset))

    def find(
        self, *, run: str | None = None, episode: str | None = None, path: str | None = None, status: str | None = None
    ) -> list[EpisodeRow]:
        """Episodes, in the order of run, path, task and attempt. *path* also finds what lies below it."""
        terms: list[str] = ["1"]
        values: list[str | int] = []
        for column, value in (("run", run), ("episode", episode), ("status", status)):
            if value is not None:
                terms.append(f"{column} = ?")
                values.append(value)
        if path is not None:
            terms.append("(path = ? OR substr(path, 1, ?) = ?)")
            values += [path, len(path) + 1, path + "/"]
        found = self._execute(
            f"SELECT * FROM episodes WHERE {' AND '.join(terms)} ORDER BY run, path, task, attempt, episode, offset",
            values,
        )
        return [EpisodeRow(*row) for row in found]

    def counts(self, run: str) -> dict[str, dict[str, Any]]:
        """Per path: how many are filed, failed and abandoned, and the mean reward of those filed."""
        rows = self._execute(
            "SELECT path, sum(status = 'filed'), sum(status = 'filed' AND failure IS NOT NULL),"
            " sum(status = 'abandoned'), avg(CASE WHEN status = 'filed' THEN reward END), min(rowid)"
            " FROM episodes WHERE run = ? GROUP BY path ORDER BY 6",
            (run,),
        )
        return {
            path: {"filed": filed, "failed": failed, "abandoned": gone, "reward": mean}
            for path, filed, failed, gone, mean, _ in rows
        }


def row_of(run: str, line: Mapping[str, Any], file: str, offset: int, status: str = "filed") -> EpisodeRow:
    """The index's row of an episode's *line* in *file*."""
    return EpisodeRow(
        run,
        line["group"],
        line["id"],
        line["task"],
        line["attempt"],
        file,
        offset,
        line["reward"],
        line["termination"],
        line["failure"],
        status,
    )


def insert_missing(
    index: Index, run: str, file: str, found: Iterable[tuple[int, Mapping[str, Any]]], status: str
) -> int:
    """Index the lines of *file* that a kill left without their row; how many."""
    known = index.known(run, file)
    missing = [
        row_of(run, line, file, offset, status) for offset, line in found if offset not in known and "id" in line
    ]
    for row in missing:
        index.insert(row)
    return len(missing)
