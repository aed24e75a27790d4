"""Named cases of what is kept for training, played through the core's agent on a real template."""

from __future__ import annotations

import numpy as np
import pytest
import structlog

from ferrule import EpisodeFailed, Message, TokenKind

PROMPT, ACTION, OBSERVATION, SCAFFOLD = TokenKind
ASK, MORE = Message("user", "What is 2 + 2?"), Message("user", "And 3 + 3?")


def spelled(stage, text: str) -> list[int]:
    """The ids of *text* as a model that writes ChatML would sample it (the vocabulary is of single bytes)."""
    return stage.renderer._parts.encoder.encode(text)


def rows(stage) -> list[str]:
    return [stage.renderer.decode(s.ids) for s in stage.agent.ledger.segments()]


def marked(stage, kind: int) -> list[str]:
    return [stage.renderer.decode(s.ids[s.kind == kind]) for s in stage.agent.ledger.segments()]


async def test_a_reply_cut_inside_its_reasoning_is_reasoning_and_the_next_prompt_closes_the_block_then_the_turn(play):
    async with play.stage(play.made("qwen3_letters", "chat_template", "keep")) as stage:
        reply = await stage.say([ASK], (), spelled(stage, "<think>\nAdding them"))
        assert (reply.reasoning, reply.content) == ("Adding them", "")
        await stage.say([ASK, reply, MORE], (), spelled(stage, "6<|im_end|>"))
        (row,) = rows(stage)
        assert (
            "assistant\n<think>\nAdding them\n</think>\n\n<|im_end|>\n<|im_start|>user\nAnd 3 + 3?<|im_end|>\n"
            "<|im_start|>assistant\n6<|im_end|>"
        ) in row
        assert marked(stage, ACTION) == ["<think>\nAdding them6<|im_end|>"]
        assert marked(stage, OBSERVATION) == ["And 3 + 3?"]


async def test_the_newline_after_a_turns_close_is_scaffold_of_the_next_prompt(play):
    async with play.stage(play.made("qwen3_letters", "chat_template")) as stage:
        reply = await stage.say([ASK], (), spelled(stage, "4<|im_end|>"))
        await stage.say([ASK, reply, MORE], (), spelled(stage, "6<|im_end|>"))
        (segment,) = stage.agent.ledger.segments()
        first = stage.agent.ledger.steps[0]
        assert stage.renderer.decode(segment.ids[first.stop : first.stop + 1]) == "\n"
        assert segment.kind[first.stop] == SCAFFOLD
        assert marked(stage, SCAFFOLD) == ["\n<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n"]


async def test_a_template_that_strips_reasoning_starts_a_row_each_time_and_each_has_its_own_action(play):
    async with play.stage(play.made("qwen3_letters", "chat_template")) as stage:
        messages = [ASK]
        with structlog.testing.capture_logs() as logs:
            for answer in ("4", "6"):
                said = f"<think>\neasy\n</think>\n\n{answer}<|im_end|>"
                messages += [await stage.say(messages, (), spelled(stage, said)), MORE]
        assert marked(stage, ACTION) == [f"<think>\neasy\n</think>\n\n{n}<|im_end|>" for n in "46"]
        assert "easy" not in rows(stage)[1].partition("And 3 + 3?")[0]
        (event,) = [e for e in logs if e["event"] == "segment_reset"]
        assert event["reason"] == "no_bridge"
        assert "strips earlier thinking" in event["detail"]


async def test_a_boundary_in_other_tokens_makes_two_rows_each_with_its_own_mask(play):
    """A program that keeps the tokens itself, and encodes the end of a reply anew: no row is without its action."""
    async with play.stage(play.made("qwen3", "chat_template")) as stage:
        prompt = stage.renderer.render([ASK]).ids
        reply = np.array([*spelled(stage, "ab"), *spelled(stage, "cd"), *spelled(stage, "<|im_end|>")], np.int32)
        stage.model.choose = lambda shown: reply
        await stage.agent.complete(prompt)
        again = np.array([*prompt, *spelled(stage, "abcd<|im_end|>\n")], np.int32)
        assert again[: len(prompt) + len(reply)].tolist() != [*prompt, *reply]
        await stage.agent.complete(again)
        assert marked(stage, ACTION) == ["abcd<|im_end|>", "abcd<|im_end|>"]
        assert [int((s.kind == ACTION).sum()) for s in stage.agent.ledger.segments()] == [len(reply)] * 2


async def test_a_system_message_where_the_template_has_none_is_refused_with_the_renderers_name(play):
    async with play.stage(play.made("gemma3", "chat_template")) as stage:
        reply = await stage.say([ASK], (), [*spelled(stage, "4"), min(stage.renderer.stop_ids)])
        with pytest.raises(EpisodeFailed, match="render_failed: renderer 'chat_template'"):
            await stage.say([ASK, reply, Message("system", "Be brief."), MORE], (), [])
        assert len(rows(stage)) == 1


async def test_an_empty_reply_is_a_step_and_the_conversation_goes_on(play):
    async with play.stage(play.made("qwen3_letters", "chat_template")) as stage:
        reply = await stage.say([ASK], (), [])
        await stage.say([ASK, reply, MORE], (), spelled(stage, "6<|im_end|>"))
        assert [s.stop - s.start for s in stage.agent.ledger.steps] == [0, 2]
        assert len(rows(stage)) == 1


async def test_an_empty_reply_whose_request_is_made_again_is_forgotten(play):
    async with play.stage(play.made("qwen3_letters", "chat_template")) as stage:
        await stage.say([ASK], (), [], again=spelled(stage, "4<|im_end|>"))
        assert len(stage.agent.ledger.steps) == 1


async def test_a_retry_after_a_new_segment_is_a_repeat(play):
    async with play.stage(play.made("qwen3_letters", "chat_template")) as stage:
        reply = await stage.say([ASK], (), spelled(stage, "<think>\neasy\n</think>\n\n4<|im_end|>"))
        for answer in ("6", "7"):
            await stage.say([ASK, reply, MORE], (), spelled(stage, f"{answer}<|im_end|>"))
        assert marked(stage, ACTION)[1:] == ["7<|im_end|>"]
        assert stage.agent.resets == 1
