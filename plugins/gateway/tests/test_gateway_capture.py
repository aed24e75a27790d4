"""What a session captures is, token for token, what the sampler was shown and what it sampled."""

from __future__ import annotations

import numpy as np

END = "<|im_end|>"


def words(prompt: str, number: int, key: str) -> str:
    return f"<think>\nthought {number}\n</think>\n\nanswer {number}{END}"


async def test_a_conversation_is_one_segment_of_exactly_what_was_shown_and_sampled(serve) -> None:
    served = await serve(words)
    id_ = await served.session()
    messages = [{"role": "user", "content": "hello"}]
    for turn in range(3):
        status, out = await served.chat(id_, messages)
        assert status == 200
        message = out["choices"][0]["message"]
        assert message["content"] == f"answer {turn}"
        messages += [message, {"role": "user", "content": f"more {turn}"}]
    trajectory = await served.trajectory(id_)
    assert len(trajectory["steps"]) == 3
    for step, prompt, sample in zip(
        trajectory["steps"], served.sampler.prompts[id_], served.sampler.samples[id_], strict=True
    ):
        segment = trajectory["segments"][step["segment"]]
        assert segment["ids"][: step["start"]] == prompt.tolist()
        assert segment["ids"][step["start"] : step["stop"]] == sample.ids.tolist()
        assert np.allclose(segment["logprobs"][step["start"] : step["stop"]], sample.logprobs)
        assert segment["versions"][step["start"] : step["stop"]] == [7] * len(sample.ids)
