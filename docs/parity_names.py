"""The names of what may differ from a chat template in the tables of docs/renderers.md, each with how it is checked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import combinations

import attrs
from parity_cases import Case

Pair = tuple[str, str]


@attrs.frozen(eq=False)
class Seen:
    """One conversation in one renderer: the texts to compare, ours and the template's, and what may be asked of them."""

    case: Case
    text: str
    reference: str
    paired: str
    bare: str


def _both(pattern: str, to: str, flags: int = 0) -> Callable[[Seen, Pair], Pair]:
    found = re.compile(pattern, flags)
    return lambda seen, pair: (found.sub(to, pair[0]), found.sub(to, pair[1]))


_THOUGHT = re.compile(
    r"<think>(?:(?!</think>).)*?\S(?:(?!</think>).)*?</think>\s*"
    r"|<\|channel\|>analysis<\|message\|>(?:(?!<\|end\|>).)*<\|end\|><\|start\|>assistant",
    re.DOTALL,
)


def _shows_thinking(seen: Seen, pair: Pair) -> Pair:
    return (_THOUGHT.sub("", pair[0]), pair[1]) if any(m.reasoning for m in seen.case.messages) else pair


def _strips_thinking(seen: Seen, pair: Pair) -> Pair:
    return (pair[0], _THOUGHT.sub("", pair[1])) if any(m.reasoning for m in seen.case.messages) else pair


def _from_the_question(pair: Pair, question: str) -> Pair:
    one, two = pair[0].find(question), pair[1].find(question)
    return (pair[0][one:], pair[1][two:]) if question.strip() and one >= 0 and two >= 0 else pair


def _question(seen: Seen) -> str:
    return next(m.content for m in seen.case.messages if m.role == "user").strip()


def _head(seen: Seen, pair: Pair) -> Pair:
    return pair if seen.case.tools else _from_the_question(pair, _question(seen))


def _tools_text(seen: Seen, pair: Pair) -> Pair:
    names = all(tool.name in text for tool in seen.case.tools for text in pair)
    return _from_the_question(pair, _question(seen)) if seen.case.tools and names else pair


def _writes_tools(seen: Seen, pair: Pair) -> Pair:
    """Only where the template's text is the same without tools and calls, and ours has both."""
    wanted = {t.name for t in seen.case.tools} | {c.name for m in seen.case.messages for c in m.tool_calls}
    if not wanted or pair[1] != seen.bare or not all(name in pair[0] for name in wanted):
        return pair
    contents = [m.content.strip() for m in seen.case.messages]
    return ("", "") if all(content in pair[0] for content in contents) else pair


_FURTHER = re.compile(r"<\|call\|>(?:<\|start\|>assistant to=(?:(?!<\|call\|>).)*<\|call\|>)+", re.DOTALL)
_ANSWER = re.compile(r'(to=assistant<\|channel\|>commentary<\|message\|>)("(?:[^"\\]|\\.)*")<\|end\|>')


def _answer_json(seen: Seen, pair: Pair) -> Pair:
    return pair[0], _ANSWER.sub(lambda found: f"{found[1]}{json.loads(found[2])}<|end|>", pair[1])


def _trims(seen: Seen, pair: Pair) -> Pair:
    for content in (m.content for m in seen.case.messages if m.content != m.content.strip()):
        around = re.compile(rf"\s*{re.escape(content.strip())}\s*")
        pair = around.sub(content.strip(), pair[0]), around.sub(content.strip(), pair[1])
    return pair


EXPLANATIONS: dict[str, tuple[str, Callable[[Seen, Pair], Pair]]] = {
    "answers-paired": (
        "answers stand in the order of their calls; the template leaves them as they came, and a model that pairs them "
        "by order alone reads them wrongly",
        lambda seen, pair: (pair[0], seen.paired) if pair[1] == seen.reference else pair,
    ),
    "shows-thinking": ("thinking is written that the template leaves out", _shows_thinking),
    "strips-thinking": ("thinking is left out that the template still shows", _strips_thinking),
    "think-tags": (
        "thinking stands between <think> tags in the content, where the template has a form of its own",
        lambda seen, pair: (
            (re.sub(r"<think>\n(.*?)\n</think>\s*", r"\1", pair[0], flags=re.DOTALL), pair[1])
            if "<think>" not in pair[1]
            else pair
        ),
    ),
    "empty-think": (
        "an empty block of thinking is written where the template has none, or the other way round",
        _both(r"<think>\s*</think>\s*|(?<=Assistant｜>)</think>", ""),
    ),
    "blank-lead": (
        "the blank lines that stood between left-out thinking and the answer stay",
        _both(r"(<｜Assistant｜>)\s+", r"\1"),
    ),
    "answers-apart": (
        "each of several answers has a turn of its own",
        _both(
            r"</tool_response><\|im_end\|>\n<\|im_start\|>user\n<tool_response>", "</tool_response>\n<tool_response>"
        ),
    ),
    "call-spacing": (
        "blanks between a text and a call, or between two calls, are others",
        _both(r"\s*(</?tool_call>|<｜tool▁calls?▁(?:begin|end)｜>)\s*", r"\1"),
    ),
    "answer-spacing": (
        "blanks between two answers are others",
        _both(r"\s*(<｜tool▁outputs?▁(?:begin|end)｜>)\s*", r"\1"),
    ),
    "call-frame": (
        "the sections of calls and answers are opened and closed in every round; the template forgets it in the second",
        _both(r"\s*<｜tool▁(?:calls|outputs)▁(?:begin|end)｜>\s*", ""),
    ),
    "end-token": (
        "a reply with a call has an end-of-text token at another place",
        _both(r"<｜end▁of▁sentence｜>", ""),
    ),
    "all-calls": (
        "every call of a reply is written, where the template writes the first and drops the others in silence",
        lambda seen, pair: (_FURTHER.sub("<|call|>", pair[0]), pair[1]),
    ),
    "call-header": (
        "the header of a call does not say that JSON follows",
        _both(r"(<\|channel\|>commentary) ?(?:<\|constrain\|>)?json<\|message\|>", r"\1<|message|>"),
    ),
    "answer-json": ("answers are written as they came, where the template writes them as JSON", _answer_json),
    "generation": (
        "the generation prompt opens thinking, or leaves that to the model, otherwise than the template's",
        lambda seen, pair: tuple(
            re.sub(r"(?:<think>\s*|<\|channel\|>analysis<\|message\|>)\Z", "", text) for text in pair
        ),  # type: ignore[return-value]
    ),
    "channel": (
        "the text beside a call stands in another channel",
        _both(r"<\|channel\|>(?:analysis|commentary|final)<\|message\|>", "<|channel|><|message|>"),
    ),
    "trims": ("blanks around a content are trimmed, or kept, where the template does not", _trims),
    "head": (
        "what stands before the first question differs (a default system prompt, an effort, the date)",
        _head,
    ),
    "tools-text": ("the tools are declared in other words or at another place", _tools_text),
    "writes-tools": (
        "tools and calls are written; the template has no place for them and drops them in silence",
        _writes_tools,
    ),
}
SAME_TEXT = {
    "literal-special": "the same text; a control token's text in a content is kept as text, where the template's tokens hold "
    "the token itself",
    "boundary": "the same text; a token that holds the end of the generation prompt and the start of the reply is split "
    "there, where sampling begins",
}
NO_CELL = {
    "refused": "the conversation is refused with the reason below, and nothing is dropped",
    "–": "the renderer does not take this model, or not with this tokenizer",
}


class Unexplained(Exception):
    """A difference that no names explain."""


def explain(seen: Seen, ours: Sequence[int], theirs: Sequence[int], special: int | None) -> str:
    """``equal``, or the fewest names that explain the difference."""
    if list(ours) == list(theirs):
        return "equal"
    start = (seen.text, seen.reference)
    fitting = [name for name, (_, put_right) in EXPLANATIONS.items() if put_right(seen, start) != start]
    for size in range(len(fitting) + 1):
        for names in combinations(fitting, size):
            pair, used = start, True
            for name in names:
                changed = EXPLANATIONS[name][1](seen, pair)
                used &= changed != pair
                pair = changed
            if not used or pair[0] != pair[1]:
                continue
            literal = seen.case.special and list(ours).count(special) < list(theirs).count(special)
            if not names and not literal:
                names = ("boundary",)
            return ", ".join(f"`{name}`" for name in (*names, *(["literal-special"] if literal else [])))
    differ = (k for k, (a, b) in enumerate(zip(seen.text, seen.reference, strict=False)) if a != b)
    at = next(differ, min(len(seen.text), len(seen.reference)))
    one, two = (text[max(0, at - 60) : at + 200] for text in (seen.text, seen.reference))
    raise Unexplained(f"{one!r}\n  where the template has\n  {two!r}")
