"""The registry: a reference to exactly one class, or an error that says what to do."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pluggy

from ..errors import FerruleError, PluginError
from ..kinds import KINDS, Kind, Observer, ObserverSpecs, hookimpl
from ..logs import get_logger
from . import references
from .auto import GROUP, Choice, choose
from .compat import check_class, nearest
from .discovery import HOOKS, Candidate, Finding, discover, norm, switched_off
from .observers import check_observer
from .references import Ref

log = get_logger("ferrule.plugins")

OBSERVER = Kind("observer", HOOKS, Observer, ObserverSpecs)
"""Observers are resolved by the same references, but no hook chooses them: they are told of everything."""


class Stub:
    """Stands for one candidate (or, with None, for the module and file references of a kind) and imports on its
    match alone.

    ``__dir__`` shows pluggy the one hook: it looks at every attribute otherwise, which costs a start-up with hundreds
    of stubs dearly.
    """

    __slots__ = ("candidate",)
    hook = ""

    def __init__(self, candidate: Candidate | None) -> None:
        self.candidate = candidate

    def __dir__(self) -> list[str]:
        return [self.hook]

    def answer(self, ref: Ref) -> Any:
        return references.load(ref) if ref.candidate is self.candidate else None


def _stub_class(kind: Kind) -> type[Stub]:
    def implementation(self: Stub, ref: Ref) -> Any:
        return self.answer(ref)

    implementation.__name__ = kind.hook
    implementation.__qualname__ = f"{kind.name.title()}Stub.{kind.hook}"
    return type(
        f"{kind.name.title()}Stub", (Stub,), {"__slots__": (), "hook": kind.hook, kind.hook: hookimpl(implementation)}
    )


class _Hooks(pluggy.PluginManager):
    """Kind hooks are answered by stubs; any other plugin may only wrap them."""

    def register(self, plugin: Any, name: str | None = None) -> str | None:
        if not isinstance(plugin, Stub):
            known = [kind.hook for kind in KINDS.values()]
            for attribute in dir(plugin):
                options = self.parse_hookimpl_opts(plugin, attribute)
                if options is None:
                    continue
                hook = options.get("specname") or attribute
                if hook not in known:
                    raise PluginError(f"plugin {name or plugin!r}: no kind has a hook {hook!r}{nearest(hook, known)}")
                if not (options.get("wrapper") or options.get("hookwrapper")):
                    raise PluginError(
                        f"plugin {name or plugin!r} may only wrap {hook}: put @hookimpl(wrapper=True) on it; a class is offered "
                        "by an entry point"
                    )
        return super().register(plugin, name)


@attrs.frozen
class Loaded:
    """One line of the manifest: what a reference turned out to be."""

    reference: str
    kind: str
    cls: type
    candidate: Candidate | None
    file: str | None
    sha256: str | None


class Registry:
    """What is installed, indexed; :meth:`resolve` imports what a configuration names and nothing else.

    ``findings`` tells what was odd among the metadata, ``disabled`` which candidates the environment switched off,
    and by what.
    """

    def __init__(
        self,
        candidates: Iterable[Candidate],
        findings: Iterable[Finding] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        environ = os.environ if environ is None else environ
        self.kinds: dict[str, Kind] = {**KINDS, OBSERVER.name: OBSERVER}
        self.findings = tuple(findings)
        self.disabled: list[tuple[Candidate, str]] = []
        self.hooks = _Hooks("ferrule")
        self._index: dict[tuple[str, str], list[Candidate]] = {}
        self._loaded: dict[tuple[str, str, str | None], Loaded] = {}
        self._files: dict[Path, str] = {}
        self._patterns: list[Candidate] = []
        stubs = {kind.name: _stub_class(kind) for kind in KINDS.values()}
        for kind in KINDS.values():
            self.hooks.add_hookspecs(kind.specs)
            self.hooks.register(stubs[kind.name](None), f"references:{kind.name}")
        for candidate in candidates:
            variable = switched_off(candidate, environ)
            if variable:
                if candidate.kind != GROUP:
                    self.disabled.append((candidate, variable))
                continue
            if candidate.kind == GROUP:
                self._patterns.append(candidate)
                continue
            same = self._index.setdefault((candidate.kind, norm(candidate.name)), [])
            same.append(candidate)
            if candidate.kind in stubs:
                self.hooks.register(
                    stubs[candidate.kind](candidate),
                    f"{candidate.dist.key}:{candidate.kind}:{candidate.name}:{len(same)}",
                )

    @classmethod
    def discover(cls, path: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> Registry:
        """The registry of what is installed on *path* (default: ``sys.path``)."""
        groups = {kind.group: kind.name for kind in (*KINDS.values(), OBSERVER)} | {GROUP: GROUP}
        return cls(*discover(groups, path), environ)

    def candidates(self, kind: str | None = None) -> list[Candidate]:
        """What can be named, of one kind or of all."""
        return [c for (k, _), found in sorted(self._index.items()) if kind in (None, k) for c in found]

    def renderer_for(self, model: str | None) -> Choice:
        """What ``renderer.use = "auto"`` comes to for the model of that public id. Raises PluginError."""
        return choose(model, self._patterns, self.candidates("renderer"))

    def register(self, plugin: object, name: str | None = None) -> None:
        """Add hook wrappers (timing, tracing) around the kind hooks. PluginError where *plugin* has any other hook."""
        self.hooks.register(plugin, name)

    def find(self, kind: str, text: str, base: Path, sha256: str | None = None) -> Ref:
        """The one thing that *text* names; nothing is imported. Relative files are below *base*."""
        ref = references.direct(kind, text, base, sha256)
        if ref is None:
            return Ref(kind, text, self._named(kind, text))
        if ref.module is not None:  # what an entry point declares has a distribution whose requirements count
            value = f"{ref.module}:{ref.attribute}"
            known = next((c for c in self.candidates(kind) if c.value.replace(" ", "") == value), None)
            if known is not None:
                return attrs.evolve(ref, candidate=known)
        return ref

    def resolve(self, kind: str, text: str, base: Path | None = None, *, sha256: str | None = None) -> type:
        """The class that *text* names for *kind*, imported and checked against the kind's contract.

        *sha256* is what a class from a file must hash to, where the reference came from another process. Raises
        PluginError.
        """
        ref = self.find(kind, text, Path.cwd() if base is None else Path(base), sha256)
        if kind == OBSERVER.name:
            found = references.load(ref)
        else:
            try:
                found = getattr(self.hooks.hook, self.kinds[kind].hook)(ref=ref)
            except FerruleError:
                raise
            except Exception as error:
                raise PluginError(f"a hook wrapper around {ref.origin} failed: {references.reason(error)}") from error
        cls = check_class(self.kinds[kind], found, ref.origin)
        if kind == OBSERVER.name:
            check_observer(cls, ref.origin)
        self._record(ref, cls)
        for finding in self.about(ref):
            log.warning(
                "odd_metadata", distribution=finding.distribution, location=finding.location, message=finding.message
            )
        return cls

    def about(self, ref: Ref) -> list[Finding]:
        """What was odd among the metadata of the distribution that *ref* leads to."""
        key = ref.candidate.dist.key if ref.candidate else None
        return [finding for finding in self.findings if norm(finding.distribution) == key]

    def manifest(self) -> list[dict[str, Any]]:
        """What was loaded so far: ``reference``, ``kind``, ``class``, ``distribution``, ``version``, ``file``, and
        the ``sha256`` of that file or of all of its package's Python files.
        """
        return [
            {
                "reference": item.reference,
                "kind": item.kind,
                "class": f"{item.cls.__module__}:{item.cls.__qualname__}",
                "distribution": item.candidate.dist.name if item.candidate else None,
                "version": item.candidate.dist.version if item.candidate else None,
                "file": item.file,
                "sha256": item.sha256,
            }
            for item in self._loaded.values()
        ]

    def installed(self, distribution: str) -> str | None:
        """The version of an installed distribution, or None."""
        known = next((c.dist for c in self.candidates() if norm(c.dist.key) == norm(distribution)), None)
        if known is not None:
            return known.version
        import importlib_metadata

        versions = [
            dist.metadata["Version"]
            for dist in importlib_metadata.distributions(name=distribution)
            if dist.read_text("METADATA") or dist.read_text("PKG-INFO")
        ]
        return str(versions[0]) if versions else None

    def _named(self, kind: str, text: str) -> Candidate:
        name, at, distribution = text.partition("@")
        found = self._index.get((kind, norm(name)), [])
        if at:
            found = [c for c in found if norm(c.dist.key) == norm(distribution)]
        if len(found) == 1:
            return found[0]
        if not found:
            raise PluginError(self._unknown(kind, text, name, distribution))
        if len({c.dist.key for c in found}) == 1:
            values = " and ".join(c.value for c in found)
            raise PluginError(
                f"{found[0].dist} offers {kind} {name!r} more than once: {values}; name one as package.module:Class"
            )
        raise PluginError(
            f"more than one distribution offers {kind} {text!r}: {', '.join(str(c.dist) for c in found)}; "
            f"write {' or '.join(repr(c.spelling) for c in found)}"
        )

    def _unknown(self, kind: str, text: str, name: str, distribution: str) -> str:
        head = f"no {kind} is called {text!r}"
        for candidate, variable in self.disabled:
            if candidate.kind == kind and norm(candidate.name) == norm(name):
                return f"{head}: {candidate.spelling} is switched off by {variable}"
        offered = self._index.get((kind, norm(name)), [])
        if distribution and offered:
            return f"{head}; {name!r} is offered by {', '.join(c.dist.name for c in offered)}"
        elsewhere = sorted({k for k, n in self._index if n == norm(name)})
        if elsewhere:
            return f"{head}; {'an' if elsewhere[0][0] in 'aeiou' else 'a'} {elsewhere[0]} is called that"
        known = {norm(c.name): c.name for c in self.candidates(kind)}
        if not known:
            return f"{head}: no {kind} is installed"
        near = nearest(norm(name), known)
        for key, spelling in known.items():
            near = near.replace(f"'{key}'", f"'{spelling}'")
        if not near.startswith("; did") and "." in name and not distribution:
            module, _, attribute = name.rpartition(".")
            near = f"; for a class write {module}:{attribute}"
        return head + near

    def _record(self, ref: Ref, cls: type) -> None:
        if ref.file is not None:
            digest = files_digest(ref.file)
            before = self._files.setdefault(ref.file, digest)
            if before != digest:
                raise PluginError(
                    f"{ref.origin}: {ref.file} has changed since it was loaded (sha256 {before[:12]}, now {digest[:12]}); start again"
                )
            file: str | None = str(ref.file)
        else:
            file = getattr(sys.modules.get(cls.__module__), "__file__", None)
            digest = module_digest(cls.__module__)
        key = (ref.kind, ref.text, str(ref.file) if ref.file else None)
        self._loaded[key] = Loaded(ref.text, ref.kind, cls, ref.candidate, file, digest or None)


def files_digest(path: Path) -> str:
    """The sha256 of a file, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def module_digest(name: str) -> str:
    """The sha256 of a module's file or, where it belongs to a package, of all Python files of the package; empty
    where there are none.
    """
    top, module = (getattr(sys.modules.get(part), "__file__", None) for part in (name.partition(".")[0], name))
    if module is None or not Path(module).is_file():
        return ""
    if top is None or Path(top).name != "__init__.py":
        return files_digest(Path(module))
    folder, whole = Path(top).parent, hashlib.sha256()
    for file in sorted(folder.rglob("*.py"), key=lambda file: file.relative_to(folder).parts):
        whole.update(f"{file.relative_to(folder).as_posix()}\0{files_digest(file)}\n".encode())
    return whole.hexdigest()


@functools.cache
def default_registry() -> Registry:
    """The registry of what is installed, made once per process."""
    return Registry.discover()
