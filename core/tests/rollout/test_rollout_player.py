"""The player: slots, sessions, limits and retries, on every way an episode can go."""

from __future__ import annotations

import asyncio

import pytest
import structlog

import ferrule
from ferrule import EpisodeFailed, Failure, RolloutCut, SamplingParams, Termination
from ferrule.rollout import Slots

SPEC = ferrule.SandboxSpec()


def all_closed(player):
    assert player.stats.started == player.stats.closed
    assert set(player.stats.live.values()) <= {0}
    assert player.slots.free == player.slots.total
    if player.sampler is not None:
        assert player.sampler.opened == player.sampler.closed
    return True


def asks(kit, tool=lambda run, n: f"got {n}", **options):
    return kit.FunctionTask([kit.turn()], {"echo": tool}, verdict=lambda run: {"reward": len(run.calls) / 4}, **options)


async def test_an_episode_holds_the_conversation_its_tokens_and_its_verdict(kit):
    player = kit.player(kit.script(kit.call("echo", n=1), kit.call("echo", n=2), "done"))
    episode = await player.play(asks(kit), 2, step=3, group="train/step-3")
    assert (episode.id, episode.task_id, episode.attempt, episode.group) == (
        "train/step-3/task#2",
        "task",
        2,
        "train/step-3",
    )
    assert (episode.termination, episode.reward, episode.failure, episode.retries) == (
        Termination.ENV_DONE,
        0.5,
        None,
        0,
    )
    assert [m.role for m in episode.messages] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert episode.metrics == {"messages": 3, "tool_calls": 2, "tool_errors": 0, "turns": 1, "cut": 0, "resets": 0}
    (trajectory,) = episode.trajectories
    assert (trajectory.name, trajectory.reward, len(trajectory.steps), len(trajectory.segments)) == ("agent", 0.5, 3, 1)
    assert trajectory.steps[0].segment is trajectory.segments[0]
    assert trajectory.action_tokens == sum(len(ids) for ids in player.sampler.completions["train/step-3/task#2:agent"])
    assert all_closed(player)


async def test_seeds_depend_on_where_the_episode_stands_and_on_nothing_else(kit):
    seeds = []
    for _ in range(2):
        player = kit.player(kit.script("done"))
        for attempt, step in ((0, 1), (1, 1), (0, 2)):
            await player.play(asks(kit), attempt, step=step, group=f"train/step-{step}")
        seeds.append(player.sampler.seeds)
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0].values())) == 3


async def test_sampling_may_differ_for_one_episode(kit):
    player = kit.player(kit.script("done"), sampling=SamplingParams(temperature=1.1))
    await player.play(asks(kit))
    await player.play(asks(kit), sampling=SamplingParams(temperature=0.0))
    assert [p.temperature for p in player.sampler.params] == [1.1, 0.0]


# -- cuts --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "answers", "termination", "reward"),
    [
        ({"max_steps": 2}, ["CALL"], Termination.MAX_STEPS, 0.5),
        ({"max_prompt_tokens": 3}, ["CALL"], Termination.MAX_PROMPT_LENGTH, 0.0),
        ({"max_response_tokens": 22}, ["CALL"], Termination.MAX_RESPONSE_LENGTH, 0.5),
        ({"context_length": 30}, ["CALL"], Termination.MAX_RESPONSE_LENGTH, 0.5),
        (
            {"sampling": SamplingParams(max_tokens=5)},
            ["CALL", "far too many words to fit"],
            Termination.MAX_RESPONSE_LENGTH,
            0.25,
        ),
        ({}, ["CALL", "<call> echo {"], Termination.MALFORMED_REPLY, 0.25),
        ({"timeout": 0.05}, ["CALL", asyncio.sleep], Termination.TIMEOUT, 0.25),
    ],
)
async def test_a_rollout_that_is_cut_is_scored_where_it_stands(kit, limits, answers, termination, reward):
    def answer(prompt, number, key):
        said = answers[min(number, len(answers) - 1)]
        return asyncio.sleep(60) if said is asyncio.sleep else kit.call("echo", n=1) if said == "CALL" else said

    player = kit.player(answer, **limits)
    task = asks(kit)
    episode = await player.play(task)
    assert (episode.termination, episode.reward, episode.failure) == (termination, reward, None)
    assert episode.metrics["cut"] == 1
    assert [t.reward for t in episode.trajectories] == [reward]
    assert episode.metrics["messages"] == len(episode.trajectories[0].steps)
    assert task.runs[0].scored == task.runs[0].closed == 1
    assert all_closed(player)


async def test_conversations_are_closed_before_the_verifier_runs(kit):
    """A sampler in lock-step waits for every open conversation; one that is being judged will not come back."""
    task = asks(kit)
    player = kit.player(kit.script("done"))
    task.verdict = lambda run: {"reward": float(player.sampler.events[-1][0] == "close")}
    assert (await player.play(task)).reward == 1.0


async def test_conversations_of_a_batch_are_open_before_any_setup_ends(kit):
    gate = asyncio.Event()
    task = asks(kit, setup=lambda attempt, sandbox: gate.wait())
    player = kit.player(kit.script("done"))
    episodes = [asyncio.create_task(player.play(task, i)) for i in range(5)]
    await asyncio.sleep(0.01)
    assert sum(player.sampler.opened.values()) == 5
    gate.set()
    await asyncio.gather(*episodes)
    assert all_closed(player)


async def test_a_group_larger_than_the_slots_in_which_every_rollout_is_cut_is_scored_whole(kit):
    player = kit.player(kit.script(kit.call("echo", n=1)), max_steps=2, slots=2)
    task = asks(kit)
    async with asyncio.timeout(10):
        episodes = await asyncio.gather(*(player.play(task, i) for i in range(9)))
    assert [e.reward for e in episodes] == [0.5] * 9
    assert {e.termination for e in episodes} == {Termination.MAX_STEPS}
    assert all_closed(player)


async def test_no_more_episodes_are_under_way_than_there_are_slots(kit):
    most = 0

    def watch(run, n):
        nonlocal most
        most = max(most, player.slots.taken)
        return asyncio.sleep(0, "x")

    player = kit.player(kit.script(kit.call("echo", n=1), "done"), slots=3)
    await asyncio.gather(*(player.play(asks(kit, watch), i) for i in range(12)))
    assert most == 3


async def test_a_cut_that_a_harness_swallows_still_ends_the_rollout(kit):
    async def stubborn(play, rollout):
        turn = await play.next_turn()
        messages = [*turn.messages]
        for _ in range(5):
            try:
                messages += [(await rollout.agent().reply(messages)).message, *turn.messages]
            except RolloutCut:
                continue
        await turn.end(messages[-2])
        await play.next_turn()

    player = kit.player(kit.script("hm"), harness=kit.FunctionHarness(stubborn), max_steps=2)
    episode = await player.play(asks(kit))
    assert (episode.termination, len(episode.trajectories[0].steps)) == (Termination.MAX_STEPS, 2)


async def test_a_cut_that_arrives_in_a_task_group_is_a_cut(kit):
    async def side_by_side(play, rollout):
        turn = await play.next_turn()
        async with asyncio.TaskGroup() as group:
            for role in rollout.limits and ("agent", "critic"):
                group.create_task(rollout.agent(role).reply(turn.messages))

    harness = kit.FunctionHarness(side_by_side, roles=("agent", "critic"))
    player = kit.player(kit.script("hm"), harness=harness, max_steps=1)
    episode = await player.play(asks(kit))
    assert (episode.termination, episode.failure) == (Termination.MAX_STEPS, None)
    assert [t.name for t in episode.trajectories] == ["agent", "critic"]


async def test_a_harness_that_leaves_early_is_scored_as_unknown(kit):
    async def leaves(play, rollout):
        await play.next_turn()

    player = kit.player(kit.script("hm"), harness=kit.FunctionHarness(leaves))
    assert (await player.play(asks(kit))).termination is Termination.UNKNOWN


async def test_what_a_harness_keeps_of_an_episode_is_filed_with_it_without_secrets(kit, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "sk-very-secret")

    async def keeps(play, rollout):
        play.artifacts["output"] = "logged in with sk-very-secret"

    player = kit.player(kit.script("hm"), harness=kit.FunctionHarness(keeps))
    assert (await player.play(asks(kit))).artifacts == {"output": "logged in with ***"}


async def test_a_harness_without_a_model_opens_no_conversation(kit):
    async def silent(play, rollout):
        while turn := await play.next_turn():
            await turn.end(ferrule.Message("assistant"))

    player = kit.player(kit.script("hm"), harness=kit.FunctionHarness(silent, needs_model=False))
    episode = await player.play(asks(kit))
    assert (episode.reward, episode.trajectories) == (0.0, ())
    assert player.sampler.opened == {}


# -- failures ----------------------------------------------------------------------------------------------------------


async def test_a_failed_setup_leaves_no_reward_whatever_the_verifier_says(kit):
    task = kit.FunctionTask([kit.turn(), EpisodeFailed(Failure.SETUP_FAILED, "setup.sh")], verdict={"reward": 1.0})
    player = kit.player(kit.script("done"), retries=2)
    episode = await player.play(task)
    assert (episode.failure, episode.error, episode.reward, episode.retries) == (
        Failure.SETUP_FAILED,
        "setup.sh",
        None,
        2,
    )
    assert episode.termination is Termination.ERROR
    assert [t.reward for t in episode.trajectories] == [None]
    assert len(episode.trajectories[0].steps) == 1
    assert len(task.runs) == 3
    assert all_closed(player)


async def test_an_unreadable_reward_keeps_its_scores_but_is_none(kit):
    task = kit.FunctionTask([], verdict={"a": 1.0, "b": 0.5})
    episode = await kit.player(kit.script("done"), reward="c").play(task)
    assert (episode.failure, episode.reward, episode.scores) == (Failure.REWARD_MISSING, None, {"a": 1.0, "b": 0.5})


async def test_a_first_prompt_over_the_budget_is_scored_and_frees_its_slot(kit):
    task = kit.FunctionTask([kit.turn("w " * 90)], verdict={"reward": 0.2})
    player = kit.player(kit.script("done"), max_prompt_tokens=50, slots=1)
    episodes = await asyncio.gather(*(player.play(task, i) for i in range(3)))
    assert [(e.reward, e.termination, e.metrics["cut"]) for e in episodes] == [
        (0.2, Termination.MAX_PROMPT_LENGTH, 1)
    ] * 3
    assert [len(e.trajectories[0].steps) for e in episodes] == [0, 0, 0]
    assert all_closed(player)


async def test_a_renderer_that_cannot_write_tools_ends_it_at_once_and_is_named(kit):
    player = kit.player(kit.script("done"), renderer=kit.WordRenderer(refuses_tools=True), retries=5, slots=1)
    task = asks(kit)
    episode = await player.play(task)
    assert (episode.failure, episode.error) == (Failure.RENDER_FAILED, "renderer 'words': cannot write tools")
    assert episode.reward is None
    assert (player.renderer.rendered, len(task.runs), task.runs[0].scored) == (1, 1, 0)
    assert all_closed(player)


async def test_a_retry_of_one_of_two_makes_three_episodes_all_closed(kit):
    tries = []

    def setup(attempt, sandbox):
        tries.append(attempt)
        return EpisodeFailed(Failure.SETUP_FAILED, "once") if tries == [0, 1] else None

    boxes = kit.CountingSandboxes()
    player = kit.player(kit.script("done"), sandboxes=boxes, retries=2)
    task = asks(kit, setup=setup, sandbox=SPEC)
    first, second = await asyncio.gather(player.play(task, 0), player.play(task, 1))
    assert (first.retries, second.retries) == (0, 1)
    assert (first.failure, second.failure, second.id) == (None, None, "task#1~1")
    assert player.stats.started == {"episodes": 3, "sessions": 3, "sandboxes": 3, "plays": 2}
    assert [box.closed for box in boxes.made] == [1, 1, 1]
    assert len(set(player.sampler.seeds.values())) == 3
    assert all_closed(player)


async def test_a_harness_that_raises_fails_the_episode_in_one_line(kit):
    async def broken(play, rollout):
        raise ValueError("two\nlines")

    player = kit.player(kit.script("hm"), harness=kit.FunctionHarness(broken))
    with structlog.testing.capture_logs() as logs:
        episode = await player.play(asks(kit))
    assert (episode.failure, episode.error) == (Failure.HARNESS_FAILED, "harness 'function': ValueError: two lines")
    events = {entry["event"]: entry for entry in logs}
    assert (events["harness_failed"]["log_level"], events["harness_failed"]["exc_info"]) == ("debug", True)
    assert (events["episode_failed"]["reason"], events["episode_failed"]["again"]) == ("harness_failed", False)
    assert all_closed(player)


async def test_a_harness_that_hides_a_failure_does_not_win_a_reward(kit):
    def dead(run, n):
        raise ferrule.SandboxError("gone")

    async def hides(play, rollout):
        try:
            await kit.LoopHarness().run(play, rollout)
        except EpisodeFailed:
            return

    async def blurs(play, rollout):
        try:
            await kit.LoopHarness().run(play, rollout)
        except EpisodeFailed:
            raise KeyError("something") from None

    for function in (hides, blurs):
        player = kit.player(kit.script(kit.call("echo", n=1)), harness=kit.FunctionHarness(function))
        episode = await player.play(asks(kit, dead))
        assert (episode.failure, episode.error, episode.reward) == (Failure.SANDBOX_FAILED, "gone", None)


async def test_a_cancel_from_inside_is_a_failure_and_not_a_cancel(kit):
    async def strays(play, rollout):
        raise asyncio.CancelledError

    player = kit.player(kit.script("hm"), harness=kit.FunctionHarness(strays))
    assert (await player.play(asks(kit))).failure is Failure.CANCELLED
    assert all_closed(player)


async def test_a_role_nobody_declared_is_told(kit):
    async def asks_other(play, rollout):
        rollout.agent("judge")

    player = kit.player(kit.script("hm"), harness=kit.FunctionHarness(asks_other))
    assert "no agent called 'judge'; the harness's roles: agent" in (await player.play(asks(kit))).error


# -- cancelling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["slot", "create", "setup", "sample", "tool", "score", "close", "session"])
async def test_a_cancel_anywhere_closes_everything_and_gives_the_slot_back(kit, where):
    reached = asyncio.Event()

    def hang(here, value=None):
        async def wait():
            reached.set()
            await asyncio.sleep(0.05 if where in ("close", "session") else 60)
            return value

        return wait() if here == where else value

    boxes = kit.CountingSandboxes(create=lambda n: hang("create"))
    task = asks(
        kit,
        lambda run, n: hang("tool", "x"),
        setup=lambda attempt, box: hang("setup"),
        sandbox=SPEC,
        on_close=lambda run: hang("close"),
    )
    task.verdict = lambda run: hang("score", {"reward": 1.0})
    player = kit.player(
        lambda prompt, n, key: hang("sample", kit.call("echo", n=1) if n == 0 else "done"),
        sandboxes=boxes,
        slots=1,
        retries=3,
    )
    player.sampler.on_close = lambda key: hang("session")
    holder = await player.slots.take() if where == "slot" else None
    playing = asyncio.create_task(player.play(task))
    await (asyncio.sleep(0.01) if holder else reached.wait())
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    if holder:
        holder.release()
    assert all(run.closed == 1 for run in task.runs)
    assert all(box.closed == 1 for box in boxes.made)
    assert len(boxes.made) == (where not in ("slot", "create"))
    assert all_closed(player)


async def test_conversations_close_although_a_cancel_comes_while_a_failed_episode_is_closed(kit):
    reached = asyncio.Event()

    async def slowly():
        reached.set()
        await asyncio.sleep(0.05)

    task = asks(kit, setup=lambda attempt, sandbox: OSError("disk"))
    player = kit.player(kit.script("done"))
    player.sampler.on_close = lambda key: slowly()
    playing = asyncio.create_task(player.play(task))
    await reached.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert all_closed(player)


@pytest.mark.parametrize("error", [OSError("x"), asyncio.CancelledError()])
async def test_a_conversation_that_fails_to_close_spoils_nothing(kit, error):
    player = kit.player(kit.script("done"))
    player.sampler.on_close = lambda key: error
    episode = await player.play(asks(kit))
    assert (episode.failure, episode.reward) == (None, 0.0)
    assert player.stats.started == player.stats.closed


async def test_a_slot_is_given_back_once_and_in_the_order_of_asking():
    slots, order = Slots(1), []
    first = await slots.take()

    async def wait(n):
        async with await slots.take():
            order.append(n)

    waiting = [asyncio.create_task(wait(n)) for n in range(3)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    assert (slots.taken, slots.free) == (1, 0)
    first.release()
    first.release()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert order == [0, 2]
    assert (slots.taken, slots.free) == (0, 1)
    with pytest.raises(ValueError, match="at least one"):
        Slots(0)
