"""Segments and demonstrations as training rows."""

from __future__ import annotations

import numpy as np

import ferrule
from ferrule.algorithm import rows_of, supervised_row

P, A, X, S = (int(kind) for kind in ferrule.TokenKind)


def test_every_segment_is_a_row_and_its_arrays_are_the_segment_s_own(make):
    trajectory = make.trajectory("PPAASOOSAA", "PPPPAA")
    rows = rows_of([make.trajectory("PA", name="first"), trajectory], [("a", 4), ("b", 5)])
    assert [(r.trajectory, r.task_id, r.attempt, r.role, r.segment) for r in rows] == [
        (0, "a", 4, "first", 0),
        (1, "b", 5, "agent", 0),
        (1, "b", 5, "agent", 1),
    ]
    for row, segment in zip(rows[1:], trajectory.segments, strict=True):
        for name in ("ids", "kind", "logprobs", "version"):
            assert np.shares_memory(getattr(row, name), getattr(segment, name))
            assert getattr(row, name).flags.c_contiguous


def test_a_view_into_a_longer_buffer_is_not_copied(make):
    long = make.segment("PPAAPPAAPPAA")
    view = ferrule.Segment(long.ids[:6], long.kind[:6], long.logprobs[:6], long.version[:6])
    (row,) = rows_of([ferrule.Trajectory("agent", segments=[view])])
    assert len(row) == 6
    assert row.ids.base is long.ids


def test_other_types_and_strides_become_the_row_s(make):
    strided = np.arange(12)[::2]
    segment = ferrule.Segment(strided, strided.astype(np.int64) % 4, strided.astype(float), strided)
    (row,) = rows_of([ferrule.Trajectory("agent", segments=[segment])])
    assert (row.ids.dtype, row.kind.dtype, row.logprobs.dtype, row.version.dtype) == (
        np.int32,
        np.uint8,
        np.float32,
        np.int32,
    )
    assert row.ids.flags.c_contiguous
    assert row.ids.tolist() == [0, 2, 4, 6, 8, 10]


def test_an_empty_segment_makes_no_row(make):
    assert [row.segment for row in rows_of([make.trajectory("", "PA")])] == [1]
    assert rows_of([]) == []


def test_a_demonstration_s_prompt_is_in_no_mask_and_later_answers_keep_their_kind():
    rendered = ferrule.Rendered(np.arange(8, dtype=np.int32), np.array([S, X, S, A, A, X, S, A], np.uint8))
    row = supervised_row(rendered, "t")
    assert row.kind.tolist() == [P, P, P, A, A, X, S, A]
    assert rendered.kinds.tolist() == [S, X, S, A, A, X, S, A]
    assert row.task_id == "t"
    assert not row.logprobs.any()
    assert (row.version == -1).all()


def test_a_demonstration_without_a_reply_is_all_prompt():
    row = supervised_row(ferrule.Rendered(np.arange(3, dtype=np.int32), np.array([S, X, S], np.uint8)))
    assert row.kind.tolist() == [P, P, P]
