"""The local sandbox runs, bounds, kills and removes; it never claims to isolate."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import structlog
from ferrule_sandbox_local import LocalSandboxes

import ferrule


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "ferrule" / "sandboxes" / "local"


@pytest.fixture
async def backend(tmp_path: Path):
    (tmp_path / "boxes").mkdir()
    backend = LocalSandboxes(LocalSandboxes.Config(folder=tmp_path / "boxes"))
    yield backend
    await backend.close()
    assert os.listdir(tmp_path / "boxes") == []


def processes_of(box: ferrule.Sandbox) -> list[int]:
    return ferrule.marked_processes("FERRULE_SANDBOX", box.id)


async def test_a_command_sees_its_files_its_environment_and_its_folder(backend: LocalSandboxes, monkeypatch) -> None:
    monkeypatch.setenv("SECRET_API_KEY", "do-not-pass-on")
    spec = ferrule.SandboxSpec(
        files={"a/b.txt": b"relative", "/workspace/c": b"absolute"}, env={"ONE": "1", "TWO": "spec"}
    )
    async with await backend.create(spec) as box:
        result = await box.exec("cat a/b.txt c; echo; echo $ONE $TWO; exit 3", env={"TWO": "2 x"})
        assert (result.stdout, result.exit_code, result.ok) == ("relativeabsolute\n1 2 x\n", 3, False)
        assert (await box.exec("pwd", cwd="a")).stdout.endswith("/workspace/a\n")
        assert (await box.exec("cat b.txt", cwd="/workspace/a")).stdout == "relative"
        assert (await box.exec("pwd", cwd="none")).exit_code == 125
        assert "do-not-pass-on" not in (await box.exec("env")).stdout
        assert (await box.exec("[[ a == a ]] && echo bash")).stdout == "bash\n"
        assert (await box.exec("echo $HOME; touch ~/x")).stdout.startswith(str(backend.config.folder))


async def test_bytes_are_exact_both_ways(backend: LocalSandboxes) -> None:
    async with await backend.create(ferrule.SandboxSpec()) as box:
        data = bytes(range(256)) * 40960
        await box.write("deep/er/blob", data, mode=0o755)
        assert await box.read("/workspace/deep/er/blob") == data
        assert (await box.exec("wc -c < deep/er/blob; test -x deep/er/blob")).stdout.strip() == str(10 << 20)
        await box.exec(r"printf '\000\377\n' > made")
        assert await box.read("made") == b"\x00\xff\n"
        with pytest.raises(FileNotFoundError):
            await box.read("none")


async def test_absolute_paths_stay_in_the_sandboxs_folder(backend: LocalSandboxes, tmp_path: Path) -> None:
    async with await backend.create(ferrule.SandboxSpec()) as box:
        await box.write("/verifier/check.sh", b"echo checked", user="root")
        await box.write(str(tmp_path / "x"), b"mapped")
        assert not (tmp_path / "x").exists()
        assert (await box.exec("sh check.sh", cwd="/verifier", user="root")).stdout == "checked\n"
        assert (await box.exec('sh "$FERRULE_ROOT/verifier/check.sh"')).stdout == "checked\n"
        secret = tmp_path / "secret"
        secret.write_text("host")
        await box.exec(f"ln -s {secret} link")
        with pytest.raises(FileNotFoundError):
            await box.read("link")


async def test_a_timeout_kills_everything_and_keeps_what_was_printed(backend: LocalSandboxes) -> None:
    async with await backend.create(ferrule.SandboxSpec()) as box:
        script = "echo begun; (setsid sh -c 'trap \"\" TERM HUP; setsid sleep 300 & sleep 300' &); env -i sleep 300"
        begun = time.monotonic()
        with pytest.raises(ferrule.CommandTimeout) as caught:
            await box.exec(script, timeout=0.5)
        assert time.monotonic() - begun < 5
        assert caught.value.stdout == "begun\n"
        assert processes_of(box) == []
        assert (await box.exec("echo still here")).stdout == "still here\n"


async def test_a_timeout_spares_what_an_earlier_command_left_and_closing_does_not(backend: LocalSandboxes) -> None:
    box = await backend.create(ferrule.SandboxSpec())
    await box.exec("setsid sleep 300 >/dev/null 2>&1 &")
    assert len(processes_of(box)) == 1
    with pytest.raises(ferrule.CommandTimeout):
        await box.exec("sleep 300", timeout=0.2)
    assert len(processes_of(box)) == 1
    await box.close()
    assert processes_of(box) == []
    await box.close()
    with pytest.raises(ferrule.SandboxError, match="closed"):
        await box.exec("true")


async def test_cancelling_a_command_kills_it(backend: LocalSandboxes) -> None:
    async with await backend.create(ferrule.SandboxSpec()) as box:
        task = asyncio.create_task(box.exec("setsid sleep 300 & sleep 300"))
        while len(processes_of(box)) < 2:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert processes_of(box) == []


async def test_a_flood_is_bounded(backend: LocalSandboxes) -> None:
    async with await backend.create(ferrule.SandboxSpec()) as box:
        result = await box.exec("echo head; yes | head -c 300000000; echo tail")
        assert result.stdout.startswith("head\n")
        assert result.stdout.endswith("tail\n")
        assert len(result.stdout) < ferrule.OUTPUT_LIMIT + 100
        assert "bytes dropped" in result.stdout


async def test_a_command_longer_than_a_command_line_runs(backend: LocalSandboxes) -> None:
    async with await backend.create(ferrule.SandboxSpec()) as box:
        result = await box.exec(f"cat > big <<'END'\n{'x' * 500_000}\nEND\nwc -c < big")
        assert result.stdout.strip() == "500001"


async def test_sixty_four_at_once(backend: LocalSandboxes) -> None:
    async def one(i: int) -> str:
        async with await backend.create(ferrule.SandboxSpec(files={"n": str(i).encode()})) as box:
            return (await box.exec("sleep 0.1; cat n")).stdout

    assert await asyncio.gather(*map(one, range(64))) == [str(i) for i in range(64)]


async def test_cancelling_creation_leaves_nothing(backend: LocalSandboxes, state: Path, tmp_path: Path) -> None:
    spec = ferrule.SandboxSpec(files={f"f{i}": b"x" * 1000 for i in range(100)})
    for i in range(20):
        task = asyncio.create_task(backend.create(spec))
        await asyncio.sleep(i * 0.0005)
        task.cancel()
        try:
            box = await task
        except asyncio.CancelledError:
            continue
        await box.close()
    assert os.listdir(tmp_path / "boxes") == []
    assert list(state.glob("*.json")) == []


async def test_it_says_once_that_it_isolates_nothing(backend: LocalSandboxes) -> None:
    assert LocalSandboxes.provides == frozenset()
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            await (await backend.create(ferrule.SandboxSpec())).close()
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("sandbox_isolates_nothing", "warning")]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (ferrule.SandboxSpec(image="debian:12"), "boots no images"),
        (ferrule.SandboxSpec(workdir="work"), "not an absolute path"),
    ],
)
async def test_a_spec_that_cannot_be_had_is_refused(
    backend: LocalSandboxes, spec: ferrule.SandboxSpec, words: str
) -> None:
    with pytest.raises(ferrule.SandboxError, match=words):
        await backend.create(spec)


async def test_an_unknown_user_is_an_error(backend: LocalSandboxes) -> None:
    async with await backend.create(ferrule.SandboxSpec()) as box:
        with pytest.raises(ferrule.SandboxError, match="no user 'bob'"):
            await box.exec("true", user="bob")


async def test_deep_folders_and_closed_modes_are_removed(backend: LocalSandboxes, tmp_path: Path) -> None:
    box = await backend.create(ferrule.SandboxSpec())
    dig = "import os\nfor i in range(1200): os.mkdir('d'); os.chdir('d')"
    assert (await box.exec(f'"{sys.executable}" -c "{dig}" && mkdir -p locked/x && chmod 0 locked')).ok
    await box.close()
    assert os.listdir(tmp_path / "boxes") == []


KILLED = """
import asyncio, pathlib, sys, ferrule
from ferrule_sandbox_local import LocalSandboxes

async def main():
    backend = LocalSandboxes(LocalSandboxes.Config(folder=pathlib.Path(sys.argv[1])))
    await backend.start(ferrule.RunInfo(sys.argv[2], pathlib.Path(), 0, ferrule.ModelSpec()))
    for _ in range(3):
        box = await backend.create(ferrule.SandboxSpec())
        await box.exec("setsid sleep 300 >/dev/null 2>&1 &")
        print(box.id, flush=True)
    print("ready", flush=True)
    await box.exec("sleep 300")

asyncio.run(main())
"""


async def test_sweep_removes_what_a_killed_run_left_and_nothing_else(tmp_path: Path, state: Path) -> None:
    folder = tmp_path / "boxes"
    folder.mkdir()
    living = LocalSandboxes(LocalSandboxes.Config(folder=folder))
    box = await living.create(ferrule.SandboxSpec())
    run = subprocess.Popen([sys.executable, "-c", KILLED, str(folder), "run-7"], stdout=subprocess.PIPE, text=True)
    names = []
    for line in run.stdout:
        if line.strip() == "ready":
            break
        if line.startswith("ferrule-local-"):
            names.append(line.strip())
    assert await LocalSandboxes.sweep() == [], "the run is alive"
    run.send_signal(signal.SIGKILL)
    run.wait()
    run.stdout.close()
    assert all(ferrule.marked_processes("FERRULE_SANDBOX", name) for name in names)
    assert await LocalSandboxes.sweep("another-run") == []
    assert sorted(await LocalSandboxes.sweep("run-7")) == sorted(names)
    assert not any(ferrule.marked_processes("FERRULE_SANDBOX", name) for name in names)
    assert os.listdir(folder) == [box.id]
    assert await LocalSandboxes.sweep() == []
    await living.close()
    assert list(state.glob("*.json")) == []


async def test_sweep_deletes_nothing_on_the_word_of_a_strange_entry(tmp_path: Path, state: Path) -> None:
    precious = Path(tempfile.mkdtemp(dir=tmp_path))
    child = os.fork()
    if child == 0:
        ferrule.SandboxRegister("local").add("ferrule-local-0", "run", folder=str(precious))
        os._exit(0)
    os.waitpid(child, 0)
    assert await LocalSandboxes.sweep() == []
    assert precious.is_dir()
