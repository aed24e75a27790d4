"""Several servers behind one name: each session stays with one of them, and those that do not answer are passed over."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence

import aiohttp
import attrs
from yarl import URL

from ferrule import get_logger

log = get_logger("ferrule_gateway")

CHECK_EVERY = 10.0
CHECK_TIMEOUT = 20.0
STRIKES = 3


@attrs.define(eq=False)
class Upstream:
    """One server; ``strikes`` in a row were against it."""

    url: str
    strikes: int = 0
    completions: URL = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.completions = URL(f"{self.url}/v1/completions")

    @property
    def healthy(self) -> bool:
        return self.strikes < STRIKES

    def struck(self) -> None:
        self.strikes += 1
        if self.strikes == STRIKES:
            log.warning("upstream_unhealthy", url=self.url, strikes=self.strikes)

    def answered(self) -> None:
        if not self.healthy:
            log.info("upstream_healthy", url=self.url)
        self.strikes = 0


class Pool:
    """The servers at *urls*, checked every *every* seconds once :meth:`watch` runs."""

    def __init__(self, urls: Sequence[str], every: float = CHECK_EVERY) -> None:
        self.upstreams = [Upstream(url) for url in urls]
        self._every = every

    def pick(self, key: str, but: Upstream | None = None) -> Upstream:
        """The one of *key*: always the same, as long as it is healthy; another than *but* where there is one. With
        none healthy, as if all were.
        """
        able = [each for each in self.upstreams if each.healthy and each is not but]
        return max(able or self.upstreams, key=lambda each: hashlib.blake2b(f"{key}\0{each.url}".encode()).digest())

    async def watch(self, http: aiohttp.ClientSession) -> None:
        """Check for ever, each by itself: one that hangs keeps no other from being checked."""
        await asyncio.gather(*(self._watch(http, each) for each in self.upstreams))

    async def _watch(self, http: aiohttp.ClientSession, upstream: Upstream) -> None:
        clock = asyncio.get_running_loop().time
        took = 0.0
        while True:
            await asyncio.sleep(max(0.0, self._every - took))
            began = clock()
            await self._check(http, upstream)
            took = clock() - began

    async def _check(self, http: aiohttp.ClientSession, upstream: Upstream) -> None:
        try:
            async with http.get(
                f"{upstream.url}/health", timeout=aiohttp.ClientTimeout(CHECK_TIMEOUT), allow_redirects=False
            ) as answer:
                alive = answer.status < 500
        except (aiohttp.ClientError, OSError, TimeoutError):
            alive = False
        if alive:
            upstream.answered()
        else:
            upstream.struck()
