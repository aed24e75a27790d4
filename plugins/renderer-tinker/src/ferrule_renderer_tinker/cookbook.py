"""The cookbook's renderer, held at arm's length: messages in its own form, prompts and examples as marked tokens."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ferrule import Encoder, Message, ToolCall, ToolSpec, Unencodable, clean_text

from .marking import (
    ARGUMENT,
    CONTENT,
    HEADER,
    KINDS,
    OUTPUT,
    OVERLAP,
    PLANES,
    REASONING,
    SPOKEN,
    Laid,
    MarkedTokenizer,
    Marks,
    owned,
)

NUMBER = "ferrule_message"
"""The key under which a cookbook message carries the number of ours that it came from; renderers copy it along."""


class Refused(Exception):
    """The cookbook's renderer cannot write these messages, or would lose a part of them; the text says which."""


class Cookbook:
    """One renderer of the cookbook, its tokenizer, and what of its code is needed.

    ``trims`` are the roles whose contents it trims: blanks around them are its own then. ``named_ids`` is whether a call's
    id is all that names its function (``functions.name:0``): other ids are written so then. ``fills`` is whether it
    leaves the end off a reply without text, which is then given a text that vanishes.
    """

    def __init__(self, name: str, renderer: Any, tokenizer: MarkedTokenizer, encoder: Encoder, call: Any) -> None:
        self.name, self.renderer, self.tokenizer, self.encoder = name, renderer, tokenizer, encoder
        self._call, self._body = call, call.FunctionBody
        self.trims: frozenset[str] = frozenset(("system", "user", "tool", "assistant"))
        self.named_ids = self.fills = False
        self._own = True
        self._inner: Callable[[Any, Any], Any] = renderer.render_message
        renderer.render_message = self._render_message

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, arguments: bool = False) -> Laid:
        """*messages* and the generation prompt after them. With *arguments*, those of calls are slots too."""
        wires = self._wires(messages, tools, arguments)
        return Laid(self._guarded(lambda: self.renderer.build_generation_prompt(wires).to_ints()))

    def example(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), train_on: str = "") -> Laid:
        """*messages* as a demonstration; with *train_on* (a ``TrainOnWhat``), ``weights`` has its weight per token."""
        wires = self._wires(messages, tools, False)
        laid = Laid(self._guarded(lambda: self._built(wires, "all_tokens")[0]))
        if train_on:
            # Once more with bare ids, which the renderer compares with those of a generation prompt.
            self._own = False
            try:
                _, laid.weights = self._guarded(lambda: self._built(wires, train_on))
            finally:
                self._own = True
        return laid

    def _built(self, wires: list[dict[str, Any]], train_on: str) -> tuple[list[int], list[float]]:
        model_input, weights = self.renderer.build_supervised_example(wires, train_on_what=train_on)
        return model_input.to_ints(), weights.tolist()

    def _guarded(self, build: Callable[[], Any]) -> Any:
        try:
            return build()
        except (Refused, Unencodable):
            raise
        except Exception as error:  # whatever a renderer raises, it refused
            text = str(error) or "it gives no reason"
            raise Refused(f"{self.name!r} raised {type(error).__name__}: {text}") from error

    def _render_message(self, message: Any, context: Any) -> Any:
        """In place of the renderer's own method: its parts say whose they are."""
        rendered = self._inner(message, context)
        number = message.get(NUMBER)
        if number is None or not self._own:
            return rendered

        def part(chunk: Any, which: int) -> Any:
            if not hasattr(chunk, "tokens"):
                return chunk
            return chunk.model_copy(update={"tokens": owned(chunk.tokens, number, which)})

        return dataclasses.replace(
            rendered,
            header=part(rendered.header, HEADER),
            output=[part(chunk, OUTPUT) for chunk in rendered.output],
            stop_overlap=part(rendered.stop_overlap, OVERLAP),
        )

    # -- messages in the cookbook's form -------------------------------------------------------------------------------

    def _wires(self, messages: Sequence[Message], tools: Sequence[ToolSpec], arguments: bool) -> list[dict[str, Any]]:
        for i, message in enumerate(messages):
            if not isinstance(message.content, str):
                raise Refused(f"message {i} ({message.role}) is not text: images and other parts cannot be written")
        marks = self._free_marks(messages, tools)
        self.tokenizer.marks = marks
        calls = {c.id: (c.name, self._id(c, n)) for m in messages for n, c in enumerate(m.tool_calls)}
        wires = [self._wire(i, m, calls, marks, arguments) for i, m in enumerate(messages)]
        return self._declared(wires, tools, marks) if tools else wires

    def _free_marks(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Marks:
        if len(messages) * KINDS > PLANES[0].slots:
            raise Refused(
                f"{len(messages)} messages are more than the {PLANES[0].slots // KINDS} that can be told apart"
            )
        texts = [t for m in messages for t in (m.content, m.reasoning or "", m.name or "", m.tool_call_id or "")]
        texts += [json.dumps(dict(c.arguments), ensure_ascii=False) for m in messages for c in m.tool_calls]
        texts += [json.dumps(t.to_openai(), ensure_ascii=False, default=str) for t in tools]
        everything = "\n".join(texts)
        marks = next((m for m in PLANES if not m.any.search(everything)), None)
        if marks is None:
            raise Refused("the messages use both private-use planes of Unicode, which are needed to find contents")
        return marks

    def _wire(
        self, i: int, message: Message, known: Mapping[str, tuple[str, str]], marks: Marks, arguments: bool
    ) -> dict[str, Any]:
        literal = self.encoder.literal
        content = clean_text(message.content)
        out: dict[str, Any] = {"role": message.role, NUMBER: i}
        if message.role != "assistant":
            out["content"] = marks.around(content, i * KINDS + CONTENT, message.role in self.trims)
            name, call_id = known.get(message.tool_call_id or "", (None, message.tool_call_id))
            if call_id is not None:
                out["tool_call_id"] = literal(clean_text(call_id), marks.cut)
            name = message.name or name
            if name:
                out["name"] = literal(clean_text(name), marks.cut)
            return out
        raws = [clean_text(c.raw) for c in message.tool_calls if c.error is not None and c.raw]
        if raws:
            content = "\n".join([content, *raws] if content else raws)
        text = marks.around(content, i * KINDS + SPOKEN, True) or (marks.cut if self.fills else "")
        # As parts: text that looks like a think block is text then.
        parts = [{"type": "text", "text": text}]
        if message.reasoning:
            reasoning = marks.around(clean_text(message.reasoning), i * KINDS + REASONING, True)
            parts.insert(0, {"type": "thinking", "thinking": reasoning})
        out["content"] = parts
        calls = [c for c in message.tool_calls if c.error is None or not c.raw]
        if calls:
            slot = i * KINDS + ARGUMENT if arguments else None
            out["tool_calls"] = [self._wire_call(c, known[c.id][1], marks, slot) for c in calls]
        return out

    def _id(self, call: ToolCall, number: int) -> str:
        """The id under which *call*, the message's call of that number, is written."""
        return f"functions.{call.name}:{number}" if self.named_ids and call.name not in call.id else call.id

    def _wire_call(self, call: ToolCall, call_id: str, marks: Marks, slot: int | None) -> Any:
        values = json.loads(clean_text(json.dumps(dict(call.arguments), ensure_ascii=False)))
        values = self.encoder.literal(values, marks.cut)
        if slot is not None:
            values = {k: marks.around(v, slot, True) if isinstance(v, str) else v for k, v in values.items()}
        name = self.encoder.literal(clean_text(call.name), marks.cut)
        body = self._body(name=name, arguments=json.dumps(values, ensure_ascii=False))
        return self._call(function=body, id=self.encoder.literal(clean_text(call_id), marks.cut))

    def _declared(self, wires: list[dict[str, Any]], tools: Sequence[ToolSpec], marks: Marks) -> list[dict[str, Any]]:
        """*wires* with the tools declared at their head, where a system message stands already in its place."""
        specs = [self.encoder.literal(t.to_openai()["function"], marks.cut) for t in tools]
        system = wires[0] if wires and wires[0]["role"] == "system" else None
        try:
            prefix = self.renderer.create_conversation_prefix_with_tools(specs, system["content"] if system else "")
        except NotImplementedError as error:
            raise Refused(f"{self.name!r} has no way to declare tools to the model") from error
        if system is None:
            return [*prefix, *wires]
        return [*({**message, NUMBER: 0} for message in prefix), *wires[1:]]
