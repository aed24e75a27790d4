"""A play: its order, its answers to the model, and its one verdict."""

from __future__ import annotations

import asyncio
import math

import pytest

import ferrule
from ferrule import EpisodeFailed, Failure, Message, Play, Termination, ToolCall, ToolError, ToolSpec

REPLY = Message("assistant", "done")
SPEC = ferrule.SandboxSpec()


async def failure_of(awaitable):
    with pytest.raises(EpisodeFailed) as caught:
        await awaitable
    return caught.value


async def answers(kit, tools, *calls, offered=None):
    """The play and its answers to *calls* in its first turn."""
    task = kit.FunctionTask([kit.turn(tools=offered or [ToolSpec(name) for name in tools])], tools)
    play = Play(task)
    await play.start()
    turn = await play.next_turn()
    turn.record(Message("assistant", tool_calls=calls))
    return play, await turn.call(calls)


async def test_a_play_from_start_to_result(kit):
    task = kit.FunctionTask([kit.turn("one", "sys"), kit.turn("two")], {"echo": lambda run, text: f"said {text}"})
    async with Play(task, 3) as play:
        turn = await play.next_turn()
        assert (turn.system, turn.prompt, turn.tools) == ("sys", "one", (kit.ECHO,))
        assert turn.messages == [Message("system", "sys"), Message("user", "one")]
        call = ToolCall("c1", "echo", {"text": "hi"})
        turn.record(Message("assistant", tool_calls=[call]))
        assert await turn.call([call]) == [Message("tool", "said hi", tool_call_id="c1", name="echo")]
        turn.record(REPLY)
        await turn.end(REPLY)
        turn = await play.next_turn()
        turn.record(REPLY)
        await turn.end(REPLY)
        assert await play.next_turn() is None
        result = await play.result()
    assert (result.reward, result.scores, result.termination) == (1.0, {"reward": 1.0}, Termination.ENV_DONE)
    assert play.metrics == {"messages": 3, "tool_calls": 1, "tool_errors": 0, "turns": 2, "cut": 0}
    assert [m.role for m in play.messages] == ["system", "user", "assistant", "tool", "assistant", "user", "assistant"]
    (run,) = task.runs
    assert (run.attempt, run.ended, run.scored, run.closed) == (3, [REPLY, REPLY], 1, 1)


async def test_there_is_no_result_before_the_end(kit):
    play = Play(kit.FunctionTask([kit.turn(), kit.turn()]))
    with pytest.raises(RuntimeError, match="not started"):
        await play.next_turn()
    await play.start()
    with pytest.raises(RuntimeError, match="between turns"):
        await play.result()
    turn = await play.next_turn()
    for misuse in (play.result, play.next_turn):
        with pytest.raises(RuntimeError, match="in a turn"):
            await misuse()
    await turn.end(REPLY)
    other = await play.next_turn()
    with pytest.raises(RuntimeError, match="another is under way"):
        turn.record(REPLY)
    await other.end(REPLY)
    with pytest.raises(RuntimeError, match="between turns"):
        other.record(REPLY)
    assert await play.next_turn() is None
    assert await play.next_turn() is None
    assert (await play.result()) is (await play.result())
    await play.close()
    with pytest.raises(RuntimeError, match="closed"):
        await play.next_turn()
    with pytest.raises(RuntimeError, match="started before"):
        await play.start()


async def test_a_changed_system_prompt_is_text_before_that_turns_prompt(kit):
    turns = [
        kit.turn("one", "first"),
        kit.turn("two", "first"),
        kit.turn("three", "second"),
        kit.turn("four"),
        kit.turn("five", "second"),
    ]
    async with Play(kit.FunctionTask(turns)) as play:
        seen = []
        while turn := await play.next_turn():
            seen.append((turn.system, [(m.role, m.content) for m in turn.messages]))
            await turn.end(REPLY)
    assert seen == [
        ("first", [("system", "first"), ("user", "one")]),
        ("first", [("user", "two")]),
        ("second", [("user", "second\n\nthree")]),
        ("second", [("user", "four")]),
        ("second", [("user", "five")]),
    ]


# -- answers -----------------------------------------------------------------------------------------------------------


async def test_several_calls_run_in_order_and_are_answered_by_id(kit):
    play, said = await answers(
        kit,
        {"echo": lambda run, n: f"{n}: {len(run.calls)}"},
        *(ToolCall(f"c{n}", "echo", {"n": n}) for n in (2, 1, 3)),
    )
    assert [(m.tool_call_id, m.content) for m in said] == [("c2", "2: 1"), ("c1", "1: 2"), ("c3", "3: 3")]
    assert play.metrics["tool_errors"] == 0


async def test_an_unknown_tool_and_a_malformed_call_are_answered_and_never_run(kit):
    play, said = await answers(
        kit,
        {"b": None, "a": None},
        ToolCall("1", "nope"),
        ToolCall("2", "a", {}, error="line 1: no closing brace."),
        ToolCall("3", "a", ["x"]),
        ToolCall("4", "", {}, error="it has no name"),
    )
    assert [m.content for m in said] == [
        "Error: there is no tool 'nope'. The tools are: a, b.",
        "Error: the call of 'a' cannot be read: line 1: no closing brace. The tools are: a, b.",
        "Error: the arguments of 'a' are not an object. The tools are: a, b.",
        "Error: the call of '' cannot be read: it has no name. The tools are: a, b.",
    ]
    assert (play.metrics["tool_calls"], play.metrics["tool_errors"]) == (4, 4)


def raises(error):
    def tool(run):
        raise error

    return tool


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ToolError("the plan is too long"), "the plan is too long"),
        (ToolError(), "Error: t refused."),
        (ValueError("no\nsuch day"), "Error: ValueError: no such day"),
        (ferrule.CommandTimeout(3), "Error: CommandTimeout: the command was killed after 3 s"),
        (asyncio.CancelledError(), "Error: t was cancelled."),
    ],
)
async def test_a_tool_that_raises_answers_the_model_and_the_turn_goes_on(kit, error, text):
    play, (said, after) = await answers(
        kit, {"t": raises(error), "u": lambda run: "still here"}, ToolCall("1", "t"), ToolCall("2", "u")
    )
    assert (said.content, after.content) == (text, "still here")
    assert (play.metrics["tool_calls"], play.metrics["tool_errors"]) == (2, 1)
    await play.turn.end(REPLY)
    assert await play.next_turn() is None
    assert (await play.result()).reward == 1.0


async def test_a_dead_sandbox_in_a_tool_ends_the_play_for_good(kit):
    task = kit.FunctionTask([kit.turn()], {"echo": raises(ferrule.SandboxError("gone"))})
    async with Play(task) as play:
        turn = await play.next_turn()
        assert (await failure_of(turn.call([ToolCall("1", "echo")]))).reason is Failure.SANDBOX_FAILED
        for call in (turn.end(REPLY), play.next_turn(), play.result(), play.cut(Termination.TIMEOUT)):
            assert (await failure_of(call)).reason is Failure.SANDBOX_FAILED
    assert task.runs[0].scored == 0


# -- verdicts ----------------------------------------------------------------------------------------------------------


async def verdict(kit, verdict, reward=None, score_timeout=600.0):
    task = kit.FunctionTask([], verdict=verdict)
    async with Play(task, reward=reward, score_timeout=score_timeout) as play:
        assert await play.next_turn() is None
        try:
            return await play.result()
        finally:
            assert task.runs[0].scored == 1


async def test_the_reward_is_the_one_score_or_the_named_one(kit):
    assert (await verdict(kit, {"only": 0.25})).reward == 0.25
    result = await verdict(kit, {"a": 1, "b": True}, reward="b")
    assert (result.reward, result.scores) == (1.0, {"a": 1.0, "b": 1.0})


@pytest.mark.parametrize(
    ("scores", "reward", "reason", "text"),
    [
        ({}, None, Failure.REWARD_MISSING, "no score"),
        ({"a": 1.0, "b": 0.0}, None, Failure.REWARD_MISSING, "several scores (a, b): set rollout.reward"),
        ({"a": 1.0}, "c", Failure.REWARD_MISSING, "no score 'c'; there are: a"),
        ({"a": math.nan}, None, Failure.REWARD_UNREADABLE, "score 'a' is nan, not finite"),
        ({"a": 1.0, "b": -math.inf}, "a", Failure.REWARD_UNREADABLE, "not finite"),
        ({"a": "1.0"}, None, Failure.REWARD_UNREADABLE, "not a number"),
        ({"a": None}, None, Failure.REWARD_UNREADABLE, "not a number"),
        ([1.0], None, Failure.REWARD_UNREADABLE, "gave list"),
        (ZeroDivisionError("in the verifier"), None, Failure.VERIFIER_CRASHED, "ZeroDivisionError: in the verifier"),
        (asyncio.CancelledError(), None, Failure.VERIFIER_CRASHED, "cancelled itself"),
        (ferrule.CommandTimeout(9), None, Failure.VERIFIER_TIMEOUT, "after 9 s"),
        (EpisodeFailed(Failure.UPLOAD_FAILED, "tests"), None, Failure.UPLOAD_FAILED, "tests"),
    ],
)
async def test_a_verdict_that_is_none_is_a_failure_with_its_own_name(kit, scores, reward, reason, text):
    failure = await failure_of(verdict(kit, lambda run: scores, reward))
    assert failure.reason is reason
    assert text in failure.detail


async def test_a_verifier_that_hangs_is_given_up(kit):
    failure = await failure_of(verdict(kit, lambda run: asyncio.sleep(60), score_timeout=0.01))
    assert (failure.reason, failure.detail) == (Failure.VERIFIER_TIMEOUT, "no scores after 0.01 s")


@pytest.mark.parametrize("where", ["between", "turn", "over"])
async def test_a_cut_scores_what_there_is_once(kit, where):
    task = kit.FunctionTask([kit.turn()], {"echo": lambda run: "x"}, verdict=lambda run: {"calls": len(run.calls)})
    async with Play(task) as play:
        if where != "between":
            turn = await play.next_turn()
            await turn.call([ToolCall("1", "echo")])
        if where == "over":
            await turn.end(REPLY)
            await play.next_turn()
        result = await play.cut(Termination.MAX_STEPS)
        assert result.termination is Termination.MAX_STEPS
        assert result.reward == (where != "between")
        assert (await play.cut(Termination.TIMEOUT)) is (await play.result()) is result
        with pytest.raises(RuntimeError, match="scored"):
            await play.next_turn()
    assert play.metrics["cut"] == 1
    assert task.runs[0].scored == 1


async def test_a_setup_step_that_failed_leaves_no_reward_although_the_verifier_would_give_one(kit):
    task = kit.FunctionTask(
        [kit.turn(), EpisodeFailed(Failure.SETUP_FAILED, "workdir/setup.sh")], verdict={"reward": 1.0}
    )
    async with Play(task) as play:
        turn = await play.next_turn()
        await turn.end(REPLY)
        for call in (play.next_turn(), play.cut(Termination.UNKNOWN), play.result()):
            assert (await failure_of(call)).reason is Failure.SETUP_FAILED


async def test_what_breaks_between_turns_is_not_the_policys_doing(kit):
    async with Play(kit.FunctionTask([KeyError("day")])) as play:
        failure = await failure_of(play.next_turn())
        assert (failure.reason, failure.detail) == (Failure.SETUP_FAILED, "next_turn: KeyError: 'day'")


# -- opening and closing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setup", "reason"),
    [
        (EpisodeFailed(Failure.SETUP_FAILED, "no"), Failure.SETUP_FAILED),
        (ferrule.SandboxError("died"), Failure.SANDBOX_FAILED),
        (OSError("disk"), Failure.SETUP_FAILED),
        (asyncio.CancelledError(), Failure.SETUP_FAILED),
        (asyncio.sleep, Failure.SETUP_FAILED),
    ],
)
async def test_a_setup_that_fails_closes_the_sandbox(kit, setup, reason):
    boxes = kit.CountingSandboxes()
    task = kit.FunctionTask(
        [], setup=lambda attempt, sandbox: setup(60) if setup is asyncio.sleep else setup, sandbox=SPEC
    )
    play = Play(task, sandboxes=boxes, setup_timeout=0.01 if setup is asyncio.sleep else 600.0)
    assert (await failure_of(play.start())).reason is reason
    await play.close()
    assert [box.closed for box in boxes.made] == [1]
    assert (await failure_of(play.next_turn())).reason is reason


async def test_a_sandbox_that_cannot_be_made_is_named(kit):
    task = kit.FunctionTask([], sandbox=SPEC)
    boxes = kit.CountingSandboxes(create=lambda n: OSError("no space"))
    failure = await failure_of(Play(task, sandboxes=boxes).start())
    assert (failure.reason, failure.detail) == (Failure.SANDBOX_FAILED, "sandbox 'counting': OSError: no space")
    assert "add a [sandbox] section" in (await failure_of(Play(task).start())).detail
    strict = kit.FunctionTask([], sandbox=SPEC, needs_isolation=True)
    assert "isolates nothing" in (await failure_of(Play(strict, sandboxes=kit.CountingSandboxes()).start())).detail


async def test_closing_happens_once_and_outlasts_a_cancel(kit):
    gate, boxes = asyncio.Event(), kit.CountingSandboxes()
    task = kit.FunctionTask([], on_close=lambda run: gate.wait(), sandbox=SPEC)
    play = Play(task, sandboxes=boxes)
    await play.start()
    closing = asyncio.create_task(play.close())
    await asyncio.sleep(0)
    for _ in range(2):
        closing.cancel()
        await asyncio.sleep(0.001)
    assert not closing.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await play.close()
    assert task.runs[0].closed == boxes.made[0].closed == 1


@pytest.mark.parametrize("error", [OSError("x"), asyncio.CancelledError()])
async def test_a_run_that_fails_to_close_does_not_keep_its_sandbox(kit, error):
    boxes = kit.CountingSandboxes()
    task = kit.FunctionTask([], on_close=lambda run: error, sandbox=SPEC)
    async with Play(task, sandboxes=boxes):
        pass
    assert boxes.made[0].closed == 1
