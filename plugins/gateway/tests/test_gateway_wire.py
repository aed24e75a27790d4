"""Malformed requests: OpenAI-shaped errors that name the field, and a ledger that they leave alone."""

from __future__ import annotations

import json

import pytest

END = "<|im_end|>"
HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def answer(prompt: str, number: int, key: str) -> str:
    return f"answer {number}{END}"


def chat(**fields):
    return {"model": "m", "messages": HELLO, **fields}


def message(**fields):
    return chat(messages=[*HELLO, fields])


def assistant(*calls, **fields):
    return message(role="assistant", content=None, tool_calls=list(calls), **fields)


CHAT = {
    "no model": ({"messages": HELLO}, "model", "missing_required_parameter"),
    "model a number": (chat(model=3), "model", "invalid_type"),
    "no messages": ({"model": "m"}, "messages", "missing_required_parameter"),
    "messages text": (chat(messages="hi"), "messages", "invalid_type"),
    "messages empty": (chat(messages=[]), "messages", "invalid_value"),
    "a message text": (chat(messages=["hi"]), "messages[0]", "invalid_type"),
    "no role": (message(content="x"), "messages[1].role", "missing_required_parameter"),
    "an unknown role": (message(role="robot", content="x"), "messages[1].role", "invalid_value"),
    "no content": (message(role="user"), "messages[1].content", "missing_required_parameter"),
    "content a number": (message(role="user", content=5), "messages[1].content", "invalid_type"),
    "content of an image": (
        message(role="user", content=[{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]),
        "messages[1].content[1].type",
        "unsupported_value",
    ),
    "a part that is no object": (message(role="user", content=["a"]), "messages[1].content[0]", "invalid_type"),
    "a part without text": (
        message(role="user", content=[{"type": "text"}]),
        "messages[1].content[0].text",
        "invalid_type",
    ),
    "an answer to no call": (
        message(role="tool", content="x"),
        "messages[1].tool_call_id",
        "missing_required_parameter",
    ),
    "name a number": (message(role="user", content="x", name=1), "messages[1].name", "invalid_type"),
    "reasoning a list": (
        message(role="assistant", content="x", reasoning_content=[]),
        "messages[1].reasoning_content",
        "invalid_type",
    ),
    "calls an object": (
        message(role="assistant", content=None, tool_calls={}),
        "messages[1].tool_calls",
        "invalid_type",
    ),
    "a call text": (assistant("f"), "messages[1].tool_calls[0]", "invalid_type"),
    "a call without function": (assistant({"id": "a"}), "messages[1].tool_calls[0].function", "invalid_type"),
    "a call without name": (
        assistant({"id": "a", "function": {"arguments": "{}"}}),
        "messages[1].tool_calls[0].function.name",
        "missing_required_parameter",
    ),
    "arguments a number": (
        assistant({"id": "a", "function": {"name": "f", "arguments": 3}}),
        "messages[1].tool_calls[0].function.arguments",
        "invalid_type",
    ),
    "tools an object": (chat(tools=TOOL), "tools", "invalid_type"),
    "a tool text": (chat(tools=["f"]), "tools[0]", "invalid_type"),
    "a tool of another type": (chat(tools=[{"type": "web_search"}]), "tools[0].type", "unsupported_value"),
    "a tool without function": (chat(tools=[{"type": "function"}]), "tools[0].function", "invalid_type"),
    "a tool without name": (
        chat(tools=[{"type": "function", "function": {}}]),
        "tools[0].function.name",
        "missing_required_parameter",
    ),
    "two tools of one name": (chat(tools=[TOOL, TOOL]), "tools[1].function.name", "invalid_value"),
    "parameters text": (
        chat(tools=[{"type": "function", "function": {"name": "f", "parameters": "{}"}}]),
        "tools[0].function.parameters",
        "invalid_type",
    ),
    "tool_choice required": (chat(tools=[TOOL], tool_choice="required"), "tool_choice", "unsupported_value"),
    "tool_choice a function": (
        chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "f"}}),
        "tool_choice",
        "unsupported_value",
    ),
    "functions": (chat(functions=[{"name": "f"}]), "functions", "unsupported_parameter"),
    "a function_call": (chat(function_call={"name": "f"}), "function_call", "unsupported_parameter"),
    "n of 2": (chat(n=2), "n", "unsupported_value"),
    "n of 0": (chat(n=0), "n", "unsupported_value"),
    "n text": (chat(n="1"), "n", "invalid_type"),
    "stream text": (chat(stream="yes"), "stream", "invalid_type"),
    "stream_options without stream": (chat(stream_options={"include_usage": True}), "stream_options", "invalid_value"),
    "stream_options a list": (chat(stream=True, stream_options=[]), "stream_options", "invalid_type"),
    "include_usage a number": (
        chat(stream=True, stream_options={"include_usage": 1}),
        "stream_options.include_usage",
        "invalid_type",
    ),
    "temperature negative": (chat(temperature=-0.1), "temperature", "invalid_value"),
    "temperature text": (chat(temperature="1"), "temperature", "invalid_type"),
    "temperature true": (chat(temperature=True), "temperature", "invalid_type"),
    "top_p 0": (chat(top_p=0), "top_p", "invalid_value"),
    "top_p over 1": (chat(top_p=1.5), "top_p", "invalid_value"),
    "top_k -2": (chat(top_k=-2), "top_k", "invalid_value"),
    "max_tokens 0": (chat(max_tokens=0), "max_tokens", "invalid_value"),
    "max_tokens half": (chat(max_tokens=1.5), "max_tokens", "invalid_type"),
    "max_completion_tokens text": (chat(max_completion_tokens="9"), "max_completion_tokens", "invalid_type"),
    "stop no stop token": (chat(stop="\n\n"), "stop", "unsupported_value"),
    "stop a list with other text": (chat(stop=[END, "###"]), "stop[1]", "unsupported_value"),
    "stop a number": (chat(stop=3), "stop", "invalid_type"),
    "stop_token_ids text": (chat(stop_token_ids=["a"]), "stop_token_ids[0]", "invalid_type"),
    "logprobs a number": (chat(logprobs=2), "logprobs", "invalid_type"),
    "top_logprobs 3": (chat(logprobs=True, top_logprobs=3), "top_logprobs", "unsupported_value"),
    "top_logprobs alone": (chat(top_logprobs=0), "top_logprobs", "invalid_value"),
    "seed text": (chat(seed="1"), "seed", "invalid_type"),
    "response_format of JSON": (chat(response_format={"type": "json_object"}), "response_format", "unsupported_value"),
    "response_format text": (chat(response_format="text"), "response_format", "invalid_type"),
    "a penalty": (chat(frequency_penalty=0.5), "frequency_penalty", "unsupported_parameter"),
    "min_p": (chat(min_p=0.1), "min_p", "unsupported_parameter"),
    "a penalty of vLLM's": (chat(repetition_penalty=1.2), "repetition_penalty", "unsupported_parameter"),
    "another grammar": (chat(guided_json={}), "guided_json", "unsupported_parameter"),
    "template's own words": (
        chat(chat_template_kwargs={"enable_thinking": False}),
        "chat_template_kwargs",
        "unsupported_parameter",
    ),
    "audio": (chat(modalities=["text", "audio"]), "modalities", "unsupported_parameter"),
    "a reply to go on with": (chat(continue_final_message=True), "continue_final_message", "unsupported_parameter"),
    "a bias": (chat(logit_bias={"5": 3}), "logit_bias", "unsupported_parameter"),
}
COMPLETIONS = {
    "no prompt": ({"model": "m"}, "prompt", "missing_required_parameter"),
    "prompt text": ({"model": "m", "prompt": "hi"}, "prompt", "unsupported_value"),
    "prompt of texts": ({"model": "m", "prompt": ["hi"]}, "prompt", "unsupported_value"),
    "two prompts": ({"model": "m", "prompt": [[1], [2]]}, "prompt[0]", "invalid_type"),
    "prompt empty": ({"model": "m", "prompt": []}, "prompt", "invalid_value"),
    "prompt of half": ({"model": "m", "prompt": [1, 2.5]}, "prompt[1]", "invalid_type"),
    "prompt of true": ({"model": "m", "prompt": [1, True]}, "prompt[1]", "invalid_type"),
    "prompt below 0": ({"model": "m", "prompt": [-1]}, "prompt[0]", "invalid_token"),
    "prompt beyond the vocabulary": ({"model": "m", "prompt": [1, 10**6]}, "prompt", "invalid_token"),
    "prompt beyond 31 bits": ({"model": "m", "prompt": [2**40]}, "prompt[0]", "invalid_token"),
    "echo": ({"model": "m", "prompt": [1], "echo": True}, "echo", "unsupported_parameter"),
    "no end": ({"model": "m", "prompt": [1], "ignore_eos": True}, "ignore_eos", "unsupported_parameter"),
    "best_of": ({"model": "m", "prompt": [1], "best_of": 3}, "best_of", "unsupported_parameter"),
    "logprobs 5": ({"model": "m", "prompt": [1], "logprobs": 5}, "logprobs", "unsupported_value"),
}
SESSIONS = {
    "id a number": ({"id": 3}, "id", "invalid_type"),
    "id a path": ({"id": "../x"}, "id", "invalid_value"),
    "id of dots": ({"id": ".."}, "id", "invalid_value"),
    "id too long": ({"id": "a" * 200}, "id", "invalid_value"),
    "sampling a list": ({"sampling": []}, "sampling", "invalid_type"),
    "sampling unknown": ({"sampling": {"temprature": 1}}, "sampling.temprature", "invalid_value"),
    "sampling wrong": ({"sampling": {"top_p": 2}}, "sampling.top_p", "invalid_value"),
    "metadata text": ({"metadata": "x"}, "metadata", "invalid_type"),
}


@pytest.fixture
async def served(serve):
    return await serve(answer, body_limit=4096)


async def refused(served, path, body, param, code, status=400) -> None:
    got, out = await served.call("POST", path, body)
    assert got == status, out
    error = out["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["param"], error["code"]) == (param, code)
    assert error["message"]
    assert error["type"] == "invalid_request_error"
    if param is not None and param not in ("functions",):
        assert param.split("[")[0].split(".")[0] in error["message"] or "tool" in error["message"]


@pytest.mark.parametrize("case", CHAT)
async def test_a_malformed_chat_request_names_its_field_and_touches_no_ledger(served, case: str) -> None:
    id_ = await served.session()
    await served.chat(id_, HELLO)
    before = await served.trajectory(id_)
    body, param, code = CHAT[case]
    await refused(served, f"/s/{id_}/v1/chat/completions", body, param, code)
    assert await served.trajectory(id_) == before
    assert len(served.sampler.prompts[id_]) == 1


@pytest.mark.parametrize("case", COMPLETIONS)
async def test_a_malformed_completion_request_names_its_field_and_touches_no_ledger(served, case: str) -> None:
    id_ = await served.session()
    body, param, code = COMPLETIONS[case]
    await refused(served, f"/s/{id_}/v1/completions", body, param, code)
    assert (await served.trajectory(id_))["segments"] == []
    assert id_ not in served.sampler.prompts


@pytest.mark.parametrize("case", SESSIONS)
async def test_a_malformed_session_request_names_its_field_and_makes_none(served, case: str) -> None:
    body, param, code = SESSIONS[case]
    await refused(served, "/sessions", body, param, code)
    assert served.gateway.sessions == {}


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b'"hi"', b"\xff\xfe", b"[" * 3000])
async def test_a_body_that_is_no_json_object_is_refused(served, raw: bytes) -> None:
    id_ = await served.session()
    await refused(served, f"/s/{id_}/v1/chat/completions", raw, None, "invalid_json")


async def test_what_a_compatible_server_need_not_know_is_ignored(served) -> None:
    id_ = await served.session()
    extra = {
        "user": "me",
        "store": False,
        "metadata": {"a": "b"},
        "parallel_tool_calls": True,
        "service_tier": "auto",
        "reasoning_effort": "low",
        "n": 1,
        "stop": None,
        "logit_bias": {},
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "response_format": {"type": "text"},
        "tools": [],
        "tool_choice": "auto",
        "stream": False,
        "stream_options": None,
        "seed": 3,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "modalities": ["text"],
        "guided_json": None,
        "something_new": {"x": 1},
    }
    status, out = await served.chat(id_, [{**HELLO[0], "cache_control": {"type": "ephemeral"}}], **extra)
    assert status == 200, out
    assert out["choices"][0]["message"] == {"role": "assistant", "content": "answer 0"}
    assert out["choices"][0]["finish_reason"] == "stop"
    assert out["usage"]["total_tokens"] == out["usage"]["prompt_tokens"] + out["usage"]["completion_tokens"]


@pytest.mark.parametrize("auth", [None, "Bearer ", "Bearer wrong", "Basic abc", "bearer"])
async def test_everything_but_health_wants_the_token(served, auth) -> None:
    id_ = await served.session()
    headers = {"authorization": auth} if auth is not None else {}
    for method, path in [
        ("POST", f"/s/{id_}/v1/chat/completions"),
        ("POST", f"/s/{id_}/v1/completions"),
        ("GET", f"/s/{id_}/v1/models"),
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models"),
        ("POST", "/sessions"),
        ("GET", "/sessions"),
        ("GET", f"/sessions/{id_}"),
        ("GET", f"/sessions/{id_}/trajectory"),
        ("DELETE", f"/sessions/{id_}"),
        ("GET", "/nowhere"),
    ]:
        status, out = await served.call(method, path, headers=headers)
        assert status == 401, path
        assert out["error"]["code"] == "invalid_api_key"
        assert served.gateway.token not in json.dumps(out)
    assert list(served.gateway.sessions) == [id_]
    assert (await served.call("GET", "/health", headers=headers))[0] == 200


async def test_an_unknown_session_is_not_found_and_one_that_is_not_named_is_required(served) -> None:
    for method, path in [
        ("POST", "/s/none/v1/chat/completions"),
        ("POST", "/s/none/v1/completions"),
        ("GET", "/s/none/v1/models"),
        ("GET", "/s/none/play/turn"),
        ("GET", "/sessions/none"),
        ("GET", "/sessions/none/trajectory"),
        ("DELETE", "/sessions/none"),
    ]:
        status, out = await served.call(method, path, chat() if method == "POST" else None)
        assert (status, out["error"]["code"]) == (404, "session_not_found"), path
    status, out = await served.call("POST", "/v1/chat/completions", chat())
    assert (status, out["error"]["code"]) == (400, "session_required")
    assert "POST /sessions" in out["error"]["message"]
    headers = {**served.auth, "x-session-affinity": "none"}
    status, out = await served.call("POST", "/v1/chat/completions", chat(), headers=headers)
    assert (status, out["error"]["code"]) == (404, "session_not_found")


@pytest.mark.parametrize("name", ["x-session-affinity", "x-multi-turn-session-id"])
async def test_a_session_may_be_named_by_a_header(served, name: str) -> None:
    id_ = await served.session()
    status, _ = await served.call("POST", "/v1/chat/completions", chat(), headers={**served.auth, name: id_})
    assert status == 200
    assert len((await served.trajectory(id_))["steps"]) == 1


async def test_other_paths_and_methods_are_refused_in_the_same_shape(served) -> None:
    assert (await served.call("GET", "/v2/x"))[1]["error"]["code"] == "not_found"
    status, out = await served.call("GET", "/s/x/v1/chat/completions")
    assert (status, out["error"]["code"]) == (405, "method_not_allowed")


async def test_a_body_over_the_limit_is_refused_whether_its_length_is_announced_or_not(served) -> None:
    id_ = await served.session()
    body = json.dumps(chat(messages=[{"role": "user", "content": "x" * 5000}])).encode()

    async def pieces():
        for i in range(0, len(body), 1000):
            yield body[i : i + 1000]

    for data in (body, pieces()):
        async with served.http.post(
            f"{served.gateway.url}/s/{id_}/v1/chat/completions", data=data, headers=served.auth
        ) as got:
            assert got.status == 413
            assert (await got.json())["error"]["code"] == "body_too_large"
    assert id_ not in served.sampler.prompts


async def test_the_sampling_of_a_request_is_the_defaults_and_its_own_and_that_of_the_session_goes_before(serve) -> None:
    import ferrule

    served = await serve(answer, sampling=ferrule.SamplingParams(temperature=0.7, max_tokens=50))
    free, bound = await served.session(), await served.session(sampling={"temperature": 0.2, "max_tokens": 9})
    for id_ in (free, bound):
        await served.chat(id_, HELLO, temperature=1.5, top_p=0.5, top_k=-1, max_tokens=30, max_completion_tokens=20)
        await served.chat(id_, HELLO, stop=[END], stop_token_ids=[5])
    stops = frozenset(served.gateway.renderer.stop_ids)
    seen = [(p.temperature, p.top_p, p.top_k, p.max_tokens, p.stop_ids) for p in served.sampler.params]
    assert seen == [
        (1.5, 0.5, 0, 20, stops),
        (0.7, 1.0, 0, 50, stops | {5}),
        (0.2, 0.5, 0, 9, stops),
        (0.2, 1.0, 0, 9, stops | {5}),
    ]


async def test_a_seed_comes_with_the_session_or_its_first_request(served) -> None:
    forced, asked, none = await served.session(sampling={"seed": 7}), await served.session(), await served.session()
    for seed in (11, 12):
        await served.chat(forced, HELLO, seed=seed)
        await served.chat(asked, HELLO, seed=seed)
        await served.chat(none, HELLO)
    assert served.sampler.seeds[forced] == 7
    assert served.sampler.seeds[asked] == 11
    assert served.sampler.seeds[none] not in (7, 11, 12)
