"""A small honest renderer, and ways in which renderers were wrong. Tests name them by this file."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import attrs
import numpy as np

from ferrule import (
    Encoder,
    EpisodeFailed,
    Failure,
    NoBridge,
    Rendered,
    Renderer,
    ReplyParser,
    TokenKind,
    answer_order,
    delta_order,
    refused_delta,
)

ACTION, OBSERVATION, SCAFFOLD = TokenKind.ACTION, TokenKind.OBSERVATION, TokenKind.SCAFFOLD
END = "<|im_end|>"


class Small(Renderer, name="small"):
    """ChatML over a tokenizer of bytes: part by part, for nothing merges."""

    serves = ("tests/small",)
    thinking_choices = ("template", "keep")
    literal = True

    def __init__(self, config, model):
        super().__init__(config, model)
        from tokenizers import Tokenizer

        self.encoder = Encoder(Tokenizer.from_file(str(Path(model.tokenizer_path) / "tokenizer.json")))
        self.stop_ids = frozenset({self.encoder.ids_of[END]})
        self.vocab_size = self.encoder.size
        self.parser = ReplyParser(self.encoder, self.stop_ids)

    def written(self, message):
        """(text, kind, whether it comes from outside) of each part."""
        head = (f"<|im_start|>{message.role}\n", SCAFFOLD, False)
        if message.role != "assistant":
            return [head, (message.content, OBSERVATION, True), (f"{END}\n", SCAFFOLD, False)]
        body = f"<think>\n{message.reasoning}\n</think>\n\n" if message.reasoning else ""
        calls = [
            json.dumps({"name": c.name, "arguments": dict(c.arguments)}, ensure_ascii=False) for c in message.tool_calls
        ]
        calls = [
            c.raw if c.error else f"<tool_call>\n{text}\n</tool_call>"
            for c, text in zip(message.tool_calls, calls, strict=True)
        ]
        body += "\n".join([message.content] * bool(message.content) + calls)
        return [head, (body, ACTION, False), (END, ACTION, False), ("\n", SCAFFOLD, False)]

    def pack(self, parts, spans, opened=()):
        ids, kinds, ends = [], [], [0]
        for text, kind, outside in parts:
            text = text.encode("utf-8", "replace").decode()
            guards = [(0, len(text), frozenset())] if outside and self.literal else []
            new = self.encoder.tokenize(text, (), guards).ids
            ids += new
            kinds += [kind] * len(new)
            ends.append(len(ids))
        found = tuple((ends[a], ends[b]) for a, b in spans)
        return Rendered(np.array(ids, np.int32), np.array(kinds, np.uint8), found, opened)

    def put(self, parts, messages, order, generation):
        spans = [(0, 0)] * len(messages)
        for i in order:
            start = len(parts)
            parts += self.written(messages[i])
            spans[i] = (start, len(parts))
        if generation:
            parts.append(("<|im_start|>assistant\n", SCAFFOLD, False))
        return self.pack(parts, spans)

    def render(self, messages, tools=(), *, generation=True):
        if not messages:
            raise EpisodeFailed(Failure.RENDER_FAILED, "renderer 'small': no messages")
        parts = []
        if tools:
            offered = "\n".join(json.dumps(t.to_openai()) for t in tools)
            parts = [
                ("<|im_start|>system\nTools:\n", SCAFFOLD, False),
                (offered, SCAFFOLD, True),
                (f"{END}\n", SCAFFOLD, False),
            ]
        return self.put(parts, list(messages), answer_order(messages), generation)

    def closing(self, tail):
        """What a cut reply lacks, up to its end."""
        if tail.stop != "length":
            return []
        tags = [self.encoder.control[i] for i in tail.ids[tail.prompt_length :].tolist() if i in self.encoder.markup]
        last = tags[-1] if tags else ""
        block = {"<think>": "\n</think>\n\n", "<tool_call>": "\n</tool_call>"}.get(last, "")
        return [(block + END, SCAFFOLD, False)]

    def bridge(self, tail, messages, tools=()):
        refusal = refused_delta(tail, messages, tools)
        if refusal is not None:
            return refusal
        order = delta_order(tail, messages)
        return self.put([*self.closing(tail), ("\n", SCAFFOLD, False)], list(messages), order, True)

    def parse(self, ids, tools=(), *, opened=()):
        return self.parser.parse(np.asarray(ids).tolist(), tools, opened)

    def decode(self, ids):
        return self.encoder.decode(np.asarray(ids).tolist())


class Refusing(Small, name="refusing"):
    """Cannot write tools, and extends nothing: honest, and less able."""

    extends = False
    special_text = "control"
    thinking_choices = ("template",)
    literal = False

    def render(self, messages, tools=(), *, generation=True):
        if tools or any(m.tool_calls for m in messages):
            raise EpisodeFailed(Failure.RENDER_FAILED, "renderer 'refusing': it writes no tools")
        return super().render(messages, (), generation=generation)

    def bridge(self, tail, messages, tools=()):
        return NoBridge("no_bridge", "never")


class DropsAMessage(Small, name="drops"):
    def written(self, message):
        return [] if message.role == "tool" else super().written(message)


class OffByOne(Small, name="off_by_one"):
    def pack(self, parts, spans, opened=()):
        done = super().pack(parts, spans, opened)
        return attrs.evolve(done, kinds=np.roll(done.kinds, 1))


class WideIds(Small, name="wide"):
    def pack(self, parts, spans, opened=()):
        done = super().pack(parts, spans, opened)
        return attrs.evolve(done, ids=done.ids.astype(np.int64))


class NoStopInAction(Small, name="no_stop"):
    def written(self, message):
        return [(t, SCAFFOLD if t == END else k, o) for t, k, o in super().written(message)]


class OtherPrompt(Small, name="other_prompt"):
    """The generation prompt is not what replies in the history begin with."""

    def render(self, messages, tools=(), *, generation=True):
        done = super().render(messages, tools, generation=generation)
        return attrs.evolve(done, ids=done.ids[:-1], kinds=done.kinds[:-1]) if generation else done


class ControlText(Small, name="control_text"):
    literal = False


class BySpokenOrder(Small, name="by_order"):
    def bridge(self, tail, messages, tools=()):
        bare = attrs.evolve(tail, message=attrs.evolve(tail.message, tool_calls=()))
        return super().bridge(bare, messages, tools)


class RendersAgain(Small, name="renders_again"):
    def bridge(self, tail, messages, tools=()):
        found = super().bridge(tail, messages, tools)
        if isinstance(found, NoBridge):
            return found
        whole = self.render([tail.message, *messages], tools)
        return attrs.evolve(whole, spans=whole.spans[1:])


class NoNewline(Small, name="no_newline"):
    def put(self, parts, messages, order, generation):
        return super().put([p for p in parts if p[0] != "\n"], messages, order, generation)


class LeavesOpen(Small, name="leaves_open"):
    def closing(self, tail):
        return [(END, SCAFFOLD, False)] if tail.stop == "length" else []


class NeverCloses(Small, name="never_closes"):
    def closing(self, tail):
        return []


class RaisesOnSystem(Small, name="raises"):
    def bridge(self, tail, messages, tools=()):
        if any(m.role == "system" for m in messages):
            raise ValueError("System message must be at the beginning.")
        return super().bridge(tail, messages, tools)


class SkipsSystem(Small, name="skips_system"):
    def written(self, message):
        return [] if message.role == "system" else super().written(message)


class Remembers(Small, name="remembers"):
    """Keeps a delta by its shape, contents and all."""

    def bridge(self, tail, messages, tools=()):
        kept = self.__dict__.setdefault("kept", {})
        found = super().bridge(tail, messages, tools)
        return kept.setdefault(tuple(m.role for m in messages), found) if isinstance(found, Rendered) else found


class AcceptsOtherTools(Small, name="other_tools"):
    def bridge(self, tail, messages, tools=()):
        return super().bridge(tail, messages, tail.tools)


class Retypes(Small, name="retypes"):
    """Reads every string again, as JSON: what was text becomes a number."""

    def parse(self, ids, tools=(), *, opened=()):
        def again(value):
            try:
                return json.loads(value)
            except (TypeError, ValueError):
                return value

        done = super().parse(ids, tools, opened=opened)
        calls = [
            attrs.evolve(c, arguments={k: again(v) for k, v in c.arguments.items()}) for c in done.message.tool_calls
        ]
        return attrs.evolve(done, message=attrs.evolve(done.message, tool_calls=calls))


class Unsteady(Small, name="unsteady"):
    numbers = itertools.count()

    def parse(self, ids, tools=(), *, opened=()):
        done = super().parse(ids, tools, opened=opened)
        calls = [attrs.evolve(c, id=f"call_{next(self.numbers)}") for c in done.message.tool_calls]
        return attrs.evolve(done, message=attrs.evolve(done.message, tool_calls=calls))


class HidesMalformed(Small, name="hides"):
    def parse(self, ids, tools=(), *, opened=()):
        done = super().parse(ids, tools, opened=opened)
        calls = [c for c in done.message.tool_calls if c.error is None]
        return attrs.evolve(done, message=attrs.evolve(done.message, tool_calls=calls))


class ParseRaises(Small, name="parse_raises"):
    def parse(self, ids, tools=(), *, opened=()):
        text = b"".join(bytes([i]) for i in np.asarray(ids).tolist() if i < 256).decode()
        assert isinstance(text, str)
        return super().parse(ids, tools, opened=opened)


class AnyThinking(Small, name="any_thinking"):
    thinking_choices = ("template",)

    def __init__(self, config, model):
        super().__init__(attrs.evolve(config, thinking="template"), model)
