"""A renderer for any Hugging Face tokenizer with a chat template: what the template says, token for token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
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
    existing,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["ChatTemplateRenderer"]


class ChatTemplateRenderer(Renderer, name="chat_template"):
    """Renders with the chat template in the tokenizer's folder, or another given in its place.

    Text from outside (system, user and tool messages, tool declarations) is encoded literally: a control token's text
    in it stays text.
    """

    serves = ("*",)
    thinking_choices = ("template", "keep")

    @attrs.frozen
    class Config(Renderer.Config):
        """``template``: a Jinja file to use in place of the tokenizer's own. ``template_args``: variables that the
        template reads (``enable_thinking = false``).
        """

        template: Path | None = attrs.field(default=None, validator=existing)
        template_args: Mapping[str, Any] = attrs.field(factory=dict)

    def __init__(self, config: Any, model: ModelSpec) -> None:
        super().__init__(config, model)
        from .loading import load

        self._parts = load(config, model)
        self.stop_ids = self._parts.grammar.stop_ids
        self.vocab_size = self._parts.vocab_size

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, generation: bool = True
    ) -> Rendered:
        from .loading import REFUSALS

        if not messages:
            raise EpisodeFailed(Failure.RENDER_FAILED, f"renderer {self.name!r}: there are no messages")
        try:
            return self._parts.rendering.render(messages, tools, generation)
        except REFUSALS as refusal:
            raise EpisodeFailed(Failure.RENDER_FAILED, f"renderer {self.name!r}: {refusal}") from refusal

    def bridge(self, tail: Tail, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Rendered | NoBridge:
        from .loading import REFUSALS

        try:
            return self._parts.bridging.bridge(tail, messages, tools)
        except REFUSALS as refusal:
            return NoBridge("no_bridge", str(refusal))

    def parse(self, ids: NDArray[np.int32], tools: Sequence[ToolSpec] = (), *, opened: Sequence[str] = ()) -> Parsed:
        return self._parts.parser.parse(ids.tolist() if hasattr(ids, "tolist") else list(ids), tools, opened)

    def decode(self, ids: NDArray[np.int32]) -> str:
        return self._parts.encoder.decode([int(i) for i in ids])
