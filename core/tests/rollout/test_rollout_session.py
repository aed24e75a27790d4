"""A session: several conversations at once over one ledger, newer requests in the place of older ones, token prompts."""

from __future__ import annotations

import asyncio

import attrs
import numpy as np
import pytest
import structlog

from ferrule import (
    EpisodeFailed,
    Message,
    Sample,
    SamplerSession,
    SamplingParams,
    Session,
    Superseded,
    TokenKind,
    ToolCall,
    ToolSpec,
)
from ferrule.algorithm import rows_of
from ferrule.masking import keep_secret

PARAMS = SamplingParams(max_tokens=64)


def room(length: int, superseded: int) -> int:
    return 1000


class Engine(SamplerSession):
    """Answers ``said <n> <end>`` to its n-th request, each when it is let go."""

    concurrent = True

    def __init__(self, renderer, held=False):
        self.renderer, self.prompts, self.cancelled = renderer, [], 0
        self.gate = asyncio.Event()
        if not held:
            self.gate.set()

    async def sample(self, prompt, params):
        n = len(self.prompts)
        self.prompts.append(np.array(prompt))
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        ids = self.renderer.encode(["said", str(n), "<end>"])
        return Sample(ids, np.full(3, -0.5, np.float32), np.zeros(3, np.int32), "stop")


@pytest.fixture
def make(kit):
    def made(held=False):
        renderer = kit.WordRenderer()
        engine = Engine(renderer, held)
        return Session(renderer, engine, key="s"), engine

    return made


def user(text):
    return Message("user", text)


async def test_two_conversations_at_once_do_not_mix(make):
    session, engine = make(held=True)
    main = asyncio.ensure_future(session.reply([user("work")], (), PARAMS, room))
    title = asyncio.ensure_future(session.reply([user("a title please")], (), PARAMS, room))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    engine.gate.set()
    one, two = await asyncio.gather(main, title)
    assert (one.message.content, two.message.content) == ("said 0", "said 1")
    after = await session.reply([user("work"), one.message, user("more")], (), PARAMS, room)
    assert after.message.content == "said 2"
    assert session.resets == 0
    texts = [session.renderer.decode(s.ids) for s in session.ledger.segments()]
    assert texts[0].startswith("<user> work <end>")
    assert "more" in texts[0]
    assert texts[1].startswith("<user> a title please <end>")


async def test_the_same_request_again_takes_the_place_of_the_one_in_flight(make):
    session, engine = make(held=True)
    first = asyncio.ensure_future(session.reply([user("work")], (), PARAMS, room))
    await asyncio.sleep(0.01)
    second = asyncio.ensure_future(session.reply([user("work")], (), PARAMS, room))
    await asyncio.sleep(0.01)
    assert engine.cancelled == 1
    engine.gate.set()
    with pytest.raises(Superseded):
        await first
    assert (await second).message.content == "said 1"
    (row,) = rows_of([session.trajectory(None)])
    assert (row.kind == TokenKind.ACTION).sum() == 3


async def test_a_request_that_goes_on_from_the_same_reply_supersedes_the_one_in_flight(make):
    session, engine = make()
    reply = await session.reply([user("work")], (), PARAMS, room)
    engine.gate.clear()
    history = [user("work"), reply.message]
    older = asyncio.ensure_future(session.reply([*history, user("left")], (), PARAMS, room))
    await asyncio.sleep(0.01)
    newer = asyncio.ensure_future(session.reply([*history, user("right")], (), PARAMS, room))
    await asyncio.sleep(0.01)
    engine.gate.set()
    with pytest.raises(Superseded):
        await older
    assert (await newer).message.content == "said 2"
    (segment,) = session.ledger.segments()
    text = session.renderer.decode(segment.ids)
    assert "left" not in text
    assert "right" in text


async def test_a_retry_after_a_reset_repeats_the_new_segment(kit):
    renderer = kit.WordRenderer(strips=True)
    session = Session(renderer, Engine(renderer))
    reply = await session.reply([user("work")], (), PARAMS, room)
    longer = [user("work"), reply.message, user("more")]
    await session.reply(longer, (), PARAMS, room)
    again = await session.reply(longer, (), PARAMS, room)
    assert (again.message.content, session.resets, len(session.ledger)) == ("said 2", 1, 2)
    assert [step.message.content for step in session.trajectory(None).steps] == ["said 0", "said 2"]


async def test_an_empty_reply_that_is_sampled_again_leaves_one_step(make):
    session, engine = make()
    none = Sample(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.int32), "length")

    async def nothing(prompt, params):
        return none

    full, engine.sample = engine.sample, nothing
    await session.reply([user("work")], (), PARAMS, room)
    engine.sample = full
    assert (await session.reply([user("work")], (), PARAMS, room)).message.content == "said 0"
    assert [step.message.content for step in session.trajectory(None).steps] == ["said 0"]


async def test_a_caller_that_goes_away_leaves_no_trace(make):
    session, engine = make(held=True)
    task = asyncio.ensure_future(session.reply([user("work")], (), PARAMS, room))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(session.ledger) == 0
    assert engine.cancelled == 1
    engine.gate.set()
    assert (await session.reply([user("work")], (), PARAMS, room)).message.content == "said 1"


async def test_an_engine_of_one_request_at_a_time_is_asked_so(kit):
    renderer = kit.WordRenderer()

    class OneAtATime(Engine):
        concurrent = False
        running = most = 0

        async def sample(self, prompt, params):
            self.running += 1
            self.most = max(self.most, self.running)
            await asyncio.sleep(0)
            try:
                return await super().sample(prompt, params)
            finally:
                self.running -= 1

    engine = OneAtATime(renderer)
    session = Session(renderer, engine)
    replies = await asyncio.gather(*(session.reply([user(f"w{i}")], (), PARAMS, room) for i in range(8)))
    assert engine.most == 1
    assert [r.message.content for r in replies] == [f"said {i}" for i in range(8)]


async def test_token_prompts_that_grow_are_one_row_with_the_new_tokens_observed(make):
    session, engine = make()
    first = np.array([5, 6, 7], np.int32)
    reply = await session.complete(first, PARAMS, room)
    grown = np.concatenate([first, reply.sample.ids, np.array([8, 9], np.int32)])
    await session.complete(grown, PARAMS, room)
    (row,) = rows_of([session.trajectory(None)])
    kinds = [TokenKind.PROMPT] * 3 + [TokenKind.ACTION] * 3 + [TokenKind.OBSERVATION] * 2 + [TokenKind.ACTION] * 3
    assert row.kind.tolist() == kinds
    assert np.array_equal(row.ids[:8], grown)
    assert np.array_equal(engine.prompts[1], grown)


async def test_a_token_prompt_again_is_sampled_again_and_another_opens_a_segment(make):
    session, _ = make()
    first = np.array([5, 6, 7], np.int32)
    await session.complete(first, PARAMS, room)
    await session.complete(first, PARAMS, room)
    assert len(session.ledger) == 1
    assert session.ledger.sampled == 1
    with structlog.testing.capture_logs() as logs:
        await session.complete(np.array([5, 9], np.int32), PARAMS, room)
    assert len(session.ledger) == 2
    (event,) = [entry for entry in logs if entry["event"] == "segment_reset"]
    assert (event["reason"], event["index"], event["turn"], event["resets"]) == ("prefix_changed", 1, 1, 1)
    assert (event["tokens_held"], event["tokens_incoming"]) == (6, 2)
    assert (session.resets, session.trajectory(None).metadata["resets"]) == (1, 1)


async def test_a_token_prompt_again_goes_before_a_shorter_one_that_it_goes_on_from(make):
    session, engine = make()
    short = np.array([5, 6], np.int32)
    sampled = engine.renderer.encode(["said", "1", "<end>"])
    long = np.concatenate([short, sampled, np.array([7], np.int32)])
    await session.complete(long, PARAMS, room)
    await session.complete(short, PARAMS, room)
    await session.complete(long, PARAMS, room)
    assert [len(segment) for segment in session.ledger.segments()] == [len(long) + 3, 5]


async def test_a_token_prompt_whose_completion_was_empty_is_sampled_again(make):
    session, engine = make()

    async def nothing(prompt, params):
        return Sample(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.int32), "length")

    full, engine.sample = engine.sample, nothing
    await session.complete(np.array([5, 6], np.int32), PARAMS, room)
    engine.sample = full
    await session.complete(np.array([5, 6], np.int32), PARAMS, room)
    assert [step.message.content for step in session.trajectory(None).steps] == ["said 0"]


@pytest.mark.parametrize("again", [False, True], ids=["next request", "same request"])
async def test_a_reply_that_the_renderer_fails_to_read_leaves_no_trace(make, again):
    session, engine = make()
    asked = [user("work")]
    first = await session.reply(asked, (), PARAMS, room)
    before = session.ledger.segments()[0].ids.tolist()
    if not again:
        asked = [*asked, first.message, user("more")]
    parse, session.renderer.parse = session.renderer.parse, None
    with pytest.raises(EpisodeFailed, match="failed in parse"):
        await session.reply(asked, (), PARAMS, room)
    session.renderer.parse = parse
    (segment,) = session.ledger.segments()
    assert segment.ids.tolist() == before
    assert (await session.reply(asked, (), PARAMS, room)).message.content == "said 2"
    assert np.array_equal(engine.prompts[1], engine.prompts[2])


async def test_a_token_prompt_outside_the_vocabulary_is_refused_and_leaves_no_trace(kit):
    renderer = kit.WordRenderer()
    session = Session(renderer, Engine(renderer), vocab_size=100)
    with pytest.raises(EpisodeFailed, match="token 100; the vocabulary has 100"):
        await session.complete(np.array([1, 100], np.int32), PARAMS, room)
    assert len(session.ledger) == 0


async def test_what_has_no_room_is_raised_as_the_caller_says_and_leaves_no_trace(make):
    session, engine = make()

    def none(length, superseded):
        raise ValueError(f"{length} tokens are too many")

    with pytest.raises(ValueError, match="tokens are too many"):
        await session.reply([user("work")], (), PARAMS, none)
    assert (len(session.ledger), engine.prompts) == (0, [])


async def test_of_equal_conversations_the_one_with_the_same_tools_is_gone_on_from(kit, make):
    session, engine = make()
    sample = engine.sample

    async def same(prompt, params):
        engine.prompts.clear()
        return await sample(prompt, params)

    engine.sample = same
    asked, tools = [user("work")], (kit.ECHO,)
    first = await session.reply(asked, tools, PARAMS, room)
    second = await session.reply(asked, (), PARAMS, room)
    assert first.message == second.message
    await session.reply([*asked, first.message, user("more")], tools, PARAMS, room)
    assert session.resets == 1
    assert "more" in session.renderer.decode(session.ledger.segments()[0].ids)


async def test_a_token_conversation_in_use_outlives_many_short_ones(make):
    session, _ = make()
    ids = np.array([5, 6], np.int32)
    for n in range(12):
        reply = await session.complete(ids, PARAMS, room)
        ids = np.concatenate([ids, reply.sample.ids, np.array([7], np.int32)])
        await session.complete(np.array([100 + n], np.int32), PARAMS, room)
    assert len(session.ledger) == 13


async def test_a_reply_that_cannot_be_told_from_others_leaves_no_trace(make):
    session, _ = make()
    parse = session.renderer.parse

    def odd(ids, tools=(), *, opened=()):
        call = ToolCall("c", "f", {1: "a", "b": 2})
        return attrs.evolve(parse(ids), message=Message("assistant", "", tool_calls=(call,)))

    session.renderer.parse = odd
    with pytest.raises(EpisodeFailed, match="renderer 'words' failed in parse: TypeError"):
        await session.reply([user("work")], (), PARAMS, room)
    assert len(session.ledger) == 0


async def test_a_stop_token_that_came_last_of_all_closes_its_turn_whatever_the_engine_says(make):
    session, engine = make()
    sample = engine.sample

    async def cut(prompt, params):
        return attrs.evolve(await sample(prompt, params), stop_reason="length")

    engine.sample = cut
    reply = await session.reply([user("work")], (), PARAMS, room)
    await session.reply([user("work"), reply.message, user("more")], (), PARAMS, room)
    assert "<end> <end>" not in session.renderer.decode(session.ledger.segments()[0].ids)


async def test_the_event_of_a_reset_is_bounded_and_holds_no_half_of_a_secret(kit, make):
    session, _ = make()
    secret = "sk-" + "x1y2" * 10
    keep_secret(secret)
    await session.reply([user("work")], (), PARAMS, room)
    calls = tuple(ToolCall(f"c{n}", "name" * 1000, {}) for n in range(1000))
    first = Message("assistant", "p" * 60 + secret + "q" * 100_000, tool_calls=calls)
    with structlog.testing.capture_logs() as logs:
        await session.reply([first, user("more")], (), PARAMS, room)
        many = [ToolSpec(f"tool{n}" * 50) for n in range(500)]
        await session.reply([user("work")], many, PARAMS, room)
    events = [entry for entry in logs if entry["event"] == "segment_reset"]
    assert [event["reason"] for event in events] == ["prefix_changed", "tools_changed"]
    assert "sk-" not in str(events)
    assert all(len(str(event)) < 2000 for event in events)
