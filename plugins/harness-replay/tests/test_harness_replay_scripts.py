"""Recorded messages, played against a real play."""

from __future__ import annotations

import json

import pytest
from ferrule_harness_replay import Replay

from ferrule import EpisodeFailed, Failure, FerruleError, Message, Play, Task, TaskRun, ToolSpec, TurnSpec

GOLD = [
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "a", "function": {"name": "add", "arguments": '{"n": 2}'}}],
    },
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "b", "function": {"name": "add", "arguments": {"n": 3}}}],
    },
    {"role": "assistant", "content": "five"},
]


class Sums(Task):
    """Asks *turns* times for the sum of five."""

    score_names = ("right",)

    def __init__(self, gold=None, turns=2, id="sums"):
        self.id, self.turns, self.metadata = id, turns, {} if gold is None else {"gold": gold}

    async def start(self, attempt, sandbox):
        return SumsRun(self.turns)


class SumsRun(TaskRun):
    def __init__(self, turns):
        self.left, self.total, self.replies = turns, 0, []

    async def next_turn(self):
        self.left -= 1
        return TurnSpec("make five", None, (ToolSpec("add"),)) if self.left >= 0 else None

    async def call(self, call):
        self.total += call.arguments["n"]
        return str(self.total)

    async def end_turn(self, reply):
        self.replies.append(reply)

    async def score(self):
        return {"right": float(self.total == 5)}


class Given:
    def __init__(self, task):
        self.task = task


async def played(task, script="gold"):
    play = Play(task)
    await play.start()
    try:
        await Replay(Replay.Config(script=script)).run(play, Given(task))
        return play, (await play.result()).reward
    finally:
        await play.close()


async def test_gold_messages_are_played_and_turns_without_one_end_empty():
    play, reward = await played(Sums(GOLD))
    assert reward == 1.0
    assert [m.content for m in play.messages if m.role == "tool"] == ["2", "5"]
    assert [m.content for m in play.messages if m.role == "assistant"] == ["", "", "five", ""]
    assert play.metrics["messages"] == 4


async def test_a_script_that_ends_in_a_call_is_followed_by_an_empty_reply():
    play, reward = await played(Sums(GOLD[:2], turns=1))
    assert reward == 1.0
    assert play.messages[-1] == Message("assistant")


async def test_doing_nothing_ends_every_turn_and_needs_no_recording():
    play, reward = await played(Sums(), "nothing")
    assert reward == 0.0
    assert play.metrics["messages"] == 2
    assert play.metrics["tool_calls"] == 0


async def test_a_file_holds_recordings_by_task(tmp_path):
    path = tmp_path / "recorded.jsonl"
    path.write_text(
        json.dumps({"task_id": "other", "messages": []})
        + "\n\n"
        + json.dumps({"task_id": "sums", "messages": [{"role": "user", "content": "hi"}, *GOLD]})
    )
    _, reward = await played(Sums(), path)
    assert reward == 1.0
    with pytest.raises(EpisodeFailed, match="holds no messages for task 'new'"):
        await played(Sums(id="new"), path)


@pytest.mark.parametrize(
    ("gold", "text"),
    [(None, "carries no recorded messages"), ([{"content": "x"}], "KeyError"), (5, "TypeError"), (["x"], "TypeError")],
)
async def test_a_task_without_a_recording_fails_with_its_name(gold, text):
    with pytest.raises(EpisodeFailed) as caught:
        await played(Sums(gold))
    assert caught.value.reason is Failure.HARNESS_FAILED
    assert "'sums'" in caught.value.detail
    assert text in caught.value.detail


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"messages": []}', '{"task_id": "a", "messages": [{"role": "assistant", "tool_calls": [{}]}]}']
)
def test_a_line_that_is_wrong_is_named(tmp_path, line):
    path = tmp_path / "recorded.jsonl"
    path.write_text('{"task_id": "b", "messages": []}\n' + line)
    with pytest.raises(FerruleError, match=r"recorded\.jsonl:2"):
        Replay(Replay.Config(script=path))


def test_two_recordings_of_one_task_are_refused(tmp_path):
    path = tmp_path / "recorded.jsonl"
    path.write_text('{"task_id": "b", "messages": []}\n' * 2)
    with pytest.raises(FerruleError, match="second recording of task 'b'"):
        Replay(Replay.Config(script=path))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        Replay.Config(script=tmp_path / "none.jsonl")


def test_it_needs_no_model():
    assert (Replay.name, Replay.needs_model, Replay.roles) == ("replay", False, ())
