"""What a renderer's treatment of thinking costs: a sample conversation, played on the ledger with scripted replies."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from ..data import Message, SamplingParams, TokenKind, ToolCall, ToolSpec
from ..kinds import Renderer, Sample, SamplerSession
from .session import Session

QUESTIONS, CALLS = 3, 3
"""The sample: so many questions, each answered after so many calls, with reasoning before every call and answer."""

_TOOL = ToolSpec(
    "search",
    "Search the documents.",
    {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
)
_THOUGHT = (
    "The question asks for one fact. The last answer names the document but not the line, so I search again with "
    "the words that stood beside it, and read what comes back before I answer."
)
_FOUND = "doc-17, line 4: the harbour was closed in March; doc-21, line 9: it was opened again in May."


@attrs.frozen
class Forecast:
    """What the sample came to: ``steps`` replies in ``rows`` training rows of ``tokens`` tokens in all."""

    steps: int
    rows: int
    tokens: int


class _Script(SamplerSession):
    """Answers the tokens that it was told."""

    def __init__(self) -> None:
        self.ids: NDArray[np.int32] = np.zeros(0, np.int32)

    async def sample(self, prompt: NDArray[np.int32], params: SamplingParams) -> Sample:
        count = len(self.ids)
        return Sample(self.ids, np.zeros(count, np.float32), np.zeros(count, np.int32), "stop")


async def forecast(renderer: Renderer, *, tools: bool = True) -> Forecast:
    """Play the sample conversation as *renderer* has it. Raises EpisodeFailed where it refuses the sample."""
    offered = (_TOOL,) if tools else ()
    script = _Script()
    session = Session(renderer, script, name="forecast", key="forecast")
    params = SamplingParams(max_tokens=1 << 20, stop_ids=renderer.stop_ids)
    history: list[Message] = [Message("system", "You answer from the documents.")]

    async def say(message: Message) -> Message:
        script.ids = _sampled(renderer, [*history, message], offered)
        reply = await session.reply(history, offered, params, lambda length, superseded: 1 << 20)
        history.append(reply.message)
        return reply.message

    for question in range(QUESTIONS):
        history.append(Message("user", f"Question {question + 1}: when was the harbour closed, and when opened?"))
        for number in range(CALLS if tools else 0):
            call = ToolCall(f"call{question}{number:04d}"[:9], _TOOL.name, {"query": f"harbour {number}"})
            said = await say(Message("assistant", "", _THOUGHT, tool_calls=(call,)))
            history += [Message("tool", _FOUND, tool_call_id=c.id, name=c.name) for c in said.tool_calls]
        await say(Message("assistant", "It was closed in March and opened in May.", _THOUGHT))
    segments = session.ledger.segments()
    return Forecast(session.ledger.sampled, len(segments), sum(map(len, segments)))


def _sampled(renderer: Renderer, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> NDArray[np.int32]:
    """The tokens that the model would have sampled of the last of *messages*."""
    rendered = renderer.render(messages, tools, generation=False)
    start, stop = rendered.spans[-1]
    stop = max(stop, start)
    return rendered.ids[start:stop][rendered.kinds[start:stop] == TokenKind.ACTION]
