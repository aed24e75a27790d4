"""Scripted demonstrations of tasks that have a sandbox are played without one."""

from __future__ import annotations

import pytest
from ferrule_taskset_bundle import BundleTaskset

from ferrule import FerruleError

BUNDLE = """
name = "notes"
python = "notes.py"
verifiers = { reward = "score" }
demonstrations = "demonstrations"
[sandbox]
[[turns]]
prompt = "Keep a note."
tools = ["keep", "must"]
[[tasks]]
id = "one"
split = "train"
"""
PYTHON = """
async def keep(text: str, sandbox=None) -> str:
    if sandbox is not None:
        await sandbox.write("note", text.encode())
    return "kept " + text

async def must(sandbox) -> str:
    return (await sandbox.read("note")).decode()

def score() -> float:
    return 1.0

def demonstrations(rng, count, tasks):
    for task in tasks:
        yield {"task": task.id, "script": [{"call": "%s", "arguments": %s}, {"content": "done"}]}
"""


def bundle(folder, call, arguments):
    (folder / "bundle.toml").write_text(BUNDLE)
    (folder / "notes.py").write_text(PYTHON % (call, arguments))
    return BundleTaskset(BundleTaskset.Config(path=folder))


def test_a_script_whose_tools_can_do_without_a_sandbox_is_played(tmp_path):
    (shown,) = bundle(tmp_path, "keep", {"text": "it"}).demonstrations("train", 1, 0)
    assert [m.content for m in shown.messages if m.role == "tool"] == ["kept it"]


def test_a_script_that_calls_a_tool_with_a_sandbox_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(FerruleError, match=r"runs must in a sandbox.*default of None.*jsonl"):
        bundle(tmp_path, "must", {}).demonstrations("train", 1, 0)
