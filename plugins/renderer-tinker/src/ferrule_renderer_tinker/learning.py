"""What is learned of a renderer by letting it write small conversations: its generation prompts, its calls, its closes."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from ferrule import MARKUP, Encoder, Message, ToolCall

from .cookbook import Cookbook, Refused
from .marking import ARGUMENT, CONTENT, KINDS, REASONING, SPOKEN, Laid

THINK, THINK_END, CALL, CALL_END = MARKUP
USER, REPLY, REASON, ARGUED, ANSWER = (f"Fq7{word}z" for word in ("user", "reply", "reason", "argument", "answer"))
"""Words that stand for contents in probes: plain, and odd enough to be told from anything else."""
PADDED = " \n Fq7padded \n "

CALLED = ToolCall("fq7call", "fq7tool", {"value": ARGUED})


@attrs.frozen
class CallForm:
    """How calls stand in a completion. ``begin`` and ``end`` stand around each, ``separator`` between its name and its
    arguments, ``wrappers`` around them all.
    """

    name: str
    begin: str = CALL
    end: str = CALL_END
    separator: str = ""
    wrappers: tuple[str, str] | None = None


FORMS = (
    CallForm("glm", separator="<arg_key>"),
    CallForm("tags"),
    CallForm(
        "kimi",
        "<|tool_call_begin|>",
        "<|tool_call_end|>",
        "<|tool_call_argument_begin|>",
        ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    ),
    CallForm(
        "deepseek",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
        ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
)
"""The forms that are read here; others are left to the cookbook's own parser."""


@attrs.frozen(eq=False)
class Learned:
    """What a renderer does.

    prompts           by role of the last message, the generation prompt (ids)
    writes_calls      whether calls can be written at all; form: how, None where only the cookbook can read them
    writes_reasoning  whether reasoning can be written
    think_end         text that closes a think block, up to the answer; call_end: the same for a call
    stops             ids that end a completion for the cookbook; text_stops: texts that do
    """

    encoder: Encoder
    prompts: dict[str, list[int]]
    writes_calls: bool
    form: CallForm | None
    writes_reasoning: bool
    think_end: str
    call_end: str
    stops: tuple[int, ...]
    text_stops: tuple[str, ...]

    def opened(self, prompt: Sequence[int]) -> tuple[str, ...]:
        """The blocks that a generation prompt leaves open."""
        text = self.encoder.decode(list(prompt))
        return ("think",) if text.rfind(THINK) > text.rfind(THINK_END) else ()

    @property
    def blocks(self) -> tuple[tuple[str, str, str], ...]:
        """(opening, closing, text that closes) of what may stand open in a cut completion, outermost first."""
        form = self.form or CallForm("tags")
        wrappers = ((*form.wrappers, form.wrappers[1]),) if form.wrappers else ()
        dsml = ("<｜DSML｜ calls>", "</｜DSML｜ calls>")
        return (
            (THINK, THINK_END, self.think_end),
            *wrappers,
            (form.begin, form.end, self.call_end),
            (*dsml, f"\n{dsml[1]}"),
        )


def learn(cookbook: Cookbook) -> Learned:
    """Probe the renderer, settling which contents it trims. Refused where it cannot write even one user message, or
    not in a way that tells its tokens apart.
    """
    user = Message("user", USER)
    first = cookbook.prompt([user])
    if CONTENT not in first.slots:
        raise Refused(f"{cookbook.name!r} does not encode contents with the tokenizer that it is given")
    if 0 not in first.owners:
        raise Refused(f"{cookbook.name!r} does not render message by message, so its tokens cannot be told apart")
    prompts = {"user": _after(first)}
    stops, text_stops = _stops(cookbook)
    call = Message("assistant", "", tool_calls=(CALLED,))  # type: ignore[arg-type]  # the converter's
    answer = Message("tool", ANSWER, tool_call_id=CALLED.id, name=CALLED.name)
    called = _try(cookbook, [user, call, answer])
    writes_calls = called is not None and KINDS + ARGUMENT in called.slots
    if called is not None and 2 in called.owners:
        prompts["tool"] = _after(called)
    said = _said(cookbook, called) if called is not None and writes_calls else ""
    if writes_calls and CALLED.name not in said:
        cookbook.named_ids = True
    form = _form(cookbook.encoder, said) if writes_calls else None
    call_end = form.end if form else CALL_END
    if f"\n{call_end}" in said:
        call_end = f"\n{call_end}"
    think_end, writes_reasoning = _reasoning(cookbook, user)
    cookbook.trims = _trims(cookbook, user, call)
    cookbook.fills = _fills(cookbook, user, stops)
    return Learned(
        cookbook.encoder,
        prompts,
        writes_calls,
        form,
        writes_reasoning,
        think_end,
        call_end,
        stops,
        text_stops,
    )


def _try(cookbook: Cookbook, messages: list[Message]) -> Laid | None:
    try:
        return cookbook.prompt(messages, arguments=True)
    except Refused:
        return None


def _after(laid: Laid) -> list[int]:
    """The generation prompt: what no message owns, at the end."""
    owned = np.flatnonzero(laid.owners >= 0)
    return laid.ids[int(owned[-1]) + 1 :].tolist()  # type: ignore[no-any-return]


def _said(cookbook: Cookbook, laid: Laid) -> str:
    return cookbook.encoder.decode(laid.ids[laid.owners == 1].tolist())


def _form(encoder: Encoder, said: str) -> CallForm | None:
    """The form of the call in *said*, the text of an assistant's message."""
    for form in FORMS:
        if form.begin in said and form.separator in said and (form.begin == CALL or form.begin in encoder.ids_of):
            tags = form.name != "tags" or "<function=" in said or '"arguments"' in said
            return form if tags else None
    return None


def _reasoning(cookbook: Cookbook, user: Message) -> tuple[str, bool]:
    """What closes a think block, and whether reasoning can be written."""
    try:
        laid = cookbook.example([user, Message("assistant", REPLY, REASON)])
    except Refused:
        return THINK_END, False
    reasoning = np.flatnonzero(laid.slots == KINDS + REASONING)
    reply = np.flatnonzero(laid.slots == KINDS + SPOKEN)
    between = ""
    if len(reasoning) and len(reply):
        between = cookbook.encoder.decode(laid.ids[reasoning[-1] + 1 : reply[0]].tolist())
    return between if THINK_END in between else THINK_END, True


def _trims(cookbook: Cookbook, user: Message, call: Message) -> frozenset[str]:
    """The roles whose contents come out without the blanks around them."""
    padded = {
        "user": [Message("user", PADDED)],
        "system": [Message("system", PADDED), user],
        "tool": [user, call, Message("tool", PADDED, tool_call_id=CALLED.id, name=CALLED.name)],
    }
    out = {"assistant"}
    for role, messages in padded.items():
        laid = _try(cookbook, messages)
        if laid is None or PADDED not in cookbook.encoder.decode(laid.ids.tolist()):
            out.add(role)
    return frozenset(out)


def _fills(cookbook: Cookbook, user: Message, stops: tuple[int, ...]) -> bool:
    """Whether a reply without text lacks its end, and one with a text that vanishes does not."""
    ends = []
    for fills in (True, False):
        cookbook.fills = fills
        laid = _try(cookbook, [user, Message("assistant", ""), user])
        own: list[int] = laid.ids[laid.owners == 1].tolist() if laid is not None else []
        ends.append(own[-1:] != [] and own[-1] in stops)
    return ends == [True, False]


def _stops(cookbook: Cookbook) -> tuple[tuple[int, ...], tuple[str, ...]]:
    ids: list[int] = []
    texts: list[str] = []
    for stop in cookbook.renderer.get_stop_sequences():
        if isinstance(stop, str):
            encoded = cookbook.encoder.encode(stop)
            if len(encoded) == 1 and encoded[0] in cookbook.encoder.control:
                ids += encoded
            else:
                texts.append(stop)
        else:
            ids.append(int(stop))
    return tuple(dict.fromkeys(ids)), tuple(texts)
