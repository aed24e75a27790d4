"""The ChatML family's renderer, written by hand: what the families' templates say, and bridges that cost their text."""

from __future__ import annotations

from collections.abc import Sequence
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

__all__ = ["ChatMLRenderer"]


class ChatMLRenderer(Renderer, name="chatml"):
    """Renders for Qwen2.5, Qwen3, Qwen3.5 and SmolLM2 without a template engine, from tokenizer.json alone.

    Text from outside is encoded literally: a control token's text in it stays text.
    """

    serves = (
        *(f"Qwen/Qwen2.5-{size}-Instruct*" for size in ("0.5B", "1.5B", "3B", "7B", "14B", "32B", "72B")),
        *(f"Qwen/Qwen3-{size}*" for size in ("0.6B", "1.7B", "8B", "14B", "32B")),
        *(f"Qwen/Qwen3-{size}" for size in ("4B", "4B-Base", "30B-A3B", "30B-A3B-Base", "235B-A22B")),
        *(f"Qwen/Qwen3-{size}-Instruct-2507*" for size in ("4B", "30B-A3B", "235B-A22B")),
        *(f"Qwen/Qwen3.5-{size}" for size in ("0.8B", "2B", "4B", "9B", "35B-A3B", "122B-A10B", "397B-A17B")),
        *(f"HuggingFaceTB/SmolLM2-{size}-Instruct" for size in ("135M", "360M", "1.7B")),
    )
    thinking_choices = ("template", "keep", "strip")

    @attrs.frozen
    class Config(Renderer.Config):
        """``family``: whose format it is; ``auto`` tells by the model's public id, else by the chat template or the
        vocabulary in the tokenizer's folder. ``enable_thinking``: whether the generation prompt leaves room for
        thinking, as the template's variable of that name; by default the template's default. ``tool_format`` and
        ``system`` (the prompt of a conversation that brings none): the family's, unless given.
        """

        family: Literal["auto", "qwen2.5", "qwen3", "qwen3-instruct", "qwen3.5", "smollm2"] = "auto"
        enable_thinking: bool | None = None
        tool_format: Literal["hermes", "xml"] | None = None
        system: str | None = None

    def __init__(self, config: Any, model: ModelSpec) -> None:
        super().__init__(config, model)
        from .loading import REFUSALS, load

        self._refusals = REFUSALS
        self.family, self._encoder, self._rendering, self._parser = load(config, model)
        self.stop_ids = self._parser.stop_ids
        self.vocab_size = self._encoder.size

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, generation: bool = True
    ) -> Rendered:
        if not messages:
            raise EpisodeFailed(Failure.RENDER_FAILED, f"renderer {self.name!r}: there are no messages")
        try:
            return self._rendering.render(messages, tools, generation)
        except self._refusals as refusal:
            raise EpisodeFailed(Failure.RENDER_FAILED, f"renderer {self.name!r}: {refusal}") from refusal
        except (TypeError, ValueError, RecursionError) as error:
            what = f"arguments or a tool's schema cannot be written as JSON: {error}"
            raise EpisodeFailed(Failure.RENDER_FAILED, f"renderer {self.name!r}: {what}") from error

    def bridge(self, tail: Tail, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Rendered | NoBridge:
        try:
            return self._rendering.bridge(tail, messages, tools)
        except self._refusals as refusal:
            return NoBridge("no_bridge", str(refusal))

    def parse(self, ids: NDArray[np.int32], tools: Sequence[ToolSpec] = (), *, opened: Sequence[str] = ()) -> Parsed:
        return self._parser.parse(ids.tolist() if hasattr(ids, "tolist") else list(ids), tools, opened)

    def decode(self, ids: NDArray[np.int32]) -> str:
        return self._encoder.decode([int(i) for i in ids])
