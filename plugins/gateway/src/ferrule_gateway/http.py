"""A sampler over a server that completes token ids: vLLM's ``POST /v1/completions``, or llama.cpp's."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Literal

import aiohttp
import attrs
import orjson
from attrs import validators as v

from ferrule import (
    FerruleError,
    Sample,
    Sampler,
    SamplerSession,
    SamplingParams,
    TrainerError,
    derive_seed,
    get_logger,
    keep_secret,
)

from .dialects import Dialect, error_text, read_answer, request_body
from .errors import UpstreamError
from .upstreams import CHECK_EVERY, CHECK_TIMEOUT, Pool, Upstream

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

log = get_logger("ferrule_gateway")

CONNECT_TIMEOUT = 10.0
LONGEST_WAIT = 60.0
"""Seconds: a 429 that asks for more is passed on."""


def _urls(value: Any) -> tuple[str, ...]:
    return tuple(re.sub(r"(/v1)?/*$", "", each) for each in ((value,) if isinstance(value, str) else value))


def _is_url(instance: Any, attribute: attrs.Attribute[Any], value: str) -> None:
    if not re.fullmatch(r"https?://[^/\s]+(/\S*)?", value):
        raise ValueError(f"must be addresses such as 'http://127.0.0.1:8000', not {value!r}")


@attrs.frozen
class UpstreamOptions:
    """``[upstream]``: ``urls`` of one or several servers of the same model.

    ``model`` and ``context_length`` are asked of the first server where they are not given. ``bearer_env`` names the
    environment variable that holds the servers' key. ``timeout`` is for one completion, in seconds; ``retries`` for
    connection errors, and for 429 that says when to come again. Without ``need_logprobs`` a token whose logprob is unknown
    is kept, with NaN in its place: good for looking at, not for training. ``version`` is the weight version of servers
    that tell none.
    """

    urls: tuple[str, ...] = attrs.field(converter=_urls, validator=[v.min_len(1), v.deep_iterable(_is_url)])
    model: str | None = None
    dialect: Literal["auto", "vllm", "llama.cpp"] = "auto"
    bearer_env: str | None = None
    context_length: int | None = attrs.field(default=None, validator=v.optional(v.ge(1)))
    timeout: float = attrs.field(default=600.0, validator=v.gt(0.0))
    retries: int = attrs.field(default=3, validator=v.ge(0))
    check_every: float = attrs.field(default=CHECK_EVERY, validator=v.gt(0.0))
    need_logprobs: bool = True
    version: int = attrs.field(default=0, validator=v.ge(0))


class HttpSampler(Sampler):
    """Samples from the servers that *options* name; ``start`` before use, ``close`` after.

    ``version`` may be set whenever the servers' weights change, where they do not tell it themselves (the header
    ``x-weight-version`` or the field ``weight_version`` of an answer).
    """

    def __init__(self, options: UpstreamOptions) -> None:
        self.options = options
        self.version = options.version
        self.context_length = options.context_length or 0
        self.dialect: Dialect = "llama.cpp" if options.dialect == "llama.cpp" else "vllm"
        self.model = options.model
        self.pool = Pool(options.urls, options.check_every)
        self._http: aiohttp.ClientSession | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Ask the first server that answers for what is not given. FerruleError where none answers, or tells no
        context length.
        """
        if self._http is not None:
            return
        headers = {"content-type": "application/json"}
        name = self.options.bearer_env
        if name is not None:
            bearer = os.environ.get(name)
            if not bearer:
                raise FerruleError(f"upstream.bearer_env: the environment variable {name} is not set")
            keep_secret(bearer)
            headers["authorization"] = f"Bearer {bearer}"
        self._http = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(self.options.timeout, sock_connect=CONNECT_TIMEOUT),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        try:
            await self._ask()
        except BaseException:
            await self.close()
            raise
        self._watch = asyncio.ensure_future(self.pool.watch(self._http))

    async def close(self) -> None:
        """Harmless when not started or called twice."""
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
            self._watch = None
        if self._http is not None:
            await self._http.close()
            self._http = None

    def open(self, key: str, *, seed: int) -> AbstractAsyncContextManager[SamplerSession]:
        return self._session(key, seed)

    @asynccontextmanager
    async def _session(self, key: str, seed: int) -> AsyncIterator[SamplerSession]:
        if self._http is None:
            raise TrainerError("the sampler over HTTP was not started")
        yield HttpSession(self, key, seed)

    async def complete(
        self, session: HttpSession, prompt: NDArray[np.int32], params: SamplingParams, seed: int
    ) -> Sample:
        """One completion, with the retries that are allowed."""
        options, left = self.options, self.options.retries
        body = request_body(self.dialect, self.model, prompt, params, seed)
        while True:
            upstream = session.upstream
            try:
                status, headers, raw = await self._post(upstream, body, session.headers)
            except (aiohttp.ClientConnectionError, ConnectionError) as error:
                if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError):
                    raise self._slow(upstream) from error
                upstream.struck()
                if left == 0:
                    what = f"{upstream.url} cannot be reached: {type(error).__name__}"
                    raise UpstreamError(502, "upstream_unreachable", what) from error
                left -= 1
                session.moved(self.pool.pick(session.key, but=upstream))
                await asyncio.sleep(0.25 * 2 ** (options.retries - left - 1) if session.upstream is upstream else 0)
                continue
            except TimeoutError as error:
                raise self._slow(upstream) from error
            except aiohttp.ClientError as error:
                what = f"{upstream.url} broke off in the middle of its answer: {type(error).__name__}"
                raise UpstreamError(502, "upstream_broke_off", what) from error
            if status == 200:
                return read_answer(raw, headers, len(prompt), params, self.version, options.need_logprobs)
            wait = _seconds(headers.get("retry-after"))
            if status == 429 and wait is not None and wait <= LONGEST_WAIT and left > 0:
                left -= 1
                log.info("upstream_busy", url=upstream.url, retry_after=wait)
                await asyncio.sleep(wait)
                continue
            what = f"{upstream.url} answered {status}: {error_text(raw)}"
            raise UpstreamError(status if 400 <= status < 600 else 502, "upstream_error", what, wait)

    def _slow(self, upstream: Upstream) -> UpstreamError:
        return UpstreamError(504, "upstream_timeout", f"{upstream.url} did not answer in {self.options.timeout:g} s")

    async def _post(self, upstream: Upstream, body: bytes, headers: dict[str, str]) -> tuple[int, Any, bytes]:
        assert self._http is not None
        async with self._http.post(upstream.completions, data=body, headers=headers, allow_redirects=False) as answer:
            return answer.status, answer.headers, await answer.read()

    # -- what the servers tell -----------------------------------------------------------------------------------------

    async def _ask(self) -> None:
        problems = []
        for upstream in self.pool.upstreams:
            try:
                await self._ask_one(upstream)
                break
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError, TypeError, AttributeError) as error:
                upstream.struck()  # the last two: it answers, with JSON of another shape
                problems.append(f"{upstream.url}: {type(error).__name__}: {error}")
        else:
            raise FerruleError(
                f"no upstream answers: {'; '.join(problems)}. Start it, or set upstream.urls to where it listens"
            )
        if not self.context_length:
            raise FerruleError("the upstream does not tell its context length: set upstream.context_length")

    async def _ask_one(self, upstream: Upstream) -> None:
        listed = await self._get(f"{upstream.url}/v1/models")
        models = [each for each in (listed or {}).get("data") or () if isinstance(each, dict)]
        model = next((each for each in models if self.model in (None, each.get("id"))), {})
        self.model = self.model or model.get("id")
        if self.options.dialect == "auto":
            self.dialect = "llama.cpp" if model.get("owned_by") == "llamacpp" else "vllm"
        if not self.context_length:
            meta = model.get("meta") or {}
            self.context_length = int(model.get("max_model_len") or meta.get("n_ctx") or 0)

    async def _get(self, url: str) -> Any:
        assert self._http is not None
        async with self._http.get(url, timeout=aiohttp.ClientTimeout(CHECK_TIMEOUT), allow_redirects=False) as answer:
            raw = await answer.read()
            if answer.status in (401, 403):
                raise FerruleError(f"{url} answered {answer.status}: upstream.bearer_env names the key's variable")
            return orjson.loads(raw) if answer.status == 200 else None


class HttpSession(SamplerSession):
    """One conversation, which stays with one server as long as that answers."""

    concurrent = True

    def __init__(self, sampler: HttpSampler, key: str, seed: int) -> None:
        self.key = key
        self._sampler, self._seed, self._asked = sampler, seed, 0
        self._upstream = sampler.pool.pick(key)
        self.headers = {"x-session-affinity": key, "x-multi-turn-session-id": key}

    @property
    def upstream(self) -> Upstream:
        if not self._upstream.healthy:
            self._upstream = self._sampler.pool.pick(self.key)
        return self._upstream

    def moved(self, upstream: Upstream) -> None:
        """It goes on with *upstream*."""
        self._upstream = upstream

    async def sample(self, prompt: NDArray[np.int32], params: SamplingParams) -> Sample:
        length = self._sampler.context_length
        if len(prompt) + params.max_tokens > length:
            raise TrainerError(
                f"a prompt of {len(prompt)} tokens and max_tokens {params.max_tokens} exceed the context of {length} tokens"
            )
        # 31 bits: what every server takes.
        seed = derive_seed(self._seed, self._asked) & 0x7FFFFFFF
        self._asked += 1
        return await self._sampler.complete(self, prompt, params, seed)


def _seconds(retry_after: str | None) -> float | None:
    """How long a ``retry-after`` asks to wait: seconds, or until a date. None where it says neither."""
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
