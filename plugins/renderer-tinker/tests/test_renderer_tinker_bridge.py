from __future__ import annotations

import numpy as np
import pytest

from ferrule import Message, NoBridge, Rendered, TokenKind, ToolSpec

TOOL = ToolSpec("f", "Does it.", {"type": "object", "properties": {"x": {"type": "string"}}})
ASK = [Message("system", "You plan."), Message("user", "Plan it.")]
HERMES = '<tool_call>\n{"name": "f", "arguments": {"x": "1"}}\n</tool_call>'
XML = "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>"
KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
    '{"x": "1"}<|tool_call_end|><|tool_calls_section_end|>'
)
DEEPSEEK = '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"x": "1"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
DSML = (
    '\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="f">\n<｜DSML｜ parameter name="x" string="true">1</｜DSML｜ parameter>\n'
    "</｜DSML｜ invoke>\n</｜DSML｜ calls>"
)
HARMONY = ' to=functions.f<|channel|>commentary <|constrain|>json<|message|>{"x": "1"}'
# (asset, renderer, options, a call as its model writes it, the stop after it, the framing of the answer "ok")
CALLS = [
    ("qwen3", "qwen3", {}, HERMES, "<|im_end|>",
     "\n<|im_start|>user\n<tool_response>\nok\n</tool_response><|im_end|>\n<|im_start|>assistant\n"),
    ("qwen35", "qwen3_5", {"thinking": "keep"}, f"Hm.\n</think>\n\n{XML}", "<|im_end|>",
     "\n<|im_start|>user\n<tool_response>\nok\n</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n"),
    ("deepseek", "deepseekv3", {}, DEEPSEEK, "<｜end▁of▁sentence｜>", "<｜tool▁output▁begin｜>ok<｜tool▁output▁end｜>"),
    ("deepseek", "deepseekv4_1", {}, f"Hm.</think>{DSML}", "<｜end▁of▁sentence｜>",
     "<｜User｜><tool_result>ok</tool_result><｜Assistant｜><think>"),
    ("glm", "glm5_3_max_reasoning", {}, "Hm.</think><tool_call>f<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>",
     "<|observation|>", "<tool_response>ok</tool_response><|assistant|><think>"),
    ("kimi", "kimi_k25", {}, f"Hm.</think>{KIMI}", "<|im_end|>",
     "<|im_system|>f<|im_middle|>## Return of functions.f:0\nok<|im_end|><|im_assistant|>assistant<|im_middle|><think>"),
    ("gpt_oss", "gpt_oss_no_sysprompt", {}, HARMONY, "<|call|>",
     "<|start|>functions.f to=assistant<|channel|>commentary<|message|>ok<|end|><|start|>assistant"),
    ("nemotron", "nemotron3", {}, f"Hm.\n</think>\n{XML}\n", "<|im_end|>",
     "\n<|im_start|>user\n<tool_response>\nok\n</tool_response>\n<|im_end|>\n<|im_start|>assistant\n<think>\n"),
]  # fmt: skip


def answer(tail, text: str, index: int = 0) -> Message:
    call = tail.message.tool_calls[index]
    assert call.error is None, call
    return Message("tool", text, tool_call_id=call.id, name=call.name)


@pytest.mark.parametrize(("asset", "name", "options", "said", "stop", "framing"), CALLS, ids=[c[1] for c in CALLS])
def test_an_answer_is_framed_as_the_models_own_template_has_it(kit, asset, name, options, said, stop, framing):
    k = kit(asset, name, **options)
    prompt, completion, tail = k.sample(ASK, said, (TOOL,), stop)
    assert tail.message.tool_calls[0].arguments == {"x": "1"}
    delta = k.renderer.bridge(tail, [answer(tail, "ok")], (TOOL,))
    assert isinstance(delta, Rendered), delta
    assert k.text(delta.ids) == framing
    assert k.part(delta, TokenKind.OBSERVATION) == "ok"
    assert delta.opened == prompt.opened or name == "deepseekv3"
    # Where the model wrote as its template does, what the cookbook writes of the whole has the same end.
    whole = k.renderer.render([*ASK, tail.message, answer(tail, "ok")], (TOOL,))
    assert whole.ids[-len(delta) :].tolist() == delta.ids.tolist()
    assert len(completion) > 0


def test_a_conversation_of_many_turns_stays_one_row(kit):
    k = kit("glm", "glm5_3_max_reasoning")
    messages = list(ASK)
    prompt = k.renderer.render(messages, (TOOL,))
    row, end = prompt.ids, prompt.spans[-1][1]
    for turn in range(12):
        said = f"Turn {turn}, hm.</think>So<tool_call>f<arg_key>x</arg_key><arg_value>{turn}</arg_value></tool_call>"
        ids = np.array([*k.ids(said), k.id("<|observation|>")], np.int32)
        parsed = k.renderer.parse(ids, (TOOL,), opened=("think",))
        _, _, like = k.sample(ASK, said, (TOOL,), "<|observation|>")
        tail = type(like)(
            np.concatenate([row[end:], ids]), len(row) - end, int(ids[-1]), parsed.message, len(messages),
            tuple(m.role for m in messages)[-8:], (), (TOOL,), turn > 0,
        )  # fmt: skip
        new = answer(tail, f"answer {turn}")
        delta = k.renderer.bridge(tail, [new], (TOOL,))
        assert isinstance(delta, Rendered), delta
        before = np.concatenate([row, ids])
        row = np.concatenate([before, delta.ids])
        assert row[: len(before)].tolist() == before.tolist()
        end = len(before) + delta.spans[-1][1]
        messages += [parsed.message, new]
    # This model's template keeps all thinking, so here the cookbook's own rendering is the row itself.
    assert k.own.build_generation_prompt(k.wires(messages, (TOOL,))).to_ints() == row.tolist()


def test_a_renderer_that_strips_thinking_starts_a_new_segment_unless_it_is_to_keep_it(kit):
    said = "<think>\nHm.\n</think>\n\nDone."
    again = [Message("user", "And now?")]
    for options, extends in (({}, False), ({"thinking": "keep"}, True)):
        k = kit("qwen3", "qwen3", **options)
        _, _, tail = k.sample(ASK, said, (), "<|im_end|>")
        delta = k.renderer.bridge(tail, again)
        if extends:
            assert k.text(delta.ids) == "\n<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n"
        else:
            assert delta == NoBridge("no_bridge", "'qwen3' strips earlier thinking")
    _, _, tail = kit("qwen3", "qwen3").sample(ASK, "Done.", (), "<|im_end|>")
    assert isinstance(kit("qwen3", "qwen3").renderer.bridge(tail, again), Rendered)


def test_thinking_that_was_cut_is_closed_before_the_turn(kit):
    k = kit("glm", "glm5_3_max_reasoning")
    _, _, tail = k.sample(ASK, "Adding them")
    assert tail.message.reasoning == "Adding them"
    assert tail.message.content == ""
    delta = k.renderer.bridge(tail, [Message("user", "Go on.")])
    assert k.text(delta.ids) == "</think><|user|>Go on.<|assistant|><think>"


def test_a_turn_closed_by_the_next_header_is_not_gone_on_from_with_another(kit):
    k = kit("glm", "glm5_3_max_reasoning")
    _, _, tail = k.sample(ASK, "Hm.</think>Done.", (), "<|user|>")
    assert k.text(k.renderer.bridge(tail, [Message("user", "Go on.")]).ids) == "Go on.<|assistant|><think>"
    found = k.renderer.bridge(tail, [Message("system", "New rules.")])
    assert isinstance(found, NoBridge)
    assert "'<|user|>'" in found.detail
    _, _, tail = k.sample(ASK, "Hm.</think>Done.", (), "<|endoftext|>")
    assert k.text(k.renderer.bridge(tail, [Message("user", "Go on.")]).ids) == "<|user|>Go on.<|assistant|><think>"


def test_a_turn_that_a_text_ends_goes_on_after_it(kit):
    k = kit("llama", "role_colon")
    again = [Message("user", "And now?")]
    for said, stop, delta in (
        (" Done.", "<|end_of_text|>", "\n\nUser: And now?\n\nAssistant:"),
        (" Done.\n\n", "<|end_of_text|>", "User: And now?\n\nAssistant:"),
        (" Do", "", "\n\nUser: And now?\n\nAssistant:"),
    ):
        _, _, tail = k.sample(ASK, said, (), stop)
        assert k.text(k.renderer.bridge(tail, again).ids) == delta
    _, _, tail = k.sample(ASK, " Done.\n\nUser: I ask", (), "<|end_of_text|>")
    assert k.renderer.bridge(tail, again) == NoBridge("no_bridge", "the reply goes on after the text that ends it")


def test_what_the_cookbook_refuses_is_no_bridge_and_spoils_nothing(kit):
    k = kit("deepseek", "deepseekv3")
    _, _, tail = k.sample(ASK, "Done.", (), "<｜end▁of▁sentence｜>")
    found = k.renderer.bridge(tail, [Message("system", "New rules.")])
    assert isinstance(found, NoBridge)
    assert "RendererError" in found.detail
    assert isinstance(k.renderer.bridge(tail, [Message("user", "New rules.")]), Rendered)


def test_many_answers_of_one_turn_share_a_span_each(kit):
    k = kit("deepseek", "deepseekv4_1")
    twice = DSML.replace("</｜DSML｜ calls>", DSML.partition("calls>\n")[2])
    _, _, tail = k.sample(ASK, f"Hm.</think>{twice}", (TOOL,), "<｜end▁of▁sentence｜>")
    assert len(tail.message.tool_calls) == 2
    new = [answer(tail, "second", 1), answer(tail, "first", 0), Message("user", "And now?")]
    delta = k.renderer.bridge(tail, new, (TOOL,))
    shown = [k.text(delta.ids[a:b]) for a, b in delta.spans]
    assert all(m.content in text for m, text in zip(new, shown, strict=True))
    assert delta.spans[1][1] <= delta.spans[0][0]
    assert delta.spans[0][1] <= delta.spans[2][0]
