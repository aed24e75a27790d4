"""Endings that hold: closing what is open although somebody cancels meanwhile, and telling a real cancel from a stray
one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from ..masking import masked

T = TypeVar("T")

BREAKS = (Exception, SystemExit)
"""What other people's code breaks with. ``sys.exit`` in a tool or a verifier (a library that parses arguments calls it)
is one episode's failure: let through, it would end the event loop, and the run with it, as if all were well.
"""

CLOSE_TIMEOUT = 60.0
"""Seconds that each thing has for closing; then it is logged and left."""


async def outlast(work: Coroutine[Any, Any, T]) -> T:
    """Await *work* to its end even if the caller is cancelled meanwhile; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()
        raise cancelled
    return task.result()


def being_cancelled() -> bool:
    """Whether somebody asked to cancel the current task. A CancelledError without that is a stray: some code inside
    broke.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def one_line(error: BaseException, limit: int = 500) -> str:
    """``ValueError: what it said``, on one line and bounded, known secrets masked."""
    text = masked(" ".join(str(error).split()))
    text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"
