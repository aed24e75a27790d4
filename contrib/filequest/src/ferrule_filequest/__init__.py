"""FileQuest: tasks in files, for an agent with a shell in a sandbox."""

from __future__ import annotations

from pathlib import Path

__all__ = ["home"]


def home() -> Path:
    """The folder of ``bundle/`` and of the configurations: beside this package once installed, else the checkout's.

    Raises FileNotFoundError where neither is there.
    """
    here = Path(__file__).resolve().parent
    for folder in (here / "recipe", here.parents[1]):
        if (folder / "bundle" / "bundle.toml").is_file():
            return folder
    raise FileNotFoundError(
        f"no FileQuest bundle beside {here}: install ferrule-filequest again, or run from a checkout"
    )
