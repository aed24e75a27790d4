from __future__ import annotations

import subprocess
import sys

import pytest
from ferrule_renderer_chat_template import ChatTemplateRenderer as Renderer
from transformers import PreTrainedTokenizerFast

from ferrule import Message, ModelSpec, PluginError


def test_the_class_is_imported_without_transformers_or_tokenizers():
    code = (
        "import sys, ferrule_renderer_chat_template as p; p.ChatTemplateRenderer.Config(); "
        "print([m for m in ('transformers', 'tokenizers', 'jinja2', 'torch') if m in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_what_the_tokenizer_and_template_say_of_stops_and_vocabulary(kit):
    k = kit("chatml")
    assert k.renderer.stop_ids == {k.id("<|im_end|>")}
    assert k.renderer.vocab_size == k.tokenizer.get_vocab_size(with_added_tokens=True)
    assert k.renderer.name == "chat_template"
    assert kit("strict").renderer.stop_ids == {k.id("</s>")}
    assert kit("headers").renderer.stop_ids == {k.id("<|eot_id|>")}


def test_decoding_shows_control_tokens(kit):
    k = kit("chatml")
    assert (
        k.renderer.decode(k.renderer.render([Message("user", "é")]).ids)
        == "<|im_start|>user\né<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_template_file_takes_the_folders_place(kit, tmp_path):
    k = kit("chatml")
    path = tmp_path / "other.jinja"
    path.write_text("{%- for m in messages %}{{- '<|user|>' + word + m.content + '<|im_end|>' }}{%- endfor %}")
    config = Renderer.Config(template=path, template_args={"word": "hey "})
    assert (
        k.text(Renderer(config, ModelSpec(tokenizer=str(k.folder))).render([Message("user", "x")]).ids)
        == "<|user|>hey x<|im_end|>"
    )
    with pytest.raises(ValueError, match="no such file"):
        Renderer.Config(template=tmp_path / "missing.jinja")


def test_what_cannot_be_loaded_is_told_with_its_folder(kit, tmp_path):
    with pytest.raises(PluginError, match=r"model\.tokenizer"):
        Renderer(Renderer.Config(), ModelSpec())
    with pytest.raises(PluginError, match="nowhere"):
        Renderer(Renderer.Config(), ModelSpec(tokenizer=str(tmp_path / "nowhere")))
    bare = tmp_path / "bare"
    PreTrainedTokenizerFast(tokenizer_object=kit("chatml").tokenizer, eos_token="<|im_end|>").save_pretrained(str(bare))
    with pytest.raises(PluginError, match=r"bare.*no chat template.*renderer\.template"):
        Renderer(Renderer.Config(), ModelSpec(tokenizer=str(bare)))
    broken = tmp_path / "broken.jinja"
    broken.write_text("{% for %}")
    with pytest.raises(PluginError, match="TemplateSyntaxError"):
        Renderer(Renderer.Config(template=broken), ModelSpec(tokenizer=str(kit("chatml").folder)))
