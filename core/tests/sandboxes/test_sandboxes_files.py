"""Nothing that stands in a sandbox's folder leads a read or a write out of it."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from ferrule import FileView, Mount


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.txt"
    path.write_text("secret of the host")
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "box"
    (folder / "desk").mkdir(parents=True)
    return folder


def test_every_byte_comes_back(root: Path) -> None:
    view = FileView(root)
    data = bytes(range(256)) * 40_000
    view.write("/desk/deep/er/blob", data, 0o640)
    assert view.read("/desk/deep/er/blob") == data
    assert (root / "desk/deep/er/blob").stat().st_mode & 0o7777 == 0o640
    assert os.listdir(root / "desk/deep/er") == ["blob"]


def test_links_inside_are_followed_as_the_sandbox_means_them(root: Path) -> None:
    (root / "desk/data").mkdir()
    (root / "desk/data/a").write_text("inside")
    (root / "desk/relative").symlink_to("data/a")
    (root / "desk/absolute").symlink_to("/desk/data")
    (root / "desk/of_the_host").symlink_to(root / "desk" / "data" / "a")
    (root / "desk/up").symlink_to("../../../../desk/data/a")
    view = FileView(root)
    for path in ("/desk/relative", "/desk/absolute/a", "/desk/of_the_host", "/desk/up", "/../../desk/./data//a"):
        assert view.read(path) == b"inside", path


@pytest.mark.parametrize("make", ["absolute", "relative", "folder", "chain"])
def test_a_link_out_shows_nothing_of_the_host(root: Path, secret: Path, make: str) -> None:
    path = "/desk/x"
    if make == "absolute":
        (root / "desk/x").symlink_to(secret)
    elif make == "relative":
        (root / "desk/x").symlink_to("../../secret.txt")
    elif make == "folder":
        (root / "desk/up").symlink_to("../..")
        path = "/desk/up/secret.txt"
    else:
        (root / "desk/y").symlink_to(secret.parent)
        (root / "desk/x").symlink_to("y/secret.txt")
    with pytest.raises(FileNotFoundError):
        FileView(root).read(path)


def test_a_write_through_a_link_changes_nothing_outside(root: Path, secret: Path) -> None:
    (root / "desk/x").symlink_to(secret)
    (root / "desk/up").symlink_to(secret.parent)
    view = FileView(root)
    view.write("/desk/x", b"inside")
    view.write("/desk/up/secret.txt", b"inside too")
    assert secret.read_text() == "secret of the host"
    assert view.read("/desk/x") == b"inside"
    assert not (root / "desk/x").is_symlink()


def test_a_loop_of_links_is_an_error_and_not_a_hang(root: Path) -> None:
    (root / "desk/a").symlink_to("b")
    (root / "desk/b").symlink_to("a")
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        FileView(root).read("/desk/a")


def test_a_pipe_in_a_files_place_does_not_hold_the_reader(root: Path) -> None:
    os.mkfifo(root / "desk/pipe")
    with pytest.raises(PermissionError, match="not a regular file"):
        FileView(root).read("/desk/pipe")


def test_a_huge_file_is_refused_before_it_fills_memory(root: Path) -> None:
    with open(root / "desk/huge", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="larger than 1000000 bytes"):
        FileView(root).read("/desk/huge", limit=1_000_000)


def test_what_is_not_there_and_what_is_a_folder_are_told_apart(root: Path) -> None:
    view = FileView(root)
    with pytest.raises(FileNotFoundError):
        view.read("/desk/none")
    with pytest.raises(IsADirectoryError):
        view.read("/desk")
    with pytest.raises(IsADirectoryError):
        view.read("/")
    with pytest.raises(IsADirectoryError):
        view.write("/desk", b"")
    (root / "desk/file").write_text("")
    with pytest.raises(NotADirectoryError):
        view.read("/desk/file/x")
    view.remove("/desk/none")


def test_a_mount_that_is_not_writable_refuses(root: Path, tmp_path: Path) -> None:
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr/tool").write_text("tool")
    view = FileView(root, {"usr": Mount(tmp_path / "usr", writable=False)})
    assert view.read("/usr/tool") == b"tool"
    for path in ("/usr/tool", "/usr/new/er"):
        with pytest.raises(OSError):
            view.write(path, b"")
    with pytest.raises(PermissionError):
        view.remove("/usr/tool")
    assert os.listdir(tmp_path / "usr") == ["tool"]


def test_a_link_in_the_agents_folder_is_read_with_the_agents_eyes(root: Path, tmp_path: Path) -> None:
    verifier = tmp_path / "verifier"
    (verifier / "answers").mkdir(parents=True)
    (verifier / "answers/key").write_text("42")
    agent = FileView(root)
    view = FileView(verifier, {"desk": Mount(root / "desk", links=agent)})
    (root / "desk/mine").write_text("41")
    (root / "desk/link").symlink_to("mine")
    (root / "desk/trick").symlink_to("/answers/key")
    (root / "desk/trick2").symlink_to("../answers")
    assert view.read("/answers/key") == b"42"
    assert view.read("/desk/link") == b"41"
    for path in ("/desk/trick", "/desk/trick2/key"):
        with pytest.raises(FileNotFoundError):
            view.read(path)


def test_a_folder_swapped_for_a_link_while_it_is_read_never_shows_the_outside(root: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/f").write_text("outside")
    (root / "desk/d").mkdir()
    (root / "desk/d/f").write_text("inside")
    (root / "desk/link").symlink_to(tmp_path / "outside")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            os.rename(root / "desk/d", root / "desk/t")
            os.rename(root / "desk/link", root / "desk/d")
            os.rename(root / "desk/d", root / "desk/link")
            os.rename(root / "desk/t", root / "desk/d")

    thread = threading.Thread(target=swap)
    thread.start()
    view, seen = FileView(root), set()
    try:
        for _ in range(3000):
            try:
                seen.add(view.read("/desk/d/f"))
            except OSError:
                continue
    finally:
        stop.set()
        thread.join()
    assert seen == {b"inside"}
