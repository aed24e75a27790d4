"""Commands in bwrap: what they see, how they end, and that nothing outlives the sandbox."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from ferrule_sandbox_bwrap import BwrapSandbox, BwrapSandboxes

import ferrule

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed here")


LIST = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null; echo; done"
"""The command lines of what runs inside, by means that every system has; that of a zombie is empty."""


def left_of(box: BwrapSandbox) -> list[int]:
    """Processes outside or inside that belong to a sandbox: by its mark on bwrap, and by its uid."""
    found = set(ferrule.marked_processes("FERRULE_SANDBOX", box.id))
    for pid in ferrule.process_table():
        try:
            uid = int(Path(f"/proc/{pid}/status").read_text().split("Uid:")[1].split()[0])
        except (OSError, IndexError):
            continue
        if box.uid is not None and uid == box.uid:
            found.add(pid)
    return sorted(found)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "ferrule" / "sandboxes" / "bwrap"


@pytest.fixture
async def backend(state: Path):
    backend = BwrapSandboxes(BwrapSandboxes.Config())
    yield backend
    await backend.close()
    assert list(state.glob("*.json")) == []


def groups_of(box: BwrapSandbox, backend: BwrapSandboxes) -> list[str]:
    return [path for path in backend.groups_of(box.id) if os.path.exists(path)]


async def test_a_command_sees_its_files_its_environment_and_its_folder(backend: BwrapSandboxes) -> None:
    spec = ferrule.SandboxSpec(
        files={"a/b.txt": b"relative", "/workspace/c": b"absolute", "/data/d": b"elsewhere"},
        env={"ONE": "1", "TWO": "spec"},
    )
    async with await backend.create(spec) as box:
        result = await box.exec(
            "cat a/b.txt c /data/d; echo; echo $ONE $TWO; exit 3", env={"TWO": "2 x\ny", "-n": "odd"}
        )
        assert (result.stdout, result.stderr, result.exit_code) == ("relativeabsoluteelsewhere\n1 2 x y\n", "", 3)
        assert (await box.exec("pwd", cwd="a")).stdout == "/workspace/a\n"
        assert (await box.exec("cat b.txt", cwd="/workspace/a")).stdout == "relative"
        assert (await box.exec("pwd", cwd="none")).exit_code == 125
        assert (await box.exec("id -un; id -u; echo $HOME $TMPDIR; touch ~/x /tmp/x x a/x /data/x")).stdout == (
            "agent\n1000\n/home/agent /tmp\n"
        )
        assert (await box.exec("id -un; pwd", user="root")).stdout == "root\n/workspace\n"
        assert (await box.exec("cat")).exit_code == 0, "standard input is empty"
        assert (await box.exec("kill -TERM $$")).exit_code == 143
        assert (await box.exec("no-such-program")).exit_code == 127
        with pytest.raises(ValueError, match="NUL"):
            await box.exec("echo \0")
        with pytest.raises(ValueError, match="A=B"):
            await box.exec("true", env={"A=B": ""})
        with pytest.raises(ferrule.SandboxError, match="no user 'bob'"):
            await box.exec("true", user="bob")


@pytest.mark.parametrize("workdir", ["/app", "/home/agent/project", "/tmp/w", "/root", "/var/www/html"])
async def test_the_workdir_may_be_elsewhere(backend: BwrapSandboxes, workdir: str) -> None:
    async with await backend.create(ferrule.SandboxSpec(workdir=workdir, files={"f": b"x"})) as box:
        assert (await box.exec("pwd; echo y >> f")).stdout == f"{workdir}\n"
        assert await box.read(f"{workdir}/f") == b"xy\n"
        assert (await box.exec("cat f", user="root")).stdout == "xy\n"


async def test_bytes_are_exact_both_ways(backend: BwrapSandboxes) -> None:
    async with await backend.create(ferrule.SandboxSpec()) as box:
        data = bytes(range(256)) * 40960
        for user in ("agent", "root"):
            await box.write("deep/er/blob", data, user=user, mode=0o755)
            assert await box.read("/workspace/deep/er/blob", user=user) == data
            result = await box.exec(
                "wc -c < deep/er/blob; test -x deep/er/blob && echo more >> deep/er/blob", user=user
            )
            assert (result.stdout.strip(), result.exit_code) == (str(10 << 20), 0)
        await box.exec(r"printf '\000\377\n' > made; chmod 600 made")
        assert await box.read("made") == b"\x00\xff\n"
        result = await box.exec(r"printf '\303\244\377'")
        assert result.stdout == "ä\ufffd"
        with pytest.raises(FileNotFoundError):
            await box.read("none")


async def test_a_folder_that_the_agents_side_adds_later_is_seen_by_both(backend: BwrapSandboxes) -> None:
    async with await backend.create(ferrule.SandboxSpec()) as box:
        assert (await box.exec("ls /late", user="root")).exit_code != 0
        await box.write("/late/x", b"late")
        for user in ("agent", "root"):
            assert (await box.exec("cat /late/x", user=user)).stdout == "late"
            assert await box.read("/late/x", user=user) == b"late"


@pytest.mark.parametrize("user", ["agent", "root"])
async def test_a_timeout_kills_everything_that_was_started(backend: BwrapSandboxes, user: str) -> None:
    async with await backend.create(ferrule.SandboxSpec()) as box:
        script = """
            echo begun
            (setsid sh -c 'trap "" TERM HUP; setsid sleep 301 & sleep 302' &)
            (env -i setsid sh -c '(setsid sleep 303 &) ; sleep 304' &)
            env -i sleep 305
        """
        begun = time.monotonic()
        with pytest.raises(ferrule.CommandTimeout) as caught:
            await box.exec(script, user=user, timeout=0.7)
        assert time.monotonic() - begun < 6
        assert caught.value.stdout == "begun\n"
        assert "sleep" not in (await box.exec(LIST, user=user)).stdout


async def test_a_timeout_spares_other_commands_and_what_they_left(backend: BwrapSandboxes) -> None:
    async with await backend.create(ferrule.SandboxSpec()) as box:
        await box.exec("setsid sleep 311 >/dev/null 2>&1 &")
        beside = asyncio.create_task(box.exec("(setsid sleep 312 &) ; sleep 1.5; echo whole"))
        await asyncio.sleep(0.2)
        with pytest.raises(ferrule.CommandTimeout):
            await box.exec("setsid sleep 313 & sleep 314", timeout=0.3)
        assert (await beside).stdout == "whole\n"
        listed = (await box.exec(LIST)).stdout
        assert [n for n in ("311", "312", "313", "314") if f"sleep {n}" in listed] == ["311", "312"]


async def test_a_folder_of_the_host_can_be_shown_read_only(tmp_path: Path) -> None:
    shown = Path(tempfile.mkdtemp(dir="/opt" if os.access("/opt", os.W_OK) else None))
    shown.chmod(0o755)
    (shown / "tool").write_text("#!/bin/sh\necho tool\n")
    (shown / "tool").chmod(0o755)
    backend = BwrapSandboxes(BwrapSandboxes.Config(bind=(str(shown),)))
    try:
        async with await backend.create(ferrule.SandboxSpec()) as box:
            for user in ("agent", "root"):
                result = await box.exec(f"{shown}/tool; echo x > {shown}/tool; touch {shown}/y", user=user)
                assert (result.stdout, result.exit_code) == ("tool\n", 1)
        with pytest.raises(ferrule.SandboxError, match="absolute path of a folder"):
            await BwrapSandboxes(BwrapSandboxes.Config(bind=("/",))).create(ferrule.SandboxSpec())
    finally:
        shutil.rmtree(shown)


async def test_a_daemon_answers_later_commands_and_is_gone_after_closing(backend: BwrapSandboxes) -> None:
    box = await backend.create(ferrule.SandboxSpec())
    assert left_of(box) != []
    await box.exec("mkfifo ask; (setsid sh -c 'trap \"\" TERM HUP INT; while :; do cat ask >> told; done' &) ")
    await box.exec("echo hello > ask; sleep 0.2", timeout=10)
    assert (await box.exec("cat told")).stdout == "hello\n"
    before = len(left_of(box))
    await box.exec("(setsid env -i sh -c '(setsid sleep 300 &) & sleep 300' > /dev/null 2>&1 &)")
    assert before < len(left_of(box)) or box.uid is None
    groups = groups_of(box, backend)
    await box.close()
    assert left_of(box) == []
    assert not box.folder.exists()
    assert [path for path in groups if os.path.exists(path)] == []
    await box.close()
    with pytest.raises(ferrule.SandboxError, match="closed"):
        await box.exec("true")


async def test_closing_under_a_running_command_ends_it_as_a_failure(backend: BwrapSandboxes) -> None:
    box = await backend.create(ferrule.SandboxSpec())
    task = asyncio.create_task(box.exec("sleep 300"))
    await asyncio.sleep(0.3)
    await box.close()
    with pytest.raises(ferrule.SandboxError):
        await asyncio.wait_for(task, 10)
    assert left_of(box) == []


async def test_cancelling_a_command_kills_it(backend: BwrapSandboxes) -> None:
    async with await backend.create(ferrule.SandboxSpec()) as box:
        task = asyncio.create_task(box.exec("(setsid sleep 321 &); touch begun; sleep 322"))
        while not (await box.exec("ls")).stdout:
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert "sleep" not in (await box.exec(LIST)).stdout
        assert (await box.exec("echo alive")).stdout == "alive\n"


async def test_a_cancel_at_any_moment_kills_the_command_and_only_that(backend: BwrapSandboxes) -> None:
    with subprocess.Popen(["sleep", "300"]) as outside:
        try:
            async with await backend.create(ferrule.SandboxSpec()) as box:
                for turns in [0, 0, 1, 1, 2, 2, 3, 5, 8, 50]:
                    task = asyncio.create_task(box.exec("(setsid sleep 323 &); sleep 324"))
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    if turns > 5:
                        await asyncio.sleep(turns / 1000)
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                assert "sleep" not in (await box.exec(LIST)).stdout
            assert outside.poll() is None
        finally:
            outside.kill()


async def test_a_command_longer_than_a_command_line_runs(backend: BwrapSandboxes) -> None:
    async with await backend.create(ferrule.SandboxSpec()) as box:
        for user in ("agent", "root"):
            result = await box.exec(
                f"cat > big <<'END'\n{'x' * 500_000}\nEND\nwc -c < big; rm big; ls -A . $TMPDIR", user=user
            )
            assert result.stdout.split("\n")[0] == "500001"
        assert (await box.exec("ls -A /tmp")).stdout == ""


async def test_sixty_four_at_once(backend: BwrapSandboxes) -> None:
    async def one(i: int) -> str:
        async with await backend.create(ferrule.SandboxSpec(files={"n": str(i).encode()})) as box:
            await box.exec("setsid sleep 300 >/dev/null 2>&1 &")
            return (await box.exec("sleep 0.1; cat n")).stdout

    before = set(ferrule.process_table())
    descriptors = len(os.listdir("/proc/self/fd"))
    assert await asyncio.gather(*map(one, range(64))) == [str(i) for i in range(64)]
    table = ferrule.process_table()
    assert [p for p in set(table) - before if table[p].parent == os.getpid()] == []
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 1


async def test_cancelling_creation_leaves_nothing(backend: BwrapSandboxes, state: Path, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    made: list[BwrapSandbox] = []
    for i in range(25):
        task = asyncio.create_task(backend.create(ferrule.SandboxSpec(files={f"f{i}": b"x" for i in range(50)})))
        await asyncio.sleep(i * 0.002)
        made += backend._live.values()
        task.cancel()
        try:
            box = await task
        except asyncio.CancelledError:
            continue
        await box.close()
    assert len(made) > 5
    for box in made:
        assert left_of(box) == []
        assert not box.folder.exists()
        assert groups_of(box, backend) == []
    assert list(state.glob("*.json")) == []


KILLED = """
import asyncio, pathlib, sys, ferrule
from ferrule_sandbox_bwrap import BwrapSandboxes

async def main():
    backend = BwrapSandboxes(BwrapSandboxes.Config())
    await backend.start(ferrule.RunInfo(sys.argv[1], pathlib.Path(), 0, ferrule.ModelSpec()))
    for _ in range(3):
        box = await backend.create(ferrule.SandboxSpec())
        await box.exec("setsid sleep 300 >/dev/null 2>&1 &")
        await box.exec("true", user="root")
        print(box.id, box.folder, box.uid, flush=True)
    print("ready", flush=True)
    await box.exec("sleep 300")

asyncio.run(main())
"""


async def test_a_killed_run_leaves_no_process_and_sweep_removes_the_rest(backend: BwrapSandboxes, state: Path) -> None:
    mine = await backend.create(ferrule.SandboxSpec())
    run = subprocess.Popen([sys.executable, "-c", KILLED, "run-7"], stdout=subprocess.PIPE, text=True)
    boxes = []
    assert run.stdout is not None
    for line in run.stdout:
        if line.strip() == "ready":
            break
        if line.startswith("ferrule-bwrap-"):
            name, folder, uid = line.split()
            boxes.append((name, Path(folder), uid))
    assert len(boxes) == 3
    assert await BwrapSandboxes.sweep() == [], "the run is alive"
    run.send_signal(signal.SIGKILL)
    run.wait()
    run.stdout.close()
    for _ in range(100):
        if not any(ferrule.marked_processes("FERRULE_SANDBOX", name) for name, _, _ in boxes):
            break
        await asyncio.sleep(0.05)
    else:
        pytest.fail("what ran in the sandboxes outlived the run")
    assert await BwrapSandboxes.sweep("another-run") == []
    assert sorted(await BwrapSandboxes.sweep("run-7")) == sorted(name for name, _, _ in boxes)
    for name, folder, _ in boxes:
        assert not folder.exists()
        assert [path for path in backend.groups_of(name) if os.path.exists(path)] == []
    assert (await mine.exec("echo untouched")).stdout == "untouched\n"
    assert await BwrapSandboxes.sweep() == []


async def test_a_spec_that_cannot_be_had_is_refused(backend: BwrapSandboxes) -> None:
    for spec, words in (
        (ferrule.SandboxSpec(image="debian:12"), "boots no images"),
        (ferrule.SandboxSpec(workdir="work"), "absolute path"),
        (ferrule.SandboxSpec(workdir="/"), "absolute path"),
        (ferrule.SandboxSpec(workdir="/usr/src"), "absolute path"),
        (ferrule.SandboxSpec(workdir="/w/../usr"), "absolute path"),
        (ferrule.SandboxSpec(workdir="/verifier"), "absolute path"),
        (ferrule.SandboxSpec(env={"A=B": ""}), "environment variable"),
        (ferrule.SandboxSpec(files={"/usr/bin/ls": b""}), "could not be made"),
    ):
        with pytest.raises(ferrule.SandboxError, match=words):
            await backend.create(spec)


async def test_a_missing_tool_is_named_with_what_to_install(tmp_path: Path) -> None:
    script = (
        "import asyncio, pathlib, ferrule, ferrule_sandbox_bwrap as b\n"
        "backend = b.BwrapSandboxes(b.BwrapSandboxes.Config())\n"
        "asyncio.run(backend.start(ferrule.RunInfo('r', pathlib.Path(), 0, ferrule.ModelSpec())))"
    )
    out = subprocess.run(
        [sys.executable, "-c", script], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert "needs bwrap, setpriv" in out.stderr
    assert "apt-get install bubblewrap" in out.stderr
