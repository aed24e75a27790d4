"""The formats that are the families' own: GLM, Kimi, DeepSeek's DSML and Harmony."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import attrs

from ferrule import ParseProblem, ToolCall, ToolSpec, Unreadable, clean_text, read_call, typed_arguments

from .reading import THINK_END, Draft, Piece, between, function_name, thought

_DSML_BLOCK = re.compile(r"<｜DSML｜ ?(?:tool_calls|calls)>")
_DSML_END = re.compile(r"</｜DSML｜ ?(?:tool_calls|calls)>")
_DSML_INVOKE = re.compile(r'<｜DSML｜ ?invoke name="([^"]*)">')
_DSML_INVOKED = re.compile(r"</｜DSML｜ ?invoke>")
_DSML_PARAMETER = re.compile(r'\s*<｜DSML｜ ?parameter name="([^"]*)" string="(true|false)">')
_DSML_CLOSES = re.compile(r"</｜DSML｜ ?parameter>(?=\s*(?:<｜DSML｜ ?parameter name=|</｜DSML｜ ?invoke>|\Z))")


# -- GLM: <tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call> -----------------------------------------


def _glm(inside: list[Piece], draft: Draft, raw: str) -> tuple[ToolCall, str | None]:
    call_id = draft.ids.next()
    name = ""
    arguments: dict[str, str] = {}
    state, key, text = "name", "", ""
    try:
        for piece in inside:
            if piece.tag == "<arg_key>" and state in ("name", "next"):
                if state == "name":
                    name = text.strip()
                state, text = "key", ""
            elif piece.tag == "</arg_key>" and state == "key":
                key, state, text = text.strip(), "value?", ""
                if not key or key in arguments:
                    raise Unreadable(f"argument {key!r} is given twice" if key else "an argument has no name")
            elif piece.tag == "<arg_value>" and state == "value?" and not text.strip():
                state, text = "value", ""
            elif piece.tag == "</arg_value>" and state == "value":
                arguments[key], state, text = text, "next", ""
            elif piece.tag in ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>") and state != "value":
                raise Unreadable(f"{piece.tag} stands where {_WANTED[state]} should")
            else:
                text += piece.text
                if state == "next" and text.strip():
                    raise Unreadable(f"{text.strip()[:40]!r} stands where <arg_key> should")
        if state == "name":
            name = text.strip()
        elif state != "next":
            raise Unreadable(f"the call ends where {_WANTED[state]} should stand")
        if not name:
            raise Unreadable("the call names no function")
        return _written(name, arguments, draft.tools, call_id, raw)
    except (ValueError, RecursionError) as error:
        return ToolCall(call_id, clean_text(name), {}, str(error), clean_text(raw)), str(error)


_WANTED = {
    "name": "<arg_key>",
    "next": "<arg_key>",
    "key": "</arg_key>",
    "value?": "<arg_value>",
    "value": "</arg_value>",
}


def _written(
    name: str, arguments: dict[str, str], tools: Sequence[ToolSpec], call_id: str, raw: str
) -> tuple[ToolCall, str | None]:
    """A call whose arguments are bare texts, typed by the tool's schema."""
    arguments = {clean_text(k): clean_text(v) for k, v in arguments.items()}
    plain = not re.search(r"[>\n]", name) and not any(re.search(r"[>\n]", k) for k in arguments)
    if plain and not any("</parameter>" in v or "</function>" in v for v in arguments.values()):
        body = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in arguments.items())
        return read_call(f"<function={name}>\n{body}</function>", tools, call_id, raw)
    return ToolCall(call_id, name, typed_arguments(name, arguments, tools)), None


# -- Kimi: <|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{...}<|tool_call_end|> --------------------------


def _kimi(inside: list[Piece], draft: Draft, raw: str) -> tuple[ToolCall, str | None]:
    at = next((k for k, p in enumerate(inside) if p.tag == "<|tool_call_argument_begin|>"), None)
    head = "".join(p.text for p in inside[:at]).strip()
    if at is None or not function_name(head):
        why = "the call has no <|tool_call_argument_begin|>" if at is None else "the call names no function"
        return ToolCall(draft.ids.next(), clean_text(function_name(head)), {}, why, clean_text(raw)), why
    named = re.fullmatch(r"functions\.[^\s:]+:\d+", head)
    # Its own id is all by which such a model's answer names the call.
    call_id = head if named else draft.ids.next()
    return _json(function_name(head), "".join(p.text for p in inside[at + 1 :]), draft.tools, call_id, raw)


def _json(name: str, body: str, tools: Sequence[ToolSpec], call_id: str, raw: str) -> tuple[ToolCall, str | None]:
    written = f'{{"name": {json.dumps(name)}, "arguments": {body.strip() or "{}"}}}'
    call, problem = read_call(written, tools, call_id, raw)
    return (attrs.evolve(call, name=clean_text(name)) if problem else call), problem


# -- DSML: <｜DSML｜tool_calls> with <｜DSML｜invoke name="f"> in it ---------------------------------------------------------


def _dsml(draft: Draft, pieces: list[Piece], length: int, stopped: bool) -> None:
    rest: list[Piece] = []
    for piece in pieces:
        if not thought(draft, piece):
            draft.texts[-1] += piece.text
            rest.append(piece)
        elif piece.tag == THINK_END:
            rest = []
    draft.texts = [""]
    text = "".join(p.text for p in rest)
    ends = list(accumulate(len(p.text) for p in rest))

    def token(place: int, last: bool) -> int:
        """The token at a place of *text*: exact where a control token stands there, else that of its piece's edge."""
        for piece, end in zip(rest, ends, strict=True):
            if place < end or (last and place == end):
                return piece.stop if last else piece.start
        return length

    block = _DSML_BLOCK.search(text)
    if block is None:
        draft.texts[-1] += text
        return
    draft.texts[-1] += text[: block.start()]
    end = _DSML_END.search(text, block.end())
    inner_end = end.start() if end else len(text)
    at = block.end()
    while True:
        head = _DSML_INVOKE.search(text, at, inner_end)
        stray = text[at : head.start() if head else inner_end].strip()
        if stray:
            draft.broken(
                "", f"{stray[:40]!r} stands where a call should", token(at, False), token(inner_end, True), stray
            )
        if head is None:
            break
        close = _DSML_INVOKED.search(text, head.end(), inner_end)
        stop = close.end() if close else inner_end
        raw = text[head.start() : stop]
        if close is None:
            why = "the call never closes with </｜DSML｜invoke>"
            draft.broken(head[1], why, token(head.start(), False), token(stop, True), raw)
            break
        made = _invoke(head[1], text[head.end() : close.start()], draft, raw)
        draft.call(made, token(head.start(), False), token(stop, True), raw)
        at = stop
    if end is None:
        draft.open = True
        why = "the block of calls never closes"
        draft.problems.append(ParseProblem((token(block.start(), False), length), text[block.start() :], why))
    else:
        draft.texts.append(text[end.end() :])


def _invoke(name: str, body: str, draft: Draft, raw: str) -> tuple[ToolCall, str | None]:
    call_id = draft.ids.next()
    arguments: dict[str, Any] = {}
    raws: dict[str, str] = {}
    at = 0
    try:
        if not name.strip():
            raise Unreadable("the call names no function")
        while body[at:].strip():
            head = _DSML_PARAMETER.match(body, at)
            if head is None:
                raise Unreadable(f"expected a parameter, found {body[at:].strip()[:40]!r}")
            key, end = head[1], _DSML_CLOSES.search(body, head.end())
            if key in arguments:
                raise Unreadable(f"parameter {key!r} is given twice")
            if end is None:
                raise Unreadable(f"parameter {key!r} does not end with its closing tag")
            raws[key] = clean_text(body[head.end() : end.start()])
            arguments[key] = raws[key] if head[2] == "true" else json.loads(raws[key], parse_constant=_constant)
            at = end.end()
        return ToolCall(call_id, name, typed_arguments(name, arguments, draft.tools, lambda: raws)), None
    except (ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, Unreadable) else f"an argument is not valid JSON: {error}"
        return ToolCall(call_id, clean_text(name), {}, why, clean_text(raw)), why


def _constant(word: str) -> Any:
    raise Unreadable(f"{word} is not valid JSON")


# -- Harmony: <|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|> ---------------------------


def _harmony(draft: Draft, pieces: list[Piece], length: int, stopped: bool) -> None:
    header, body, channel, start = "", None, "", 0

    def close(stop: int, whole: bool) -> None:
        nonlocal header, body
        recipient = re.search(r"to=([^\s<]+)", header)
        text = body or ""
        if recipient and recipient[1] != "assistant":
            raw = f"{header}<|message|>{text}"
            name = function_name(recipient[1])
            if whole:
                draft.call(_json(name, text, draft.tools, draft.ids.next(), raw), start, stop, raw)
            else:
                draft.broken(name, "the call never ends", start, stop, raw)
        elif channel == "analysis":
            draft.reasoned = True
            draft.thoughts.append(text)
        elif text:
            draft.texts[-1 if draft.texts == [""] else len(draft.texts) :] = [text]
        header, body = "", None

    for piece in pieces:
        if piece.tag in ("<|start|>", "<|channel|>") and body is None:
            if piece.tag == "<|start|>":
                header, channel, start = "", "", piece.start
            header += piece.text
        elif piece.tag == "<|message|>" and body is None:
            found = re.search(r"<\|channel\|>\s*(\w+)", header)
            channel, body = found[1] if found else "", ""
        elif piece.tag in ("<|end|>", "<|call|>", "<|return|>") and body is not None:
            close(piece.stop, True)
            start = piece.stop
        elif body is not None:
            body += piece.text
        else:
            header += piece.text
    if body is not None:
        close(length, stopped)
        draft.open = not stopped
    elif header.strip():
        draft.open = True
        why = "a header without <|message|>"
        draft.problems.append(ParseProblem((start, length), header, why))


READERS: dict[str, Callable[..., None]] = {
    "glm": between("<tool_call>", "</tool_call>", (), _glm),
    "kimi": between(
        "<|tool_call_begin|>",
        "<|tool_call_end|>",
        ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        _kimi,
    ),
    "dsml": _dsml,
    "harmony": _harmony,
}
