from __future__ import annotations

import re
import subprocess
import sys

import ferrule_test_assets as assets
import pytest
from ferrule_renderer_tinker import TinkerRenderer
from tinker_cookbook import model_info

from ferrule import Message, ModelSpec, PluginError

OTHER = """
from tinker_cookbook import renderers
from tinker_cookbook.renderers.llama3 import Llama3Renderer

renderers.register_renderer("Other/llama", lambda tokenizer, image_processor=None: Llama3Renderer(tokenizer))
"""


def make(folder: object, id: str | None = None, **options: object) -> TinkerRenderer:
    return TinkerRenderer(TinkerRenderer.Config(**options), ModelSpec(tokenizer=str(folder), id=id))


def test_it_serves_what_the_cookbook_recommends_renderers_for():
    served = set()
    for name in dir(model_info):
        if re.fullmatch(r"get_\w+_info", name):
            for version, found in getattr(model_info, name)().items():
                if not re.match("tml_v0|kimi_k31_pro", found.recommended_renderers[0]):
                    served.add(f"{found.organization}/{version}")
    assert set(TinkerRenderer.serves) == served
    assert len(set(TinkerRenderer.serves)) == len(TinkerRenderer.serves)


def test_its_import_is_light():
    code = "import sys, ferrule_renderer_tinker; print([m for m in ('torch', 'tinker', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_without_a_name_the_models_public_id_decides(llama):
    renderer = make(llama, "meta-llama/Llama-3.1-8B-Instruct")
    text = renderer.decode(renderer.render([Message("user", "Hi.")]).ids)
    assert text.startswith("<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi.<|eot_id|>")
    with pytest.raises(PluginError, match=r"set renderer\.name, or model\.id.*qwen3, "):
        make(llama)
    with pytest.raises(PluginError, match=r"no renderer for model.id = 'me/mine': set renderer.name.*qwen3, "):
        make(llama, "me/mine")


def test_what_another_package_registers_can_be_named_once_it_is_imported(llama, tmp_path, monkeypatch):
    (tmp_path / "other_renderers_fq7.py").write_text(OTHER)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginError, match=r"has no renderer 'Other/llama'.*llama3.*renderer.imports"):
        make(llama, name="Other/llama")
    renderer = make(llama, name="Other/llama", imports=("other_renderers_fq7",))
    assert "Hi.<|eot_id|>" in renderer.decode(renderer.render([Message("user", "Hi.")]).ids)
    with pytest.raises(PluginError, match=r"cannot import 'no_such_fq7' \(renderer.imports\)"):
        make(llama, name="llama3", imports=("no_such_fq7",))


def test_mistakes_are_told_with_what_to_do(llama, tmp_path):
    with pytest.raises(PluginError, match="'lama3' \\(did you mean 'llama3'\\?\\)"):
        make(llama, name="lama3")
    with pytest.raises(PluginError, match=r"'tml_v0'.*use the renderer 'tml'"):
        make(llama, name="tml_v0")
    with pytest.raises(PluginError, match="'glm5_3_max_reasoning' of tinker-cookbook does not fit the tokenizer in"):
        make(llama, name="glm5_3_max_reasoning")
    with pytest.raises(PluginError, match="cannot load a tokenizer from"):
        make(tmp_path, name="llama3")
    with pytest.raises(PluginError, match=r"needs a tokenizer: set model\.tokenizer"):
        TinkerRenderer(TinkerRenderer.Config(name="llama3"), ModelSpec())
    with pytest.raises(PluginError, match="cannot do thinking = 'strip'"):
        make(llama, name="llama3", thinking="strip")


def test_options_of_the_cookbooks_renderer_are_set_by_name():
    folder = assets.gpt_oss()
    renderer = make(folder, name="gpt_oss_medium_reasoning", args={"current_date": "2026-01-01"})
    assert "Current date: 2026-01-01\n" in renderer.decode(renderer.render([Message("user", "Hi.")]).ids)
    with pytest.raises(PluginError, match=r"no option 'date' \(renderer.args\); it has .*current_date"):
        make(folder, name="gpt_oss_medium_reasoning", args={"date": "2026-01-01"})
