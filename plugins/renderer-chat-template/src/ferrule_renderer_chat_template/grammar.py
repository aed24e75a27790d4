"""What can be learned of a template by rendering small conversations: how turns open and close, and what follows whom."""

from __future__ import annotations

import re
from collections.abc import Iterable

import attrs

from ferrule import MARKUP, Encoder, Message, ToolCall, ToolSpec

from .template import Refused, Template

THINK, THINK_END, _, _ = MARKUP
USER, REPLY, REASON, ARGUMENT, ANSWER, NEXT = (
    f"Fq7{word}z" for word in ("user", "reply", "reason", "argument", "answer", "next")
)
"""Words that stand for contents in probes: plain enough that no template changes them, odd enough to be found."""

PROBE_TOOL = ToolSpec("fq7tool", "A tool.", {"type": "object", "properties": {"value": {"type": "string"}}})
_TAG = re.compile(r"</?[a-z_]+>")


def common(a: str, b: str) -> int:
    """The length of the longest common prefix."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        mid = (low + high + 1) // 2
        low, high = (mid, high) if a[:mid] == b[:mid] else (low, mid - 1)
    return low


def opened(text: str) -> tuple[str, ...]:
    """The blocks that *text* leaves open."""
    return ("think",) if text.rfind(THINK) > text.rfind(THINK_END) else ()


@attrs.frozen
class Grammar:
    """A template's turns.

    generation  the generation prompt after a user message; header: what it shares with an assistant message of the
                history
    after       by role of the last message, all that follows its content when a generation prompt is asked for
    openers     by role, what stands before its content, from the end of the assistant message before it
    closes      ids that end an assistant message anywhere in a conversation (in some templates the next message's
                opener)
    ends        those of them that end it where nothing follows
    stop_ids    what a sampler must stop at
    think_end   text that closes a think block, up to the answer
    """

    generation: str
    header: str
    after: dict[str, str]
    openers: dict[str, str]
    closes: frozenset[int]
    ends: frozenset[int]
    stop_ids: frozenset[int]
    think_end: str

    def boundary(self, text: str, low: int, high: int, role: str) -> int:
        """Where in ``text[low:high]``, between two contents, the second message begins."""
        opener = self.header if role == "assistant" else self.openers.get(role, "")
        if not opener:
            return low
        at = text.find(opener, low, high) if role == "assistant" else text.rfind(opener, low, high)
        if at >= 0:
            return at
        return high - common(text[low:high][::-1], opener[::-1])


class _Prober:
    """Renders probes; None where the template refuses one."""

    def __init__(self, template: Template) -> None:
        self.template = template

    def text(self, messages: list[Message], generation: bool = False, tools: tuple[ToolSpec, ...] = ()) -> str | None:
        try:
            return self.template.text([self.template.wire(m) for m in messages], tools, generation)
        except Refused:
            return None


def _after(text: str | None, word: str) -> str | None:
    at = text.rfind(word) if text is not None else -1
    return text[at + len(word) :] if text is not None and at >= 0 else None


def learn(template: Template, encoder: Encoder, eos: Iterable[int]) -> Grammar:
    """Probe *template*, settling its styles on the way. Refused where it renders not even one user message."""
    probe = _Prober(template)
    user, reply = Message("user", USER), Message("assistant", REPLY)
    call = Message("assistant", "", tool_calls=(ToolCall("callfq7ab", PROBE_TOOL.name, {"value": ARGUMENT}),))
    answer = Message("tool", ANSWER, tool_call_id="callfq7ab", name=PROBE_TOOL.name)
    _settle(template, probe, user, call)

    start = probe.text([user])
    prompt = probe.text([user], generation=True)
    if start is None or prompt is None:
        template.text([template.wire(user)], (), True)
        start = prompt = prompt or ""
    generation = prompt[common(start, prompt) :]
    last = probe.text([user, reply])
    followed = probe.text([user, reply, Message("user", NEXT)])
    called = probe.text([user, call], tools=(PROBE_TOOL,))
    answered = probe.text([user, call, answer], tools=(PROBE_TOOL,))
    prompted = probe.text([user, call, answer], generation=True, tools=(PROBE_TOOL,))

    after = {role: text for role, text in (("user", _after(prompt, USER)), ("tool", _after(prompted, ANSWER))) if text}
    header = generation
    for history in (followed, last):
        if history is not None and history.startswith(start):
            header = header[: common(header, history[len(start) : history.find(REPLY)])]
    openers = {}
    ordered = probe.text([user, reply, Message("system", NEXT)])
    for role, text, word, before, said in (
        ("user", followed, NEXT, last, REPLY),
        ("system", ordered, NEXT, last, REPLY),
        ("tool", answered, ANSWER, called, ARGUMENT),
    ):
        # From the assistant's last word on: what stands before it, a template may write otherwise in the last message.
        closed, both = _after(before, said), _between(text, said, word)
        if closed is not None and both is not None and both.startswith(closed):
            openers[role] = both[len(closed) :]

    two = attrs.evolve(
        call, tool_calls=(*call.tool_calls, attrs.evolve(call.tool_calls[0], id="callfq7cd", arguments={"value": NEXT}))
    )
    both = probe.text([user, two], tools=(PROBE_TOOL,))
    template.one_call = both is not None and ARGUMENT in both and NEXT not in both
    markup = (
        frozenset(encoder.encode(both[both.find(ARGUMENT) + len(ARGUMENT) : both.rfind(NEXT)]))
        if both and NEXT in both
        else frozenset()
    )
    eos = tuple(i for i in eos if 0 <= i < encoder.size)
    reply_end = _close(encoder, eos, _after(last, REPLY))
    reply_close = _close(encoder, eos, _between(followed, REPLY, NEXT))
    known = (*eos, *reply_end, *reply_close)
    call_end = _close(encoder, known, _after(called, ARGUMENT), markup)
    call_close = _close(encoder, known, _between(answered, ARGUMENT, ANSWER), markup)
    ends = frozenset((*reply_end, *call_end))
    closes = ends.union(reply_close, call_close)
    stops = frozenset((*eos, *(reply_end or reply_close), *(call_end or call_close)))
    thought = probe.text([user, Message("assistant", REPLY, REASON)])
    between = re.search(f"{REASON}(.{{1,60}}?){REPLY}", thought or "", re.DOTALL)
    think_end = between[1] if between and THINK_END in between[1] else f"\n{THINK_END}\n\n"
    return Grammar(generation, header, after, openers, closes, ends, stops, think_end)


def _settle(template: Template, probe: _Prober, user: Message, call: Message) -> None:
    """Find out in which form the template reads contents, arguments and reasoning."""
    if USER not in (probe.text([user], generation=True) or ""):
        template.content_parts = True
        if USER not in (probe.text([user], generation=True) or ""):
            template.content_parts = False
    shown = probe.text([user, call], tools=(PROBE_TOOL,))
    if shown is None or f"'value': '{ARGUMENT}'" in shown or ARGUMENT not in shown:
        template.arguments_text = True
        again = probe.text([user, call], tools=(PROBE_TOOL,))
        template.arguments_text = again is not None and ARGUMENT in again
    thought = probe.text([user, Message("assistant", REPLY, REASON)])
    for name in ("thinking", "reasoning"):
        if thought is None or REASON not in thought:
            template.reasoning_key = name
            thought = probe.text([user, Message("assistant", REPLY, REASON)])
    template.reasoning_field = thought is not None and REASON in thought


def _between(text: str | None, first: str, second: str) -> str | None:
    if text is None or first not in text or second not in text:
        return None
    return text[text.rfind(first, 0, text.rfind(second)) + len(first) : text.rfind(second)]


def _close(
    encoder: Encoder, known: tuple[int, ...], rest: str | None, markup: frozenset[int] | None = None
) -> tuple[int, ...]:
    """The control token in *rest*, the text after an assistant message's last word, that ends the message, if any.

    A *known* one is preferred. After a call (*markup* given: what stands between two calls) the ends of its own
    markup come first.
    """
    found = [i for i in encoder.encode(rest or "") if i in encoder.control]
    pick = next((i for i in found if i in known), None)
    if pick is None and markup is not None:
        found = [i for i in found if i not in markup and not _TAG.fullmatch(encoder.control[i])]
    if pick is None:
        pick = next(iter(found), None)
    return () if pick is None else (pick,)
