"""A small real tokenizer for each of the package's families, and a stand-in for the engine that writes what it is told."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import ferrule_test_assets
import numpy as np
import pytest
from ferrule_renderer_prime import PrimeRenderer
from ferrule_renderer_prime.families import FAMILIES
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ferrule import Message, ModelSpec, Rendered, Tail, ToolSpec

WEATHER = ToolSpec(
    "weather",
    "Looks out of the window.",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "exact": {"type": "boolean"},
            "spots": {"type": "array", "items": {"type": "string"}},
            "either": {"anyOf": [{"type": "string"}, {"type": "boolean"}]},
        },
        "required": ["city"],
    },
)

CORPUS = [
    "user\nassistant\nsystem\ntool\n model\n You are a helpful assistant.\n\nWhat is the weather like?\n\n",
    '{"name": "weather", "arguments": {"city": "Paris", "days": 3}}\n</tool>\n```json\n{"city": "Oslo"}\n```',
    "</user>\n<user>\n</system>\n<tool_response>\n</tool_response>\n thinking aloud.\n\n> It rains; the sun.\n",
]


class _Names:
    """A tokenizer that only writes down which tokens a renderer asks for."""

    name_or_path, unk_token_id, eos_token_id, chat_template = "names", None, 0, None
    all_special_tokens: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.names: dict[str, int] = {}

    def convert_tokens_to_ids(self, token: str) -> int:
        return self.names.setdefault(token, len(self.names) + 1)

    def encode(self, text: str, **_: Any) -> list[int]:
        return [self.convert_tokens_to_ids(text)] if text[:1] in "<]｜" else [0]


def marks(family: str) -> list[str]:
    """The control tokens that *family*'s renderer needs, as it asks for them."""
    from renderers import create_renderer
    from renderers.configs import config_from_name

    names = _Names()
    create_renderer(names, config_from_name(family))
    known = FAMILIES[family]
    return list(dict.fromkeys([*names.names, *known.pairs[: 0 if family.startswith("laguna") else None]]))


@functools.cache
def _letters() -> str:
    base = Tokenizer(models.BPE())
    base.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_regex(), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    base.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, special_tokens=[]
    )
    base.train_from_iterator(CORPUS * 4, trainer)
    return base.to_str()


def _regex() -> Any:
    from tokenizers import Regex

    return Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


@functools.cache
def folder_of(family: str, root: Path) -> str:
    """A tokenizer's folder for *family*: byte-level BPE with merges across newlines, and the family's own tokens."""
    folder = root / family
    tokenizer = Tokenizer.from_str(_letters())
    tokenizer.add_tokens([AddedToken(name, normalized=False, special=True) for name in marks(family)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=marks(family)[0])
    fast.save_pretrained(folder)
    return str(folder)


def harmony() -> None:
    """openai-harmony reads its vocabulary from a file that tml-renderers holds."""
    import tml_renderers

    os.environ.setdefault("TIKTOKEN_ENCODINGS_BASE", str(Path(tml_renderers.__file__).parent / "data"))


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


@functools.cache
def make(family: str, folder: str, thinking: str = "template", **options: Any) -> PrimeRenderer:
    config = PrimeRenderer.Config(thinking=thinking, family=family, options=options)  # type: ignore[arg-type]
    return PrimeRenderer(config, ModelSpec(tokenizer=folder))


REAL = {
    "qwen3": ferrule_test_assets.qwen3,
    "qwen3.5": ferrule_test_assets.qwen35,
    "deepseek-v3": ferrule_test_assets.deepseek,
    "glm-5": ferrule_test_assets.glm,
    "kimi-k2": ferrule_test_assets.kimi,
    "gpt-oss": ferrule_test_assets.gpt_oss,
    "nemotron-3": ferrule_test_assets.nemotron,
}
"""Families whose own vocabulary can be had."""


@pytest.fixture(scope="session")
def folder(root: Path) -> Any:
    """folder(family, real=False): a tokenizer's folder."""

    def find(family: str, real: bool = False) -> str:
        if family == "gpt-oss":
            harmony()
        return str(REAL[family]()) if real or family == "gpt-oss" else folder_of(family, root)

    return find


@pytest.fixture(scope="session")
def renderer(folder: Any) -> Any:
    """renderer(family, thinking="template", real=False, **options)"""

    def build(family: str, thinking: str = "template", real: bool = False, **options: Any) -> PrimeRenderer:
        return make(family, folder(family, real), thinking, **options)

    return build


def encode(renderer: PrimeRenderer, text: str) -> list[int]:
    return list(renderer._parts.encoder.encode(text))


@attrs.define
class Talk:
    """A conversation played as a rollout plays it: tokens grow, and the renderer is only given the tail."""

    renderer: PrimeRenderer
    messages: list[Message]
    tools: tuple[ToolSpec, ...] = ()
    ids: list[int] = attrs.field(factory=list)
    generation: int = 0
    prompt: int = 0
    opened: tuple[str, ...] = ()
    strippable: bool = False
    tail: Tail | None = None

    def start(self) -> Rendered:
        rendered = self.renderer.render(self.messages, self.tools)
        self.ids = rendered.ids.tolist()
        self.generation, self.prompt, self.opened = rendered.spans[-1][1], len(self.ids), rendered.opened
        return rendered

    def say(self, completion: Sequence[int], stopped: bool = True) -> Message:
        parsed = self.renderer.parse(np.array(completion, np.int32), self.tools, opened=self.opened)
        if any(m.reasoning for m in self.messages if m.role == "assistant"):
            self.strippable = True
        before = self.messages[:]
        self.ids += [int(i) for i in completion]
        self.messages.append(parsed.message)
        self.tail = Tail(
            ids=np.array(self.ids[self.generation :], np.int32),
            prompt_length=self.prompt - self.generation,
            stop=int(completion[-1]) if stopped else "length",
            message=parsed.message,
            index=len(before),
            roles=tuple(m.role for m in before[-8:]),
            opened=() if parsed.closed else self.opened,
            tools=self.tools,
            strippable=self.strippable,
        )
        return parsed.message

    def hear(self, *new: Message) -> Any:
        assert self.tail is not None
        delta = self.renderer.bridge(self.tail, new, self.tools)
        if isinstance(delta, Rendered):
            self.generation = len(self.ids) + delta.spans[-1][1]
            self.ids += delta.ids.tolist()
            self.prompt, self.opened = len(self.ids), delta.opened
            self.messages += new
        return delta


@pytest.fixture(scope="session")
def weather() -> ToolSpec:
    return WEATHER


@pytest.fixture(scope="session")
def talk() -> type[Talk]:
    return Talk


@pytest.fixture(scope="session")
def say() -> Any:
    """say(renderer, opened, text): the tokens of a reply with *text*, after whatever block the prompt opened."""

    def written(renderer: PrimeRenderer, opened: tuple[str, ...], text: str) -> list[int]:
        parts, ask = renderer._parts, Message("user", "x")
        shown = renderer.render([ask, Message("assistant", "y"), ask])
        start, stop = shown.spans[1]
        ended = [int(i) for i in shown.ids[start : stop + 1] if int(i) in renderer.stop_ids]
        close = parts.rendering.family.think[1]
        if parts.family == "gpt-oss":
            text = f"hm{close}<|start|>assistant<|channel|>final<|message|>{text}"
        elif parts.family == "glm-4.5":
            text = f"\n<think>hm</think>\n{text}"
        elif parts.family == "inkling":
            text = f"<|content_text|>{text}<|end_message|>"
        elif opened:
            text = f"hm{close}{text}"
        return [*encode(renderer, text), ended[-1] if ended else min(renderer.stop_ids)]

    return written
