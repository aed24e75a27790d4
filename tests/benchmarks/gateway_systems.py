"""What the gateway's benchmark runs in processes of their own: the stub upstream, the floor, and the gateways under test."""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
from array import array
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson

COMPLETION = 100


def completion(words: list[int], stop: int, session: str, turn: int) -> list[int]:
    """The ids that the stub answers."""
    return [*random.Random(f"{session} {turn}").choices(words, k=COMPLETION - 1), stop]


def logprob(token: int) -> float:
    return -((token % 997) + 1) / 256.0


def digest(ids: Any) -> str:
    return hashlib.sha256(array("i", ids).tobytes()).hexdigest()


# -- the stub ----------------------------------------------------------------------------------------------------------


def serve_stub(port: int, vocabulary: str) -> None:
    import uvicorn

    known = json.loads(Path(vocabulary).read_text())
    words, stop = known["words"], known["stop"]
    text = "I will look at the failing test and then change the handler. " * 5
    seen: dict[str, list[str]] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        out: Any = {"status": "ok"}
        path = scope["path"]
        if path == "/v1/completions":
            request = orjson.loads(body)
            session = dict(scope["headers"])[b"x-session-affinity"].decode()
            turns = seen.setdefault(session, [])
            ids = completion(words, stop, session, len(turns))
            turns.append(digest(request["prompt"]))
            logprobs = {"tokens": [f"token_id:{i}" for i in ids], "token_logprobs": [logprob(i) for i in ids]}
            choice = {"index": 0, "text": text, "finish_reason": "stop", "token_ids": ids, "logprobs": logprobs}
            usage = {"prompt_tokens": len(request["prompt"]), "completion_tokens": len(ids)}
            out = {"id": "cmpl", "object": "text_completion", "choices": [choice], "usage": usage}
        elif path == "/v1/chat/completions":
            request = orjson.loads(body)
            session = request["messages"][0]["content"].split("session=", 1)[1].split()[0]
            turn = sum(each["role"] == "assistant" for each in request["messages"])
            ids = completion(words, stop, session, turn)
            prompt = prompt_of(session, turn)
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
            if request.get("logprobs"):
                choice["logprobs"] = {
                    "content": [
                        {"token": f"t{i}", "logprob": logprob(i), "bytes": None, "top_logprobs": []} for i in ids
                    ]
                }
            usage = {
                "prompt_tokens": len(prompt),
                "completion_tokens": len(ids),
                "total_tokens": len(prompt) + len(ids),
            }
            out = {"id": "chat", "object": "chat.completion", "created": 1, "model": "bench", "choices": [choice]}
            out["usage"] = usage
            if request.get("return_token_ids"):
                out["prompt_token_ids"], choice["token_ids"] = prompt, ids
        elif path == "/v1/models":
            model = {"id": "bench", "object": "model", "owned_by": "vllm", "max_model_len": 131072}
            out = {"object": "list", "data": [model]}
        elif path == "/seen":
            out = seen
        data = orjson.dumps(out)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(data))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": data})

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False, lifespan="off")


def prompt_of(session: str, turn: int) -> list[int]:
    """The prompt ids that the stub says it made of messages: about as many as ours come to."""
    return list(random.Random(session).choices(range(150_000), k=260 + 290 * turn))


# -- systems -----------------------------------------------------------------------------------------------------------


def serve_floor(port: int, upstream: str) -> None:
    from aiohttp import web

    kept: dict[str, list[Any]] = {}

    async def chat(request: web.Request) -> web.Response:
        asked = orjson.loads(await request.read())
        asked["logprobs"] = asked["return_token_ids"] = True
        async with request.app["http"].post(
            f"{upstream}/v1/chat/completions", data=orjson.dumps(asked), headers={"content-type": "application/json"}
        ) as got:
            body = orjson.loads(await got.read())
        choice = body["choices"][0]
        logprobs = array("d", [each["logprob"] for each in choice.pop("logprobs")["content"]])
        turn = (array("i", body.pop("prompt_token_ids")), array("i", choice.pop("token_ids")), logprobs)
        kept.setdefault(request.match_info["s"], []).append(turn)
        return web.Response(body=orjson.dumps(body), content_type="application/json")

    async def traces(request: web.Request) -> web.Response:
        out = [[part.tolist() for part in turn] for turn in kept.get(request.match_info["s"], [])]
        return web.Response(body=orjson.dumps(out), content_type="application/json")

    async def delete(request: web.Request) -> web.Response:
        kept.pop(request.match_info["s"], None)
        return web.Response()

    async def health(request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def client(app: web.Application) -> AsyncIterator[None]:
        app["http"] = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        yield
        await app["http"].close()

    app = web.Application(client_max_size=1 << 26)
    app.cleanup_ctx.append(client)
    app.add_routes([web.post("/s/{s}/v1/chat/completions", chat), web.get("/s/{s}/traces", traces)])
    app.add_routes([web.get("/health", health), web.delete("/s/{s}", delete)])
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


class System:
    """A gateway under test: how it is started, and where a session is posted to and read."""

    name = ""
    asks_for_ids = False
    headers = {"authorization": "Bearer none"}

    def __init__(self, python: str) -> None:
        self.python = python

    def command(self, upstream: str, port: int, folder: Path) -> list[str]:
        raise LookupError(self.name)

    def env(self) -> dict[str, str]:
        return {}

    def ready(self, url: str) -> str:
        return f"{url}/health"

    def chat(self, url: str, session: str) -> str:
        return f"{url}/s/{session}/v1/chat/completions"

    async def create(self, http: aiohttp.ClientSession, url: str, session: str) -> None:
        """Most know a session by its first request."""

    async def captured(self, http: aiohttp.ClientSession, url: str, session: str) -> list[Any] | None:
        """Prompt ids, completion ids and logprobs of each turn; None where it keeps none."""
        return None

    async def delete(self, http: aiohttp.ClientSession, url: str, session: str) -> None:
        """Forget it, where it can."""


class Floor(System):
    name = "bare capture proxy (floor)"

    def command(self, upstream: str, port: int, folder: Path) -> list[str]:
        return [sys.executable, __file__, "--serve-floor", str(port), "--upstream", upstream]

    async def captured(self, http: aiohttp.ClientSession, url: str, session: str) -> list[Any] | None:
        async with http.get(f"{url}/s/{session}/traces") as got:
            return list(await got.json())

    async def delete(self, http: aiohttp.ClientSession, url: str, session: str) -> None:
        await (await http.delete(f"{url}/s/{session}")).read()


class Ours(System):
    name = "ferrule gateway"

    def command(self, upstream: str, port: int, folder: Path) -> list[str]:
        from ferrule_test_assets import qwen3

        (folder / "gateway.toml").write_text(
            f'[renderer]\nuse = "chatml"\nfamily = "qwen3"\n[model]\ntokenizer = "{qwen3()}"\n'
            f'[upstream]\nurls = ["{upstream}"]\n[sampling]\nmax_tokens = 256\n'
        )
        self.token = folder / "token"
        flags = ["--port", str(port), "--token-file", str(self.token), "--json"]
        return [sys.executable, "-m", "ferrule", "gateway", str(folder / "gateway.toml"), "--in-memory", *flags]

    async def create(self, http: aiohttp.ClientSession, url: str, session: str) -> None:
        self.headers = {"authorization": f"Bearer {self.token.read_text().strip()}"}
        async with http.post(f"{url}/sessions", json={"id": session}, headers=self.headers) as got:
            assert got.status == 201, await got.text()

    async def captured(self, http: aiohttp.ClientSession, url: str, session: str) -> list[Any] | None:
        async with http.get(f"{url}/sessions/{session}/trajectory", headers=self.headers) as got:
            found = await got.json()
        out = []
        for step in found["steps"]:
            segment, part = found["segments"][step["segment"]], slice(step["start"], step["stop"])
            out.append((segment["ids"][: step["start"]], segment["ids"][part], segment["logprobs"][part]))
        return out

    async def delete(self, http: aiohttp.ClientSession, url: str, session: str) -> None:
        await (await http.delete(f"{url}/sessions/{session}", headers=self.headers)).read()


class Rllm(System):
    name = "rllm-model-gateway, memory"
    dist = "rllm-model-gateway"

    def command(self, upstream: str, port: int, folder: Path) -> list[str]:
        where = ["--host", "127.0.0.1", "--port", str(port), "--worker", f"{upstream}/v1"]
        return [self.python, "-m", "rllm_model_gateway", *where, "--store", "memory", "--log-level", "WARNING"]

    def chat(self, url: str, session: str) -> str:
        return f"{url}/sessions/{session}/v1/chat/completions"

    async def captured(self, http: aiohttp.ClientSession, url: str, session: str) -> list[Any] | None:
        async with http.get(f"{url}/sessions/{session}/traces") as got:
            found = await got.json()
        rows = sorted(found if isinstance(found, list) else found["traces"], key=lambda t: len(t["prompt_token_ids"]))
        return [(t["prompt_token_ids"], t["completion_token_ids"], t["logprobs"]) for t in rows]

    async def delete(self, http: aiohttp.ClientSession, url: str, session: str) -> None:
        await (await http.delete(f"{url}/sessions/{session}")).read()


NO_KEY = {"LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}


class LiteLLM(System):
    name = "litellm proxy"
    dist = "litellm"
    asks_for_ids = True

    def command(self, upstream: str, port: int, folder: Path) -> list[str]:
        served = {"model": "hosted_vllm/bench", "api_base": f"{upstream}/v1", "api_key": "none"}
        (folder / "litellm.yaml").write_text(
            json.dumps({"model_list": [{"model_name": "bench", "litellm_params": served}]})
        )
        where = ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1", "--telemetry", "False"]
        return [str(Path(self.python).with_name("litellm")), "--config", str(folder / "litellm.yaml"), *where]

    def env(self) -> dict[str, str]:
        return {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION", "LITELLM_LOG": "ERROR", **NO_KEY}

    def ready(self, url: str) -> str:
        return f"{url}/health/liveliness"

    def chat(self, url: str, session: str) -> str:
        return f"{url}/v1/chat/completions"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve-stub", type=int)
    parser.add_argument("--vocabulary")
    parser.add_argument("--serve-floor", type=int)
    parser.add_argument("--upstream")
    a = parser.parse_args()
    if a.serve_stub:
        serve_stub(a.serve_stub, a.vocabulary)
    else:
        serve_floor(a.serve_floor, a.upstream)


if __name__ == "__main__":
    main()
