"""A renderer over Prime Intellect's `renderers` package: about thirty families, each hand-written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from ferrule import (
    EpisodeFailed,
    Failure,
    Message,
    ModelSpec,
    NoBridge,
    Parsed,
    Rendered,
    Renderer,
    Tail,
    ToolSpec,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["PrimeRenderer"]


class PrimeRenderer(Renderer, name="prime"):
    """One of the package's renderers, by ``family`` or by the model's id.

    A bridge gives the package only the last generation prompt and completion, so that its cost does not grow with the
    conversation. Text from outside is encoded literally, and calls are read again from the completion's own text by
    the tools' schemas.
    """

    serves = (
        "Qwen/Qwen3-0.6B",
        "Qwen/Qwen3-1.7B",
        "Qwen/Qwen3-4B",
        "Qwen/Qwen3-4B-Instruct-2507",
        "Qwen/Qwen3-4B-Thinking-2507",
        "Qwen/Qwen3-8B",
        "Qwen/Qwen3-14B",
        "Qwen/Qwen3-32B",
        "Qwen/Qwen3-30B-A3B",
        "Qwen/Qwen3-30B-A3B-Instruct-2507",
        "Qwen/Qwen3-30B-A3B-Thinking-2507",
        "Qwen/Qwen3-235B-A22B",
        "PrimeIntellect/Qwen3-0.6B",
        "PrimeIntellect/Qwen3-1.7B",
        "Qwen/Qwen3.5-0.8B",
        "Qwen/Qwen3.5-2B",
        "Qwen/Qwen3.5-4B",
        "Qwen/Qwen3.5-9B",
        "Qwen/Qwen3.5-35B-A3B",
        "Qwen/Qwen3.5-122B-A10B",
        "Qwen/Qwen3.5-397B-A17B",
        "Qwen/Qwen3.6-35B-A3B",
        "Qwen/Qwen3.8-27B",
        "Qwen/Qwen3.8-Flash-Next",
        "Qwen/Qwen3-VL-4B-Instruct",
        "Qwen/Qwen3-VL-8B-Instruct",
        "Qwen/Qwen3-VL-30B-A3B-Instruct",
        "google/gemma-4-E2B-it",
        "google/gemma-4-E4B-it",
        "google/gemma-4-26B-A4B-it",
        "google/gemma-4-31B-it",
        "zai-org/GLM-5",
        "zai-org/GLM-5-FP8",
        "zai-org/GLM-4.7-Flash",
        "zai-org/GLM-5.1",
        "zai-org/GLM-5.3",
        "zai-org/GLM-5.3-BF16",
        "THUDM/GLM-4.5-Air",
        "zai-org/GLM-4.5-Air",
        "MiniMaxAI/MiniMax-M2",
        "MiniMaxAI/MiniMax-M2.5",
        "deepseek-ai/DeepSeek-V3",
        "deepseek-ai/DeepSeek-V3-Base",
        "deepseek-ai/DeepSeek-R1",
        "deepseek-ai/DeepSeek-R1-0528",
        "deepseek-ai/DeepSeek-V4-Flash-0731",
        "moonshotai/Kimi-K2-Instruct",
        "moonshotai/Kimi-K2.5",
        "moonshotai/Kimi-K2.6",
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16",
        "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16",
        "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-FP8",
        "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16",
        "nvidia/NVIDIA-Nemotron-3.5-Super-EA-09112026",
        "meta-llama/Llama-3.2-1B-Instruct",
        "meta-llama/Llama-3.2-3B-Instruct",
        "poolside/Laguna-XS.2",
        "poolside/Laguna-M.1",
        "poolside/Laguna-XS-2.1",
        "poolside/Laguna-S-2.1",
        "openai/gpt-oss-20b",
        "openai/gpt-oss-120b",
        "thinkingmachines/Inkling",
        "thinkingmachines/Inkling-Small",
        "tencent/Hy3",
        "tencent/Hy3-FP8",
    )
    thinking_choices = ("template", "keep")

    @attrs.frozen
    class Config(Renderer.Config):
        """``family``: one of the package's renderers (``qwen3``, ``glm-5``); by ``model.id`` where absent.
        ``options``: that family's own, as the package's typed configuration has them (``enable_thinking = false``).
        """

        family: str | None = None
        options: Mapping[str, Any] = attrs.field(factory=dict)

    def __init__(self, config: Any, model: ModelSpec) -> None:
        super().__init__(config, model)
        from .loading import load

        self._parts = load(config, model)
        self.family = self._parts.family
        self.stop_ids = self._parts.rendering.stop_ids
        self.vocab_size = self._parts.vocab_size
        # 'default' never extends; nor does a family whose template strips all earlier thinking at each turn.
        self.extends = self._parts.extends  # type: ignore[misc]

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, generation: bool = True
    ) -> Rendered:
        return self._written(messages, lambda: self._parts.rendering.render(messages, tools, generation))

    def supervised(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Rendered:
        return self._written(messages, lambda: self._parts.rendering.supervised(messages, tools))

    def _written(self, messages: Sequence[Message], write: Callable[[], Rendered]) -> Rendered:
        from .rendering import Refused

        if not messages:
            raise EpisodeFailed(Failure.RENDER_FAILED, f"renderer {self.name!r}: there are no messages")
        try:
            return write()
        except Refused as refusal:
            raise EpisodeFailed(Failure.RENDER_FAILED, f"renderer {self.name!r}: {refusal}") from refusal

    def bridge(self, tail: Tail, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Rendered | NoBridge:
        return self._parts.rendering.bridge(tail, messages, tools)

    def parse(self, ids: NDArray[np.int32], tools: Sequence[ToolSpec] = (), *, opened: Sequence[str] = ()) -> Parsed:
        return self._parts.parser.parse([int(i) for i in ids], tools, opened)

    def decode(self, ids: NDArray[np.int32]) -> str:
        return self._parts.encoder.decode([int(i) for i in ids])
