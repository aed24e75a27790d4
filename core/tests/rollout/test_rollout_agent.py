"""The agent: what it plans for each request, what the ledger then holds, and where the limits cut."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest
import structlog

import ferrule
from ferrule import EpisodeFailed, Failure, Message, RolloutCut, SamplingParams, Termination, TokenKind, ToolSpec
from ferrule.rollout import Extend, Repeat, Reset, Start

USER = Message("user", "what is it")
PROMPT, ACTION, OBSERVATION, SCAFFOLD = TokenKind


def words(scene, segment):
    return scene.renderer.decode(segment.ids).split()


def kinds(scene, segment):
    return list(zip(words(scene, segment), (TokenKind(k).name[0] for k in segment.kind), strict=True))


async def test_each_prompt_goes_on_from_the_tokens_of_the_last(kit):
    answers = [kit.call("echo", a=i) if i % 2 else "thinking \\u00e9 aloud " + kit.call("echo", b=i) for i in range(12)]
    async with kit.agent(kit.script(*answers)) as scene:
        messages = [Message("system", "be brief"), USER]
        for i in range(12):
            reply = (await scene.agent.reply(messages, (kit.ECHO,))).message
            messages.append(reply)
            messages.append(Message("tool", f"answer {i} of many", tool_call_id=reply.tool_calls[0].id, name="echo"))
        prompts, completions = scene.sampler.prompts["s:agent"], scene.sampler.completions["s:agent"]
        for before, completion, after in zip(prompts, completions, prompts[1:], strict=False):
            assert after[: len(before) + len(completion)].tolist() == [*before.tolist(), *completion.tolist()]
        assert len(scene.agent.ledger.segments()) == 1
        assert scene.agent.ledger.sampled == 12


async def test_history_is_rendered_once_and_a_bridge_sees_only_the_end(kit):
    async with kit.agent(kit.script("fine")) as scene:
        messages = [USER]
        for i in range(200):
            messages.append((await scene.agent.reply(messages)).message)
            messages.append(Message("user", f"and {i}"))
        assert scene.renderer.rendered == 1
        assert set(scene.renderer.bridged) == {(3, 1)}


async def test_a_bridge_is_told_how_the_conversation_ends(kit):
    async with kit.agent(kit.script("hm </think> one", kit.call("echo"), "three")) as scene:
        messages = [Message("system", "brief"), USER]
        for i in range(4):
            messages.append((await scene.agent.reply(messages, (kit.ECHO,))).message)
            messages.append(Message("user", f"and {i}"))
        tails = scene.renderer.tails
        end = scene.renderer.id("<end>")
        assert [scene.renderer.decode(t.ids) for t in tails] == [
            "<assistant> hm </think> one <end>",
            "<assistant> <call> echo {} </call> <end>",
            "<assistant> three <end>",
        ]
        assert [(t.prompt_length, t.stop, t.index, t.tools) for t in tails] == [
            (1, end, 2, (kit.ECHO,)),
            (1, end, 4, (kit.ECHO,)),
            (1, end, 6, (kit.ECHO,)),
        ]
        assert [t.message for t in tails] == messages[2:7:2]
        assert tails[0].roles == ("system", "user")
        assert tails[2].roles == ("system", "user", "assistant", "user", "assistant", "user")
        # The reply itself is in the tail; only those before it are history.
        assert [t.strippable for t in tails] == [False, True, True]


async def test_kinds_tell_the_prompt_the_samples_and_the_observations_apart(kit):
    async with kit.agent(kit.script("yes")) as scene:
        reply = (await scene.agent.reply([USER])).message
        await scene.agent.reply([USER, reply, Message("tool", "seven eight")])
        (segment,) = scene.agent.ledger.segments()
        assert kinds(scene, segment) == [
            ("<user>", "P"), ("what", "P"), ("is", "P"), ("it", "P"), ("<end>", "P"), ("<assistant>", "P"),
            ("yes", "A"), ("<end>", "A"),
            ("<tool>", "S"), ("seven", "O"), ("eight", "O"), ("<end>", "S"), ("<assistant>", "S"),
            ("yes", "A"), ("<end>", "A"),
        ]  # fmt: skip


async def test_a_repeated_request_is_sampled_again_from_the_same_prompt(kit):
    async with kit.agent(kit.script("one", "two", "three", "four")) as scene:
        first = await scene.agent.reply([USER])
        again = await scene.agent.reply([USER])
        assert (first.message.content, again.message.content, again.step) == ("one", "two", 0)
        messages = [USER, again.message, Message("user", "go on")]
        await scene.agent.reply(messages)
        assert isinstance(scene.agent.plan(messages), Repeat)
        assert (await scene.agent.reply(messages)).message.content == "four"
        (segment,) = scene.agent.ledger.segments()
        assert " ".join(words(scene, segment)).count("<assistant> two <end>") == 1
        assert "one" not in words(scene, segment)
        assert "three" not in words(scene, segment)
        assert len(scene.agent.ledger.steps) == 2
        assert scene.agent.resets == 0
        a, b, c, d = scene.sampler.prompts["s:agent"]
        assert a.tolist() == b.tolist()
        assert c.tolist() == d.tolist()


async def test_a_repeat_replaces_a_message_and_adds_none_to_the_count(kit):
    async with kit.agent(kit.script("one", "two"), max_steps=1) as scene:
        await scene.agent.reply([USER])
        assert (await scene.agent.reply([USER])).message.content == "two"
        with pytest.raises(RolloutCut):
            await scene.agent.reply([USER, Message("user", "x")])


async def test_a_repeat_has_the_room_that_the_reply_it_cuts_off_took(kit):
    async with kit.agent(kit.script("a b c"), max_response_tokens=5) as scene:
        for _ in range(4):
            await scene.agent.reply([USER])
        assert {p.max_tokens for p in scene.sampler.params} == {5}


async def test_answers_in_another_order_keep_their_pairing(kit):
    two = kit.call("echo", x=1) + " " + kit.call("echo", x=2)
    async with kit.agent(kit.script(two, "done")) as scene:
        reply = (await scene.agent.reply([USER], (kit.ECHO,))).message
        a, b = (Message("tool", f"for {c.arguments['x']}", tool_call_id=c.id, name=c.name) for c in reply.tool_calls)
        messages = [USER, reply, b, a]
        plan = scene.agent.plan(messages, (kit.ECHO,))
        assert isinstance(plan, Extend)
        assert [m.tool_call_id for m in plan.new] == ["call_1", "call_0"]
        await scene.agent.reply(messages, (kit.ECHO,))
        assert "for 2 <end> <tool> for 1" in scene.renderer.decode(scene.agent.ledger.tokens(0))


@pytest.mark.parametrize(
    ("reason", "index", "messages", "tools"),
    [
        ("prefix_changed", 0, [Message("user", "something else"), Message("user", "go on")], ()),
        ("prefix_changed", 1, [USER, Message("assistant", "never said"), Message("user", "go on")], ()),
        ("prefix_changed", 1, [USER, Message("user", "go on")], ()),
        ("empty_delta", 2, [USER, Message("assistant", "yes")], ()),
        ("empty_delta", 2, [USER, Message("assistant", "yes"), Message("assistant", "also")], ()),
        (
            "no_bridge",
            2,
            [USER, Message("assistant", "yes"), Message("user", "a"), Message("assistant", "b"), USER],
            (),
        ),
        ("tools_changed", 2, [USER, Message("assistant", "yes"), Message("user", "go on")], (ToolSpec("new"),)),
    ],
)
async def test_a_history_that_cannot_be_extended_starts_a_segment_and_says_why(kit, reason, index, messages, tools):
    async with kit.agent(kit.script("yes", "well")) as scene:
        await scene.agent.reply([USER])
        with structlog.testing.capture_logs() as logs:
            plan = scene.agent.plan(messages, tools)
            await scene.agent.reply(messages, tools)
        assert isinstance(plan, Reset)
        assert (plan.reason, plan.index) == (reason, index)
        (event,) = [entry for entry in logs if entry["event"] == "segment_reset"]
        assert (event["reason"], event["index"], event["turn"], event["messages_incoming"]) == (
            reason,
            index,
            1,
            len(messages),
        )
        assert event["tokens_incoming"] == len(scene.sampler.prompts["s:agent"][-1])
        assert event["tokens_held"] == len(scene.agent.ledger.segments()[0])
        assert (event["messages_held"], event["session"], event["agent"], event["resets"]) == (2, "s", "agent", 1)
        assert event["detail"] == plan.detail != ""
        assert event["preview"].startswith(f"{messages[index].role}: " if index < len(messages) else "")
        assert len(scene.agent.ledger.segments()) == 2
        assert scene.sampler.prompts["s:agent"][-1].tolist() == scene.renderer.render(messages, tools).ids.tolist()


async def test_after_a_reset_only_what_is_new_counts_as_the_environments(kit):
    async with kit.agent(kit.script("yes"), renderer=kit.WordRenderer(strips=True)) as scene:
        reply = (await scene.agent.reply([USER])).message
        messages = [USER, reply, Message("tool", "seven")]
        messages.append((await scene.agent.reply(messages)).message)
        await scene.agent.reply([*messages, Message("user", "what is it")])
        _, second, third = scene.agent.ledger.segments()
        assert kinds(scene, second) == [
            ("<user>", "P"), ("what", "P"), ("is", "P"), ("it", "P"), ("<end>", "P"),
            ("<assistant>", "P"), ("yes", "P"), ("<end>", "P"),
            ("<tool>", "S"), ("seven", "O"), ("<end>", "S"), ("<assistant>", "S"), ("yes", "A"), ("<end>", "A"),
        ]  # fmt: skip
        # The user's words came before, but not twice: the second time they are new.
        assert "".join(k for _, k in kinds(scene, third)) == "P" * 14 + "SOOOSS" + "AA"
        assert scene.agent.resets == 2
        assert all(k.count(ACTION) == 2 for k in (s.kind.tolist() for s in scene.agent.ledger.segments()))


async def test_replies_that_were_not_sampled_here_are_never_trained_on(kit):
    async with kit.agent(kit.script("yes")) as scene:
        await scene.agent.reply([USER])
        await scene.agent.reply([Message("user", "new"), Message("assistant", "foreign words"), Message("user", "so")])
        second = scene.agent.ledger.segments()[1]
        told = dict(kinds(scene, second))
        assert (told["foreign"], told["words"], told["new"], told["so"]) == ("P", "P", "O", "O")


async def test_a_close_that_the_renderer_appends_was_not_sampled(kit):
    renderer = kit.WordRenderer()
    bridge = renderer.bridge

    def closing(tail, messages, tools=()):
        delta = bridge(tail, messages, tools)
        spans = tuple((start + 1, stop + 1) for start, stop in delta.spans)
        ids = np.concatenate([renderer.encode(["<close>"]), delta.ids])
        return ferrule.Rendered(ids, np.concatenate([np.array([ACTION], np.uint8), delta.kinds]), spans)

    renderer.bridge = closing
    async with kit.agent(kit.script("yes"), renderer=renderer) as scene:
        reply = (await scene.agent.reply([USER])).message
        await scene.agent.reply([USER, reply, Message("tool", "seven")])
        (segment,) = scene.agent.ledger.segments()
        assert ("<close>", "S") in kinds(scene, segment)
        assert (segment.kind == ACTION).sum() == sum(len(s.completion) for s in scene.agent.ledger.steps) == 4


async def test_a_side_conversation_does_not_disturb_the_main_one(kit):
    async with kit.agent(kit.script("yes", "a title", "on", "more")) as scene:
        main = [USER, (await scene.agent.reply([USER])).message, Message("user", "go on")]
        side = [Message("user", "give a title")]
        side += [(await scene.agent.reply(side)).message, Message("user", "shorter")]
        assert isinstance(scene.agent.plan(main), Extend)
        main.append((await scene.agent.reply(main)).message)
        await scene.agent.reply(side)
        assert scene.agent.resets == 1
        assert [step.segment_index for step in scene.agent.ledger.steps] == [0, 1, 0, 1]


async def test_equal_messages_match_as_identical_ones_do(kit):
    async with kit.agent(kit.script("yes")) as scene:
        reply = (await scene.agent.reply([USER])).message
        copies = [Message.from_openai(m.to_openai()) for m in (USER, reply)]
        assert isinstance(scene.agent.plan([*copies, Message("user", "go on")]), Extend)
        assert isinstance(scene.agent.plan(tuple(copies[:1])), Repeat)


async def test_a_request_that_is_cancelled_leaves_the_ledger_as_it_was(kit):
    gate = asyncio.Event()

    def answers(prompt, number, key):
        async def wait():
            await gate.wait()
            return "late"

        return wait() if number in (0, 2) else "yes"

    async with kit.agent(answers) as scene:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(scene.agent.reply([USER]), 0.01)
        assert scene.agent.ledger.segments() == ()
        reply = (await scene.agent.reply([USER])).message
        before = scene.agent.ledger.tokens(0).tolist()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(scene.agent.reply([USER, reply, Message("user", "one thing")]), 0.01)
        assert scene.agent.ledger.tokens(0).tolist() == before
        await scene.agent.reply([USER, reply, Message("user", "another")])
        lost, kept = scene.sampler.prompts["s:agent"][2:]
        assert scene.renderer.decode(lost).endswith("one thing <end> <assistant>")
        assert scene.renderer.decode(kept).endswith("another <end> <assistant>")
        assert scene.agent.resets == 0
        assert scene.rollout.ended is None


async def test_requests_at_once_wait_for_each_other(kit):
    async with kit.agent(kit.script("yes")) as scene:
        await asyncio.gather(*(scene.agent.reply([Message("user", f"number {i}")]) for i in range(5)))
        assert len(scene.agent.ledger.segments()) == 5


# -- limits ------------------------------------------------------------------------------------------------------------


async def cut_of(scene, messages, tools=()):
    with pytest.raises(RolloutCut) as caught:
        await scene.agent.reply(messages, tools)
    with pytest.raises(RolloutCut):
        await scene.agent.reply(messages, tools)
    assert scene.rollout.ended is caught.value
    return caught.value.termination


async def test_steps_are_counted_over_all_agents(kit):
    async with kit.agent(kit.script("yes"), roles=("agent", "critic"), max_steps=3) as scene:
        critic = scene.rollout.agent("critic")
        reply = (await scene.agent.reply([USER])).message
        await critic.reply([USER])
        await critic.reply([Message("user", "other")])
        assert await cut_of(scene, [USER, reply, Message("user", "more")]) is Termination.MAX_STEPS
        with pytest.raises(RolloutCut):
            await critic.reply([USER])
        assert scene.sampler.seeds["s:agent"] != scene.sampler.seeds["s:critic"]


async def test_a_first_prompt_over_the_budget_is_cut_before_anything_is_sampled(kit):
    async with kit.agent(kit.script("yes"), max_prompt_tokens=5) as scene:
        assert await cut_of(scene, [USER]) is Termination.MAX_PROMPT_LENGTH
        assert scene.sampler.prompts == {}
        assert scene.agent.ledger.segments() == ()


async def test_a_later_prompt_may_be_longer_than_the_first(kit):
    async with kit.agent(kit.script("yes"), max_prompt_tokens=6) as scene:
        reply = (await scene.agent.reply([USER])).message
        await scene.agent.reply([USER, reply, Message("tool", "a long answer")])


async def test_a_first_prompt_that_fills_the_context_counts_as_too_long(kit):
    async with kit.agent(kit.script("yes"), context_length=6) as scene:
        assert await cut_of(scene, [USER]) is Termination.MAX_PROMPT_LENGTH


async def test_a_tool_answer_that_overflows_the_context_cuts_and_leaves_no_row_too_long(kit):
    async with kit.agent(kit.script("yes"), context_length=20) as scene:
        reply = (await scene.agent.reply([USER])).message
        assert await cut_of(scene, [USER, reply, Message("tool", "x " * 50)]) is Termination.MAX_RESPONSE_LENGTH
        (segment,) = scene.agent.ledger.segments()
        assert words(scene, segment)[-2:] == ["yes", "<end>"]


async def test_the_room_that_is_left_bounds_the_sample(kit):
    sampling = SamplingParams(max_tokens=10)
    async with kit.agent(
        kit.script("one two three"), sampling=sampling, max_response_tokens=18, context_length=23
    ) as scene:
        messages = [USER]
        for _ in range(3):
            messages += [(await scene.agent.reply(messages)).message, Message("user", "u")]
            if len(messages) == 5:
                break
        # 6 of prompt, 4 sampled, 4 of the next message: 8 of 18 are used, and 14 of the context's 23.
        assert [p.max_tokens for p in scene.sampler.params] == [10, 9]
        assert await cut_of(scene, messages) is Termination.MAX_RESPONSE_LENGTH
        assert scene.sampler.params[-1].max_tokens == 1
        assert scene.sampler.params[0].stop_ids == scene.renderer.stop_ids


async def test_all_tokens_after_the_first_prompt_count_however_many_segments_they_are_in(kit):
    renderer = kit.WordRenderer(strips=True)
    async with kit.agent(kit.script("yes"), renderer=renderer, max_response_tokens=12) as scene:
        messages = [USER]
        for _ in range(2):
            messages += [(await scene.agent.reply(messages)).message, Message("user", "u")]
        assert [p.max_tokens for p in scene.sampler.params] == [12, 6]
        assert await cut_of(scene, messages) is Termination.MAX_RESPONSE_LENGTH


async def test_a_completion_cut_by_length_is_recorded_and_ends_the_rollout(kit):
    async with kit.agent(kit.script("one two three"), sampling=SamplingParams(max_tokens=2)) as scene:
        assert await cut_of(scene, [USER]) is Termination.MAX_RESPONSE_LENGTH
        (step,) = scene.agent.ledger.steps
        assert (step.stop_reason, step.status, step.message.content) == ("length", "truncated", "one two")
        assert scene.rollout.undelivered == step.message


async def test_a_reply_beyond_use_is_recorded_and_ends_the_rollout(kit):
    async with kit.agent(kit.script("well <call> echo {")) as scene:
        assert await cut_of(scene, [USER], (kit.ECHO,)) is Termination.MALFORMED_REPLY
        assert scene.agent.ledger.steps[0].status == "malformed"


async def test_a_malformed_reply_with_one_good_call_goes_on(kit):
    async with kit.agent(kit.script(kit.call("echo") + " <call> echo {")) as scene:
        reply = await scene.agent.reply([USER], (kit.ECHO,))
        assert reply.parsed.status == "malformed"
        assert [c.name for c in reply.message.tool_calls] == ["echo"]


# -- what breaks -------------------------------------------------------------------------------------------------------


async def failure_of(scene, messages=(USER,), tools=()):
    with pytest.raises(EpisodeFailed) as caught:
        await scene.agent.reply(messages, tools)
    assert scene.rollout.ended is caught.value
    return caught.value


async def test_an_engine_that_breaks_fails_the_episode(kit):
    async with kit.agent(kit.script(OSError("no memory"))) as scene:
        failure = await failure_of(scene)
        assert (failure.reason, failure.detail) == (Failure.ENGINE_FAILED, "OSError: no memory")


async def test_an_engine_that_cancels_a_request_is_not_taken_for_a_cancelled_episode(kit):
    async with kit.agent(kit.script(asyncio.CancelledError())) as scene:
        assert (await failure_of(scene)).reason is Failure.ENGINE_FAILED


async def test_a_token_outside_the_vocabulary_fails_the_episode(kit):
    renderer = kit.WordRenderer()
    renderer.render([USER])
    async with kit.agent(kit.script("beyond"), renderer=renderer, vocab_size=len(renderer.words)) as scene:
        failure = await failure_of(scene)
        assert failure.reason is Failure.INVALID_TOKEN
        assert "the engine sampled token" in failure.detail
        assert scene.agent.ledger.sampled == 0


async def test_whatever_breaks_in_a_renderer_names_it(kit):
    renderer = kit.WordRenderer()
    async with kit.agent(kit.script("yes"), renderer=renderer) as scene:
        renderer.parse = lambda *a, **k: 1 / 0
        failure = await failure_of(scene)
        assert failure.reason is Failure.RENDER_FAILED
        assert "renderer 'words' failed in parse: ZeroDivisionError" in failure.detail


async def test_a_renderer_whose_spans_do_not_fit_is_refused_at_the_first_prompt(kit):
    renderer = kit.WordRenderer()
    good = renderer.render
    renderer.render = lambda *a, **k: ferrule.Rendered(good(*a, **k).ids, good(*a, **k).kinds)
    async with kit.agent(kit.script("yes"), renderer=renderer) as scene:
        assert "0 spans for 1 messages" in (await failure_of(scene)).detail


async def test_the_first_request_starts(kit):
    async with kit.agent(kit.script("yes")) as scene:
        assert isinstance(scene.agent.plan([USER]), Start)


async def test_a_turn_costs_what_it_adds_however_long_the_history(kit):
    """The harness keeps its message objects, so a history of 1,600 is compared by identity and nothing of it is
    rendered or copied in Python.
    """
    async with kit.agent(kit.script("fine"), context_length=1 << 20, max_response_tokens=1 << 19) as scene:
        messages, cost = [USER], []
        for i in range(800):
            messages.append(Message("user", f"and {i}")) if i else None
            began = time.thread_time_ns()
            scene.agent.plan(messages)
            cost.append(time.thread_time_ns() - began)
            messages.append((await scene.agent.reply(messages)).message)
        early, late = np.median(cost[50:150]), np.median(cost[-100:])
        assert late < 4 * early + 100_000


async def test_a_program_that_keeps_tokens_itself_is_held_to_the_same_limits(kit):
    async with kit.agent(kit.script("one two", "three"), max_steps=2) as scene:
        first = scene.renderer.encode(["<user>", "hi", "<end>", "<assistant>"])
        reply = await scene.agent.complete(first)
        grown = np.concatenate([first, reply.sample.ids, scene.renderer.encode(["more"])])
        await scene.agent.complete(grown)
        (segment,) = scene.agent.ledger.segments()
        assert [kind for _, kind in kinds(scene, segment)] == list("PPPPAAAOAA")
        await scene.agent.complete(grown)  # again: takes the place of the last, and is no third message
        assert scene.agent.ledger.sampled == 2
        with pytest.raises(RolloutCut) as cut:
            await scene.agent.complete(np.append(grown, scene.renderer.encode(["else"])))
        assert cut.value.termination is Termination.MAX_STEPS
        assert scene.rollout.ended is cut.value
