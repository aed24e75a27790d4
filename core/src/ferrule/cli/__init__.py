"""The ``ferrule`` command: subcommands by the first word, each imported only when it is called.

Commands come from the entry-point group ``ferrule.commands``, whose values are click commands. The core's own cannot
be taken over by another distribution; where two others offer one name, ``ferrule name@distribution`` tells them
apart.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from .. import __version__
from ..errors import ConfigError, FerruleError, PluginError
from ..masking import masked
from ..plugins.discovery import COMMANDS, Candidate, discover, norm, switched_off

SUMMARIES = {
    "check": "Find every mistake in a configuration, before anything costs money.",
    "eval": "Evaluate: play the tasks of a split and report scores.",
    "explain": "Say what a configuration means: each value, and where it came from.",
    "plugins": "List the plugins that are installed, or show one.",
    "runs": "List runs, or show one.",
    "sandboxes": "Remove sandboxes that a killed run left behind.",
    "show": "Print an episode, its tokens coloured by kind.",
    "train": "Train: supervised, then by reinforcement, with evaluations.",
}
"""One line for each of the core's commands, so that ``--help`` imports none of them."""

_QUIET = ("check", "explain", "plugins")
"""Commands that log nothing, and so need not pay for the logging library."""

_OUTSIDE = frozenset(
    getattr(errno, name)
    for name in (
        "ENOSPC",
        "EDQUOT",
        "EROFS",
        "EACCES",
        "EPERM",
        "ENOENT",
        "EEXIST",
        "ENOTDIR",
        "EISDIR",
        "ENAMETOOLONG",
        "EIO",
        "EMFILE",
    )
    if hasattr(errno, name)
)
"""What a disk, or the rights on it, may refuse at any time: said in one line, as it is nobody's mistake in the code."""


class _Commands(click.Group):
    """Looks commands up in the metadata."""

    def found(self) -> dict[str, list[Candidate]]:
        candidates, _ = discover({COMMANDS: "command"})
        out: dict[str, list[Candidate]] = {}
        for candidate in candidates:
            core = candidate.dist.key == "ferrule"
            if core or not switched_off(candidate, os.environ):
                out.setdefault(norm(candidate.name), []).append(candidate)
        for same in out.values():
            if any(c.dist.key == "ferrule" for c in same):
                same.sort(key=lambda c: c.dist.key != "ferrule")
        return out

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(same[0].name for same in self.found().values())

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for same in sorted(self.found().values(), key=lambda same: same[0].name):
            for candidate in same:
                if candidate.dist.key == "ferrule":
                    rows.append((candidate.name, SUMMARIES.get(candidate.name, "")))
                else:
                    spelling = candidate.name if len(same) == 1 else candidate.spelling
                    said = f"{candidate.dist.summary} (" if candidate.dist.summary else "(from "
                    rows.append((spelling, f"{said}{candidate.dist})"))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        candidate = self._candidate(cmd_name)
        if candidate is None:
            return None
        from ..plugins.references import Ref, load

        if candidate.dist.key != "ferrule" or candidate.name not in _QUIET:
            from .output import log_to_stderr

            log_to_stderr()
        command = load(Ref("command", cmd_name, candidate))
        if not isinstance(command, click.Command):
            raise PluginError(
                f"command {cmd_name!r} of {candidate.dist} is not a click command but {type(command).__name__}"
            )
        return command

    def _candidate(self, text: str) -> Candidate | None:
        name, at, distribution = text.partition("@")
        same = self.found().get(norm(name), [])
        if at:
            same = [c for c in same if c.dist.key == norm(distribution)]
        if not same:
            return None
        if len(same) > 1 and same[0].dist.key != "ferrule":
            raise PluginError(
                f"more than one distribution offers the command {text!r}: {', '.join(str(c.dist) for c in same)}; "
                f"write {' or '.join(f'ferrule {c.spelling}' for c in same)}"
            )
        return same[0]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not self._candidate(args[0]) and not args[0].startswith("-"):
            from ..plugins.compat import nearest

            ctx.fail(f"no command is called {args[0]!r}{nearest(args[0], self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


@click.command(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 done; 1 failed; 2 a mistake in the configuration or on the command line; 130 interrupted.",
)
@click.version_option(__version__, prog_name="ferrule", message="%(prog)s %(version)s")
def cli() -> None:
    """Reinforcement-learning post-training of language-model agents. Every part is a plugin."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command and exit: 0 done, 1 failed, 2 a mistake in the configuration or on the command line, 130
    interrupted.

    With ``--json`` on the command line, errors go to stdout as one JSON object: ``{"ok": false, "error": …,
    "problems": […]}``.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = cli.main(words, prog_name="ferrule", standalone_mode=False)
    except click.exceptions.Exit as error:
        code = error.exit_code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        code = 130
    except FerruleError as error:
        _report(error, as_json="--json" in words)
        code = 2 if isinstance(error, ConfigError | PluginError) else 1
    except BrokenPipeError:  # the reader of our output went away (head, less)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except Exception as error:
        code = 1
        if isinstance(error, OSError) and error.errno in _OUTSIDE:
            where = f"{error.filename}: " if error.filename is not None else ""
            _report(FerruleError(f"{where}{error.strerror}"), as_json="--json" in words)
        else:  # a fault of ours or of a plugin: its whole traceback helps, and secrets in it do not
            click.echo(masked(traceback.format_exc()), err=True)
    sys.exit(code if isinstance(code, int) else 0)


def _report(error: FerruleError, as_json: bool) -> None:
    if not as_json:
        click.echo(str(error), err=True)
        return
    out: dict[str, Any] = {"ok": False, "error": str(error)}
    if isinstance(error, ConfigError):
        out["problems"] = [
            {"path": p.where, "message": p.message, "source": p.source, "line": p.line} for p in error.problems
        ]
    click.echo(json.dumps(out))
