"""Names of runs: made so that two never collide, and read so that none leads out of the folder of runs."""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote

from ..errors import FerruleError

_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
_LONGEST = 200
"""Bytes of a run's name in its folder's, which no file system lets grow beyond 255."""


def new_run_id(name: str) -> str:
    """``<name>-<utc yyyymmdd-hhmmss>-<4 random characters>``; in *name*, what is neither a word character nor one of
    ``.@#+=-`` becomes ``-``, and a very long one is cut.
    """
    clean = re.sub(r"[^\w.@#+=-]+", "-", name).strip(".-") or "run"
    clean = re.sub(r"\.\.+", ".", clean)
    clean = clean.encode()[:_LONGEST].decode(errors="ignore").rstrip(".-")
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return f"{clean}-{stamp}-{''.join(secrets.choice(_ALPHABET) for _ in range(4))}"


def run_folder(root: Path, run_id: str) -> Path:
    """The folder of *run_id*, as it stands in an address or on a command line, below *root*.

    Decodes percent signs first and only then refuses ``..``, separators and what lies outside *root*. Raises
    FerruleError where there is no such run.
    """
    decoded = run_id
    for _ in range(3):  # decoded until nothing is left to decode, so that %252e%252e is no way round
        further = unquote(decoded)
        if further == decoded:
            break
        decoded = further
    if not decoded or decoded in (".", "..") or any(c in decoded for c in "/\\\0") or unquote(decoded) != decoded:
        raise FerruleError(f"{run_id!r} is not the id of a run")
    folder = root / decoded
    if folder.resolve().parent != root.resolve():
        raise FerruleError(f"{run_id!r} leads outside {root}")
    if not (folder / "manifest.json").is_file():
        raise FerruleError(f"there is no run {decoded!r} in {root}; `ferrule runs list --runs {root}` lists them")
    return folder
