"""Captured trajectories as JSON: segments of tokens, and the steps sampled into them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ferrule import Segment, Step, TokenKind, Trajectory

from .messages import write_message

KINDS = {int(kind): kind.name.lower() for kind in TokenKind}

NOTHING = Trajectory("agent")


def trajectory_body(id_: str, state: str, trajectory: Trajectory = NOTHING) -> dict[str, Any]:
    """What ``GET /sessions/<id>/trajectory`` answers. ``kinds`` are numbers, which ``kind_names`` reads; a logprob
    that is unknown is null; ``versions`` are -1 where nothing was sampled.
    """
    return {
        "id": id_,
        "state": state,
        "kind_names": [KINDS[i] for i in sorted(KINDS)],
        "segments": [segment_body(segment) for segment in trajectory.segments],
        "steps": [step_body(step) for step in trajectory.steps],
    }


def segment_body(segment: Segment, start: int = 0, stop: int | None = None) -> dict[str, Any]:
    """Its tokens from *start* to *stop*."""
    part = slice(start, stop)
    return {
        "ids": _plain(segment.ids[part]),
        "kinds": _plain(segment.kind[part]),
        # As float64 they are written out exactly: the shortest text of a float32 is another number to who reads doubles.
        "logprobs": segment.logprobs[part].astype(np.float64),
        "versions": _plain(segment.version[part]),
    }


def step_body(step: Step) -> dict[str, Any]:
    return {
        "segment": step.segment_index,
        "start": step.start,
        "stop": step.stop,
        "stop_reason": step.stop_reason,
        "status": step.status,
        "version": step.version,
        "message": write_message(step.message),
    }


def _plain(array: Any) -> Any:
    """Fit for orjson, which wants an array that lies in one piece."""
    return np.ascontiguousarray(array)
