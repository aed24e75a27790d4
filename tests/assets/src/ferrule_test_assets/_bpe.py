"""From a list of ranked byte strings to a fast tokenizer, and from that to a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers


def _letters() -> list[str]:
    """The printable character that byte-level BPE writes for each byte (GPT-2's table)."""
    plain = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    odd = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(odd)) for b in range(256)]


LETTERS = _letters()


def spell(piece: bytes) -> str:
    """*piece* as a byte-level vocabulary writes it."""
    return "".join(LETTERS[b] for b in piece)


def merges_of(ranks: Mapping[bytes, int]) -> list[tuple[str, str]]:
    """The merges behind *ranks*, in order.

    A file of ranks tells which piece two others make, not which two. Every split into two known pieces is listed, at
    the rank of the whole: of those only such whose halves can arise are ever used.
    """
    merges = []
    for piece, rank in ranks.items():
        splits = [
            (ranks[left], ranks[right], left, right)
            for left, right in ((piece[:i], piece[i:]) for i in range(1, len(piece)))
            if left in ranks and right in ranks
        ]
        merges += [(rank, *split) for split in splits]
    merges.sort(key=lambda m: m[:3])
    return [(spell(left), spell(right)) for _, _, _, left, right in merges]


def byte_level(
    ranks: Mapping[bytes, int], patterns: Sequence[str], *, nfc: bool = False, ignore_merges: bool = False
) -> Tokenizer:
    """A byte-level BPE: text is cut by each of *patterns* in turn, and each piece merged by rank."""
    vocab = {spell(piece): rank for piece, rank in ranks.items()}
    return assemble(vocab, merges_of(ranks), patterns, nfc=nfc, ignore_merges=ignore_merges)


def assemble(
    vocab: dict[str, int],
    merges: list[tuple[str, str]],
    patterns: Sequence[str],
    *,
    nfc: bool = False,
    ignore_merges: bool = False,
) -> Tokenizer:
    """A byte-level BPE of a vocabulary and merges that are spelled in letters already."""
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=ignore_merges))
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    cuts: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]
    cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def add_tokens(tokenizer: Tokenizer, tokens: Mapping[int, tuple[str, bool]]) -> None:
    """Add *tokens* (id to text and whether it is special) after the vocabulary, which they must continue."""
    for number, (text, special) in sorted(tokens.items()):
        token = AddedToken(text, special=special, normalized=False)
        if special:
            tokenizer.add_special_tokens([token])
        else:
            tokenizer.add_tokens([token])
        if tokenizer.token_to_id(text) != number:
            raise ValueError(f"{text} became {tokenizer.token_to_id(text)}, not {number}")


def save(
    folder: Path,
    tokenizer: Tokenizer,
    template: str | None,
    *,
    eos: str,
    pad: str,
    bos: str | None = None,
    unk: str | None = None,
    stops: Sequence[str] = (),
    length: int,
) -> None:
    """Write what ``AutoTokenizer.from_pretrained`` reads, and which tokens the model stops at (*eos* unless said)."""
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": bos,
        "clean_up_tokenization_spaces": False,
        "eos_token": eos,
        "model_max_length": length,
        "pad_token": pad,
        # The class that takes tokenizer.json as it stands; a model's own class would rebuild it.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": unk,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, ensure_ascii=False, indent=2), encoding="utf-8")
    ends = {
        "eos_token_id": [tokenizer.token_to_id(s) for s in stops or [eos]],
        "pad_token_id": tokenizer.token_to_id(pad),
    }
    (folder / "generation_config.json").write_text(json.dumps(ends), encoding="utf-8")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
