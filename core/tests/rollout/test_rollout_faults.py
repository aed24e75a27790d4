"""Hundreds of episodes at once in which everything breaks: nothing leaks, nothing hangs, nothing false is rewarded."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

import ferrule
from ferrule import EpisodeFailed, Failure, SamplingParams, Termination

EPISODES, SLOTS = 500, 64


@pytest.mark.parametrize("seed", [1, 2])
async def test_hundreds_of_breaking_episodes_leak_nothing_and_every_drop_is_named(kit, seed):
    fate = random.Random(seed)
    injected = Counter()

    def maybe_break(what, chance, *choices):
        """One of *choices* with *chance*, else None; counted."""
        if fate.random() >= chance:
            return None
        injected[what] += 1
        return fate.choice(choices)()

    async def hang():
        await asyncio.sleep(3600)

    def tool(run, n):
        broken = maybe_break(
            "tool",
            0.2,
            lambda: ValueError("tool crashed"),
            lambda: ferrule.ToolError("refused"),
            asyncio.CancelledError,
            lambda: ferrule.SandboxError("sandbox died"),
            hang,
            lambda: ferrule.CommandTimeout(1),
        )
        return broken if broken is not None else asyncio.sleep(0, f"answer {n}")

    def verdict(run):
        broken = maybe_break(
            "verifier",
            0.15,
            lambda: ZeroDivisionError("verifier crashed"),
            hang,
            dict,
            lambda: {"reward": float("nan")},
            asyncio.CancelledError,
            lambda: {"reward": "1.0"},
            lambda: EpisodeFailed(Failure.UPLOAD_FAILED, "tests/"),
        )
        return broken if broken is not None else {"reward": 0.5}

    def setup(attempt, sandbox):
        return maybe_break(
            "setup", 0.1, lambda: EpisodeFailed(Failure.SETUP_FAILED, "setup.sh"), lambda: OSError("disk"), hang
        )

    def answer(prompt, number, key):
        broken = maybe_break(
            "engine", 0.02, lambda: RuntimeError("engine down"), lambda: asyncio.CancelledError("lost")
        )
        if broken is not None:
            return broken
        return fate.choice(
            [kit.call("echo", n=number)] * 4
            + ["done"] * 2
            + ["<call> echo {", "words " * 40, kit.call("nope"), "<call> echo { </call>"]
        )

    boxes = kit.CountingSandboxes(
        create=lambda n: maybe_break("create", 0.05, lambda: OSError("no space"), hang),
        close=lambda box: maybe_break("close", 0.05, lambda: OSError("gone"), asyncio.CancelledError),
    )
    tasks = [
        kit.FunctionTask(
            [kit.turn(), kit.turn("more")],
            {"echo": tool},
            verdict,
            setup,
            sandbox=ferrule.SandboxSpec(),
            id=f"task-{i}",
            on_close=lambda run: maybe_break("close", 0.05, lambda: OSError("gone"), asyncio.CancelledError),
        )
        for i in range(EPISODES // 4)
    ]
    player = kit.player(
        answer,
        sandboxes=boxes,
        slots=SLOTS,
        retries=1,
        timeout=0.2,
        max_steps=6,
        max_response_tokens=90,
        sampling=SamplingParams(max_tokens=30),
        timeouts={"score_timeout": 0.2, "setup_timeout": 0.2},
    )
    playing = [asyncio.create_task(player.play(tasks[i // 4], i % 4, group="train/step-0")) for i in range(EPISODES)]

    victims = set()

    async def cancel_some():
        for _ in range(40):
            await asyncio.sleep(0.01)
            victim = fate.randrange(EPISODES)
            if not playing[victim].done() and victim not in victims:
                victims.add(victim)
                playing[victim].cancel()

    async with asyncio.timeout(120):
        await cancel_some()
        results = await asyncio.gather(*playing, return_exceptions=True)

    cancelled = [r for r in results if isinstance(r, BaseException)]
    episodes = [r for r in results if isinstance(r, ferrule.Episode)]
    assert all(isinstance(error, asyncio.CancelledError) for error in cancelled)
    assert len(cancelled) == len(victims) > 0
    assert min(injected[what] for what in ("tool", "verifier", "setup", "engine", "create", "close")) > 0

    assert player.stats.started == player.stats.closed
    assert player.stats.started["episodes"] >= EPISODES
    assert player.slots.free == SLOTS
    assert player.sampler.opened == player.sampler.closed
    assert {run.closed for task in tasks for run in task.runs} == {1}
    assert {box.closed for box in boxes.made} == {1}
    assert max(run.scored for task in tasks for run in task.runs) == 1

    for episode in episodes:
        if episode.failed:
            assert episode.failure in Failure
            assert episode.error
            assert "\n" not in episode.error
            assert (episode.reward, episode.termination) == (None, Termination.ERROR)
            assert {t.reward for t in episode.trajectories} <= {None}
        else:
            assert episode.reward == 0.5
            assert {t.reward for t in episode.trajectories} <= {0.5}
            assert episode.metrics["cut"] == (episode.termination is not Termination.ENV_DONE)
    reasons = {e.failure for e in episodes if e.failed}
    assert reasons >= {Failure.SANDBOX_FAILED, Failure.SETUP_FAILED, Failure.VERIFIER_CRASHED}
    endings = {e.termination for e in episodes}
    assert endings >= {
        Termination.ENV_DONE,
        Termination.TIMEOUT,
        Termination.MALFORMED_REPLY,
        Termination.MAX_RESPONSE_LENGTH,
    }
    assert len({e.id for e in episodes}) == len(episodes)
    assert len(asyncio.all_tasks()) == 1
