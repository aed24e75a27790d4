"""A checkpoint is a folder that appears whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ferrule import CheckpointError

FORMAT = 1


def write_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Let *fill* write into a folder beside *path*, bring it to the disk, and put it in the place of *path*."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh, old = (path.with_name(f".{path.name}.{word}-{os.getpid()}") for word in ("new", "old"))
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    try:
        fill(fresh)
        for file in fresh.rglob("*"):
            if file.is_file():
                _sync(file)
        _sync(fresh)
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
            path.rename(old)
        fresh.rename(path)
        _sync(path.parent)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save(path: Path, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> None:
    """Write each set of *tensors* as ``<name>.safetensors`` and *state*, plain data, as JSON with the files' sizes."""

    def fill(folder: Path) -> None:
        for name, these in tensors.items():
            whole = {k: v.detach().cpu().contiguous() for k, v in these.items()}
            try:
                save_file(whole, folder / f"{name}.safetensors")
            except SafetensorError as error:  # a full disk, too, comes as one
                raise CheckpointError(f"checkpoint {path}: {name} cannot be written: {error}") from error
        sizes = {f.name: f.stat().st_size for f in sorted(folder.iterdir())}
        text = json.dumps({"format": FORMAT, "files": sizes, **state}, indent=1)
        (folder / "state.json").write_text(text, encoding="utf-8")

    write_folder(path, fill)


def load(path: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """What :func:`save` wrote. Raises CheckpointError where a file is missing, cut short or not of this format."""
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        what = (
            "has no state.json: it is incomplete or no checkpoint of this trainer"
            if path.is_dir()
            else "does not exist"
        )
        raise CheckpointError(f"checkpoint {path} {what}") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"checkpoint {path}: state.json cannot be read: {error}") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"checkpoint {path} is not of format {FORMAT}, which this version writes")
    tensors = {}
    for name, size in state["files"].items():
        file = path / name
        have = file.stat().st_size if file.is_file() else None
        if have != size:
            what = "is missing" if have is None else f"has {have} bytes where {size} were written"
            raise CheckpointError(f"checkpoint {path} is incomplete: {name} {what}")
        try:
            tensors[file.stem] = load_file(file)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"checkpoint {path}: {name} cannot be read: {error}") from error
    return tensors, state
