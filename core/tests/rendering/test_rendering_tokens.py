"""Text to tokens with control tokens kept literal, the kinds of tokens, and where the malformed pieces stand."""

from __future__ import annotations

import numpy as np
import pytest

from ferrule import Encoder, ReplyParser, TokenKind, clean_text, token_kinds

tokenizers = pytest.importorskip("tokenizers")

TAGS = ("<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")


@pytest.fixture(scope="module")
def encoder():
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_tokens([tokenizers.AddedToken(tag, special=tag == "<|im_end|>", normalized=False) for tag in TAGS])
    return Encoder(backend)


def test_a_guarded_control_token_stays_text_and_comes_back_whole(encoder):
    text = "a<|im_end|>b<|im_end|>"
    tokens = encoder.tokenize(text, guards=[(0, 12, frozenset())])
    end = encoder.ids_of["<|im_end|>"]
    assert tokens.ids.count(end) == 1
    assert tokens.ids[-1] == end
    assert encoder.decode(tokens.ids) == text
    assert "".join(text[a:b] for a, b in zip(tokens.starts, tokens.ends, strict=True)) == text


def test_kinds_follow_contents_save_blanks_shared_with_the_template(encoder):
    text = "user\nhi <tool_call>\n"
    tokens = encoder.tokenize(text)
    kinds = token_kinds(text, tokens, [(5, 7)])
    said = [k == TokenKind.OBSERVATION for k in kinds]
    assert said == [5 <= a < 7 for a in tokens.starts]


def test_ids_that_are_no_tokens_are_shown_and_lone_surrogates_replaced(encoder):
    assert encoder.decode([encoder.ids_of["<think>"], 10**6]) == "<think>\ufffd"
    assert clean_text("a\ud800b") == "a?b"


def test_the_spans_of_what_is_malformed_are_tokens_of_the_completion(encoder):
    parser = ReplyParser(encoder, frozenset({encoder.ids_of["<|im_end|>"]}))
    ids = encoder.encode("x<tool_call>{]</tool_call>y<|im_end|>")
    parsed = parser.parse(ids, (), ())
    (problem,) = parsed.problems
    assert encoder.decode(ids[slice(*problem.span)]) == "<tool_call>{]</tool_call>"
    assert (parsed.status, parsed.closed, parsed.message.content) == ("malformed", True, "x\ny")


def test_a_think_block_that_is_ended_at_once_has_the_stop_token_as_its_span(encoder):
    end = encoder.ids_of["<|im_end|>"]
    parsed = ReplyParser(encoder, frozenset({end})).parse([end], (), ("think",))
    assert [p.span for p in parsed.problems] == [(0, 1)]
    assert not parsed.closed


def test_no_ids_make_the_parser_raise(encoder):
    parser = ReplyParser(encoder, frozenset({encoder.ids_of["<|im_end|>"]}))
    random = np.random.default_rng(0)
    for _ in range(300):
        ids = random.integers(-2, encoder.size + 3, int(random.integers(0, 30))).tolist()
        parsed = parser.parse(ids, (), ("think",) if ids and ids[0] % 2 else ())
        assert parsed.message.role == "assistant"
        assert all(0 <= p.span[0] < p.span[1] <= len(ids) for p in parsed.problems)


@pytest.fixture(scope="module")
def spelling():
    """An encoder whose vocabulary has no tags: they are spelled, byte by byte."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_tokens([tokenizers.AddedToken("<|im_end|>", special=True, normalized=False)])
    return Encoder(backend)


def test_spelled_tags_have_the_spans_of_their_tokens_whatever_stands_around(spelling):
    parser = ReplyParser(spelling, frozenset({spelling.ids_of["<|im_end|>"]}))
    before, call, after = "é日</think>🙂", "<tool_call>{é]</tool_call>", "日<|im_end|>"
    ids = spelling.encode(before + call + after)
    parsed = parser.parse(ids, (), ("think",))
    (problem,) = parsed.problems
    start = len(spelling.encode(before))
    assert problem.span == (start, start + len(spelling.encode(call)))
    cut = ids[: start - 1]  # the last character lacks its last byte
    assert parser.parse(cut, (), ("think",)).message.reasoning == "é日"


@pytest.mark.parametrize("unit", ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_call></tool_call>"])
def test_a_reply_of_nothing_but_spelled_tags_costs_what_its_length_costs(spelling, unit):
    parser = ReplyParser(spelling, frozenset())
    decoded = []
    decode, spelling.decode = spelling.decode, lambda ids: decoded.append(len(ids)) or decode(ids)
    try:
        ids = spelling.encode(unit * 500)
        parser.parse(ids, (), ())
    finally:
        del spelling.decode
    assert sum(decoded) < 3 * len(ids)


@pytest.mark.parametrize(
    ("text", "opened", "left"),
    [
        ("<think>a<tool_call>b", (), "<think>"),
        ("<think>a</think><tool_call>b<think>", (), "<tool_call>"),
        ("<think>a<tool_call></think>b", (), ""),
        ("<tool_call>b</tool_call>", (), ""),
        ("a", ("think",), "<think>"),
        ("a</think>b", ("think",), ""),
    ],
)
def test_the_block_left_open_is_the_outer_one_be_tags_tokens_or_spelled(encoder, spelling, text, opened, left):
    for each in (encoder, spelling):
        assert each.open_block(each.encode(text), opened) == left
