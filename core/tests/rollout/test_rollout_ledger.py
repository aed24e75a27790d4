"""The ledger keeps every token, and what it handed out never changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import Ledger, Message, Sample, TokenKind


def sample(*ids, reason="stop"):
    n = len(ids)
    return Sample(np.array(ids, np.int32), np.full(n, -1.5, np.float32), np.full(n, 4, np.int32), reason)


def prompt(ledger, segment, *ids, kind=TokenKind.OBSERVATION):
    ledger.prompt(segment, np.array(ids, np.int32), np.full(len(ids), kind, np.uint8))


REPLY = Message("assistant", "yes")


def test_everything_before_the_first_sample_is_prompt():
    ledger = Ledger()
    s = ledger.open()
    prompt(ledger, s, 1, 2, 3)
    ledger.sample(s, sample(4, 5), REPLY)
    prompt(ledger, s, 6, 7)
    (segment,) = ledger.segments()
    assert segment.ids.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert segment.kind.tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert segment.logprobs.tolist() == [0, 0, 0, -1.5, -1.5, 0, 0]
    assert segment.version.tolist() == [-1, -1, -1, 4, 4, -1, -1]
    assert ledger.response_tokens == 4


def test_steps_hold_their_place_in_the_segments():
    ledger = Ledger()
    first = ledger.open()
    prompt(ledger, first, 1, 2)
    assert ledger.sample(first, sample(3), REPLY) == 0
    second = ledger.open()
    prompt(ledger, second, 9)
    assert ledger.sample(second, sample(8, 7, reason="length"), REPLY, "truncated") == 1
    one, two = ledger.steps
    assert (one.segment_index, one.start, one.stop, one.prompt_length) == (0, 2, 3, 2)
    assert (two.segment_index, two.stop_reason, two.status, two.version) == (1, "length", "truncated", 4)
    assert two.completion.tolist() == [8, 7]
    assert two.logprobs.tolist() == [-1.5, -1.5]


def test_an_empty_completion_is_a_step_without_tokens():
    ledger = Ledger()
    s = ledger.open()
    prompt(ledger, s, 1)
    ledger.sample(s, sample(), REPLY)
    (step,) = ledger.steps
    assert (step.start, step.stop, step.version) == (1, 1, -1)


def test_cropping_forgets_the_steps_beyond_and_leaves_earlier_views_alone():
    ledger = Ledger()
    s = ledger.open()
    prompt(ledger, s, 1, 2)
    ledger.sample(s, sample(3, 4), REPLY)
    before = ledger.tokens(s)
    ledger.crop(s, 2)
    assert ledger.sampled == 0
    ledger.sample(s, sample(5, 6), REPLY)
    assert before.tolist() == [1, 2, 3, 4]
    assert ledger.tokens(s).tolist() == [1, 2, 5, 6]
    with pytest.raises(ValueError):
        ledger.crop(s, 5)


def test_a_segment_cut_to_nothing_is_gone():
    ledger = Ledger()
    s = ledger.open()
    prompt(ledger, s, 1, 2)
    ledger.crop(s, 0)
    assert ledger.segments() == ()


def test_what_it_hands_out_cannot_be_written():
    ledger = Ledger()
    s = ledger.open()
    prompt(ledger, s, 1)
    for array in (ledger.tokens(s), ledger.segments()[0].kind):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 5
    prompt(ledger, s, 2)
    assert ledger.tokens(s).tolist() == [1, 2]


@given(st.lists(st.tuples(st.sampled_from(["prompt", "sample", "crop"]), st.integers(0, 900)), max_size=30))
def test_growing_and_cropping_agree_with_plain_lists(operations):
    ledger = Ledger()
    s = ledger.open()
    prompt(ledger, s, 0)
    ledger.sample(s, sample(0), REPLY)
    ids, kinds, views = [0, 0], [0, 1], []
    for what, n in operations:
        if what == "crop":
            length = 1 + n % len(ids)
            ids, kinds = ids[:length], kinds[:length]
            ledger.crop(s, length)
        else:
            new = list(range(n))
            if what == "sample":
                ledger.sample(s, sample(*new), REPLY)
            elif ledger.sampled:
                prompt(ledger, s, *new)
            else:
                continue
            ids += new
            kinds += [TokenKind.ACTION if what == "sample" else TokenKind.OBSERVATION] * n
        views.append((ledger.tokens(s), list(ids)))
    (segment,) = ledger.segments()
    assert segment.ids.tolist() == ids
    assert segment.kind.tolist() == kinds
    assert ledger.response_tokens == np.count_nonzero(kinds)
    for view, then in views:
        assert view.tolist() == then
