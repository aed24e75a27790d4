"""Real clients when things go wrong behind the gateway, or on their own side: what failed is told and never captured, and
the conversation goes on from where it stood.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import openai
import pytest
from aiohttp import web
from ferrule_test_assets import byte_tokenizer

HELLO = [{"role": "user", "content": "Say hello."}]


async def busy(request: web.Request, forward) -> web.Response:
    return web.json_response({"error": {"message": "too many requests"}}, status=429)


async def broken(request: web.Request, forward) -> web.Response:
    return web.json_response({"error": {"message": "out of memory"}}, status=500)


async def half(request: web.Request, forward) -> web.StreamResponse:
    whole = (await forward(request)).body
    answer = web.StreamResponse(headers={"content-length": str(len(whole)), "content-type": "application/json"})
    await answer.prepare(request)
    await answer.write(whole[: len(whole) // 2])
    request.transport.abort()
    return answer


async def slow(request: web.Request, forward) -> web.Response:
    await asyncio.sleep(30)
    return await forward(request)


def client_of(served, **options) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=served.base_url, api_key=served.key, **{"max_retries": 0, **options})


async def chat(client: openai.AsyncOpenAI, messages) -> dict:
    answer = await client.chat.completions.create(model="policy", messages=messages)
    return answer.choices[0].message.model_dump(exclude_none=True)


@pytest.mark.parametrize(
    ("fault", "error", "status"),
    [(busy, openai.RateLimitError, 429), (broken, openai.InternalServerError, 500), (half, openai.APIStatusError, 502)],
)
async def test_an_upstreams_fault_reaches_openais_client_and_the_conversation_goes_on(
    kit, llama_url, fault, error, status: int
) -> None:
    async with (
        kit.xllamacpp(llama_url, retries=0) as source,
        kit.serving(source) as gateway,
        client_of(kit.session(gateway, "one")) as client,
    ):
        messages = [*HELLO, await chat(client, HELLO), {"role": "user", "content": "Again."}]
        source.llama.faults.append(fault)
        with pytest.raises(error) as raised:
            await chat(client, messages)
        assert raised.value.status_code == status
        assert len((await kit.captured(gateway, "one"))["steps"]) == 1
        messages.append(await chat(client, messages))
        trajectory = await kit.captured(gateway, "one")
    assert source.llama.asked == 3
    said = source.llama.said
    kit.assert_captured(trajectory, [said[0], said[-1]])  # half an answer was written down, and is no turn
    assert len(trajectory["segments"]) == 1


async def test_openais_client_tries_again_by_itself_and_the_turn_is_captured_once(kit, llama_url) -> None:
    async with kit.xllamacpp(llama_url, retries=0) as source, kit.serving(source) as gateway:
        source.llama.faults.extend([busy, broken])
        async with client_of(kit.session(gateway, "one"), max_retries=2) as client:
            reply = await chat(client, HELLO)
        trajectory = await kit.captured(gateway, "one")
    assert source.llama.asked == 3
    kit.assert_captured(trajectory, source.llama.said)
    assert (reply.get("content") or "") == trajectory["steps"][0]["message"]["content"]


async def test_a_client_that_waits_no_longer_and_asks_again_is_answered_and_captured_once(kit, llama_url) -> None:
    async with kit.xllamacpp(llama_url) as source, kit.serving(source) as gateway:
        source.llama.faults.append(slow)
        async with client_of(kit.session(gateway, "one"), max_retries=3, timeout=3.0) as client:
            messages = [*HELLO, await chat(client, HELLO), {"role": "user", "content": "Again."}]
            messages.append(await chat(client, messages))
        trajectory = await kit.captured(gateway, "one")
    kit.assert_captured(trajectory, source.llama.said)
    assert [len(trajectory["segments"]), len(trajectory["steps"])] == [1, 2]


async def test_curl_that_leaves_in_the_middle_of_a_stream_leaves_nothing_behind(kit, llama_url) -> None:
    async with kit.xllamacpp(llama_url) as source, kit.serving(source, heartbeat=0.1) as gateway:
        served = kit.session(gateway, "one")
        source.llama.faults.append(slow)
        command = ["curl", "-sS", "-N", "--max-time", "2", f"{served.base_url}/chat/completions"]
        command += ["-H", f"Authorization: Bearer {served.key}", "-d"]
        body = json.dumps({"model": "policy", "messages": HELLO, "stream": True})
        curl = await asyncio.create_subprocess_exec(
            *command, body, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        out, _ = await curl.communicate()
        assert curl.returncode == 28, "its time was up"
        assert out.startswith(b": ping"), "the stream had begun"
        flights = gateway.sessions["one"].flights
        for _ in range(200):
            if not flights:
                break
            await asyncio.sleep(0.01)
        assert not flights
        assert (await kit.captured(gateway, "one"))["segments"] == []
        async with client_of(served) as client:
            await chat(client, HELLO)
        trajectory = await kit.captured(gateway, "one")
    kit.assert_captured(trajectory, source.llama.said)
    assert len(trajectory["steps"]) == 1


async def test_an_upstream_that_is_killed_in_the_middle_is_told_and_another_takes_over(kit, llama_url) -> None:
    with kit.llama_server() as (url, process):
        async with kit.xllamacpp(url, retries=0) as source, kit.serving(source) as gateway:

            async def killed(request: web.Request, forward) -> web.Response:
                forwarding = asyncio.ensure_future(forward(request))
                await asyncio.sleep(0.01)
                process.kill()
                return await forwarding

            async with client_of(kit.session(gateway, "one")) as client:
                messages = [*HELLO, await chat(client, HELLO), {"role": "user", "content": "Count to a hundred."}]
                source.llama.faults.append(killed)
                with pytest.raises(openai.APIStatusError) as raised:
                    await chat(client, messages)
                assert raised.value.status_code == 502
                source.llama.url = llama_url
                messages.append(await chat(client, messages))
            trajectory = await kit.captured(gateway, "one")
    kit.assert_captured(trajectory, source.llama.said)
    assert [len(trajectory["segments"]), len(trajectory["steps"])] == [1, 2]


async def test_64_conversations_at_once_lose_and_cross_no_turn(kit, tmp_path) -> None:
    """openai's client, and a model that really samples, in the same process."""
    sessions, turns = 64, 20
    async with kit.local(tmp_path, schedule="continuous") as source:
        source.max_tokens = 4
        async with kit.serving(source) as gateway:

            async def converse(n: int) -> None:
                messages = []
                mine = client.with_options(base_url=kit.session(gateway, f"s{n}").base_url)
                for turn in range(turns):
                    messages.append({"role": "user", "content": f"I am {n}, turn {turn}"})
                    messages.append(await chat(mine, messages))
                replies[n] = [m.get("content") or "" for m in messages if m["role"] == "assistant"]

            replies: dict[int, list[str]] = {}
            async with openai.AsyncOpenAI(base_url=gateway.url, api_key=gateway.token, max_retries=0) as client:
                await asyncio.gather(*map(converse, range(sessions)))
            for n in range(sessions):
                trajectory = await kit.captured(gateway, f"s{n}")
                kit.assert_captured(trajectory, source.sampler.by_key[f"s{n}"])
                assert [len(trajectory["segments"]), len(trajectory["steps"])] == [1, turns]
                assert [step["message"]["content"] or "" for step in trajectory["steps"]] == replies[n]
                text = source.renderer.decode(trajectory["segments"][0]["ids"])
                assert [f"I am {n}, turn {turn}" in text for turn in range(turns)] == [True] * turns
                assert text.count("I am ") == turns
            assert gateway.counters.turns == sessions * turns


CONFIG = """
[renderer]
use = "chatml"
family = "qwen3"
[model]
tokenizer = "{tokenizer}"
[trainer]
use = "local"
threads = 1
[trainer.tiny]
hidden_size = 32
layers = 2
heads = 4
intermediate_size = 48
max_positions = 2048
[sampling]
max_tokens = 8
[gateway]
store = "captured"
port = {port}
"""


async def test_killed_and_started_again_it_keeps_what_it_captured_and_serves_the_same_model(
    tmp_path: Path, kit
) -> None:
    runs = []

    async def start(port: int):
        (tmp_path / "gateway.toml").write_text(CONFIG.format(tokenizer=byte_tokenizer(), port=port))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ferrule", "gateway", "gateway.toml", "--json"),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        runs.append(process)
        facts = json.loads(await asyncio.wait_for(process.stdout.readline(), 120))
        return process, facts["url"], Path(facts["token_file"]).read_text().strip()

    async def converse(url: str, key: str, id_: str) -> tuple[list[str], dict]:
        async with openai.AsyncOpenAI(base_url=f"{url}/s/{id_}/v1", api_key=key, max_retries=0) as client:
            root = client.with_options(base_url=url)
            await root.post("/sessions", body={"id": id_, "sampling": {"seed": 3}}, cast_to=object)
            messages, said = list(HELLO), []
            for _ in range(3):
                messages += [await chat(client, messages), {"role": "user", "content": "more"}]
                said.append(messages[-2].get("content") or "")
            return said, await root.get(f"/sessions/{id_}/trajectory", cast_to=object)

    try:
        process, url, key = await start(0)
        said, trajectory = await converse(url, key, "one")
        process.send_signal(signal.SIGKILL)
        await process.wait()
        with pytest.raises(openai.APIConnectionError):
            await converse(url, key, "two")
        process, again, key_again = await start(int(url.rpartition(":")[2]))
        assert again == url
        with pytest.raises(openai.AuthenticationError):
            await converse(url, key, "two")
        said_again, trajectory_again = await converse(url, key_again, "two")
        assert said_again == said
        assert trajectory_again["segments"] == trajectory["segments"]
        async with openai.AsyncOpenAI(base_url=url, api_key=key_again) as client:
            kept = await client.get("/sessions/one/trajectory", cast_to=object)
        assert (kept["segments"], kept["steps"]) == (trajectory["segments"], trajectory["steps"])
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 60) == 0
    finally:
        for process in runs:
            if process.returncode is None:
                process.kill()
                await process.wait()
