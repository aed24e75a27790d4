"""Training on rows that begin alike: what they share is computed once, and the gradient is the same.

The attempts of a group answer one prompt, on which nothing is learned. A micro-batch is laid out as one stream of
tokens, every distinct beginning once and then what follows it in each row; only attention looks at the rows as they
are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from .cache import HIDDEN

NAME = "ferrule_packed"


@attrs.frozen(eq=False)
class Packing:
    """A stream of N tokens: G beginnings of at most P tokens, then R continuations of at most S.

    ``ids``, ``positions``  int64[1, N]
    ``source``    where in the stream the state stands that foretells each target: rows in order, tokens 1 to T - 1 of
                  each
    ``first``     int64[G, P], ``rest`` int64[R, S], ``keys`` int64[R, P + S]: indexes into the stream, 0 where there
                  is nothing
    ``real_first``, ``real_rest``  which of the flattened ``first`` and ``rest`` are there, as indexes
    ``mask``      float32[R, 1, S, P + S], added to the scores
    """

    ids: Tensor
    positions: Tensor
    source: NDArray[np.int64]
    first: Tensor
    rest: Tensor
    keys: Tensor
    real_first: Tensor
    real_rest: Tensor
    mask: Tensor


def pack(rows: Sequence[NDArray[np.int32]], begins: Sequence[int], device: torch.device) -> Packing:
    """*rows* of ids, of which the first ``begins[r]`` (at least 1, less than all) may be shared with others."""
    known: dict[bytes, int] = {}
    owner = [known.setdefault(row[:p].tobytes(), len(known)) for row, p in zip(rows, begins, strict=True)]
    heads = [np.frombuffer(key, np.int32) for key in known]
    tails = [row[p:] for row, p in zip(rows, begins, strict=True)]
    first, real_first, at = _lay([len(h) for h in heads], 0)
    rest, real_rest, _ = _lay([len(t) for t in tails], at)
    positions = [np.arange(len(h)) for h in heads] + [p + np.arange(len(t)) for p, t in zip(begins, tails, strict=True)]
    keys = np.concatenate([first[owner], rest], 1)
    width, long = rest.shape[1], first.shape[1]
    seen = np.zeros((len(rows), width, long + width), bool)
    seen[:, :, :long] = (np.arange(long) < np.array(begins)[:, None])[:, None]
    seen[:, :, long:] = np.tri(width, dtype=bool)
    source = [
        np.concatenate([first[g, :p], rest[r, : len(tail) - 1]])
        for r, (g, p, tail) in enumerate(zip(owner, begins, tails, strict=True))
    ]

    def put(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    return Packing(
        put(np.concatenate([*heads, *tails]).astype(np.int64)[None]),
        put(np.concatenate(positions)[None]),
        np.concatenate(source),
        put(first),
        put(rest),
        put(keys),
        put(real_first),
        put(real_rest),
        put(np.where(seen, 0.0, HIDDEN).astype(np.float32)[:, None]),
    )


def _lay(lengths: list[int], at: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Pieces one behind the other from *at*: their indexes padded to one width, which of those are real, and the end."""
    widest = max(lengths)
    real = np.arange(widest) < np.array(lengths)[:, None]
    starts = at + np.concatenate([[0], np.cumsum(lengths)[:-1]])
    return np.where(real, starts[:, None] + np.arange(widest), 0), np.flatnonzero(real), at + sum(lengths)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    packing: Packing | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers asks for it: over a stream where *packing* is given, else the ordinary one."""
    if packing is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    repeat = query.shape[1] // key.shape[1]
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))

    def take(x: Tensor, index: Tensor, times: int = 1) -> Tensor:
        got = x.index_select(0, index.flatten()).view(*index.shape, *x.shape[1:]).transpose(1, 2)
        return got if times == 1 else got.repeat_interleave(times, 1)

    one = F.scaled_dot_product_attention(
        take(q, packing.first),
        take(k, packing.first, repeat),
        take(v, packing.first, repeat),
        is_causal=True,
        scale=scaling,
    )
    two = F.scaled_dot_product_attention(
        take(q, packing.rest),
        take(k, packing.keys, repeat),
        take(v, packing.keys, repeat),
        attn_mask=packing.mask.to(q.dtype),
        scale=scaling,
    )
    parts = []
    for out, real in ((one, packing.real_first), (two, packing.real_rest)):
        flat = out.transpose(1, 2).flatten(0, 1)
        parts.append(flat if len(real) == len(flat) else flat.index_select(0, real))
    return torch.cat(parts)[None], None


def install(model: Any) -> None:
    """Make *model* attend through :func:`attend`."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.config._attn_implementation = NAME


def states(body: Any, packing: Packing) -> Tensor:
    """Hidden states [N, ·] of the stream. The mask of four dimensions is a word to transformers that there is
    nothing to make.
    """
    nothing = torch.zeros(1, 1, 1, 1, device=packing.ids.device)
    out: Tensor = body(
        input_ids=packing.ids, position_ids=packing.positions, attention_mask=nothing, use_cache=False, packing=packing
    ).last_hidden_state
    return out[0]
