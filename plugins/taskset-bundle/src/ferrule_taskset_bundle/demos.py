"""A bundle's demonstrations: recorded lines, or scripts that are really played against the tools."""

from __future__ import annotations

import asyncio
import copy
import json
import random
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ferrule import Demonstration, FerruleError, Message, ToolSpec, derive_seed

from .bundle import Bundle
from .gold import messages_of
from .tasks import BundleTask


def demonstrations(
    bundle: Bundle, split: str, tasks: Sequence[BundleTask], count: int, seed: int
) -> list[Demonstration]:
    """*count* of them on *tasks* (0: all there are; of a function, one per task), a function of *seed* alone."""
    source = bundle.demonstrations
    if source is None:
        return []
    rng = random.Random(derive_seed(seed, "demonstrations", split))
    by_id = {task.id: task for task in tasks}
    if isinstance(source, Path):
        found = _recorded(source, bundle, by_id)
        rng.shuffle(found)
        return found[: count or None]
    where = f"bundle {bundle.name!r}: the demonstrations function"
    try:
        items = list(source(rng, count or len(tasks), list(tasks)))
    except Exception as error:
        raise FerruleError(f"{where} raised {type(error).__name__}: {error}") from error
    return _played(items[: count or None], by_id, where)


def _recorded(path: Path, bundle: Bundle, by_id: Mapping[str, BundleTask]) -> list[Demonstration]:
    """The lines of a JSONL file that belong to the tasks, or to none: ``{"messages": […], "task_id": …}``."""
    known = {task.id for task in bundle.tasks}
    out = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = json.loads(line)
            messages = tuple(Message.from_openai(message) for message in row["messages"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FerruleError(
                f'{where}: not a demonstration ({type(error).__name__}: {error}); a line is {{"messages": [chat messages], "task_id": "…"}}'
            ) from None
        id = row.get("task_id", "")
        if id and id not in known:
            raise FerruleError(f"{where}: no task {id!r} in the bundle")
        if id and id not in by_id:
            continue
        if "tools" in row:
            tools = tuple(ToolSpec.from_openai(tool) for tool in row["tools"])
        else:
            tools = tuple(tool.spec for tool in by_id[id].parts.tools.values()) if id else ()
        out.append(Demonstration(messages, tools, id))
    return out


def _played(items: list[Any], by_id: Mapping[str, BundleTask], where: str) -> list[Demonstration]:
    """Each item as a demonstration; scripts are played in an event loop of their own, as the caller's may be running."""
    out: list[Demonstration] = []
    failed: list[BaseException] = []

    async def all_of_them() -> None:
        for i, item in enumerate(items):
            if isinstance(item, Demonstration):
                out.append(item)
                continue
            if not isinstance(item, Mapping) or set(item) != {"task", "script"}:
                raise FerruleError(
                    f'{where}: item {i} must be {{"task": id, "script": [assistant messages]}} or a ferrule.Demonstration, not {item!r}'
                )
            if item["task"] not in by_id:
                raise FerruleError(f"{where}: item {i} plays {item['task']!r}, which is not a task of this split")
            try:
                out.append(await _script(by_id[item["task"]], messages_of(item["script"])))
            except ValueError as error:
                raise FerruleError(f"{where}: item {i}: {error}") from None

    def run() -> None:
        try:
            asyncio.run(all_of_them())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="ferrule-demonstrations")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return out


async def _script(task: BundleTask, script: Sequence[Message]) -> Demonstration:
    """What the conversation becomes when the model says *script*: prompts and answers are the play's own."""
    if task.sandbox is not None:
        tools = task.parts.tools
        called = {call.name for message in script for call in message.tool_calls}
        needing = sorted(name for name in called if name in tools and tools[name].needs_sandbox)
        if needing:
            raise ValueError(
                f"task {task.id!r} runs {', '.join(needing)} in a sandbox, and scripts are played without one: give the parameter "
                f"`sandbox` a default of None, or record the demonstrations in a .jsonl file"
            )
        task = copy.copy(task)
        task.sandbox = None
    from ferrule import Play  # here, so that listing tasks does not load what plays them

    messages: list[Message] = []
    lines = list(script)
    play = Play(task, 0, sandboxes=None, reward=None)
    await play.start()
    try:
        while lines and (turn := await play.next_turn()) is not None:
            messages += turn.messages
            while lines:
                reply = lines.pop(0)
                turn.record(reply)
                messages.append(reply)
                if not reply.tool_calls:
                    await turn.end(reply)
                    break
                messages += await turn.call(reply.tool_calls)
    finally:
        await play.close()
    if lines:
        raise ValueError(f"the script for task {task.id!r} has {len(lines)} messages left when the task is over")
    return Demonstration(tuple(messages), tuple(tool.spec for tool in task.parts.tools.values()), task.id)
