"""``ferrule show``: an episode as the model saw it, its tokens coloured by what each is."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ..store import find_episode
from .output import emit
from .running import runs_option

NAMES = {"P": "prompt", "A": "action", "O": "observation", "S": "scaffold"}
STYLES = {"P": "dim", "A": "bold green", "O": "cyan", "S": "dim magenta"}


@click.command("show", short_help="Print an episode, its tokens coloured by kind.")
@click.argument("episode")
@runs_option
@click.option("--ids", is_flag=True, help="Print token ids too.")
@click.option("--json", "as_json", is_flag=True, help="Print the episode's record as JSON.")
def command(episode: str, runs: Path | None, ids: bool, as_json: bool) -> None:
    """Print EPISODE: RUN/EPISODE, or an episode's id (train/step-3/some-task#0) where only one run has it.

    Its tokens are shown as they were fed and sampled: prompt, action (sampled, and trained on), observation, scaffold.
    Without a terminal, each stretch stands on lines of its own under its kind.
    """
    row, line = find_episode(runs or Path("runs"), episode)
    if as_json:
        emit({**line, "run": row.run, "status": row.status})
        return
    reward = "none" if line["reward"] is None else f"{line['reward']:.4g}"
    click.echo(f"{row.run}/{row.episode}" + ("  (abandoned)" if row.status == "abandoned" else ""))
    click.echo(
        f"task {line['task']}  attempt {line['attempt']}  reward {reward}  {line['termination']}  "
        f"{line['seconds']:.2f} s"
    )
    if line["scores"]:
        click.echo("scores " + "  ".join(f"{name} {value:.4g}" for name, value in line["scores"].items()))
    if line["failure"]:
        click.echo(f"failed: {line['failure']}: {printable(line['error'] or '')}")
    shown = False
    for trajectory in line["trajectories"]:
        for number, segment in enumerate(trajectory["segments"]):
            counts = "  ".join(f"{NAMES[k]} {segment['kinds'].count(k)}" for k in NAMES)
            click.echo(f"\n{trajectory['name']}, segment {number + 1}: {len(segment['ids'])} tokens  ({counts})")
            if "text" in segment:
                _tokens(segment)
                shown = True
            if ids:
                click.echo(" ".join(f"{i}{k}" for i, k in zip(segment["ids"], segment["kinds"], strict=True)))
    if not shown:
        for message in line["messages"]:
            _message(message)


def _tokens(segment: Mapping[str, Any]) -> None:
    if not sys.stdout.isatty():
        for kind, text in segment["text"]:
            click.echo(f"[{NAMES[kind]}] {printable(text)}")
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    whole = Text()
    for kind, text in segment["text"]:
        whole.append(printable(text), STYLES[kind])
    console.print(whole, soft_wrap=True)
    legend = Text()
    for kind, name in NAMES.items():
        legend.append(f"{name} ", STYLES[kind])
    console.print(legend)


def _message(message: Mapping[str, Any]) -> None:
    click.echo(f"\n[{message['role']}] {printable(message['content'] or '')}")
    for call in message.get("tool_calls", ()):
        function = call["function"]
        click.echo(f"  calls {printable(function['name'])}({printable(function['arguments'])})")


def printable(text: str) -> str:
    """*text* without control characters that a terminal would obey: what a model wrote is shown, never run."""
    return "".join(c if c in "\n\t" or (c.isprintable() or c == "\u00a0") else f"\\x{ord(c):02x}" for c in text)
