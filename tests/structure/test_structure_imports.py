"""The rules of the house: who may import what. Read from the sources, so that no rule depends on what is installed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import ferrule

ROOT = Path(__file__).parents[2]
CORE = ROOT / "core" / "src" / "ferrule"
PROJECTS = sorted(
    p.parent for pattern in ("core", "plugins/*", "contrib/*") for p in ROOT.glob(f"{pattern}/pyproject.toml")
)
PLUGINS = [p for p in PROJECTS if p.parent.name == "plugins"]
TESTKIT = ROOT / "tests" / "testkit"

# The folders of core, lowest first; a folder imports from its own level and below.
LEVELS = [
    {"errors", "logs"},
    {"data"},
    {"kinds", "sandboxes", "rendering"},
    {"plugins", "config"},
    {"rollout", "algorithm", "store"},
    {"training"},
    {"cli"},
]
LEVEL = {name: i for i, names in enumerate(LEVELS) for name in names}

# What a distribution is imported as, where that is not its name.
MODULES = {
    "importlib-metadata": "importlib_metadata",
    "tensorboardx": "tensorboardX",
}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imports(file: Path, *, types: bool = True) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """Every import of *file*: absolute module name (relative ones start with dots), names taken from it, line.

    Without *types*, those under ``if TYPE_CHECKING`` are left out: they never happen.
    """
    tree = ast.parse(file.read_text())
    guarded: set[ast.AST] = set()
    if not types:
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
                guarded.update(inner for statement in node.body for inner in ast.walk(statement))
    for node in ast.walk(tree):
        if node in guarded:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, (), node.lineno
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or ""), tuple(a.name for a in node.names), node.lineno


def sources(project: Path) -> list[Path]:
    return sorted((project / "src").rglob("*.py"))


def project_of(folder: Path) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


def declared(folder: Path) -> set[str]:
    project = project_of(folder)
    lines = [*project.get("dependencies", ())]
    lines += [line for extra in project.get("optional-dependencies", {}).values() for line in extra]
    names = {normal(re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0]) for line in lines}
    return {MODULES.get(name, name.replace("-", "_")) for name in names}


@pytest.mark.parametrize("folder", [*PROJECTS, TESTKIT], ids=lambda p: p.name)
def test_a_distribution_imports_only_what_it_declares(folder: Path) -> None:
    packages = {p.name for p in (folder / "src").iterdir() if p.is_dir()}
    allowed = declared(folder) | packages | set(sys.stdlib_module_names)
    for file in sources(folder):
        for module, _, line in imports(file):
            if not module.startswith("."):
                assert module.split(".")[0] in allowed, f"{file.relative_to(ROOT)}:{line} imports {module}, undeclared"


@pytest.mark.parametrize("folder", [p for p in PROJECTS if p.name != "core"], ids=lambda p: p.name)
def test_a_plugin_imports_public_names_of_ferrule_only(folder: Path) -> None:
    public = set(ferrule.__all__)
    for file in sources(folder):
        for module, names, line in imports(file):
            where = f"{file.relative_to(ROOT)}:{line}"
            assert not module.startswith("ferrule."), f"{where} imports {module}, which is not public"
            if module == "ferrule":
                assert set(names) <= public, f"{where} imports {sorted(set(names) - public)}, which are not public"
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ferrule":
                assert node.attr in public, (
                    f"{file.relative_to(ROOT)}:{node.lineno} uses ferrule.{node.attr}, not public"
                )


def test_the_test_kit_imports_public_names_and_what_reads_a_configuration() -> None:
    """Authors' suites must not break with core's inner changes, but a plugin is made as a run makes it."""
    inner = {"ferrule.plugins": {"default_registry"}, "ferrule.config": {"Use"}}
    inner["ferrule.config.structure"] = {"Mistakes", "Structurer"}
    for file in sources(TESTKIT):
        for module, names, line in imports(file):
            if module == "ferrule" or module.startswith("ferrule."):
                allowed = set(ferrule.__all__) if module == "ferrule" else inner.get(module, set())
                assert set(names) <= allowed, f"{file.relative_to(ROOT)}:{line} imports {names} from {module}"
            assert not module.startswith("ferrule_"), f"{file.relative_to(ROOT)}:{line} imports {module}"


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda p: p.name)
def test_a_plugin_imports_no_other_plugin(folder: Path) -> None:
    own = {p.name for p in (folder / "src").iterdir() if p.is_dir()}
    for file in sources(folder):
        for module, _, line in imports(file):
            top = module.split(".")[0]
            assert not top.startswith("ferrule_") or top in own, f"{file.relative_to(ROOT)}:{line} imports {module}"


def test_core_imports_no_plugin_and_no_framework() -> None:
    for file in sources(ROOT / "core"):
        for module, _, line in imports(file):
            top = module.split(".")[0]
            refused = top.startswith("ferrule_") or top in {"torch", "transformers", "tinker", "jax", "ray"}
            assert not refused, f"{file.relative_to(ROOT)}:{line} imports {module}"


def test_the_folders_of_core_import_downwards_only() -> None:
    for file in sources(ROOT / "core"):
        parts = file.relative_to(CORE).parts
        own = parts[0].removesuffix(".py")
        if own in {"__init__", "__main__"}:
            continue
        for module, names, line in imports(file, types=False):
            if module.startswith("."):
                dots = len(module) - len(module.lstrip("."))
                base = ["ferrule", *parts[:-1]][: len(parts) + 1 - dots]
                absolute = [*base, *[p for p in module.lstrip(".").split(".") if p]]
            else:
                absolute = module.split(".")
            if absolute[0] != "ferrule":
                continue
            targets = [absolute[1]] if len(absolute) > 1 else [n for n in names if n in LEVEL]
            for target in targets:
                if target in LEVEL:
                    assert LEVEL[target] <= LEVEL[own], f"{file.relative_to(ROOT)}:{line}: {own} reaches up to {target}"


def test_import_ferrule_alone_brings_in_nothing_heavy() -> None:
    heavy = [
        "torch",
        "numpy",
        "pluggy",
        "attrs",
        "attr",
        "cattrs",
        "structlog",
        "importlib_metadata",
        "importlib.metadata",
        "click",
        "rich",
    ]
    code = f"import sys, ferrule; print([m for m in {heavy!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_every_public_name_resolves_and_is_documented() -> None:
    undocumented = [n for n in ferrule.__all__ if not n.startswith("__") and not getattr(ferrule, n).__doc__]
    assert undocumented == ["hookimpl", "hookspec"] or undocumented == []


SERVICES = [p for p in PLUGINS if "-" not in p.name]  # plugins/<name>: a command, and what it needs beside
AUTO = "ferrule.auto_renderers"


def offered(folder: Path) -> dict[str, dict[str, str]]:
    """Entry points by group, the patterns of models left out."""
    points = project_of(folder)["entry-points"]
    return {group: entries for group, entries in points.items() if group.startswith("ferrule.") and group != AUTO}


@pytest.mark.parametrize("folder", [p for p in PLUGINS if p not in SERVICES], ids=lambda p: p.name)
def test_a_plugin_is_one_entry_point_whose_key_is_the_name_of_its_class(folder: Path) -> None:
    from ferrule.plugins import Registry

    groups = offered(folder)
    assert len(groups) == 1
    ((group, entries),) = groups.items()
    ((key, _),) = entries.items()
    kind = folder.name.split("-")[0]
    registry = Registry.discover()
    cls = registry.resolve(kind, f"{key}@{project_of(folder)['name']}", ROOT)
    assert cls.name == key
    assert group in {"ferrule.hooks", f"ferrule.{kind}s", f"ferrule.{kind}es"}


@pytest.mark.parametrize("folder", SERVICES, ids=lambda p: p.name)
def test_a_service_is_a_command_of_its_name(folder: Path) -> None:
    assert folder.name in offered(folder)["ferrule.commands"]


def test_what_a_renderer_may_be_chosen_for_is_what_it_serves_and_no_two_claim_the_same() -> None:
    from ferrule.plugins import Registry

    registry = Registry.discover()
    claimed: dict[str, str] = {}
    for folder in PLUGINS:
        for pattern, value in project_of(folder)["entry-points"].get(AUTO, {}).items():
            assert pattern not in claimed, f"{folder.name} and {claimed[pattern]} both claim {pattern}"
            claimed[pattern] = folder.name
            cls = registry.resolve("renderer", value, ROOT)
            assert pattern in cls.serves, f"{folder.name} may be chosen for {pattern}, which it does not say it serves"
    assert claimed


def test_the_check_of_a_plugin_alone_loads_what_it_offers_and_fails_where_there_is_nothing() -> None:
    """What the nox session ``isolation`` runs in an environment of each plugin's own."""
    script = str(ROOT / "tests" / "structure" / "load_alone.py")
    done = subprocess.run([sys.executable, script, "ferrule-advantage-grpo"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("advantage grpo -> ferrule_advantage_grpo:Grpo\n")
    done = subprocess.run([sys.executable, script, "ferrule-nothing"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "offers no plugin" in done.stderr


@pytest.mark.parametrize("folder", PROJECTS, ids=lambda p: p.name)
def test_make_installs_the_extras_that_tests_need(folder: Path) -> None:
    extras = set(project_of(folder).get("optional-dependencies", {})) - {"test"}  # make names the test tools itself
    line = f"./{folder.relative_to(ROOT)}[{','.join(sorted(extras))}]"
    assert not extras or line in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("folder", [*PROJECTS, TESTKIT], ids=lambda p: p.name)
def test_a_distribution_has_readme_example_tests_types_and_a_range_of_core(folder: Path) -> None:
    project = project_of(folder)
    readme = (folder / "README.md").read_text()
    assert re.search(r"```\w+\n.+?\n```", readme, re.DOTALL), "the README shows an example"
    assert list((folder / "tests").rglob("test_*.py")), "it has tests of its own"
    assert list((folder / "src").glob("*/py.typed")), "it says that it is typed"
    assert project["license"] == "Apache-2.0"
    if folder.name != "core":
        assert "ferrule>=0.1,<0.2" in project["dependencies"]
