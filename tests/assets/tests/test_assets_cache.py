"""The cache: several processes at once build once, a build that fails leaves nothing, a missing package says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ferrule_test_assets as assets
import pytest
from ferrule_test_assets._cache import cached
from ferrule_test_assets._sources import version


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FERRULE_TEST_CACHE", str(tmp_path / "cache"))
    return assets.cache_folder()


def test_processes_that_ask_at_once_build_once(root: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom ferrule_test_assets._cache import cached\n"
        "def build(out):\n"
        "    time.sleep(0.2)\n    (out / 'made').touch()\n    print('built', file=sys.stderr)\n"
        "print(sorted(p.name for p in cached('slow', (), build).iterdir()))\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    shown = [process.communicate(timeout=60) for process in processes]
    assert [out.strip() for out, _ in shown] == ["['made']"] * 3
    assert "".join(err for _, err in shown).split() == ["built"]
    assert [p.name for p in root.iterdir() if p.is_dir()] == [cached("slow", (), lambda _: None).name]


def test_a_build_that_fails_leaves_nothing(root: Path) -> None:
    def fail(out: Path) -> None:
        (out / "half").touch()
        raise ValueError("stopped")

    with pytest.raises(ValueError, match="stopped"):
        cached("broken", (), fail)
    assert not [p for p in root.iterdir() if p.is_dir()]
    assert cached("broken", (), lambda out: (out / "whole").touch()).is_dir()


def test_other_facts_are_another_asset(root: Path) -> None:
    assert cached("one", (), lambda _: None, "a") != cached("one", (), lambda _: None, "b")


def test_a_missing_package_is_named() -> None:
    with pytest.raises(assets.MissingPackage, match="pip install --no-deps no-such-package-here"):
        version("no-such-package-here")
