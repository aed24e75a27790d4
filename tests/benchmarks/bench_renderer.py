"""What a renderer costs per turn: medians over many repeats, on a small tokenizer made here.

    python tests/benchmarks/bench_renderer.py [--tokenizer FOLDER] [--repeats 2000] [--json]

Prints one line per measure: rendering a first prompt, the first bridge of a shape and the later ones, reading a short
completion, and for comparison what transformers' ``apply_chat_template`` takes for the whole conversation that a
bridge extends.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable

import numpy as np

from ferrule import Message, ModelSpec, Rendered, Tail, ToolSpec

CHATML = (
    "{%- for m in messages %}{%- if m.role == 'tool' %}"
    "{{- '<|im_start|>user\\n<tool_response>\\n' + m.content + '\\n</tool_response><|im_end|>\\n' }}"
    "{%- else %}{{- '<|im_start|>' + m.role + '\\n' + m.content }}{%- for c in m.tool_calls or [] %}"
    "{{- '\\n<tool_call>\\n{\"name\": \"' + c.function.name + '\", \"arguments\": ' + (c.function.arguments | tojson) + '}\\n</tool_call>' }}"
    "{%- endfor %}{{- '<|im_end|>\\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
SPECIALS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
]
TOOLS = (
    ToolSpec(
        "get_forecast", "Prices.", {"type": "object", "properties": {"day": {"type": "integer"}}, "required": ["day"]}
    ),
    ToolSpec(
        "submit_schedule",
        "Submit.",
        {"type": "object", "properties": {"plan": {"type": "string"}}, "required": ["plan"]},
    ),
)


def made(folder: str) -> str:
    """Train a byte-level BPE of 600 tokens and save it with a ChatML template in *folder*."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    corpus = [
        '{"name": "get_forecast", "arguments": {"day": 12}}\nPlan the day, please. prices: 1 2 3 4 5\nassistant user system'
    ] * 8
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", chat_template=CHATML).save_pretrained(
        folder
    )
    return folder


def median_ms(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def measure(folder: str, repeats: int) -> dict[str, float]:
    from ferrule_renderer_chat_template import ChatTemplateRenderer
    from transformers import AutoTokenizer

    def fresh() -> ChatTemplateRenderer:
        return ChatTemplateRenderer(ChatTemplateRenderer.Config(), ModelSpec(tokenizer=folder))

    renderer, hugging = fresh(), AutoTokenizer.from_pretrained(folder)
    start = [Message("system", "You plan a battery."), Message("user", "Plan day 12.")]
    prompt = renderer.render(start, TOOLS)
    text = '<tool_call>\n{"name": "get_forecast", "arguments": {"day": 12}}\n</tool_call>'
    close = min(renderer.stop_ids)
    completion = np.array([*hugging.encode(text, add_special_tokens=False), close], np.int32)
    parsed = renderer.parse(completion, TOOLS)
    message, end = parsed.message, prompt.spans[-1][1]
    tail = Tail(
        np.concatenate([prompt.ids[end:], completion]),
        len(prompt) - end,
        close,
        message,
        2,
        ("system", "user"),
        (),
        TOOLS,
    )
    call = message.tool_calls[0]
    answer = [Message("tool", "prices: 3 1 4 1 5 9 2 6", tool_call_id=call.id, name=call.name)]
    delta = renderer.bridge(tail, answer, TOOLS)
    assert isinstance(delta, Rendered)

    firsts = []
    for _ in range(5):
        other = fresh()
        other.render(start, TOOLS)
        begun = time.perf_counter()
        other.bridge(tail, answer, TOOLS)
        firsts.append((time.perf_counter() - begun) * 1e3)
    history = [*start, *[message, *answer] * 25]
    wires = [
        {
            **m.to_openai(),
            **({"tool_calls": [{"function": {"name": call.name, "arguments": {"day": 12}}}]} if m.tool_calls else {}),
        }
        for m in history
    ]
    few = max(5, repeats // 100)
    return {
        "first prompt, ms": median_ms(lambda: renderer.render(start, TOOLS), repeats),
        "first bridge of a shape, ms": statistics.median(firsts),
        "later bridge, ms": median_ms(lambda: renderer.bridge(tail, answer, TOOLS), repeats),
        "parse, ms": median_ms(lambda: renderer.parse(completion, TOOLS), repeats),
        "render of 52 messages, ms": median_ms(lambda: renderer.render(history, TOOLS), few),
        "apply_chat_template of 52 messages, ms": median_ms(
            lambda: hugging.apply_chat_template(
                wires, add_generation_prompt=True, tools=[t.to_openai() for t in TOOLS]
            ),
            few,
        ),
        "delta, tokens": float(len(delta)),
        "completion, tokens": float(len(completion)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", help="a tokenizer's folder with a chat template, in place of the one made here")
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(options.tokenizer or made(folder), options.repeats)
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:<42}{value:10.3f}" if name.endswith("ms") else f"{name:<42}{value:10.0f}")


if __name__ == "__main__":
    main()
