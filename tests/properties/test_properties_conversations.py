"""Whatever is said, by whom, in whatever tokens: what is kept for training is what the model was shown and sampled.

Random conversations are played through the core's agent with every installed renderer that serves the model, on real
tokenizers and real chat templates. The model's samples are chosen here, token by token: replies as the template writes
them, the same in other tokens, cut anywhere, or noise.

``FERRULE_EXAMPLES=500`` plays that many conversations for each renderer and model, other ones each time; without it there
are a few, the same each time.
"""

from __future__ import annotations

import asyncio
import os
import unicodedata
from typing import Any

import attrs
import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ferrule import EpisodeFailed, Message, RolloutCut, TokenKind, ToolCall, ToolSpec

EXAMPLES = int(os.environ.get("FERRULE_EXAMPLES", "0"))
FEW = 8
profile = settings(
    max_examples=EXAMPLES or FEW,
    derandomize=not EXAMPLES,
    deadline=None,
    database=None,
    # A failure is shrunk where one looks for failures, not where each minute is waited for.
    phases=list(Phase) if EXAMPLES else [Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)

TOOLS = (
    ToolSpec(
        "note",
        "Writes it down.",
        {"type": "object", "properties": {"text": {"type": "string"}, "count": {"type": "integer"}}},
    ),
    ToolSpec("find", "Looks it up.", {"type": "object", "properties": {"query": {"type": "string"}}}),
)

letters = st.text(st.sampled_from("ab zÀé日本語🙂🦜👩‍🚀\u0301\n\t\"\\{}<>|'0"), max_size=12)
spelled = st.sampled_from(
    [
        "",
        " ",
        "\n\n",
        "<|im_end|>",
        "<|im_start|>user\nhi<|im_end|>",
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "</tool_response>",
        "<｜User｜>",
        "<｜end▁of▁sentence｜>",
        "<end_of_turn>",
        "<|user|>",
        "<|endoftext|>",
    ]
)
texts = st.one_of(letters, st.text(max_size=8), st.tuples(letters, spelled, letters).map("".join))
plain = st.text(st.sampled_from("abc xyz🙂日"), min_size=1, max_size=20).map(str.strip).filter(bool)


@attrs.frozen
class Line:
    """One reply: what is said, how its tokens are spoiled, whether its request is made twice, and how its calls are
    answered.
    """

    content: str
    reasoning: str | None
    calls: tuple[tuple[str, dict[str, Any]], ...]
    noise: tuple[float, ...] | None
    cut: float | None
    again: bool
    answers: tuple[str, ...]
    crossed: bool


@attrs.frozen
class Act:
    """What the user says (and whoever orders the model about), and the replies to it."""

    asked: tuple[Message, ...]
    lines: tuple[Line, ...]


calls = st.one_of(
    st.fixed_dictionaries({"text": texts, "count": st.integers(-9, 99)}).map(lambda a: ("note", a)),
    st.fixed_dictionaries({"query": texts}).map(lambda a: ("find", a)),
    st.just(("find", {})),
    st.just(("unknown", {"x": 1})),
)
lines = st.builds(
    Line,
    content=st.one_of(plain, texts),
    reasoning=st.none() | plain,
    calls=st.lists(calls, max_size=2).map(tuple),
    noise=st.none() | st.none() | st.lists(st.floats(0, 1, exclude_max=True), max_size=6).map(tuple),
    cut=st.none() | st.none() | st.floats(0, 1),
    again=st.sampled_from([False, False, True]),
    answers=st.tuples(texts, texts, texts),
    crossed=st.booleans(),
)
asked = st.one_of(
    st.tuples(st.builds(Message, st.just("user"), st.one_of(plain, texts))),
    st.tuples(st.builds(Message, st.just("user"), plain), st.builds(Message, st.just("user"), texts)),
    st.tuples(st.builds(Message, st.just("system"), plain), st.builds(Message, st.just("user"), texts)),
)
acts = st.builds(Act, asked, st.lists(lines, min_size=1, max_size=3).map(tuple))
conversations = st.tuples(st.booleans(), st.lists(acts, min_size=1, max_size=4).map(tuple))


def tokens_of(stage: Any, line: Line, messages: list[Message], tools: Any) -> list[int]:
    """What the model samples for *line*: as the template has it where it can write that, else the noise alone."""
    said = tuple(ToolCall(f"callabc{n:02d}", name, arguments) for n, (name, arguments) in enumerate(line.calls))
    reply = Message("assistant", line.content, line.reasoning, tool_calls=said if tools else ())
    size = stage.renderer.vocab_size
    noise = [int(x * size) for x in line.noise or ()]
    ids = stage.completion(reply, messages, tools)
    if ids is None:
        ids = [*noise, min(stage.renderer.stop_ids)]
    elif noise:
        at = int(line.noise[0] * len(ids)) if line.noise else 0
        ids = [*ids[:at], *noise, *ids[at:]]
    return ids if line.cut is None else ids[: int(line.cut * len(ids))]


async def played(stage: Any, conversation: Any) -> list[Message]:
    """Play *conversation* until its end, or until the renderer refuses a prompt by name."""
    tooled, scenes = conversation
    tools = TOOLS if tooled else ()
    messages: list[Message] = []
    ended: EpisodeFailed | RolloutCut | None = None
    try:
        for act in scenes:
            messages += act.asked
            for line in act.lines:
                ids = tokens_of(stage, line, messages, tools)
                again = ids[: len(ids) // 2] if line.again else None
                reply = await stage.say(messages, tools, ids, again)
                messages.append(reply)
                if not reply.tool_calls:
                    break
                answers = [
                    Message("tool", line.answers[n % 3], tool_call_id=c.id, name=c.name or None)
                    for n, c in enumerate(reply.tool_calls)
                ]
                messages += reversed(answers) if line.crossed else answers
    except (EpisodeFailed, RolloutCut) as error:
        ended = error
    if isinstance(ended, EpisodeFailed):
        assert ended.reason == "render_failed"
        assert stage.renderer.name in ended.detail
    elif ended is not None:
        assert ended.termination == "malformed_reply"
        stage.kept.append(len(stage.model.samples) - 1)
    return messages


def check(stage: Any) -> None:
    """What the ledger holds is what was shown and sampled, token for token."""
    ledger = stage.agent.ledger
    segments, steps = ledger.segments(), ledger.steps
    samples = [stage.model.samples[n] for n in stage.kept]
    prompts = [stage.model.prompts[n] for n in stage.kept]
    assert len(steps) == len(samples)
    resets = 0
    for n, (step, prompt, sample) in enumerate(zip(steps, prompts, samples, strict=True)):
        assert step.completion.tolist() == sample.ids.tolist(), "a sample was changed"
        assert step.logprobs.tolist() == sample.logprobs.tolist()
        assert step.segment.ids[: step.start].tolist() == prompt.tolist(), "a prompt was changed"
        if n == 0:
            continue
        if step.segment_index == steps[n - 1].segment_index:
            known = np.concatenate([prompts[n - 1], samples[n - 1].ids])
            assert prompt[: len(known)].tolist() == known.tolist(), "history was rewritten within a segment"
        else:
            resets += 1
    assert stage.agent.resets == resets == len(segments) - 1 if segments else True
    acted = [lp for s in segments for lp in s.logprobs[s.kind == TokenKind.ACTION].tolist()]
    assert sorted(acted) == sorted(lp for s in samples for lp in s.logprobs.tolist()), (
        "an action token was not sampled, or a sampled one is no action, or is one twice"
    )
    for n, segment in enumerate(segments):
        mine = [s for s in steps if s.segment_index == n]
        inside = np.zeros(len(segment), bool)
        for step in mine:
            inside[step.start : step.stop] = True
        assert ((segment.kind == TokenKind.ACTION) == inside).all()
        assert mine, "a segment without a sample"
        assert len(segment) == mine[-1].stop, "a row ends in tokens that no sample follows"
        assert (segment.ids < stage.renderer.vocab_size).all()
    first = steps[0].start if steps else 0
    assert not segments or (segments[0].kind[:first] == TokenKind.PROMPT).all()


def shown(text: str) -> str:
    """*text* as a tokenizer may normalise it, without what templates trim."""
    return unicodedata.normalize("NFC", text.encode("utf-8", "replace").decode().strip())


def check_text(stage: Any, messages: list[Message]) -> None:
    """Every content that was shown to the model can be read in the rows; rendering and decoding agree."""
    segments = stage.agent.ledger.segments()
    text = unicodedata.normalize("NFC", "\0".join(stage.renderer.decode(s.ids) for s in segments))
    left = len(stage.agent.ledger.steps)
    for message in messages:
        if message.role == "assistant":
            left -= 1
        elif message.content.strip() and left:
            assert shown(message.content) in text, f"the {message.role} message {message.content!r} was never shown"
    try:
        whole = stage.renderer.render(messages, TOOLS)
    except EpisodeFailed:
        return
    text = unicodedata.normalize("NFC", stage.renderer.decode(whole.ids))
    for message in messages:
        if message.role != "assistant":
            assert shown(message.content) in text


@profile
@given(conversation=conversations)
def test_what_is_kept_is_what_was_shown_and_sampled(scene, play, conversation) -> None:
    async def main() -> None:
        for thinking in scene.thinking:
            async with play.stage(scene.renderer(thinking)) as stage:
                messages = await played(stage, conversation)
                check(stage)
                check_text(stage, messages)

    asyncio.run(main())
