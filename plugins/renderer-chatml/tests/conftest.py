"""Renderers on real tokenizers, and conversations played on them as a rollout does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import ferrule_test_assets as assets
import numpy as np
import pytest
from ferrule_renderer_chatml import ChatMLRenderer

from ferrule import Message, ModelSpec, Rendered, Tail, ToolSpec


@cache
def folder_of(tokenizer: str, template: str | None = None) -> Path:
    folder = getattr(assets, tokenizer)()
    return assets.with_template(folder, template) if template else folder


@attrs.frozen(eq=False)
class Kit:
    """A renderer, and ways to play with it."""

    renderer: ChatMLRenderer
    folder: Path

    def ids(self, text: str) -> list[int]:
        """*text* as the bare tokenizer reads it, control tokens included."""
        return self.renderer._encoder.encode(text)

    def part(self, rendered: Rendered, kind: int) -> str:
        """The text of all tokens of one kind."""
        return self.renderer.decode(rendered.ids[rendered.kinds == kind])

    def sampled(
        self,
        messages: Sequence[Message],
        completion: str | Sequence[int],
        tools: Sequence[ToolSpec] = (),
        **more: Any,
    ) -> tuple[np.ndarray, np.ndarray, Tail]:
        """(prompt, completion, tail) as if the model had sampled *completion* after *messages*; cut by length where it
        ends in no stop token.
        """
        prompt = self.renderer.render(messages, tools)
        ids = np.array(self.ids(completion) if isinstance(completion, str) else completion, np.int32)
        parsed = self.renderer.parse(ids, tools, opened=prompt.opened)
        end = prompt.spans[-1][1]
        last = int(ids[-1]) if len(ids) else -1
        tail = Tail(
            np.concatenate([prompt.ids[end:], ids]),
            len(prompt.ids) - end,
            last if last in self.renderer.stop_ids else "length",
            parsed.message,
            len(messages),
            tuple(m.role for m in messages)[-8:],
            () if parsed.closed else prompt.opened,
            tuple(tools),
            **more,
        )
        return prompt.ids, ids, tail


@pytest.fixture(scope="session")
def kit() -> Callable[..., Kit]:
    """Make a :class:`Kit`: the tokenizer's name, another template for its folder, options of the renderer."""
    made: dict[Any, Kit] = {}

    def make(tokenizer: str = "qwen3", template: str | None = None, **options: Any) -> Kit:
        key = (tokenizer, template, *sorted(options.items()))
        if key not in made:
            folder = folder_of(tokenizer, template)
            config = ChatMLRenderer.Config(**options)
            made[key] = Kit(ChatMLRenderer(config, ModelSpec(tokenizer=str(folder))), folder)
        return made[key]

    return make
