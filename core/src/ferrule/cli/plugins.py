"""``ferrule plugins``: what is installed, by metadata; what one plugin is, asked in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import click

from ..errors import FerruleError, PluginError
from .output import emit, heading, table

if TYPE_CHECKING:
    from ..plugins import Candidate, Registry

SHOW_TIMEOUT = 120.0
"""Seconds that importing one plugin may take."""


@click.group("plugins", short_help="List the plugins that are installed, or show one.")
def command() -> None:
    """The plugins that are installed."""


@command.command("list")
@click.option("--kind", help="Only plugins of this kind.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def list_(kind: str | None, as_json: bool) -> None:
    """List the plugins that are installed. Reads metadata; imports none of them."""
    from ..plugins import Registry

    registry = Registry.discover()
    if kind is not None and kind not in registry.kinds:
        raise click.UsageError(f"no kind is called {kind!r}; kinds: {', '.join(registry.kinds)}")
    rows = _rows(registry, kind)
    if as_json:
        emit(
            {
                "plugins": rows,
                "findings": [
                    {"distribution": f.distribution, "location": f.location, "message": f.message}
                    for f in registry.findings
                ],
            }
        )
        return
    table(("kind", "name", "distribution", "version", "requires", "state"), [tuple(row.values()) for row in rows])
    for finding in registry.findings:
        click.echo(f"note: {finding.distribution}: {finding.message} ({finding.location})", err=True)


def _rows(registry: Registry, kind: str | None) -> list[dict[str, str]]:
    from ..plugins.compat import core_mismatch
    from ..plugins.discovery import norm

    def row(candidate: Candidate, state: str) -> dict[str, str]:
        core = [
            text
            for text in candidate.dist.requires
            if norm(text).startswith("ferrule") and not norm(text).startswith("ferrule-")
        ]
        return {
            "kind": candidate.kind,
            "name": candidate.name,
            "distribution": candidate.dist.name,
            "version": candidate.dist.version,
            "requires": ", ".join(core),
            "state": state,
        }

    known = registry.candidates(kind)
    names = [(c.kind, norm(c.name)) for c in known]
    rows = []
    for candidate, key in zip(known, names, strict=True):
        mismatch = core_mismatch(candidate.dist)
        conflict = names.count(key) > 1
        rows.append(row(candidate, mismatch or (f"conflict: write {candidate.spelling}" if conflict else "ok")))
    rows += [row(c, f"switched off by {variable}") for c, variable in registry.disabled if kind in (None, c.kind)]
    return rows


@command.command("show")
@click.argument("reference")
@click.option("--kind", help="The kind, where several have a plugin of that name.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def show(reference: str, kind: str | None, as_json: bool) -> None:
    """Show a plugin: its class, options and capabilities. REFERENCE is whatever a configuration may name.

    The plugin is imported in a process of its own, so that whatever it does happens there.
    """
    kinds = [kind] if kind else _kinds_of(reference)
    shown = _inspect(kinds, reference)
    if as_json:
        emit(shown)
        return
    heading(f"{shown['kind']} {shown['reference']}")
    for key in (
        "class",
        "distribution",
        "version",
        "file",
        "sha256",
        "needs",
        "provides",
        "policy_losses",
        "optimizers",
    ):
        value = shown.get(key)
        if value:
            click.echo(f"  {key.replace('_', ' ')}: {', '.join(value) if isinstance(value, list) else value}")
    if shown["doc"]:
        click.echo("\n" + "\n".join(f"  {line}" for line in shown["doc"].splitlines()))
    click.echo()
    if shown["options"]:
        table(
            ("option", "type", "default"),
            [(o["name"], o["type"], o["default"]) for o in shown["options"]],
            title="Options",
        )
    else:
        click.echo("  no options")


def _kinds_of(reference: str) -> list[str]:
    """The kinds to try: those that have the name, or all where *reference* is a class."""
    from ..plugins import Registry
    from ..plugins.discovery import norm

    registry = Registry.discover()
    if ":" in reference:
        return list(registry.kinds)
    name = norm(reference.partition("@")[0])
    kinds = sorted({c.kind for c in registry.candidates() if norm(c.name) == name})
    if len(kinds) > 1:
        raise click.UsageError(f"{reference!r} is a name of several kinds: give --kind {' or --kind '.join(kinds)}")
    if not kinds:
        from ..plugins.compat import nearest

        off = next((variable for c, variable in registry.disabled if norm(c.name) == name), None)
        raise PluginError(
            f"no plugin is called {reference!r}"
            + (f": switched off by {off}" if off else nearest(reference, [c.name for c in registry.candidates()]))
        )
    return kinds


def _inspect(kinds: list[str], reference: str) -> dict[str, Any]:
    words = [sys.executable, "-P", "-m", "ferrule.cli.inspection", reference, *kinds]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=SHOW_TIMEOUT, check=False)
    except subprocess.TimeoutExpired as error:
        raise FerruleError(f"{reference!r} did not load within {SHOW_TIMEOUT:g} s") from error
    marked = [line for line in done.stdout.splitlines() if line.startswith("FERRULE ")]
    if not marked:
        tail = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise FerruleError(
            f"loading {reference!r} ended its process (exit code {done.returncode}){': ' + tail[0] if tail else ''}"
        )
    answer: dict[str, Any] = json.loads(marked[-1].removeprefix("FERRULE "))
    if "error" in answer:
        raise PluginError(answer["error"])
    return answer
