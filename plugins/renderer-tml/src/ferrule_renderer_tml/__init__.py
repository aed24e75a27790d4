"""A renderer over tml-renderers, whose renderers and vocabularies are written in Rust: no tokenizer folder is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

from .families import MODELS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["TmlRenderer"]


class TmlRenderer(Renderer, name="tml"):
    """Renders with the renderer that tml-renderers has for the model's family.

    Text from outside is encoded literally: a control token's text in it stays text.
    """

    serves = tuple(MODELS)
    thinking_choices = ("template", "keep", "strip")

    @attrs.frozen
    class Config(Renderer.Config):
        """``family``: which renderer of the package (``qwen3``, ``glm_5_2``, …); absent: the one for ``model.id``.
        ``args``: what its class is given (``reasoning_effort = "high"``).
        """

        family: str | None = None
        args: Mapping[str, Any] = attrs.field(factory=dict)

    def __init__(self, config: Any, model: ModelSpec) -> None:
        super().__init__(config, model)
        from .loading import load

        self._parts = load(config, model)
        self.stop_ids = self._parts.stop_ids
        self.vocab_size = self._parts.vocabulary.size

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, generation: bool = True
    ) -> Rendered:
        return self._whole("render", messages, tools, generation)

    def supervised(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Rendered:
        return self._whole("supervised", messages, tools)

    def _whole(self, what: str, messages: Sequence[Message], *args: Any) -> Rendered:
        from .conversation import Refused

        if not messages:
            raise EpisodeFailed(Failure.RENDER_FAILED, f"renderer {self.name!r}: there are no messages")
        try:
            return getattr(self._parts.rendering, what)(messages, *args)  # type: ignore[no-any-return]
        except Refused as refusal:
            raise EpisodeFailed(
                Failure.RENDER_FAILED, f"renderer {self.name!r} (family {self._parts.name!r}): {refusal}"
            ) from refusal

    def bridge(self, tail: Tail, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Rendered | NoBridge:
        return self._parts.bridging.bridge(tail, messages, tools)

    def parse(self, ids: NDArray[np.int32], tools: Sequence[ToolSpec] = (), *, opened: Sequence[str] = ()) -> Parsed:
        return self._parts.parser.parse([int(i) for i in ids], tools, opened)

    def decode(self, ids: NDArray[np.int32]) -> str:
        return self._parts.vocabulary.text(int(i) for i in ids)
