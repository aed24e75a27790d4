"""What is said when a new segment starts: one event, enough to tell a client that rewrites its history (a compaction) from
a renderer that cannot bridge. A request that is made again is no reset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..data import Message
from ..logs import get_logger
from ..masking import masked
from .plan import Reset
from .shutdown import BREAKS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .session import Session

log = get_logger("ferrule.rollout")

PREVIEW = 80
"""Characters of a content that are shown."""

PREVIEW_TOKENS = 24
PREVIEW_CALLS = 4
MASKED = 4000
"""Characters of a content that are searched for secrets."""


def log_reset(session: Session, plan: Reset, messages: Sequence[Message], tokens: int) -> None:
    """Of a request of *messages*, which are *tokens* tokens; ``index`` is the first message that differs."""
    thread = plan.thread
    log.info(
        "segment_reset",
        session=session.key,
        agent=session.name,
        reason=plan.reason,
        detail=plan.detail[:500],
        turn=session.ledger.sampled,
        index=plan.index,
        preview=_message(messages, plan.index),
        held_preview=_message(thread.messages, plan.index),
        messages_held=len(thread.messages),
        messages_incoming=len(messages),
        tokens_held=session.ledger.length(thread.segment),
        tokens_incoming=tokens,
        resets=session.resets,
    )


def log_token_reset(session: Session, segments: Sequence[int], ids: NDArray[np.int32]) -> None:
    """Of a request of token *ids*, int32[T], that goes on from none of *segments*; ``index`` is the first token that
    differs from the nearest.
    """
    held = [session.ledger.tokens(segment) for segment in segments]
    common = [_common(each, ids) for each in held]
    nearest = max(range(len(held)), key=lambda i: (common[i], i))
    index, nearest_ids = common[nearest], held[nearest]
    log.info(
        "segment_reset",
        session=session.key,
        agent=session.name,
        reason="prefix_changed",
        detail=f"the tokens are other ones from token {index} on than those that were shown and sampled",
        turn=session.ledger.sampled,
        index=index,
        preview=_tokens(session, ids, index),
        held_preview=_tokens(session, nearest_ids, index),
        tokens_held=len(nearest_ids),
        tokens_incoming=len(ids),
        resets=session.resets,
    )


def _common(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    size = min(len(one), len(other))
    differ = np.flatnonzero(one[:size] != other[:size])
    return int(differ[0]) if len(differ) else size


def _message(messages: Sequence[Message], index: int) -> str:
    if index >= len(messages):
        return ""
    message = messages[index]
    calls = "".join(f" [{call.name[:PREVIEW]}]" for call in message.tool_calls[:PREVIEW_CALLS])
    # Masked before it is cut: half a secret is not known for one.
    return f"{message.role}: {masked(message.content[:MASKED])[:PREVIEW]}{calls}"


def _tokens(session: Session, ids: NDArray[np.int32], index: int) -> str:
    shown = ids[index : index + PREVIEW_TOKENS]
    try:
        return masked(session.renderer.decode(shown))[:PREVIEW]
    except BREAKS:  # what is only for people ends no request
        return str(shown.tolist())[:PREVIEW]
