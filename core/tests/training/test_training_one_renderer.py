"""A run has one renderer: first turns, later turns, the parser and the rows of demonstrations all use that one object."""

from __future__ import annotations

from collections import Counter

from ferrule.config import load
from ferrule.training import train

SFT = """
[sft]
min_steps = 2
max_steps = 2
round_steps = 1
batch_size = 2
dev_tasks = 2
target = 0.99
"""


async def test_every_use_of_the_renderer_in_a_run_is_of_the_one_object(write, monkeypatch) -> None:
    loaded = load(write(SFT), ["train.steps=2"])
    cls = loaded.config.renderer.cls
    made: list[object] = []
    users: dict[str, set[int]] = {}
    calls: Counter[str] = Counter()
    construct = cls.__init__

    def counted(self, *args, **kwargs):
        made.append(self)
        construct(self, *args, **kwargs)

    monkeypatch.setattr(cls, "__init__", counted)

    def watch(name):
        method = getattr(cls, name)

        def watched(self, *args, **kwargs):
            users.setdefault(name, set()).add(id(self))
            calls[name] += 1
            return method(self, *args, **kwargs)

        monkeypatch.setattr(cls, name, watched)

    for name in ("render", "bridge", "parse", "supervised"):
        watch(name)
    summary = await train(loaded)
    assert summary.status == "done"
    assert len(made) == 1
    assert set(users) == {"render", "bridge", "parse", "supervised"}
    assert set.union(*users.values()) == {id(made[0])}
    assert min(calls.values()) > 0
