"""The tool loop: the model calls tools until it answers without a call, turn after turn."""

from __future__ import annotations

import attrs

from ferrule import Harness, Message, Play, Rollout

__all__ = ["Tools", "shorten"]


class Tools(Harness, name="tools"):
    """One agent, all of the turn's tools, one growing conversation.

    The list holds the same message objects from request to request, so that the agent recognises its history by
    identity.
    """

    @attrs.frozen
    class Config(Harness.Config):
        """``answer_limit``: characters of one tool answer that the model is shown; absent is no limit."""

        answer_limit: int | None = attrs.field(
            default=None, validator=attrs.validators.optional(attrs.validators.ge(1))
        )

    async def run(self, play: Play, rollout: Rollout) -> None:
        agent, limit = rollout.agent(), self.config.answer_limit
        messages: list[Message] = []
        while turn := await play.next_turn():
            messages += turn.messages
            while True:
                message = (await agent.reply(messages, turn.tools)).message
                messages.append(message)
                turn.record(message)
                if not message.tool_calls:
                    await turn.end(message)
                    break
                for answer in await turn.call(message.tool_calls):
                    text = shorten(answer.content, limit)
                    messages.append(answer if text is answer.content else attrs.evolve(answer, content=text))


def shorten(text: str, limit: int | None) -> str:
    """*text* itself where it has at most *limit* characters; else its head and its tail, *limit* together, and
    between them a line that says how many are left out.
    """
    if limit is None or len(text) <= limit:
        return text
    head, tail = limit - limit // 2, limit // 2
    return f"{text[:head]}\n[… {len(text) - limit} characters left out …]\n{text[len(text) - tail :]}"
