"""What is on disk of a session, whatever became of its turns."""

from __future__ import annotations

import resource

import numpy as np
import orjson
import pytest
from ferrule_gateway.store import Store
from ferrule_gateway.trajectories import trajectory_body

from ferrule import FerruleError, Message, Sample, TokenKind, Trajectory
from ferrule.rollout import Ledger


def sample(*ids: int) -> Sample:
    n = len(ids)
    return Sample(np.array(ids, np.int32), np.full(n, -0.5, np.float32), np.full(n, 3, np.int32), "stop")


def taken(ledger: Ledger) -> Trajectory:
    segments = ledger.segments()
    return Trajectory("agent", ledger.steps_in(segments), segments)


def shown(trajectory: Trajectory) -> dict:
    """Segments and steps as a client is shown those of an open session."""
    body = orjson.loads(orjson.dumps(trajectory_body("one", "open", trajectory), option=orjson.OPT_SERIALIZE_NUMPY))
    return {name: body[name] for name in ("segments", "steps")}


def prompt(ledger: Ledger, segment: int, *ids: int) -> None:
    ledger.prompt(segment, np.array(ids, np.int32), np.full(len(ids), TokenKind.SCAFFOLD, np.uint8))


def test_empty_completions_are_read_as_they_stand_whether_gone_on_from_or_sampled_again(tmp_path) -> None:
    store, ledger = Store(tmp_path / "captured"), Ledger()
    writer = store.create("one", {})
    segment = ledger.open()
    prompt(ledger, segment, 5, 6)
    for again, said in ((False, ()), (True, (7,)), (True, ()), (False, ()), (True, (8, 9)), (False, (10,))):
        if again:
            ledger.forget(segment, ledger.steps[-1].start)
        elif ledger.sampled:
            prompt(ledger, segment, 11)
        ledger.sample(segment, sample(*said), Message("assistant", "said"))
        writer.turn(taken(ledger))
        assert store.read("one") == shown(taken(ledger))
    assert [step.stop - step.start for step in ledger.steps] == [0, 2, 1]


def test_a_turn_that_cannot_be_written_leaves_the_file_whole_and_the_next_one_is_whole(tmp_path) -> None:
    store, ledger = Store(tmp_path / "captured"), Ledger()
    writer = store.create("one", {})
    segment = ledger.open()
    prompt(ledger, segment, 5, 6)
    ledger.sample(segment, sample(7), Message("assistant", "one"))
    writer.turn(taken(ledger))
    before = store.read("one")
    prompt(ledger, segment, 8)
    ledger.sample(segment, sample(9), Message("assistant", "two"))
    size = (tmp_path / "captured" / "one.jsonl").stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, limits[1]))
    try:
        with pytest.raises(FerruleError, match=r"one\.jsonl: "):
            writer.turn(taken(ledger))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert store.read("one") == before
    ledger.forget(segment, ledger.steps[-1].start)  # the client asks again
    ledger.sample(segment, sample(10), Message("assistant", "three"))
    writer.turn(taken(ledger))
    assert store.read("one") == shown(taken(ledger))
