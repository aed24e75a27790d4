"""From the configuration to the parts of a renderer. Imports tml-renderers (and torch with it), so the class need not."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import attrs

from ferrule import Encoder, ModelSpec, Parsed, PluginError, ReplyParser

from .bridging import Bridging
from .conversation import Conversation
from .families import choose
from .formats import READERS
from .reading import Reader
from .rendering import Rendering
from .vocabulary import Vocabulary, check


class Parser(Protocol):
    def parse(self, ids: Any, tools: Any, opened: Any) -> Parsed: ...


@attrs.frozen(eq=False)
class Parts:
    """What a renderer is made of."""

    name: str
    vocabulary: Vocabulary
    rendering: Rendering
    bridging: Bridging
    parser: Parser
    stop_ids: frozenset[int]


def load(config: Any, model: ModelSpec) -> Parts:
    """PluginError where no family fits, the package is missing or refuses its arguments, or the tokenizer's folder
    holds another vocabulary.
    """
    name, family, given = choose(config.family, model.id)
    try:
        from tml_renderers import renderers
    except (ImportError, RuntimeError) as error:
        raise PluginError(f"renderer 'tml' cannot load tml-renderers: {error}; it needs torch 2.10 or newer") from error
    keep = family.keep if config.thinking == "keep" or family.since else {}
    args = {**given, **keep, **config.args}
    try:
        native = getattr(renderers, family.renderer)(**args)
    except Exception as error:
        raise PluginError(
            f"renderer 'tml': {family.renderer} does not take {dict(args)!r}: {error}; see renderer.args"
        ) from error
    vocabulary = Vocabulary(native.tokenizer)
    stop_ids = frozenset(int(i) for i in native.stop())
    if model.tokenizer_path is not None and Path(model.tokenizer_path).is_dir():
        stops = [vocabulary.control[i] for i in sorted(stop_ids) if i in vocabulary.control]
        tags = ("<think>", "</think>", "<tool_call>", "</tool_call>")
        check(vocabulary, model.tokenizer_path, [*family.headers, *stops, *tags], name)
    rendering = Rendering(family, native, vocabulary, Conversation(family, config.thinking))
    return Parts(
        name,
        vocabulary,
        rendering,
        Bridging(rendering, stop_ids, config.thinking),
        _parser(family.style, vocabulary, stop_ids),
        stop_ids,
    )


def _parser(style: str, vocabulary: Vocabulary, stop_ids: frozenset[int]) -> Parser:
    if style in READERS:
        return Reader(vocabulary, stop_ids, READERS[style])
    return ReplyParser(Encoder(vocabulary), stop_ids)
