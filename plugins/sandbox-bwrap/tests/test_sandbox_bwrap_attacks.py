"""Attacks, each really tried from inside: on the host's files, on the reward, on memory, on the process that reads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from ferrule_sandbox_bwrap import BwrapSandboxes

import ferrule

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed here")

SECRET = "the-secret-of-the-host"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
async def backend():
    backend = BwrapSandboxes(BwrapSandboxes.Config(pids=128, memory_mb=256))
    await backend.start(ferrule.RunInfo("run", Path(), 0, ferrule.ModelSpec()))
    yield backend
    await backend.close()


@pytest.fixture
async def box(backend: BwrapSandboxes):
    async with await backend.create(ferrule.SandboxSpec()) as box:
        yield box


async def everything(box: ferrule.Sandbox, command: str, **options) -> str:
    result = await box.exec(command, **options)
    return result.stdout + result.stderr


async def test_files_of_the_host_cannot_be_read(box: ferrule.Sandbox, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOST_SECRET", SECRET)
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "secret").chmod(0o666)
    with tempfile.NamedTemporaryFile("w") as open_to_all:
        open_to_all.write(SECRET)
        open_to_all.flush()
        os.chmod(open_to_all.name, 0o666)
        for user in ("agent", "root"):
            seen = await everything(
                box,
                f"cat {tmp_path}/secret {open_to_all.name} /etc/shadow /root/.bashrc {__file__};"
                f"cat /proc/*/environ | tr '\\0' '\\n'; cat /proc/{os.getpid()}/environ;"
                f"ls {Path.home()} {Path(__file__).parent} /proc/{os.getpid()}/root /proc/1/root/root /proc/1/cwd/../home;"
                "for fd in /proc/*/fd/*; do readlink $fd; done",
                user=user,
            )
            assert SECRET not in seen
            assert "HOST_SECRET" not in seen
            assert "async def" not in seen
            assert "root:" not in seen.replace("drwx", "")
            found = await everything(box, f"find / -name '{os.path.basename(__file__)}' -o -name secret", user=user)
            assert "/secret" not in found
            assert "test_sandbox" not in found


async def test_nothing_inside_has_power_outside(box, tmp_path: Path) -> None:
    assert box.uid != 0
    await box.exec("sleep 20 & echo x > mine", user="root")
    status = (await box.exec("grep -E 'NoNewPrivs|CapEff' /proc/self/status")).stdout.split()
    assert status == ["CapEff:", "0000000000000000", "NoNewPrivs:", "1"]
    owner = (box.folder / "agent/workspace/mine").stat().st_uid
    assert owner != 0
    assert owner == (box.uid if os.geteuid() == 0 else os.geteuid())
    for attack in (
        "unshare -U true",
        "mount -t tmpfs none /tmp",
        "echo x > /etc/passwd",
        "touch /usr/x",
        "touch /x",
        "chroot / true",
        f"kill -9 {os.getpid()}",
        "echo 1 > /proc/sys/kernel/panic",
        "mknod d b 8 0",
        "umount /usr",
        "chown 0 /workspace/mine",
        "nsenter -t 1 -U -m true",
    ):
        assert (await box.exec(attack)).exit_code != 0, attack


async def test_only_its_own_processes_are_seen(box) -> None:
    for user in ("agent", "root"):
        seen = (await box.exec("ls -d /proc/[0-9]*", user=user)).stdout.split()
        assert len(seen) < 8
    await box.exec("sleep 333 > /dev/null 2>&1 &", user="root")
    assert "333" not in await everything(box, "cat /proc/*/cmdline | tr '\\0' ' '")


async def test_the_verifiers_files_can_be_neither_read_nor_changed(box) -> None:
    await box.write("/verifier/expected", b"42", user="root")
    await box.write("/tests/check.sh", b"echo 1.0 > /logs/verifier/reward", user="root", mode=0o777)
    await box.exec("mkdir -p /logs/verifier; chmod 777 /logs/verifier; sh /tests/check.sh", user="root")
    attack = (
        "cat /verifier/expected /tests/check.sh /logs/verifier/reward; ls -R /verifier /tests /logs /proc/1/root/verifier;"
        "mkdir -p /logs/verifier /tests; echo 9.0 > /logs/verifier/reward; echo 'echo 9.0' > /tests/check.sh; find / -name 'reward'"
    )
    seen = await everything(box, attack)
    assert "42" not in seen
    assert "1.0" not in seen
    assert "/logs/verifier/reward\n" not in seen
    assert await box.read("/logs/verifier/reward") == b"1.0\n"
    assert await box.read("/tests/check.sh") == b"echo 1.0 > /logs/verifier/reward"
    with pytest.raises(FileNotFoundError):
        await box.read("/verifier/expected", user="agent")


async def test_the_verifier_sees_the_agents_work_whatever_its_modes(box) -> None:
    await box.exec(
        "mkdir -p private; echo mine > private/f; chmod 0 private/f private; echo t > /tmp/t; echo h > ~/h; chmod 0 ~"
    )
    assert (await box.exec("cat private/f /tmp/t /home/agent/h", user="root")).stdout == "mine\nt\nh\n"
    assert (await box.exec("echo theirs > private/f; chmod 700 private", user="root")).ok
    assert (await box.exec("cat private/f; chmod 600 private/f; cat private/f")).stdout == "theirs\n"


async def test_a_link_planted_by_the_agent_leads_neither_out_nor_to_the_verifier(box, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "target").write_text("unchanged")
    await box.write("/verifier/expected", b"42", user="root")
    await box.exec(
        f"ln -s {tmp_path}/secret a; ln -s /verifier/expected b; ln -s /proc/self/environ c; ln -s {tmp_path} d;"
        f"ln -s {'../' * 12}{tmp_path}/secret e; mkfifo f; truncate -s 1000M g; ln -s {tmp_path}/target h; ln -s /etc/shadow i; ln -s . j"
    )
    for name in ("a", "b", "c", "d/secret", "e", "i", "j/j/j/a"):
        for user in ("agent", "root"):
            with pytest.raises(FileNotFoundError):
                await box.read(name, user=user)
    with pytest.raises(PermissionError):
        await asyncio.wait_for(box.read("f"), 5)
    with pytest.raises(OSError, match="larger than"):
        await box.read("g")
    for user in ("agent", "root"):
        await box.write("h", b"inside", user=user)
        await box.write("d/target", b"inside", user=user)
    assert (tmp_path / "target").read_text() == "unchanged"


async def test_the_network_is_off_unless_the_task_asks_for_it(backend: BwrapSandboxes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        threading.Thread(target=lambda: [server.accept()[0].close() for _ in range(1)], daemon=True).start()
        connect = f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected"
        async with await backend.create(ferrule.SandboxSpec()) as box:
            for user in ("agent", "root"):
                assert "connected" not in await everything(box, connect, user=user)
            assert (await box.exec("grep -c : /proc/net/dev")).stdout == "1\n", "there is more than the loopback"
        async with await backend.create(ferrule.SandboxSpec(network=True)) as box:
            assert (await box.exec(connect)).stdout == "connected\n"


async def test_a_gigabyte_of_output_does_not_grow_memory(box) -> None:
    await box.exec("yes | head -c 50000000")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = await box.exec("yes | head -c 1000000000", timeout=120)
    assert len(result.stdout) < ferrule.OUTPUT_LIMIT + 100
    assert f"[... {1_000_000_000 - ferrule.OUTPUT_LIMIT} bytes dropped ...]" in result.stdout
    with pytest.raises(ferrule.CommandTimeout) as caught:
        await box.exec("yes & yes >&2", timeout=1.0)
    assert "bytes dropped" in caught.value.stdout
    assert "bytes dropped" in caught.value.stderr
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000, "kilobytes"


async def test_an_agent_that_kills_all_it_can_does_not_end_its_sandbox(box) -> None:
    await box.exec(
        "(setsid sh -c 'while :; do kill -9 -1; kill -9 1; kill -TERM 1; kill -INT 1; sleep 0.05; done' >/dev/null 2>&1 &)"
    )
    await asyncio.sleep(0.3)
    await box.exec("kill -9 -1; kill -9 1; kill -9 0", timeout=20)
    assert (await box.exec("echo $((6 * 7))", user="root")).stdout == "42\n"
    assert (await box.exec("exit 3", timeout=20)).exit_code in (3, 137)


async def test_namespaces_that_died_are_made_anew_and_are_no_failure_of_the_infrastructure(box) -> None:
    await box.exec("echo kept > file; echo kept > /tmp/file")
    task = asyncio.create_task(box.exec("echo begun; sleep 300"))
    await asyncio.sleep(0.3)
    (await box.space("agent")).end()
    result = await asyncio.wait_for(task, 10)
    assert result.exit_code == 137
    assert (await box.exec("cat file /tmp/file")).stdout == "kept\nkept\n"


async def test_verifier_namespaces_that_died_are_a_failure(box) -> None:
    task = asyncio.create_task(box.exec("sleep 300", user="root"))
    await asyncio.sleep(0.5)
    (await box.space("root")).end()
    with pytest.raises(ferrule.SandboxError):
        await asyncio.wait_for(task, 10)


def controlled(backend: BwrapSandboxes, controller: str) -> None:
    if controller not in backend._groups.v1 and backend._groups.v2 is None:
        pytest.skip(f"control groups for {controller} cannot be made here")


async def test_a_fork_bomb_is_bounded_and_spares_the_verifier(backend: BwrapSandboxes, box) -> None:
    controlled(backend, "pids")
    table = set(ferrule.process_table())
    with pytest.raises(ferrule.CommandTimeout):
        await box.exec("f() { f | f & }; f; sleep 300", timeout=2.0)
    assert len(set(ferrule.process_table()) - table) < 100, "the bomb is over"
    for group in backend.groups_of(box.id):
        if group.endswith(".agent") and os.path.exists(f"{group}/pids.current"):
            assert int(Path(group, "pids.current").read_text()) < 16
    assert (await box.exec("echo sound", user="root")).stdout == "sound\n"
    assert (await box.exec("echo sound", timeout=20)).stdout == "sound\n"


async def test_a_fork_bomb_left_in_the_background_ends_with_the_sandbox(backend: BwrapSandboxes) -> None:
    controlled(backend, "pids")
    box = await backend.create(ferrule.SandboxSpec())
    await box.exec("(setsid sh -c 'f() { f | f & }; f' >/dev/null 2>&1 &)", timeout=20)
    await asyncio.sleep(0.5)
    with contextlib.suppress(ferrule.CommandTimeout):
        await box.exec("echo x", timeout=5)
    assert (await box.exec("echo sound", user="root")).stdout == "sound\n"
    groups = [path for path in backend.groups_of(box.id) if os.path.exists(path)]
    await box.close()
    assert not box.folder.exists()
    assert [path for path in groups if os.path.exists(path)] == []


async def test_memory_is_bounded(backend: BwrapSandboxes) -> None:
    controlled(backend, "memory")
    hog = "head -c 200m /dev/zero | tail -c 200m | wc -c"
    async with await backend.create(ferrule.SandboxSpec(memory_mb=64)) as box:
        result = await box.exec(hog, timeout=60)
        assert "209715200" not in result.stdout
        assert not (await box.exec("head -c 200m /dev/zero > /dev/shm/x", timeout=60)).ok
        assert (await box.exec("echo sound", user="root")).stdout == "sound\n"
    async with await backend.create(ferrule.SandboxSpec(memory_mb=512)) as box:
        assert (await box.exec(hog, timeout=60)).stdout.strip() == "209715200"


async def test_cpus_are_bounded(backend: BwrapSandboxes) -> None:
    controlled(backend, "cpu")
    async with await backend.create(ferrule.SandboxSpec(cpus=0.2)) as box:
        result = await box.exec("bash -c 'trap \"times; exit\" TERM; while :; do :; done' & sleep 2; kill $!; wait")
        used = result.stdout.split()[0]
        assert float(used.removeprefix("0m").removesuffix("s")) < 0.8


async def test_a_file_is_bounded(backend: BwrapSandboxes) -> None:
    small = BwrapSandboxes(BwrapSandboxes.Config(file_mb=1))
    async with await small.create(ferrule.SandboxSpec()) as box:
        await box.exec("head -c 5000000 /dev/zero > big")
        assert len(await box.read("big")) == 1 << 20


async def test_without_control_groups_processes_are_still_bounded_where_the_uid_is_private() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a sandbox a uid of its own")
    plain = BwrapSandboxes(BwrapSandboxes.Config(pids=40, cgroups=False))
    async with await plain.create(ferrule.SandboxSpec(memory_mb=100)) as box:
        result = await box.exec("for i in $(seq 200); do sleep 5 & done 2>/dev/null; echo; jobs -p | wc -l", timeout=30)
        assert result.stdout.strip() == "" or int(result.stdout) < 41
        assert "exhausted" in (await box.exec("head -c 200m /dev/zero | tail -c 200m > /dev/null", timeout=30)).stderr
    assert "limits" not in BwrapSandboxes.provides


ORDINARY = """
import asyncio, os, pathlib, ferrule
from ferrule_sandbox_bwrap import BwrapSandboxes

async def main():
    assert os.geteuid() == 65533
    backend = BwrapSandboxes(BwrapSandboxes.Config())
    await backend.start(ferrule.RunInfo("run", pathlib.Path(), 0, ferrule.ModelSpec()))
    box = await backend.create(ferrule.SandboxSpec(files={"f": b"1"}))
    assert (await box.exec("id -un; cat f; pwd")).stdout == "agent\\n1/workspace\\n"
    await box.write("/verifier/key", b"42", user="root")
    assert (await box.exec("id -un; cat /verifier/key; cat f", user="root")).stdout == "root\\n421"
    assert not (await box.exec("cat /verifier/key")).ok
    assert (await box.exec("ls -a /home /root; cat /etc/shadow; unshare -U true; touch /x; ls /proc/self/fd | wc -l")).stdout.count("\\n") == 5
    try:
        await box.exec("(env -i setsid sh -c '(setsid sleep 341 &) ; sleep 342' &) ; sleep 343", timeout=0.7)
    except ferrule.CommandTimeout:
        pass
    listed = (await box.exec("cat /proc/*/cmdline | tr '\\\\0' ' '")).stdout
    assert "sleep 34" not in listed, listed
    await box.exec("mkdir -p x/y; chmod 0 x; setsid sleep 344 > /dev/null 2>&1 &")
    await backend.close()
    assert not box.folder.exists()
    print("as it should be")

asyncio.run(main())
"""


def test_an_ordinary_user_gets_the_same(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("the other tests have run as an ordinary user")
    folder = Path(tempfile.mkdtemp())
    os.chown(folder, 65533, 65533)
    drop = ["setpriv", "--reuid=65533", "--regid=65533", "--clear-groups", "--"]
    path = os.pathsep.join(p for p in sys.path if p)
    try:
        for python in dict.fromkeys((os.path.realpath(sys.executable), "/usr/bin/python3", "/usr/local/bin/python3")):
            env = {"PATH": "/usr/bin:/bin:/usr/sbin", "HOME": str(folder), "TMPDIR": str(folder)}
            # a path that names this Python's own standard library would mislead another one
            env["PYTHONPATH"] = (
                path
                if python == sys.executable
                else os.pathsep.join(p for p in path.split(os.pathsep) if "site-packages" in p or "/src" in p)
            )
            probe = [
                *drop,
                python,
                "-c",
                "import sys, ferrule, ferrule_sandbox_bwrap; assert sys.version_info >= (3, 11); ferrule.Sandbox",
            ]
            try:
                if subprocess.run(probe, env=env, capture_output=True, check=False, cwd="/").returncode:
                    continue
            except OSError:
                continue
            out = subprocess.run(
                [*drop, python, "-c", ORDINARY],
                env=env,
                capture_output=True,
                text=True,
                check=False,
                cwd="/",
                timeout=120,
            )
            assert out.stdout.strip().endswith("as it should be"), out.stdout + out.stderr
            return
        pytest.skip("no Python here that an ordinary user may run")
    finally:
        shutil.rmtree(folder)


async def test_a_folder_that_nobody_else_can_enter_is_named(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("as an ordinary user the folder is one's own")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    backend = BwrapSandboxes(BwrapSandboxes.Config(folder=closed))
    with pytest.raises(ferrule.SandboxError, match=r"cannot be entered by other users: set sandbox\.folder"):
        await backend.create(ferrule.SandboxSpec())
    assert os.listdir(closed) == []


def test_what_it_claims() -> None:
    assert BwrapSandboxes.provides == {"isolation", "users"}
