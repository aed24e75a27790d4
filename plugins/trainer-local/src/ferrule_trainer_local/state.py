"""What the engine knows of a session and of its request.

A session's known context is ``ids[:n]``, of which the first ``cached`` are in the cache; what lies between is still
to be fed, be it a prompt, a tool's answer or the token sampled last. So a request that extends the last one only adds
to ``n``, and one that does not lowers ``cached`` first.
"""

from __future__ import annotations

import asyncio
import time

import numpy as np
import torch

from ferrule import Sample, SamplingParams

from .draw import Uniforms


class Request:
    """One completion under way; ``prompt`` int32[T]."""

    def __init__(
        self, prompt: np.ndarray, params: SamplingParams, uniforms: Uniforms, future: asyncio.Future[Sample]
    ) -> None:
        self.prompt, self.params, self.uniforms, self.future = prompt, params, uniforms, future
        self.loop = future.get_loop()
        self.logprobs = np.empty(0, np.float32)
        self.versions = np.empty(0, np.int32)
        self.cancelled = False

    @property
    def sampled(self) -> int:
        return len(self.logprobs)


class State:
    """A session as the engine sees it. ``row`` is its row in the batch, or ``parked`` what was taken out of it.

    Keys are ``<episode>:<role>``. Roles of one episode mostly wait for one another, so while one of them waits for a
    token the others need not.
    """

    def __init__(self, key: str, seed: int, serial: int) -> None:
        self.key, self.seed, self.serial = key, seed, serial
        self.episode = key.rpartition(":")[0] or key
        self.ids = np.empty(0, np.int32)
        self.n = self.cached = 0
        self.row: int | None = None
        self.parked: torch.Tensor | None = None
        self.request: Request | None = None
        self.idle_since = time.monotonic()
        self.overdue = False

    @property
    def asked(self) -> Request:
        """The request of a session that waits for one."""
        assert self.request is not None
        return self.request

    @property
    def pending(self) -> int:
        return self.n - self.cached

    @property
    def order(self) -> tuple[str, int]:
        return self.key, self.serial

    def extend(self, ids: np.ndarray) -> None:
        need = self.n + len(ids)
        if need > len(self.ids):
            grown = np.empty(max(256, need * 3 // 2), np.int32)
            grown[: self.n] = self.ids[: self.n]
            self.ids = grown
        self.ids[self.n : need] = ids
        self.n = need

    def forget(self) -> None:
        self.row = self.parked = None
        self.cached = 0
