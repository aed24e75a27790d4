"""References to classes in modules and in a user's own files."""

from __future__ import annotations

import json
import sys

import pytest

from ferrule import PluginError
from ferrule.plugins import Registry

LOSS = """
import ferrule
class Mine(ferrule.AuxLoss, name="mine"):
    def weight(self, row, ctx): return 1.0
class Outer:
    Inner = Mine
"""


@pytest.fixture
def registry(site) -> Registry:
    return Registry.discover([str(site.path)])


def test_a_class_in_a_file_is_found_below_the_base_folder(registry, tmp_path):
    (tmp_path / "mine.py").write_text(LOSS)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "mine.py").write_text(LOSS)
    near, deep = (registry.resolve("loss", text, tmp_path) for text in ("mine.py:Mine", "deep/mine.py:Mine"))
    assert near is not deep
    assert registry.resolve("loss", f"{tmp_path}/mine.py:Outer.Inner", tmp_path / "deep") is near


def test_a_file_is_registered_before_it_runs_so_that_dataclass_like_tools_find_their_module(registry, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from __future__ import annotations\nimport sys, dataclasses\nassert __name__ in sys.modules\n"
        + LOSS.replace("class Outer:", "@dataclasses.dataclass\nclass Pair:\n    a: int\n    b: int = 0\nclass Outer:")
    )
    cls = registry.resolve("loss", "mine.py:Mine", tmp_path)
    assert sys.modules[cls.__module__].__file__ == str(tmp_path / "mine.py")


def test_a_file_that_fails_is_forgotten_and_its_line_is_named(registry, tmp_path):
    (tmp_path / "mine.py").write_text("import ferrule\n\nraise SystemExit('no')\n")
    before = set(sys.modules)
    with pytest.raises(PluginError, match=r"loss 'mine.py:Mine' did not load: SystemExit: no \(line 3\)"):
        registry.resolve("loss", "mine.py:Mine", tmp_path)
    assert not [name for name in set(sys.modules) - before if name.startswith("ferrule_file_")]
    (tmp_path / "mine.py").write_text(LOSS)
    assert registry.resolve("loss", "mine.py:Mine", tmp_path).__name__ == "Mine"


@pytest.mark.parametrize(
    "statement",
    ["import helper", "from helper import x", "from . import helper", "from .helper import x", "import folder.deep"],
)
@pytest.mark.parametrize("on_path", [False, True], ids=["alone", "folder first on the path"])
def test_a_file_that_imports_its_siblings_is_refused_with_the_reason(
    registry, tmp_path, statement, on_path, monkeypatch
):
    home = tmp_path / "home"
    (home / "folder").mkdir(parents=True)
    (home / "helper.py").write_text("x = 1")
    (home / "folder" / "deep.py").write_text("")
    (home / "mine.py").write_text(f"import json\ndef later():\n    {statement}\n{LOSS}")
    if on_path:
        monkeypatch.syspath_prepend(str(home))
    with pytest.raises(PluginError, match="make it a package") as raised:
        registry.resolve("loss", "mine.py:Mine", home)
    assert "line 3" in str(raised.value)


def test_a_file_beside_installed_modules_may_import_them_and_type_checkers_may_be_told_more(site, registry, tmp_path):
    site.add("acme-tools", modules={"acme_tools": "x = 1"})
    (tmp_path / "numpy.py").write_text("")  # not what `import numpy` finds
    (tmp_path / "helper.py").write_text("")
    (tmp_path / "mine.py").write_text(
        f"import numpy, json\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import helper\nimport acme_tools\n{LOSS}"
    )
    assert registry.resolve("loss", "mine.py:Mine", tmp_path).__name__ == "Mine"


def test_a_worker_started_elsewhere_loads_the_same_file_and_a_changed_one_fails_loudly(site, registry, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "mine.py").write_text(LOSS)
    cls = registry.resolve("loss", "mine.py:Mine", home)
    (line,) = registry.manifest()
    worker = (
        "import json, sys\nfrom pathlib import Path\nfrom ferrule.plugins import default_registry\n"
        "kind, text, base, digest = json.loads(sys.argv[1])\n"
        "cls = default_registry().resolve(kind, text, Path(base), sha256=digest)\n"
        "print(cls.__module__, cls(cls.Config(coef=0.25)).config.coef)"
    )
    sent = json.dumps(["loss", "mine.py:Mine", str(home), line["sha256"]])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = site.python("-c", worker, sent, cwd=elsewhere)
    assert done.stdout.split() == [cls.__module__, "0.25"], done.stderr
    (home / "mine.py").write_text(LOSS + "# changed\n")
    done = site.python("-c", worker, sent, cwd=elsewhere)
    assert done.returncode != 0
    assert "is not the file that the run was started with" in done.stderr
    with pytest.raises(PluginError, match="has changed since it was loaded"):
        registry.resolve("loss", "mine.py:Mine", home)


def test_a_module_reference_that_an_entry_point_declares_keeps_its_distribution_and_its_version_check(site):
    site.add(
        "acme",
        "2.0",
        points={"ferrule.losses": {"mine": "acme_mine:Mine"}},
        modules={"acme_mine": LOSS},
        requires=["ferrule>=9"],
    )
    with pytest.raises(PluginError, match=r"acme 2.0 needs ferrule>=9"):
        Registry.discover([str(site.path)]).resolve("loss", "acme_mine:Mine")


def test_a_module_reference_without_an_entry_point_works(site, registry):
    site.add("acme", modules={"acme_mine": LOSS})
    assert registry.resolve("loss", "acme_mine:Outer.Inner").__name__ == "Mine"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mine.py", "say which class of the file: mine.py:Class"),
        ("absent.py:Mine", "no such file"),
        ("mine.py:Mien", "did you mean 'Mine'"),
        ("absent_module:Mine", "ModuleNotFoundError"),
        (":Mine", "is no reference"),
        ("mine.py:", "is no reference"),
        ("mine.py:1x", "is no reference"),
        ("", "no loss is called ''"),
    ],
)
def test_a_reference_that_leads_nowhere_says_why(site, tmp_path, text, said):
    site.add("acme", points={"ferrule.losses": {"other": "x:X"}})
    (tmp_path / "mine.py").write_text(LOSS)
    with pytest.raises(PluginError) as raised:
        Registry.discover([str(site.path)]).resolve("loss", text, tmp_path)
    assert said in str(raised.value)
