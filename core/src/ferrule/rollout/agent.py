"""The model as a harness sees it: messages in, one reply out, with every token kept in the ledger."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from ..data import Message, Termination, TokenKind, ToolSpec, Trajectory
from ..errors import EpisodeFailed, Failure, RolloutCut
from ..kinds import NoBridge, Parsed, Rendered, Renderer, Sample, SamplerSession, Tail
from ..logs import get_logger
from .ledger import Ledger
from .plan import LIVE_THREADS, Extend, Match, Repeat, Reset, Start, Thread, key, kinds_after_reset, match
from .shutdown import BREAKS, being_cancelled, one_line

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .rollout import Rollout

log = get_logger("ferrule.rollout")


@attrs.frozen(eq=False)
class Reply:
    """One model message. ``step`` is its index among the agent's steps, ``stop_reason`` ``stop`` or ``length``."""

    message: Message
    parsed: Parsed
    step: int
    stop_reason: str


class Agent:
    """One role's conversations with the model, over one ledger and one sampler session.

    ``reply`` plans each request on the ledger and asks the renderer only for what is new, so that a turn costs what it
    adds.
    """

    def __init__(
        self,
        name: str,
        rollout: Rollout,
        renderer: Renderer,
        session: SamplerSession,
        *,
        context_length: int,
        vocab_size: int | None = None,
    ) -> None:
        self.name = name
        self.ledger = Ledger()
        self.resets = 0
        self._rollout, self._renderer, self._session = rollout, renderer, session
        self._context_length, self._vocab_size = context_length, vocab_size
        stop_ids = frozenset((*rollout.sampling.stop_ids, *renderer.stop_ids))
        self._sampling = attrs.evolve(rollout.sampling, stop_ids=stop_ids)  # type: ignore[arg-type]
        self._threads: list[Thread] = []
        self._held: Counter[Hashable] = Counter()
        self._lock = asyncio.Lock()

    async def reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Reply:
        """The model's next message after *messages*, the whole conversation as the harness holds it.

        Raises RolloutCut where a limit is reached or the reply is beyond use, EpisodeFailed where the renderer or the
        engine failed. Both are final: every later call raises the same. Calls of one agent wait for each other.
        """
        async with self._lock:
            rollout = self._rollout
            if rollout.ended is not None:
                raise rollout.ended
            messages = messages if isinstance(messages, list) else list(messages)
            tools, limit = tuple(tools), rollout.limits.max_steps
            full = limit is not None and rollout.steps + rollout._flying >= limit
            # A repeat replaces a message and adds none.
            if full and not isinstance(match(self._threads, messages, tools), Repeat):
                raise self._cut(Termination.MAX_STEPS, f"{limit} model messages")
            rollout._flying += 1
            try:
                return await self._sample(messages, tools)
            except (RolloutCut, EpisodeFailed) as error:
                rollout.end(error)
                raise
            finally:
                rollout._flying -= 1

    def plan(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Start | Extend | Repeat | Reset:
        """How this request meets the ledger; changes nothing. Only new messages are shown to the renderer, and only
        its bridge.
        """
        found = match(self._threads, messages if isinstance(messages, list) else list(messages), tuple(tools))
        if not isinstance(found, Match):
            return found
        thread, size = found.thread, len(found.thread.messages)
        if not self._renderer.extends:
            return Reset("no_bridge", thread, size, f"renderer {self._renderer.name!r} extends no history")
        delta = self._guarded("bridge", self._renderer.bridge, self._tail(thread), found.new, thread.tools)
        if isinstance(delta, NoBridge):
            return Reset("no_bridge", thread, size, f"{delta.reason}: {delta.detail}" if delta.detail else delta.reason)
        return Extend(thread, found.new, self._checked(delta, found.new))

    def trajectory(self, reward: float | None) -> Trajectory:
        """What this agent did, as views of the ledger."""
        segments = self.ledger.segments()
        return Trajectory(self.name, self.ledger.steps_in(segments), segments, reward, metadata={"resets": self.resets})

    # -- one request ---------------------------------------------------------------------------------------------------

    async def _sample(self, messages: list[Message], tools: tuple[ToolSpec, ...]) -> Reply:
        plan = self.plan(messages, tools)
        if isinstance(plan, Repeat):
            thread = plan.thread
            superseded = self.ledger.length(thread.segment) - thread.prompt_length
            sample = await self._complete(self.ledger.tokens(thread.segment, 0, thread.prompt_length), superseded)
            self.ledger.crop(thread.segment, thread.prompt_length)
            thread.counts[key(thread.messages.pop())] -= 1
            return self._commit(thread, [], sample)
        if isinstance(plan, Extend):
            thread, new, rendered = plan.thread, plan.new, plan.delta
            segment, length = thread.segment, self.ledger.length(thread.segment)
            # A close that the renderer appends was not sampled.
            kinds = np.where(rendered.kinds == TokenKind.ACTION, TokenKind.SCAFFOLD, rendered.kinds)
        else:
            new = messages[:]
            rendered = self._checked(self._guarded("render", self._renderer.render, new, tools), new)
            kinds = kinds_after_reset(rendered, new, self._held)
            segment, length = self.ledger.open(), 0
        self.ledger.prompt(segment, rendered.ids, kinds)
        prompt_length = self.ledger.length(segment)
        generation = length + (rendered.spans[-1][1] if rendered.spans else 0)
        try:
            sample = await self._complete(self.ledger.tokens(segment))
        except BaseException:
            # The prompt was never answered: the request may come again, and no row ends in tokens that no
            # sample follows.
            self.ledger.crop(segment, length)
            raise
        if not isinstance(plan, Extend):
            if isinstance(plan, Reset):
                self._log_reset(plan, messages, prompt_length)
            thread = Thread(segment, [], tools, generation, prompt_length)
            self._threads = [*self._threads, thread][-LIVE_THREADS:]
        thread.generation, thread.prompt_length, thread.opened = generation, prompt_length, rendered.opened
        return self._commit(thread, new, sample)

    async def _complete(self, prompt: NDArray[np.int32], superseded: int = 0) -> Sample:
        """Sample after *prompt* within what the limits leave; *superseded* tokens of the ledger are about to be cut
        off.
        """
        limits, length = self._rollout.limits, len(prompt)
        room = self._context_length - length
        if self.ledger.sampled == 0:
            if limits.max_prompt_tokens is not None and length > limits.max_prompt_tokens:
                raise self._cut(
                    Termination.MAX_PROMPT_LENGTH,
                    f"the first prompt has {length} tokens, over {limits.max_prompt_tokens}",
                )
            if room <= 0:
                raise self._cut(
                    Termination.MAX_PROMPT_LENGTH,
                    f"the first prompt has {length} tokens; {self._context_length} is the context",
                )
        if room <= 0:
            raise self._cut(Termination.MAX_RESPONSE_LENGTH, f"{length} tokens; {self._context_length} is the context")
        if limits.max_response_tokens is not None:
            room = min(room, limits.max_response_tokens - self.ledger.response_tokens + superseded)
            if room <= 0:
                raise self._cut(
                    Termination.MAX_RESPONSE_LENGTH, f"over {limits.max_response_tokens} tokens after the first prompt"
                )
        params = self._sampling
        if room < params.max_tokens:
            params = attrs.evolve(params, max_tokens=room)
        try:
            sample = await self._session.sample(prompt, params)
        except EpisodeFailed:
            raise
        except asyncio.CancelledError as error:
            if being_cancelled():
                raise
            raise EpisodeFailed(Failure.ENGINE_FAILED, "the engine cancelled the request") from error
        except BREAKS as error:
            raise EpisodeFailed(Failure.ENGINE_FAILED, one_line(error)) from error
        if not len(sample.ids) == len(sample.logprobs) == len(sample.versions):
            raise EpisodeFailed(
                Failure.ENGINE_FAILED,
                f"{len(sample.ids)} tokens came with {len(sample.logprobs)} logprobs and "
                f"{len(sample.versions)} versions",
            )
        self._in_vocabulary(sample.ids, "the engine sampled")
        return sample

    def _commit(self, thread: Thread, new: list[Message], sample: Sample) -> Reply:
        """Put the sample down, read it, and end the rollout where it is cut or beyond use."""
        parsed: Parsed = self._guarded("parse", self._renderer.parse, sample.ids, thread.tools, opened=thread.opened)
        step = self.ledger.sample(thread.segment, sample, parsed.message, parsed.status)
        thread.left_open = () if parsed.closed else thread.opened
        thread.stop = int(sample.ids[-1]) if sample.stop_reason == "stop" and len(sample.ids) else "length"
        if any(message.role == "assistant" and message.reasoning for message in (*thread.messages[-1:], *new)):
            thread.strippable = True
        for message in (*new, parsed.message):
            thread.messages.append(message)
            name = key(message)
            thread.counts[name] += 1
            self._held[name] = max(self._held[name], thread.counts[name])
        if self._threads[-1] is not thread:
            self._threads.remove(thread)
            self._threads.append(thread)
        termination = None
        if sample.stop_reason == "length":
            termination, detail = (
                Termination.MAX_RESPONSE_LENGTH,
                f"the completion was cut after {len(sample.ids)} tokens",
            )
        elif parsed.beyond_use:
            termination, detail = (
                Termination.MALFORMED_REPLY,
                "; ".join(p.message for p in parsed.problems) or "it never closes",
            )
        if termination is not None:
            self._rollout.undelivered = parsed.message
            raise self._cut(termination, detail)
        return Reply(parsed.message, parsed, step, sample.stop_reason)

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
            if self._renderer.name in error.detail:
                raise
            raise EpisodeFailed(error.reason, f"renderer {self._renderer.name!r}: {error.detail}") from error
        except BREAKS as error:
            detail = f"renderer {self._renderer.name!r} failed in {what}: {one_line(error)}"
            raise EpisodeFailed(Failure.RENDER_FAILED, detail) from error

    def _checked(self, rendered: Rendered, messages: Sequence[Message]) -> Rendered:
        if len(rendered.spans) != len(messages) or len(rendered.kinds) != len(rendered.ids):
            raise EpisodeFailed(
                Failure.RENDER_FAILED,
                f"renderer {self._renderer.name!r} gave {len(rendered.spans)} spans for {len(messages)} messages and "
                f"{len(rendered.kinds)} kinds for {len(rendered.ids)} tokens",
            )
        self._in_vocabulary(rendered.ids, f"renderer {self._renderer.name!r} wrote")
        return rendered

    def _in_vocabulary(self, ids: NDArray[np.int32], who: str) -> None:
        if self._vocab_size is not None and len(ids):
            low, high = int(ids.min()), int(ids.max())
            if low < 0 or high >= self._vocab_size:
                bad = low if low < 0 else high
                raise EpisodeFailed(Failure.INVALID_TOKEN, f"{who} token {bad}; the vocabulary has {self._vocab_size}")

    def _cut(self, termination: Termination, detail: str) -> RolloutCut:
        error = RolloutCut(termination, detail)
        self._rollout.end(error)
        return error

    def _log_reset(self, plan: Reset, messages: list[Message], tokens: int) -> None:
        self.resets += 1
        thread = plan.thread
        differs = messages[plan.index] if plan.index < len(messages) else None
        log.info(
            "segment_reset",
            session=self._rollout._key,
            agent=self.name,
            reason=plan.reason,
            detail=plan.detail,
            turn=self.ledger.sampled,
            index=plan.index,
            preview=f"{differs.role}: {differs.content[:80]}" if differs is not None else "",
            messages_held=len(thread.messages),
            messages_incoming=len(messages),
            tokens_held=self.ledger.length(thread.segment),
            tokens_incoming=tokens,
            resets=self.resets,
        )
