"""FileQuest in both sandboxes: recorded solutions score 1, doing nothing 0, and cheating nothing more."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import ferrule_filequest
import pytest
from ferrule_sandbox_bwrap import BwrapSandboxes
from ferrule_sandbox_local import LocalSandboxes
from ferrule_taskset_bundle import BundleTaskset

import ferrule

HOME = ferrule_filequest.home()
TASKS = {task.id: task for task in BundleTaskset(BundleTaskset.Config(path=HOME / "bundle")).tasks("all")}
BACKENDS = [
    pytest.param(
        BwrapSandboxes, marks=pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed here")
    ),
    LocalSandboxes,
]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture(params=BACKENDS)
async def backend(request: pytest.FixtureRequest):
    backend = request.param(request.param.Config())
    yield backend
    await backend.close()


async def play(backend: ferrule.SandboxBackend, task: str, *commands: str) -> tuple[float, list[str]]:
    """Run *commands* with the task's bash; the reward, and what each was answered."""
    async with ferrule.Play(TASKS[task], sandboxes=backend) as play:
        turn = await play.next_turn()
        assert turn is not None
        answers = []
        for i, command in enumerate(commands):
            call = ferrule.ToolCall(f"c{i}", "bash", {"command": command})
            turn.record(ferrule.Message("assistant", tool_calls=(call,)))
            answers += [answer.content for answer in await turn.call([call])]
        await turn.end(ferrule.Message("assistant", "done"))
        assert await play.next_turn() is None
        return (await play.result()).reward, answers


def gold(task: str) -> list[str]:
    messages = [ferrule.Message.from_openai(message) for message in TASKS[task].metadata["gold"]]
    return [call.arguments["command"] for message in messages for call in message.tool_calls]


def test_the_bundle_holds_a_handful_of_quests_in_two_splits() -> None:
    taskset = BundleTaskset(BundleTaskset.Config(path=HOME / "bundle"))
    assert set(taskset.splits) == {"train", "eval"}
    assert len(TASKS) >= 6
    assert not any(task.needs_isolation for task in TASKS.values())
    assert all(task.sandbox is not None and task.sandbox.files for task in TASKS.values())


@pytest.mark.parametrize("task", TASKS)
async def test_gold_scores_one_and_nothing_scores_zero(backend: ferrule.SandboxBackend, task: str) -> None:
    assert gold(task)
    reward, answers = await play(backend, task, *gold(task))
    assert reward == 1.0, answers
    assert (await play(backend, task))[0] == 0.0


@pytest.mark.parametrize(
    ("task", "command"),
    [
        ("noisiest-log", "echo logs/db/replica.log > answer.txt"),
        ("noisiest-log", "for f in $(find logs -name '*.log'); do echo $f; done > answer.txt"),
        ("move-port", "find . -type f -exec sed -i 's/8080/9090/' {} +"),
        ("move-port", "sed -i 's/^port = 8080$/port = 9090/' etc/*.conf"),
        ("region-totals", "echo region,cents > totals.csv"),
        ("fix-count", "echo 'echo 8' > count.sh"),
        ("fix-count", "echo 'sleep 100' > count.sh"),
        ("fix-count", 'printf \'%s\\n\' \'tr " " "\\n" < "$1" | sort -u | wc -l\' > count.sh'),
        ("merge-lists", "cat lists/*.txt | sort -u > all.txt"),
        ("find-checksum", "cp vault/a/00.bin found.bin; head -c 300 /dev/zero > found.bin"),
        ("sweep-cache", "find . -name '*.tmp' -delete"),
        ("sweep-cache", "rm -rf cache"),
    ],
)
async def test_a_half_right_answer_scores_nothing(task: str, command: str) -> None:
    backend = LocalSandboxes(LocalSandboxes.Config())
    assert (await play(backend, task, command))[0] == 0.0
    await backend.close()


@pytest.mark.parametrize(
    "planted",
    [
        "mkfifo answer.txt",
        "mkdir answer.txt",
        "ln -s answer.txt answer.txt",
        "ln -s /dev/zero answer.txt",
        "truncate -s 900M answer.txt",
        "printf '\\377\\376' > answer.txt",
        "ln -s /proc/self/environ answer.txt",
    ],
)
async def test_a_trap_in_the_answers_place_is_a_wrong_answer_and_no_failure(
    backend: ferrule.SandboxBackend, planted: str
) -> None:
    assert (await play(backend, "noisiest-log", planted))[0] == 0.0


@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed here")
async def test_an_agent_that_cheats_gets_nowhere_in_bwrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY_OF_THE_HOST", "key-of-the-host")
    (tmp_path / "secret").write_text("secret-of-the-host")
    backend = BwrapSandboxes(BwrapSandboxes.Config())
    before, verifiers = set(ferrule.process_table()), (HOME / "bundle" / "quests.py").read_bytes()
    reward, answers = await play(
        backend,
        "noisiest-log",
        f"cat {tmp_path}/secret /etc/shadow {HOME}/bundle/quests.py; cat /proc/*/environ; cat /proc/{os.getpid()}/environ",
        f"echo 'async def noisiest(sandbox): return 1.0' > {HOME}/bundle/quests.py; mkdir -p /verifier /logs/verifier; echo 1 > /verifier/reward",
        "yes | head -c 1000000000",
        "(setsid sh -c 'while :; do echo logs/db/primary.log > answer.txt; sleep 0.01; done' >/dev/null 2>&1 &); rm -f answer.txt",
        "kill -9 -1",
        "echo logs/mail.log > answer.txt",
    )
    assert reward == 0.0
    assert "secret-of-the-host" not in "".join(answers)
    assert "key-of-the-host" not in "".join(answers)
    assert "noisiest" not in answers[0]
    assert len(answers[2]) < 20_000
    assert (HOME / "bundle" / "quests.py").read_bytes() == verifiers
    await backend.close()
    table = ferrule.process_table()
    assert [p for p in set(table) - before if table[p].parent == os.getpid()] == []
    assert backend._live == {}


@pytest.mark.parametrize("script", ["gold", "nothing"])
@pytest.mark.parametrize("sandbox", ["bwrap", "local"])
def test_the_configurations_run_as_the_readme_says(tmp_path: Path, sandbox: str, script: str) -> None:
    if sandbox == "bwrap" and not shutil.which("bwrap"):
        pytest.skip("bubblewrap is not installed here")
    command = [
        sys.executable,
        "-m",
        "ferrule",
        "eval",
        str(HOME / f"eval-{sandbox}.toml"),
        "--runs",
        str(tmp_path / "runs"),
        "--json",
    ]
    out = subprocess.run(
        [*command, "--set", f"harness.script={script}"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert out.returncode == 0, out.stderr
    summary = json.loads(out.stdout)
    assert [figures["eval/sampled/reward"] for figures in summary["evals"]] == [1.0 if script == "gold" else 0.0]
    assert (summary["episodes"], summary["dropped"]) == (len(TASKS), {})
    assert ("sandbox_isolates_nothing" in out.stderr) == (sandbox == "local")
    left = tmp_path / "state" / "ferrule" / "sandboxes" / sandbox
    assert list(left.glob("*.json")) == []
