"""``ferrule train``: a new run, or a run resumed."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ..errors import FerruleError
from ..store import list_runs
from ..training import train
from .running import find_run, open_run, play, runs_option


@click.command("train", short_help="Train, or go on with a run.")
@click.argument("config", required=False, type=click.Path(path_type=str))
@click.option(
    "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a value: train.steps=10. May be repeated."
)
@click.option("--seed", type=int, default=None, help="The seed of the run.")
@runs_option
@click.option(
    "--resume", metavar="RUN", default=None, help="Go on with this run (its id or its folder) from its last save."
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON; progress goes to stderr.")
@click.pass_context
def command(
    ctx: click.Context,
    config: str | None,
    sets: tuple[str, ...],
    seed: int | None,
    runs: Path | None,
    resume: str | None,
    as_json: bool,
) -> None:
    """Train as CONFIG says: supervised first where it has [sft], then by reinforcement, with evaluations before,
    between and after.

    Everything is checked before a model loads. An interrupt finishes the step, saves and closes everything; a second
    one stops at once. A run that was stopped or killed goes on with --resume, under the configuration that it was
    started with, and then measures what it would have measured unbroken.
    """
    from ..config import load, load_data

    if resume is None:
        if config is None:
            raise click.UsageError("name a configuration, or a run to --resume")
        flags = [*sets, *([f"seed={seed}"] if seed is not None else [])]
        if runs is not None:
            flags.append(f"runs={json.dumps(str(runs.absolute()))}")
        loaded = load(config, flags)
        ctx.exit(play(lambda reporter, stop: train(loaded, reporter=reporter, stop=stop), as_json=as_json))
    if config is not None or sets or seed is not None:
        raise click.UsageError(
            "a resumed run goes on with the configuration that it was started with: "
            "give --resume alone, or start a new run"
        )
    folder = find_run(resume, runs)
    status = next((run.status for run in list_runs(folder.parent) if run.dir.name == folder.name), "unknown")
    if status == "done":
        raise FerruleError(f"run {folder.name!r} is done: there is nothing to resume")
    store = open_run(resume, runs, write=True)
    try:
        manifest = store.manifest
        if manifest["kind"] != "train":
            raise FerruleError(f"run {store.id!r} is an evaluation; only a training can be resumed")
        loaded = load_data(store.config_raw, manifest["config_file"])
    except BaseException:
        store.set_status("stopped")
        store.close()
        raise
    ctx.exit(play(lambda reporter, stop: train(loaded, resume=store, reporter=reporter, stop=stop), as_json=as_json))
