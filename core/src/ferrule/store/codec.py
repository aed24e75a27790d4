"""Episodes as lines of JSON, tokens included, and back: nothing that was trained on is lost."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np

from ..data import Episode, Message, Segment, Step, Termination, TokenKind, ToolCall, Trajectory
from ..errors import Failure

KIND_LETTERS = "PAOS"
"""One letter a token, by :class:`ferrule.TokenKind`: prompt, action, observation, scaffold."""

Decode = Callable[[Any], str]


def episode_to_line(episode: Episode, decode: Decode | None = None) -> dict[str, Any]:
    """*episode* as plain data. *decode* writes ids as text; without it, no text stands beside the tokens.

    A segment holds ``ids``, ``kinds`` (a string of :data:`KIND_LETTERS`), ``logprobs`` (one for each A, shortest text
    that reads back to the same float32), ``versions`` (runs of ``[version, count]`` over the A's) and ``text`` (runs of
    ``[letter, text]``).
    """
    return {
        "id": episode.id,
        "task": episode.task_id,
        "attempt": episode.attempt,
        "group": episode.group,
        "reward": episode.reward,
        "scores": dict(episode.scores),
        "termination": str(episode.termination),
        "failure": str(episode.failure) if episode.failure else None,
        "error": episode.error,
        "retries": episode.retries,
        "seconds": round(episode.seconds, 4),
        "metrics": dict(episode.metrics),
        "artifacts": dict(episode.artifacts),
        "messages": [message_to_line(message) for message in episode.messages],
        "trajectories": [_trajectory(trajectory, decode) for trajectory in episode.trajectories],
    }


def message_to_line(message: Message) -> dict[str, Any]:
    """The OpenAI form, with ``error`` and ``raw`` on a call that was malformed."""
    out = message.to_openai()
    for wire, call in zip(out.get("tool_calls", ()), message.tool_calls, strict=True):
        if call.error is not None:
            wire["error"] = call.error
        if call.raw is not None:
            wire["raw"] = call.raw
    return out


def message_from_line(line: Mapping[str, Any]) -> Message:
    message = Message.from_openai(line)
    calls = tuple(
        ToolCall(call.id, call.name, call.arguments, wire.get("error"), wire.get("raw"))
        for call, wire in zip(message.tool_calls, line.get("tool_calls") or (), strict=True)
    )
    return attrs.evolve(message, tool_calls=calls)  # type: ignore[arg-type]  # the converter makes it a tuple


def _trajectory(trajectory: Trajectory, decode: Decode | None) -> dict[str, Any]:
    out: dict[str, Any] = {
        "name": trajectory.name,
        "reward": trajectory.reward,
        "signals": trajectory.signals,
        "metadata": trajectory.metadata,
        "steps": [
            {
                "segment": step.segment_index,
                "start": step.start,
                "stop": step.stop,
                "stop_reason": step.stop_reason,
                "status": step.status,
                "version": step.version,
                "message": message_to_line(step.message),
            }
            for step in trajectory.steps
        ],
        "segments": [_segment(segment, decode) for segment in trajectory.segments],
    }
    if trajectory.advantages is not None:
        out["advantages"] = trajectory.advantages
    return out


def _segment(segment: Segment, decode: Decode | None) -> dict[str, Any]:
    kind = np.asarray(segment.kind)
    action = kind == TokenKind.ACTION
    out: dict[str, Any] = {
        "ids": np.asarray(segment.ids).tolist(),
        "kinds": "".join(KIND_LETTERS[k] for k in kind.tolist()),
        "logprobs": [float(f"{x:.9g}") for x in np.asarray(segment.logprobs, np.float32)[action].tolist()],
        "versions": [[int(v), stop - start] for start, stop, v in runs(np.asarray(segment.version)[action])],
    }
    if decode is not None:
        out["text"] = [[KIND_LETTERS[int(k)], decode(segment.ids[start:stop])] for start, stop, k in runs(kind)]
    return out


def runs(values: np.ndarray) -> list[tuple[int, int, int]]:
    """``(start, stop, value)`` of each stretch of equal *values*."""
    if not len(values):
        return []
    edges = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    return [(a, b, int(values[a])) for a, b in itertools.pairwise(edges)]


def episode_from_line(line: Mapping[str, Any]) -> Episode:
    """The episode that :func:`episode_to_line` wrote, arrays equal bit for bit."""
    return Episode(
        id=line["id"],
        task_id=line["task"],
        attempt=line["attempt"],
        trajectories=tuple(_read_trajectory(item) for item in line["trajectories"]),
        termination=Termination(line["termination"]),
        scores=line["scores"],
        reward=line["reward"],
        messages=tuple(message_from_line(item) for item in line["messages"]),
        metrics=line["metrics"],
        artifacts=line["artifacts"],
        failure=Failure(line["failure"]) if line["failure"] else None,
        error=line["error"],
        group=line["group"],
        seconds=line["seconds"],
        retries=line["retries"],
    )


def _read_trajectory(line: Mapping[str, Any]) -> Trajectory:
    segments = tuple(_read_segment(item) for item in line["segments"])
    steps = tuple(
        Step(
            segments[item["segment"]],
            item["segment"],
            item["start"],
            item["stop"],
            item["stop_reason"],
            message_from_line(item["message"]),
            item["status"],
            item["version"],
        )
        for item in line["steps"]
    )
    return Trajectory(
        line["name"], steps, segments, line["reward"], line["signals"], line["metadata"], line.get("advantages")
    )


def _read_segment(line: Mapping[str, Any]) -> Segment:
    kind = np.array([KIND_LETTERS.index(letter) for letter in line["kinds"]], np.uint8)
    action = kind == TokenKind.ACTION
    logprobs = np.zeros(len(kind), np.float32)
    logprobs[action] = line["logprobs"]
    version = np.full(len(kind), -1, np.int32)
    version[action] = np.repeat([v for v, _ in line["versions"]], [n for _, n in line["versions"]])
    return Segment(np.array(line["ids"], np.int32), kind, logprobs, version)
