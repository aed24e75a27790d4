"""A bundle's tasks, and one attempt at one of them."""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Mapping
from functools import cached_property
from types import SimpleNamespace
from typing import Any

from ferrule import (
    CommandTimeout,
    EpisodeFailed,
    Failure,
    FerruleError,
    Message,
    Sandbox,
    Task,
    TaskRun,
    ToolCall,
    ToolError,
    ToolSpec,
    TurnSpec,
)

from .code import asks, call, pick
from .gold import messages_of
from .parts import Parts


class BundleTask(Task):
    """One task: its ``params`` fill the texts and make the state of each attempt.

    ``metadata`` is the bundle's own, with ``params``, ``split`` (None where it is in none) and, where recorded,
    ``gold``: the assistant messages, in OpenAI's form, that solve it.
    """

    def __init__(self, id: str, params: Mapping[str, Any], parts: Parts, split: str | None, where: str) -> None:
        self.id, self.params, self.parts, self.split, self.where = id, params, parts, split, where
        self.score_names = tuple(parts.verifiers)
        self.sandbox = parts.sandbox
        self.needs_isolation = parts.isolation

    @cached_property
    def metadata(self) -> Mapping[str, Any]:  # type: ignore[override]
        out = {**self.parts.metadata, "params": dict(self.params), "split": self.split}
        if self.gold is not None:
            out["gold"] = [message.to_openai() for message in self.gold]
        return out

    @cached_property
    def gold(self) -> tuple[Message, ...] | None:
        """The messages that solve it; None where none are recorded."""
        gold = self.parts.gold
        if not callable(gold):
            return gold
        try:
            return messages_of(gold(**pick(gold, {"params": copy.deepcopy(dict(self.params)), "id": self.id})))
        except Exception as error:
            raise FerruleError(
                f"the gold function failed for task {self.id!r}: {type(error).__name__}: {error}"
            ) from error

    def fill(self, text: str) -> str:
        """*text* with the params in its placeholders; as it stands where the task has no params. Raises ValueError
        saying what is wrong.
        """
        if not self.params:
            return text
        try:
            return text.format_map({"id": self.id, **self.params})
        except KeyError as error:
            have = ", ".join(self.params)
            raise ValueError(f"names {{{error.args[0]}}}, which is not among the task's params ({have})") from None
        except (ValueError, IndexError, AttributeError, TypeError) as error:
            raise ValueError(
                f"cannot be filled: {error}; write {{{{ and }}}} for braces that stand for themselves"
            ) from None

    def turns(self) -> list[TurnSpec] | None:
        """The turns as they will be asked; None where a function makes them."""
        if callable(self.parts.turns):
            return None
        out, system, tools = [], self.parts.system, self.parts.offered
        for turn in self.parts.turns:
            system = turn.system if turn.system is not None else system
            tools = turn.tools if turn.tools is not None else tools
            out.append(
                TurnSpec(self.fill(turn.prompt), None if system is None else self.fill(system), self.specs(tools))
            )
        return out

    def specs(self, names: tuple[str, ...]) -> tuple[ToolSpec, ...]:
        return tuple(self.parts.tools[name].spec for name in names)

    async def start(self, attempt: int, sandbox: Sandbox | None) -> TaskRun:
        run = BundleRun(self, attempt, sandbox)
        try:
            await run.set_up()
        except BaseException as error:
            # what setup took before it broke is freed by the bundle's own close, whose failure would hide the cause
            try:
                await run.close()
            except Exception as second:
                error.add_note(f"and close failed: {second!r}")
            if isinstance(error, EpisodeFailed) or not isinstance(error, Exception):
                raise
            raise EpisodeFailed(Failure.SETUP_FAILED, f"task {self.id!r}: {type(error).__name__}: {error}") from error
        return run


class BundleRun(TaskRun):
    """One attempt. Its state is made here, of a copy of the params, and goes with it."""

    def __init__(self, task: BundleTask, attempt: int, sandbox: Sandbox | None) -> None:
        self.task, self.parts = task, task.parts
        self.given: dict[str, Any] = {
            "state": None,
            "sandbox": sandbox,
            "params": copy.deepcopy(dict(task.params)),
            "attempt": attempt,
            "reply": None,
        }
        self.waiting = task.turns()
        self.system: str | None = self.parts.system
        self.offered = self.parts.offered

    async def set_up(self) -> None:
        params = self.given["params"]
        if self.parts.state is None:
            self.given["state"] = SimpleNamespace(**params)
        else:
            own = {"id": self.task.id, "attempt": self.given["attempt"]}
            asked = {name: value for name, value in own.items() if name in asks(self.parts.state)}
            self.given["state"] = await call(self.parts.state, {**asked, **params})
        if self.parts.setup is not None:
            await call(self.parts.setup, self.given)

    async def next_turn(self) -> TurnSpec | None:
        if self.waiting is not None:
            return self.waiting.pop(0) if self.waiting else None
        assert callable(self.parts.turns)
        try:
            return self._turn(await call(self.parts.turns, self.given))
        except EpisodeFailed:
            raise
        except Exception as error:
            detail = f"the turns function of task {self.task.id!r}: {type(error).__name__}: {error}"
            raise EpisodeFailed(Failure.SETUP_FAILED, detail) from error

    def _turn(self, made: Any) -> TurnSpec | None:
        """What the turns function returned, as a turn: tools by name or as they are, system and tools staying where
        not given.
        """
        if made is None:
            return None
        if isinstance(made, TurnSpec):
            made = {"prompt": made.prompt, "system": made.system, "tools": made.tools}
        if not isinstance(made, Mapping) or not isinstance(made.get("prompt"), str):
            raise TypeError(f"it must return None, a ferrule.TurnSpec or a dict with a prompt, not {made!r}")
        if unknown := set(made) - {"prompt", "system", "tools"}:
            raise TypeError(f"unknown key {sorted(unknown)[0]!r} in the turn; known: prompt, system, tools")
        if made.get("system") is not None:
            self.system = made["system"]
        if made.get("tools") is not None:
            names = tuple(tool.name if isinstance(tool, ToolSpec) else tool for tool in made["tools"])
            if missing := [name for name in names if name not in self.parts.tools]:
                have = ", ".join(self.parts.tools) or "none"
                raise LookupError(f"no tool {missing[0]!r}: list it in the bundle's `tools` (there: {have})")
            self.offered = names
        return TurnSpec(made["prompt"], self.system, self.task.specs(self.offered))

    async def call(self, call: ToolCall) -> str:
        tool = self.parts.tools.get(call.name)
        if tool is None:
            raise ToolError(f"there is no tool {call.name!r}; there are: {', '.join(self.parts.tools) or 'none'}")
        return await tool.run(call.arguments, self.given)

    async def end_turn(self, reply: Message) -> None:
        self.given["reply"] = reply

    async def score(self) -> Mapping[str, float]:
        return {name: await self._verify(name, verifier) for name, verifier in self.parts.verifiers.items()}

    async def _verify(self, name: str, verifier: Any) -> float:
        where = f"verifier {name!r} of task {self.task.id!r}"
        limit = asyncio.timeout(self.parts.verifier_timeout)
        try:
            async with limit:
                value = await call(verifier, self.given)
        except EpisodeFailed:
            raise
        except (TimeoutError, CommandTimeout) as error:
            if isinstance(error, CommandTimeout) or limit.expired():
                detail = str(error) or f"over {self.parts.verifier_timeout:g} s"
                raise EpisodeFailed(Failure.VERIFIER_TIMEOUT, f"{where}: {detail}") from error
            raise EpisodeFailed(Failure.VERIFIER_CRASHED, f"{where}: TimeoutError: {error}") from error
        except Exception as error:
            raise EpisodeFailed(Failure.VERIFIER_CRASHED, f"{where}: {type(error).__name__}: {error}") from error
        if value is None:
            raise EpisodeFailed(Failure.REWARD_MISSING, f"{where} returned None; it must return a number")
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise EpisodeFailed(
                Failure.REWARD_UNREADABLE, f"{where} returned {value!r}; it must return a number"
            ) from None
        if not math.isfinite(number):
            raise EpisodeFailed(Failure.REWARD_UNREADABLE, f"{where} returned {number}; it must be finite")
        return number

    async def close(self) -> None:
        if self.parts.close is not None:
            await call(self.parts.close, self.given)
