"""What the trainer computes of rows: log-probabilities and gradients, against a reference written for itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from ferrule_trainer_local import Tiny

import ferrule


def reference(model, objective):
    """The objective's formula, token by token, in the plainest form."""
    low = objective.options.get("eps_clip", 0.2)
    high = objective.options.get("eps_clip_high", low)
    total = torch.zeros(())
    for i, row in enumerate(objective.rows):
        logp = model(input_ids=torch.tensor(row.ids[None].astype(np.int64))).logits[0].log_softmax(-1)
        for t in range(1, len(row)):
            x = logp[t - 1, int(row.ids[t])]
            advantage, old = float(objective.advantages[i][t]), float(objective.old[i][t])
            if objective.policy == "cross_entropy":
                value = -x
            else:
                ratio = torch.exp(x - old)
                value = -ratio * advantage
                if objective.policy == "ppo":
                    clipped = min(max(float(ratio.detach()), 1 - low), 1 + high)
                    if clipped != float(ratio.detach()) and -clipped * advantage >= float(value.detach()):
                        value = torch.zeros(()) - clipped * advantage
            total = total + float(objective.weights[i][t]) * value
            if objective.ce is not None:
                total = total + float(objective.ce[i][t]) * -x
    return total


def objective(policy, rows, rng, ce=True, **options):
    def arrays(scale, shift=0.0):
        out = [(rng.normal(size=len(r)) * scale + shift).astype(np.float32) for r in rows]
        for a in out:
            a[0] = 0
        return tuple(out)

    weights = tuple(np.abs(w) * (r.kind == ferrule.TokenKind.ACTION) for w, r in zip(arrays(1.0), rows, strict=True))
    return ferrule.Objective(
        tuple(rows),
        policy,
        arrays(1.0),
        arrays(0.5, -math.log(29)),
        weights,
        tuple(np.abs(a) for a in arrays(0.1)) if ce else None,
        options,
    )


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("importance_sampling", {}),
        ("ppo", {}),
        ("ppo", {"eps_clip": 0.1, "eps_clip_high": 0.3}),
        ("cross_entropy", {}),
    ],
)
async def test_gradient_is_that_of_the_formula(trainer, random_rows, policy, options):
    rng = np.random.default_rng(3)
    given = objective(policy, random_rows(rng, [9, 4, 15, 7, 2]), rng, **options)
    out = await trainer.forward_backward(given)
    model = trainer.work.model
    got = {n: p.grad.clone() for n, p in model.named_parameters()}
    trainer.work.clear_gradient()
    with torch.enable_grad():
        loss = reference(model, given)
        loss.backward()
    assert out.metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
    top = math.sqrt(sum(float((got[n] - p.grad).square().sum()) for n, p in model.named_parameters()))
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
    assert norm > 0.1
    assert top / norm < 1e-5


async def test_logprobs_come_back_for_every_token_in_order_of_the_rows(trainer, random_rows):
    rng = np.random.default_rng(4)
    rows = random_rows(rng, [12, 3, 1, 7])
    given = objective("ppo", rows, rng)
    given.weights[3][:] = 0
    given.ce[3][:] = 0
    out = await trainer.forward_backward(given)
    forward = await trainer.forward(rows)
    for row, a, b in zip(rows, out.logprobs, forward, strict=True):
        want = np.zeros(len(row))
        with torch.no_grad():
            logp = trainer.work.model(input_ids=torch.tensor(row.ids[None].astype(np.int64))).logits[0].log_softmax(-1)
        for t in range(1, len(row)):
            want[t] = logp[t - 1, int(row.ids[t])]
        np.testing.assert_allclose(a, want, atol=1e-5)
        np.testing.assert_allclose(b, want, atol=1e-5)
        assert a.dtype == b.dtype == np.float32
    assert out.metrics["rows_learned"] == 2


async def test_gradient_does_not_depend_on_micro_batches_or_on_parts_of_the_head(
    make_trainer, random_rows, monkeypatch
):
    gradients = []
    for tokens, logits in ((10_000, 2**24), (1, 2**24), (40, 29 * 5)):
        monkeypatch.setattr("ferrule_trainer_local.learner.LOGITS", logits)
        trainer = await make_trainer(micro_batch_tokens=tokens)
        rng = np.random.default_rng(5)
        await trainer.forward_backward(objective("ppo", random_rows(rng, [9, 30, 11, 17, 3]), rng))
        gradients.append(torch.cat([p.grad.flatten() for p in trainer.work.model.parameters()]))
    for other in gradients[1:]:
        assert float((gradients[0] - other).norm() / gradients[0].norm()) < 1e-6


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("tokens", [10_000, 60, 1])
async def test_what_rows_share_is_computed_once_and_the_gradient_is_the_same(make_trainer, tokens, kv_heads):
    """Groups of unlike sizes, beginnings and lengths, a row that shares with nobody and one on which nothing is
    learned.
    """
    shape = Tiny(hidden_size=32, layers=2, heads=4, kv_heads=kv_heads, intermediate_size=48, max_positions=256)
    trainer = await make_trainer(tiny=shape, micro_batch_tokens=tokens)
    rng = np.random.default_rng(2)
    prompts = [rng.integers(0, 29, n) for n in (20, 20, 31, 5)]
    rows, weights = [], []
    for group, tail in [(0, 6), (1, 9), (0, 6), (0, 2), (2, 1), (2, 12), (3, 4), (1, 3), (0, 8), (2, 3)]:
        ids = np.concatenate([prompts[group], rng.integers(0, 29, tail)]).astype(np.int32)
        weight = (np.arange(len(ids)) >= len(prompts[group])).astype(np.float32) * rng.random(len(ids)).astype(
            np.float32
        )
        rows.append(
            ferrule.Row(
                ids, (weight > 0).astype(np.uint8), np.zeros(len(ids), np.float32), np.full(len(ids), -1, np.int32)
            )
        )
        weights.append(weight)
    weights[8][:] = 0
    advantages = tuple(np.full(len(r), rng.normal(), np.float32) for r in rows)
    old = tuple(np.full(len(r), -3.4, np.float32) for r in rows)
    given = ferrule.Objective(tuple(rows), "ppo", advantages, old, tuple(weights))
    out = await trainer.forward_backward(given)
    assert out.metrics["tokens_shared"] == 2 * 20 + 20 + 2 * 31
    model = trainer.work.model
    got = {n: p.grad.clone() for n, p in model.named_parameters()}
    trainer.work.clear_gradient()
    with torch.enable_grad():
        reference(model, given).backward()
    off = math.sqrt(sum(float((got[n] - p.grad).square().sum()) for n, p in model.named_parameters()))
    assert off / math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters())) < 1e-5
    for a, b in zip(out.logprobs, await trainer.forward(rows), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


async def test_gradients_accumulate_until_the_step_clears_them(make_trainer, random_rows):
    rng = np.random.default_rng(6)
    rows = random_rows(rng, [9, 6, 8])
    whole = objective("importance_sampling", rows, rng)

    def part(which):
        def pick(arrays):
            return tuple(arrays[i] for i in which)

        return ferrule.Objective(
            pick(whole.rows), whole.policy, pick(whole.advantages), pick(whole.old), pick(whole.weights), pick(whole.ce)
        )

    norms = []
    for pieces in ([whole], [part([0, 2]), part([1])]):
        trainer = await make_trainer()
        for piece in pieces:
            await trainer.forward_backward(piece)
        norms.append((await trainer.optim_step(ferrule.OptimParams(max_grad_norm=0.0)))["grad_norm"])
        assert all(p.grad is None for p in trainer.work.model.parameters())
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    assert (await trainer.optim_step(ferrule.OptimParams()))["grad_norm"] == 0.0


async def test_clipping_bounds_the_step_and_reports_the_norm_before(make_trainer, random_rows):
    rng = np.random.default_rng(7)
    rows = random_rows(rng, [20, 20])
    moved = []
    for limit in (0.0, 0.1):
        trainer = await make_trainer()
        before = [p.detach().clone() for p in trainer.work.model.parameters()]
        await trainer.forward_backward(objective("cross_entropy", rows, np.random.default_rng(1), ce=False))
        # With so large an eps AdamW's step is proportional to the gradient.
        metrics = await trainer.optim_step(ferrule.OptimParams(lr=100.0, eps=1e4, max_grad_norm=limit))
        assert metrics["grad_norm"] > 1.0
        delta = torch.cat(
            [(a - b.detach()).flatten() for a, b in zip(before, trainer.work.model.parameters(), strict=True)]
        )
        moved.append((float(delta.norm()), metrics["grad_norm"]))
    assert moved[1][0] / moved[0][0] == pytest.approx(0.1 / moved[0][1], rel=1e-2)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
async def test_training_on_one_text_learns_it(make_trainer, random_rows, optimizer):
    trainer = await make_trainer()
    rows = random_rows(np.random.default_rng(8), [16, 16, 16, 16])
    zeros = tuple(np.zeros(16, np.float32) for _ in rows)
    weights = tuple(np.full(16, 1 / 60, np.float32) * (np.arange(16) > 0) for _ in rows)
    losses = []
    optim = ferrule.OptimParams(optimizer, lr=1e-2 if optimizer == "adamw" else 2e-2, adamw_lr=5e-3)
    for _ in range(30):
        given = ferrule.Objective(
            tuple(rows), "cross_entropy", zeros, zeros, tuple(w.astype(np.float32) for w in weights)
        )
        losses.append((await trainer.forward_backward(given)).metrics["loss"])
        await trainer.optim_step(optim)
    assert losses[0] > 2.5
    assert losses[-1] < 0.5


async def test_muon_moves_hidden_matrices_by_muon_and_all_else_by_adamw(make_trainer, random_rows):
    trainer = await make_trainer()
    rng = np.random.default_rng(9)
    before = {n: p.detach().clone() for n, p in trainer.work.model.named_parameters()}
    await trainer.forward_backward(objective("cross_entropy", random_rows(rng, [12, 12]), rng))
    await trainer.optim_step(ferrule.OptimParams("muon", lr=0.03, adamw_lr=1e-3))
    muon = {key.rpartition("/")[0] for key in trainer.work.optimizer.state() if key.endswith("momentum_buffer")}
    assert muon == {n for n, p in before.items() if p.ndim == 2 and "embed" not in n}
    for name, parameter in trainer.work.model.named_parameters():
        step = (parameter.detach() - before[name]).abs()
        if name not in muon:
            assert float(step.max()) == pytest.approx(1e-3, rel=1e-2)
        else:
            # An orthogonalised update of rank r has a Frobenius norm of about sqrt(r), scaled by sqrt(max(1, rows /
            # columns)).
            rows_, columns = parameter.shape
            want = 0.03 * math.sqrt(min(rows_, columns)) * math.sqrt(max(1, rows_ / columns))
            assert 0.5 * want < float(step.norm()) < 1.3 * want


async def test_a_gradient_that_is_not_finite_is_refused_and_leaves_the_weights(make_trainer, random_rows):
    trainer = await make_trainer()
    rows = random_rows(np.random.default_rng(1), [6])
    zeros = (np.zeros(6, np.float32),)
    before = [p.detach().clone() for p in trainer.work.model.parameters()]
    await trainer.forward_backward(
        ferrule.Objective(tuple(rows), "cross_entropy", zeros, zeros, (np.full(6, np.nan, np.float32),))
    )
    with pytest.raises(ferrule.TrainerError, match="norm is nan"):
        await trainer.optim_step(ferrule.OptimParams())
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.work.model.parameters(), strict=True))


async def test_on_several_threads_the_gradient_of_packed_rows_is_the_same_every_time(make_trainer):
    """Rows of one beginning share the state that foretells their first action: what comes back to it from many rows must
    be added in one order.
    """
    trainer = await make_trainer(threads=2, tiny=Tiny(hidden_size=128, layers=2, heads=4, intermediate_size=128))
    rng = np.random.default_rng(3)
    head = rng.integers(0, 29, 40)
    rows = []
    for _ in range(64):
        ids = np.concatenate([head, rng.integers(0, 29, 30)]).astype(np.int32)
        kind = np.repeat(np.array([0, 1], np.uint8), [40, 30])
        rows.append(ferrule.Row(ids, kind, np.full(70, -3.0, np.float32) * kind, np.zeros(70, np.int32)))
    weights = tuple(row.kind.astype(np.float32) for row in rows)
    old = tuple(row.logprobs for row in rows)
    objective = ferrule.Objective(tuple(rows), "ppo", weights, old, weights)
    first = None
    for _ in range(25):
        out = await trainer.forward_backward(objective)
        assert out.metrics["tokens_shared"] > 0
        gradient = {name: p.grad.clone() for name, p in trainer.work.model.named_parameters()}
        trainer.work.clear_gradient()
        first = first or gradient
        assert all(torch.equal(first[name], g) for name, g in gradient.items())


async def test_weights_that_a_step_makes_infinite_are_an_error(make_trainer, random_rows):
    trainer = await make_trainer()
    rows = random_rows(np.random.default_rng(1), [6])
    ones, zeros = (np.ones(6, np.float32),), (np.zeros(6, np.float32),)
    await trainer.forward_backward(ferrule.Objective(tuple(rows), "cross_entropy", zeros, zeros, ones))
    with pytest.raises(ferrule.TrainerError, match=r"weights are not finite .* lower the rate"):
        await trainer.optim_step(ferrule.OptimParams(lr=1e308))


async def test_a_policy_without_weight_does_not_poison_what_an_auxiliary_loss_learns(trainer, random_rows):
    rows = random_rows(np.random.default_rng(1), [6])
    ones, zeros = (np.ones(6, np.float32),), (np.zeros(6, np.float32),)
    far = (np.full(6, -1e4, np.float32),)
    await trainer.forward_backward(ferrule.Objective(tuple(rows), "importance_sampling", ones, far, zeros, ones))
    assert all(bool(p.grad.isfinite().all()) for p in trainer.work.model.parameters())


async def test_foreign_tokens_and_unknown_policies_are_refused(trainer, random_rows):
    rows = random_rows(np.random.default_rng(1), [6])
    zeros = (np.zeros(6, np.float32),)
    with pytest.raises(ferrule.TrainerError, match="'dro' is not one of"):
        await trainer.forward_backward(ferrule.Objective(tuple(rows), "dro", zeros, zeros, zeros))
    rows[0].ids[3] = 1000
    with pytest.raises(ferrule.TrainerError, match="not among the model's 29"):
        await trainer.forward(rows)
