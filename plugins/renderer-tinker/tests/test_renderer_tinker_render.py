from __future__ import annotations

import attrs
import numpy as np
import pytest
from tinker_cookbook import renderers as cookbook

from ferrule import EpisodeFailed, Message, TokenKind, ToolCall, ToolSpec

ACTION, OBSERVATION = TokenKind.ACTION, TokenKind.OBSERVATION
TOOL = ToolSpec("f", "Does it.", {"type": "object", "properties": {"x": {"type": "string"}, "n": {"type": "integer"}}})
CALLS = [ToolCall(f"functions.f:{n}", "f", {"x": x}) for n, x in enumerate(("1é", "a", "b"))]


def answer(n: int, text: str) -> Message:
    return Message("tool", text, tool_call_id=f"functions.f:{n}", name="f")


TALK = [
    Message("system", "You plan."),
    Message("user", "Plan it, s'il te plaît 🎉."),
    Message("assistant", "On it.", "Let me see.", CALLS[:1]),
    answer(0, "1 2 3\n"),
    Message("assistant", "Both.", None, CALLS[1:]),
    answer(1, "out a"),
    answer(2, "  out b "),
    Message("assistant", "Done.", "Good."),
    Message("user", "And now?"),
]
PLAIN = [Message("user", "Hi."), Message("assistant", "Hello."), Message("user", "And now? ")]
RENDERERS = [
    ("qwen3", "qwen3"),
    ("qwen3", "qwen3_disable_thinking"),
    ("qwen35", "qwen3_5"),
    ("deepseek", "deepseekv3"),
    ("deepseek", "deepseekv3_thinking"),
    ("deepseek", "deepseekv4_1"),
    ("glm", "glm5_3_max_reasoning"),
    ("kimi", "kimi_k25"),
    ("gpt_oss", "gpt_oss_no_sysprompt"),
    ("nemotron", "nemotron3"),
]
BARE = [("llama", "llama3"), ("llama", "role_colon")]


@pytest.mark.parametrize(("asset", "name"), RENDERERS)
@pytest.mark.parametrize("part", [slice(0, 2), slice(1, 4), slice(None)])
def test_a_prompt_is_the_cookbooks_token_for_token(kit, asset, name, part):
    k = kit(asset, name)
    for tools in ((), (TOOL,)):
        messages = TALK[part]
        got = k.renderer.render(messages, tools)
        assert got.ids.tolist() == k.own.build_generation_prompt(k.wires(messages, tools)).to_ints()
        assert (got.ids.dtype, got.kinds.dtype) == (np.int32, np.uint8)


@pytest.mark.parametrize(("asset", "name"), RENDERERS)
def test_a_demonstration_is_the_cookbooks_example_and_its_weights_are_the_actions(kit, asset, name):
    k = kit(asset, name)
    got = k.renderer.supervised(TALK[:-1], (TOOL,))
    wires = k.wires(TALK[:-1], (TOOL,))
    own, weights = k.own.build_supervised_example(wires, train_on_what=cookbook.TrainOnWhat.ALL_ASSISTANT_MESSAGES)
    assert got.ids.tolist() == own.to_ints()
    assert (got.kinds == ACTION).tolist() == (weights > 0).tolist()
    assert got.ids.tolist() == k.renderer.render(TALK[:-1], (TOOL,), generation=False).ids.tolist()


@pytest.mark.parametrize("train_on", ["last_assistant_turn", "last_assistant_message"])
def test_which_replies_of_a_demonstration_count_is_an_option(kit, train_on):
    k = kit("glm", "glm5_3_max_reasoning", train_on=train_on)
    got = k.renderer.supervised(TALK[:-1], (TOOL,))
    own, weights = k.own.build_supervised_example(k.wires(TALK[:-1], (TOOL,)), train_on_what=train_on)
    assert got.ids.tolist() == own.to_ints()
    assert (got.kinds == ACTION).tolist() == (weights > 0).tolist()


@pytest.mark.parametrize(("asset", "name"), BARE)
def test_renderers_without_tools_write_plain_talk_and_refuse_the_rest_by_name(kit, asset, name):
    k = kit(asset, name)
    own, weights = k.own.build_supervised_example(k.wires(PLAIN[:2]), train_on_what="all_assistant_messages")
    got = k.renderer.supervised(PLAIN[:2])
    assert got.ids.tolist() == own.to_ints()
    assert (got.kinds == ACTION).tolist() == (weights > 0).tolist()
    got = k.renderer.render(PLAIN)
    assert got.ids.tolist() == k.own.build_generation_prompt(k.wires(PLAIN)).to_ints()
    for messages, tools, why in (
        (PLAIN, (TOOL,), "no way to declare tools"),
        (TALK, (), "tool calls of message 2"),
        ([PLAIN[0], Message("assistant", "Hello.", "Hm."), PLAIN[2]], (), "reasoning of message 1"),
    ):
        with pytest.raises(EpisodeFailed, match=f"'tinker': '{name}' has .*{why}"):
            k.renderer.render(messages, tools)


@pytest.mark.parametrize(("asset", "name"), RENDERERS)
def test_spans_hold_their_messages_and_kinds_tell_who_wrote_what(kit, asset, name):
    k = kit(asset, name)
    got = k.renderer.render(TALK, (TOOL,))
    at = 0
    for message, (start, stop) in zip(TALK, got.spans, strict=True):
        assert at <= start <= stop
        at = stop
        assert message.content.strip() in k.text(got.ids[start:stop])
        kinds = set(got.kinds[start:stop].tolist())
        assert (ACTION in kinds) == (message.role == "assistant")
        assert (OBSERVATION in kinds) == (message.role != "assistant")
    observed = k.part(got, OBSERVATION)
    for message in TALK:
        assert message.role == "assistant" or message.content.strip() in observed
    actions = k.part(got, ACTION)
    assert "On it." in actions
    assert "Done." in actions
    assert "assistant" not in actions.replace("<|start|>assistant", "")
    assert not set(got.kinds[at:].tolist()) - {TokenKind.SCAFFOLD}


@pytest.mark.parametrize(("asset", "name"), RENDERERS)
def test_the_last_token_of_each_reply_is_what_ends_it(kit, asset, name):
    k = kit(asset, name)
    got = k.renderer.render(TALK, (TOOL,))
    enders = {"<|end|>"} if name.startswith("gpt_oss") else set()
    for message, (start, stop) in zip(TALK, got.spans, strict=True):
        if message.role == "assistant":
            last = [
                int(i) for i, kind in zip(got.ids[start:stop], got.kinds[start:stop], strict=True) if kind == ACTION
            ][-1]
            assert last in k.renderer.stop_ids or k.text([last]) in enders


def test_a_prefill_is_no_action(kit):
    k = kit("qwen3", "qwen3_disable_thinking")
    got = k.renderer.supervised([Message("user", "Hi."), Message("assistant", "Hello.")])
    whole = k.renderer.render([Message("user", "Hi."), Message("assistant", "Hello.")], generation=False)
    assert k.part(whole, ACTION) == "Hello.<|im_end|>"
    # The cookbook trains on it in this mode, and a demonstration is the cookbook's.
    assert k.part(got, ACTION) == "<think>\n\n</think>\n\nHello.<|im_end|>"
    k = kit("deepseek", "deepseekv3_thinking")
    whole = k.renderer.render([Message("user", "Hi."), Message("assistant", "Hello.", "Hm.")], generation=False)
    assert k.part(whole, ACTION) == "Hm.</think>Hello.<｜end▁of▁sentence｜>"


def spoken(text: str, calls: bool) -> tuple[list[Message], tuple[ToolSpec, ...]]:
    """A conversation in which all that comes from outside is *text*."""
    talk = [Message("system", text), Message("user", text)]
    if not calls:
        return talk, ()
    said = Message("assistant", "a", tool_calls=(ToolCall("c1", "f", {"x": text}),))
    parameters = {"type": "object", "properties": {"x": {"type": "string", "description": text}}}
    return [*talk, said, Message("tool", text, tool_call_id="c1", name="f")], (ToolSpec("f", text, parameters),)


@pytest.mark.parametrize(("asset", "name"), [*RENDERERS, *BARE])
def test_the_text_of_control_tokens_stays_text(kit, asset, name):
    k = kit(asset, name)
    encoder = k.renderer._parts.encoder
    odd = "a " + " ".join(sorted(encoder.control.values(), key=len)[-40:]) + " <tool_call></think> z"
    calls = (asset, name) not in BARE
    got = k.renderer.render(*spoken(odd, calls))
    plain = k.renderer.render(*spoken("a", calls))
    control = [int(i) for i in got.ids if int(i) in encoder.control]
    assert control == [int(i) for i in plain.ids if int(i) in encoder.control]
    assert odd in k.part(got, OBSERVATION)


def test_a_call_without_text_ends_as_it_was_sampled_where_the_cookbook_forgets_the_end(kit):
    k = kit("deepseek", "deepseekv3")
    talk = [TALK[1], attrs.evolve(TALK[2], content="", reasoning=None), TALK[3]]
    got = k.renderer.render(talk, (TOOL,)).ids.tolist()
    end = len(got) - 1 - got[::-1].index(k.id("<｜tool▁calls▁end｜>"))
    assert got.pop(end + 1) == k.id("<｜end▁of▁sentence｜>")
    own = k.wires(talk, (TOOL,))
    assert got == k.own.build_generation_prompt(own).to_ints()


def test_a_call_whose_id_names_no_function_is_written_under_one_that_does(kit):
    k = kit("kimi", "kimi_k25")
    foreign = Message("assistant", "", tool_calls=[ToolCall("call_77", "f", {"x": "a"}), ToolCall("call_78", "f")])
    talk = [
        TALK[1],
        foreign,
        Message("tool", "out", tool_call_id="call_78"),
        Message("tool", "in", tool_call_id="call_77"),
    ]
    text = k.text(k.renderer.render(talk, (TOOL,)).ids)
    assert "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>" in text
    assert text.index("## Return of functions.f:0\nin") < text.index("## Return of functions.f:1\nout")
    assert "call_7" not in text


def test_what_a_malformed_call_said_is_shown_again_as_it_stood(kit):
    k = kit("qwen3", "qwen3")
    raw = '<tool_call>\n{"name": f}\n</tool_call>'
    broken = Message("assistant", "Hm.", tool_calls=(ToolCall("c1", "f", {}, "not JSON", raw),))
    got = k.renderer.render([TALK[1], broken, Message("tool", "error: not JSON", tool_call_id="c1", name="f")], (TOOL,))
    start, stop = got.spans[1]
    assert f"Hm.\n{raw}<|im_end|>" in k.text(got.ids[start:stop])
    assert k.id("<tool_call>") in got.ids[start:stop]


def test_answers_are_put_in_the_order_of_their_calls(kit):
    k = kit("qwen3", "qwen3")
    swapped = [*TALK[:5], TALK[6], TALK[5], *TALK[7:]]
    got = k.renderer.render(swapped, (TOOL,))
    assert got.ids.tolist() == k.renderer.render(TALK, (TOOL,)).ids.tolist()
    (a, b), (c, d) = got.spans[5:7]
    assert "out b" in k.text(got.ids[a:b])
    assert "out a" in k.text(got.ids[c:d])


def test_a_content_that_is_no_text_is_refused_by_number_and_role(kit):
    k = kit("qwen35", "qwen3_5")
    image = [{"type": "image", "image": "data:image/png;base64,"}]
    with pytest.raises(EpisodeFailed, match=r"message 1 \(user\) is not text: images"):
        k.renderer.render([Message("system", "x"), Message("user", image)])  # type: ignore[arg-type]


def test_what_the_cookbook_refuses_is_told_with_its_words(kit):
    k = kit("deepseek", "deepseekv3")
    late = [*PLAIN, Message("system", "New rules.")]
    with pytest.raises(EpisodeFailed, match=r"'tinker': 'deepseekv3' raised RendererError: .*system message at start"):
        k.renderer.render(late)
    allowed = kit("deepseek", "deepseekv3", args={"system_role_as_user": True})
    assert "New rules." in allowed.part(allowed.renderer.render(late), OBSERVATION)


def test_private_use_characters_in_contents_are_contents(kit):
    k = kit("qwen3", "qwen3")
    odd = "a\U0010fffdb \\udbff\\udffd c"
    got = k.renderer.render([Message("user", odd)])
    assert k.part(got, OBSERVATION) == odd
    with pytest.raises(EpisodeFailed, match="both private-use planes"):
        k.renderer.render([Message("user", "\U0010fffd\U000ffffd")])
