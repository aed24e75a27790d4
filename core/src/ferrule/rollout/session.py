"""Conversations with a model over one ledger: each request is planned, sampled and read, and every token kept."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from ..data import Message, SamplingParams, TokenKind, ToolSpec, Trajectory
from ..errors import EpisodeFailed, Failure, RolloutCut, Superseded
from ..kinds import NoBridge, Parsed, Rendered, Renderer, Sample, SamplerSession, Tail
from .ledger import Ledger
from .plan import (
    LIVE_THREADS,
    Extend,
    Match,
    Repeat,
    Reset,
    Start,
    Stream,
    Thread,
    key,
    kinds_after_reset,
    match,
)
from .resets import log_reset, log_token_reset
from .shutdown import BREAKS, being_cancelled, one_line

if TYPE_CHECKING:
    from numpy.typing import NDArray

Room = Callable[[int, int], int]
"""How many tokens may be sampled after a prompt of so many tokens, of which a repeat cuts off so many that were sampled
before; raises where there is no room.
"""


@attrs.frozen(eq=False)
class Reply:
    """One model message. ``step`` is its index among the steps, ``stop_reason`` ``stop`` or ``length``.

    ``prompt_length`` is the number of tokens that the model was shown, ``sample`` what it answered, token for token.
    """

    message: Message
    parsed: Parsed
    step: int
    stop_reason: str
    prompt_length: int = 0
    sample: Sample | None = None


class _Flight:
    """A request that is being sampled: of a live *thread*, or of a segment that is about to become one."""

    __slots__ = ("done", "messages", "superseded", "task", "thread", "tools")

    def __init__(
        self, thread: Thread | Stream | None, messages: list[Message] | bytes, tools: tuple[ToolSpec, ...] = ()
    ) -> None:
        self.thread, self.messages, self.tools = thread, messages, tools
        self.task: asyncio.Task[Sample] | None = None
        self.done = asyncio.Event()
        self.superseded = False

    def met_by(
        self, thread: Thread | Stream | None, messages: list[Message] | bytes, tools: tuple[ToolSpec, ...] = ()
    ) -> bool:
        """Whether a request takes the place of this one: it goes on from the same thread, or is the same again."""
        if thread is not None and thread is self.thread:
            return True
        return self.tools == tools and self.messages == messages

    async def end(self) -> None:
        """Cancel it and wait until its prompt is off the ledger."""
        self.superseded = True
        if self.task is not None:
            self.task.cancel()
        await self.done.wait()


class Session:
    """One agent's conversations with the model, over one ledger and one sampler session.

    A request is planned on the ledger, and the renderer is asked only for what is new, so that a turn costs what it
    adds. Several conversations may be under way at once; in one segment a newer request takes the place of the one in
    flight, whose caller gets :class:`ferrule.Superseded`.

    *engine* samples; *key* names the session in logs. ``vocab_size`` bounds the ids that are believed.
    """

    def __init__(
        self,
        renderer: Renderer,
        engine: SamplerSession,
        *,
        name: str = "agent",
        key: str = "",
        vocab_size: int | None = None,
    ) -> None:
        self.name, self.key = name, key
        self.renderer = renderer
        self.ledger = Ledger()
        self.resets = 0
        self._engine, self._vocab_size = engine, vocab_size
        self._threads: list[Thread] = []
        self._streams: list[Stream] = []
        self._flights: list[_Flight] = []
        self._held: Counter[Hashable] = Counter()
        self._turn: AbstractAsyncContextManager[Any] = nullcontext() if engine.concurrent else asyncio.Lock()

    def repeats(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> bool:
        """Whether this is a request again that was answered already."""
        return isinstance(match(self._threads, _list(messages), tuple(tools)), Repeat)

    def completes_again(self, ids: NDArray[np.int32]) -> bool:
        """Whether *ids*, int32[T], are a prompt again whose completion nothing was built on."""
        return self._stream(ids)[1]

    def plan(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Start | Extend | Repeat | Reset:
        """How this request meets the ledger; changes nothing. Only new messages are shown to the renderer, and only
        its bridge.
        """
        found = match(self._threads, _list(messages), tuple(tools))
        if not isinstance(found, Match):
            return found
        thread, size = found.thread, len(found.thread.messages)
        if not self.renderer.extends:
            return Reset("no_bridge", thread, size, f"renderer {self.renderer.name!r} extends no history")
        delta = self._guarded("bridge", self.renderer.bridge, self._tail(thread), found.new, thread.tools)
        if isinstance(delta, NoBridge):
            return Reset("no_bridge", thread, size, f"{delta.reason}: {delta.detail}" if delta.detail else delta.reason)
        return Extend(thread, found.new, self._checked(delta, found.new))

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], params: SamplingParams, room: Room
    ) -> Reply:
        """The model's next message after *messages*, the whole conversation.

        A completion that was cut by its length or is malformed is kept and returned like any other; what that means is
        the caller's to say. Raises what *room* raises, EpisodeFailed where the renderer or the engine failed, and
        Superseded; none of these leaves a trace in the ledger.
        """
        messages, tools = _list(messages), tuple(tools)
        while rival := self._rival(messages, tools):
            await rival.end()
        plan = self.plan(messages, tools)
        if isinstance(plan, Repeat):
            thread = plan.thread
            flight = self._flight(thread, messages, tools)
            superseded = self.ledger.length(thread.segment) - thread.prompt_length
            prompt = self.ledger.tokens(thread.segment, 0, thread.prompt_length)
            read = partial(self._read, tools, thread.opened)
            sample, parsed = await self._complete(flight, prompt, params, room, read, superseded)
            self.ledger.forget(thread.segment, thread.prompt_length)
            thread.counts[key(thread.messages.pop())] -= 1
            return self._commit(thread, [], sample, parsed)
        if isinstance(plan, Extend):
            found, new, rendered = plan.thread, plan.new, plan.delta
            segment, length = found.segment, self.ledger.length(found.segment)
            # A close that the renderer appends was not sampled.
            kinds = np.where(rendered.kinds == TokenKind.ACTION, TokenKind.SCAFFOLD, rendered.kinds)
        else:
            found, new = None, messages[:]
            rendered = self._checked(self._guarded("render", self.renderer.render, new, tools), new)
            kinds = kinds_after_reset(rendered, new, self._held)
            segment, length = self.ledger.open(), 0
        self.ledger.prompt(segment, rendered.ids, kinds)
        prompt_length = self.ledger.length(segment)
        generation = length + (rendered.spans[-1][1] if rendered.spans else 0)
        # The prompt that is never answered leaves the ledger: the request may come again, and no row ends in tokens
        # that no sample follows.
        flight = self._flight(found, messages, tools)
        read = partial(self._read, tools, rendered.opened)
        prompt = self.ledger.tokens(segment)
        sample, parsed = await self._complete(flight, prompt, params, room, read, undo=(segment, length))
        if isinstance(plan, Reset):
            self.resets += 1
            log_reset(self, plan, messages, prompt_length)
        if found is None:
            found = Thread(segment, [], tools, generation, prompt_length)
            self._threads = [*self._threads, found][-LIVE_THREADS:]
        found.generation, found.prompt_length, found.opened = generation, prompt_length, rendered.opened
        return self._commit(found, new, sample, parsed)

    async def complete(self, ids: NDArray[np.int32], params: SamplingParams, room: Room) -> Reply:
        """The completion of *ids*, int32[T], the whole context as the caller holds it: for agents that keep tokens.

        Where *ids* begin with all that a segment holds, what they add to it is OBSERVATION, as it came from outside;
        where they are the prompt of its last completion, that completion is cut off and sampled again; else a segment
        opens. Raises as :meth:`reply` does, and EpisodeFailed(invalid_token).
        """
        ids = np.ascontiguousarray(ids, np.int32)
        self._in_vocabulary(ids, "the request holds")
        name = ids.tobytes()
        while True:
            stream, again = self._stream(ids)
            rival = next((flight for flight in self._flights if flight.met_by(stream, name)), None)
            if rival is None:
                break
            await rival.end()
        flight = self._flight(stream, name)
        read = partial(self._read, (), ())
        if stream is not None and again:
            superseded = self.ledger.length(stream.segment) - stream.prompt_length
            sample, parsed = await self._complete(flight, ids, params, room, read, superseded)
            self.ledger.forget(stream.segment, stream.prompt_length)
        else:
            segment = self.ledger.open() if stream is None else stream.segment
            held = self.ledger.length(segment)
            kind = TokenKind.PROMPT if stream is None else TokenKind.OBSERVATION
            self.ledger.prompt(segment, ids[held:], np.full(len(ids) - held, kind, np.uint8))
            prompt = self.ledger.tokens(segment)
            sample, parsed = await self._complete(flight, prompt, params, room, read, undo=(segment, held))
            if stream is None:
                if self._streams:
                    self.resets += 1
                    log_token_reset(self, [each.segment for each in self._streams], ids)
                stream = Stream(segment, 0)
            stream.prompt_length = len(ids)
        self._streams = [*(each for each in self._streams if each is not stream), stream][-LIVE_THREADS:]
        step = self.ledger.sample(stream.segment, sample, parsed.message, parsed.status)
        return Reply(parsed.message, parsed, step, sample.stop_reason, stream.prompt_length, sample)

    def trajectory(self, reward: float | None) -> Trajectory:
        """What this agent did, as views of the ledger."""
        segments = self.ledger.segments()
        return Trajectory(self.name, self.ledger.steps_in(segments), segments, reward, metadata={"resets": self.resets})

    # -- one request ---------------------------------------------------------------------------------------------------

    def _rival(self, messages: list[Message], tools: tuple[ToolSpec, ...]) -> _Flight | None:
        if not self._flights:
            return None
        found = match(self._threads, messages, tools)
        thread = found.thread if isinstance(found, Match | Repeat) else None
        return next((flight for flight in self._flights if flight.met_by(thread, messages, tools)), None)

    def _flight(
        self, thread: Thread | Stream | None, messages: list[Message] | bytes, tools: tuple[ToolSpec, ...] = ()
    ) -> _Flight:
        flight = _Flight(thread, messages, tools)
        self._flights.append(flight)
        return flight

    def _stream(self, ids: NDArray[np.int32]) -> tuple[Stream | None, bool]:
        """The segment that *ids* go on from, the longest, and whether they are its last prompt again.

        As for messages, the same request again goes before a shorter conversation that it would also go on from.
        """
        for stream in reversed(self._streams):
            size = stream.prompt_length
            if size == len(ids) and np.array_equal(self.ledger.tokens(stream.segment, 0, size), ids):
                return stream, True
        best: Stream | None = None
        for stream in self._streams:
            held = self.ledger.tokens(stream.segment)
            size = len(held)
            if size <= len(ids) and (best is None or size > self.ledger.length(best.segment)):
                best = stream if np.array_equal(held, ids[:size]) else best
        return best, False

    async def _complete(
        self,
        flight: _Flight,
        prompt: NDArray[np.int32],
        params: SamplingParams,
        room: Room,
        read: Callable[[NDArray[np.int32]], Parsed],
        superseded: int = 0,
        undo: tuple[int, int] | None = None,
    ) -> tuple[Sample, Parsed]:
        """Sample after *prompt* and read the sample; where either fails, crop the ledger as *undo* says: (segment,
        length).
        """
        try:
            left = room(len(prompt), superseded)
            if left < params.max_tokens:
                params = attrs.evolve(params, max_tokens=left)
            async with self._turn:
                if flight.superseded:
                    raise Superseded()
                flight.task = asyncio.ensure_future(self._engine.sample(prompt, params))
                sample = await flight.task
            if flight.superseded:
                raise Superseded()
            return self._believed(sample), read(sample.ids)
        except BaseException as error:
            if undo is not None:
                self.ledger.crop(*undo)
            if isinstance(error, EpisodeFailed | RolloutCut | Superseded):
                raise
            if isinstance(error, asyncio.CancelledError):
                if being_cancelled():
                    raise
                if flight.superseded:
                    raise Superseded() from None
                raise EpisodeFailed(Failure.ENGINE_FAILED, "the engine cancelled the request") from error
            if isinstance(error, BREAKS) and flight.task is not None:
                raise EpisodeFailed(Failure.ENGINE_FAILED, one_line(error)) from error
            raise
        finally:
            self._flights.remove(flight)
            flight.done.set()

    def _believed(self, sample: Sample) -> Sample:
        if not len(sample.ids) == len(sample.logprobs) == len(sample.versions):
            raise EpisodeFailed(
                Failure.ENGINE_FAILED,
                f"{len(sample.ids)} tokens came with {len(sample.logprobs)} logprobs and "
                f"{len(sample.versions)} versions",
            )
        self._in_vocabulary(sample.ids, "the engine sampled")
        return sample

    def _read(self, tools: tuple[ToolSpec, ...], opened: tuple[str, ...], ids: NDArray[np.int32]) -> Parsed:
        parsed: Parsed = self._guarded("parse", self.renderer.parse, ids, tools, opened=opened)
        # What cannot be told from other messages is found out before anything stands in the ledger.
        self._guarded("parse", key, parsed.message)
        return parsed

    def _commit(self, thread: Thread, new: list[Message], sample: Sample, parsed: Parsed) -> Reply:
        """Put the sample down."""
        step = self.ledger.sample(thread.segment, sample, parsed.message, parsed.status)
        thread.left_open = () if parsed.closed else thread.opened
        last = int(sample.ids[-1]) if len(sample.ids) else -1
        # An engine may say that the last token that fitted was cut there, though it ends the turn.
        stopped = sample.stop_reason == "stop" or last in self.renderer.stop_ids
        thread.stop = last if stopped and len(sample.ids) else "length"
        if any(message.role == "assistant" and message.reasoning for message in (*thread.messages[-1:], *new)):
            thread.strippable = True
        for message in (*new, parsed.message):
            thread.messages.append(message)
            name = key(message)
            thread.counts[name] += 1
            self._held[name] = max(self._held[name], thread.counts[name])
        if self._threads and self._threads[-1] is not thread:
            if thread in self._threads:
                self._threads.remove(thread)
            self._threads = [*self._threads, thread][-LIVE_THREADS:]
        return Reply(parsed.message, parsed, step, sample.stop_reason, thread.prompt_length, sample)

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _tail(self, thread: Thread) -> Tail:
        before = len(thread.messages) - 1
        return Tail(
            ids=self.ledger.tokens(thread.segment, thread.generation),
            prompt_length=thread.prompt_length - thread.generation,
            stop=thread.stop,
            message=thread.messages[-1],
            index=before,
            roles=tuple(message.role for message in thread.messages[max(0, before - 8) : before]),
            opened=thread.left_open,
            tools=thread.tools,
            strippable=thread.strippable,
        )

    def _guarded(self, what: str, function: Any, *args: Any, **options: Any) -> Any:
        """Call the renderer; whatever breaks in it is a failure that names it."""
        try:
            return function(*args, **options)
        except EpisodeFailed as error:
            if self.renderer.name in error.detail:
                raise
            raise EpisodeFailed(error.reason, f"renderer {self.renderer.name!r}: {error.detail}") from error
        except BREAKS as error:
            detail = f"renderer {self.renderer.name!r} failed in {what}: {one_line(error)}"
            raise EpisodeFailed(Failure.RENDER_FAILED, detail) from error

    def _checked(self, rendered: Rendered, messages: Sequence[Message]) -> Rendered:
        if len(rendered.spans) != len(messages) or len(rendered.kinds) != len(rendered.ids):
            raise EpisodeFailed(
                Failure.RENDER_FAILED,
                f"renderer {self.renderer.name!r} gave {len(rendered.spans)} spans for {len(messages)} messages and "
                f"{len(rendered.kinds)} kinds for {len(rendered.ids)} tokens",
            )
        self._in_vocabulary(rendered.ids, f"renderer {self.renderer.name!r} wrote")
        return rendered

    def _in_vocabulary(self, ids: NDArray[np.int32], who: str) -> None:
        if self._vocab_size is not None and len(ids):
            low, high = int(ids.min()), int(ids.max())
            if low < 0 or high >= self._vocab_size:
                bad = low if low < 0 else high
                raise EpisodeFailed(Failure.INVALID_TOKEN, f"{who} token {bad}; the vocabulary has {self._vocab_size}")


def _list(messages: Sequence[Message]) -> list[Message]:
    return messages if isinstance(messages, list) else list(messages)
