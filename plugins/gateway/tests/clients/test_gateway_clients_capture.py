"""Real clients against a gateway with real samplers behind it: what is captured is what was sampled, and what the client
was told.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ferrule
from ferrule import Message, SamplingParams, ToolSpec

CLIENTS = (
    "openai_sync",
    "openai_sync_stream",
    "openai_async",
    "openai_async_stream",
    "litellm_whole",
    "litellm_stream",
    "curl",
    "curl_stream",
)


@pytest.fixture(params=["local", "calls", "xllamacpp"])
def behind(request, kit, tmp_path, scripted) -> Any:
    """What is behind the gateway, yet to be started."""
    if request.param == "local":
        return kit.local(tmp_path)
    return kit.calls(scripted) if request.param == "calls" else kit.xllamacpp(request.getfixturevalue("llama_url"))


@pytest.mark.parametrize("client", CLIENTS)
async def test_what_a_real_client_was_told_was_sampled_and_is_captured_as_one_row(
    request, kit, behind, litellm_worker, client: str
) -> None:
    async with behind as source, kit.serving(source) as gateway:
        messages = await kit.talk(kit.session(gateway, "one", litellm_worker), getattr(kit.drivers, client))
        trajectory = await kit.captured(gateway, "one")
        said = source.said()
    kit.assert_captured(trajectory, said)
    assert len(trajectory["segments"]) == 1, "each prompt goes on from the tokens of the last"
    replies = [m for m in messages if m["role"] == "assistant"]
    for reply, step in zip(replies, trajectory["steps"], strict=True):
        assert (reply.get("content") or "") == (step["message"]["content"] or "")
        assert [c["function"] for c in reply.get("tool_calls") or ()] == [
            c["function"] for c in step["message"].get("tool_calls") or ()
        ]
    if "calls" in request.node.callspec.id:
        assert [len(reply.get("tool_calls") or ()) for reply in replies] == [2, 1, 1, 0, 0, 0]
    else:
        assert len(replies) == len(kit.USERS)


async def test_the_rows_of_every_client_are_those_of_a_session_in_the_process(kit, tmp_path, litellm_worker) -> None:
    """With the same seed the local trainer samples the same, so that whole rows can be compared."""
    rows = {}
    async with kit.local(tmp_path) as local:
        async with kit.serving(local) as gateway:
            for client in CLIENTS:
                await kit.talk(kit.session(gateway, client, litellm_worker), getattr(kit.drivers, client))
                rows[client] = (await kit.captured(gateway, client))["segments"]
                await gateway.remove(client)
        params = SamplingParams(max_tokens=local.max_tokens, stop_ids=local.renderer.stop_ids)
        async with local.sampler.open("direct", seed=11) as engine:
            direct = ferrule.Session(local.renderer, engine, vocab_size=local.vocab_size)
            messages, tools = [Message("system", "Be brief.")], [ToolSpec.from_openai(kit.WEATHER)]
            for user in kit.USERS:
                messages.append(Message("user", user))
                reply = await direct.reply(messages, tools, params, lambda length, cut: 2048 - length)
                messages.append(reply.message)
    (segment,) = direct.trajectory(None).segments
    for name, segments in rows.items():
        assert len(segments) == 1, name
        assert segments[0]["ids"] == segment.ids.tolist(), name
        assert segments[0]["kinds"] == segment.kind.tolist(), name
        assert segments[0]["versions"] == segment.version.tolist(), name
        assert np.array_equal(np.array(segments[0]["logprobs"], np.float32), segment.logprobs), name
