"""Reading and writing below a folder whose content is hostile, from a process that may do anything.

Every component is opened on its own, without following links; a link is followed by this module's own reading of it,
below the sandbox's root. So no name, link, loop or race leads out of the sandbox.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

import attrs

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MOST_LINKS = 40


@attrs.frozen(eq=False)
class Mount:
    """A folder of the host that stands at the top of a sandbox.

    ``links`` is the view in which links found below it are read: the agent's, for a folder that the agent can write.
    Otherwise an agent's link to a name that only the verifier sees would show it to whoever reads the agent's file.
    """

    path: Path
    writable: bool = True
    links: FileView | None = None


@attrs.frozen(eq=False)
class _Link:
    view: FileView
    parts: list[str]


class FileView:
    """A sandbox's file system as one user sees it: ``root``, with ``mounts`` by the first component of a path.

    ``owner`` (uid, gid) is given what is written. Paths are the sandbox's own, absolute. A link to an absolute path of
    the host that lies below ``root`` is read as what it means.
    """

    def __init__(
        self, root: Path, mounts: Mapping[str, Mount] | None = None, owner: tuple[int, int] | None = None
    ) -> None:
        self.root, self.mounts, self.owner = root, dict(mounts or {}), owner

    def read(self, path: str, limit: int = 256 << 20) -> bytes:
        """The bytes of a regular file. OSError (EFBIG) beyond *limit* bytes; FileNotFoundError, IsADirectoryError,
        PermissionError.
        """
        folder, name, _ = self._locate(path, make=False, follow=True)
        try:
            # non-blocking, or a named pipe would hold this process for ever
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        finally:
            os.close(folder)
        with open(fd, "rb", buffering=0) as file:
            mode = os.fstat(fd).st_mode
            if stat.S_ISDIR(mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            if not stat.S_ISREG(mode):
                raise PermissionError(errno.EACCES, "not a regular file", path)
            out = bytearray()
            while chunk := file.read(min(1 << 20, limit + 1 - len(out))):
                out += chunk
                if len(out) > limit:
                    raise OSError(errno.EFBIG, f"larger than {limit} bytes", path)
            return bytes(out)

    def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Create or replace a file whole, and make the folders above it. A link that stands in its place is replaced."""
        folder, name, writable = self._locate(path, make=True, follow=False)
        try:
            if not writable:
                raise PermissionError(errno.EROFS, os.strerror(errno.EROFS), path)
            part = f".{name[:200]}.{secrets.token_hex(8)}"
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
            try:
                with open(fd, "wb", buffering=0) as file:
                    left = memoryview(data)
                    while left:
                        left = left[file.write(left) :]
                    if self.owner is not None:
                        os.fchown(fd, *self.owner)
                    os.fchmod(fd, mode & 0o777)
                os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                os.unlink(part, dir_fd=folder)
                raise
        finally:
            os.close(folder)

    def remove(self, path: str) -> None:
        """Delete a file, or a link itself; nothing happens where there is none."""
        folder, name, writable = self._locate(path, make=False, follow=False)
        try:
            if not writable:
                raise PermissionError(errno.EROFS, os.strerror(errno.EROFS), path)
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            pass
        finally:
            os.close(folder)

    def make_folder(self, path: str) -> None:
        """Make a folder and those above it; one that exists stays as it is."""
        folder, _, _ = self._locate(path.rstrip("/") + "/.", make=True, follow=False)
        os.close(folder)

    def _locate(self, path: str, *, make: bool, follow: bool) -> tuple[int, str, bool]:
        """An open folder, the name in it that *path* means, and whether it may be written."""
        if "\0" in path:
            raise ValueError("a path holds no NUL")
        view, todo = self, path.split("/")
        for _ in range(MOST_LINKS):
            found = view._descend(todo, make, follow)
            if not isinstance(found, _Link):
                if not found[1]:
                    os.close(found[0])
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
                return found
            view, todo = found.view, found.parts
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)

    def _descend(self, todo: list[str], make: bool, follow: bool) -> tuple[int, str, bool] | _Link:
        names: list[str] = []
        folders = [os.open(self.root, FOLDER)]
        mount: Mount | None = None
        last = len(todo) - 1
        try:
            for i, name in enumerate(todo):
                if name == "." and i == last and names:
                    return os.dup(folders[-1]), ".", mount is None or mount.writable
                if name in ("", "."):
                    continue
                if name == "..":
                    if names:
                        names.pop()
                        os.close(folders.pop())
                    continue
                if not names:
                    mount = self.mounts.get(name)
                if not names and mount is not None:
                    inner = os.open(mount.path, FOLDER)
                else:
                    mode = self._mode(folders[-1], name)
                    if i == last and not (follow and stat.S_ISLNK(mode)):
                        return os.dup(folders[-1]), name, mount is None or mount.writable
                    if stat.S_ISLNK(mode):
                        return self._read_link(folders[-1], name, names, todo[i + 1 :], mount)
                    if mode == 0 and make and (mount is None or mount.writable):
                        self._make(folders[-1], name)
                    inner = os.open(name, FOLDER, dir_fd=folders[-1])
                folders.append(inner)
                names.append(name)
            return os.dup(folders[-1]), "", False
        finally:
            for fd in folders:
                os.close(fd)

    @staticmethod
    def _mode(folder: int, name: str) -> int:
        """The mode of what stands there, links not followed; 0 where there is nothing."""
        try:
            return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return 0

    def _make(self, folder: int, name: str) -> None:
        try:
            os.mkdir(name, 0o755, dir_fd=folder)
        except FileExistsError:
            return
        if self.owner is not None:
            os.chown(name, *self.owner, dir_fd=folder, follow_symlinks=False)

    def _read_link(self, folder: int, name: str, names: list[str], rest: list[str], mount: Mount | None) -> _Link:
        target = os.readlink(name, dir_fd=folder)
        root = str(self.root)
        if target == root or target.startswith(root + "/"):
            target = target[len(root) :] or "/"
        start = [] if target.startswith("/") else names
        view = mount.links if mount is not None and mount.links is not None else self
        return _Link(view, [*start, *target.split("/"), *rest])
