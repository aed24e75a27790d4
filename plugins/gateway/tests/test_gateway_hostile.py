"""Clients that speak HTTP oddly, send what nobody would, or go on with what has ended."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from typing import Any

import pytest
from ferrule_gateway import server

from ferrule import SamplingParams

END = "<|im_end|>"
HELLO = [{"role": "user", "content": "hello"}]


def answer(prompt: str, number: int, key: str) -> str:
    return f"answer {number}{END}"


def written(served: Any, method: str, path: str, body: bytes = b"", *lines: str, version: str = "1.1") -> bytes:
    """A request as it goes over the wire."""
    head = [f"{method} {path} HTTP/{version}", "host: x", f"content-length: {len(body)}", *lines]
    if not any(line.startswith("authorization") for line in lines):
        head.append(f"authorization: Bearer {served.gateway.token}")
    return "\r\n".join([*head, "", ""]).encode() + body


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": HELLO, **fields}).encode()


async def connect(served: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*served.gateway.url.removeprefix("http://").split(":"))


async def all_of(served: Any, request: bytes) -> tuple[bytes, bytes]:
    """Head and body of what comes until the server closes the connection."""
    reader, writer = await connect(served)
    writer.write(request)
    head, _, body = (await asyncio.wait_for(reader.read(), 20)).partition(b"\r\n\r\n")
    writer.close()
    return head.lower(), body


# -- HTTP --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_client_of_http_1_0_gets_no_chunks_however_long_it_waits(serve, stream: bool) -> None:
    async def slow(prompt: str, number: int, key: str) -> str:
        await asyncio.sleep(0.2)
        return f"late{END}"

    served = await serve(slow, heartbeat=0.05)
    id_ = await served.session()
    path = f"/s/{id_}/v1/chat/completions"
    head, body = await all_of(served, written(served, "POST", path, chat(stream=stream), version="1.0"))
    assert b"transfer-encoding" not in head
    assert b"content-length: %d" % len(body) in head
    assert (b"text/event-stream" if stream else b"application/json") in head
    assert body.startswith(b"data: {" if stream else b"{")
    assert b"late" in body


async def test_a_body_over_the_limit_is_answered_to_clients_that_read_only_after_they_have_sent(serve) -> None:
    served = await serve(answer, body_limit=4096)
    id_ = await served.session()
    host, port = served.gateway.url.removeprefix("http://").split(":")

    def ask() -> list[int]:
        connection = http.client.HTTPConnection(host, int(port), timeout=20)
        statuses = []
        for body in (b"x" * 8_000_000, iter([b"x" * 1_000_000] * 8), chat()):
            connection.request("POST", f"/s/{id_}/v1/chat/completions", body, served.auth)
            with connection.getresponse() as got:
                got.read()
                statuses.append(got.status)
        connection.close()
        return statuses

    assert await asyncio.to_thread(ask) == [413, 413, 200]


async def test_the_scheme_of_the_token_is_read_in_either_case_and_no_other_is(serve) -> None:
    served = await serve(answer)
    token = served.gateway.token
    for given, status in (
        (f"bearer {token}", 200),
        (f"BEARER {token}", 200),
        (f"Basic {token}", 401),
        (f"Bearer {token.swapcase()}", 401),
        (f"Bearer  {token} ", 200),
        (f"Bearer {token} {token}", 401),
        (f"Bearer{token}", 401),
        (token, 401),
        ("Bearer", 401),
        ("", 401),
        (f"Bearer é{token}", 401),
    ):
        got, _ = await served.call("GET", "/sessions", headers={"authorization": given})
        assert got == status, given


@pytest.mark.parametrize("path", ["/sessions/", "/health/", "/s/one/v1/chat/completions/", "//evil.example/sessions"])
async def test_no_path_leads_to_a_host_that_the_request_names(serve, path: str) -> None:
    served = await serve(answer)
    head, _ = await all_of(served, written(served, "GET", path, b"", "connection: close"))
    assert head.startswith(b"http/1.1 404")
    assert b"location" not in head


# -- what has ended ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["delete", "stop"])
@pytest.mark.parametrize("what", ["chat/completions", "completions"])
async def test_a_body_that_comes_after_its_session_has_ended_is_not_sampled(serve, what: str, end: str) -> None:
    served = await serve(answer)
    id_ = await served.session()
    body = chat() if what == "chat/completions" else json.dumps({"model": "m", "prompt": [5]}).encode()
    request = written(served, "POST", f"/s/{id_}/v1/{what}", body)
    reader, writer = await connect(served)
    writer.write(request[:-5])
    while served.gateway.sessions[id_].counters.requests == 0:
        await asyncio.sleep(0.01)
    stopping = None
    if end == "delete":
        assert (await served.call("DELETE", f"/sessions/{id_}"))[0] == 200
    else:
        stopping = asyncio.ensure_future(served.gateway.stop())
        await asyncio.sleep(0)
    writer.write(request[-5:])
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    assert head.startswith(b"HTTP/1.1 409" if end == "delete" else b"HTTP/1.1 503")
    writer.close()
    if stopping is not None:
        await stopping
    assert served.sampler.samples == {}
    assert served.sampler.open_now.total() == 0


@pytest.mark.parametrize("patient", [True, False], ids=["one stop", "a stop again"])
@pytest.mark.parametrize("client", ["takes nothing", "sends half"])
async def test_a_stop_waits_for_no_client_for_ever_and_one_that_is_made_again_not_at_all(
    serve, monkeypatch, client: str, patient: bool
) -> None:
    served = await serve(lambda *_: "x" * 20_000 + END, sampling=SamplingParams(max_tokens=25_000))
    id_ = await served.session()
    await served.chat(id_, HELLO)
    peer = socket.socket()
    peer.setblocking(False)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(peer, ("127.0.0.1", int(served.gateway.url.rpartition(":")[2])))
    if client == "takes nothing":
        await loop.sock_sendall(peer, written(served, "GET", f"/sessions/{id_}/trajectory") * 60)
        await asyncio.sleep(0.5)  # until what is not taken fills what lies between
    else:
        await loop.sock_sendall(peer, written(served, "POST", f"/s/{id_}/v1/chat/completions", chat())[:-5])
        while served.gateway.sessions[id_].counters.requests == 1:
            await asyncio.sleep(0.01)
    if patient:
        monkeypatch.setattr(server, "LAST", 0.3)
        await asyncio.wait_for(served.gateway.stop(), 5)
    else:
        stopping = asyncio.ensure_future(served.gateway.stop())
        await asyncio.sleep(0.3)
        assert not stopping.done()
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        await asyncio.wait_for(served.gateway.stop(0.0), 3)
    peer.close()
    assert served.sampler.open_now.total() == 0


async def test_clients_that_leave_at_any_moment_leave_only_what_was_sampled_and_a_session_that_serves(serve) -> None:
    async def slow(prompt: str, number: int, key: str) -> str:
        await asyncio.sleep(0.05 * (number % 8))
        return f"answer {number}{END}"

    served = await serve(slow, heartbeat=0.1)
    id_ = await served.session()
    path = f"/s/{id_}/v1/chat/completions"

    async def leave(n: int) -> None:
        request = written(
            served, "POST", path, chat(stream=n % 2 == 0, messages=[{"role": "user", "content": f"{n % 6}"}])
        )
        writer = (await connect(served))[1]
        writer.write(request[: len(request) - 40 * (n % 3 == 0)])
        await asyncio.sleep(0.02 * (n % 20))
        (writer.transport.abort if n % 2 else writer.close)()

    for first in range(0, 60, 20):
        await asyncio.gather(*(leave(n) for n in range(first, first + 20)))
    session = served.gateway.sessions[id_]
    while session.flights:
        await asyncio.sleep(0.02)
    status, out = await served.chat(id_, HELLO)
    assert status == 200, out
    trajectory = await served.trajectory(id_)
    samples = {tuple(sample.ids.tolist()): sample for sample in served.sampler.samples[id_]}
    action = trajectory["kind_names"].index("action")
    for step in trajectory["steps"]:
        segment = trajectory["segments"][step["segment"]]
        here = slice(step["start"], step["stop"])
        sample = samples.pop(tuple(segment["ids"][here]))  # none twice
        assert segment["logprobs"][here] == sample.logprobs.tolist()
        assert set(segment["kinds"][here]) == {action}
    sampled = sum(step["stop"] - step["start"] for step in trajectory["steps"])
    assert sum(kind == action for segment in trajectory["segments"] for kind in segment["kinds"]) == sampled


# -- bodies ------------------------------------------------------------------------------------------------------------


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


@pytest.mark.parametrize("depth", [150, 300, 500, 900, 4000])
async def test_arguments_nested_however_deep_are_a_call_and_the_history_is_known_again(serve, depth: int) -> None:
    served = await serve(answer)
    id_ = await served.session()
    function = {"name": "f", "arguments": nested(depth)}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "a", "content": "x"},
    ]
    for _ in range(2):
        status, out = await served.chat(id_, messages)
        assert status == 200, out
        messages += [out["choices"][0]["message"], *HELLO]
    trajectory = await served.trajectory(id_)
    assert (len(trajectory["segments"]), len(trajectory["steps"])) == (1, 2)


async def test_a_call_that_the_model_nests_deep_is_captured_and_comes_back_as_its_own(serve) -> None:
    def script(prompt: str, number: int, key: str) -> str:
        if number:
            return f"done{END}"
        return f'<tool_call>\n{{"name": "f", "arguments": {nested(90)}}}\n</tool_call>{END}'

    served = await serve(script)
    id_ = await served.session()
    _, out = await served.chat(id_, HELLO)
    message = out["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["arguments"] == nested(90)
    spaced = json.dumps(json.loads(nested(90)))
    message["tool_calls"][0]["function"]["arguments"] = spaced
    answered = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "x"}
    assert (await served.chat(id_, [*HELLO, message, answered]))[0] == 200
    assert len((await served.trajectory(id_))["segments"]) == 1


async def test_metadata_that_could_not_be_listed_is_refused_before_a_session_is_made(serve, tmp_path) -> None:
    served = await serve(answer, store=tmp_path / "captured")
    for depth, status in ((150, 201), (300, 400), (900, 400)):
        body = f'{{"id": "m{depth}", "metadata": {nested(depth)}}}'.encode()
        got, out = await served.call("POST", "/sessions", body)
        assert got == status, out
        if status == 400:
            assert out["error"]["param"] == "metadata"
    status, out = await served.call("GET", "/sessions")
    assert (status, [each["id"] for each in out["data"]]) == (200, ["m150"])


# -- the store ---------------------------------------------------------------------------------------------------------


async def test_more_sessions_may_be_stored_than_files_be_open(serve, tmp_path) -> None:
    import resource

    served = await serve(answer, store=tmp_path / "captured")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, limits[1]))
    try:
        ids = [await served.session() for _ in range(200)]
        assert {(await served.chat(id_, HELLO))[0] for id_ in ids[::20]} == {200}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_a_file_that_is_no_sessions_spoils_no_list_and_says_so_where_it_is_read(serve, tmp_path) -> None:
    store = tmp_path / "captured"
    store.mkdir()
    (store / "folder.jsonl").mkdir()
    (store / "list.jsonl").write_text("[1]\n")
    (store / "torn.jsonl").write_text('{"id": "torn"}\n{"from": 0}\n')
    (store / "empty.jsonl").touch()
    (store / "gone.jsonl").symlink_to(store / "nowhere")
    (store / "no id.jsonl").write_text("{}\n")
    served = await serve(answer, store=store)
    status, out = await served.call("GET", "/sessions")
    assert status == 200
    assert {each["id"]: each["state"] for each in out["data"]} == {
        "empty": "closed",
        "list": "closed",
        "torn": "closed",
    }
    assert "does not begin" in next(each["error"] for each in out["data"] if each["id"] == "list")
    status, out = await served.call("GET", "/sessions/torn/trajectory")
    assert (status, out["error"]["code"]) == (500, "store_failed")
    assert "line 2 of torn.jsonl" in out["error"]["message"]
    assert (await served.call("GET", "/sessions/empty/trajectory"))[1]["steps"] == []


async def test_a_turn_that_could_not_be_stored_is_told_and_stored_with_the_next(serve, tmp_path) -> None:
    store = tmp_path / "captured"
    served = await serve(answer, store=store)
    id_ = await served.session()
    await served.chat(id_, HELLO)
    (store / f"{id_}.jsonl").rename(store / "aside")
    (store / f"{id_}.jsonl").mkdir()
    status, out = await served.chat(id_, [{"role": "user", "content": "other"}])
    assert (status, out["error"]["code"]) == (507, "store_failed")
    (store / f"{id_}.jsonl").rmdir()
    (store / "aside").rename(store / f"{id_}.jsonl")
    assert (await served.chat(id_, [{"role": "user", "content": "third"}]))[0] == 200
    live = await served.trajectory(id_)
    await served.gateway.remove(id_)
    stored = await served.trajectory(id_)
    assert len(live["steps"]) == 3
    assert {**stored, "state": "open"} == live
