"""The conversations, tokenizers and renderers of the parity tables in docs/renderers.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import ferrule_test_assets as assets

from ferrule import Message, ToolCall, ToolSpec

RENDERERS = ("chatml", "chat_template", "prime", "tinker", "tml")

TOKENIZERS: dict[str, tuple[Callable[[], Path], str]] = {
    "Qwen2.5": (assets.qwen25, "Qwen/Qwen2.5-7B-Instruct"),
    "Qwen3": (assets.qwen3, "Qwen/Qwen3-8B"),
    "Qwen3.5": (assets.qwen35, "Qwen/Qwen3.5-9B"),
    "SmolLM2": (assets.smollm2, "HuggingFaceTB/SmolLM2-135M-Instruct"),
    "DeepSeek R1": (assets.deepseek, "deepseek-ai/DeepSeek-R1"),
    "GLM 4.5": (assets.glm, "zai-org/GLM-4.5-Air"),
    "gpt-oss": (assets.gpt_oss, "openai/gpt-oss-20b"),
    "Nemotron 3": (assets.nemotron, "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"),
}
"""By the name in the tables: the tokenizer with its template, and the public id by which a renderer is asked for."""

WEATHER = ToolSpec(
    "get_weather",
    "The weather of a city.",
    {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "Its name."}, "days": {"type": "integer"}},
        "required": ["city"],
    },
)
SYSTEM = Message("system", "You answer briefly.")
ASK = Message("user", "What is it like in Paris?")
AGAIN = Message("user", "And in Lyon?")
SAID = Message("assistant", "It rains.")


@attrs.frozen
class Case:
    """A conversation that ends where the model is to speak. ``special``: a control token's text stands in a content."""

    name: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    special: bool = False


def _call(number: int, city: str) -> ToolCall:
    return ToolCall(f"callabc{number:02d}", "get_weather", {"city": city, "days": number + 1})


def _calling(*cities: str, content: str = "", reasoning: str | None = None, first: int = 0) -> Message:
    calls = tuple(_call(first + n, city) for n, city in enumerate(cities))
    return Message("assistant", content, reasoning, tool_calls=calls)


def _answer(number: int, text: str) -> Message:
    return Message("tool", text, tool_call_id=f"callabc{number:02d}", name="get_weather")


def cases(special: str) -> list[Case]:
    """The conversations, with *special* as the text of a control token."""
    tools = (WEATHER,)
    two = _calling("Paris", "Lyon", content="Both of them.")
    thought = Message("assistant", "It rains.", "Paris is in the north.")
    return [
        Case("one question", (ASK,)),
        Case("system prompt", (SYSTEM, ASK)),
        Case("several turns", (SYSTEM, ASK, SAID, AGAIN, Message("assistant", "It is dry.\n\nAnd warm."), ASK)),
        Case("thinking, then the user", (ASK, thought, AGAIN)),
        Case("unicode, emoji", (Message("user", "Zürich, 東京, e\u0301, 👩‍👩‍👧‍👦 and a 🦜?"), SAID, AGAIN)),
        Case("blanks around contents", (Message("user", "  What?\n\n"), Message("assistant", " So.\n"), AGAIN)),
        Case("empty contents", (ASK, Message("assistant", ""), Message("user", ""))),
        Case("tools offered", (SYSTEM, ASK), tools),
        Case("one call", (ASK, _calling("Paris"), _answer(0, "18 degrees")), tools),
        Case("two calls", (SYSTEM, ASK, two, _answer(0, "18 degrees"), _answer(1, "21 degrees")), tools),
        Case("answers out of order", (ASK, two, _answer(1, "21 degrees"), _answer(0, "18 degrees")), tools),
        Case(
            "tool loop with thinking",
            (
                SYSTEM,
                ASK,
                _calling("Paris", reasoning="Paris first."),
                _answer(0, "18 degrees"),
                _calling("Lyon", reasoning="Then Lyon.", first=1),
                _answer(1, "21 degrees"),
            ),
            tools,
        ),
        Case("control token in a question", (Message("user", f"What is {special} for?"),), special=True),
        Case(
            "control token in an answer",
            (ASK, _calling("Paris"), _answer(0, f"18{special}\ndegrees")),
            tools,
            special=True,
        ),
    ]
