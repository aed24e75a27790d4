"""``ferrule runs``: what was run, and what became of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import click

from ..store import RunStore, list_runs
from .output import emit, heading, table
from .progress import headline
from .running import open_run, runs_option


@click.group("runs", short_help="List runs, or show one.")
def command() -> None:
    """List runs, or show one."""


@command.command("list")
@runs_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def list_command(runs: Path | None, as_json: bool) -> None:
    """Every run of a folder, oldest first, with its status: running, done, stopped, failed, or killed."""
    found = list_runs(runs or Path("runs"))
    if as_json:
        emit([run.to_dict() for run in found])
        return
    if not found:
        click.echo(f"no runs in {(runs or Path('runs')).absolute()}; --runs names another folder of runs", err=True)
        return
    table(
        ["run", "kind", "status", "step", "created"],
        [[run.run, run.kind, run.status, run.step, run.created] for run in found],
    )


@command.command("show")
@click.argument("run")
@runs_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def show_command(run: str, runs: Path | None, as_json: bool) -> None:
    """What RUN (its id or its folder) is made of, its evaluations, its episodes by step, and what was dropped."""
    store = open_run(run, runs)
    try:
        shown = _describe(store)
    finally:
        store.close()
    if as_json:
        emit(shown)
        return
    for name in ("run", "kind", "status", "created", "ferrule", "python", "seed", "config_file", "dir"):
        click.echo(f"{name}: {shown[name]}")
    plugins = [
        [p["kind"], p["reference"], p["distribution"] or p["file"] or "", p["version"] or (p["sha256"] or "")[:12]]
        for p in shown["plugins"]
    ]
    heading("\nplugins")
    table(["kind", "reference", "distribution", "version"], plugins)
    if shown["evals"]:
        names = list(dict.fromkeys(name for figures in shown["evals"] for name in figures if headline(name)))
        heading("\nevaluations")
        table(
            ["evaluation", *(name.removeprefix("eval/") for name in names)],
            [[e["label"], *(f"{e[n]:.3f}" if n in e else "" for n in names)] for e in shown["evals"]],
        )
    heading("\nepisodes")
    rows = [
        [path, c["filed"], c["failed"], c["abandoned"], "" if c["reward"] is None else f"{c['reward']:.3f}"]
        for path, c in shown["episodes"].items()
    ]
    table(["path", "filed", "failed", "abandoned", "reward"], rows)
    if shown["dropped"]:
        heading("\ndropped")
        table(["reason", "count"], sorted(shown["dropped"].items()))
    for reason, count in sorted(shown["skipped"].items()):
        click.echo(f"optimizer steps not taken: {count} ({reason.replace('_', ' ')})")


def _describe(store: RunStore) -> dict[str, Any]:
    manifest = store.manifest
    summary = next(run for run in list_runs(store.root) if run.run == store.id)
    state = store.load_state()
    if state is None:  # an evaluation saves no position: what it dropped are its failed episodes
        failed = [row.failure for row in store.index.find(run=store.id, status="filed") if row.failure]
        state = {"dropped": dict(Counter(f"{manifest['kind']}/{failure}" for failure in failed))}
    evals = [line for line in store.metrics() if line.get("stage") == "eval"]
    return {
        **{
            key: manifest.get(key)
            for key in ("run", "kind", "created", "ferrule", "python", "platform", "seed", "config_file", "plugins")
        },
        "status": summary.status,
        "step": summary.step,
        "dir": str(store.dir),
        "evals": evals,
        "episodes": store.index.counts(store.id),
        "dropped": state.get("dropped", {}),
        "skipped": state.get("skipped", {}),
        "config": manifest.get("config"),
    }
