"""A renderer that adapts those of tinker-cookbook, by name, and adds what they lack: a bridge, and kinds per token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

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

__all__ = ["TinkerRenderer"]


class TinkerRenderer(Renderer, name="tinker"):
    """Renders with one of tinker-cookbook's renderers, or one that another package registers with it.

    Text from outside (system, user and tool messages, tool declarations) is encoded literally: a control token's text
    in it stays text.
    """

    serves = (
        "Qwen/Qwen3-8B",
        "Qwen/Qwen3-8B-Base",
        "Qwen/Qwen3-30B-A3B",
        "Qwen/Qwen3-30B-A3B-Base",
        "Qwen/Qwen3-32B",
        "Qwen/Qwen3-4B-Instruct-2507",
        "Qwen/Qwen3-30B-A3B-Instruct-2507",
        "Qwen/Qwen3-235B-A22B-Instruct-2507",
        "Qwen/Qwen3-VL-30B-A3B-Instruct",
        "Qwen/Qwen3-VL-235B-A22B-Instruct",
        "Qwen/Qwen3.5-4B",
        "Qwen/Qwen3.5-9B",
        "Qwen/Qwen3.5-9B-Base",
        "Qwen/Qwen3.5-27B",
        "Qwen/Qwen3.5-35B-A3B",
        "Qwen/Qwen3.5-35B-A3B-Base",
        "Qwen/Qwen3.5-397B-A17B",
        "Qwen/Qwen3.6-27B",
        "Qwen/Qwen3.6-35B-A3B",
        "Qwen/Qwen3.8-27B",
        "deepseek-ai/DeepSeek-V3.1",
        "deepseek-ai/DeepSeek-V3.1-Base",
        "deepseek-ai/DeepSeek-V4.1-Flash",
        "deepseek-ai/DeepSeek-V4.1-Flash-1017",
        "zai-org/GLM-5.3",
        "zai-org/GLM-5.3-Flash",
        "moonshotai/Kimi-K2-Thinking",
        "moonshotai/Kimi-K2.5",
        "moonshotai/Kimi-K2.6",
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16",
        "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16",
        "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16",
        "nvidia/NVIDIA-Nemotron-3.5-Super-VL-120B-A12B-BF16",
        "openai/gpt-oss-20b",
        "openai/gpt-oss-120b",
        "meta-llama/Llama-3.1-8B",
        "meta-llama/Llama-3.1-8B-Instruct",
        "meta-llama/Llama-3.1-70B",
        "meta-llama/Llama-3.2-1B",
        "meta-llama/Llama-3.2-3B",
        "meta-llama/Llama-3.3-70B-Instruct",
    )
    thinking_choices = ("template", "keep")

    @attrs.frozen
    class Config(Renderer.Config):
        """``name``: the cookbook's name for the renderer (``qwen3``); absent, the one that it recommends for
        ``model.id``. ``imports``: modules to import first, so that what they register with the cookbook can be named.
        ``args``: options of that renderer, by the names of its attributes (``current_date``). ``train_on``: which replies
        of a demonstration are learned from, in the cookbook's words.
        """

        name: str | None = None
        imports: tuple[str, ...] = ()
        args: Mapping[str, Any] = attrs.field(factory=dict)
        train_on: Literal["all_assistant_messages", "last_assistant_turn", "last_assistant_message"] = (
            "all_assistant_messages"
        )

    def __init__(self, config: Any, model: ModelSpec) -> None:
        super().__init__(config, model)
        from .loading import load

        self._parts = load(config, model)
        self.stop_ids = self._parts.stop_ids
        self.vocab_size = self._parts.vocab_size

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, generation: bool = True
    ) -> Rendered:
        self._some(messages)
        from .loading import REFUSALS

        try:
            return self._parts.rendering.render(messages, tools, generation)
        except REFUSALS as refusal:
            raise self._failed(refusal) from refusal

    def supervised(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Rendered:
        self._some(messages)
        from .loading import REFUSALS

        try:
            return self._parts.rendering.supervised(messages, tools)
        except REFUSALS as refusal:
            raise self._failed(refusal) from refusal

    def bridge(self, tail: Tail, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Rendered | NoBridge:
        from .loading import REFUSALS

        try:
            return self._parts.bridging.bridge(tail, messages, tools)
        except REFUSALS as refusal:
            return NoBridge("no_bridge", str(refusal))

    def parse(self, ids: NDArray[np.int32], tools: Sequence[ToolSpec] = (), *, opened: Sequence[str] = ()) -> Parsed:
        return self._parts.parser.parse([int(i) for i in ids], tools, opened)

    def decode(self, ids: NDArray[np.int32]) -> str:
        return self._parts.encoder.decode([int(i) for i in ids])

    def _some(self, messages: Sequence[Message]) -> None:
        if not messages:
            raise EpisodeFailed(Failure.RENDER_FAILED, f"renderer {self.name!r}: there are no messages")

    def _failed(self, refusal: Exception) -> EpisodeFailed:
        return EpisodeFailed(Failure.RENDER_FAILED, f"renderer {self.name!r}: {refusal}")
