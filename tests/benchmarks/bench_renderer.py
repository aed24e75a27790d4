"""What a rollout pays for its prompts: our renderers, their peers, and the floor, in one run.

    python tests/benchmarks/bench_renderer.py [--turns 50,200] [--repeats 7] [--only chatml,prime] [--tokenizer FOLDER]
        [--json]

The conversation is an agent's: system, user, then turns of thinking, some text and one tool call, each answered. The
table has, for a rollout of so many turns, the CPU time in which a system gets all its prompts (median), and its ratio
to the floor: encoding every new content once, with the same Rust tokenizer. A system that extends is given the sampled
tokens and the answer; one that does not renders all messages again for each prompt, and where that is slow only every
k-th prompt is timed. Floor and system alternate, so that a busy machine hurts both.

``history`` is what one more bridge costs at 32k tokens of history, as a ratio to its cost at 3k.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
from traffic import TOOLS, Wire, completion, conversation

from ferrule import Ledger, Message, ModelSpec, NoBridge, Sample, Tail, ToolSpec


class Floor:
    """The tokenizer alone."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids  # type: ignore[no-any-return]


class Ours:
    """One of our renderers, its tokens kept in a ledger, as an agent keeps them. *parse*: replies are read, too."""

    name, parse = "chatml", False

    def __init__(self, folder: Path) -> None:
        self.renderer = self.made(str(folder))
        self.tools = tuple(ToolSpec.from_openai(t) for t in TOOLS)

    def made(self, folder: str) -> Any:
        from ferrule_renderer_chatml import ChatMLRenderer

        return ChatMLRenderer(ChatMLRenderer.Config(family="qwen3"), ModelSpec(tokenizer=folder))

    def prepare(self, messages: Sequence[Wire]) -> list[Message]:
        return [Message.from_openai(m) for m in messages]

    def render(self, messages: Sequence[Message]) -> Any:
        return self.renderer.render(messages, self.tools).ids

    def start(self, messages: Sequence[Message]) -> Any:
        rendered = self.renderer.render(messages, self.tools)
        ledger = Ledger()
        ledger.open()
        ledger.prompt(0, rendered.ids, rendered.kinds)
        return ledger, rendered.spans[-1][1], [m.role for m in messages]

    def extend(self, state: Any, sampled: Any, said: Message, new: Sequence[Message]) -> Any:
        ledger, generation, roles = state
        prompt = ledger.length(0)
        message = self.renderer.parse(sampled, self.tools).message if self.parse else said
        if self.parse:
            new = [Message("tool", m.content, tool_call_id=message.tool_calls[0].id, name=m.name) for m in new]
        zeros = np.zeros(len(sampled), np.float32), np.zeros(len(sampled), np.int32)
        ledger.sample(0, Sample(sampled, *zeros, "stop"), message)
        tail = Tail(
            ledger.tokens(0, generation),
            prompt - generation,
            int(sampled[-1]),
            message,
            len(roles),
            tuple(roles[-8:]),
            (),
            self.tools,
            len(roles) > 2,
        )
        delta = self.renderer.bridge(tail, new, self.tools)
        if isinstance(delta, NoBridge):
            raise RuntimeError(f"no bridge: {delta}")
        length = ledger.length(0)
        ledger.prompt(0, delta.ids, delta.kinds)
        return (ledger, length + delta.spans[-1][1], [*roles[-8:], "assistant", *(m.role for m in new)]), ledger.tokens(
            0
        )


class OursParsed(Ours):
    name, parse = "chatml, replies parsed", True


class OursTemplate(Ours):
    name = "chat_template"

    def made(self, folder: str) -> Any:
        from ferrule_renderer_chat_template import ChatTemplateRenderer

        return ChatTemplateRenderer(ChatTemplateRenderer.Config(), ModelSpec(tokenizer=folder))


class Hugging:
    name = "transformers apply_chat_template"

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    def prepare(self, messages: Sequence[Wire]) -> Any:
        return list(messages)

    def render(self, messages: Any) -> Any:
        out = self.tokenizer.apply_chat_template(messages, tools=TOOLS, add_generation_prompt=True)
        return out["input_ids"] if hasattr(out, "keys") else out


class Prime(Hugging):
    name = "prime renderers, render"

    def __init__(self, folder: Path) -> None:
        import renderers
        from renderers.base import create_renderer

        super().__init__(folder)
        self.renderer = create_renderer(self.tokenizer, renderers.Qwen3RendererConfig())

    def render(self, messages: Any) -> Any:
        return self.renderer.render_ids(messages, tools=TOOLS, add_generation_prompt=True)


class PrimeBridge(Prime):
    name = "prime renderers, bridge"

    def start(self, messages: Any) -> Any:
        return self.render(messages)

    def extend(self, state: Any, sampled: Any, said: Wire, new: Any) -> Any:
        out = self.renderer.bridge_to_next_turn(state, sampled.tolist(), list(new), tools=TOOLS)
        if out is None:
            raise RuntimeError("no bridge")
        return out.token_ids, out.token_ids


class Cookbook:
    name = "tinker_cookbook"

    def __init__(self, folder: Path) -> None:
        from tinker_cookbook.renderers import ToolCall
        from tinker_cookbook.renderers.qwen3 import Qwen3Renderer
        from transformers import AutoTokenizer

        self.call = ToolCall
        # What its documentation asks for in reinforcement learning over several turns.
        self.renderer = Qwen3Renderer(AutoTokenizer.from_pretrained(folder), strip_thinking_from_history=False)

    def prepare(self, messages: Sequence[Wire]) -> Any:
        functions = [t["function"] for t in TOOLS]
        out = list(self.renderer.create_conversation_prefix_with_tools(functions, messages[0]["content"]))
        for m in messages[1:]:
            m = dict(m)
            thought = m.pop("reasoning_content", None)
            if thought is not None:
                m["content"] = [{"type": "thinking", "thinking": thought}, {"type": "text", "text": m["content"]}]
            if "tool_calls" in m:
                m["tool_calls"] = [self._call(c) for c in m["tool_calls"]]
            out.append(m)
        return out

    def _call(self, call: Wire) -> Any:
        arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        body = self.call.FunctionBody(name=call["function"]["name"], arguments=arguments)
        return self.call(id=call["id"], function=body)

    def render(self, messages: Any) -> Any:
        return self.renderer.build_generation_prompt(messages).to_ints()


class Tml(Hugging):
    """Takes no declarations of tools: their text is in the system message that it is given."""

    name = "tml_renderers"

    def __init__(self, folder: Path) -> None:
        from tml_renderers import chat, renderers

        super().__init__(folder)
        self.chat, self.renderer = chat, renderers.Qwen3()

    def prepare(self, messages: Sequence[Wire]) -> Any:
        head = self.tokenizer.apply_chat_template(list(messages[:1]), tools=TOOLS, tokenize=False)
        head = head.removeprefix("<|im_start|>system\n").removesuffix("<|im_end|>\n")
        out: list[Wire] = [{"role": "system", "content": head}]
        for m in messages[1:]:
            calls = [
                {**c, "function": {**c["function"], "arguments": json.dumps(c["function"]["arguments"])}}
                for c in m.get("tool_calls", ())
            ]
            out.append({**m, "tool_calls": calls} if calls else m)
        return out

    def render(self, messages: Any) -> Any:
        spans, _ = self.renderer.render_for_completion(self.chat.OpenAIMessage.from_oss_messages(messages))
        return [i for s in spans for i in (s.span if hasattr(s, "span") else s).tokens]


SYSTEMS: list[Any] = [Ours, OursParsed, OursTemplate, PrimeBridge, Tml, Prime, Cookbook, Hugging]
KEEPS = {Ours, OursParsed, OursTemplate, PrimeBridge}


def cpu(work: Callable[[], object]) -> float:
    gc.collect()
    begun = time.process_time()
    work()
    return time.process_time() - begun


def against(floor: Callable[[], object], work: Callable[[], object], repeats: int) -> tuple[float, float]:
    """CPU seconds of *work*, and its ratio to the *floor* taken just before: medians of each."""
    pairs = [(cpu(floor), cpu(work)) for _ in range(repeats)]
    return statistics.median(w for _, w in pairs), statistics.median(w / f for f, w in pairs)


class Bench:
    """A conversation, and how the systems go through it."""

    def __init__(self, tokenizer: Floor, turns: int) -> None:
        self.tokenizer, self.turns = tokenizer, turns
        self.messages = conversation(turns)
        self.sampled = [np.array(tokenizer.ids(completion(m)), np.int32) for m in self.messages[2::2]]
        self.news = [m["content"] for m in self.messages[:-1] if m["role"] != "assistant"]

    def floor(self) -> None:
        for text in self.news:
            self.tokenizer.ids(text)

    def extending(self, system: Any, prepared: Any) -> Any:
        """All prompts by extending; the last one."""
        state, ids = system.start(prepared[:2]), None
        for n in range(1, self.turns):
            at = 2 * n
            state, ids = system.extend(state, self.sampled[n - 1], prepared[at], prepared[at + 1 : at + 2])
        return ids

    def rendering(self, system: Any, prepared: Any, every: int) -> None:
        """Every *every*-th prompt, from the messages alone."""
        extra = len(prepared) - len(self.messages)
        for n in range(every // 2, self.turns, every):
            system.render(prepared[: 2 + 2 * n + extra])

    def measure(self, system: Any, repeats: int) -> dict[str, float]:
        prepared = system.prepare(self.messages)
        if hasattr(system, "extend"):
            self.extending(system, prepared)
            spent, ratio = against(self.floor, lambda: self.extending(system, prepared), repeats)
            return {"ms": spent * 1e3, "ratio": ratio}
        fast = cpu(lambda: system.render(prepared)) < 0.02
        every = 1 if fast else max(1, self.turns // 10)
        again = repeats if fast else min(repeats, 3)
        spent, ratio = against(self.floor, lambda: self.rendering(system, prepared, every), again)
        return {"ms": spent * every * 1e3, "ratio": ratio * every}

    def equal(self, system: Any, want: Any) -> bool:
        """Whether the last prompt is that of the template."""
        prepared = system.prepare(self.messages[:-2])
        ids = self.extending(system, system.prepare(self.messages)) if hasattr(system, "extend") else None
        return list(system.render(prepared) if ids is None else ids) == list(want)


def history(system: Any, tokenizer: Floor, repeats: int) -> float:
    """The cost of one bridge at 32k tokens of history over that at 3k."""
    messages = conversation(110)
    prepared = system.prepare(messages)
    size = [len(system.render(prepared[: 2 + 2 * n])) for n in (4, 50)]
    per_turn = (size[1] - size[0]) / 46
    turns = [max(1, round((want - size[0]) / per_turn) + 4) for want in (3_000, 32_000)]
    sampled = np.array(tokenizer.ids(completion(messages[2])), np.int32)
    said, new = prepared[2], prepared[3:4]
    costs: list[list[float]] = [[], []]
    for _ in range(max(10, repeats * 3)):
        for k, n in enumerate(turns):
            state = system.start(prepared[: 2 + 2 * n])
            # The first one makes room in the ledger for many more.
            state, _ = system.extend(state, sampled, said, new)
            for _ in range(4):
                begun = time.process_time()
                state, _ = system.extend(state, sampled, said, new)
                costs[k].append(time.process_time() - begun)
    return statistics.median(costs[1]) / statistics.median(costs[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, help="a folder with Qwen3's tokenizer, in place of the test assets'")
    parser.add_argument("--turns", default="50,200")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", default="", help="names of systems, or parts of them, comma separated")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    if options.tokenizer is None:
        from ferrule_test_assets import qwen3

        options.tokenizer = qwen3()
    report(options)


def report(options: argparse.Namespace) -> None:
    tokenizer = Floor(options.tokenizer)
    counts = [int(n) for n in options.turns.split(",")]
    benches = [Bench(tokenizer, n) for n in counts]
    hugging = Hugging(options.tokenizer)
    want = hugging.render(benches[0].messages[:-2])
    only = [part for part in options.only.split(",") if part]
    head = "".join(f"{f'{n} turns, ms':>16}{'x floor':>9}" for n in counts)
    if not options.json:
        print(f"{'':<36}{head}{'history':>9}  ids of the template")
        floors = [statistics.median(cpu(b.floor) for _ in range(options.repeats)) * 1e3 for b in benches]
        print(f"{'floor: encoding the new texts':<36}" + "".join(f"{f:16.1f}{1:9.2f}" for f in floors))
    for make in SYSTEMS:
        if only and not any(part in make.name for part in only):
            continue
        try:
            system = make(options.tokenizer)
        except ImportError as error:
            print(
                json.dumps({"system": make.name, "skipped": str(error)})
                if options.json
                else f"{make.name:<36}skipped: {error}"
            )
            continue
        found = [b.measure(system, options.repeats) for b in benches]
        ratio = history(system, tokenizer, options.repeats) if make in KEEPS else None
        same = benches[0].equal(system, want)
        if options.json:
            rollouts = dict(zip(counts, found, strict=True))
            print(json.dumps({"system": make.name, "rollouts": rollouts, "history": ratio, "same_ids": same}))
            continue
        row = "".join(f"{f['ms']:16.1f}{f['ratio']:9.2f}" for f in found)
        print(f"{make.name:<36}{row}{f'{ratio:9.2f}' if ratio else '':>9}  {'yes' if same else 'no'}", flush=True)


if __name__ == "__main__":
    main()
