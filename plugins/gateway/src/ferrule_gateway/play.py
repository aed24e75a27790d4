"""One episode as a program sees it: the model's replies go into the play, and the task's own turns and tools are served
over HTTP to programs that want them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ferrule import (
    ContextOverflow,
    EpisodeFailed,
    Message,
    Play,
    Reply,
    Rollout,
    RolloutCut,
    SamplingParams,
    Termination,
    ToolCall,
    ToolSpec,
    Turn,
)

from .checks import wrong
from .errors import NO_RETRY, WireError, bad
from .messages import read_call, read_message

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ferrule import Trajectory

Answer = tuple[int, dict[str, Any] | None]
"""An HTTP status and a JSON body."""

_OVER = (400, "rollout_terminated", "this episode has ended")


class EpisodeSource:
    """What a gateway's session of one episode gets its replies from, and what answers its ``/play`` requests.

    A reply is recorded in the play once something follows on it (a call of the task's tools, the end of the turn,
    another reply), so that one that is sampled again by a client's retry is recorded once. The run's own sampling
    parameters hold, whatever a request asks for.
    """

    def __init__(self, play: Play, rollout: Rollout) -> None:
        self._play, self._rollout, self._agent = play, rollout, rollout.agent()
        self._pending: list[Message] = []
        self._last: Message | None = None
        self._calls: dict[str, ToolCall] = {}
        self._answers: dict[str, Message] = {}
        self._flying = 0
        self._serving: set[asyncio.Task[Any]] = set()
        self._lock = asyncio.Lock()
        self._closed = False
        self.ended = asyncio.Event()
        """Set once the episode cannot go on: it was cut, or it failed."""

        self.overflow: ContextOverflow | None = None
        """The last request to the model, where its prompt filled the context."""

    # -- the model -----------------------------------------------------------------------------------------------------

    async def reply(self, messages: list[Message], tools: tuple[ToolSpec, ...], params: SamplingParams) -> Reply:
        """The model's next message. Raises what :meth:`ferrule.Agent.reply` does, and WireError between turns."""
        return await self._sampled(lambda: self._agent.reply(messages, tools, length_ends=False), messages)

    async def complete(self, ids: NDArray[np.int32], params: SamplingParams) -> Reply:
        """The completion of *ids*, for programs that keep the tokens themselves."""
        return await self._sampled(lambda: self._agent.complete(ids), [])

    def export(self) -> Trajectory:
        """What was shown and sampled so far."""
        return self._agent.trajectory(None)

    async def _sampled(self, ask: Callable[[], Coroutine[Any, Any, Reply]], messages: Sequence[Message]) -> Reply:
        if self._rollout.ended is None:  # the agent itself says how it ended
            self._turn()
        self._flying += 1
        self.overflow = None
        try:
            reply = await ask()
        except ContextOverflow as error:
            self.overflow = error
            raise
        except RolloutCut:
            self.ended.set()
            raise
        except EpisodeFailed as error:
            raise self._failed(error) from error
        finally:
            self._flying -= 1
        self._note(messages, reply.message)
        return reply

    def _failed(self, error: EpisodeFailed) -> WireError:
        """Final, whatever the status would otherwise let a client hope for."""
        self.ended.set()
        return WireError(500, str(error.reason), error.detail, headers=NO_RETRY)

    def _note(self, messages: Sequence[Message], message: Message) -> None:
        standing = {id(step.message) for step in self._agent.ledger.steps}
        self._pending = [one for one in self._pending if id(one) in standing]
        self._record()
        self._overhear(messages)
        self._pending.append(message)
        self._last = message
        for call in message.tool_calls:
            self._calls[call.id] = call
            self._answers.pop(call.id, None)

    def _overhear(self, messages: Sequence[Message]) -> None:
        """Keep what the program itself told the model after its last reply: the answers of tools of its own."""
        start = len(messages)
        while start and messages[start - 1].role != "assistant":
            start -= 1
        if not start:
            return
        told = self._play.messages
        since = next((n for n in range(len(told), 0, -1) if told[n - 1].role == "assistant"), 0)
        known = [(m.role, m.tool_call_id or m.content) for m in told[since:]]
        told += [m for m in messages[start:] if (m.role, m.tool_call_id or m.content) not in known]

    def _record(self) -> None:
        turn = self._play.turn
        if turn is not None:
            for message in self._pending:
                turn.record(message)
        self._pending.clear()

    # -- the task, over HTTP -------------------------------------------------------------------------------------------

    async def serve(self, method: str, name: str, body: Mapping[str, Any]) -> Answer:
        """Answer ``GET turn``, ``POST calls`` and ``POST end``. Raises WireError and RolloutCut."""
        work = {("GET", "turn"): self._next, ("POST", "calls"): self._run, ("POST", "end"): self._end}.get(
            (method, name)
        )
        if work is None:
            raise WireError(404, "not_found", f"there is no {method} play/{name}: GET turn, POST calls, POST end")
        if self._closed:
            raise WireError(*_OVER)
        task = asyncio.ensure_future(self._one_at_a_time(work, body))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        try:
            return await task
        except asyncio.CancelledError:
            if self._closed:
                raise WireError(*_OVER) from None
            raise
        except EpisodeFailed as error:
            raise self._failed(error) from error

    async def _one_at_a_time(
        self, work: Callable[[Mapping[str, Any]], Coroutine[Any, Any, Answer]], body: Mapping[str, Any]
    ) -> Answer:
        async with self._lock:
            if self._rollout.ended is not None:
                raise self._rollout.ended
            return await work(body)

    async def _next(self, body: Mapping[str, Any]) -> Answer:
        turn = self._play.turn or await self._play.next_turn()
        return (204, None) if turn is None else (200, shown(turn))

    async def _run(self, body: Mapping[str, Any]) -> Answer:
        calls = [self._call(wire, i) for i, wire in enumerate(_list(body, "tool_calls"))]
        turn = self._turn()
        self._record()
        answers = []
        for call in calls:
            # A request that is made again, its answer having been lost, must not run its calls again.
            if call.id not in self._answers:
                (self._answers[call.id],) = await turn.call([call])
            answers.append(self._answers[call.id].to_openai())
        return 200, {"messages": answers}

    async def _end(self, body: Mapping[str, Any]) -> Answer:
        given = _said(body.get("message"))
        turn = self._turn()
        if self._flying:
            raise WireError(409, "turn_busy", "a request to the model is under way in this turn", headers=NO_RETRY)
        await self._finish(turn, given)
        return 200, {}

    def _call(self, wire: Any, index: int) -> ToolCall:
        """The call that was sampled, by its id, whatever became of it on the wire; else one that the program made."""
        where = f"tool_calls[{index}]"
        function = wire.get("function") if isinstance(wire, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise bad(where, f"{where} is not a call of a function by name")
        name = wire.get("id")
        if not isinstance(name, str) or not name:
            raise bad(f"{where}.id", f"{where} has no id")
        if name in self._calls:
            return self._calls[name]
        arguments = function.get("arguments") or {}
        return read_call(name, function["name"], arguments if isinstance(arguments, str) else json.dumps(arguments))

    # -- the harness's side --------------------------------------------------------------------------------------------

    def cut(self) -> bool:
        """Where the program gave up over a prompt that filled the context, the rollout is cut there; whether it is."""
        if self.overflow is None:
            return False
        first = not self._agent.ledger.sampled
        self._rollout.end(
            RolloutCut(Termination.MAX_PROMPT_LENGTH if first else Termination.MAX_RESPONSE_LENGTH, str(self.overflow))
        )
        return True

    async def finish(self) -> None:
        """The program has ended well: the open turn ends with the last reply, and the play goes on to its end."""
        turn = self._play.turn
        if turn is not None:
            await self._finish(turn, None)
        await self._play.next_turn()

    async def close(self) -> None:
        """End what is still being served, and record what was sampled."""
        self._closed = True
        serving = tuple(self._serving)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        if self._play.failure is None:
            self._record()

    async def _finish(self, turn: Turn, given: Message | None) -> None:
        self._record()
        reply = given or self._last or Message("assistant")
        if given is not None and (self._last is None or given.content != self._last.content):
            self._play.messages.append(given)
        self._last = None
        self._calls.clear()
        self._answers.clear()
        await turn.end(reply)

    def _turn(self) -> Turn:
        turn = self._play.turn
        if turn is None:
            if self._play.failure is not None:
                raise self._play.failure
            if self._play.over:
                raise WireError(400, "rollout_terminated", "the task has no more turns")
            raise WireError(400, "no_turn", "the last turn has ended: GET play/turn first, for the next")
        return turn


def shown(turn: Turn) -> dict[str, Any]:
    """A turn as it is sent: the system prompt in effect, the tools in OpenAI's form, the messages that it adds."""
    return {
        "index": turn.index,
        "system": turn.system,
        "messages": [message.to_openai() for message in turn.messages],
        "tools": [tool.to_openai() for tool in turn.tools],
    }


def _list(body: Mapping[str, Any], key: str) -> list[Any]:
    value = body.get(key)
    if not isinstance(value, list):
        raise bad(key, f"{key} must be a list")
    return value


def _said(value: Any) -> Message | None:
    """The message that ends a turn, where the program gives one of its own: text, or a message of the assistant."""
    if value is None or isinstance(value, str):
        return value if value is None else Message("assistant", value)
    if not isinstance(value, dict):
        raise wrong("message", "text or an assistant's message", value)
    message = read_message({"role": "assistant", **value}, "message.")
    if message.role != "assistant":
        raise bad("message.role", f"a turn is ended by the assistant, not by {message.role!r}")
    return message
