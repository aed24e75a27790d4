"""A server of token ids behind the gateway: what it answers is captured exactly, and what it does not answer never is."""

from __future__ import annotations

import asyncio
import json
import time
from email.utils import formatdate

import numpy as np
import pytest
from ferrule_gateway import HttpSampler, UpstreamError, UpstreamOptions

import ferrule

END = "<|im_end|>"
HELLO = [{"role": "user", "content": "hello"}]
PARAMS = ferrule.SamplingParams(max_tokens=40, temperature=0.5, top_p=0.9, top_k=7, stop_ids=frozenset({258}))
ERROR = json.dumps({"error": {"message": "out of memory"}})


def answer(prompt: str, number: int) -> str:
    return f"answer {number}{END}"


@pytest.fixture
async def sampled():
    """``await sampled(upstream, **options)``: one sample of a started sampler."""
    samplers = []

    async def make(*upstreams, prompt=(1, 2, 3), params=PARAMS, key="k", **options):
        sampler = HttpSampler(UpstreamOptions([u.url for u in upstreams], **options))
        samplers.append(sampler)
        await sampler.start()
        async with sampler.open(key, seed=5) as session:
            return await session.sample(np.array(prompt, np.int32), params)

    yield make
    for sampler in samplers:
        await sampler.close()


# -- what is captured --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ["vllm", "llama.cpp"])
async def test_sessions_over_http_capture_what_the_upstream_was_sent_and_answered(serve, stub, dialect: str) -> None:
    upstream = await stub(answer, dialect)
    served = await serve(sampler=HttpSampler(UpstreamOptions((upstream.url,))))
    id_ = await served.session()
    messages = list(HELLO)
    for turn in range(3):
        status, out = await served.chat(id_, messages)
        assert status == 200, out
        messages += [out["choices"][0]["message"], {"role": "user", "content": f"more {turn}"}]
    trajectory = await served.trajectory(id_)
    assert len(trajectory["segments"]) == 1
    (segment,) = trajectory["segments"]
    for step, (body, headers), (ids, logprobs) in zip(
        trajectory["steps"], upstream.requests, upstream.answers, strict=True
    ):
        part = slice(step["start"], step["stop"])
        assert segment["ids"][: step["start"]] == body["prompt"]
        assert segment["ids"][part] == ids
        assert np.allclose(segment["logprobs"][part], logprobs)
        assert headers["x-session-affinity"] == headers["x-multi-turn-session-id"] == id_


async def test_many_sessions_over_http_lose_and_cross_nothing(serve, stub) -> None:
    sessions, turns = 64, 20
    upstream = await stub(lambda prompt, number: f"to {prompt.rpartition('I am ')[2].split('<')[0]}{END}")
    served = await serve(sampler=HttpSampler(UpstreamOptions((upstream.url,))))
    ids = [await served.session(id=f"s{i}") for i in range(sessions)]

    async def converse(id_: str) -> None:
        messages = []
        for turn in range(turns):
            messages.append({"role": "user", "content": f"I am {id_} {turn}"})
            status, out = await served.chat(id_, messages)
            assert status == 200, out
            messages.append(out["choices"][0]["message"])
            assert messages[-1]["content"] == f"to {id_} {turn}"

    await asyncio.gather(*map(converse, ids))
    for id_ in ids:
        trajectory = await served.trajectory(id_)
        assert (len(trajectory["segments"]), len(trajectory["steps"])) == (1, turns)
        (segment,) = trajectory["segments"]
        sent = [body["prompt"] for body, headers in upstream.requests if headers["x-session-affinity"] == id_]
        assert [segment["ids"][: step["start"]] for step in trajectory["steps"]] == sent


async def test_a_client_that_goes_away_is_gone_for_the_upstream_too(serve, stub) -> None:
    asked = asyncio.Event()

    async def script(prompt: str, number: int) -> str:
        asked.set()
        await asyncio.sleep(30)
        return END

    upstream = await stub(script)
    served = await serve(sampler=HttpSampler(UpstreamOptions((upstream.url,))))
    id_ = await served.session()
    request = asyncio.ensure_future(served.chat(id_, HELLO))
    await asked.wait()
    request.cancel()
    for _ in range(200):
        await asyncio.sleep(0.02)
        if upstream.cancelled:
            break
    assert upstream.cancelled == 1
    assert (await served.trajectory(id_))["segments"] == []


# -- what is asked -----------------------------------------------------------------------------------------------------


async def test_vllm_is_asked_for_ids_and_stops_by_ours(stub, sampled) -> None:
    upstream = await stub(answer)
    sample = await sampled(upstream)
    ((body, _),) = upstream.requests
    assert body["prompt"] == [1, 2, 3]
    assert body["model"] == "stub"
    asked = {k: body[k] for k in ("max_tokens", "temperature", "top_p", "top_k", "stop_token_ids", "return_token_ids")}
    assert asked == {
        "max_tokens": 40,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "stop_token_ids": [258],
        "return_token_ids": True,
    }
    assert sample.stop_reason == "stop"
    assert sample.ids[-1] == 258


async def test_llama_cpp_is_asked_to_sample_as_others_do(stub, sampled) -> None:
    upstream = await stub(answer, "llama.cpp")
    await sampled(upstream)
    ((body, _),) = upstream.requests
    assert body["samplers"] == ["temperature", "top_k", "top_p"]
    assert (body["min_p"], body["repeat_penalty"], body["post_sampling_probs"]) == (0.0, 1.0, False)
    assert "stop_token_ids" not in body


async def test_seeds_differ_by_request_and_session_and_repeat(stub) -> None:
    upstream = await stub(answer)
    sampler = HttpSampler(UpstreamOptions((upstream.url,)))
    await sampler.start()
    for seed in (1, 2, 1):
        async with sampler.open("k", seed=seed) as session:
            for _ in range(2):
                await session.sample(np.array([1], np.int32), PARAMS)
    seeds = [body["seed"] for body, _ in upstream.requests]
    assert seeds[:2] == seeds[4:]
    assert len(set(seeds)) == 4
    await sampler.close()


# -- what is believed --------------------------------------------------------------------------------------------------


async def test_a_completion_that_runs_past_a_stop_token_is_cut_after_it(stub, sampled) -> None:
    upstream = await stub(lambda prompt, number: f"ab{END}cd", "llama.cpp")
    sample = await sampled(upstream)
    assert sample.ids.tolist() == upstream.answers[0][0][:3]
    assert (sample.ids[-1], sample.stop_reason, len(sample.logprobs)) == (258, "stop", 3)


async def test_a_completion_cut_by_its_length_says_so(stub, sampled) -> None:
    upstream = await stub(lambda prompt, number: "x" * 100)
    sample = await sampled(upstream)
    assert (len(sample.ids), sample.stop_reason) == (40, "length")


async def test_the_weight_version_is_the_answers_or_that_of_the_owner(stub, sampled) -> None:
    upstream = await stub(answer)
    assert set((await sampled(upstream, version=4)).versions.tolist()) == {4}
    upstream.change = lambda body: {**body, "weight_version": "12"}
    assert set((await sampled(upstream, version=4)).versions.tolist()) == {12}


def choice(**changes):
    def change(body):
        body["choices"][0].update(changes)
        return body

    return change


def without_ids(body):
    del body["choices"][0]["token_ids"]
    return body


def without_ids_and_names(body):
    without_ids(body)["choices"][0]["logprobs"].pop("tokens")
    return body


def null_logprob(body):
    body["choices"][0]["logprobs"]["token_logprobs"][2] = None
    return body


def without_stop(body):
    made = body["choices"][0]
    made["token_ids"].pop()
    made["logprobs"]["token_logprobs"].pop()
    return body


def retyped(body, make):
    body["choices"][0]["token_ids"] = [make(id_) for id_ in body["choices"][0]["token_ids"]]
    return body


def positive_logprob(body):
    body["choices"][0]["logprobs"]["token_logprobs"][1] = 0.25
    return body


def other_prompt(body):
    body["usage"]["prompt_tokens"] += 1
    return body


async def test_ids_are_read_from_the_names_of_tokens_where_an_older_server_gives_those(stub, sampled) -> None:
    upstream = await stub(answer)
    upstream.change = without_ids
    assert (await sampled(upstream)).ids.tolist() == upstream.answers[0][0]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (without_ids_and_names, "no token ids"),
        (null_logprob, "logprob of its token 2 is unknown"),
        (choice(logprobs=None), "logprob of its token 0 is unknown"),
        (choice(token_ids=[1, 2]), "2 token ids and"),
        (choice(token_ids="abc"), "no token ids"),
        (choice(finish_reason="abort"), "finish_reason is 'abort'"),
        (choice(finish_reason=None), "finish_reason is None"),
        (without_stop, "stop token that it leaves out"),
        (other_prompt, "tokens of prompt"),
        (choice(token_ids=[5, 6.5]), "token ids and"),
        (lambda body: retyped(body, float), "token ids are no integers"),
        (lambda body: retyped(body, str), "token ids are no integers"),
        (lambda body: retyped(body, bool), "token ids are no integers"),
        (lambda body: retyped(body, lambda id_: [id_]), "token ids are no integers"),
        (lambda body: retyped(body, lambda id_: id_ + 2**40), "no numbers"),
        (choice(logprobs={"content": ["a"]}), "tokens are not as they should be"),
        (choice(token_ids=None, logprobs={"tokens": ["token_id:x"]}), "tokens are not as they should be"),
        (positive_logprob, "logprob of its token 1 is 0.25"),
        (lambda body: body | {"weight_version": -2}, "weight version is -2"),
        (lambda body: body | {"weight_version": 2**40}, "weight version is 1099511627776"),
        (lambda body: {"choices": []}, "no completion"),
        (lambda body: {"choices": "abc"}, "no completion"),
        (lambda body: None, "no completion"),
        (lambda body: [], "no completion"),
    ],
)
async def test_an_answer_that_cannot_be_trained_on_is_refused_and_says_why(stub, sampled, change, why: str) -> None:
    upstream = await stub(answer)
    upstream.change = change
    with pytest.raises(UpstreamError, match=why) as caught:
        await sampled(upstream)
    assert (caught.value.status, caught.value.code) == (502, "upstream_unusable")
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("usage", [None, [1], "x", {"completion_tokens": "x"}])
async def test_what_an_answer_counts_is_no_reason_to_refuse_it_where_it_is_no_count(stub, sampled, usage) -> None:
    upstream = await stub(answer)
    upstream.change = lambda body: body | {"usage": usage}
    assert (await sampled(upstream)).ids.tolist() == upstream.answers[0][0]


async def test_more_tokens_than_were_asked_for_are_refused(stub, sampled) -> None:
    upstream = await stub(answer)

    def more(body):
        made = body["choices"][0]
        made["token_ids"] += [5, 5]
        made["logprobs"]["token_logprobs"] += [-1.0, -1.0]
        return body

    upstream.change = more
    with pytest.raises(UpstreamError, match="it has 5 tokens, and max_tokens was 3"):
        await sampled(upstream, params=ferrule.SamplingParams(max_tokens=3))


@pytest.mark.parametrize("status", [302, 600, 999])
async def test_a_status_that_is_no_error_of_http_is_a_bad_gateway(serve, stub, status: int) -> None:
    upstream = await stub(lambda prompt, number: (status, "{}", {}))
    served = await serve(sampler=HttpSampler(UpstreamOptions((upstream.url,))))
    got, out = await served.chat(await served.session(), HELLO)
    assert (got, out["error"]["code"]) == (502, "upstream_error")
    assert f"answered {status}" in out["error"]["message"]


async def test_an_unknown_logprob_keeps_its_place_where_none_is_needed(serve, stub) -> None:
    upstream = await stub(answer)
    upstream.change = null_logprob
    served = await serve(sampler=HttpSampler(UpstreamOptions((upstream.url,), need_logprobs=False)))
    id_ = await served.session()
    _, out = await served.chat(id_, HELLO, logprobs=True)
    shown = [each["logprob"] for each in out["choices"][0]["logprobs"]["content"]]
    assert [each is None for each in shown] == [i == 2 for i in range(len(shown))]
    trajectory = await served.trajectory(id_)
    step = trajectory["steps"][0]
    kept = trajectory["segments"][0]["logprobs"][step["start"] : step["stop"]]
    assert [each is None for each in kept] == [i == 2 for i in range(len(kept))]


# -- what goes wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "status", "code"),
    [
        ((500, ERROR, {}), 500, "upstream_error"),
        ((503, "overloaded", {}), 503, "upstream_error"),
        ((400, ERROR, {}), 400, "upstream_error"),
        ((429, ERROR, {}), 429, "upstream_error"),
        ((429, ERROR, {"retry-after": "3600"}), 429, "upstream_error"),
        ((302, "", {"location": "/elsewhere"}), 502, "upstream_error"),
        ((200, "{", {}), 502, "upstream_unusable"),
        (f"half answer{END}", 502, "upstream_broke_off"),
    ],
    ids=lambda x: str(x)[:24],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_of_the_upstream_is_passed_on_once_and_never_captured(
    serve, stub, said, status: int, code: str, stream: bool
) -> None:
    upstream = await stub(lambda prompt, number: said if number == 0 else f"better{END}")
    served = await serve(sampler=HttpSampler(UpstreamOptions((upstream.url,))))
    id_ = await served.session()
    got, out = await served.chat(id_, HELLO, stream=stream)
    assert (got, out["error"]["code"]) == (status, code)
    if isinstance(said, tuple) and said[1] == ERROR:
        assert "out of memory" in out["error"]["message"]
    assert len(upstream.requests) == 1
    assert (await served.trajectory(id_))["segments"] == []
    assert (await served.chat(id_, HELLO))[0] == 200
    assert len((await served.trajectory(id_))["steps"]) == 1


async def test_a_429_that_says_when_is_asked_again_then(serve, stub) -> None:
    upstream = await stub(lambda prompt, number: (429, ERROR, {"retry-after": "0.3"}) if number < 2 else f"ok{END}")
    served = await serve(sampler=HttpSampler(UpstreamOptions((upstream.url,))))
    id_ = await served.session()
    began = time.monotonic()
    status, _ = await served.chat(id_, HELLO)
    assert (status, len(upstream.requests)) == (200, 3)
    assert time.monotonic() - began >= 0.6
    busy = await stub(lambda prompt, number: (429, ERROR, {"retry-after": "0.01"}))
    served = await serve(sampler=HttpSampler(UpstreamOptions((busy.url,), retries=2)))
    id_ = await served.session()
    async with served.http.post(
        f"{served.gateway.url}/s/{id_}/v1/chat/completions", json={"model": "m", "messages": HELLO}, headers=served.auth
    ) as got:
        assert (got.status, got.headers["retry-after"]) == (429, "0.01")
    assert len(busy.requests) == 3


async def test_a_429_may_say_when_by_a_date_and_nonsense_is_passed_on(stub, sampled) -> None:
    soon = formatdate(time.time() + 2, usegmt=True)
    upstream = await stub(lambda prompt, number: (429, ERROR, {"retry-after": soon}) if number < 1 else f"ok{END}")
    began = time.time()
    await sampled(upstream)
    assert len(upstream.requests) == 2
    assert time.time() - began >= 0.9  # a date is of whole seconds
    for said in ("soon", "nan", "inf", formatdate(time.time() + 3600, usegmt=True)):
        upstream = await stub(lambda prompt, number, said=said: (429, ERROR, {"retry-after": said}))
        with pytest.raises(UpstreamError) as caught:
            await sampled(upstream)
        assert (caught.value.status, len(upstream.requests)) == (429, 1)


async def test_a_connection_that_dies_before_an_answer_is_tried_again(stub, sampled) -> None:
    upstream = await stub(lambda prompt, number: "die" if number < 2 else f"ok{END}")
    assert (await sampled(upstream)).stop_reason == "stop"
    assert len(upstream.requests) == 3
    dead = await stub(lambda prompt, number: "die")
    with pytest.raises(UpstreamError, match="cannot be reached") as caught:
        await sampled(dead, retries=1)
    assert (caught.value.status, len(dead.requests)) == (502, 2)


async def test_an_upstream_that_takes_too_long_is_a_timeout_and_is_not_tried_again(stub, sampled) -> None:
    async def script(prompt: str, number: int) -> str:
        await asyncio.sleep(20)
        return END

    upstream = await stub(script)
    with pytest.raises(UpstreamError) as caught:
        await sampled(upstream, timeout=0.3)
    assert (caught.value.status, caught.value.code, len(upstream.requests)) == (504, "upstream_timeout", 1)


async def test_an_upstream_that_dies_for_good_is_said_and_the_session_lives_on_when_it_is_back(serve, stub) -> None:
    upstream = await stub(answer)
    served = await serve(sampler=HttpSampler(UpstreamOptions((upstream.url,), retries=1)))
    id_ = await served.session()
    _, out = await served.chat(id_, HELLO)
    more = [*HELLO, out["choices"][0]["message"], {"role": "user", "content": "more"}]
    port = int(upstream.url.rpartition(":")[2])
    await upstream.stop()
    status, out = await served.chat(id_, more)
    assert (status, out["error"]["code"]) == (502, "upstream_unreachable")
    assert len((await served.trajectory(id_))["steps"]) == 1
    await upstream.start(port)
    status, out = await served.chat(id_, more)
    assert status == 200
    trajectory = await served.trajectory(id_)
    assert (len(trajectory["segments"]), len(trajectory["steps"])) == (1, 2)


async def test_nobody_upstream_at_the_start_is_an_error_that_names_them(stub, sampled) -> None:
    upstream = await stub(answer)
    await upstream.stop()
    with pytest.raises(ferrule.FerruleError, match=f"no upstream answers: {upstream.url}"):
        await sampled(upstream)
    silent = await stub(answer)
    silent.context_length = 0
    with pytest.raises(ferrule.FerruleError, match=r"set upstream\.context_length"):
        await sampled(silent)
    assert len((await sampled(silent, context_length=50, params=ferrule.SamplingParams(max_tokens=3))).ids) == 3
