"""What the properties play with: real tokenizers with real templates, and every installed renderer that serves them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import ferrule_test_assets as assets
import numpy as np
import pytest

import ferrule
from ferrule import Message, ModelSpec, Renderer, Sample, SamplingParams
from ferrule.config.schema import RolloutConfig
from ferrule.plugins import default_registry
from ferrule.rollout import Rollout


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "scene" in metafunc.fixturenames:
        metafunc.parametrize("scene", scenes(), indirect=True, ids=" ".join)


@cache
def _lettered(name: str, eos: str) -> Path:
    text = assets.template(name)
    tokens = sorted(set(re.findall(r"<\|[^|<>\s]+\|>|<(?:start|end)_of_turn>|\[gMASK\]|<sop>", text)))
    return assets.byte_tokenizer(tokens, template=name, bos="<bos>" if "bos_token" in text else None, eos=eos)


def _deepseek_v3() -> Path:
    text = assets.template("deepseekv3").replace("'<｜Assistant｜><think>\\n'", "'<｜Assistant｜>'")
    return assets.with_template(assets.deepseek(), text)


MODELS: dict[str, tuple[Callable[[], Path], str | None]] = {
    "qwen3": (assets.qwen3, "Qwen/Qwen3-8B"),
    "qwen3_instruct_2507": (lambda: _lettered("qwen3_instruct_2507", "<|im_end|>"), None),
    "qwen2_5": (assets.qwen25, "Qwen/Qwen2.5-7B-Instruct"),
    "nemotron_3_super": (lambda: _lettered("nemotron_3_super", "<|im_end|>"), None),
    "deepseekv3": (_deepseek_v3, None),
    # Its prompt opens a think block.
    "deepseek_r1": (assets.deepseek, "deepseek-ai/DeepSeek-V3.1"),
    "qwen3_letters": (lambda: _lettered("qwen3", "<|im_end|>"), None),
    "glm4moe": (lambda: _lettered("glm4moe", "<|endoftext|>"), None),
    "gemma3": (lambda: _lettered("gemma3", "<end_of_turn>"), None),
    "lfm2_v2": (lambda: _lettered("lfm2_v2", "<|im_end|>"), None),
}
"""By the template's name: the tokenizer's folder, and a public id where the renderers for that model shall play too.
Large vocabularies are few here, for each takes seconds to load; the others are of single bytes.
"""

OTHERS = {("deepseek_r1", "tml")}
"""Where a renderer knows the model by other token ids than this folder's, and says so when it is made."""


def scenes() -> list[tuple[str, str]]:
    """Each model with each installed renderer that says it serves it."""
    registry = default_registry()
    found = []
    for candidate in registry.candidates("renderer"):
        cls: Any = registry.resolve("renderer", f"{candidate.name}@{candidate.dist.name}")
        for model, (_, public) in MODELS.items():
            patterns = cls.serves
            if (model, candidate.name) in OTHERS:
                continue
            if "*" in patterns or any(public and _matches(p, public) for p in patterns):
                found.append((model, candidate.name))
    return sorted(found)


def _matches(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


@cache
def made(model: str, renderer: str, thinking: str = "template") -> Renderer:
    folder, public = MODELS[model]
    cls: Any = default_registry().resolve("renderer", renderer)
    return cls(cls.Config(thinking=thinking), ModelSpec(tokenizer=str(folder()), id=public))


class _Nothing(ferrule.Task):
    """The model alone is played with; there is no world."""

    id, metadata, score_names = "nothing", {}, ()

    async def start(self, attempt: int, sandbox: Any) -> Any:
        raise AssertionError("no task is played here")


class Chosen(ferrule.Sampler):
    """A model whose samples are chosen: *choose(prompt)* gives the tokens. It keeps what it was shown and what it said.

    Each token's logprob is its number, so that any one that is lost, doubled or moved can be told.
    """

    context_length = 1 << 20

    def __init__(self, stop_ids: frozenset[int]) -> None:
        self.stop_ids = stop_ids
        self.choose: Callable[[np.ndarray], Sequence[int]] = lambda prompt: []
        self.prompts: list[np.ndarray] = []
        self.samples: list[Sample] = []
        self.given = 0

    @asynccontextmanager
    async def open(self, key: str, *, seed: int) -> AsyncIterator[Any]:
        yield _Session(self)


class _Session(ferrule.SamplerSession):
    def __init__(self, model: Chosen) -> None:
        self.model = model

    async def sample(self, prompt: np.ndarray, params: SamplingParams) -> Sample:
        model = self.model
        ids = [int(i) for i in model.choose(prompt)]
        # As an engine does: it stops at the first stop token.
        end = next((n + 1 for n, i in enumerate(ids) if i in model.stop_ids), None)
        ids = ids[:end]
        numbers = -np.arange(model.given, model.given + len(ids), dtype=np.float32)
        model.given += len(ids)
        sample = Sample(np.array(ids, np.int32), numbers, np.full(len(ids), 3, np.int32), "stop" if end else "length")
        model.prompts.append(prompt.copy())
        model.samples.append(sample)
        await asyncio.sleep(0)
        return sample


@attrs.define(eq=False)
class Stage:
    """An agent of the core with a model whose samples are chosen, and what became of both."""

    renderer: Renderer
    agent: Any
    model: Chosen
    kept: list[int] = attrs.field(factory=list)
    """Numbers of the samples that stand: those whose request was not made again."""

    async def say(
        self, messages: list[Message], tools: Sequence[Any], ids: Sequence[int], again: Sequence[int] | None = None
    ) -> Message:
        """The model says *ids*; with *again*, the same request is made once more and answered with that."""
        self.model.choose = lambda prompt: ids
        reply = await self.agent.reply(messages, tools, length_ends=False)
        if again is not None:
            self.model.choose = lambda prompt: again
            reply = await self.agent.reply(messages, tools, length_ends=False)
        self.kept.append(len(self.model.samples) - 1)
        return reply.message

    def completion(self, reply: Message, messages: Sequence[Message], tools: Sequence[Any]) -> list[int] | None:
        """What a model would sample to say *reply*; None where it cannot be written."""
        try:
            whole = self.renderer.render([*messages, reply], tools, generation=False)
        except ferrule.EpisodeFailed:
            return None
        start, stop = whole.spans[-1]
        ids = whole.ids[start:stop][whole.kinds[start:stop] == ferrule.TokenKind.ACTION].tolist()
        return ids if ids and ids[-1] in self.renderer.stop_ids else [*ids, min(self.renderer.stop_ids)]


@asynccontextmanager
async def stage(renderer: Renderer) -> AsyncIterator[Stage]:
    model = Chosen(renderer.stop_ids)
    rollout = Rollout(
        _Nothing(),
        0,
        seed=1,
        limits=RolloutConfig(),
        sampling=SamplingParams(max_tokens=1 << 16),
        roles=("agent",),
        renderer=renderer,
        sampler=model,
        vocab_size=renderer.vocab_size,
        key="property",
    )
    await rollout.open()
    try:
        yield Stage(renderer, rollout.agent(), model)
    finally:
        await rollout.close()


@pytest.fixture
def scene(request: pytest.FixtureRequest) -> Any:
    """A renderer on a model; ``scene.renderer(thinking)`` makes it once per way of thinking."""
    model, name = request.param
    cls: Any = default_registry().resolve("renderer", name)
    kept = name == "chat_template" and model not in ("qwen2_5", "deepseekv3")
    return SimpleNamespace(
        model=model,
        name=name,
        # Each way loads the vocabulary again, so that a large one is played in two ways by one renderer only.
        thinking=[way for way in ("template", "keep") if way == "template" or (way in cls.thinking_choices and kept)],
        renderer=lambda thinking="template": made(model, name, thinking),
    )


@pytest.fixture
def play() -> Any:
    """``play(renderer)``: a context with a :class:`Stage`; ``play.made(model, renderer, thinking)``."""
    return SimpleNamespace(stage=stage, made=made)
