"""Made-up distributions: metadata and modules written into a folder that is put on the import path."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs
import pytest
import structlog

from ferrule.cli import main
from ferrule.plugins import default_registry

TOY = Path(__file__).parent / "toy" / "ferrule_toy.py"
TOY_POINTS = {
    "ferrule.tasksets": {"toy": "ferrule_toy:ToyTaskset"},
    "ferrule.harnesses": {"toy_tools": "ferrule_toy:ToyHarness", "toy_replay": "ferrule_toy:ToyReplay"},
    "ferrule.renderers": {"toy": "ferrule_toy:ToyRenderer"},
    "ferrule.trainers": {"toy": "ferrule_toy:ToyTrainer"},
    "ferrule.advantages": {"toy_grpo": "ferrule_toy:ToyAdvantage"},
    "ferrule.losses": {"toy_echo": "ferrule_toy:ToyEcho", "toy_gate": "ferrule_toy:ToyGate"},
    "ferrule.sandboxes": {"toy_box": "ferrule_toy:ToySandbox", "toy_jail": "ferrule_toy:ToyIsolated"},
    "ferrule.hooks": {"toy_watcher": "ferrule_toy:ToyWatcher"},
}


@attrs.frozen
class Site:
    """A folder of made-up distributions, first on ``sys.path``."""

    path: Path

    def add(
        self,
        name: str,
        version: str = "1.0",
        *,
        points: Mapping[str, Mapping[str, str]] | None = None,
        modules: Mapping[str, str] | None = None,
        requires: Sequence[str] = (),
        path: Path | None = None,
        info: str = "dist-info",
        summary: str = "",
    ) -> Path:
        """Write one distribution; *modules* maps module names to sources. The folder of its metadata."""
        folder = path or self.path
        folder.mkdir(parents=True, exist_ok=True)
        for module, source in (modules or {}).items():
            (folder / f"{module}.py").write_text(source)
        metadata = folder / f"{name.replace('-', '_')}-{version}.{info}"
        metadata.mkdir()
        lines = [
            "Metadata-Version: 2.1",
            f"Name: {name}",
            f"Version: {version}",
            *([f"Summary: {summary}"] if summary else []),
            *(f"Requires-Dist: {r}" for r in requires),
        ]
        (metadata / ("METADATA" if info == "dist-info" else "PKG-INFO")).write_text("\n".join(lines) + "\n")
        text = "".join(
            f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in entries.items())
            for group, entries in (points or {}).items()
        )
        (metadata / "entry_points.txt").write_text(text)
        importlib.invalidate_caches()
        return metadata

    def toy(self) -> None:
        """The distribution ``ferrule-toy``: one small plugin of each kind."""
        self.add(
            "ferrule-toy",
            "0.3",
            points=TOY_POINTS,
            modules={"ferrule_toy": TOY.read_text()},
            requires=["ferrule>=0.1,<0.2"],
        )

    def run(self, *words: str | Path, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
        """``python -m ferrule words…`` with this site on its path."""
        return self.python("-m", "ferrule", *map(str, words), cwd=cwd, **environ)

    def python(self, *words: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
        """A Python process with this site on its path."""
        env = {**os.environ, "PYTHONPATH": str(self.path), "COLUMNS": "120", **environ}
        return subprocess.run(
            [sys.executable, *words], capture_output=True, text=True, cwd=cwd, env=env, timeout=120, check=False
        )


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """An empty folder for made-up distributions, first on ``sys.path``; what was imported from it is forgotten
    afterwards.
    """
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.delenv("FERRULE_PLUGINS", raising=False)
    monkeypatch.delenv("FERRULE_DISABLE", raising=False)
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    default_registry.cache_clear()
    yield Site(folder)
    default_registry.cache_clear()
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if file.startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def make_distribution(site: Site) -> Callable[..., Path]:
    """Write a made-up distribution: see :meth:`Site.add`."""
    return site.add


@pytest.fixture
def command(site: Site, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run ``ferrule words…`` in this process: its exit code, stdout and stderr."""

    def run(*words: str | Path) -> tuple[int, str, str]:
        default_registry.cache_clear()
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


@pytest.fixture(autouse=True)
def nothing_of_earlier_tests(monkeypatch):
    """Secrets of configurations that other tests loaded here are not known, and no command has configured the log."""
    monkeypatch.setattr("ferrule.masking._known", set())
    structlog.reset_defaults()
