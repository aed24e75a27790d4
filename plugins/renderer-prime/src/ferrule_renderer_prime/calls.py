"""Calls read from their own text, by the tools' schemas: what the package's parsers tell of arguments is stripped and
retyped, which cannot be undone.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from ferrule import Encoder, ToolCall, ToolSpec, Unreadable, clean_text, read_call, typed_arguments

from .families import Family

Found = tuple[str, dict[str, Any]]
"""(name, arguments)"""

_INVOKE = re.compile(r'<invoke name="([^"]*)">(.*?)</invoke>', re.DOTALL)
_PARAMETER = re.compile(r'\s*<parameter name="([^"]*)">(.*?)</parameter>(?=\s*(?:<parameter name="|\Z))', re.DOTALL)
_DSML_INVOKE = re.compile(r'\s*<｜DSML｜invoke name="([^"]*)">(.*?)(?:</｜DSML｜invoke>\s*)?', re.DOTALL)
_DSML_PARAMETER = re.compile(
    r'\s*<｜DSML｜parameter name="([^"]*)" string="(true|false)">(.*?)</｜DSML｜parameter>'
    r"(?=\s*(?:<｜DSML｜parameter |\Z))",
    re.DOTALL,
)
_FENCE = re.compile(r"```(?:json)?\s*(.*?)\s*```", re.DOTALL)
_INKLING = re.compile(r'(\s*\{\s*"name"\s*:\s*"(?:[^"\\]|\\.)*"\s*,\s*)"args"(\s*:)')
_GEMMA_BARE = re.compile(r'[{,]\s*(?:<\|"\|>)?([^:,{}\[\]<|"]+)(?:<\|"\|>)?\s*:([^,{}\[\]<]+)(?=[,}])')


class CallReader:
    """Reads one block of calls. *known* is what the package made of it: a ParsedToolCall."""

    def __init__(self, family: Family, encoder: Encoder) -> None:
        self.family, self.encoder = family, encoder
        marks = family.pairs
        self._atomic = (
            {encoder.ids_of[m]: m for m in marks} if marks and all(m in encoder.ids_of for m in marks) else {}
        )
        self._spelled = re.compile("(" + "|".join(map(re.escape, marks)) + ")") if marks else None

    def read(
        self, ids: Sequence[int], known: Any, tools: Sequence[ToolSpec], next_id: Callable[[], str]
    ) -> list[tuple[ToolCall, str | None]]:
        """The calls of the block *ids* (its marks included) and what is wrong with each, or None."""
        raw = clean_text(self.encoder.decode(list(ids)))
        out: list[tuple[ToolCall, str | None]] = []
        try:
            found = getattr(self, f"_{self.family.grammar}")(ids, raw, known, tools)
        except (ValueError, RecursionError, OverflowError) as error:
            found = [error]
        for item in found:
            if isinstance(item, tuple):
                out.append((ToolCall(next_id(), clean_text(item[0]), item[1]), None))
                continue
            why = _why(item)
            name = clean_text(known.name or "") if isinstance(known.name, str) else ""
            out.append((ToolCall(next_id(), name, {}, why, raw), why))
        return out

    # -- one reader for each grammar: (ids, raw, known, tools) -> calls, or errors in their place ----------------------

    def _pairs(self, ids: Sequence[int], raw: str, known: Any, tools: Sequence[ToolSpec]) -> list[Found]:
        key, key_end, value, value_end, *after = self.family.pairs
        start, end = self.family.blocks[-1]
        parts = self._parts(ids, start, end)
        name = parts[0][1].strip()
        at = 1
        if after and at < len(parts) and parts[at][0] == after[0]:
            at += 1
        values: dict[str, str] = {}
        while at < len(parts):
            window = [mark for mark, _ in parts[at : at + 4]]
            if window != [key, key_end, value, value_end]:
                raise Unreadable(f"the arguments of {name or 'the call'} are not {key} and {value} in turn")
            field = parts[at][1].strip()
            if parts[at + 1][1].strip() or parts[at + 3][1].strip():
                raise Unreadable(f"there is text between the arguments of {name or 'the call'}")
            if not field or field in values:
                raise Unreadable(f"argument {field!r} is given twice" if field else "an argument has no name")
            values[field] = parts[at + 2][1]
            at += 4
        return [_texts(name, values, tools)]

    def _parts(self, ids: Sequence[int], start: str, end: str) -> list[tuple[str, str]]:
        """(mark, the text after it) of a block without its own marks; the first has no mark."""
        if not self._atomic:
            text = self.encoder.decode(list(ids)).strip().removeprefix(start).removesuffix(end)
            pieces = self._spelled.split(text) if self._spelled else [text]
            return [("", pieces[0]), *zip(pieces[1::2], pieces[2::2], strict=True)]
        own = {self.encoder.ids_of.get(start), self.encoder.ids_of.get(end)}
        runs: list[tuple[str, list[int]]] = [("", [])]
        for i in ids:
            if i in self._atomic:
                runs.append((self._atomic[i], []))
            elif i not in own:
                runs[-1][1].append(i)
        return [(mark, self.encoder.decode(run)) for mark, run in runs]

    def _fenced(self, ids: Sequence[int], raw: str, known: Any, tools: Sequence[ToolSpec]) -> list[Found]:
        (_, (start, end)) = self.family.blocks
        text = raw.removeprefix(start).removesuffix(end)
        head, mark, rest = text.partition("<｜tool▁sep｜>")
        if not mark:
            raise Unreadable(f"{head.strip()[:40]!r} is not followed by the mark before a function's name")
        name, _, body = rest.strip().partition("\n")
        fence = _FENCE.fullmatch(body.strip())
        return [_json(name.strip(), fence[1] if fence else body, tools)]

    def _kimi(self, ids: Sequence[int], raw: str, known: Any, tools: Sequence[ToolSpec]) -> list[Found]:
        _, mark, rest = raw.partition("<|tool_call_argument_begin|>")
        if not mark:
            raise Unreadable("the call has no arguments")
        return [_json(known.name or "", rest.removesuffix(self.family.blocks[1][1]), tools)]

    def _harmony(self, ids: Sequence[int], raw: str, known: Any, tools: Sequence[ToolSpec]) -> list[Found]:
        return [_json(known.name or "", known.raw, tools)]

    def _bare(self, ids: Sequence[int], raw: str, known: Any, tools: Sequence[ToolSpec]) -> list[Found]:
        return [_whole(known.raw, tools)]

    def _inkling(self, ids: Sequence[int], raw: str, known: Any, tools: Sequence[ToolSpec]) -> list[Found]:
        text = _INKLING.sub(r'\1"arguments"\2', known.raw, count=1)
        whole = json.loads(text)
        if isinstance(whole, dict) and "arguments" not in whole and "args" in whole:
            text = json.dumps({"name": whole.get("name"), "arguments": whole["args"]}, ensure_ascii=False)
        if isinstance(whole, dict) and not whole.get("name") and known.name:
            return [_json(known.name, json.dumps(whole.get("arguments", whole.get("args", {}))), tools)]
        return [_whole(text, tools)]

    def _minimax(self, ids: Sequence[int], raw: str, known: Any, tools: Sequence[ToolSpec]) -> list[Found | Exception]:
        start, end = self.family.blocks[0]
        text = raw.removeprefix(start).removesuffix(end)
        out: list[Found | Exception] = []
        for match in _INVOKE.finditer(text):
            try:
                out.append(_texts(match[1], _members(_PARAMETER, match[2]), tools))
            except ValueError as error:
                out.append(error)
        if not out or _INVOKE.sub("", text).strip():
            out.append(Unreadable('expected <invoke name="...">...</invoke> and nothing else'))
        return out

    def _dsml(self, ids: Sequence[int], raw: str, known: Any, tools: Sequence[ToolSpec]) -> list[Found]:
        match = _DSML_INVOKE.fullmatch(known.raw)
        if match is None:
            raise Unreadable("the call is not one whole invoke block")
        texts: dict[str, str] = {}
        arguments: dict[str, Any] = {}
        at = 0
        for part in _DSML_PARAMETER.finditer(match[2]):
            if match[2][at : part.start()].strip() or part[1] in arguments:
                raise Unreadable(f"parameter {part[1]!r} is given twice, or follows stray text")
            texts[part[1]] = part[3]
            arguments[part[1]] = part[3] if part[2] == "true" else json.loads(part[3], parse_constant=_constant)
            at = part.end()
        if match[2][at:].strip():
            raise Unreadable(f"{match[2][at:].strip()[:40]!r} is no parameter")
        return [_values(match[1], arguments, texts, tools)]

    def _gemma(self, ids: Sequence[int], raw: str, known: Any, tools: Sequence[ToolSpec]) -> list[Found]:
        if known.arguments is None or not known.name:
            raise Unreadable("the call is not call:name{...}")
        bare = {m[1].strip(): m[2].strip() for m in _GEMMA_BARE.finditer(known.raw)}
        return [_values(known.name, known.arguments, bare, tools)]

    def _tags(self, ids: Sequence[int], raw: str, known: Any, tools: Sequence[ToolSpec]) -> list[Found]:
        """Of 'default', where a parser of the package's was asked for."""
        if not isinstance(known.arguments, dict) or not known.name:
            raise Unreadable("the call could not be read")
        return [_values(known.name, known.arguments, {}, tools)]


def _members(pattern: re.Pattern[str], text: str) -> dict[str, str]:
    out: dict[str, str] = {}
    at = 0
    for part in pattern.finditer(text):
        if text[at : part.start()].strip() or part[1] in out:
            raise Unreadable(f"parameter {part[1]!r} is given twice, or follows stray text")
        out[part[1]] = part[2]
        at = part.end()
    if text[at:].strip():
        raise Unreadable(f"{text[at:].strip()[:40]!r} is no parameter")
    return out


def _texts(name: str, values: dict[str, str], tools: Sequence[ToolSpec]) -> Found:
    """Arguments that were written as bare text, typed by the schema as those of ``<function=...>`` are."""
    if not name:
        raise Unreadable("the call names no function")
    if "\n" in name or ">" in name:
        raise Unreadable(f"{name[:40]!r} is no function's name")
    out: dict[str, Any] = {}
    for key, value in values.items():
        if "</parameter>" in value or re.search(r"[>\n]", key):
            # It cannot pass through the other form: such a text is hardly anything but a string.
            out |= typed_arguments(name, {key: clean_text(value)}, tools)
            continue
        inner = f"<function={name}>\n<parameter={key}>\n{value}\n</parameter>\n</function>"
        call, problem = read_call(inner, tools, "", inner)
        if problem:
            raise Unreadable(problem)
        out |= call.arguments
    return name, out


def _json(name: str, text: str, tools: Sequence[ToolSpec]) -> Found:
    """A call whose arguments stand apart, as JSON."""
    if not name:
        raise Unreadable("the call names no function")
    text = text.strip() or "{}"
    json.loads(text)
    return _whole(f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {text}}}', tools)


def _whole(text: str, tools: Sequence[ToolSpec]) -> Found:
    call, problem = read_call(text, tools, "", text)
    if problem:
        raise Unreadable(problem)
    return call.name, dict(call.arguments)


def _values(name: str, arguments: dict[str, Any], texts: dict[str, str], tools: Sequence[ToolSpec]) -> Found:
    """Arguments that are values already; *texts* are those of them that are known."""
    if not name:
        raise Unreadable("the call names no function")
    out = typed_arguments(name, arguments, tools, lambda: texts)
    if any(isinstance(v, float) and not math.isfinite(v) for v in out.values()):
        raise Unreadable("NaN and Infinity are not valid JSON")
    return name, json.loads(clean_text(json.dumps(out, ensure_ascii=False)))


def _constant(word: str) -> Any:
    raise Unreadable(f"{word} is not valid JSON")


def _why(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "the call is nested too deeply"
    return str(error) if isinstance(error, Unreadable) else f"the call is not valid JSON: {error}"
