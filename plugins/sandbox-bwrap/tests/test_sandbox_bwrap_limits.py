"""Control groups are found, filled in and removed, in both versions."""

from __future__ import annotations

import os
from pathlib import Path

from ferrule_sandbox_bwrap.limits import Groups, Wanted, remove

WANTED = Wanted(memory=64 << 20, pids=100, cpus=0.5)


def test_version_2_limits_go_into_a_group_that_may_hand_controllers_on(tmp_path: Path) -> None:
    """On a plain folder: a kernel shows its files by itself, here what is written is looked at."""
    top = tmp_path / "cgroup"
    top.mkdir()
    (top / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (tmp_path / "mounts").write_text(f"proc /proc proc rw 0 0\ncgroup2 {top} cgroup2 rw,nosuid 0 0\n")
    (tmp_path / "own").write_text("0::/user.slice/session-1.scope\n")
    groups = Groups.find(str(tmp_path / "mounts"), str(tmp_path / "own"))
    enter, held = groups.make("box", WANTED)
    group = top / "ferrule" / "box"
    assert (top / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    assert (top / "ferrule" / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    assert enter == [f"{group}/cgroup.procs"]
    assert held == {"memory", "pids", "cpu"}
    assert (group / "memory.max").read_text() == str(64 << 20)
    assert (group / "pids.max").read_text() == "100"
    assert (group / "cpu.max").read_text() == "50000 100000"


def test_a_version_2_mount_without_controllers_gives_none(tmp_path: Path) -> None:
    top = tmp_path / "unified"
    top.mkdir()
    (top / "cgroup.controllers").write_text("\n")
    (tmp_path / "mounts").write_text(f"cgroup2 {top} cgroup2 rw 0 0\n")
    (tmp_path / "own").write_text("0::/\n")
    groups = Groups.find(str(tmp_path / "mounts"), str(tmp_path / "own"))
    assert groups.make("box", WANTED) == ([], set())


def test_version_1_groups_are_below_the_own_ones(tmp_path: Path) -> None:
    for name in ("memory/mine/deeper", "pids", "cpu,cpuacct"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "mounts").write_text(
        f"cgroup {tmp_path}/memory cgroup rw,memory 0 0\ncgroup {tmp_path}/pids cgroup rw,pids 0 0\n"
        f"cgroup {tmp_path}/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\ncgroup {tmp_path}/systemd cgroup rw,name=systemd 0 0\n"
    )
    (tmp_path / "own").write_text("9:name=systemd:/\n8:pids:/gone\n4:memory:/mine/deeper\n1:cpu,cpuacct:/\n0::/\n")
    groups = Groups.find(str(tmp_path / "mounts"), str(tmp_path / "own"))
    assert groups.plan("box") == {
        "memory": f"{tmp_path}/memory/mine/deeper/box",
        "pids": f"{tmp_path}/pids/box",
        "cpu": f"{tmp_path}/cpu,cpuacct/box",
    }
    enter, held = groups.make("box", WANTED)
    assert len(enter) == 3
    assert held == {"memory", "pids", "cpu"}
    assert (tmp_path / "memory/mine/deeper/box/memory.limit_in_bytes").read_text() == str(64 << 20)
    assert (tmp_path / "cpu,cpuacct/box/cpu.cfs_quota_us").read_text() == "50000"


def test_groups_of_this_machine_are_made_and_removed() -> None:
    groups = Groups.find()
    name = f"ferrule-test-{os.getpid()}"
    enter, held = groups.make(name, WANTED)
    assert {os.path.dirname(path) for path in enter} <= set(groups.plan(name).values())
    assert all(os.path.exists(path) for path in enter)
    assert bool(held) == bool(enter)
    folders = list(groups.plan(name).values())
    assert remove([*folders, "/no/such/group"]) == []
    assert not any(os.path.exists(folder) for folder in folders)
