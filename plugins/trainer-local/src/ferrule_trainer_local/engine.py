"""The thread that decodes: all sessions' requests together, step by step, across turns.

Everything here runs in one thread but for :meth:`Engine.post` and :meth:`Engine.close`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch

from ferrule import EpisodeFailed, Failure, Sample, get_logger

from .cache import KVBatch
from .decoder import Decoder
from .draw import Draw
from .state import Request, State

log = get_logger(__name__)
WINDOW = 256
"""The most steps between two looks at the rows' bookkeeping."""
ALONE = 96
"""A row with more tokens to feed than this is brought up to the others by itself, not one token per step."""
CHUNK = 1024
"""The most tokens of a row fed at once."""


class Engine:
    """``counters`` count steps, sampled, forced and prefilled tokens, prefills, patience_expired, and so on, since
    the start.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        lockstep: bool,
        patience: float,
        max_batch: int,
        prefill_tokens: int,
        prepare: Callable[[], None],
    ) -> None:
        self.decoder, self.lockstep, self.patience = decoder, lockstep, patience
        self.max_batch, self.prefill_tokens = max_batch, prefill_tokens
        self.version = 0
        self.counters: Counter[str] = Counter()
        self._prepare = prepare
        self._batch = KVBatch(decoder.shape, decoder.dtype, decoder.device)
        self._rows: list[State] = []
        self._open: dict[State, None] = {}
        self._leaving: list[State] = []
        self._inbox: deque[tuple[Any, ...]] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._main, name="ferrule-sampler", daemon=True)
        self._thread.start()

    # What other threads may call.

    def post(self, *events: tuple[Any, ...]) -> None:
        """Events: ("open", state), ("ask", state, request), ("cancel", state, request), ("close", state), ("call",
        function).
        """
        with self._wake:
            if not self._closed:
                self._inbox.extend(events)
                self._wake.notify()
                return
        for event in events:
            if event[0] == "ask":
                self._fail(event[2], "the sampler is closed")

    def close(self) -> None:
        """End the thread; whoever still waits is told."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    # The thread.

    @torch.inference_mode()
    def _main(self) -> None:
        try:
            self._prepare()
            while self._take():
                try:
                    self._arrange()
                    if self._rows:
                        self._decode()
                except Exception as error:
                    log.exception("sampler_failed")
                    self._break(f"{type(error).__name__}: {error}")
        finally:
            with self._wake:
                self._closed = True
            self._hear()
            self._break("the sampler was closed")
            self._open.clear()

    def _take(self) -> bool:
        """Hear what there is to hear, and wait until there is something to decode; False when closing."""
        while True:
            with self._wake:
                while not self._inbox:
                    if self._closed:
                        return False
                    ready, timeout = self._ready()
                    if ready:
                        return True
                    self._wake.wait(timeout)
                if self._closed:
                    return False
            self._hear()

    def _hear(self) -> None:
        while self._inbox:
            kind, *rest = self._inbox.popleft()
            if kind == "call":
                rest[0]()
                continue
            state: State = rest[0]
            if kind == "open":
                self._open[state] = None
            elif kind == "ask":
                self._ask(state, rest[1])
            elif kind == "cancel":
                rest[1].cancelled = True
                if state.request is rest[1]:
                    self._finish(state)
            elif kind == "close":
                if state.request is not None:
                    self._fail(state.request, "the session was closed")
                self._leaving.append(state)
                self._open.pop(state, None)

    def _ask(self, state: State, request: Request) -> None:
        if request.cancelled:
            return
        shared = min(state.cached, len(request.prompt))
        differs = np.flatnonzero(state.ids[:shared] != request.prompt[:shared])
        keep = int(differs[0]) if len(differs) else shared
        keep = min(keep, len(request.prompt) - 1)
        self.counters["reused"] += keep
        self.counters["cropped"] += state.cached - keep
        state.cached, state.n = keep, 0
        state.extend(request.prompt)
        state.request, state.overdue = request, False

    def _ready(self) -> tuple[bool, float | None]:
        """Whether to decode now, or how long until somebody's patience ends (None: until something happens)."""
        waiting = {s.episode for s in self._open if s.request is not None}
        if not waiting or not self.lockstep:
            return bool(waiting), None
        now, timeout = time.monotonic(), None
        for state in self._open:
            if state.request is None and not state.overdue and state.episode not in waiting:
                left = state.idle_since + self.patience - now
                if left <= 0:
                    state.overdue = True
                    self.counters["patience_expired"] += 1
                    log.warning("session_overdue", session=state.key, patience=self.patience)
                elif timeout is None or left < timeout:
                    timeout = left
        return timeout is None, timeout

    def _finish(self, state: State) -> None:
        state.request, state.idle_since = None, time.monotonic()

    def _park(self, state: State) -> None:
        """Take a session's row out of the batch, to come back."""
        if state.row is not None:
            state.parked = self._batch.piece(state.row).clone()
        self._leave(state)

    def _leave(self, state: State) -> None:
        """Take a session's row out of the batch."""
        if state.row is not None:
            moved = self._batch.remove(state.row)
            last = self._rows.pop()
            if moved is not None:
                self._rows[state.row] = last
                last.row = state.row
        state.row = None

    def _fail(self, request: Request, detail: str) -> None:
        error = EpisodeFailed(Failure.ENGINE_FAILED, detail)
        self._resolve([(request, error)])

    def _break(self, detail: str) -> None:
        """Fail everybody who waits and forget all that was computed."""
        for state in self._open:
            if state.request is not None:
                self._fail(state.request, detail)
                self._finish(state)
        self.reset()

    def reset(self) -> None:
        """Drop every cache. Requests under way are computed again from their tokens so far."""
        self._batch.clear()
        self._rows.clear()
        for state in (*self._open, *self._leaving):
            state.forget()
        self._leaving.clear()

    @staticmethod
    def _resolve(results: list[tuple[Request, Sample | EpisodeFailed]]) -> None:
        by_loop: dict[Any, list[tuple[Request, Sample | EpisodeFailed]]] = {}
        for item in results:
            by_loop.setdefault(item[0].loop, []).append(item)

        def tell(items: list[tuple[Request, Sample | EpisodeFailed]]) -> None:
            for request, result in items:
                if request.future.done():
                    continue
                if isinstance(result, EpisodeFailed):
                    request.future.set_exception(result)
                else:
                    request.future.set_result(result)

        for loop, items in by_loop.items():
            try:
                loop.call_soon_threadsafe(tell, items)
            except RuntimeError:
                log.debug("loop_gone", requests=len(items))

    # Which rows are in the batch.

    def _arrange(self) -> None:
        # In the order of their keys, not that in which they happened to close: a row that leaves moves another, and where
        # a row stands may change the last bits of what is computed for it.
        for state in sorted(self._leaving, key=lambda s: s.order):
            self._leave(state)
        self._leaving.clear()
        asking = sorted((s for s in self._open if s.request is not None), key=lambda s: s.order)
        if len(asking) > self.max_batch:
            asking = sorted(asking, key=lambda s: s.row is None)[: self.max_batch]
            asking.sort(key=lambda s: s.order)
        chosen = set(asking)
        for state in sorted((s for s in self._rows if s not in chosen), key=lambda s: s.order):
            self._park(state)
        fresh: dict[bytes, list[State]] = {}
        for state in asking:
            if state.row is not None:
                self._batch.crop(state.row, state.cached)
                if state.pending > ALONE:
                    self._park(state)
            if state.row is None and state.parked is None and state.pending > 1:
                fresh.setdefault(state.ids[: state.n].tobytes(), []).append(state)
        pieces = self._prefill(fresh)
        for state in asking:
            if state.row is not None:
                continue
            if state in pieces:
                piece = pieces[state]
                state.cached = piece.shape[3]
            elif state.parked is not None:
                piece = self._catch_up(state, state.parked)
            else:
                piece = self._batch.store.new_zeros(
                    *self._batch.store.shape[:2], self.decoder.shape[1], 0, self.decoder.shape[2]
                )
            state.row, state.parked = self._batch.append(piece), None
            self._rows.append(state)

    def _prefill(self, fresh: dict[bytes, list[State]]) -> dict[State, torch.Tensor]:
        """All but the last token of each distinct context, computed once for all who share it."""
        pieces: dict[State, torch.Tensor] = {}
        groups = sorted(fresh.values(), key=lambda g: (g[0].n, g[0].order))
        while groups:
            take = 1
            while take < len(groups) and (take + 1) * groups[take][0].n <= self.prefill_tokens:
                take += 1
            batch, groups = groups[:take], groups[take:]
            kv, contexts = KVBatch(self.decoder.shape, self.decoder.dtype, self.decoder.device), []
            for group in batch:
                contexts.append(group[0].ids[: group[0].n - 1])
            self._feed(kv, contexts)
            for row, group in enumerate(batch):
                piece = kv.piece(row)
                for state in group:
                    pieces[state] = piece
                self.counters["prefills"] += 1
                self.counters["prefill_tokens"] += piece.shape[3]
        return pieces

    def _catch_up(self, state: State, parked: torch.Tensor) -> torch.Tensor:
        """*parked*, the keys and values of *state*, cropped, and with a long answer of a tool already fed."""
        piece = parked[:, :, :, : state.cached]
        if state.pending <= ALONE:
            return piece
        kv = KVBatch(self.decoder.shape, self.decoder.dtype, self.decoder.device)
        kv.append(piece)
        context = state.ids[state.cached : state.n - 1]
        self._feed(kv, [context])
        self.counters["forced_tokens"] += len(context)
        state.cached = state.n - 1
        return kv.piece(0)

    def _feed(self, kv: KVBatch, contexts: list[np.ndarray]) -> None:
        """Feed *contexts* in chunks to the rows of *kv*: several fresh ones, the shorter padded on the left, or one
        that goes on.
        """
        device = self.decoder.device
        longest = max(len(c) for c in contexts)
        pads = [longest - len(c) for c in contexts]
        ids = np.zeros((len(contexts), longest), np.int64)
        for row, context in enumerate(contexts):
            ids[row, pads[row] :] = context
        kv.reserve(len(contexts), longest)
        begins, start = [kv.end + p for p in pads], kv.start
        offsets = torch.tensor([kv.end - start - p for p in pads], device=device)
        positions = (torch.arange(longest, device=device) + offsets[:, None]).clamp_(min=0)
        bias = kv.bias_for(begins, kv.end + longest) if any(pads) else None
        tokens = torch.from_numpy(ids).to(device)
        lens = [n + len(c) for n, c in zip(kv.lens or [0] * len(contexts), contexts, strict=True)]
        for at in range(0, longest, CHUNK):
            to = min(at + CHUNK, longest)
            view = kv.store[:, :, : len(contexts)]
            self.decoder(tokens[:, at:to], positions[:, at:to], view, start, kv.end + at, bias, head=False)
        kv.end, kv.lens = kv.end + longest, lens

    # Decoding.

    def _decode(self) -> None:
        """Step until a request is complete, a window is full, or somebody has something to say."""
        rows, batch = self._rows, self._batch
        device = self.decoder.device
        pending = np.array([s.pending for s in rows])
        chunk = min(int(pending.min()), CHUNK)
        left = np.array([s.asked.params.max_tokens - s.asked.sampled for s in rows])
        width = min(int((pending - 1 + left).min()), chunk + WINDOW)
        forced = np.zeros((len(rows), width + 1), np.int64)
        uniforms = np.zeros((len(rows), width))
        for row, state in enumerate(rows):
            known = min(int(pending[row]), width)
            forced[row, :known] = state.ids[state.cached : state.cached + known]
            first = int(pending[row]) - 1
            if first < width:
                uniforms[row, first:] = state.asked.uniforms.take(state.asked.sampled, width - first)
        draw = Draw([s.asked.params for s in rows], self.decoder.vocab, device)
        batch.reserve(len(rows), width)
        bias, kv, start = batch.bias(width), batch.view(), batch.start
        tokens, numbers = torch.from_numpy(forced).to(device), torch.from_numpy(uniforms).T.contiguous().to(device)
        given = torch.from_numpy(pending).to(device)
        positions = torch.tensor(batch.lens, device=device)[:, None] + torch.arange(width, device=device)
        logprobs = torch.zeros(len(rows), width + 1, device=device)
        at, fed, every = 0, chunk, int(pending.max())
        begin = batch.end
        while True:
            logits = self.decoder(tokens[:, at:fed], positions[:, at:fed], kv, start, begin + at, bias)
            token, logp = draw(logits, numbers[fed - 1])
            ends = draw.stops(token)
            if fed < every:
                sampled = given <= fed
                token = torch.where(sampled, token, tokens[:, fed])
                ends &= sampled
            tokens[:, fed], logprobs[:, fed] = token, logp
            at = fed
            if at >= width or bool(ends.any()) or self._inbox:
                break
            fed = at + 1
        batch.advance(at)
        self.counters["steps"] += at - chunk + 1
        self._record(at, pending, tokens[:, : at + 1].cpu().numpy(), logprobs.cpu().numpy(), ends.cpu().numpy())

    def _record(
        self, fed: int, pending: np.ndarray, tokens: np.ndarray, logprobs: np.ndarray, ends: np.ndarray
    ) -> None:
        """Write what *fed* steps gave into sessions and requests, and answer those that are complete."""
        done: list[tuple[Request, Sample | EpisodeFailed]] = []
        for row, state in enumerate(self._rows):
            request, first = state.asked, int(pending[row])
            state.cached += fed
            self.counters["forced_tokens"] += min(fed, first) - (request.sampled > 0)
            if fed >= first:
                new = tokens[row, first : fed + 1].astype(np.int32)
                state.extend(new)
                request.logprobs = np.concatenate([request.logprobs, logprobs[row, first : fed + 1]])
                versions = np.full(len(new), self.version, np.int32)
                request.versions = np.concatenate([request.versions, versions])
                self.counters["sampled_tokens"] += len(new)
            if ends[row] or request.sampled >= request.params.max_tokens:
                out = state.ids[len(request.prompt) : state.n].copy()
                reason: Literal["stop", "length"] = "stop" if ends[row] else "length"
                done.append((request, Sample(out, request.logprobs, request.versions, reason)))
                self._finish(state)
        if done:
            self._resolve(done)
