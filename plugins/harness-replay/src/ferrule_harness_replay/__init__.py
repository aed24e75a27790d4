"""Recorded messages played against a task, without a model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import attrs

from ferrule import EpisodeFailed, Failure, FerruleError, Harness, Message, Play, Rollout, Task, existing

__all__ = ["Replay", "read"]


def _readable(instance: object, attribute: Any, value: object) -> None:
    if isinstance(value, Path):
        existing(instance, attribute, value)


class Replay(Harness, name="replay"):
    """Says what was recorded, whatever the tools answer.

    A message with calls has them run; one without ends the turn. A turn for which nothing is left is ended with an
    empty reply; messages that are left when the task is over are not played.
    """

    needs_model = False
    roles = ()

    @attrs.frozen
    class Config(Harness.Config):
        """``script``: ``gold`` (the task's ``metadata["gold"]``, assistant messages in OpenAI's form), ``nothing``, or
        a JSONL file of ``{"task_id": …, "messages": […]}``.
        """

        script: Literal["gold", "nothing"] | Path = attrs.field(default="gold", validator=_readable)

    def __init__(self, config: Any) -> None:
        """Reads the file, where one is named. Raises FerruleError with the line that is wrong."""
        super().__init__(config)
        self._recorded = read(config.script) if isinstance(config.script, Path) else {}

    async def run(self, play: Play, rollout: Rollout) -> None:
        script = iter(self.script(rollout.task))
        while turn := await play.next_turn():
            while True:
                message = next(script, None) or Message("assistant")
                turn.record(message)
                if not message.tool_calls:
                    await turn.end(message)
                    break
                await turn.call(message.tool_calls)

    def script(self, task: Task) -> tuple[Message, ...]:
        """What is said in *task*. Raises EpisodeFailed where nothing is recorded for it."""
        source = self.config.script
        if source == "nothing":
            return ()
        if isinstance(source, Path):
            if task.id not in self._recorded:
                raise EpisodeFailed(Failure.HARNESS_FAILED, f"{source} holds no messages for task {task.id!r}")
            return self._recorded[task.id]
        gold = task.metadata.get("gold")
        if gold is None:
            raise EpisodeFailed(
                Failure.HARNESS_FAILED,
                f"task {task.id!r} carries no recorded messages (metadata['gold']): record them, or set script to a "
                'file or "nothing"',
            )
        try:
            return _spoken(gold)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            detail = (
                f"metadata['gold'] of task {task.id!r} is not a list of chat messages: {type(error).__name__}: {error}"
            )
            raise EpisodeFailed(Failure.HARNESS_FAILED, detail) from error


def read(path: Path) -> dict[str, tuple[Message, ...]]:
    """The recorded assistant messages of a JSONL file, by task id. Raises FerruleError with the line that is wrong."""
    out: dict[str, tuple[Message, ...]] = {}
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            task, spoken = row["task_id"], _spoken(row["messages"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FerruleError(
                f"{path}:{number}: {type(error).__name__}: {error}; a line is "
                '{"task_id": "…", "messages": [chat messages]}'
            ) from None
        if task in out:
            raise FerruleError(f"{path}:{number}: a second recording of task {task!r}")
        out[task] = spoken
    return out


def _spoken(messages: Iterable[Mapping[str, Any]]) -> tuple[Message, ...]:
    """The assistant's messages among *messages*."""
    return tuple(Message.from_openai(each) for each in messages if each["role"] == "assistant")
