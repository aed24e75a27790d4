"""Advantages, a policy loss, auxiliary losses and reductions, lowered to plain per-token arrays: an Objective."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config.schema import PolicyConfig, Reduction
from ..config.use import Use
from ..data import Objective, Row, TokenKind
from ..errors import FerruleError
from ..kinds import AuxLoss, LossContext
from .batch import Batch
from .masks import label, tokens_of
from .reduction import factors
from .rows import Flat

FOLDABLE = frozenset({"importance_sampling", "ppo", "cispo"})
"""Policy losses that are positively homogeneous in the advantage, so that a positive weight can stand in it."""


def lower(
    batch: Batch,
    policy: PolicyConfig,
    losses: Sequence[AuxLoss],
    *,
    logprobs: Sequence[NDArray[np.float32]] | None = None,
    step: int = 0,
) -> Objective:
    """The objective of one optimizer step over all of *batch*.

    Normalisers are taken over the whole step, before anybody splits it. The policy's are over the action tokens of
    the trajectories in ``batch.policy``; a loss's over its own mask, in all trajectories. Losses with coefficient 0
    are as if not there.

    logprobs  float32[T] per row of the batch under the current weights; read where ``policy.recompute_old`` is set,
              and by losses
              that need ``logprobs``
    step      optimizer steps made before this one

    Everything is computed in float64 and rounded once, to float32. Raises FerruleError where logprobs are needed and
    absent or not finite, two losses share a name, or a loss gives weights that cannot be used.
    """
    rows, flat = batch.rows, Flat(batch.rows)
    trajectory = batch.row_trajectory[flat.owner]
    action = (flat.kind == TokenKind.ACTION) & flat.inner & batch.policy[trajectory]
    sequence = trajectory if policy.unit == "trajectory" else flat.owner
    terms = _terms(batch, flat, trajectory, [loss for loss in losses if loss.config.coef > 0.0], logprobs, step)
    return Objective(
        rows=rows,
        policy=policy.loss,
        advantages=flat.split(np.where(action, _per_token(batch, flat, trajectory), 0.0)),
        old=flat.split(_old(rows, flat, action, policy, logprobs)),
        weights=flat.split(factors(action, sequence, policy.reduction)),
        ce=flat.split(np.sum(list(terms.values()), axis=0)) if terms else None,
        options=_options(policy),
        terms={name: flat.split(term) for name, term in terms.items()},
        coefs={label(loss): float(loss.config.coef) for loss in losses if loss.config.coef > 0.0},
    )


def supervised(rows: Sequence[Row], observation_weight: float = 0.0, reduction: Reduction = "token-mean") -> Objective:
    """Cross-entropy on the ACTION tokens of *rows*, each row a sequence, reduced by *reduction*.

    With an *observation_weight*, OBSERVATION tokens are learned too, that many times as much as an action token of
    the same row. The normaliser counts action tokens alone, so that turning it on does not rescale what is learned of
    the actions.
    """
    flat = Flat(rows)
    action = (flat.kind == TokenKind.ACTION) & flat.inner
    weights = factors(action, flat.owner, reduction)
    if observation_weight:
        per_row = np.zeros(len(rows))
        per_row[flat.owner[action]] = weights[action]
        observed = (flat.kind == TokenKind.OBSERVATION) & flat.inner
        weights = np.where(observed, observation_weight * per_row[flat.owner], weights)
    nothing = flat.split(np.zeros(len(weights)))
    return Objective(tuple(rows), "cross_entropy", nothing, nothing, flat.split(weights))


def fold(objective: Objective) -> tuple[NDArray[np.float32], ...]:
    """float32[T] per row: advantages with the weights in them, for a backend that knows only advantages and sums
    over tokens.

    Exact for ``importance_sampling``, ``ppo`` and ``cispo``, where w · policy(…, adv) = policy(…, w · adv) for w ≥ 0.
    FerruleError for any other policy loss. Auxiliary terms (``ce``) are not in it.
    """
    if objective.policy not in FOLDABLE:
        raise FerruleError(
            f"the weights of policy loss {objective.policy!r} cannot be folded into its advantages; "
            f"that is exact only for {', '.join(sorted(FOLDABLE))}"
        )
    return tuple(w * a for w, a in zip(objective.weights, objective.advantages, strict=True))


def needs(losses: Iterable[AuxLoss | Use[AuxLoss]], policy: PolicyConfig) -> frozenset[str]:
    """What a trainer must have in ``provides`` for these losses, constructed or only chosen, and this policy.

    ``cross_entropy`` for any loss that is on and what each ``needs``; ``logprobs`` for ``recompute_old``;
    ``token_weights`` for a policy loss whose weights cannot be folded into its advantages.
    """
    wanted: set[str] = set()
    for loss in losses:
        if loss.config.coef > 0.0:
            wanted |= {"cross_entropy", *(loss.cls.needs if isinstance(loss, Use) else loss.needs)}
    if policy.recompute_old:
        wanted.add("logprobs")
    if policy.loss not in FOLDABLE | {"cross_entropy"}:
        wanted.add("token_weights")
    return frozenset(wanted)


def _options(policy: PolicyConfig) -> dict[str, float]:
    high = policy.eps_clip if policy.eps_clip_high is None else policy.eps_clip_high
    return {"eps_clip": float(policy.eps_clip), "eps_clip_high": float(high)}


def _per_token(batch: Batch, flat: Flat, trajectory: NDArray[np.int64]) -> NDArray[np.float64]:
    """float64[M]: each trajectory's advantage on all of its tokens; its own per-token ones on its actions."""
    out = batch.advantages[trajectory]
    if batch.token_advantages:
        carries = np.zeros(len(batch), bool)
        carries[list(batch.token_advantages)] = True
        # Rows stand in the order of their trajectories, so the lists of all of them fit end to end.
        values = [batch.token_advantages[index] for index in sorted(batch.token_advantages)]
        out[carries[trajectory] & (flat.kind == TokenKind.ACTION)] = np.concatenate(values)
    return out


def _old(
    rows: Sequence[Row],
    flat: Flat,
    action: NDArray[np.bool_],
    policy: PolicyConfig,
    logprobs: Sequence[NDArray[np.float32]] | None,
) -> NDArray[np.float32]:
    """float32[M]: what the ratio is taken against, 0 off the policy's mask, finite everywhere."""
    if policy.loss == "cross_entropy":
        return np.zeros(len(action), np.float32)
    if policy.recompute_old:
        source, arrays = "the current weights'", _checked(rows, logprobs, "policy.recompute_old")
    else:
        source, arrays = "the sampler's", [row.logprobs for row in rows]
    old = np.where(action, flat.join(arrays, np.float32), np.float32(0.0))
    bad = np.flatnonzero(~np.isfinite(old))
    if len(bad):
        row = rows[flat.owner[bad[0]]]
        raise FerruleError(
            f"{_place(row)}: {source} logprob of a sampled token is {old[bad[0]]}, {len(bad)} such in the batch"
        )
    return old


def _terms(
    batch: Batch,
    flat: Flat,
    trajectory: NDArray[np.int64],
    losses: Sequence[AuxLoss],
    logprobs: Sequence[NDArray[np.float32]] | None,
    step: int,
) -> dict[str, NDArray[np.float64]]:
    """float64[M] by loss: coefficient · reduction factor · weight, 0 off the loss's mask."""
    rows = batch.rows
    terms: dict[str, NDArray[np.float64]] = {}
    for loss in losses:
        name = label(loss)
        if name in terms:
            raise FerruleError(f"two losses are named {name!r}; list a loss once")
        own = _checked(rows, logprobs, f"loss {name!r}") if "logprobs" in loss.needs else None
        mask = flat.join([tokens_of(loss, row) for row in rows], bool)
        weights = [
            _weight(loss, row, _context(batch, row, None if own is None else own[i], step))
            for i, row in enumerate(rows)
        ]
        factor = factors(mask, trajectory, loss.reduction)
        term = np.zeros(len(mask))
        term[mask] = loss.config.coef * factor[mask] * flat.join(weights, np.float64)[mask]
        bad = np.flatnonzero(~np.isfinite(term))
        if len(bad):
            raise FerruleError(f"{_place(rows[flat.owner[bad[0]]])}: loss {name!r} gave a weight that is not finite")
        terms[name] = term
    return terms


def _context(batch: Batch, row: Row, logprobs: NDArray[np.float32] | None, step: int) -> LossContext:
    learned = bool(batch.policy[row.trajectory])
    return LossContext(
        logprobs,
        float(batch.rewards[row.trajectory]),
        float(batch.advantages[row.trajectory]) if learned else 0.0,
        step,
    )


def _weight(loss: AuxLoss, row: Row, ctx: LossContext) -> NDArray[Any]:
    try:
        weight = np.asarray(loss.weight(row, ctx), np.float64)
    except (Exception, SystemExit) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise FerruleError(f"{_place(row)}: loss {label(loss)!r} gave no weights: {what}") from error
    if weight.shape not in ((), (len(row),)):
        raise FerruleError(
            f"{_place(row)}: loss {label(loss)!r} gave weights of shape {list(weight.shape)} for a row of {len(row)} tokens"
        )
    return np.broadcast_to(weight, (len(row),))


def _checked(
    rows: Sequence[Row], logprobs: Sequence[NDArray[np.float32]] | None, who: str
) -> Sequence[NDArray[np.float32]]:
    if logprobs is None:
        raise FerruleError(f"{who} needs the current weights' logprobs of every row, and none were given")
    if [len(x) for x in logprobs] != [len(row) for row in rows]:
        raise FerruleError(f"{who}: the logprobs given do not match the batch's {len(rows)} rows in number or length")
    return logprobs


def _place(row: Row) -> str:
    return f"task {row.task_id!r}, attempt {row.attempt}, {row.role}"
