from __future__ import annotations

import json
from pathlib import Path

import pytest
from ferrule_taskset_bundle import BundleTaskset

import ferrule

PYTHON = """
class Dice:
    def __init__(self, sides):
        self.sides, self.rolls = sides, 0

async def roll(state):
    if state.rolls:
        raise ValueError("once only")
    state.rolls += 1
    return state.sides

def done(state): return float(state.rolls)

def demos(rng, count, tasks):
    for _ in range(count):
        task = rng.choice(tasks)
        yield {"task": task.id, "script": [{"call": "roll"}, {"content": "again", "calls": [{"call": "roll"}]}, str(rng.random()), "bye"]}
"""

TOML = """
python = "dice.py"
state = "Dice"
tools = ["roll"]
verifiers = { reward = "done" }
system = "Roll."
turns = [{ prompt = "{sides} sides." }, { prompt = "And again?", system = "Say bye." }]
demonstrations = "demos"
tasks = [
  { id = "six", params = { sides = 6 }, split = "train" },
  { id = "ten", params = { sides = 10 }, split = "train" },
  { id = "two", params = { sides = 2 }, split = "dev" },
]
"""


def read(folder: Path, toml: str = TOML, python: str = PYTHON) -> BundleTaskset:
    (folder / "bundle.toml").write_text(toml)
    (folder / "dice.py").write_text(python)
    return BundleTaskset(BundleTaskset.Config(path=folder))


def test_scripts_are_played_so_answers_are_the_tools_own(tmp_path):
    (demo,) = read(tmp_path).demonstrations("dev", 1, seed=0)
    assert demo.task_id == "two"
    assert [tool.name for tool in demo.tools] == ["roll"]
    assert [message.role for message in demo.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]
    assert demo.messages[1].content == "2 sides."
    assert demo.messages[3].content == "2"
    assert demo.messages[3].tool_call_id == demo.messages[2].tool_calls[0].id
    assert "once only" in demo.messages[5].content
    assert demo.messages[7].content == "Say bye.\n\nAnd again?"


async def test_demonstrations_are_a_function_of_the_seed_also_inside_a_running_loop(tmp_path):
    taskset = read(tmp_path)
    first = taskset.demonstrations("train", 8, seed=1)
    assert len(first) == 8
    assert {demo.task_id for demo in first} == {"six", "ten"}
    assert [d.messages for d in taskset.demonstrations("train", 8, seed=1)] == [d.messages for d in first]
    assert [d.messages for d in taskset.demonstrations("train", 8, seed=2)] != [d.messages for d in first]
    assert len(taskset.demonstrations("train", 0, seed=1)) == 2


def test_recorded_demonstrations_go_with_the_split_of_their_task(tmp_path):
    call = {"id": "a", "type": "function", "function": {"name": "roll", "arguments": "{}"}}
    lines = [
        {
            "task_id": "six",
            "messages": [{"role": "user", "content": "6"}, {"role": "assistant", "content": "", "tool_calls": [call]}],
        },
        {"task_id": "two", "messages": [{"role": "user", "content": "2"}]},
        {"messages": [{"role": "user", "content": "any"}]},
    ]
    (tmp_path / "demos.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    taskset = read(tmp_path, TOML.replace('"demos"', '"demos.jsonl"'))
    train = taskset.demonstrations("train", 0, seed=0)
    assert sorted(demo.messages[0].content for demo in train) == ["6", "any"]
    six = next(demo for demo in train if demo.task_id == "six")
    assert six.messages[1].tool_calls[0].name == "roll"
    assert [tool.name for tool in six.tools] == ["roll"]
    assert len(taskset.demonstrations("train", 1, seed=0)) == 1
    firsts = {taskset.demonstrations("train", 1, seed=seed)[0].messages[0].content for seed in range(20)}
    assert firsts == {"6", "any"}


def test_bundle_without_demonstrations_has_none(tmp_path):
    assert read(tmp_path, TOML.replace('demonstrations = "demos"', "")).demonstrations("train", 5, seed=0) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"task": task.id', '"task": "two"', "item 0 plays 'two', which is not a task of this split"),
        ('"task": task.id', '"tusk": task.id', "item 0 must be"),
        ('"bye"]', '"bye", "more"]', "the script for task"),
        ('{"call": "roll"}', '{"cal": "roll"}', "item 0: message 0 unknown key 'cal'"),
        ("rng.choice(tasks)", "tasks[9]", "raised IndexError"),
    ],
)
def test_mistakes_in_scripts_name_the_item(tmp_path, old, new, said):
    taskset = read(tmp_path, python=PYTHON.replace(old, new, 1))
    with pytest.raises(ferrule.FerruleError, match="the demonstrations function") as caught:
        taskset.demonstrations("train", 2, seed=0)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [("{", "JSONDecodeError"), ("{}", "KeyError"), ('{"messages": [], "task_id": "no"}', "no task 'no'")],
)
def test_mistakes_in_recorded_lines_name_the_line(tmp_path, line, said):
    (tmp_path / "demos.jsonl").write_text('{"messages": []}\n' + line)
    with pytest.raises(ferrule.FerruleError, match=r"demos\.jsonl:2") as caught:
        read(tmp_path, TOML.replace('"demos"', '"demos.jsonl"')).demonstrations("train", 0, seed=0)
    assert said in str(caught.value)
