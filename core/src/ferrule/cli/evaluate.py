"""``ferrule eval``: play the tasks of a split and report scores."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ..training import evaluate
from .running import open_run, play, runs_option


@click.command("eval", short_help="Play the tasks of a split and report scores.")
@click.argument("config", type=click.Path(path_type=str))
@click.option(
    "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a value: eval.temperature=0.7. May be repeated."
)
@click.option("--split", default=None, help="The split to play. [default: eval.split]")
@click.option("--limit", type=click.IntRange(min=1), default=None, help="At most so many tasks.")
@click.option(
    "--mode", "modes", multiple=True, type=click.Choice(["sampled", "greedy"]), help="How to sample. May be repeated."
)
@click.option(
    "--checkpoint",
    metavar="RUN",
    default=None,
    help="Under the weights that this run (its id or its folder) saved last.",
)
@click.option(
    "--harness",
    metavar="REF",
    default=None,
    help="Play with this harness and its defaults instead of the configuration's.",
)
@click.option("--seed", type=int, default=None, help="The seed of the evaluation.")
@runs_option
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON; progress goes to stderr.")
@click.pass_context
def command(
    ctx: click.Context,
    config: str,
    sets: tuple[str, ...],
    split: str | None,
    limit: int | None,
    modes: tuple[str, ...],
    checkpoint: str | None,
    harness: str | None,
    seed: int | None,
    runs: Path | None,
    as_json: bool,
) -> None:
    """Play each task of the evaluation split of CONFIG once per mode, and report reward, accuracy and scores.

    The episodes are filed as a run of their own, which `ferrule runs` and `ferrule show` read. A harness that needs no
    model (a replay) is played without one.
    """
    from ..config import load

    flags = {
        "eval.split": split,
        "eval.limit": limit,
        "eval.modes": list(modes) or None,
        "seed": seed,
        "runs": str(runs.absolute()) if runs is not None else None,
    }
    overrides = [*sets, *(f"{key}={json.dumps(value)}" for key, value in flags.items() if value is not None)]
    if harness is not None:
        overrides.append(f"harness={{use={json.dumps(harness)}}}")
    loaded = load(config, overrides)
    store = open_run(checkpoint, runs or loaded.config.runs) if checkpoint is not None else None
    try:
        ctx.exit(
            play(
                lambda reporter, stop: evaluate(loaded, checkpoint=store, reporter=reporter, stop=stop), as_json=as_json
            )
        )
    finally:
        if store is not None:
            store.close()
