"""Builds the recipe's tokenizer from its demonstrations: ``python -m ferrule_gridsim.tokenizer``.

A byte-level BPE of some hundred pieces, in which digits and capital letters are pieces of their own (a model this small
learns to copy prices only where each is one token) and the tags of the chat template are special tokens.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import demonstrations, home

SPECIALS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
PIECES = 512
"""At most so many; training stops earlier where nothing is left to merge."""

SPLIT = r" ?[A-Z][a-z]{3,}| ?[a-z_]+|[A-Z]|\d|[^A-Za-z\d]+?(?= [a-z])|[^A-Za-z\d]+"
"""No piece crosses these borders: words, single capital letters, single digits, runs of anything else."""


def build(texts: Iterable[str], template: str) -> Any:
    """A transformers tokenizer trained on *texts*, with the chat *template*."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=PIECES, special_tokens=list(SPECIALS), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    make: Any = PreTrainedTokenizerFast
    return make(
        tokenizer_object=tokenizer,
        pad_token=SPECIALS[0],
        eos_token=SPECIALS[2],
        additional_special_tokens=[SPECIALS[1], *SPECIALS[3:]],
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )


def texts_of(template: str, count: int = 1500, seed: int = 0) -> list[str]:
    """The demonstrations as the chat *template* writes them."""
    from transformers.utils.chat_template_utils import render_jinja_template

    conversations = [
        [template_form(message) for message in demo.messages] for demo in demonstrations("train", count, seed)
    ]
    rendered: Any = render_jinja_template(conversations=conversations, chat_template=template)
    return list(rendered[0])


def template_form(message: Any) -> dict[str, Any]:
    """A message as chat templates read it: OpenAI's form, with a call's arguments as an object."""
    out: dict[str, Any] = message.to_openai()
    for wire, call in zip(out.get("tool_calls", ()), message.tool_calls, strict=True):
        wire["function"]["arguments"] = dict(call.arguments)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--to", type=Path, help="the folder to write (default: the recipe's tokenizer/)")
    folder = parser.parse_args().to or home() / "tokenizer"
    template = (home() / "tokenizer" / "chat_template.jinja").read_text("utf-8")
    tokenizer = build(texts_of(template), template)
    tokenizer.save_pretrained(folder)
    print(f"{len(tokenizer)} pieces in {folder}")


if __name__ == "__main__":
    main()
