"""``renderer.use = "auto"``: by the model's public id, from metadata alone, the same whatever is installed beside."""

from __future__ import annotations

import json
import sys

import pytest

from ferrule import ModelSpec, PluginError
from ferrule.plugins import Registry

SOURCE = """
import ferrule
class One(ferrule.Renderer, name="one"):
    pass
"""


def offer(site, name, patterns, module=None, key=None):
    module = module or name.replace("-", "_")
    site.add(
        name,
        points={
            "ferrule.renderers": {key or name: f"{module}:One"},
            "ferrule.auto_renderers": dict.fromkeys(patterns, f"{module}:One"),
        },
        modules={module: SOURCE},
    )


def registry(site, **environ):
    return Registry.discover([str(site.path)], environ)


def test_the_exact_id_goes_before_a_longer_beginning_before_a_shorter_one(site):
    offer(site, "wide", ["Qwen/*"])
    offer(site, "narrow", ["Qwen/Qwen3-*"])
    offer(site, "exact", ["Qwen/Qwen3-8B"])
    found = registry(site)
    chosen = {m: found.renderer_for(m).reference for m in ("Qwen/Qwen2-7B", "Qwen/Qwen3-4B", "qwen/qwen3-8b")}
    assert chosen == {"Qwen/Qwen2-7B": "wide@wide", "Qwen/Qwen3-4B": "narrow@narrow", "qwen/qwen3-8b": "exact@exact"}
    assert "by its id" in found.renderer_for("Qwen/Qwen3-8B").why
    assert "as one of Qwen/Qwen3-*" in found.renderer_for("Qwen/Qwen3-4B").why
    assert not {"wide", "narrow", "exact"} & set(sys.modules), "metadata alone decides"


def test_two_that_claim_a_model_alike_are_an_error_that_names_both(site):
    offer(site, "first", ["Qwen/*"])
    offer(site, "second", ["Qwen/*"])
    with pytest.raises(PluginError, match=r"'first@first' or 'second@second'"):
        registry(site).renderer_for("Qwen/Qwen3-8B")
    assert registry(site, FERRULE_DISABLE="first").renderer_for("Qwen/Qwen3-8B").reference == "second@second"


def test_what_nobody_is_written_for_falls_to_the_chat_template_as_a_guess(site):
    offer(site, "narrow", ["Qwen/Qwen3-*"])
    with pytest.raises(PluginError, match="'chat_template' is not installed"):
        registry(site).renderer_for("acme/new-model")
    offer(site, "templates", [], key="chat_template")
    choice = registry(site).renderer_for("acme/new-model")
    assert (choice.reference, choice.guess) == ("chat_template@templates", True)
    assert "none is written for acme/new-model" in choice.why
    assert "model.id is not set" in registry(site).renderer_for(None).why


def test_patterns_are_no_plugins_of_their_own(site):
    offer(site, "narrow", ["Qwen/Qwen3-*"])
    assert [(c.kind, c.name) for c in registry(site).candidates()] == [("renderer", "narrow")]


@pytest.mark.parametrize("told", ["id", "path", "folder"])
def test_a_configuration_says_auto_and_the_model_decides(loads, site, project, told):
    site.add("toys-of-acme", points={"ferrule.auto_renderers": {"acme/*": "ferrule_toy:ToyRenderer"}})
    # The claim belongs to the distribution that offers the renderer; another's counts for nothing.
    folder = project / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"_name_or_path": "acme/small"}))
    entry = site.path / "ferrule_toy-0.3.dist-info" / "entry_points.txt"
    entry.write_text(entry.read_text() + "[ferrule.auto_renderers]\nacme/* = ferrule_toy:ToyRenderer\n")
    model = {"id": 'id = "acme/small"', "path": 'path = "acme/small"', "folder": 'path = "model"'}[told]
    loaded = loads(replace=('[renderer]\nuse = "toy"', f'[model]\n{model}\n\n[renderer]\nuse = "auto"'))
    use = loaded.config.renderer
    assert (use.ref, use.label, use.guess) == ("auto", "toy", False)
    assert "acme/small" in use.why
    assert isinstance(use.make(ModelSpec()), use.cls)


def test_auto_without_any_renderer_for_the_model_is_a_mistake_with_its_line(problems):
    (problem,) = problems(replace=('[renderer]\nuse = "toy"', '[renderer]\nuse = "auto"'))
    assert problem.startswith("18 renderer.use: no renderer can be chosen: model.id is not set")
