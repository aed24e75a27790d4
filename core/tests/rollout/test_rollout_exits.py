"""Other people's code that calls ``sys.exit`` ends its episode, or its call, and never the run."""

from __future__ import annotations

import sys

import pytest

import ferrule
from ferrule import Failure, Termination


def leaves(*_: object) -> None:
    sys.exit(0)


async def test_a_tool_that_exits_is_answered_to_the_model(kit):
    player = kit.player(kit.script(kit.call("echo"), "done"))
    task = kit.FunctionTask([kit.turn()], {"echo": leaves})
    episode = await player.play(task)
    assert (episode.termination, episode.reward, episode.failure) == (Termination.ENV_DONE, 1.0, None)
    assert [m.content for m in episode.messages if m.role == "tool"] == ["Error: SystemExit: 0"]


@pytest.mark.parametrize(
    ("where", "reason"),
    [("setup", Failure.SETUP_FAILED), ("turns", Failure.SETUP_FAILED), ("verdict", Failure.VERIFIER_CRASHED)],
)
async def test_a_task_that_exits_fails_its_episode_and_all_is_closed(kit, where, reason):
    options = {where: leaves} if where != "turns" else {}
    task = kit.FunctionTask([SystemExit(0) if where == "turns" else kit.turn()], **options)
    player = kit.player(kit.script("done"), retries=1)
    episode = await player.play(task)
    assert (episode.failure, episode.reward, episode.retries) == (reason, None, 1)
    assert "SystemExit" in episode.error
    assert not any(player.stats.live.values())
    assert player.slots.free == player.slots.total


async def test_a_task_that_exits_while_it_is_closed_spoils_nothing(kit):
    player = kit.player(kit.script("done"))
    episode = await player.play(kit.FunctionTask([kit.turn()], on_close=leaves))
    assert (episode.failure, episode.reward) == (None, 1.0)
    assert not any(player.stats.live.values())


async def test_a_harness_and_a_sandbox_that_exit_are_named(kit):
    player = kit.player(kit.script("done"), harness=kit.FunctionHarness(leaves))
    assert (await player.play(kit.FunctionTask([kit.turn()]))).failure is Failure.HARNESS_FAILED
    boxes = kit.CountingSandboxes(create=leaves)
    player = kit.player(kit.script("done"), sandboxes=boxes)
    episode = await player.play(kit.FunctionTask([kit.turn()], sandbox=ferrule.SandboxSpec()))
    assert episode.failure is Failure.SANDBOX_FAILED
    assert not any(player.stats.live.values())
