"""Metadata that is odd, and much of it."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ferrule.plugins import Registry
from ferrule.plugins.discovery import discover

GROUPS = {"ferrule.losses": "loss"}


def found(*path: Path):
    return discover(GROUPS, [str(p) for p in path])


def echo(module: str = "fake_losses", name: str = "echo") -> dict:
    return {"ferrule.losses": {name: f"{module}:Echo"}}


def test_an_empty_leftover_never_hides_the_real_one_and_is_reported(site):
    site.add("fake-losses", "1.0", points=echo())
    for leftover in ("fake_losses-0.9.dist-info", "Fake.Losses-2.0.dist-info"):
        (site.path / leftover).mkdir()
    candidates, findings = found(site.path)
    assert [(c.name, c.dist.version) for c in candidates] == [("echo", "1.0")]
    assert sorted(Path(f.location).name for f in findings) == ["Fake.Losses-2.0.dist-info", "fake_losses-0.9.dist-info"]
    assert all("without metadata" in f.message for f in findings)


def test_a_leftover_alone_offers_nothing(site):
    leftover = site.add("fake-losses", "1.0", points=echo())
    (leftover / "METADATA").unlink()
    candidates, findings = found(site.path)
    assert candidates == []
    assert len(findings) == 1


def test_a_stale_egg_info_gives_way_to_installed_metadata_whatever_the_path_order(site, tmp_path):
    source = tmp_path / "src"
    site.add("fake-losses", "0.1", points=echo("old_losses"), path=source, info="egg-info")
    site.add("fake-losses", "1.0", points=echo())
    for path in ((source, site.path), (site.path, source)):
        candidates, findings = found(*path)
        assert [c.value for c in candidates] == ["fake_losses:Echo"]
        assert ["0.1" in f.message for f in findings] == [True]


def test_of_two_copies_in_one_folder_the_newest_counts_and_an_entry_point_it_dropped_is_gone(site):
    site.add("fake-losses", "1.9", points={"ferrule.losses": {"echo": "a:B", "gone": "a:C"}})
    site.add("fake-losses", "1.10", points=echo())
    candidates, findings = found(site.path)
    assert [(c.name, c.dist.version) for c in candidates] == [("echo", "1.10")]
    assert len(findings) == 1
    assert "1.9" in findings[0].message


def test_the_first_folder_of_the_path_wins_as_it_does_for_imports(site, tmp_path):
    site.add("fake-losses", "2.0", points=echo(), path=tmp_path / "system")
    site.add("fake-losses", "1.0", points=echo(), path=tmp_path / "own")
    assert [c.dist.version for c in found(tmp_path / "own", tmp_path / "system")[0]] == ["1.0"]


def test_a_folder_that_is_twice_on_the_path_is_one_folder(site, tmp_path):
    site.add("fake-losses", points=echo())
    (tmp_path / "link").symlink_to(site.path)
    candidates, findings = found(site.path, site.path, tmp_path / "link")
    assert (len(candidates), findings) == (1, [])


def test_metadata_is_read_once_and_only_of_what_is_asked_for(site, monkeypatch):
    import importlib_metadata

    for i in range(20):
        site.add(f"fake-{i}", points={"ferrule.losses": {f"a{i}": "x:X", f"b{i}": "x:X"}})
    reads = []
    original = importlib_metadata.PathDistribution.read_text
    monkeypatch.setattr(
        importlib_metadata.PathDistribution, "read_text", lambda self, name: reads.append(name) or original(self, name)
    )
    candidates, _ = found(site.path)
    assert reads.count("METADATA") == 20  # is it there at all
    reads.clear()
    some = [c for c in candidates if c.name in ("a3", "b3")]
    assert {c.dist.version for c in some for _ in range(5)} == {"1.0"}
    assert reads.count("METADATA") <= 2


def test_four_hundred_distributions_are_discovered_and_indexed_quickly(site):
    for i in range(400):
        site.add(
            f"fake-{i}",
            points={"ferrule.losses": {f"loss_{i}": f"fake_{i}:X"}, "console_scripts": {"a": "b:c"}} if i % 2 else {},
            requires=["numpy"],
        )
    took = []
    for _ in range(5):
        start = time.process_time()
        registry = Registry.discover([str(site.path)])
        took.append(time.process_time() - start)
    assert len(registry.candidates("loss")) == 200
    print(f"400 distributions, 200 plugins: {statistics.median(took) * 1000:.0f} ms of CPU")
    assert statistics.median(took) < 0.5


@pytest.mark.parametrize("words", [["import ferrule"], ["import ferrule; ferrule.__all__; dir(ferrule)"]])
def test_importing_ferrule_alone_imports_nothing_heavy(words):
    code = f"import sys; {words[0]}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "ferrule" in loaded
    assert not loaded & {
        "torch",
        "numpy",
        "pluggy",
        "importlib_metadata",
        "attrs",
        "attr",
        "cattrs",
        "structlog",
        "click",
        "rich",
    }
