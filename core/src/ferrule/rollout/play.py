"""A task being played: its turns, its tools, and the one verdict at the end."""

from __future__ import annotations

import asyncio
import enum
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn, Self, TypeVar

import attrs

from ..data import Message, Termination, ToolCall, ToolSpec
from ..errors import CommandTimeout, EpisodeFailed, Failure, SandboxError, ToolError
from ..kinds import Sandbox, SandboxBackend, Task, TaskRun, TurnSpec
from ..logs import get_logger
from .shutdown import BREAKS, CLOSE_TIMEOUT, being_cancelled, one_line, outlast

if TYPE_CHECKING:
    from .player import Stats

T = TypeVar("T")
log = get_logger("ferrule.rollout")


class _State(enum.StrEnum):
    NEW = "not started"
    READY = "between turns"
    TURN = "in a turn"
    OVER = "over"
    SCORED = "scored"
    FAILED = "failed"
    CLOSED = "closed"


@attrs.frozen
class PlayResult:
    """The verdict: every score, the one that is the reward, and how the play ended."""

    scores: Mapping[str, float]
    reward: float
    termination: Termination


class Turn:
    """One turn of a play: what is asked, and where the model's messages go until one of them ends it.

    ``system`` is the system prompt in effect, ``tools`` what is offered, ``prompt`` the user's text; ``messages`` is
    what the turn adds to the conversation.
    """

    def __init__(
        self,
        play: Play,
        index: int,
        system: str | None,
        tools: tuple[ToolSpec, ...],
        prompt: str,
        messages: list[Message],
    ) -> None:
        self.index, self.system, self.tools, self.prompt, self.messages = index, system, tools, prompt, messages
        self._play = play
        self._names = frozenset(tool.name for tool in tools)

    def record(self, message: Message) -> None:
        """Note a sampled message, before its calls run."""
        self._play._in_turn(self)
        self._play.messages.append(message)
        self._play.metrics["messages"] += 1

    async def call(self, calls: Sequence[ToolCall]) -> list[Message]:
        """Run *calls* in order; one ``tool`` message each, paired by ``tool_call_id``.

        A malformed call, an unknown tool and a tool that raises are answered to the model as text, and counted as
        ``tool_errors``. Raises EpisodeFailed where the run itself failed.
        """
        answers = []
        for call in calls:
            self._play._in_turn(self)
            answer = Message("tool", await self._answer(call), tool_call_id=call.id, name=call.name)
            self._play.messages.append(answer)
            answers.append(answer)
        return answers

    async def end(self, reply: Message) -> None:
        """The model's *reply*, a message without a call, ended the turn."""
        play = self._play
        play._in_turn(self)
        await play._task_code(play._run.end_turn, reply)
        play._state, play.turn = _State.READY, None

    async def _answer(self, call: ToolCall) -> str:
        play = self._play
        play.metrics["tool_calls"] += 1
        problem = None
        if call.error is not None:
            problem = f"Error: the call of {call.name!r} cannot be read: {call.error.rstrip('.')}. {self._offer()}"
        elif call.name not in self._names:
            problem = f"Error: there is no tool {call.name!r}. {self._offer()}"
        elif not isinstance(call.arguments, Mapping):
            problem = f"Error: the arguments of {call.name!r} are not an object. {self._offer()}"
        if problem is None:
            try:
                return str(await play._run.call(call))
            except EpisodeFailed as error:
                play._fail(error)
            except ToolError as error:
                problem = str(error) or f"Error: {call.name} refused."
            except asyncio.CancelledError:
                if being_cancelled():
                    raise
                problem = f"Error: {call.name} was cancelled."
            except BREAKS as error:
                log.debug("tool_failed", task=play.task.id, tool=call.name, exc_info=True)
                problem = f"Error: {one_line(error)}"
        play.metrics["tool_errors"] += 1
        return problem

    def _offer(self) -> str:
        return f"The tools are: {', '.join(sorted(self._names))}." if self._names else "No tools are offered."


class Play:
    """Drives one attempt at a task: ``start``, turns until ``next_turn`` answers None, then ``result``; or ``cut``
    anywhere. ``close`` always.

    Everything that fails for reasons that are not the policy's is an EpisodeFailed, which is final: a failed play has
    no result, whoever swallows the exception. ``setup_timeout`` bounds making the sandbox and starting the attempt,
    ``score_timeout`` the verifier, in seconds.
    """

    def __init__(
        self,
        task: Task,
        attempt: int = 0,
        *,
        sandboxes: SandboxBackend | None = None,
        reward: str | None = None,
        setup_timeout: float | None = 600.0,
        score_timeout: float | None = 600.0,
        stats: Stats | None = None,
    ) -> None:
        self.task, self.attempt = task, attempt
        self.messages: list[Message] = []
        """The conversation as text, answers included."""

        self.metrics: dict[str, float] = dict.fromkeys(("messages", "tool_calls", "tool_errors", "turns", "cut"), 0.0)
        self.artifacts: dict[str, str] = {}
        """Texts that are filed with the episode, by name (what a program printed); bounded by whoever puts them here."""

        self.scores: Mapping[str, float] = {}
        self.failure: EpisodeFailed | None = None
        self.turn: Turn | None = None
        """The turn that is open."""

        self._sandboxes, self._reward, self._stats = sandboxes, reward, stats
        self._setup_timeout, self._score_timeout = setup_timeout, score_timeout
        self._state = _State.NEW
        self._sandbox: Sandbox | None = None
        self._run: TaskRun = None  # type: ignore[assignment]  # set by start
        self._system: str | None = None
        self._result: PlayResult | None = None
        self._closing = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def over(self) -> bool:
        """True once the task has nothing more to ask."""
        return self._state is _State.OVER

    async def start(self) -> Self:
        """Make the sandbox and begin the attempt. On any error close what was made."""
        if self._state is not _State.NEW:
            raise RuntimeError(f"this play was started before; it is {self._state}")
        self._state = _State.FAILED
        try:
            async with asyncio.timeout(self._setup_timeout) as limit:
                await self._set_up()
        except TimeoutError as error:
            detail = f"not ready after {self._setup_timeout:g} s" if limit.expired() else one_line(error)
            await self._abandon(EpisodeFailed(Failure.SETUP_FAILED, detail), error)
        except EpisodeFailed as error:
            await self._abandon(error, error.__cause__)
        except BaseException as error:
            if isinstance(error, BREAKS) or (isinstance(error, asyncio.CancelledError) and not being_cancelled()):
                await self._abandon(EpisodeFailed(Failure.SETUP_FAILED, one_line(error)), error)
            await self.close()
            raise
        self._state = _State.READY
        return self

    async def _set_up(self) -> None:
        task, backend = self.task, self._sandboxes
        if task.sandbox is not None:
            if backend is None:
                raise SandboxError(f"task {task.id!r} needs a sandbox, and the run has none: add a [sandbox] section")
            if task.needs_isolation and "isolation" not in backend.provides:
                raise SandboxError(f"task {task.id!r} must be isolated, and sandbox {backend.name!r} isolates nothing")
            try:
                self._sandbox = await backend.create(task.sandbox, label=f"{task.id}#{self.attempt}")
            except EpisodeFailed:
                raise
            except BREAKS as error:
                raise SandboxError(f"sandbox {backend.name!r}: {one_line(error)}") from error
            self._count("started", "sandboxes")
        self._run = await task.start(self.attempt, self._sandbox)
        self._count("started", "plays")

    async def _abandon(self, failure: EpisodeFailed, cause: BaseException | None) -> NoReturn:
        self.failure = failure
        await self.close()
        raise failure from cause

    async def next_turn(self) -> Turn | None:
        """The next turn, or None when the run is over. The one before must have ended."""
        if self._state is _State.OVER:
            return None
        self._expect("ask for a turn", _State.READY)
        spec: TurnSpec | None = await self._task_code(self._run.next_turn)
        if spec is None:
            self._state = _State.OVER
            return None
        index = int(self.metrics["turns"])
        new: list[Message] = []
        prompt = spec.prompt
        if spec.system is not None and spec.system != self._system:
            if index == 0:
                new.append(Message("system", spec.system))
            else:
                # Not a second system message: many templates refuse one in mid-conversation, and some drop it.
                prompt = f"{spec.system}\n\n{prompt}"
            self._system = spec.system
        new.append(Message("user", prompt))
        self.messages += new
        self.metrics["turns"] += 1
        self.turn = Turn(self, index, self._system, tuple(spec.tools), spec.prompt, new)
        self._state = _State.TURN
        return self.turn

    async def result(self) -> PlayResult:
        """The verdict of a play that is over. Raises EpisodeFailed where the run failed, or its scores hold no
        reward.
        """
        if self._result is None:
            self._expect("take the result", _State.OVER)
            await self._score(Termination.ENV_DONE)
        return self._result  # type: ignore[return-value]  # _score sets it or raises

    async def cut(self, termination: Termination) -> PlayResult:
        """End here, and verify what there is."""
        if self._result is None:
            self._expect("cut", _State.READY, _State.TURN, _State.OVER)
            self.metrics["cut"] = 1.0
            self.turn = None
            await self._score(termination)
        return self._result  # type: ignore[return-value]

    async def close(self) -> None:
        """Close the attempt and its sandbox, each exactly once; a cancel meanwhile is obeyed when they are closed."""
        if self._closing:
            return
        self._closing = True
        try:
            await outlast(self._close())
        finally:
            self._state = _State.CLOSED

    # -- inside --------------------------------------------------------------------------------------------------------

    async def _score(self, termination: Termination) -> None:
        # Whatever happens in here, the verifier ran: it is not asked twice.
        self._state = _State.FAILED
        try:
            async with asyncio.timeout(self._score_timeout) as limit:
                scores = await self._run.score()
        except EpisodeFailed as error:
            self._fail(error)
        except CommandTimeout as error:
            self._fail(EpisodeFailed(Failure.VERIFIER_TIMEOUT, str(error)), error)
        except asyncio.CancelledError as error:
            if being_cancelled():
                raise
            self._fail(EpisodeFailed(Failure.VERIFIER_CRASHED, "it cancelled itself"), error)
        except BREAKS as error:
            if limit.expired():
                self._fail(EpisodeFailed(Failure.VERIFIER_TIMEOUT, f"no scores after {self._score_timeout:g} s"), error)
            log.debug("verifier_crashed", task=self.task.id, exc_info=True)
            self._fail(EpisodeFailed(Failure.VERIFIER_CRASHED, one_line(error)), error)
        self.scores = self._readable(scores)
        self._result = PlayResult(self.scores, self._pick(), termination)
        self._state = _State.SCORED

    def _readable(self, scores: object) -> dict[str, float]:
        if not isinstance(scores, Mapping):
            self._fail(
                EpisodeFailed(
                    Failure.REWARD_UNREADABLE, f"the verifier gave {type(scores).__name__}, not scores by name"
                )
            )
        out = {}
        for name, value in scores.items():
            try:
                if isinstance(value, (str, bytes)):
                    raise TypeError("text")
                out[str(name)] = float(value)
            except (TypeError, ValueError, OverflowError):
                self._fail(EpisodeFailed(Failure.REWARD_UNREADABLE, f"score {name!r} is {value!r}, not a number"))
            if not math.isfinite(out[str(name)]):
                self._fail(EpisodeFailed(Failure.REWARD_UNREADABLE, f"score {name!r} is {value!r}, not finite"))
        return out

    def _pick(self) -> float:
        """The one score that is the reward."""
        names = ", ".join(sorted(self.scores)) or "none"
        if self._reward is not None:
            if self._reward not in self.scores:
                self._fail(EpisodeFailed(Failure.REWARD_MISSING, f"no score {self._reward!r}; there are: {names}"))
            return self.scores[self._reward]
        if len(self.scores) != 1:
            hint = (
                "the verifier gave no score"
                if not self.scores
                else f"several scores ({names}): set rollout.reward to one of them"
            )
            self._fail(EpisodeFailed(Failure.REWARD_MISSING, hint))
        return next(iter(self.scores.values()))

    async def _task_code(self, function: Callable[..., Awaitable[T]], *args: object) -> T:
        """Await the task's own code: what breaks in it between the model's messages is not the policy's doing."""
        what = function.__name__
        try:
            return await function(*args)
        except EpisodeFailed as error:
            self._fail(error)
        except asyncio.CancelledError as error:
            if being_cancelled():
                raise
            self._fail(EpisodeFailed(Failure.SETUP_FAILED, f"{what} cancelled itself"), error)
        except BREAKS as error:
            log.debug("task_failed", task=self.task.id, where=what, exc_info=True)
            self._fail(EpisodeFailed(Failure.SETUP_FAILED, f"{what}: {one_line(error)}"), error)

    def _fail(self, failure: EpisodeFailed, cause: BaseException | None = None) -> NoReturn:
        self._state, self.failure, self.turn = _State.FAILED, failure, None
        raise failure from (cause or failure.__cause__)

    def _expect(self, what: str, *states: _State) -> None:
        if self.failure is not None:
            raise self.failure
        if self._state not in states:
            raise RuntimeError(f"cannot {what}: the play is {self._state}, not {' or '.join(states)}")

    def _in_turn(self, turn: Turn) -> None:
        self._expect("go on with the turn", _State.TURN)
        if self.turn is not turn:
            raise RuntimeError("this turn has ended; another is under way")

    async def _close(self) -> None:
        try:
            if self._run is not None:
                await self._close_one("plays", self._run)
        finally:
            if self._sandbox is not None:
                await self._close_one("sandboxes", self._sandbox)

    async def _close_one(self, what: str, thing: TaskRun | Sandbox) -> None:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await thing.close()
        except (*BREAKS, asyncio.CancelledError) as error:
            log.warning("close_failed", what=what, task=self.task.id, attempt=self.attempt, error=one_line(error))
        finally:
            self._count("closed", what)

    def _count(self, when: str, what: str) -> None:
        if self._stats is not None:
            getattr(self._stats, when)[what] += 1
