"""The loop plays real plays with a model whose words are fixed; what is checked is what the model is shown and what
the task sees.
"""

from __future__ import annotations

import pytest
from ferrule_harness_tools import Tools, shorten

import ferrule
from ferrule import Message, Parsed, Play, Reply, RolloutCut, Task, TaskRun, Termination, ToolCall, ToolSpec, TurnSpec

SPEC = ToolSpec("look", "Looks.")


class Days(Task):
    """Two turns; ``look`` answers a text as long as asked."""

    id, metadata, score_names = "days", {}, ("looks",)

    async def start(self, attempt, sandbox):
        return DaysRun()


class DaysRun(TaskRun):
    def __init__(self):
        self.turns = [TurnSpec("first", "sys", (SPEC,)), TurnSpec("second", "sys", (SPEC,))]
        self.lengths, self.replies = [], []

    async def next_turn(self):
        return self.turns.pop(0) if self.turns else None

    async def call(self, call):
        self.lengths.append(call.arguments["length"])
        return "".join(str(i % 10) for i in range(self.lengths[-1]))

    async def end_turn(self, reply):
        self.replies.append(reply.content)

    async def score(self):
        return {"looks": float(len(self.lengths))}


class FixedAgent:
    """Says *messages* one after another, then is cut; keeps the requests it was shown."""

    def __init__(self, *messages):
        self.messages, self.shown, self.identities = list(messages), [], []

    async def reply(self, messages, tools=()):
        assert tools == (SPEC,)
        self.shown.append(list(messages))
        self.identities.append([id(m) for m in messages])
        if not self.messages:
            raise RolloutCut(Termination.MAX_STEPS)
        message = self.messages.pop(0)
        return Reply(message, Parsed(message), len(self.shown) - 1, "stop")


class Given:
    def __init__(self, agent):
        self._agent = agent

    def agent(self, name="agent"):
        return self._agent


def looks(*lengths):
    return Message("assistant", tool_calls=[ToolCall(f"c{i}", "look", {"length": n}) for i, n in enumerate(lengths)])


async def played(agent, **config):
    play = Play(Days())
    await play.start()
    try:
        await Tools(Tools.Config(**config)).run(play, Given(agent))
        return play, await play.result()
    finally:
        await play.close()


async def test_calls_are_run_and_answered_until_a_reply_without_one_ends_each_turn():
    agent = FixedAgent(looks(3, 5), Message("assistant", "one"), Message("assistant", "two"))
    play, result = await played(agent)
    assert result.reward == 2.0
    assert [m.content for m in play.messages if m.role == "tool"] == ["012", "01234"]
    assert [m.tool_call_id for m in agent.shown[1] if m.role == "tool"] == ["c0", "c1"]
    assert [m.role for m in agent.shown[-1]] == ["system", "user", "assistant", "tool", "tool", "assistant", "user"]
    assert play.metrics == {"messages": 3, "tool_calls": 2, "tool_errors": 0, "turns": 2, "cut": 0}


async def test_each_request_holds_the_very_objects_of_the_last():
    agent = FixedAgent(looks(30), Message("assistant", "one"), Message("assistant", "two"))
    await played(agent, answer_limit=10)
    for before, after in zip(agent.identities, agent.identities[1:], strict=False):
        assert after[: len(before)] == before


async def test_a_long_answer_is_shortened_for_the_model_and_kept_whole_in_the_record():
    agent = FixedAgent(looks(30), Message("assistant", "one"), Message("assistant", "two"))
    play, _ = await played(agent, answer_limit=9)
    assert agent.shown[1][-1].content == "01234\n[… 21 characters left out …]\n6789"
    assert agent.shown[1][-1].tool_call_id == "c0"
    assert [len(m.content) for m in play.messages if m.role == "tool"] == [30]


async def test_a_cut_passes_through():
    with pytest.raises(RolloutCut):
        await played(FixedAgent(looks(1)))


@pytest.mark.parametrize(
    ("limit", "shown"),
    [
        (None, "abcdef"),
        (6, "abcdef"),
        (5, "abc\n[… 1 characters left out …]\nef"),
        (1, "a\n[… 5 characters left out …]\n"),
    ],
)
def test_head_and_tail_of_a_text(limit, shown):
    assert shorten("abcdef", limit) == shown


def test_a_limit_of_nothing_is_refused():
    with pytest.raises(ValueError):
        Tools.Config(answer_limit=0)


def test_its_name_is_the_entry_point():
    assert Tools.name == "tools"
    assert issubclass(Tools, ferrule.Harness)
