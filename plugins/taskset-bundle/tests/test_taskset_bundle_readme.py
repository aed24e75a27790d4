from __future__ import annotations

import re
from pathlib import Path

import pytest
from ferrule_taskset_bundle import BundleError, BundleTaskset

from ferrule import Message, Play

README = Path(__file__).parents[1] / "README.md"


async def test_the_bundle_in_the_readme_is_played_by_its_gold(tmp_path):
    blocks = re.findall(r"```(?:toml|python)\n# my-bundle/(\S+)\n(.*?)```", README.read_text("utf-8"), re.S)
    assert [name for name, _ in blocks] == ["bundle.toml", "sums.py"]
    for name, text in blocks:
        (tmp_path / name).write_text(text)
    (task,) = BundleTaskset(BundleTaskset.Config(path=tmp_path)).tasks("train")
    async with Play(task) as play:
        turn = await play.next_turn()
        assert turn.prompt == "What is 2 + 3? Use the tool, then reply."
        add, reply = (Message.from_openai(message) for message in task.metadata["gold"])
        turn.record(add)
        (answer,) = await turn.call(add.tool_calls)
        assert answer.content == reply.content == "5"
        turn.record(reply)
        await turn.end(reply)
        assert await play.next_turn() is None
        assert (await play.result()).reward == 1.0


def test_the_readme_lists_every_key(tmp_path):
    """The unknown-key error names all keys that are known: none of them may be missing from the table."""
    (tmp_path / "bundle.toml").write_text(
        'qqqq = 1\n[sandbox]\nqqqq = 1\n[bash]\nqqqq = 1\n[splits.s]\nqqqq = 1\n[[tasks]]\nid = "a"\nprompt = "x"\nqqqq = 1\n'
    )
    with pytest.raises(BundleError) as caught:
        BundleTaskset(BundleTaskset.Config(path=tmp_path))
    text = README.read_text("utf-8")
    named = {
        key for mistake in caught.value.mistakes for key in mistake.partition("known here: ")[2].split(", ") if key
    }
    assert {"python", "needs_isolation", "output_limit", "generate", "params"} <= named
    assert not {key for key in named if key not in text}
