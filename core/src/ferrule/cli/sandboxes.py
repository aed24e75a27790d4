"""``ferrule sandboxes``: remove what killed runs left behind."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from ..plugins import default_registry
from .output import emit


@click.group("sandboxes", short_help="Remove sandboxes that a killed run left behind.")
def command() -> None:
    """Sandboxes of runs that are no more."""


@command.command("sweep")
@click.argument("run", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def sweep(run: str | None, as_json: bool) -> None:
    """Remove the sandboxes of RUN, or of every run that is dead, with every backend that is installed.

    A backend that cannot be loaded or fails is named, and the others are swept all the same.
    """
    registry = default_registry()
    found: list[dict[str, Any]] = []
    for candidate in registry.candidates("sandbox"):
        entry: dict[str, Any] = {"backend": candidate.spelling, "removed": [], "error": None}
        try:
            cls: Any = registry.resolve("sandbox", candidate.spelling)
            entry["removed"] = asyncio.run(cls.sweep(run))
        except Exception as error:
            entry["error"] = f"{type(error).__name__}: {error}"
        found.append(entry)
    if as_json:
        emit(found)
        return
    if not found:
        click.echo("no sandbox backend is installed")
    for entry in found:
        if entry["error"]:
            click.echo(f"{entry['backend']}: {entry['error']}", err=True)
        else:
            click.echo(
                f"{entry['backend']}: {len(entry['removed'])} removed"
                + "".join(f"\n  {name}" for name in entry["removed"])
            )
