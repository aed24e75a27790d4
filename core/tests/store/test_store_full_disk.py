"""Disks that are full or take no writes: nothing half is left, what there is can be read, what went wrong is said."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ferrule import CheckpointError, Episode, FerruleError, Termination
from ferrule.cli import main
from ferrule.store import RunStore, new_run_id
from ferrule.store.jsonl import JsonLines, lines, write_atomically
from ferrule.training.position import Position


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let no file grow beyond *size* bytes: a write stops there half done, and the next is refused, as on a full disk."""
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_a_line_that_does_not_fit_leaves_no_half_of_itself(tmp_path):
    file = JsonLines(tmp_path / "a.jsonl")
    file.append('{"n": 1}')
    with files_of_at_most(100), pytest.raises(OSError, match="File too large"):
        file.append(json.dumps({"n": "x" * 200}))
    assert file.size == len('{"n": 1}\n')
    file.append('{"n": 2}')
    file.close()
    assert [line["n"] for _, line in lines(tmp_path / "a.jsonl")] == [1, 2]


def test_a_file_that_cannot_be_replaced_stays_and_nothing_lies_beside_it(tmp_path):
    path = tmp_path / "state.json"
    write_atomically(path, b"old")
    with files_of_at_most(100), pytest.raises(OSError, match="File too large"):
        write_atomically(path, b"x" * 200)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["state.json"]


def test_an_index_that_cannot_be_written_is_named(tmp_path):
    store = RunStore.create(tmp_path, "run", {}, {})
    episode = Episode("e", "t", 0, group="train/step-1", reward=0.0, termination=Termination.ENV_DONE)
    with files_of_at_most(1):
        with pytest.raises(FerruleError, match=r"index\.sqlite: "):
            store.set_status("done")
        with pytest.raises(OSError, match="File too large"):
            store.file_episode(episode)
    store.file_episode(episode)
    assert len(store.index.find(episode="e")) == 1
    store.close()


def test_an_index_that_cannot_be_read_leaves_no_folder_of_a_run(tmp_path):
    (tmp_path / "index.sqlite").write_bytes(os.urandom(5000))
    with pytest.raises(FerruleError, match="not a readable index"):
        RunStore.create(tmp_path, "run", {}, {})
    assert [p.name for p in tmp_path.iterdir()] == ["index.sqlite"]


LOOK = """
import sys
from pathlib import Path
from ferrule import FerruleError
from ferrule.store import Index, list_runs
root = Path(sys.argv[1])
print([run.status for run in list_runs(root)])
try:
    Index(root).update_run("x", status="done")
except FerruleError as error:
    print(error)
"""


def test_runs_on_a_medium_that_takes_no_writes_are_listed(tmp_path):
    root = tmp_path / "runs"
    store = RunStore.create(root, "run", {}, {})
    store.set_status("done")
    store.close()
    tmp_path.chmod(0o755)
    words = [sys.executable, "-c", LOOK, str(root)]
    as_root = os.geteuid() == 0
    if as_root:  # whom no mode of a folder stops
        mount = 'mount --bind $1 $1 && mount -o remount,bind,ro $1 && shift && exec "$@"'
        words = ["unshare", "--mount", "sh", "-c", mount, "sh", str(root), *words]
    else:
        root.chmod(0o555)
        (root / "index.sqlite").chmod(0o444)
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    if as_root and ("unshare" in done.stderr or "mount" in done.stderr):
        pytest.skip("this system lets nobody mount")
    listed, refused = done.stdout.splitlines()
    assert listed == "['done']"
    assert "index.sqlite: attempt to write a readonly database" in refused


def test_a_very_long_name_still_makes_a_folder(tmp_path):
    (tmp_path / new_run_id("ü" * 5000)).mkdir()
    assert new_run_id("ü" * 5000).startswith("ü" * 100 + "-")


@pytest.mark.parametrize("text", ["[1]", '{"version": 1}', '{"version": 1, "kept": 3}', "{"])
def test_a_damaged_state_is_said_to_be(tmp_path, text):
    store = RunStore.create(tmp_path, "run", {}, {})
    (store.dir / "state.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"state\.json"):
        Position.from_state(store.load_state(), store.dir)
    store.close()


@pytest.mark.parametrize("name", ["manifest.json", "config.json"])
@pytest.mark.parametrize("text", ["{", "[1]", None])
def test_a_damaged_run_is_said_to_be(tmp_path, name, text):
    store = RunStore.create(tmp_path, "run", {}, {})
    store.close()
    path = store.dir / name
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(FerruleError, match=f"{name} (is damaged|cannot be read)"):
        _ = store.manifest, store.config_raw


def test_the_command_says_in_one_line_what_the_disk_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")

    def refused(*_: object, **__: object) -> None:
        (tmp_path / "file" / "runs").mkdir()

    monkeypatch.setattr("ferrule.cli.cli.main", refused)
    with pytest.raises(SystemExit) as exit_:
        main(["runs", "list"])
    assert exit_.value.code == 1
    assert capsys.readouterr().err == f"{tmp_path / 'file' / 'runs'}: Not a directory\n"


def test_other_errors_keep_their_traceback(monkeypatch, capsys):
    def broken(*_: object, **__: object) -> None:
        raise OSError("a plugin's own")

    monkeypatch.setattr("ferrule.cli.cli.main", broken)
    with pytest.raises(SystemExit) as exit_:
        main(["runs", "list"])
    assert exit_.value.code == 1
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback (most recent call last):")
    assert "in broken" in shown
    assert shown.endswith("OSError: a plugin's own\n\n")
