"""Renderers over real tokenizers, made once; beside each the cookbook's own, and ways to play with both."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import ferrule_test_assets as assets
import numpy as np
import pytest
from ferrule_renderer_tinker import TinkerRenderer
from tinker_cookbook import renderers as cookbook
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ferrule import Message, ModelSpec, Rendered, Tail, ToolSpec

LLAMA = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]


@cache
def loaded(folder: str) -> Any:
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def wire(message: Message) -> dict[str, Any]:
    """A message as one would hand it to the cookbook."""
    out: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.role == "assistant":
        thoughts = [{"type": "thinking", "thinking": message.reasoning}] if message.reasoning else []
        out["content"] = [*thoughts, {"type": "text", "text": message.content}]
    if message.tool_calls:
        body = cookbook.ToolCall.FunctionBody
        out["tool_calls"] = [
            cookbook.ToolCall(
                id=c.id, function=body(name=c.name, arguments=json.dumps(dict(c.arguments), ensure_ascii=False))
            )
            for c in message.tool_calls
        ]
    if message.tool_call_id:
        out["tool_call_id"], out["name"] = message.tool_call_id, message.name
    return out


@attrs.frozen(eq=False)
class Kit:
    """A renderer, and the cookbook's own of that name."""

    renderer: TinkerRenderer
    own: Any
    folder: str

    def ids(self, text: str) -> list[int]:
        return self.renderer._parts.encoder.encode(text)

    def id(self, token: str) -> int:
        return self.renderer._parts.encoder.ids_of[token]

    def text(self, ids: Any) -> str:
        return self.renderer.decode(np.asarray(ids))

    def part(self, rendered: Rendered, kind: int) -> str:
        """The text of all tokens of one kind."""
        return self.text(rendered.ids[rendered.kinds == kind])

    def wires(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> list[dict[str, Any]]:
        """What the cookbook's users hand to it."""
        wires = [wire(m) for m in messages]
        if not tools:
            return wires
        system = messages[0].content if messages[0].role == "system" else ""
        specs = [t.to_openai()["function"] for t in tools]
        prefix = self.own.create_conversation_prefix_with_tools(specs, system)
        return [*prefix, *(wires[1:] if messages[0].role == "system" else wires)]

    def sample(
        self, messages: Sequence[Message], completion: str, tools: Sequence[ToolSpec] = (), stop: str = "", **more: Any
    ) -> tuple[Rendered, np.ndarray, Tail]:
        """(prompt, completion, tail) as if the model had written *completion* after *messages*; cut without *stop*."""
        prompt = self.renderer.render(messages, tools)
        ids = np.array(self.ids(completion) + ([self.id(stop)] if stop else []), np.int32)
        parsed = self.renderer.parse(ids, tools, opened=prompt.opened)
        end = max(b for _, b in prompt.spans)
        tail = Tail(
            np.concatenate([prompt.ids[end:], ids]),
            len(prompt.ids) - end,
            self.id(stop) if stop else "length",
            parsed.message,
            len(messages),
            tuple(m.role for m in messages)[-8:],
            () if parsed.closed else prompt.opened,
            tuple(tools),
            **more,
        )
        return prompt, ids, tail


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a byte-level tokenizer with Llama 3's control tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["user assistant system tool\n\nUser: Assistant: plan it"] * 4, trainer)
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in LLAMA])
    folder = tmp_path_factory.mktemp("llama")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|begin_of_text|>", eos_token="<|end_of_text|>"
    ).save_pretrained(str(folder))
    return str(folder)


@pytest.fixture(scope="session")
def kit(llama: str) -> Callable[..., Kit]:
    """Make a :class:`Kit`: the name of an asset's function, a renderer's name, and options."""
    made: dict[Any, Kit] = {}

    def make(asset: str, name: str, **options: Any) -> Kit:
        known = (asset, name, json.dumps(options, sort_keys=True))
        if known not in made:
            folder = llama if asset == "llama" else str(Path(getattr(assets, asset)()))
            config = TinkerRenderer.Config(name=name, **options)
            renderer = TinkerRenderer(config, ModelSpec(tokenizer=folder))
            own = cookbook.get_renderer(name, loaded(folder))
            if options.get("thinking") == "keep" and hasattr(own, "strip_thinking_from_history"):
                own.strip_thinking_from_history = False
            made[known] = Kit(renderer, own, folder)
        return made[known]

    return make
