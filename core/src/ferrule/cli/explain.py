"""``ferrule explain``: what a configuration means, and where each value came from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from .explain_renderer import explain_renderer, print_renderer
from .output import config_options, emit, heading, table

if TYPE_CHECKING:
    from ..config import Loaded


@click.command("explain", short_help="Say what a configuration means.")
@config_options
def command(config: str, sets: tuple[str, ...], as_json: bool) -> None:
    """Say what CONFIG means: the plugins it chose, what they need and provide, what is played, and where each value
    came from.
    """
    from ..config import explain, load

    loaded = load(config, sets)
    rows = explain(loaded)
    plugins = [_plugin(loaded, section, use) for section, use in _uses(loaded)]
    renderer = explain_renderer(loaded)
    played = _played(loaded)
    if as_json:
        emit(
            {
                "config": config,
                "plugins": plugins,
                "renderer": renderer,
                "played": played,
                "values": [{"path": row.path, "value": row.value, "where": row.where} for row in rows],
            }
        )
        return
    heading("Plugins")
    table(
        ("section", "reference", "from", "needs", "provides"),
        [(p["section"], p["reference"], p["from"], ", ".join(p["needs"]), ", ".join(p["provides"])) for p in plugins],
    )
    click.echo()
    if renderer is not None:
        heading("Renderer")
        print_renderer(renderer)
        click.echo()
    heading("What is played")
    for line in played:
        click.echo(f"  {line}")
    click.echo()
    heading("Values")
    table(("key", "value", "where"), [(row.path, json.dumps(row.value, ensure_ascii=False), row.where) for row in rows])


def _uses(loaded: Loaded) -> list[tuple[str, Any]]:
    config = loaded.config
    single = ("taskset", "harness", "model", "renderer", "trainer", "advantage", "sandbox")
    uses = [(name, getattr(config, name)) for name in single if name != "model" and getattr(config, name) is not None]
    for name in ("losses", "observers"):
        uses += [(f"{name}[{i}]", use) for i, use in enumerate(getattr(config, name))]
    return uses


def _plugin(loaded: Loaded, section: str, use: Any) -> dict[str, Any]:
    line = next(
        (
            m
            for m in loaded.registry.manifest()
            if m["class"] == f"{use.cls.__module__}:{use.cls.__qualname__}" and (m["reference"] == use.ref or use.why)
        ),
        None,
    )
    if line is None:
        origin = ""
    elif line["distribution"]:
        origin = f"{line['distribution']} {line['version']}"
    else:
        origin = f"{line['file']} (sha256 {(line['sha256'] or '')[:12]})"
    provides = set(getattr(use.cls, "provides", ())) | {
        f"policy loss {name}" for name in getattr(use.cls, "policy_losses", ())
    }
    return {
        "section": section,
        "reference": use.ref,
        "class": line["class"] if line else use.cls.__qualname__,
        "from": origin,
        "needs": sorted(map(str, getattr(use.cls, "needs", ()))),
        "provides": sorted(map(str, provides)),
    }


def _over(use: Any) -> str:
    """The kinds of token that a loss, with its options, is over: asked of a row that has one of each."""
    import numpy as np

    from ..data import Row, TokenKind

    kinds = np.array([TokenKind.PROMPT, *TokenKind], np.uint8)  # position 0 is in no loss
    zeros = np.zeros(len(kinds))
    row = Row(zeros.astype(np.int32), kinds, zeros.astype(np.float32), zeros.astype(np.int32))
    try:
        mask = np.asarray(use.make().tokens(row), bool)
        return " and ".join(TokenKind(kind).name.lower() for kind in kinds[1:][mask[1:]]) or "no"
    except Exception:  # a loss that chooses by more than kinds
        return str(use.cls.mask.value)


def _played(loaded: Loaded) -> list[str]:
    config = loaded.config
    taskset = config.taskset.make()
    lines = [
        f"task set {config.taskset.ref}: "
        + ", ".join(f"{split} ({len(taskset.tasks(split))} tasks)" for split in taskset.splits)
    ]
    model = config.harness.cls.needs_model
    if not model:
        lines.append(f"harness {config.harness.ref} samples from no model")
    if config.sft is not None and config.trainer is not None:
        sft = config.sft
        until = (
            f"until reward {sft.target:g} on {sft.dev_tasks} tasks of {sft.dev_split}, at most {sft.max_steps} steps"
            if sft.target is not None
            else f"{sft.min_steps} steps"
        )
        lines.append(f"supervised: demonstrations of {sft.split}, batches of {sft.batch_size}, {until}")
    if config.trainer is not None and config.train.steps:
        train = config.train
        lines.append(
            f"reinforcement: {train.steps} steps of {train.tasks_per_step} tasks of {train.split} × {train.group_size} attempts, "
            f"policy loss {config.policy.loss}, {config.policy.reduction}"
        )
        for use in config.losses:
            coef = getattr(use.config, "coef", None)
            lines.append(
                f"auxiliary loss {use.label}: coefficient {coef:g}{' (off)' if coef == 0 else ''}, over {_over(use)} tokens"
            )
    evaluation = config.eval
    limit = f"at most {evaluation.limit} tasks" if evaluation.limit is not None else "each task"
    every = (
        f", every {evaluation.every} steps"
        if evaluation.every and config.trainer is not None and config.train.steps
        else ""
    )
    lines.append(f"evaluation: {limit} of {evaluation.split} once, {' and '.join(evaluation.modes)}{every}")
    rollout = config.rollout
    limits = {
        "model messages": rollout.max_steps,
        "tokens of the first prompt": rollout.max_prompt_tokens,
        "tokens after it": rollout.max_response_tokens,
        "seconds": rollout.timeout,
    }
    given = [f"{value:g} {name}" for name, value in limits.items() if value is not None]
    lines.append(f"an episode ends after {', '.join(given)}" if given else "an episode has no limit of its own")
    return lines
