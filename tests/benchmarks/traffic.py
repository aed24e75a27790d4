"""An agent's traffic, made up: text that cuts into tokens like logs, code and prose, and conversations of it."""

from __future__ import annotations

import json
import random
from typing import Any

Wire = dict[str, Any]
"""A message, or a tool's declaration, in OpenAI's form (a call's arguments as an object)."""

WORDS = """
the of to and in that is for was on are with they be at one have this from or had by not but what all were when
we there can request response server client parser buffer value index table column schema query result error
warning failed timeout retry session token model prompt policy reward rollout sample batch gradient optimizer
checkpoint function method argument return import module package version release branch commit merge conflict
test assert expected actual missing configuration environment variable directory permission denied connection
process thread memory cache latency throughput handler middleware router endpoint payload
""".split()  # noqa: SIM905 (a list of one word a line is no easier to read)
TOOLS: list[Wire] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": properties, "required": sorted(properties)[:1]},
        },
    }
    for name, description, properties in (
        (
            "bash",
            "Run a shell command in the sandbox and return its output.",
            {
                "command": {"type": "string", "description": "The command line to run."},
                "timeout": {"type": "integer", "description": "Seconds before it is stopped."},
            },
        ),
        (
            "edit",
            "Replace a string in a file.",
            {"path": {"type": "string"}, "old": {"type": "string"}, "new": {"type": "string"}},
        ),
    )
]


def written(r: random.Random, size: int, code: bool = True) -> str:
    """Made-up text of about *size* characters that cuts into tokens like an agent's traffic."""
    parts: list[str] = []
    while sum(map(len, parts)) < size:
        a, b, c = (r.choice(WORDS) + "_" + r.choice(WORDS)[:3] for _ in range(3))
        if not code or r.random() < 0.5:
            words = [r.choice(WORDS) for _ in range(r.randint(6, 16))]
            parts.append(" ".join(words).capitalize() + r.choice([". ", "; ", "?\n", ".\n\n"]))
            continue
        parts.append(
            r.choice(
                [
                    f"    {a} = {b}({c}, {r.randint(0, 9999)})\n",
                    f'def {a}({b}: int, {c}: str = "{r.choice(WORDS)}") -> None:\n',
                    f"    if {a}.{b} is not None and {c} >= {r.random():.4f}:\n        return {b}\n",
                    f'  File "/srv/app/{a}/{b}.py", line {r.randint(1, 900)}, in {c}\n',
                    f"[2026-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}T{r.randint(0, 23):02d}:00:{r.randint(0, 59):02d}Z]"
                    f" WARN {a}: {r.choice(WORDS)} id={r.getrandbits(48):012x}\n",
                    json.dumps({a: r.randint(0, 99999), b: r.choice(WORDS), "ok": True}) + "\n",
                    f"-rw-r--r-- 1 app app {r.randint(10, 999999)} Jan {r.randint(1, 28)} {a}/{b}.py\n",
                ]
            )
        )
    return "".join(parts).strip()


def conversation(turns: int, seed: int = 7) -> list[Wire]:
    """System, user, then *turns* of (assistant: reasoning, text, one call; tool), about 320 tokens a turn."""
    r = random.Random(seed)
    out: list[Wire] = [
        {"role": "system", "content": "You are a careful software agent.\n" + written(r, 600, False)},
        {"role": "user", "content": written(r, 900)},
    ]
    for n in range(turns):
        arguments = {"command": written(r, 60).splitlines()[0].strip(), "timeout": r.randint(1, 600)}
        call = {"type": "function", "id": f"call_{n}", "function": {"name": "bash", "arguments": arguments}}
        out.append(
            {
                "role": "assistant",
                "reasoning_content": written(r, 280, False),
                "content": written(r, 110, False),
                "tool_calls": [call],
            }
        )
        out.append({"role": "tool", "name": "bash", "tool_call_id": f"call_{n}", "content": written(r, 565)})
    return out


def completion(message: Wire) -> str:
    """What a model of Qwen3's format samples where it writes as the template does."""
    call = message["tool_calls"][0]["function"]
    arguments = json.dumps(call["arguments"], ensure_ascii=False)
    return (
        f"<think>\n{message['reasoning_content']}\n</think>\n\n{message['content']}\n"
        f'<tool_call>\n{{"name": "{call["name"]}", "arguments": {arguments}}}\n</tool_call><|im_end|>'
    )
