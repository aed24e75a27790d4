"""The conformance suite on real tokenizers and real templates."""

from __future__ import annotations

import re
from pathlib import Path

import ferrule_test_assets as assets
from ferrule_testkit import RendererSuite

UNREAD = "the renderer reads calls in Hermes JSON and in <function=...> only; this template writes them otherwise"

UNSHOWN = "the template leaves the tools out; the renderer warns of it"


def lettered(name: str, eos: str) -> Path:
    """A tokenizer of single bytes with the control tokens of the template *name*: quick to load."""
    text = assets.template(name)
    tokens = sorted(set(re.findall(r"<\|[^|<>\s]+\|>|<(?:start|end)_of_turn>|\[gMASK\]|<sop>", text)))
    return assets.byte_tokenizer(tokens, template=name, bos="<bos>" if "bos_token" in text else None, eos=eos)


class TestQwen3(RendererSuite):
    use = "chat_template"
    model = assets.qwen3


class TestQwen3WithoutThinking(RendererSuite):
    use = "chat_template"
    options = {"template_args": {"enable_thinking": False}}
    reasoning = False

    @staticmethod
    def model() -> Path:
        return lettered("qwen3", "<|im_end|>")


class TestQwen25(RendererSuite):
    use = "chat_template"
    model = assets.qwen25


class TestSmollm2(RendererSuite):
    use = "chat_template"
    model = assets.smollm2
    calls = False


class TestDeepseek(RendererSuite):
    """DeepSeek-V3's own generation prompt; the template in its folder opens a think block there, as R1's does."""

    use = "chat_template"
    reasoning = False
    xfails = {"reading calls": UNREAD, "test_tools_are_shown": UNSHOWN}

    @staticmethod
    def model() -> Path:
        text = assets.template("deepseekv3").replace("'<｜Assistant｜><think>\\n'", "'<｜Assistant｜>'")
        return assets.with_template(assets.deepseek(), text)


class TestDeepseekR1(RendererSuite):
    """The prompt opens a think block, and history is written without one: only what is sampled can extend it."""

    use = "chat_template"
    model = assets.deepseek
    options = {"thinking": "keep"}
    reasoning = False
    xfails = {
        "reading calls": UNREAD,
        "test_tools_are_shown": UNSHOWN,
        "test_text_comes_back_as_it_stands": "after an opened think block, a reply without </think> is reasoning",
        **{
            f"test_a_prompt_is_a_prefix_of_what_holds_its_reply[{case}]": "history is written without the think block"
            for case in ("plain", "call")
        },
    }


class TestQwen35(RendererSuite):
    use = "chat_template"

    @staticmethod
    def model() -> Path:
        return lettered("qwen3_5_think", "<|im_end|>")


class TestGemma3(RendererSuite):
    use = "chat_template"
    calls = False

    @staticmethod
    def model() -> Path:
        return lettered("gemma3", "<end_of_turn>")


class TestLfm2(RendererSuite):
    use = "chat_template"
    xfails = {"reading calls": UNREAD}

    @staticmethod
    def model() -> Path:
        return lettered("lfm2_v2", "<|im_end|>")


class TestGlm4(RendererSuite):
    use = "chat_template"
    xfails = {
        "reading calls": UNREAD,
        "test_the_last_reply_ends_with_a_stop_token_too": "its turns end where the next begins, and nothing follows",
        "test_a_demonstration_teaches_its_replies": "as above: the last reply's end is not in the text",
    }

    @staticmethod
    def model() -> Path:
        return lettered("glm4moe", "<|endoftext|>")


class TestNemotron(RendererSuite):
    use = "chat_template"
    xfails = {
        f"test_a_prompt_is_a_prefix_of_what_holds_its_reply[{case}]": (
            "the prompt opens a think block with a newline that a reply without reasoning does not have"
        )
        for case in ("plain", "call")
    }

    @staticmethod
    def model() -> Path:
        return lettered("nemotron_3_super", "<|im_end|>")
