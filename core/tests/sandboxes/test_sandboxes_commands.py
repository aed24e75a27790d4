"""Commands end, are ended, and leave neither processes nor descriptors behind."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

import ferrule
from ferrule import Commands, SandboxRegister, kill_all, marked_processes, settle

ENV = {"PATH": os.environ["PATH"]}


def killer(mark: str):
    return lambda pid: kill_all(lambda: marked_processes("MARK", mark)) or pytest.fail("something was left")


async def run(script: str, mark: str = "m0", **options) -> ferrule.ExecResult:
    return await Commands().run(["sh", "-c", script], env=ENV | {"MARK": mark}, kill=killer(mark), **options)


async def test_output_exit_code_and_signal() -> None:
    result = await run("echo out; echo err >&2; exit 7")
    assert result == ferrule.ExecResult("out\n", "err\n", 7)
    assert (await run("kill -9 $$")).exit_code == 137


async def test_standard_input_is_empty() -> None:
    assert (await run("cat; echo end", timeout=10)).stdout == "end\n"


async def test_a_timeout_kills_a_daemon_in_a_session_of_its_own() -> None:
    mark = f"t{os.getpid()}.1"
    with pytest.raises(ferrule.CommandTimeout) as caught:
        await run("echo begun; setsid sh -c 'setsid sleep 300 & sleep 300' & sleep 300", mark, timeout=0.5)
    assert caught.value.stdout == "begun\n"
    assert caught.value.seconds == 0.5
    assert marked_processes("MARK", mark) == []


async def test_a_cancel_kills_and_is_still_a_cancel() -> None:
    mark = f"t{os.getpid()}.2"
    task = asyncio.create_task(run("setsid sleep 300 & sleep 300", mark))
    while len(marked_processes("MARK", mark)) < 2:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert marked_processes("MARK", mark) == []


async def test_a_flood_is_drained_at_full_speed_and_kept_small() -> None:
    result = await run("yes | head -c 200000000; echo done >&2", output_limit=1000)
    assert result.stderr == "done\n"
    assert len(result.stdout) < 1100
    assert "[... 199999000 bytes dropped ...]" in result.stdout


async def test_all_output_of_a_command_that_has_ended_is_there() -> None:
    for _ in range(30):
        assert len((await run("head -c 60000 /dev/zero")).stdout) == 60000


async def test_a_process_left_behind_keeps_its_output_and_does_not_hold_the_command() -> None:
    commands, mark = Commands(), f"t{os.getpid()}.3"
    begun = time.monotonic()
    script = "sh -c 'while :; do echo noise || exit; done' & echo over"
    result = await commands.run(["sh", "-c", script], env=ENV | {"MARK": mark}, kill=killer(mark))
    assert "over" in result.stdout
    assert time.monotonic() - begun < 5
    await asyncio.sleep(0.3)
    assert len(marked_processes("MARK", mark)) == 1, "the daemon died of its output, which nobody read"
    killer(mark)(0)
    commands.close()


async def test_no_descriptor_is_left_open() -> None:
    await run("true")
    before = len(os.listdir("/proc/self/fd"))
    await asyncio.gather(*(run("echo x") for _ in range(64)))
    with pytest.raises(ferrule.CommandTimeout):
        await run("sleep 300", f"t{os.getpid()}.4", timeout=0.1)
    with pytest.raises(ferrule.SandboxError, match="no-such-program"):
        await Commands().run(["no-such-program"], env=ENV, kill=lambda pid: None)
    await asyncio.sleep(0.05)
    assert len(os.listdir("/proc/self/fd")) == before


async def test_settle_goes_to_the_end_and_then_cancels() -> None:
    steps = []

    async def work() -> None:
        await asyncio.sleep(0.1)
        steps.append("done")

    task = asyncio.create_task(settle(work()))
    for _ in range(3):
        await asyncio.sleep(0.01)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == ["done"]


async def test_kill_all_outruns_processes_that_fork_for_ever() -> None:
    mark = f"t{os.getpid()}.5"
    script = "f() { sleep 0.01; f & f2=$!; exit; }; f & f & f & f & wait; sleep 300"
    with pytest.raises(ferrule.CommandTimeout):
        await run(script, mark, timeout=0.5)
    await asyncio.sleep(0.1)
    assert marked_processes("MARK", mark) == []


def test_the_register_tells_the_dead_from_the_living(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    register = SandboxRegister("test")
    register.add("mine", "run-1", folder="/x")
    assert [(e.name, e.run, e.facts) for e in register.entries()] == [("mine", "run-1", {"folder": "/x"})]
    assert register.left_behind() == []

    child = os.fork()
    if child == 0:
        SandboxRegister("test").add("theirs", "run-2")
        os._exit(0)
    os.waitpid(child, 0)
    assert [entry.name for entry in register.left_behind()] == ["theirs"]
    assert register.left_behind("run-1") == []
    assert [entry.name for entry in register.left_behind("run-2")] == ["theirs"]
    (register.folder / "broken.json").write_text("{")
    register.remove("theirs")
    register.remove("theirs")
    assert [entry.name for entry in register.entries()] == ["mine"]


def test_a_pid_that_was_used_again_is_not_the_owner(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    register = SandboxRegister("test")
    entry = register.add("mine", "run-1")
    path = register.folder / "mine.json"
    path.write_text(path.read_text().replace(f'"start": {entry.start}', f'"start": {entry.start - 1}'))
    assert [entry.name for entry in register.left_behind()] == ["mine"]


def test_kill_all_spares_the_first_process_and_itself_whatever_the_rule_says() -> None:
    assert kill_all(lambda: {-1, 0, 1, os.getpid()})
