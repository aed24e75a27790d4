from __future__ import annotations

import pytest
from ferrule_gridsim import demonstrations, home
from ferrule_gridsim.tokenizer import PIECES, SPECIALS, build, template_form, texts_of


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(home() / "tokenizer")


def test_digits_and_capital_letters_are_pieces_of_their_own(tokenizer):
    text = '{"prices": "13296984"}'
    pieces = tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids)
    assert [piece for piece in pieces if piece.strip("Ġ").isdigit()] == list("13296984")
    plan = tokenizer.convert_ids_to_tokens(tokenizer('"plan": "CHHDCHDH"').input_ids)
    assert [piece for piece in plan if piece in ("C", "H", "D")] == list("CHHDCHDH")


def test_tags_are_special_and_the_vocabulary_small(tokenizer):
    assert len(tokenizer) <= PIECES
    ids = [tokenizer(tag).input_ids for tag in SPECIALS]
    assert ids == [[i] for i in range(len(SPECIALS))]
    assert tokenizer.eos_token == "<|im_end|>"
    folder = home() / "tokenizer"
    assert sum(path.stat().st_size for path in folder.iterdir()) < 60_000


def test_demonstrations_render_to_what_a_policy_samples(tokenizer):
    demo = next(d for d in demonstrations("train", 20, 3) if len(d.messages) == 7)
    messages = [template_form(message) for message in demo.messages]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    forecast, submit = demo.messages[2].tool_calls[0], demo.messages[4].tool_calls[0]
    day, plan, prices = forecast.arguments["day"], submit.arguments["plan"], demo.messages[3].content
    assert text == (
        f"<|im_start|>system\n{demo.messages[0].content}<|im_end|>\n<|im_start|>user\nPlan day {day:03d}.<|im_end|>\n"
        f'<|im_start|>assistant\n<tool_call>\n{{"name": "get_forecast", "arguments": {{"day": {day}}}}}\n</tool_call><|im_end|>\n'
        f"<|im_start|>user\n<tool_response>\n{prices}\n</tool_response><|im_end|>\n"
        f'<|im_start|>assistant\n<tool_call>\n{{"name": "submit_schedule", "arguments": {{"plan": "{plan}"}}}}\n</tool_call><|im_end|>\n'
        f"<|im_start|>user\n<tool_response>\n{demo.messages[5].content}\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\ndone<|im_end|>\n"
    )
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    asked = tokenizer.apply_chat_template(messages[:2], tokenize=False, add_generation_prompt=True)
    assert text.startswith(asked)


def test_template_writes_words_beside_calls_and_several_calls(tokenizer):
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": "é"}}}
    text = tokenizer.apply_chat_template(
        [{"role": "assistant", "content": "So:", "tool_calls": [call, call]}], tokenize=False
    )
    one = '<tool_call>\n{"name": "f", "arguments": {"a": "é"}}\n</tool_call>'
    assert text == f"<|im_start|>assistant\nSo:\n{one}\n{one}<|im_end|>\n"


def test_the_folder_is_what_the_command_builds(tokenizer):
    template = (home() / "tokenizer" / "chat_template.jinja").read_text("utf-8")
    built = build(texts_of(template), template)
    assert built.get_vocab() == tokenizer.get_vocab()
    text = texts_of(template, count=3, seed=9)[0]
    assert built(text).input_ids == tokenizer(text).input_ids
