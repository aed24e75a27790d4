"""What the docs say of the code is held against the code."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path

import pytest

from ferrule.algorithm import build_batch
from ferrule.kinds import KINDS, ObserverSpecs

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def parameters(function: object) -> str:
    """The parameter list as the docs write it: names and defaults, no self, no annotations."""
    signature = inspect.signature(function)  # type: ignore[arg-type]
    kept = [p.replace(annotation=p.empty) for p in signature.parameters.values() if p.name not in {"self", "cls"}]
    return str(signature.replace(parameters=kept, return_annotation=inspect.Signature.empty))


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda k: k.name)
def test_each_kind_stands_in_the_table_with_its_group_and_hook(kind) -> None:
    row = rf"\| {kind.name} \| `{kind.base.__name__}` \| `{kind.group}` \| `{kind.hook}\(ref\)` \|"
    assert re.search(row, (DOCS / "kinds.md").read_text())


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda k: k.name)
def test_each_method_that_a_plugin_must_write_stands_in_the_docs(kind) -> None:
    text = (DOCS / "kinds.md").read_text()
    for name in sorted(kind.base.__abstractmethods__):
        member = inspect.getattr_static(kind.base, name)
        if isinstance(member, property):
            assert f"`{name}`" in text
            continue
        function = getattr(kind.base, name)
        assert f"`{name}{parameters(function)}`" in text, f"{kind.name}: {name}{parameters(function)}"


def test_each_observer_hook_stands_in_the_docs_with_its_signature() -> None:
    text = (DOCS / "kinds.md").read_text()
    hooks = {n: f for n, f in vars(ObserverSpecs).items() if n.startswith("ferrule_")}
    assert hooks
    for name, function in hooks.items():
        assert f"`{name}{parameters(function)}`" in text


def test_the_configuration_page_is_what_the_schema_says() -> None:
    spec = importlib.util.spec_from_file_location("make_configuration", DOCS / "make_configuration.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (DOCS / "configuration.md").read_text() == module.main(), "run: python docs/make_configuration.py"


def test_each_reason_for_which_something_leaves_a_batch_stands_in_the_docs() -> None:
    reasons = re.findall(r"``([a-z_]+(?:/<\w+>)?)``[:;]", build_batch.__doc__ or "")
    assert {"invalid_token", "compact/<termination>", "uniform_group"} <= set(reasons)
    text = (DOCS / "dropping.md").read_text()
    assert [reason for reason in reasons if f"`{reason}`" not in text] == []


@pytest.mark.parametrize("page", sorted([*DOCS.glob("*.md"), ROOT / "README.md"]), ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target
