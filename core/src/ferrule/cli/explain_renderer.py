"""The part of ``ferrule explain`` about the renderer: which, why, and what each choice about thinking costs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import attrs
import click

from ..errors import FerruleError
from .output import table

if TYPE_CHECKING:
    from ..config import Loaded

_THINKING = {
    "template": "as the model's template has it",
    "keep": "what was sampled stays in view",
    "strip": "none of it is shown again",
}


def explain_renderer(loaded: Loaded) -> dict[str, Any] | None:
    """What is to be said of the renderer, as plain data; None where the configuration has none."""
    use = loaded.config.renderer
    if use is None:
        return None
    cls = use.cls
    out: dict[str, Any] = {
        "name": use.label,
        "why": use.why or f"named: use = {use.ref!r}",
        "guess": use.guess,
        "serves": list(cls.serves),
        "extends": cls.extends,
        "special_text": cls.special_text,
        "thinking": use.config.thinking,
        "choices": [],
    }
    for choice in cls.thinking_choices:
        out["choices"].append({"thinking": choice, "does": _THINKING.get(choice, ""), **_cost(loaded, use, choice)})
    return out


def _cost(loaded: Loaded, use: Any, choice: str) -> dict[str, Any]:
    """The sample conversation's price, or why it could not be played here."""
    from ..plugins.references import reason
    from ..rollout import forecast

    try:
        renderer = attrs.evolve(use, config=attrs.evolve(use.config, thinking=choice)).make(loaded.config.model)
        try:
            return attrs.asdict(asyncio.run(forecast(renderer)))
        except FerruleError:
            # One that writes no tools is asked without.
            return {**attrs.asdict(asyncio.run(forecast(renderer, tools=False))), "tools": False}
    except (Exception, SystemExit) as error:  # a plugin's own faults are told, too: what else was asked still stands
        return {"error": str(error) if isinstance(error, FerruleError) else f"it broke: {reason(error)}"}


def print_renderer(said: dict[str, Any]) -> None:
    from ..rollout.forecast import CALLS, QUESTIONS

    click.echo(f"  {said['name']}: {said['why']}")
    if said["guess"]:
        click.secho("  WARNING: this is a guess; check that it writes what the model was trained on", fg="yellow")
    extends = (
        "extends a conversation by what is new" if said["extends"] else "writes every prompt anew: a row a message"
    )
    text = "kept as text" if said["special_text"] == "literal" else "read as the token itself: an injection"
    click.echo(f"  {extends}; a control token's text in a content is {text}")
    errors = [c["error"] for c in said["choices"] if "error" in c]
    if errors:
        click.echo(f"  what thinking costs cannot be told here: {errors[0]}")
    priced = [c for c in said["choices"] if "rows" in c]
    if not priced:
        return
    calls = f", each answered after {CALLS} calls" if priced[0].get("tools", True) else ""
    click.echo(f"  what becomes of earlier thinking, and its price on a sample of {QUESTIONS} questions{calls}:")
    table(
        ("thinking", "", "replies", "rows", "tokens in rows"),
        [
            (
                c["thinking"] + (" *" if c["thinking"] == said["thinking"] else ""),
                c["does"],
                str(c["steps"]),
                str(c["rows"]),
                f"{c['tokens']:,}",
            )
            for c in priced
        ],
    )
    click.echo("  * is in force (renderer.thinking)")
