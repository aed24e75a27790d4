"""Real clients, and real samplers behind the gateway whose every word is written down on the way."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import attrs
import numpy as np
import pytest
from aiohttp import web
from ferrule_gateway import Gateway, GatewayOptions
from ferrule_gateway.http import HttpSampler, UpstreamOptions
from ferrule_renderer_chatml import ChatMLRenderer
from ferrule_test_assets import byte_tokenizer, smollm2
from ferrule_trainer_local import LocalTrainer, Tiny

import ferrule
from ferrule import ModelSpec, RunInfo, SamplingParams

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("ferrule_gateway_client_drivers", HERE / "drivers.py")
assert _spec is not None
assert _spec.loader is not None
drivers = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = drivers  # attrs looks a class's module up
_spec.loader.exec_module(drivers)
Served = drivers.Served
LITELLM = "litellm==1.98.1"
END = "<|im_end|>"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "day": {"type": "integer"}}},
    },
}
USERS = ("How is it in Zürich? 🙂", "And tomorrow?\n", "Thanks.")


@pytest.fixture(scope="session")
def litellm_worker() -> Iterator[Callable[[dict[str, Any]], dict[str, Any]]]:
    """litellm pins an older openai: it has an environment beside this one, made where `make` or nox has not."""
    folder = Path(sys.prefix) / "litellm"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", LITELLM], check=True)
    worker = subprocess.Popen(
        [str(python), str(HERE / "litellm_worker.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert json.loads(worker.stdout.readline()) == {"ready": True}

    def ask(asked: dict[str, Any]) -> dict[str, Any]:
        worker.stdin.write(json.dumps(asked) + "\n")
        worker.stdin.flush()
        return json.loads(worker.stdout.readline())

    yield ask
    worker.stdin.close()
    worker.wait(timeout=30)


# -- what is behind the gateway ----------------------------------------------------------------------------------------

Said = tuple[list[int], list[int], list[float]]
"""What was sampled once: the prompt, the completion, its logprobs."""


@attrs.define(eq=False)
class Behind:
    """A sampler, its renderer, and the words of whoever really sampled."""

    renderer: ferrule.Renderer
    sampler: Any
    said: Callable[[], list[Said]]
    vocab_size: int
    max_tokens: int = 12
    llama: Any = None


class Listening(ferrule.Sampler):
    """Another sampler, and what it gave."""

    def __init__(self, sampler: ferrule.Sampler) -> None:
        self.sampler, self.context_length, self.said = sampler, sampler.context_length, list[Said]()
        self.by_key: dict[str, list[Said]] = {}

    @contextlib.asynccontextmanager
    async def open(self, key: str, *, seed: int):
        async with self.sampler.open(key, seed=seed) as session:
            yield _ListeningSession(session, self.said, self.by_key.setdefault(key, []))


class _ListeningSession(ferrule.SamplerSession):
    def __init__(self, session: ferrule.SamplerSession, *said: list[Said]) -> None:
        self._session, self._said = session, said
        self.concurrent = session.concurrent  # type: ignore[misc]  # of its class otherwise

    async def sample(self, prompt, params):
        sample = await self._session.sample(prompt, params)
        for each in self._said:
            each.append((prompt.tolist(), sample.ids.tolist(), sample.logprobs.tolist()))
        return sample


@contextlib.asynccontextmanager
async def local(folder: Path, **options: Any) -> AsyncIterator[Behind]:
    """A tiny model that was never trained: its words are mostly no words, and not even UTF-8."""
    spec = ModelSpec(tokenizer=str(byte_tokenizer()))
    shape = Tiny(hidden_size=32, layers=2, heads=4, intermediate_size=48, max_positions=2048)
    trainer = LocalTrainer(LocalTrainer.Config(tiny=shape, threads=1, device="cpu", **options))
    await trainer.start(RunInfo("run", folder, 1, spec))
    sampler = Listening(trainer.sampler())
    # It may well say "</think>"; that its history is then rewritten is not what is looked at here.
    renderer = ChatMLRenderer(ChatMLRenderer.Config(family="qwen3", thinking="keep"), spec)
    try:
        yield Behind(renderer, sampler, lambda: sampler.said, trainer.vocab_size)
    finally:
        await trainer.close()


@contextlib.asynccontextmanager
async def calls(scripted: Any) -> AsyncIterator[Behind]:
    """Calls of tools, well and badly formed, several in one reply, beside thinking and text."""
    two = [{"name": "weather", "arguments": {"city": city, "day": 1}} for city in ("Zürich", 'a "b"\n\\')]
    answers = [
        "<think>\nWhich city?\n</think>\n\nI look.\n" + "\n".join(_hermes(json.dumps(each)) for each in two) + END,
        _hermes('{"name": "weather", "arguments": {"city": "x"') + END,
        _hermes(json.dumps({"name": "forecast", "arguments": {}})) + END,
        "It is 🌞." + END,
        "<think>\nNothing else.\n</think>\n\nAlways." + END,
        "Bye." + END,
    ]
    # Kept in the history, so that a reply with thinking does not begin a new row.
    config = ChatMLRenderer.Config(family="qwen3", thinking="keep")
    renderer = ChatMLRenderer(config, ModelSpec(tokenizer=str(byte_tokenizer())))
    sampler = Listening(scripted(renderer, lambda prompt, number, key: answers[min(number, len(answers) - 1)]))
    yield Behind(renderer, sampler, lambda: sampler.said, renderer.vocab_size, 512)


def _hermes(text: str) -> str:
    return f"<tool_call>\n{text}\n</tool_call>"


@attrs.define(eq=False)
class Llama:
    """llama.cpp's server, and a proxy before it that writes down what goes by.

    The first of *faults* is done in place of the next request: ``await fault(request, forward)``, where *forward* is
    what would have been done.
    """

    url: str
    proxy: str = ""
    said: list[Said] = attrs.field(factory=list)
    faults: deque[Any] = attrs.field(factory=deque)
    asked: int = 0


@contextlib.contextmanager
def llama_server() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A new one: its URL and its process."""
    server = subprocess.Popen(
        [sys.executable, str(HERE / "llama_server.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield server.stdout.readline().strip(), server
    finally:
        server.kill()
        server.wait()


@pytest.fixture(scope="session")
def llama_url() -> Iterator[str]:
    with llama_server() as (url, _):
        yield url


@contextlib.asynccontextmanager
async def watched(llama_url: str) -> AsyncIterator[Llama]:
    """llama.cpp's server behind a proxy."""
    found = Llama(llama_url)
    http = aiohttp.ClientSession()

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/completions":
            found.asked += 1
            if found.faults:
                return await found.faults.popleft()(request, forward)
        return await forward(request)

    async def forward(request: web.Request) -> web.Response:
        body = await request.read()
        try:
            async with http.request(request.method, found.url + request.path, data=body) as answer:
                raw = await answer.read()
        except aiohttp.ClientConnectionError:
            assert request.transport is not None
            request.transport.abort()
            raise web.HTTPBadGateway from None
        if request.path == "/v1/completions" and answer.status == 200:
            tokens = json.loads(raw)["choices"][0]["logprobs"]["content"]
            found.said.append(
                (json.loads(body)["prompt"], [each["id"] for each in tokens], [each["logprob"] for each in tokens])
            )
        return web.Response(body=raw, status=answer.status, content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.proxy = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield found
    finally:
        await runner.cleanup()
        await http.close()


@contextlib.asynccontextmanager
async def xllamacpp(llama_url: str, **options: Any) -> AsyncIterator[Behind]:
    """A small real model behind a server of another make."""
    renderer = ChatMLRenderer(ChatMLRenderer.Config(family="smollm2"), ModelSpec(tokenizer=str(smollm2())))
    async with watched(llama_url) as llama:
        sampler = HttpSampler(UpstreamOptions(urls=llama.proxy, **options))
        await sampler.start()
        try:
            yield Behind(renderer, sampler, lambda: llama.said, renderer.vocab_size, llama=llama)
        finally:
            await sampler.close()


# -- the conversation --------------------------------------------------------------------------------------------------


async def talk(served: Any, client: Callable[..., Any], users: tuple[str, ...] = USERS) -> list[dict[str, Any]]:
    """Say *users* one after the other, answering calls as a program does that knows ``weather`` alone."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    for user in users:
        messages.append({"role": "user", "content": user})
        for _ in range(4):
            asked = json.loads(json.dumps(messages))
            if asyncio.iscoroutinefunction(client):
                reply = await client(served, asked, [WEATHER])
            else:
                reply = await asyncio.to_thread(client, served, asked, [WEATHER])
            messages.append(reply)
            for call in reply.get("tool_calls") or ():
                try:
                    answer = f"sunny in {json.loads(call['function']['arguments'])['city']}"
                except (ValueError, KeyError):
                    answer = "error: not a call of weather"
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": answer})
            if not reply.get("tool_calls"):
                break
    return messages


@contextlib.asynccontextmanager
async def serving(behind: Behind, **options: Any) -> AsyncIterator[Gateway]:
    gateway = Gateway(
        renderer=behind.renderer,
        sampler=behind.sampler,
        sampling=SamplingParams(max_tokens=behind.max_tokens),
        vocab_size=behind.vocab_size,
        options=GatewayOptions(**options),
    )
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop(grace=2.0)


async def captured(gateway: Gateway, id_: str) -> dict[str, Any]:
    async with (
        aiohttp.ClientSession(headers={"authorization": f"Bearer {gateway.token}"}) as http,
        http.get(f"{gateway.url}/sessions/{id_}/trajectory") as answer,
    ):
        return await answer.json()


def session(gateway: Gateway, id_: str, worker: Any = None) -> Any:
    gateway.create({"id": id_, "sampling": {"seed": 11}})
    return Served(gateway.base_url(id_), gateway.token, worker)


def assert_captured(trajectory: dict[str, Any], said: list[Said]) -> None:
    """Every step is what was sampled, after the very prompt that the sampler was shown."""
    assert len(trajectory["steps"]) == len(said)
    for step, (prompt, ids, logprobs) in zip(trajectory["steps"], said, strict=True):
        segment = trajectory["segments"][step["segment"]]
        assert segment["ids"][: step["start"]] == prompt
        assert segment["ids"][step["start"] : step["stop"]] == ids
        assert np.array_equal(
            np.array(segment["logprobs"][step["start"] : step["stop"]], np.float32), np.array(logprobs, np.float32)
        )
        assert set(segment["kinds"][step["start"] : step["stop"]]) == {int(ferrule.TokenKind.ACTION)}
    action = sum(kinds.count(int(ferrule.TokenKind.ACTION)) for kinds in (s["kinds"] for s in trajectory["segments"]))
    assert action == sum(len(ids) for _, ids, _ in said)


@pytest.fixture
def kit() -> SimpleNamespace:
    """The parts above, by name."""
    return SimpleNamespace(**{name: value for name, value in globals().items() if not name.startswith("_")})
