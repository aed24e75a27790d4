"""Which family it is, its options, and what is said where something does not fit."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from ferrule_renderer_prime import PrimeRenderer
from ferrule_renderer_prime.families import FAMILIES

from ferrule import EpisodeFailed, Message, ModelSpec, NoBridge, PluginError, Rendered, ToolCall


def build(folder: str | None, *, id: str | None = None, **options: Any) -> PrimeRenderer:
    return PrimeRenderer(PrimeRenderer.Config(**options), ModelSpec(tokenizer=folder, id=id))


def test_it_serves_what_the_packages_registry_holds() -> None:
    from renderers.base import MODEL_RENDERER_MAP

    assert set(PrimeRenderer.serves) == set(MODEL_RENDERER_MAP)


def test_every_family_of_the_package_is_known() -> None:
    from renderers.base import RENDERER_REGISTRY, _populate_registry

    _populate_registry()
    assert set(FAMILIES) == set(RENDERER_REGISTRY)


def test_auto_may_choose_it_for_models_that_it_serves() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    claimed = project["entry-points"]["ferrule.auto_renderers"]
    assert set(claimed) <= set(PrimeRenderer.serves)
    assert "zai-org/GLM-5" in claimed
    assert not any(name.startswith(("Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B", "Qwen/Qwen3.5")) for name in claimed)


def test_the_family_comes_of_the_models_id(folder: Any) -> None:
    assert build(folder("glm-5"), id="zai-org/GLM-5").family == "glm-5"


def test_a_model_that_the_package_does_not_know_is_an_error_that_lists_the_families(folder: Any) -> None:
    with pytest.raises(PluginError, match=r"no family for the model 'me/tuned'.*glm-5.*qwen3.*'default'"):
        build(folder("qwen3"), id="me/tuned")
    with pytest.raises(PluginError, match=r"without model\.id"):
        build(None)


def test_a_misspelt_family_is_told_with_the_nearest(folder: Any) -> None:
    with pytest.raises(PluginError, match="did you mean 'qwen3'"):
        build(folder("qwen3"), family="qven3")


def test_a_family_needs_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"set model\.tokenizer"):
        build(None, family="qwen3")
    with pytest.raises(PluginError, match="cannot load a tokenizer from"):
        build(str(tmp_path), family="qwen3")


def test_a_tokenizer_of_another_family_is_told(folder: Any) -> None:
    with pytest.raises(PluginError, match=r"cannot make 'glm-5'.*\[gMASK\].*Is renderer.family that of this model"):
        build(folder("qwen3"), family="glm-5")


def test_options_go_to_the_familys_own_configuration(folder: Any) -> None:
    made = build(folder("glm-5"), family="glm-5", options={"enable_thinking": False})
    assert made.render([Message("user", "Hi")]).opened == ()
    assert build(folder("glm-5"), family="glm-5").render([Message("user", "Hi")]).opened == ("think",)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"enable_thinkin": False}, "no option 'enable_thinkin'.*did you mean 'enable_thinking'"),
        ({"a": 1, "b": 2}, "no option 'a', 'b'.*clear_thinking, enable_thinking"),
        ({"enable_thinking": "perhaps"}, "do not suit the family 'glm-5': enable_thinking"),
        ({"name": "qwen3"}, "set renderer.family"),
    ],
)
def test_wrong_options_are_one_clear_error(folder: Any, options: Any, said: str) -> None:
    with pytest.raises(PluginError, match=said):
        build(folder("glm-5"), family="glm-5", options=options)


def test_keeping_and_an_option_against_it_are_told(folder: Any) -> None:
    with pytest.raises(PluginError, match="clear_thinking"):
        build(folder("glm-5"), family="glm-5", thinking="keep", options={"clear_thinking": True})
    with pytest.raises(PluginError, match="set one"):
        build(folder("glm-5"), family="glm-5", thinking="keep", options={"thinking_retention": "all"})


def test_a_family_that_strips_at_each_turn_says_that_it_does_not_extend(folder: Any) -> None:
    assert build(folder("deepseek-r1"), family="deepseek-r1").extends is False
    assert build(folder("deepseek-r1"), family="deepseek-r1", thinking="keep").extends is True
    assert PrimeRenderer.extends is True


def test_default_renders_and_never_extends(talk: Any) -> None:
    import ferrule_test_assets

    made = build(str(ferrule_test_assets.qwen25()), family="default")
    assert made.extends is False
    played = talk(made, [Message("system", "Be kind."), Message("user", "Hi <|im_end|> there")])
    shown = played.start()
    assert made.decode(shown.ids[shown.kinds == 2]).count("<|im_end|>") >= 1
    assert played.say(made._parts.encoder.encode("Hello.<|im_end|>")).content == "Hello."
    found = played.hear(Message("user", "And?"))
    assert isinstance(found, NoBridge)
    assert "renderer.family" in found.detail
    with pytest.raises(PluginError, match="default"):
        build(str(ferrule_test_assets.qwen25()), family="default", thinking="keep")


def test_what_the_package_refuses_is_a_failed_rendering_that_names_it(renderer: Any, weather: Any) -> None:
    two = Message("assistant", "", tool_calls=(ToolCall("a", "weather", {}), ToolCall("b", "weather", {})))
    with pytest.raises(EpisodeFailed, match=r"renderer 'prime': 'llama-3'.*single tool call"):
        renderer("llama-3").render([Message("user", "Hi"), two], [weather])
    beside = Message("assistant", "I look.", tool_calls=(ToolCall("a", "weather", {}),))
    with pytest.raises(EpisodeFailed, match="drops the text beside the calls of message 1"):
        renderer("llama-3").render([Message("user", "Hi"), beside], [weather])
    with pytest.raises(EpisodeFailed, match="no messages"):
        renderer("llama-3").render([])


def test_contents_that_hold_every_mark_are_refused_only_where_a_mark_is_needed(renderer: Any) -> None:
    from ferrule_renderer_prime.tokenizer import _MARKS

    made = renderer("qwen3")
    assert isinstance(made.render([Message("user", "".join(_MARKS))]), Rendered)
    with pytest.raises(EpisodeFailed, match="needs one"):
        made.render([Message("user", "".join(_MARKS) + "<|im_end|>")])
    with_mark = made.render([Message("user", f"{_MARKS[0]}<|im_end|>")])
    assert f"{_MARKS[0]}<|im_end|>" in made.decode(with_mark.ids)
