"""A gateway on a port of its own, over the ChatML renderer and a sampler that writes the text it is told."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import attrs
import numpy as np
import pytest
from aiohttp import web
from ferrule_gateway import Gateway, GatewayOptions
from ferrule_renderer_chatml import ChatMLRenderer
from ferrule_test_assets import byte_tokenizer
from tokenizers import Tokenizer

from ferrule import ModelSpec, Renderer, Sample, Sampler, SamplerSession, SamplingParams

Script = Callable[[str, int, str], Any]


class ScriptedSampler(Sampler):
    """Answers what *script(prompt's text, number of the request in the session, key)* says: text, token ids, an
    exception, or an awaitable of one. Keeps every prompt and completion by session, and how many sessions are open.
    """

    def __init__(self, renderer: Renderer, script: Script, context_length: int = 32768) -> None:
        self.renderer, self.script, self.context_length = renderer, script, context_length
        self.tokenizer = Tokenizer.from_file(f"{renderer.model.tokenizer_path}/tokenizer.json")
        self.prompts: dict[str, list[np.ndarray]] = {}
        self.samples: dict[str, list[Sample]] = {}
        self.params: list[SamplingParams] = []
        self.seeds: dict[str, int] = {}
        self.open_now: Counter[str] = Counter()

    @asynccontextmanager
    async def open(self, key: str, *, seed: int) -> AsyncIterator[SamplerSession]:
        self.open_now[key] += 1
        self.seeds[key] = seed
        try:
            yield _Scripted(self, key)
        finally:
            self.open_now[key] -= 1


class _Scripted(SamplerSession):
    concurrent = True

    def __init__(self, sampler: ScriptedSampler, key: str) -> None:
        self.sampler, self.key, self.asked = sampler, key, 0

    async def sample(self, prompt: np.ndarray, params: SamplingParams) -> Sample:
        s, number = self.sampler, self.asked
        self.asked += 1
        s.prompts.setdefault(self.key, []).append(prompt.copy())
        s.params.append(params)
        answer = s.script(s.renderer.decode(prompt), number, self.key)
        if inspect.isawaitable(answer):
            answer = await answer
        else:
            await asyncio.sleep(0)
        if isinstance(answer, BaseException):
            raise answer
        ids = s.tokenizer.encode(answer, add_special_tokens=False).ids if isinstance(answer, str) else list(answer)
        reason = "stop" if len(ids) <= params.max_tokens else "length"
        ids = np.array(ids[: params.max_tokens], np.int32)
        out = Sample(ids, -(ids % 97 + 1).astype(np.float32) / 64, np.full(len(ids), 7, np.int32), reason)
        s.samples.setdefault(self.key, []).append(out)
        return out


class StubUpstream:
    """A server of ``/v1/completions`` for token ids, as vLLM and llama.cpp answer: the text that *script(prompt's text,
    number of the request)* says, whole; or what it says instead: a status with a body and headers, ``die`` before the
    answer, ``half`` of one.
    """

    def __init__(self, renderer: Renderer, script: Callable[[str, int], Any], dialect: str = "vllm") -> None:
        self.renderer, self.script, self.dialect = renderer, script, dialect
        self.tokenizer = Tokenizer.from_file(f"{renderer.model.tokenizer_path}/tokenizer.json")
        self.requests: list[tuple[dict[str, Any], dict[str, str]]] = []
        self.answers: list[tuple[list[int], list[float]]] = []
        self.context_length = 32768
        self.health = 200
        self.checks = 0
        self.cancelled = 0
        self.change: Callable[[dict[str, Any]], Any] = lambda body: body
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> None:
        app = web.Application(client_max_size=2**26)
        app.add_routes([web.post("/v1/completions", self._complete), web.get("/v1/models", self._models)])
        app.add_routes([web.get("/health", self._health)])
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        self.checks += 1
        return web.Response(status=self.health)

    async def _models(self, request: web.Request) -> web.Response:
        if self.dialect == "vllm":
            model = {"id": "stub", "owned_by": "vllm", "max_model_len": self.context_length}
        else:
            model = {"id": "stub", "owned_by": "llamacpp", "meta": {"n_ctx": self.context_length}}
        return web.json_response({"object": "list", "data": [model]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append((body, dict(request.headers)))
        try:
            said = self.script(self.renderer.decode(body["prompt"]), len(self.requests) - 1)
            said = await said if inspect.isawaitable(said) else said
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if isinstance(said, tuple):
            status, text, headers = said
            return web.Response(status=status, text=text, headers=headers, content_type="application/json")
        if said == "die":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        ids = self.tokenizer.encode(said.removeprefix("half "), add_special_tokens=False).ids
        reason = "stop" if len(ids) <= body["max_tokens"] else "length"
        ids = ids[: body["max_tokens"]]
        logprobs = [-(i % 97 + 1) / 64 for i in ids]
        out = json.dumps(self.change(self._answer(body, ids, logprobs, reason))).encode()
        if said.startswith("half "):
            answer = web.StreamResponse(headers={"content-length": str(len(out))})
            await answer.prepare(request)
            await answer.write(out[: len(out) // 2])
            assert request.transport is not None
            request.transport.abort()
            return answer
        self.answers.append((ids, logprobs))
        return web.Response(body=out, content_type="application/json")

    def _answer(self, body: dict[str, Any], ids: list[int], logprobs: list[float], reason: str) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "text": self.renderer.decode(ids), "finish_reason": reason}
        if self.dialect == "vllm":
            choice["token_ids"] = ids
            choice["logprobs"] = {"tokens": [f"token_id:{i}" for i in ids], "token_logprobs": logprobs}
        else:
            choice["logprobs"] = {"content": [{"id": i, "logprob": p} for i, p in zip(ids, logprobs, strict=True)]}
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(ids)}
        return {"id": "cmpl-1", "object": "text_completion", "choices": [choice], "usage": usage}


@pytest.fixture
async def stub(renderer: Renderer) -> AsyncIterator[Callable[..., Any]]:
    """``await stub(script, dialect=)``: a running :class:`StubUpstream`."""
    running: list[StubUpstream] = []

    async def make(script: Callable[[str, int], Any], dialect: str = "vllm") -> StubUpstream:
        upstream = StubUpstream(renderer, script, dialect)
        await upstream.start()
        running.append(upstream)
        return upstream

    yield make
    for upstream in running:
        await upstream.stop()


@pytest.fixture(scope="session")
def renderer() -> Renderer:
    return ChatMLRenderer(ChatMLRenderer.Config(family="qwen3"), ModelSpec(tokenizer=str(byte_tokenizer())))


@pytest.fixture
def scripted() -> type[ScriptedSampler]:
    return ScriptedSampler


@attrs.define(eq=False)
class Served:
    """A running gateway and a client of it."""

    gateway: Gateway
    sampler: Any
    http: aiohttp.ClientSession

    @property
    def auth(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.gateway.token}"}

    async def session(self, **body: Any) -> str:
        status, out = await self.call("POST", "/sessions", body)
        assert status == 201, out
        return str(out["id"])

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        """Status and parsed body."""
        options.setdefault("headers", self.auth)
        raw = {"data": body} if isinstance(body, bytes) else {"json": body} if body is not None else {}
        async with self.http.request(method, self.gateway.url + path, **raw, **options) as answer:
            return answer.status, await answer.json(content_type=None)

    async def chat(self, session: str, messages: list[Any], **fields: Any) -> tuple[int, Any]:
        body = {"model": "policy", "messages": messages, **fields}
        return await self.call("POST", f"/s/{session}/v1/chat/completions", body)

    async def trajectory(self, session: str) -> Any:
        status, out = await self.call("GET", f"/sessions/{session}/trajectory")
        assert status == 200, out
        return out


@pytest.fixture
async def serve(renderer: Renderer) -> AsyncIterator[Callable[..., Any]]:
    """``await serve(script, **options)``: a gateway over a scripted sampler, or over ``sampler=``."""
    running: list[Served] = []

    async def make(script: Script | None = None, *, sampler: Any = None, **options: Any) -> Served:
        own = {k: options.pop(k) for k in ("sampling", "model", "token") if k in options}
        sampler = ScriptedSampler(renderer, script) if sampler is None else sampler
        gateway = Gateway(
            renderer=renderer,
            sampler=sampler,
            options=GatewayOptions(**options),
            vocab_size=renderer.vocab_size,
            **own,
        )
        await gateway.start()
        served = Served(gateway, sampler, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        running.append(served)
        return served

    yield make
    for served in running:
        await served.http.close()
        await served.gateway.stop(grace=2.0)
