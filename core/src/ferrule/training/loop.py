"""The loop: evaluation of the untrained model, SFT, evaluation, RL steps with evaluations between; saved, resumed,
stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from ..config.secrets import redacted
from ..errors import FerruleError
from ..kinds import Task
from ..logs import get_logger
from ..store import RunStore
from .evaluation import UNTRAINED, evaluate_at
from .manifest import changes, manifest
from .parts import Parts, facts
from .position import Position, sweep
from .reporter import Reporter
from .rl import rl_step
from .run import Run
from .sft import run_sft
from .stop import StopFlag, Stopped
from .summary import Summary

if TYPE_CHECKING:
    from ..config import Loaded

log = get_logger("ferrule.training")


async def train(
    loaded: Loaded, *, resume: RunStore | None = None, reporter: Reporter | None = None, stop: StopFlag | None = None
) -> Summary:
    """Train as *loaded* says, in a new run below its ``runs``, or go on with the run *resume* (opened for writing) from
    its last save.

    Where *stop* is requested, the step is finished, the run saved and closed, and the summary says ``stopped``; a
    cancel closes everything at once. Errors of the run itself are raised after everything is closed; errors of single
    episodes are counted. A resumed run gives the same metrics, times aside, as one that was never broken off, wherever
    the trainer samples and trains deterministically.
    """
    reporter, stop = reporter or Reporter(), stop or StopFlag()
    try:
        parts = Parts.build(loaded, train=True)
        config = loaded.config
        tasks = parts.tasks(config.train.split) if config.train.steps else []
        _playable(parts)
    except BaseException:
        if resume is not None:
            resume.close()
        raise
    store = resume or RunStore.create(config.runs, config.name, loaded.raw, manifest(loaded))
    async with _under_way(parts, store, reporter, stop, resumed=resume is not None) as run:
        try:
            await _stages(run, tasks)
        except Stopped:
            run.status = "stopped"
            store.rewind(run.position.offsets)  # what was broken off is abandoned, not filed
            await run.checkpoint(_name(run.position))
    assert run.summary is not None
    return run.summary


async def evaluate(
    loaded: Loaded,
    *,
    checkpoint: RunStore | None = None,
    reporter: Reporter | None = None,
    stop: StopFlag | None = None,
) -> Summary:
    """Play the evaluation that *loaded* describes as a run of its own, under the weights that run *checkpoint* saved
    last, or untrained ones.

    A harness that samples nothing needs no trainer; its episodes are filed and scored alike.
    """
    reporter, stop = reporter or Reporter(), stop or StopFlag()
    parts = Parts.build(loaded, train=False)
    config = loaded.config
    parts.tasks(config.eval.split)
    position = Position()
    if checkpoint is not None:
        state = checkpoint.load_state()
        position = Position.from_state(state, checkpoint.dir) if state else position
        if position.checkpoint is None:
            raise FerruleError(f"run {checkpoint.id!r} has saved no checkpoint")
        if parts.trainer is None:
            raise FerruleError(
                f"harness {config.harness.label!r} samples nothing, so it cannot be played under a checkpoint"
            )
    record = {**manifest(loaded), "checkpoint": checkpoint.id if checkpoint else None}
    store = RunStore.create(config.runs, config.name, loaded.raw, record, kind="eval")
    async with _under_way(parts, store, reporter, stop, resumed=False) as run:
        run.position.step = position.step
        if position.checkpoint is not None:
            await run.trainer.restore(position.checkpoint)
        try:
            await evaluate_at(run, f"step-{position.step}", position.step)
        except Stopped:
            run.status = "stopped"
    assert run.summary is not None
    return run.summary


# -- stages ---------------------------------------------------------------------------------------------------------


async def _stages(run: Run, tasks: Sequence[Task]) -> None:
    config, position = run.config, run.position
    if config.train.steps and len(tasks) < config.train.tasks_per_step:
        run.reporter.say(
            f"split {config.train.split!r} has {len(tasks)} tasks: each step plays all of them, "
            f"not {config.train.tasks_per_step}"
        )
    if config.sft is not None and not position.sft_done:
        if config.eval.untrained and position.sft_step == 0 and "untrained" not in position.evaluated:
            await evaluate_at(run, "untrained", UNTRAINED)
            run.save_position()
        await run_sft(run, config.sft)
    while True:
        if _eval_due(run) and f"step-{position.step}" not in position.evaluated:
            await evaluate_at(run, f"step-{position.step}", position.step)
            run.save_position()
        if position.step >= config.train.steps:
            break
        if run.stop.requested:
            raise Stopped
        await rl_step(run, tasks, position.step + 1)
        every = config.save.every
        if (every and position.step % every == 0) or position.step == config.train.steps:
            await run.checkpoint(_name(position))
    await run.checkpoint(_name(position))


def _eval_due(run: Run) -> bool:
    """Whether the position's RL step is one at which the held-out split is played."""
    step, config = run.position.step, run.config
    if step == 0:
        return config.sft is not None or config.eval.untrained
    return step == config.train.steps or bool(config.eval.every and step % config.eval.every == 0)


def _name(position: Position) -> str:
    return f"step-{position.step}" if position.sft_done or not position.sft_step else f"sft-{position.sft_step}"


def _playable(parts: Parts) -> None:
    """Every split that will be played is there and can be, before a model loads."""
    config = parts.loaded.config
    parts.tasks(config.eval.split)
    if config.sft is not None:
        parts.tasks(config.sft.dev_split)
        if not parts.taskset.demonstrations(config.sft.split, 1, config.seed):
            raise FerruleError(
                f"[sft]: task set {config.taskset.label!r} has no demonstrations on split {config.sft.split!r}"
            )


# -- around them ----------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _under_way(
    parts: Parts, store: RunStore, reporter: Reporter, stop: StopFlag, *, resumed: bool
) -> AsyncIterator[Run]:
    """Start the parts and bring the position back; whatever happens, close everything, set the status and tell the
    observers.
    """
    loaded = parts.loaded
    config = loaded.config
    info = store.info(config.seed, config.model, loaded.dir)
    kind = store.manifest["kind"]  # now: at the end its folder may be gone
    position = Position()
    run: Run | None = None
    told = False
    status, failure = "failed", None
    try:
        if resumed:
            position = _rewind(store, reporter)
            await _sweep_sandboxes(parts, store, reporter)
        told = True
        parts.observers.call("run_started", run=info, config=redacted(loaded.raw))
        player = await parts.start(info)
        reporter.header(await facts(parts, str(store.dir), manifest(loaded)["plugins"]))
        if position.checkpoint is not None:
            await parts.trainer.restore(position.checkpoint)  # type: ignore[union-attr]
        run = Run(parts, player, store, info, position, reporter, stop)
        for text in changes(store.manifest, manifest(loaded)) if resumed else ():
            run.warn(text)
        yield run
        status = run.status
    except asyncio.CancelledError:
        status = "stopped"
        raise
    except BaseException as error:
        failure = f"{type(error).__name__}: {error}"
        raise
    finally:
        reporter.end()
        await parts.close()
        summary = _summarise(store, kind, position, status, failure)
        if run is not None:
            run.summary = summary
        if told:
            parts.observers.call("run_finished", run=info, summary=summary.to_dict())
        try:
            try:
                store.set_status(status, position.step)
            finally:
                store.close()
        except (FerruleError, OSError) as error:
            if failure is None:
                raise
            log.warning("status_not_written", run=store.id, error=str(error))  # what failed first is what is told
        reporter.finish(summary)


def _rewind(store: RunStore, reporter: Reporter) -> Position:
    """The position that *store* saved last, everything that came after it moved aside."""
    state = store.load_state()
    position = Position.from_state(state, store.dir) if state else Position()
    rewound = store.rewind(position.offsets)
    sweep(store, position)
    where = f"RL step {position.step}" if position.step or position.sft_done else f"SFT step {position.sft_step}"
    reporter.say(
        f"resuming at {where}; {rewound.episodes} episodes and {rewound.metrics} lines of metrics "
        "after it are set aside"
    )
    return position


async def _sweep_sandboxes(parts: Parts, store: RunStore, reporter: Reporter) -> None:
    """Remove the sandboxes that the run left behind where it was killed. One that cannot be is no reason not to go on."""
    if parts.sandboxes is None:
        return
    try:
        removed = await parts.sandboxes.sweep(store.id)
    except Exception as error:
        log.warning("sweep_failed", sandbox=parts.sandboxes.name, error=f"{type(error).__name__}: {error}")
        return
    if removed:
        reporter.say(f"{len(removed)} sandboxes that it had left behind are removed")


def _summarise(store: RunStore, kind: str, position: Position, status: str, error: str | None) -> Summary:
    return Summary(
        store.id,
        store.dir,
        status,
        kind,
        position.step,
        position.episodes,
        list(position.evals),
        dict(position.dropped),
        dict(position.skipped),
        list(position.warnings),
        round(position.seconds, 1),
        error,
    )
