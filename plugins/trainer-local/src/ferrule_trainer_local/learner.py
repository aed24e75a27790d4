"""Log-probabilities of rows, and the gradient of an objective, in micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ferrule import Objective, Row, StepOutput, TrainerError

from .packing import Packing, pack
from .packing import states as packed_states
from .policy import POLICIES

LOGITS = 2**24
"""The most logits made at once: of a large vocabulary, positions are taken in parts, each with its own backward pass."""


SHARED = 0.1
"""The share of all tokens that must be saved for rows that begin alike to be packed."""


class Learner:
    """Works on *model*, a transformers causal model whose parameters' ``grad`` accumulate.

    *split*: the model's logits are its head applied to its body's hidden states, so that the head may be applied to
    some positions only. *tokens* bounds a micro-batch, padding included; *autocast* is the dtype to compute in, or
    None. *dropout* is on only while a gradient is taken. *packs*: the model attends through :mod:`.packing`.
    """

    def __init__(
        self,
        model: Any,
        *,
        split: bool,
        vocab: int,
        tokens: int,
        autocast: torch.dtype | None,
        dropout: bool = False,
        packs: bool = False,
    ) -> None:
        self.dropout, self.packs = dropout, packs
        self.model, self.split, self.vocab, self.tokens, self.autocast = model, split, vocab, tokens, autocast
        self.device: torch.device = model.device
        self.head = model.get_output_embeddings()

    def logprobs(self, rows: Sequence[Row]) -> list[NDArray[np.float32]]:
        """float32[T] per row."""
        self._check(rows)
        out = [np.zeros(len(row), np.float32) for row in rows]
        for batch in self._micro_batches(range(len(rows)), rows):
            with torch.no_grad():
                self._run(batch, rows, out, None)
        return out

    def forward_backward(self, objective: Objective) -> StepOutput:
        """Add the gradient of *objective* to what has accumulated."""
        rows = objective.rows
        if objective.policy not in POLICIES:
            raise TrainerError(f"policy loss {objective.policy!r} is not one of {', '.join(sorted(POLICIES))}")
        self._check(rows)
        out = [np.zeros(len(row), np.float32) for row in rows]
        learn = [
            bool(np.any(w)) or (objective.ce is not None and bool(np.any(objective.ce[i])))
            for i, w in enumerate(objective.weights)
        ]
        loss = 0.0
        for batch in self._micro_batches([i for i, on in enumerate(learn) if not on], rows):
            with torch.no_grad():
                self._run(batch, rows, out, None)
        which = [i for i, on in enumerate(learn) if on]
        begins = self._begins(which, objective)
        for batch in self._micro_batches(which, rows) if begins is None else self._packed_batches(which, rows, begins):
            with torch.enable_grad():
                loss += self._run(batch, rows, out, objective, begins)
        saved = 0 if begins is None else self._saved(begins, rows)
        metrics = {
            "loss": loss,
            "rows": float(len(rows)),
            "rows_learned": float(len(which)),
            "tokens_shared": float(saved),
        }
        return StepOutput(tuple(out), metrics)

    def _check(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if len(row) and not 0 <= int(row.ids.min()) <= int(row.ids.max()) < self.vocab:
                raise TrainerError(
                    f"a row of task {row.task_id!r} holds a token that is not among the model's {self.vocab}"
                )

    def _micro_batches(self, which: Sequence[int], rows: Sequence[Row]) -> list[list[int]]:
        batches: list[list[int]] = []
        for i in sorted((i for i in which if len(rows[i]) > 1), key=lambda i: (len(rows[i]), i)):
            if batches and (len(batches[-1]) + 1) * len(rows[i]) <= self.tokens:
                batches[-1].append(i)
            else:
                batches.append([i])
        return batches

    def _begins(self, which: Sequence[int], objective: Objective) -> dict[int, int] | None:
        """How many tokens of each row stand before the first that is learned, where computing those of like rows
        once pays.
        """
        if not self.packs:
            return None
        begins: dict[int, int] = {}
        for i in which:
            learned = objective.weights[i] != 0
            if objective.ce is not None:
                learned = learned | (objective.ce[i] != 0)
            begins[i] = max(1, int(np.argmax(learned)))
        pays = self._saved(begins, objective.rows) > SHARED * sum(len(objective.rows[i]) for i in which)
        return begins if pays else None

    @staticmethod
    def _saved(begins: dict[int, int], rows: Sequence[Row]) -> int:
        alike = {rows[i].ids[:p].tobytes(): p for i, p in begins.items()}
        return sum(begins.values()) - sum(alike.values())

    def _packed_batches(self, which: Sequence[int], rows: Sequence[Row], begins: dict[int, int]) -> list[list[int]]:
        """Micro-batches that keep rows of one beginning together, which counts once."""
        order = [(begins[i], rows[i].ids[: begins[i]].tobytes(), len(rows[i]), i) for i in which if len(rows[i]) > 1]
        batches: list[list[int]] = []
        held: set[bytes] = set()
        tokens = 0
        for begin, head, length, i in sorted(order):
            more = length - begin + (0 if head in held else begin)
            if not batches or tokens + more > self.tokens:
                batches.append([])
                held, tokens, more = set(), 0, length
            batches[-1].append(i)
            held.add(head)
            tokens += more
        return batches

    def _run(
        self,
        batch: list[int],
        rows: Sequence[Row],
        out: list[NDArray[np.float32]],
        objective: Objective | None,
        begins: dict[int, int] | None = None,
    ) -> float:
        """Log-probabilities of one micro-batch into *out*; with an *objective*, its backward pass, and its loss."""
        self.model.train(self.dropout and objective is not None)
        lens = np.array([len(rows[i]) for i in batch])
        targets = self._tensor(np.concatenate([rows[i].ids[1:] for i in batch]).astype(np.int64))
        if begins is None:
            width = int(lens.max())
            ids = np.zeros((len(batch), width), np.int64)
            for row, i in enumerate(batch):
                ids[row, : lens[row]] = rows[i].ids
            # Padding stands on the right, where no token that counts attends to it: no mask is needed.
            real = np.arange(1, width) < lens[:, None]
            source = (np.arange(len(batch))[:, None] * width + np.arange(width - 1))[real]
            states = self._states(torch.from_numpy(ids).to(self.device))
        else:
            packing = pack([rows[i].ids for i in batch], [begins[i] for i in batch], self.device)
            source = packing.source
            states = self._states(packing)
        logp = np.zeros(len(source), np.float32)
        loss = 0.0
        if objective is None:
            self._logp(states, source, targets, logp, np.arange(len(source)))
        else:

            def flat(arrays: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
                return np.concatenate([np.asarray(arrays[i][1:], np.float32) for i in batch])

            terms = [flat(objective.weights), flat(objective.advantages), flat(objective.old)]
            terms.append(flat(objective.ce) if objective.ce is not None else np.zeros_like(terms[0]))
            matters = (terms[0] != 0) | (terms[3] != 0)
            with torch.no_grad():
                self._logp(states, source, targets, logp, np.flatnonzero(~matters))
            loss = self._backward(states, source, targets, logp, np.flatnonzero(matters), terms, objective)
        ends = np.cumsum(lens - 1)
        for i, piece in zip(batch, np.split(logp, ends[:-1]), strict=True):
            out[i][1:] = piece
        return loss

    def _states(self, ids: Tensor | Packing) -> Tensor:
        """Hidden states (or logits, where the head cannot be taken apart), [rows · width, ·]."""
        with torch.autocast(self.device.type, self.autocast, enabled=self.autocast is not None):
            if isinstance(ids, Packing):
                return packed_states(self.model.model, ids)
            if self.split:
                states: Tensor = self.model.model(input_ids=ids, use_cache=False).last_hidden_state
            else:
                states = self.model(input_ids=ids, use_cache=False).logits
            return states.flatten(0, 1)

    def _token_logp(self, states: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(self.device.type, self.autocast, enabled=self.autocast is not None):
            logits = self.head(states) if self.split else states
        return -F.cross_entropy(logits.float(), targets, reduction="none")

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def _parts(self, which: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        size = max(1, LOGITS // self.vocab)
        return [which[a : a + size] for a in range(0, len(which), size)]

    def _logp(
        self,
        states: Tensor,
        source: NDArray[np.int64],
        targets: Tensor,
        out: NDArray[np.float32],
        which: NDArray[np.int64],
    ) -> None:
        # Two targets of one state are one token of a beginning that rows share.
        _, once, back = np.unique(source[which], return_index=True, return_inverse=True)
        single = which[once]
        got = np.empty(len(single), np.float32)
        for part in self._parts(np.arange(len(single))):
            chosen = single[part]
            logp = self._token_logp(states.detach()[self._tensor(source[chosen])], targets[self._tensor(chosen)])
            got[part] = logp.cpu().numpy()
        out[which] = got[back]

    def _backward(
        self,
        states: Tensor,
        source: NDArray[np.int64],
        targets: Tensor,
        out: NDArray[np.float32],
        which: NDArray[np.int64],
        terms: list[NDArray[np.float32]],
        objective: Objective,
    ) -> float:
        """First through the head, part by part, then once through the body."""
        policy, loss = POLICIES[objective.policy], 0.0
        slopes: list[Tensor] = []
        # Not states[...]: rows that are packed share states, and its backward pass adds what comes back to one state in the
        # order in which threads happen to run. That of index_select adds in the order of the index.
        taken = states.index_select(0, self._tensor(source[which]))
        at = 0
        for part in self._parts(which):
            leaf = taken[at : at + len(part)].detach().requires_grad_()
            at += len(part)
            logp = self._token_logp(leaf, targets[self._tensor(part)])
            weight, advantage, old, ce = (self._tensor(term[part]) for term in terms)
            old = torch.where(
                weight != 0, old, logp.detach()
            )  # where the policy has no weight, its ratio must not overflow
            value = (weight * policy(logp, old, advantage, objective.options) - ce * logp).sum()
            torch.autograd.backward(value)
            if leaf.grad is not None:
                slopes.append(leaf.grad)
            loss += float(value.detach())
            out[part] = logp.detach().cpu().numpy()
        torch.autograd.backward(taken, slopes[0] if len(slopes) == 1 else torch.cat(slopes))
        return loss
