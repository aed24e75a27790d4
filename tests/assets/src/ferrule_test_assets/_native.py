"""tml-renderers' own tokenizers, asked in a process of their own.

Its library needs torch, and beside llama.cpp's it aborts the process, so it stays out of those that run tests.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from . import _sources


def ask(name: str, texts: Sequence[str] | None = None) -> Any:
    """The ids of *texts* by the tokenizer of the class *name*; without *texts* its ``pieces`` (in base64) and its
    ``special`` tokens, as pairs with their ids.
    """
    _sources.version("tml-renderers")
    command = [sys.executable, "-m", __name__, name]
    done = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=False)
    if done.returncode:
        why = f"tml-renderers could not be asked for {name} (it needs torch): {done.stderr.strip()[-500:]}"
        raise _sources.MissingPackage("torch", why)
    return json.loads(done.stdout)


def _pieces(tokenizer: Any, special: set[int]) -> Iterator[tuple[str, int]]:
    number = 0
    while True:
        if number not in special:
            try:
                piece = tokenizer.decode_bytes([number])
            except Exception:
                # There is no count to be had: the id after the last one fails.
                return
            yield base64.b64encode(piece).decode(), number
        number += 1


def main() -> None:
    """Answer one question as JSON on standard output."""
    from tml_renderers import tokenizers

    tokenizer = getattr(tokenizers, sys.argv[1])()
    texts = json.load(sys.stdin)
    if texts is None:
        special = [(text, tokenizer.encode_special(text)) for text in tokenizer.special_tokens()]
        answer: Any = {"special": special, "pieces": list(_pieces(tokenizer, {number for _, number in special}))}
    else:
        answer = [list(tokenizer.encode_ordinary(text)) for text in texts]
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
