"""What a sandbox needs of its host: the tools, a uid of its own, and the little of the file system that it is shown."""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import attrs

import ferrule

PACKAGES = {
    "bwrap": "bubblewrap",
    "setpriv": "util-linux",
    "nsenter": "util-linux",
    "setsid": "util-linux",
    "prlimit": "util-linux",
    "env": "coreutils",
}

SYSTEM = ("usr", "etc", "proc", "dev", "sys", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""First components of paths that are the system's, in every sandbox."""

UIDS = range(0x70000000, 0x7FFFFFFF)
"""Uids of sandboxes: each takes one at random, far above those of people, services and containers."""

ETC_COPIED = ("ld.so.cache", "ld.so.conf", "localtime", "protocols", "services", "ssl/openssl.cnf", "mime.types")
ETC_SHOWN = ("alternatives", "ssl/certs", "ca-certificates", "pki/tls/certs", "pki/ca-trust", "ld.so.conf.d")

AGENT, ROOT = 1000, 0
ETC_WRITTEN = {
    "passwd": "root:x:0:0:root:/verifier:/bin/bash\nagent:x:1000:1000:agent:/home/agent:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "hostname": "sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "resolv.conf": "",
}


@functools.cache
def as_root() -> bool:
    return os.geteuid() == 0


@attrs.frozen
class Tools:
    """Absolute paths of the programs that are used, and whether this bwrap can forbid user namespaces inside."""

    bwrap: str
    setpriv: str
    nsenter: str
    setsid: str
    prlimit: str
    env: str
    shell: str
    disable_userns: bool


@functools.cache
def tools() -> Tools:
    """Raises SandboxError that says what to install."""
    found = {name: shutil.which(name) for name in PACKAGES}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        packages = sorted({PACKAGES[name] for name in missing})
        raise ferrule.SandboxError(
            f"the sandbox 'bwrap' needs {', '.join(missing)}, not found on PATH: install {' and '.join(packages)} "
            f"(apt-get install {' '.join(packages)}, dnf install {' '.join(packages)})"
        )
    about = subprocess.run([str(found["bwrap"]), "--help"], capture_output=True, text=True, check=False)
    shell = next((path for path in ("/usr/bin/bash", "/bin/bash") if os.path.exists(path)), "/bin/sh")
    return Tools(
        **{k: str(v) for k, v in found.items()},
        shell=shell,
        disable_userns="--disable-userns" in about.stdout + about.stderr,
    )


def _uids() -> set[int]:
    """The uids of all live processes. Whoever has a sandbox's uid dies with it: where the range is not private, this
    must be asked.
    """
    found = set()
    for pid in ferrule.process_table():
        with contextlib.suppress(OSError):
            found.add(os.stat(f"/proc/{pid}").st_uid)
    return found


def free_uid() -> int:
    """A uid that nobody has: of the private range, or of the top of what this process's user namespace maps."""
    choices = UIDS
    with open("/proc/self/uid_map") as file:
        ends = [int(start) + int(count) for start, _, count in (line.split() for line in file)]
    if max(ends) < UIDS.stop:
        choices = range(max(1, max(ends) - 4096), max(ends) - 1)
    while True:
        uid = choices[secrets.randbelow(len(choices))]
        if choices is not UIDS and uid in _uids():
            continue
        try:
            pwd.getpwuid(uid)
        except KeyError:
            return uid


def make_system(root: Path, names: Sequence[str]) -> None:
    """The top of a sandbox's file system: links as the host has them, and empty folders for what is mounted."""
    root.mkdir()
    for name in SYSTEM:
        host = Path("/", name)
        if host.is_symlink():
            (root / name).symlink_to(os.readlink(host))
        elif host.is_dir() and name != "sys":
            (root / name).mkdir()
    for name in names:
        (root / name.strip("/")).mkdir(parents=True, exist_ok=True)


def make_etc(etc: Path) -> None:
    """An /etc that names nobody of the host: users, loader and certificates, and nothing else."""
    etc.mkdir()
    for name, text in ETC_WRITTEN.items():
        (etc / name).write_text(text)
    for name in ETC_COPIED:
        host = Path("/etc", name)
        if host.is_file():
            (etc / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(host, etc / name)
            (etc / name).chmod(0o644)
    for name in ETC_SHOWN:
        if Path("/etc", name).is_dir():
            (etc / name).mkdir(parents=True, exist_ok=True)


def system_binds(etc: Path, extra: Sequence[str], network: bool) -> list[str]:
    """The part of bwrap's arguments that shows the host's programs, read-only."""
    out = []
    for name in SYSTEM:
        host = Path("/", name)
        if name not in ("etc", "proc", "dev", "sys") and host.is_dir() and not host.is_symlink():
            out += ["--ro-bind", str(host), str(host)]
    out += ["--ro-bind", str(etc), "/etc"]
    for name in ETC_SHOWN:
        if Path("/etc", name).is_dir():
            out += ["--ro-bind", f"/etc/{name}", f"/etc/{name}"]
    if network and os.path.exists("/etc/resolv.conf"):
        out += ["--ro-bind", os.path.realpath("/etc/resolv.conf"), "/etc/resolv.conf"]
    for path in extra:
        out += ["--ro-bind", path, path]
    return [*out, "--proc", "/proc", "--dev", "/dev"]
