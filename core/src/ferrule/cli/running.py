"""What ``train`` and ``eval`` share: finding a run, playing under signals, and the end of it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import click

from ..errors import FerruleError
from ..store import RunStore, run_folder
from ..training import Reporter, StopFlag, Summary, on_signals
from .output import emit
from .progress import reporter_for

runs_option = click.option(
    "--runs",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    envvar="FERRULE_RUNS",
    show_envvar=True,
    help="The folder of runs. [default: ./runs; with a CONFIG, what it says]",
)


def find_run(text: str, runs: Path | None) -> Path:
    """The folder of the run that *text* names: a path to it, or an id below *runs*."""
    folder = Path(text)
    if (folder / "manifest.json").is_file():
        return folder.absolute()
    return run_folder((runs or Path("runs")).absolute(), text)


def open_run(text: str, runs: Path | None, *, write: bool = False) -> RunStore:
    return RunStore.open(find_run(text, runs), write=write)


def play(work: Callable[[Reporter, StopFlag], Coroutine[Any, Any, Summary]], *, as_json: bool) -> int:
    """Run *work* under the signals; the exit code. With *as_json* all but the summary goes to stderr."""
    reporter = reporter_for(sys.stderr if as_json else sys.stdout)

    async def main() -> Summary:
        stop, task = StopFlag(), asyncio.current_task()
        assert task is not None
        with on_signals(stop, task, reporter.say):
            return await work(reporter, stop)

    try:
        # Observers may print; where a program reads stdout, that is not for it.
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            summary = asyncio.run(main())
    except asyncio.CancelledError:
        return 130
    except SystemExit as error:  # a plugin's: let through, a run that failed would end as if all were well
        raise FerruleError(f"something in the run called sys.exit({error.code!r})") from error
    if as_json:
        emit(summary.to_dict())
    return 130 if summary.status == "stopped" else 0
