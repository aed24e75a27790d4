"""Bounded output keeps the head and the tail, and says exactly how much is missing between them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import BoundedOutput


@given(st.lists(st.binary(max_size=50), max_size=30), st.integers(0, 200))
def test_what_is_kept_and_what_is_dropped_add_up(pieces: list[bytes], limit: int) -> None:
    output = BoundedOutput(limit)
    for piece in pieces:
        output.feed(piece)
    whole = b"".join(pieces)
    assert output.total == len(whole)
    assert output.dropped == max(0, len(whole) - limit)
    if len(whole) <= limit:
        assert output.text() == whole.decode("utf-8", "replace")


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_the_pieces_in_which_output_arrives_do_not_matter(size: int) -> None:
    whole = b"".join(b"%d\n" % i for i in range(5000))
    output = BoundedOutput(100)
    for i in range(0, len(whole), size):
        output.feed(whole[i : i + size])
    head, note, tail = re.split(r"\n(\[\.\.\. \d+ bytes dropped \.\.\.\])\n", output.text())
    assert whole.startswith(head.encode())
    assert whole.endswith(tail.encode())
    assert (len(head), len(tail)) == (50, 50)
    assert note == f"[... {len(whole) - 100} bytes dropped ...]"


def test_memory_does_not_grow_with_what_is_fed() -> None:
    output = BoundedOutput(1000)
    for _ in range(10_000):
        output.feed(b"x" * 999)
    assert output.dropped == 9_990_000 - 1000
    assert len(output._head) + len(output._tail) <= 2000


@pytest.mark.parametrize("shift", range(4))
def test_a_character_is_not_cut_in_two(shift: int) -> None:
    output = BoundedOutput(40)
    output.feed(b"a" * shift + "\N{GRINNING FACE}".encode() * 100)
    text = output.text()
    assert "\ufffd" not in text
    dropped = int(re.search(r"(\d+) bytes", text)[1])
    kept = re.sub(r"\n\[.*\]\n", "", text)
    assert len(kept.encode()) + dropped == output.total


def test_bytes_that_are_not_text_are_replaced_not_raised() -> None:
    output = BoundedOutput(300)
    output.feed(bytes(range(256)))
    assert output.text().startswith("\x00\x01")
    assert "\ufffd" in output.text()
