"""What a session captures is, token for token, what the sampler was shown and what it sampled, however the client
sends it back.
"""

from __future__ import annotations

import asyncio
import copy
import json

import numpy as np
import pytest

END = "<|im_end|>"
HELLO = [{"role": "user", "content": "hello"}]
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "number"}, "note": {"type": "string"}},
        },
    },
}


def thinks(prompt: str, number: int, key: str) -> str:
    return f"<think>\nthought {number}\n</think>\n\nanswer {number}{END}"


def calls(prompt: str, number: int, key: str) -> str:
    call = {"name": "add", "arguments": {"a": number, "b": 2.0, "note": "é ü"}}
    return f"<think>\nt{number}\n</think>\n\n<tool_call>\n{json.dumps(call)}\n</tool_call>{END}"


def checked(trajectory, sampler, id_: str) -> None:
    """Every step's prompt and completion are what the sampler saw and gave, in order."""
    prompts, samples = sampler.prompts[id_], sampler.samples[id_]
    assert len(trajectory["steps"]) == len(prompts) == len(samples)
    for step, prompt, sample in zip(trajectory["steps"], prompts, samples, strict=True):
        segment = trajectory["segments"][step["segment"]]
        part = slice(step["start"], step["stop"])
        assert segment["ids"][: step["start"]] == prompt.tolist()
        assert segment["ids"][part] == sample.ids.tolist()
        assert np.array(segment["logprobs"][part], np.float32).tolist() == sample.logprobs.tolist()
        assert segment["versions"][part] == sample.versions.tolist()
        assert set(segment["kinds"][part]) == {trajectory["kind_names"].index("action")}
        assert step["stop_reason"] == sample.stop_reason


async def test_a_conversation_is_one_segment_of_exactly_what_was_shown_and_sampled(serve) -> None:
    served = await serve(thinks)
    id_ = await served.session()
    messages = list(HELLO)
    for turn in range(3):
        status, out = await served.chat(id_, messages)
        assert status == 200, out
        message = out["choices"][0]["message"]
        assert message == {"role": "assistant", "content": f"answer {turn}", "reasoning_content": f"thought {turn}"}
        messages += [message, {"role": "tool", "tool_call_id": "x", "content": f"more {turn}"}]
    trajectory = await served.trajectory(id_)
    assert len(trajectory["segments"]) == 1
    checked(trajectory, served.sampler, id_)


def as_null(message):
    return {**message, "content": message["content"] or None}


def as_empty(message):
    return {**message, "content": message["content"] or ""}


def as_parts(message):
    return {**message, "content": [{"type": "text", "text": message["content"] or ""}]}


def without_content(message):
    return {k: v for k, v in message.items() if k != "content" or v}


def without_reasoning(message):
    return {k: v for k, v in message.items() if k != "reasoning_content"}


def reasoning_renamed(message):
    return {**without_reasoning(message), "reasoning": message["reasoning_content"]}


def with_more_fields(message):
    more = {"refusal": None, "annotations": [], "audio": None, "function_call": None, "provider_specific_fields": {}}
    out = {**message, **more}
    out["tool_calls"] = [{**call, "index": i} for i, call in enumerate(message.get("tool_calls") or ())] or None
    return out


def arguments_rewritten(message):
    out = copy.deepcopy(message)
    for call in out.get("tool_calls") or ():
        arguments = json.loads(call["function"]["arguments"])
        # Another language writes 2.0 as 2, and keys in an order of its own.
        plain = {k: int(v) if isinstance(v, float) else v for k, v in reversed(arguments.items())}
        call["function"]["arguments"] = json.dumps(plain, indent=1)
    return out


def keys_reversed(message):
    return dict(reversed(list(message.items())))


def blanks_stripped(message):
    return {**message, "content": f" {message['content']}\n" if message["content"] else message["content"]}


FORMS = [
    as_null,
    as_empty,
    as_parts,
    without_content,
    without_reasoning,
    reasoning_renamed,
    with_more_fields,
    arguments_rewritten,
    keys_reversed,
    blanks_stripped,
]


@pytest.mark.parametrize("script", [thinks, calls])
@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
async def test_a_reply_is_known_again_in_every_form_in_which_clients_send_it_back(serve, script, form) -> None:
    served = await serve(script)
    id_ = await served.session()
    held = list(HELLO)
    for turn in range(4):
        # Some forms come and go: every second turn, the last reply alone has changed its form, else all have.
        formed = [turn % 2 == 0 or i == len(held) - 2 for i in range(len(held))]
        messages = [form(m) if m["role"] == "assistant" and f else m for m, f in zip(held, formed, strict=True)]
        status, out = await served.chat(id_, messages, tools=[ADD])
        assert status == 200, out
        message = out["choices"][0]["message"]
        # An answer to a call, not a user: with that, the template would strip earlier thinking, and begin anew.
        called = [call["id"] for call in message.get("tool_calls", ())] or ["none"]
        held += [message, *({"role": "tool", "tool_call_id": id, "content": f"r{turn}"} for id in called)]
    trajectory = await served.trajectory(id_)
    assert len(trajectory["segments"]) == 1
    assert (await served.call("GET", f"/sessions/{id_}"))[1]["resets"] == 0
    checked(trajectory, served.sampler, id_)


async def test_two_replies_of_the_same_words_keep_each_its_own_thoughts(serve) -> None:
    served = await serve(lambda prompt, number, key: f"<think>\nthought {number}\n</think>\n\nok{END}")
    id_ = await served.session()
    messages = list(HELLO)
    for turn in range(4):
        _, out = await served.chat(id_, messages)
        # The first message's form changes each time, so nothing before it can be compared as it came.
        first = {"role": "user", "content": [{"type": "text", "text": "hello"}] if turn % 2 == 0 else "hello"}
        content = out["choices"][0]["message"]["content"]
        messages = [first, *messages[1:], {"role": "assistant", "content": content}]
        messages.append({"role": "tool", "tool_call_id": "x", "content": "go on"})
    assert len((await served.trajectory(id_))["segments"]) == 1


async def test_the_same_request_again_is_sampled_again_in_place_of_its_reply(serve) -> None:
    served = await serve(thinks)
    id_ = await served.session()
    _, first = await served.chat(id_, HELLO)
    _, again = await served.chat(id_, HELLO)
    assert again["choices"][0]["message"]["content"] == "answer 1"
    trajectory = await served.trajectory(id_)
    assert [len(trajectory[name]) for name in ("segments", "steps")] == [1, 1]
    assert trajectory["steps"][0]["message"]["content"] == "answer 1"
    assert served.sampler.prompts[id_][0].tolist() == served.sampler.prompts[id_][1].tolist()
    # The client goes on from the reply that was replaced: that is another history, and said so.
    more = [*HELLO, first["choices"][0]["message"], {"role": "user", "content": "more"}]
    await served.chat(id_, more)
    assert (await served.call("GET", f"/sessions/{id_}"))[1]["resets"] == 1


async def test_a_history_that_was_rewritten_opens_a_segment_and_side_conversations_keep_theirs(serve) -> None:
    served = await serve(lambda prompt, number, key: f"answer {number}{END}")
    id_ = await served.session()
    _, out = await served.chat(id_, HELLO)
    main = [*HELLO, out["choices"][0]["message"], {"role": "user", "content": "more"}]
    side = [{"role": "user", "content": "a title, please"}]
    await served.chat(id_, side)
    await served.chat(id_, main)
    trajectory = await served.trajectory(id_)
    assert [step["segment"] for step in trajectory["steps"]] == [0, 1, 0]
    assert len(trajectory["segments"]) == 2


async def test_a_malformed_call_goes_out_as_one_that_no_program_runs_and_comes_back_as_itself(serve) -> None:
    bad = '{"name": "add", "arguments": {"a": "seven"}}'
    texts = [f"<tool_call>\n{bad}\n</tool_call>{END}", f"<tool_call>\n{{nonsense\n</tool_call>{END}", f"done{END}"]
    served = await serve(lambda prompt, number, key: texts[number])
    id_ = await served.session()
    messages = list(HELLO)
    for turn in range(2):
        _, out = await served.chat(id_, messages, tools=[ADD])
        choice = out["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["name"]
        with pytest.raises(ValueError):
            json.loads(call["function"]["arguments"])
        assert ("seven" if turn == 0 else "nonsense") in call["function"]["arguments"]
        error = {"role": "tool", "tool_call_id": call["id"], "content": "error: the arguments are not JSON"}
        messages += [choice["message"], error]
    _, out = await served.chat(id_, messages, tools=[ADD])
    assert out["choices"][0]["message"]["content"] == "done"
    trajectory = await served.trajectory(id_)
    assert len(trajectory["segments"]) == 1
    assert [step["status"] for step in trajectory["steps"]] == ["malformed", "malformed", "ok"]
    checked(trajectory, served.sampler, id_)


async def test_a_reply_cut_by_its_length_says_so_and_the_conversation_goes_on(serve) -> None:
    served = await serve(thinks)
    id_ = await served.session()
    _, out = await served.chat(id_, HELLO, max_tokens=5)
    assert out["choices"][0]["finish_reason"] == "length"
    message = out["choices"][0]["message"]
    _, out = await served.chat(id_, [*HELLO, message, {"role": "tool", "tool_call_id": "x", "content": "go on"}])
    assert out["choices"][0]["finish_reason"] == "stop"
    trajectory = await served.trajectory(id_)
    assert len(trajectory["segments"]) == 1
    checked(trajectory, served.sampler, id_)


async def test_a_prompt_without_room_for_an_answer_is_an_overflow_and_leaves_nothing(serve, renderer) -> None:
    served = await serve(thinks)
    served.sampler.context_length = 40
    id_ = await served.session()
    _, out = await served.chat(id_, [{"role": "user", "content": "x" * 200}])
    assert out["error"]["code"] == "context_length_exceeded"
    assert "40" in out["error"]["message"]
    assert (await served.trajectory(id_))["segments"] == []
    status, out = await served.chat(id_, HELLO)
    assert status == 200
    assert out["usage"]["total_tokens"] == 40


async def test_ids_logprobs_and_versions_stay_inside_unless_logprobs_are_asked_for(serve, renderer) -> None:
    served = await serve(thinks)
    id_ = await served.session()
    _, out = await served.chat(id_, HELLO, return_token_ids=True)
    assert set(out) == {"id", "object", "created", "model", "choices", "usage"}
    assert set(out["choices"][0]) == {"index", "message", "finish_reason", "logprobs"}
    assert out["choices"][0]["logprobs"] is None
    _, out = await served.chat(id_, HELLO, logprobs=True, top_logprobs=0)
    content = out["choices"][0]["logprobs"]["content"]
    sample = served.sampler.samples[id_][-1]
    assert [each["logprob"] for each in content] == sample.logprobs.tolist()
    assert "".join(each["token"] for each in content) == renderer.decode(sample.ids)


async def test_completions_of_token_ids_are_captured_as_they_came(serve, renderer) -> None:
    served = await serve(lambda prompt, number, key: f"say {number}{END}")
    id_ = await served.session()
    prompt = [1, 2, 3, 4]
    path = f"/s/{id_}/v1/completions"
    for turn in range(3):
        status, out = await served.call(
            "POST", path, {"model": "m", "prompt": prompt, "return_token_ids": True, "logprobs": 1}
        )
        assert status == 200, out
        choice = out["choices"][0]
        sample = served.sampler.samples[id_][-1]
        assert choice["token_ids"] == sample.ids.tolist()
        assert choice["logprobs"]["token_logprobs"] == sample.logprobs.tolist()
        assert choice["text"] == f"say {turn}{END}"
        prompt = [*prompt, *choice["token_ids"], 7, 8]
    _, out = await served.call("POST", path, {"model": "m", "prompt": [9]})
    assert "token_ids" not in out["choices"][0]
    trajectory = await served.trajectory(id_)
    assert [step["segment"] for step in trajectory["steps"]] == [0, 0, 0, 1]
    checked(trajectory, served.sampler, id_)


async def test_many_sessions_at_once_lose_and_cross_nothing(serve) -> None:
    sessions, turns = 64, 20

    async def script(prompt: str, number: int, key: str) -> str:
        await asyncio.sleep(0.001 * (hash((key, number)) % 5))
        return f"{key} turn {number}{END}"

    served = await serve(script)
    ids = [await served.session(id=f"s{i}") for i in range(sessions)]

    async def converse(id_: str) -> None:
        messages = [{"role": "user", "content": f"I am {id_}"}]
        for turn in range(turns):
            status, out = await served.chat(id_, messages)
            assert status == 200, out
            message = out["choices"][0]["message"]
            assert message["content"] == f"{id_} turn {turn}"
            messages += [message, {"role": "user", "content": f"{id_} says {turn}"}]

    await asyncio.gather(*map(converse, ids))
    for id_ in ids:
        trajectory = await served.trajectory(id_)
        assert len(trajectory["segments"]) == 1
        assert len(trajectory["steps"]) == turns
        checked(trajectory, served.sampler, id_)
    assert served.gateway.counters.turns == sessions * turns
