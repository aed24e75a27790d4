"""Loading: whose format it is, and what is told where that cannot be known."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import ferrule_test_assets as assets
import pytest
from ferrule_renderer_chatml import ChatMLRenderer
from ferrule_renderer_chatml.families import FAMILIES, MODELS, family_of

from ferrule import ModelSpec, PluginError

KNOWN = {
    "qwen2_5": ("qwen2.5", None),
    "qwen3": ("qwen3", None),
    "qwen3_instruct_2507": ("qwen3-instruct", None),
    "qwen3_5_think": ("qwen3.5", True),
    "qwen3_5_nothink": ("qwen3.5", False),
}


def load(folder: Path, model_id: str | None = None, **options) -> ChatMLRenderer:
    return ChatMLRenderer(ChatMLRenderer.Config(**options), ModelSpec(tokenizer=str(folder), id=model_id))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A byte tokenizer with ChatML's two tokens, and no template."""
    folder = tmp_path / "small"
    shutil.copytree(assets.byte_tokenizer(["<|im_start|>", "<|im_end|>"]), folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    return folder


@pytest.mark.parametrize("name", assets.templates())
def test_a_template_is_known_or_it_is_not(name, tmp_path) -> None:
    (tmp_path / "chat_template.jinja").write_text(assets.template(name), encoding="utf-8")
    if name not in KNOWN:
        with pytest.raises(PluginError, match=r"Set renderer\.family"):
            family_of("auto", ModelSpec(), tmp_path, ())
        return
    family = family_of("auto", ModelSpec(), tmp_path, ())
    assert (family.name, family.prompt_thinking) == KNOWN[name]


@pytest.mark.parametrize(("tokenizer", "family"), [
    ("qwen3", "qwen3"), ("qwen25", "qwen2.5"), ("qwen35", "qwen3.5"), ("smollm2", "smollm2"),
])  # fmt: skip
def test_without_a_template_the_vocabulary_tells(tokenizer, family, tmp_path) -> None:
    source = getattr(assets, tokenizer)()
    tokens = {t["content"] for t in json.loads((source / "tokenizer.json").read_text())["added_tokens"]}
    assert family_of("auto", ModelSpec(), tmp_path, tokens).name == family


def test_the_public_id_goes_before_the_folder(small) -> None:
    assert load(small, "Qwen/Qwen3-8B").family.name == "qwen3"
    assert load(small, "Qwen/Qwen3.5-2B").render([_user()]).opened == ()
    assert load(small, "Qwen/Qwen3.5-4B").render([_user()]).opened == ("think",)
    assert load(small, "HuggingFaceTB/SmolLM2-135M-Instruct").family.name == "smollm2"


def _user():
    from ferrule import Message

    return Message("user", "Q")


def test_what_cannot_be_told_is_asked_for(small) -> None:
    with pytest.raises(PluginError, match=r"(?s)cannot tell the family.*renderer\.family.*'qwen3'.*'chat_template'"):
        load(small)
    for name in FAMILIES:
        assert load(small, family=name).family.name == name


def test_a_tokenizer_that_is_not_there_is_told_with_its_path(tmp_path) -> None:
    with pytest.raises(PluginError, match=r"tokenizer\.json"):
        load(tmp_path)
    with pytest.raises(PluginError, match=r"set model\.tokenizer"):
        ChatMLRenderer(ChatMLRenderer.Config(), ModelSpec())


def test_a_vocabulary_without_the_formats_tokens_is_refused() -> None:
    with pytest.raises(PluginError, match=r"no token <\|im_start\|>"):
        load(assets.deepseek(), family="qwen3")


def test_a_token_that_is_not_cut_cleanly_is_refused(small) -> None:
    file = small / "tokenizer.json"
    settings = json.loads(file.read_text())
    for token in settings["added_tokens"]:
        token["rstrip"] = token["content"] == "<|im_start|>"
    file.write_text(json.dumps(settings))
    with pytest.raises(PluginError, match="not cut cleanly"):
        load(small, family="qwen3")


def test_thinking_is_not_asked_of_a_family_without_it(small) -> None:
    with pytest.raises(PluginError, match="enable_thinking"):
        load(small, family="qwen2.5", enable_thinking=False)


def test_a_system_prompt_of_ones_own(small) -> None:
    r = load(small, family="qwen2.5", system="Be brief.")
    assert r.decode(r.render([_user()]).ids).startswith("<|im_start|>system\nBe brief.<|im_end|>\n")


def test_both_ends_are_stop_tokens(kit) -> None:
    for tokenizer in ("qwen3", "qwen25", "qwen35", "smollm2"):
        k = kit(tokenizer)
        assert k.renderer.stop_ids == {k.ids("<|im_end|>")[0], k.ids("<|endoftext|>")[0]}


def test_it_serves_what_it_claims_and_knows_the_family_of_each() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    claimed = project["entry-points"]["ferrule.auto_renderers"]
    assert set(claimed) == set(ChatMLRenderer.serves) == set(MODELS)
    assert "Qwen/Qwen3-Coder-30B-A3B-Instruct" not in MODELS
    assert not any(
        key.endswith("*") and name.startswith(key[:-1])
        for key in MODELS
        for name in ("Qwen/Qwen3-4B-Thinking-2507", "Qwen/Qwen3-VL-4B-Instruct", "Qwen/Qwen2.5-VL-7B-Instruct")
    )


def test_it_starts_without_transformers_or_jinja(small) -> None:
    code = (
        "import sys\nfrom ferrule import Message, ModelSpec\nfrom ferrule_renderer_chatml import ChatMLRenderer\n"
        "assert 'tokenizers' not in sys.modules\n"
        f"r = ChatMLRenderer(ChatMLRenderer.Config(family='qwen3'), ModelSpec(tokenizer={str(small)!r}))\n"
        "r.render([Message('user', 'Q')])\n"
        "print(sorted({'transformers', 'jinja2', 'torch'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout.strip() == "[]", found.stdout + found.stderr
