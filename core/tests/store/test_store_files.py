"""Lines that survive a killed writer, episodes bit for bit, names that lead nowhere else."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ferrule
from ferrule.store import (
    Index,
    RunStore,
    episode_from_line,
    episode_to_line,
    find_episode,
    list_runs,
    new_run_id,
    run_folder,
)
from ferrule.store import runs as runs_module
from ferrule.store.jsonl import JsonLines, dumps, lines, read_at, repair, set_aside


def episode(name: str = "t#0", group: str = "train/step-1", reward: float | None = 0.5) -> ferrule.Episode:
    return ferrule.Episode(
        f"{group}/{name}", name.split("#")[0], 0, group=group, reward=reward, termination=ferrule.Termination.ENV_DONE
    )


@given(st.lists(st.text(max_size=20), max_size=6), st.integers(0, 400))
@settings(deadline=None)
def test_of_a_file_torn_anywhere_the_whole_lines_are_left(tmp_path_factory, texts, cut) -> None:
    path = tmp_path_factory.mktemp("torn") / "a.jsonl"
    file = JsonLines(path)
    ends = [0]
    for text in texts:
        file.append(dumps({"text": text}))
        ends.append(file.size)
    file.close()
    if not texts:
        return
    os.truncate(path, min(cut, ends[-1]))
    whole = sum(end <= min(cut, ends[-1]) for end in ends[1:])
    assert [line["text"] for _, line in lines(path)] == texts[:whole]
    repair(path)
    assert path.stat().st_size == ends[whole]
    again = JsonLines(path)
    offset = again.append(dumps({"text": "next"}))
    assert read_at(path, offset) == {"text": "next"}
    again.close()


def test_a_tail_is_set_aside_once_however_often_it_is_asked(tmp_path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"n":1}\n{"n":2}\n{"n":3}\n')
    aside = set_aside(path, 8)
    assert aside is not None
    assert aside.read_text() == '{"n":2}\n{"n":3}\n'
    assert path.read_text() == '{"n":1}\n'
    assert set_aside(path, 8) is None
    path.write_text('{"n":1}\n{"n":2}\n{"n":3}\n')  # killed after the copy, before the cut
    assert set_aside(path, 8) == aside
    path.write_text('{"n":1}\n{"n":4}\n')
    second = set_aside(path, 8)
    assert second != aside
    assert second.read_text() == '{"n":4}\n'


def test_what_is_not_finite_is_null_and_arrays_are_lists() -> None:
    assert json.loads(
        dumps({"a": float("nan"), "b": [float("inf"), 1.5], "c": np.arange(2), "d": np.float32(0.5)})
    ) == {
        "a": None,
        "b": [None, 1.5],
        "c": [0, 1],
        "d": 0.5,
    }


@given(st.data())
@settings(deadline=None, max_examples=50)
def test_an_episode_comes_back_bit_for_bit(data) -> None:
    size = data.draw(st.integers(1, 30))
    kind = np.array(data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)), np.uint8)
    action = kind == ferrule.TokenKind.ACTION
    floats = st.floats(-(2.0**90), 0, width=32)
    logprobs = np.where(
        action, np.array(data.draw(st.lists(floats, min_size=size, max_size=size)), np.float32), np.float32(0)
    )
    version = np.where(
        action, np.array(data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)), np.int32), -1
    )
    segment = ferrule.Segment(np.arange(size, dtype=np.int32), kind, logprobs, version.astype(np.int32))
    call = ferrule.ToolCall("c1", "f", {"x": "19122"}, error="bad", raw="<f>")
    message = ferrule.Message("assistant", data.draw(st.text()), "thought", (call,))
    step = ferrule.Step(segment, 0, 0, size, "length", message, "truncated", 3)
    trajectory = ferrule.Trajectory("agent", (step,), (segment,), None, {"s": 1.0}, {"resets": 0})
    before = ferrule.Episode(
        "e",
        "t",
        2,
        (trajectory,),
        ferrule.Termination.TIMEOUT,
        {"a": 0.5},
        None,
        (message,),
        {"cut": 1.0},
        {},
        ferrule.Failure.CANCELLED,
        "why",
        "train/step-1",
    )
    after = episode_from_line(json.loads(dumps(episode_to_line(before, lambda ids: "|".join(map(str, ids.tolist()))))))
    (again,) = after.trajectories[0].segments
    for name in ("ids", "kind", "logprobs", "version"):
        left, right = getattr(segment, name), getattr(again, name)
        assert left.dtype == right.dtype
        assert left.tobytes() == right.tobytes()
    assert after.messages == before.messages
    assert (after.failure, after.termination, after.scores, after.error) == (
        before.failure,
        before.termination,
        before.scores,
        "why",
    )
    assert after.trajectories[0].steps[0].stop_reason == "length"


def test_two_runs_of_one_second_and_one_draw_do_not_collide(tmp_path, monkeypatch) -> None:
    drawn = iter(["same-20260101-000000-aaaa", "same-20260101-000000-aaaa", "same-20260101-000000-bbbb"])
    monkeypatch.setattr(runs_module, "new_run_id", lambda name: next(drawn))
    first = RunStore.create(tmp_path, "same", {}, {})
    second = RunStore.create(tmp_path, "same", {}, {})
    assert first.id != second.id
    assert {run.run for run in list_runs(tmp_path)} == {first.id, second.id}
    for store in (first, second):
        store.close()


def test_a_name_is_made_of_what_a_path_may_hold() -> None:
    stamp = datetime.now(UTC).strftime("%Y%m%d")
    for name in ("../../etc", "a/b\\c", "..", "exp@lr#3", "näme", "", "a\nb", "%2e%2e"):
        made = new_run_id(name)
        assert not set(made) & set("/\\\n%\0")
        assert ".." not in made
        assert stamp in made
    assert new_run_id("exp@lr#3").startswith("exp@lr#3-")


def test_an_id_may_hold_at_and_hash_written_as_they_are_or_encoded(tmp_path) -> None:
    store = RunStore.create(tmp_path, "exp@lr#3", {}, {})
    store.close()
    assert run_folder(tmp_path, store.id) == store.dir
    assert run_folder(tmp_path, store.id.replace("@", "%40").replace("#", "%23")) == store.dir


@pytest.mark.parametrize(
    "text",
    ["..", ".", "", "../x", "%2e%2e", "%252e%252e", "%2e%2e%2fx", "a%2fb", "a\\b", "a\0b", "/abs", "%25252525252e"],
)
def test_an_id_that_leads_elsewhere_is_refused_after_decoding(tmp_path, text) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "manifest.json").write_text("{}")
    with pytest.raises(ferrule.FerruleError):
        run_folder(tmp_path / "runs", text)


def test_a_link_out_of_the_folder_of_runs_is_refused(tmp_path) -> None:
    outside = RunStore.create(tmp_path / "elsewhere", "x", {}, {})
    outside.close()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "linked").symlink_to(outside.dir)
    with pytest.raises(ferrule.FerruleError, match="outside"):
        run_folder(tmp_path / "runs", "linked")


def test_secrets_are_out_of_the_manifest_and_the_configuration_is_its_owners_alone(tmp_path) -> None:
    raw = {"trainer": {"use": "remote", "api_key": "tml-secret"}, "sampling": {"max_tokens": 5}}
    store = RunStore.create(tmp_path, "s", raw, {})
    assert "tml-secret" not in (store.dir / "manifest.json").read_text()
    assert store.manifest["config"]["sampling"] == {"max_tokens": 5}
    assert store.config_raw == raw
    assert stat.S_IMODE((store.dir / "config.json").stat().st_mode) == 0o600
    store.close()


def test_state_is_replaced_whole(tmp_path) -> None:
    store = RunStore.create(tmp_path, "s", {}, {})
    assert store.load_state() is None
    store.save_state({"step": 1})
    store.save_state({"step": 2})
    assert store.load_state() == {"step": 2}
    assert not list(store.dir.glob(".*.tmp"))
    (store.dir / "state.json").write_text("{")
    with pytest.raises(ferrule.CheckpointError, match="cannot be read"):
        store.load_state()
    store.close()


def test_a_rewind_marks_what_came_later_as_abandoned_and_it_can_be_filed_again(tmp_path) -> None:
    store = RunStore.create(tmp_path, "s", {}, {})
    store.file_episode(episode("a#0"))
    store.write_metrics("train", 1, {"x": 1.0})
    mark = store.mark()
    store.file_episode(episode("b#0", "train/step-2"))
    store.file_episode(episode("c#0", "eval/step-2"))
    store.write_metrics("train", 2, {"x": 2.0})
    rewound = store.rewind(mark)
    assert (rewound.episodes, rewound.metrics) == (2, 1)
    assert [line["step"] for line in store.metrics()] == [1]
    store.file_episode(episode("b#0", "train/step-2", 0.75))
    rows = {(row.path, row.status): row for row in store.index.find(run=store.id)}
    assert set(rows) == {
        ("train/step-1", "filed"),
        ("train/step-2", "abandoned"),
        ("train/step-2", "filed"),
        ("eval/step-2", "abandoned"),
    }
    assert store.read_episode(rows["train/step-2", "abandoned"])["reward"] == 0.5
    assert store.read_episode(rows["train/step-2", "filed"])["reward"] == 0.75
    assert store.rewind(store.mark()).episodes == 0
    store.close()
    row, line = find_episode(tmp_path, f"{store.id}/train/step-2/b#0")
    assert (row.status, line["reward"]) == ("filed", 0.75)


def test_an_id_that_several_runs_have_is_told_apart(tmp_path) -> None:
    stores = [RunStore.create(tmp_path, name, {}, {}) for name in ("one", "two")]
    for store in stores:
        store.file_episode(episode())
        store.close()
    with pytest.raises(ferrule.FerruleError, match="several runs"):
        find_episode(tmp_path, "train/step-1/t#0")
    row, _ = find_episode(tmp_path, f"{stores[1].id}/train/step-1/t#0")
    assert row.run == stores[1].id


def test_paths_are_found_with_what_lies_below_them_and_no_others(tmp_path) -> None:
    store = RunStore.create(tmp_path, "s", {}, {})
    for group in ("train/step-1", "train/step-10", "train/step-1/x"):
        store.file_episode(episode("t#0", group))
    assert [row.path for row in store.index.find(run=store.id, path="train/step-1")] == [
        "train/step-1",
        "train/step-1/x",
    ]
    store.close()


def test_several_processes_write_one_index(tmp_path) -> None:
    code = (
        "import sys, ferrule\nfrom pathlib import Path\nfrom ferrule.store import RunStore\n"
        "s = RunStore.create(Path(sys.argv[1]), 'p', {}, {})\n"
        "for i in range(100):\n"
        "    s.file_episode(ferrule.Episode(f'train/step-1/{i}', str(i), 0, group='train/step-1', reward=1.0))\n"
        "s.set_status('done')\ns.close()\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(3)]
    assert [p.wait(60) for p in processes] == [0, 0, 0]
    index = Index(tmp_path)
    assert len(index.find(status="filed")) == 300
    index.close()
    assert [run.status for run in list_runs(tmp_path)] == ["done"] * 3


def test_a_file_that_is_no_index_is_named(tmp_path) -> None:
    (tmp_path / "index.sqlite").write_text("no database at all, and long enough to be taken for one" * 10)
    with pytest.raises(ferrule.FerruleError, match="not a readable index"):
        Index(tmp_path)


def test_a_folder_that_is_no_run_is_not_listed(tmp_path) -> None:
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "manifest.json").write_text("[]")
    assert list_runs(tmp_path) == []
    assert list_runs(Path(tmp_path / "nowhere")) == []


def test_runs_of_one_second_are_listed_in_the_order_in_which_they_began(tmp_path) -> None:
    began = []
    for _ in range(8):
        store = RunStore.create(tmp_path, "run", {}, {})
        store.close()
        began.append(store.id)
    assert [run.run for run in list_runs(tmp_path)] == began
