"""The backend: configuration, the self-check at the start, and what is alive."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any

import attrs
from attrs import validators as v

import ferrule

from .box import BwrapSandbox, remove
from .host import SYSTEM, as_root, free_uid, tools
from .limits import Groups, Wanted

log = ferrule.get_logger("ferrule.sandbox.bwrap")


class BwrapSandboxes(ferrule.SandboxBackend, name="bwrap"):
    """Sandboxes by bubblewrap: namespaces of their own over the host's programs, without its files, its processes or
    its network.

    As root each sandbox has a uid of its own; otherwise all have yours, and are kept apart by their namespaces.
    Limits are enforced where control groups can be made, and as far as ``prlimit`` goes where not (which is logged):
    they are not among what this backend provides everywhere.
    """

    provides = frozenset({"isolation", "users"})

    @attrs.frozen
    class Config(ferrule.SandboxBackend.Config):
        """Sizes in megabytes (2**20 bytes); 0 is no limit, except for ``read_mb``.

        folder     where the sandboxes' folders are made; the system's folder for temporary files where absent
        bind       folders of the host that every sandbox's commands see, read-only, under their own absolute paths
                   (say ``/opt/conda``)
        memory_mb  memory of a sandbox whose task asks for none; ``pids`` its processes
        file_mb    size of one file that a command writes
        read_mb    size of a file beyond which ``read`` refuses
        cgroups    whether control groups are used where they can be
        """

        folder: Path | None = None
        bind: tuple[str, ...] = ()
        memory_mb: int = attrs.field(default=4096, validator=v.ge(0))
        pids: int = attrs.field(default=512, validator=v.ge(0))
        file_mb: int = attrs.field(default=1024, validator=v.ge(0))
        read_mb: int = attrs.field(default=256, validator=v.ge(1))
        cgroups: bool = True

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._run = ""
        self._live: dict[str, BwrapSandbox] = {}
        self._groups = Groups.find() if config.cgroups else Groups()
        self._told: set[str] = set()

    async def start(self, run: ferrule.RunInfo) -> None:
        """Make a sandbox and try it. Raises SandboxError with what to install or to allow."""
        self._run = run.id
        tools()
        with tempfile.NamedTemporaryFile(prefix="ferrule-check-") as secret:
            secret.write(b"outside")
            secret.flush()
            os.chmod(secret.name, 0o644)
            async with await self.create(ferrule.SandboxSpec(), label="self-check") as box:
                seen = await box.exec(f"cat {secret.name} /etc/shadow; echo inside > mine; id -un", timeout=30.0)
                if seen.stdout != "agent\n":
                    raise ferrule.SandboxError(
                        f"the self-check of 'bwrap' failed: {(seen.stdout + seen.stderr).strip()[-500:]}"
                    )
                owner = os.stat(box.folder / "agent" / "workspace" / "mine").st_uid
                if owner == 0 or owner != (os.geteuid() if box.uid is None else box.uid):
                    raise ferrule.SandboxError(
                        f"the self-check of 'bwrap' failed: what runs inside is uid {owner} outside"
                    )

    async def create(self, spec: ferrule.SandboxSpec, *, label: str = "") -> BwrapSandbox:
        """Raises SandboxError: an image is asked for, the spec does not fit, or bwrap cannot work here."""
        tools()
        self._check(spec)
        base = (self.config.folder or Path(tempfile.gettempdir())).resolve()
        uid = free_uid() if as_root() else None
        name = f"ferrule-bwrap-{os.urandom(6).hex()}"
        box = BwrapSandbox(self, name, base / name, uid, spec)
        _register().add(name, self._run, folder=str(box.folder), uid=uid, groups=self.groups_of(name), label=label)
        self._live[name] = box
        try:
            await ferrule.settle(asyncio.to_thread(box.prepare))
            await box.space("agent")
        except OSError as error:
            await box.close()
            raise ferrule.SandboxError(f"the folder of the sandbox could not be made: {error}") from error
        except BaseException as error:
            await box.close()
            if isinstance(error, ferrule.SandboxError):
                raise ferrule.SandboxError(f"{error.detail}{self._hint(base)}") from error
            raise
        return box

    def _check(self, spec: ferrule.SandboxSpec) -> None:
        if spec.image is not None:
            raise ferrule.SandboxError(
                f"the sandbox 'bwrap' boots no images, and the task asks for {spec.image!r}: use one that does"
            )
        path = PurePosixPath(spec.workdir)
        if (
            not path.is_absolute()
            or ".." in path.parts
            or len(path.parts) < 2
            or path.parts[1] in (*SYSTEM, "verifier")
        ):
            raise ferrule.SandboxError(
                f"workdir {spec.workdir!r} cannot be had: name an absolute path such as /workspace"
            )
        for key in spec.env:
            if not key or "=" in key:
                raise ferrule.SandboxError(f"not the name of an environment variable: {key!r}")
        for bound in self.config.bind:
            if not bound.startswith("/") or bound.strip("/") == "" or not os.path.isdir(bound):
                raise ferrule.SandboxError(f"sandbox.bind: {bound!r} is not the absolute path of a folder")

    @staticmethod
    def _hint(base: Path) -> str:
        """What stands in bwrap's way, as far as it can be told."""
        for folder in (base, *base.parents):
            if as_root() and not folder.stat().st_mode & 0o001:
                return f"; {folder} cannot be entered by other users: set sandbox.folder to one where every folder above can be"
        for switch, good in (
            ("kernel/unprivileged_userns_clone", "1"),
            ("kernel/apparmor_restrict_unprivileged_userns", "0"),
        ):
            path = Path("/proc/sys", switch)
            if path.exists() and path.read_text().strip() != good:
                return f"; user namespaces are forbidden here: sysctl -w {switch.replace('/', '.')}={good}"
        return ""

    def groups_of(self, name: str) -> list[str]:
        """The control groups of a sandbox."""
        return [path for user in ("agent", "root") for path in self._groups.plan(f"{name}.{user}").values()]

    def limit(self, box: BwrapSandbox, user: str) -> tuple[list[str], list[str]]:
        """Make the limits of *user*: files by which a process enters its groups, and what to put before a command
        besides.
        """
        memory = (box.spec.memory_mb or self.config.memory_mb) << 20
        wanted = Wanted(memory, self.config.pids, box.spec.cpus)
        enter, held = self._groups.make(f"{box.id}.{user}", wanted)
        missing = {name for name in ("memory", "pids", "cpu") if wanted.of(name) and name not in held}
        prefix = []
        if "pids" in missing and box.uid is not None:
            prefix.append(f"--nproc={wanted.pids}")
        if "memory" in missing and box.spec.memory_mb:
            prefix.append(f"--as={memory}")
        if missing - self._told:
            self._told |= missing
            log.warning(
                "sandbox_limits_not_enforced",
                sandbox="bwrap",
                limits=sorted(missing),
                instead=prefix,
                detail="control groups cannot be made here",
            )
        return enter, [tools().prlimit, *prefix, "--"] if prefix else []

    def forget(self, box: BwrapSandbox) -> None:
        """Called by a sandbox when nothing of it is left."""
        _register().remove(box.id)
        self._live.pop(box.id, None)

    async def close(self) -> None:
        await asyncio.gather(*(box.close() for box in tuple(self._live.values())))

    @classmethod
    async def sweep(cls, run_id: str | None = None) -> list[str]:
        register, removed = _register(), []
        for entry in register.left_behind(run_id):
            folder, uid = Path(entry.facts.get("folder", "")), entry.facts.get("uid")
            groups = [path for path in entry.facts.get("groups", ()) if Path(path).name.startswith(entry.name)]
            if folder.name != entry.name:  # not an entry of ours: nothing is deleted on its word
                continue
            await asyncio.to_thread(
                remove, entry.name, folder, uid if uid and uid not in (0, os.getuid()) else None, groups
            )
            register.remove(entry.name)
            removed.append(entry.name)
        return removed


def _register() -> Any:
    return ferrule.SandboxRegister("bwrap")
