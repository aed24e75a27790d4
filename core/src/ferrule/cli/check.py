"""``ferrule check``: every mistake in a configuration, in one report."""

from __future__ import annotations

import click

from .output import config_options, emit


@click.command("check", short_help="Find every mistake in a configuration.")
@config_options
def command(config: str, sets: tuple[str, ...], as_json: bool) -> None:
    """Find every mistake in CONFIG, before anything costs money.

    Names, types, unknown keys, files, capabilities and versions are checked, all at once. The plugins that it names
    are imported; no model is loaded and no sandbox started. Exit code 2 where there is a mistake.
    """
    from ..config import load
    from ..plugins.discovery import norm

    loaded = load(config, sets)
    manifest = loaded.registry.manifest()
    used = {norm(item["distribution"] or "") for item in manifest}
    for finding in loaded.registry.findings:
        if norm(finding.distribution) in used:
            click.echo(f"note: {finding.distribution}: {finding.message} ({finding.location})", err=True)
    if as_json:
        emit({"ok": True, "config": config, "plugins": manifest})
        return
    names = ", ".join(f"{item['kind']} {item['reference']}" for item in manifest)
    click.echo(f"{config}: no mistakes ({names})")
