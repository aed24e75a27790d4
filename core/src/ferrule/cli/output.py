"""What the commands print with: rich tables on a terminal, plain lines elsewhere, JSON where asked."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click


def config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``CONFIG``, ``--set`` and ``--json``: what every command that reads a configuration takes (``config``,
    ``sets``, ``as_json``).
    """
    command = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(command)
    command = click.option(
        "--set",
        "sets",
        multiple=True,
        metavar="KEY=VALUE",
        help="Override a value: train.steps=10, losses.0.coef=0.1. Values are TOML's; a bare word is text. May be repeated.",
    )(command)
    return click.argument("config", type=click.Path(path_type=str))(command)


def log_to_stderr() -> None:
    """Configure structlog for a command: warnings and errors, plainly, to stderr. ``FERRULE_LOG=info`` or ``debug``
    shows more.
    """
    import structlog

    levels = {"debug": 10, "info": 20, "warning": 30, "error": 40}
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper("%H:%M:%S", utc=False),
            # Not rich's traceback: it prints the values of variables, secrets among them.
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(levels.get(os.environ.get("FERRULE_LOG", "").lower(), 30)),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def emit(data: Any) -> None:
    """Print *data* as JSON."""
    click.echo(json.dumps(data, indent=2, default=str, ensure_ascii=False))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """A rich table on a terminal; elsewhere one line per row, its cells between tabs, a header line first."""
    cells = [[str(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        if title:
            click.echo(f"# {title}")
        click.echo("\t".join(columns))
        for row in cells:
            click.echo("\t".join(cell.replace("\n", " ").replace("\t", " ") for cell in row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for number, column in enumerate(columns):
        # A name that is cut short cannot be copied; those to type stand in the first two columns.
        shown.add_column(column, overflow="fold", no_wrap=number < 2)
    for row in cells:
        shown.add_row(*(Text(cell) for cell in row))
    Console().print(shown)


def heading(text: str) -> None:
    """A line above what follows."""
    click.secho(text, bold=True)
