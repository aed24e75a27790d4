"""Which family is chosen, whether its vocabulary is that of the model's tokenizer, and what each cannot write."""

from __future__ import annotations

from functools import cache

import ferrule_test_assets as assets
import numpy as np
import pytest
from ferrule_renderer_tml import TmlRenderer
from ferrule_renderer_tml.families import FAMILIES, MODELS, choose

from ferrule import (
    EpisodeFailed,
    Message,
    ModelSpec,
    NoBridge,
    PluginError,
    Rendered,
    Tail,
    TokenKind,
    ToolCall,
    ToolSpec,
)

FIND = ToolSpec("find", "Finds.", {"type": "object", "properties": {"q": {"type": "string"}}})
ASK, AGAIN = Message("user", "Where?"), Message("user", "And then?")


@cache
def renderer(family: str, thinking: str = "template") -> TmlRenderer:
    return TmlRenderer(TmlRenderer.Config(family=family, thinking=thinking), ModelSpec())  # type: ignore[arg-type]


def sampled(made: TmlRenderer, reply: Message, tools: tuple[ToolSpec, ...] = ()) -> tuple[np.ndarray, Tail]:
    """A prompt with *reply* as a model would have written it after ASK, and the tail that a bridge gets."""
    prompt = made.render([ASK], tools)
    whole = made.render([ASK, reply], tools, generation=False)
    completion = whole.ids[len(prompt) :][whole.kinds[len(prompt) :] == TokenKind.ACTION]
    parsed = made.parse(completion, tools, opened=prompt.opened)
    end = prompt.spans[-1][1]
    stop = int(completion[-1]) if int(completion[-1]) in made.stop_ids else "length"
    ids = np.concatenate([prompt.ids[end:], completion])
    return whole.ids, Tail(ids, len(prompt) - end, stop, parsed.message, 1, ("user",), (), tools)  # type: ignore[arg-type]


def test_the_model_id_chooses_the_family_and_its_arguments() -> None:
    assert choose(None, "Qwen/Qwen3-8B")[0] == "qwen3"
    assert choose(None, "Qwen/Qwen3-4B-Instruct-2507")[2] == {"support_thinking": False}
    assert choose(None, "zai-org/GLM-5.3-Flash-FP8")[0] == "glm_5_3_flash"
    assert choose(None, "deepseek-ai/DeepSeek-V3")[0] == "deepseek_v3"
    assert choose(None, "deepseek-ai/DeepSeek-V3.1-Terminus")[0] == "deepseek_v3_1"


def test_a_family_that_is_named_is_taken_whatever_the_model() -> None:
    assert choose("kimi_k2", "Qwen/Qwen3-8B")[0] == "kimi_k2"


@pytest.mark.parametrize("model_id", [None, "Qwen/Qwen3-Coder-30B-A3B-Instruct", "acme/unknown"])
def test_without_a_family_that_fits_the_constructor_names_them(model_id: str | None) -> None:
    with pytest.raises(PluginError, match=r"renderer\.family to one of qwen3,"):
        TmlRenderer(TmlRenderer.Config(), ModelSpec(id=model_id))


def test_a_misspelt_family_is_told() -> None:
    with pytest.raises(PluginError, match="knows no family 'qwen-3'"):
        TmlRenderer(TmlRenderer.Config(family="qwen-3"), ModelSpec())


def test_an_argument_that_the_package_does_not_take_is_told() -> None:
    with pytest.raises(PluginError, match=r"renderer\.args"):
        TmlRenderer(TmlRenderer.Config(family="qwen3", args={"temperature": 1}), ModelSpec())


def test_every_pattern_names_a_family_and_every_family_exists_in_the_package() -> None:
    from tml_renderers import renderers

    assert {family for family, _ in MODELS.values()} <= set(FAMILIES)
    assert {family.renderer for family in FAMILIES.values()} <= set(renderers.__all__)


@pytest.mark.parametrize(
    ("family", "folder"),
    [("qwen3", assets.qwen3), ("qwen3_5", assets.qwen35), ("glm_5_2", assets.glm), ("nemotron_3", assets.nemotron)],
)
def test_the_vocabulary_agrees_with_the_models_tokenizer(family: str, folder: object) -> None:
    made = TmlRenderer(TmlRenderer.Config(family=family), ModelSpec(tokenizer=str(folder())))  # type: ignore[operator]
    assert made.stop_ids


def test_another_models_tokenizer_is_refused_with_the_first_difference() -> None:
    with pytest.raises(
        PluginError, match=r"'<\|im_start\|>' as token 151644, but the tokenizer in .* has no such token"
    ):
        TmlRenderer(TmlRenderer.Config(family="qwen3"), ModelSpec(tokenizer=str(assets.deepseek())))


def test_the_same_control_tokens_over_other_text_are_refused() -> None:
    with pytest.raises(PluginError, match=r"writes '<.User.>' as token 128803"):
        TmlRenderer(TmlRenderer.Config(family="deepseek_v4"), ModelSpec(tokenizer=str(assets.qwen3())))


@pytest.mark.parametrize("family", [f for f, found in FAMILIES.items() if not found.style])
def test_a_family_that_cannot_declare_tools_refuses_them_by_name(family: str) -> None:
    made = renderer(family)
    call = Message("assistant", "", tool_calls=(ToolCall("c", "find", {"q": "x"}),))
    for messages, tools in (([ASK], (FIND,)), ([ASK, call, Message("tool", "y", tool_call_id="c")], ())):
        with pytest.raises(EpisodeFailed, match=rf"renderer 'tml' \(family '{family}'\).*cannot declare tools"):
            made.render(messages, tools)


@pytest.mark.parametrize("family", [f for f, found in FAMILIES.items() if found.style])
def test_a_family_that_serves_tools_shows_them_and_reads_a_call_back(family: str) -> None:
    made = renderer(family)
    assert "Finds." in made.decode(made.render([ASK], (FIND,)).ids)
    reply = Message("assistant", "", "Hm.", tool_calls=(ToolCall("functions.find:0", "find", {"q": "1e5"}),))
    _, tail = sampled(made, reply, (FIND,))
    (call,) = tail.message.tool_calls
    assert (call.name, call.arguments, call.error) == ("find", {"q": "1e5"}, None)
    assert (tail.message.reasoning or "").strip() == "Hm."
    answer = Message("tool", "there <|im_end|>", tool_call_id=call.id, name="find")
    delta = made.bridge(tail, [answer], (FIND,))
    assert isinstance(delta, Rendered)
    observed = made.decode(delta.ids[delta.kinds == TokenKind.OBSERVATION])
    assert "there <|im_end|>" in observed
    whole = made.render([ASK, reply, answer], (FIND,)).ids.tolist()
    assert whole[-len(delta) :] == delta.ids.tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_thinking_that_is_stripped_is_no_bridge_and_kept_thinking_extends(family: str) -> None:
    reply = Message("assistant", "There.", "I know it.")
    for thinking in ("template", "keep"):
        made = renderer(family, thinking)
        _, tail = sampled(made, reply)
        if not (tail.message.reasoning or "").strip():
            assert family in ("deepseek_v3", "deepseek_v3_1"), "these write no reasoning at all"
            continue
        found = made.bridge(tail, [AGAIN])
        strips = thinking == "template" and family != "qwen3_8"
        assert isinstance(found, NoBridge if strips else Rendered), (thinking, found)
        if strips:
            assert "thinking is stripped" in found.detail  # type: ignore[union-attr]


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5", "nemotron_3", "glm_5_2", "kimi_k2_5"])
def test_kept_thinking_is_rendered_as_it_was_sampled(family: str) -> None:
    """A segment that starts anew shows the same tokens as the one before it did."""
    made = renderer(family, "keep")
    reply = Message("assistant", "There.", "I know it.")
    before, _ = sampled(made, reply)
    after = made.render([ASK, reply, AGAIN]).ids
    size = len(before) - (family in ("qwen3", "qwen3_5", "nemotron_3"))
    assert after[:size].tolist() == before[:size].tolist()


def test_in_a_tool_loop_the_thinking_since_the_users_message_stays() -> None:
    made = renderer("qwen3")
    call = Message("assistant", "", "Look first.", tool_calls=(ToolCall("c", "find", {"q": "x"}),))
    answer = Message("tool", "y", tool_call_id="c", name="find")
    text = made.decode(made.render([ASK, call, answer], (FIND,)).ids)
    assert "<think>\nLook first.\n</think>\n\n<tool_call>\n" in text
    assert "Look first." not in made.decode(
        made.render([ASK, call, answer, Message("assistant", "z"), AGAIN], (FIND,)).ids
    )


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5", "qwen3_8", "glm_5_2", "deepseek_v4", "kimi_k2_5", "gpt_oss"])
def test_stripping_all_thinking_shows_the_last_message_whole_and_starts_a_segment_after_each_thought(family) -> None:
    made = renderer(family, "strip")
    thought = Message("assistant", "There.", "I know it.")
    _, tail = sampled(made, thought)
    assert (tail.message.reasoning or "").strip() == "I know it."
    assert "I know it." not in made.decode(made.render([ASK, thought, AGAIN]).ids)
    assert isinstance(made.bridge(tail, [AGAIN]), NoBridge)
    _, tail = sampled(made, Message("assistant", "There."))
    assert isinstance(made.bridge(tail, [AGAIN]), Rendered)


def test_messages_that_the_package_would_join_are_refused() -> None:
    with pytest.raises(EpisodeFailed, match="joins messages 0 and 1"):
        renderer("qwen3").render([ASK, AGAIN])


def test_an_integer_that_would_become_a_float_is_refused() -> None:
    call = Message("assistant", "", tool_calls=(ToolCall("c", "find", {"n": 10**30}),))
    with pytest.raises(EpisodeFailed, match="more than 64 bits"):
        renderer("qwen3").render([ASK, call, Message("tool", "y", tool_call_id="c")], (FIND,))


def test_a_demonstration_ends_as_the_model_ends_it_and_teaches_the_last_thought() -> None:
    reply = Message("assistant", "There.", "I know it.")
    for family, end in (("glm_5_2", "<|endoftext|>"), ("gpt_oss", "<|return|>"), ("qwen3", "<|im_end|>")):
        made = renderer(family)
        shown = made.supervised([ASK, reply])
        taught = made.decode(shown.ids[shown.kinds == TokenKind.ACTION])
        assert "I know it." in taught
        assert taught.endswith(f"There.{end}")
