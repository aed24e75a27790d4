"""A batch lowered to arrays: which token carries what, and what the arrays keep true whoever sums them."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ferrule
from ferrule.algorithm import fold, label, lower, needs, supervised
from ferrule.config.schema import PolicyConfig
from ferrule.config.use import Use

REDUCTIONS = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "token-sum"]


def same(left: ferrule.Objective, right: ferrule.Objective) -> None:
    """Equal bit for bit."""
    assert (left.policy, left.options, left.coefs) == (right.policy, right.options, right.coefs)
    assert left.terms.keys() == right.terms.keys()
    assert (left.ce is None) == (right.ce is None)
    for name in ("advantages", "old", "weights", "ce"):
        for a, b in zip(getattr(left, name) or (), getattr(right, name) or (), strict=True):
            assert a.dtype == b.dtype == np.float32
            np.testing.assert_array_equal(a, b)
    for a, b in zip(left.rows, right.rows, strict=True):
        np.testing.assert_array_equal(a.ids, b.ids)


@pytest.fixture(scope="session")
def mixed(make):
    """Three groups: one that differs, over two rows each; one that differs; one that is uniform, with observations."""
    return [
        *make.group("t", [1, 0, 0.25], "PPAASOOSAA", "PPPPAAA"),
        *make.group("u", [0, 1], "PPPA"),
        *make.group("flat", [0, 0], "PPAASOOOSA"),
    ]


def test_every_row_of_a_trajectory_carries_its_scalar_on_its_own_action_tokens_alone(make):
    batch = make.batch(make.group("t", [1, 0], "PPAASOOSAA", "PPPPAAA"))
    objective = lower(batch, PolicyConfig(), [])
    for row, advantages, weights, old in zip(
        objective.rows, objective.advantages, objective.weights, objective.old, strict=True
    ):
        action = row.kind == ferrule.TokenKind.ACTION
        np.testing.assert_array_equal(advantages, np.where(action, np.float32(batch.advantages[row.trajectory]), 0))
        np.testing.assert_array_equal(weights != 0, action)
        np.testing.assert_array_equal(old, np.where(action, row.logprobs, 0))
    assert objective.ce is None


def test_an_end_token_that_was_not_sampled_carries_nothing(make):
    objective = lower(make.batch(make.group("t", [1, 0], "PPAAS")), PolicyConfig(), [])
    assert all(w[4] == 0 and a[4] == 0 for w, a in zip(objective.weights, objective.advantages, strict=True))


def test_the_first_position_never_carries_weight(make):
    batch = make.batch(make.group("t", [1, 0], "AAOA", "OAA"), losses=[make.watch()])
    objective = lower(batch, PolicyConfig(), [make.watch()])
    assert all(
        x[0] == 0 for arrays in (objective.weights, objective.ce, objective.advantages, objective.old) for x in arrays
    )
    assert sum((w != 0).sum() for w in objective.weights) == 2 * (2 + 2)


def test_per_token_advantages_stand_on_their_own_action_tokens(make):
    episodes = [
        make.episode("t", 0, "PPAAOA", "PAA", reward=None, advantages=[1.0, 2.0, 3.0, 4.0, 5.0]),
        make.episode("t", 1, "PPA", reward=0.5),
        make.episode("t", 2, "PPAA", reward=None, advantages=[6.0, 7.0]),
    ]
    objective = lower(make.batch(episodes, make.Raw), PolicyConfig(), [])
    assert [a.tolist() for a in objective.advantages] == [[0, 0, 1, 2, 0, 3], [0, 4, 5], [0, 0, 0.5], [0, 0, 6, 7]]


@pytest.mark.parametrize(
    ("reduction", "unit", "expected"),
    [
        ("token-sum", "trajectory", [1, 1, 1]),
        ("token-mean", "trajectory", [1 / 16, 1 / 16, 1 / 16]),
        ("seq-mean-token-sum", "trajectory", [1 / 2, 1 / 2, 1 / 2]),
        ("seq-mean-token-mean", "trajectory", [1 / (2 * 7), 1 / (2 * 7), 1 / (2 * 9)]),
        ("seq-mean-token-sum", "row", [1 / 3, 1 / 3, 1 / 3]),
        ("seq-mean-token-mean", "row", [1 / (3 * 4), 1 / (3 * 3), 1 / (3 * 9)]),
    ],
)
def test_normalisers_are_those_of_the_whole_step(make, reduction, unit, expected):
    episodes = [
        make.episode("t", 0, "PPAASOOSAA", "PPPPAAA", reward=1.0),
        make.episode("t", 1, "P" + "A" * 9, reward=0.0),
    ]
    objective = lower(make.batch(episodes), PolicyConfig(reduction=reduction, unit=unit), [])
    np.testing.assert_allclose([w.max() for w in objective.weights], expected, rtol=1e-6)


def test_a_row_without_action_tokens_does_not_count_as_a_sequence(make):
    episodes = make.group("t", [1, 0], "PPAA", "PPPPS")
    objective = lower(make.batch(episodes), PolicyConfig(reduction="seq-mean-token-sum", unit="row"), [])
    assert [float(w.max()) for w in objective.weights] == [0.5, 0.0, 0.5, 0.0]


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_coefficient_of_zero_is_the_same_as_no_loss_bit_for_bit(make, mixed, reduction):
    policy = PolicyConfig(reduction=reduction)
    off = make.watch(0.0)
    same(lower(make.batch(mixed, losses=[off]), policy, [off]), lower(make.batch(mixed), policy, []))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_an_auxiliary_loss_does_not_touch_the_policy_term(make, mixed, reduction):
    policy = PolicyConfig(reduction=reduction)
    plain, watch = lower(make.batch(mixed), policy, []), make.watch(0.5)
    batch = make.batch(mixed, losses=[watch])
    with_it = lower(batch, policy, [watch])
    assert len(with_it.rows) == len(plain.rows) + 2
    for name in ("weights", "advantages", "old"):
        learned, spared = [], []
        for row, array in zip(with_it.rows, getattr(with_it, name), strict=True):
            (spared if row.task_id == "flat" else learned).append(array)
        for a, b in zip(learned, getattr(plain, name), strict=True):
            np.testing.assert_array_equal(a, b)
        assert len(spared) == 2
        assert not any(x.any() for x in spared)


def test_the_loss_is_a_mean_over_trajectories_that_have_its_tokens(make, mixed):
    watch = make.watch(0.5)
    objective = lower(make.batch(mixed, losses=[watch]), PolicyConfig(), [watch])
    for row, ce in zip(objective.rows, objective.ce, strict=True):
        observed = row.kind == ferrule.TokenKind.OBSERVATION
        # of 3 + 2 + 2 trajectories, the 2 of group u saw nothing
        expected = 0.5 / (5 * observed.sum()) if observed.any() else 0.0
        np.testing.assert_allclose(ce, np.where(observed, expected, 0), rtol=1e-6)
    assert sum(float(ce.sum(dtype=np.float64)) for ce in objective.ce) == pytest.approx(0.5)


@pytest.mark.parametrize("unit", ["trajectory", "row"])
def test_a_trajectory_of_several_rows_counts_once_in_an_auxiliary_loss(make, unit):
    watch = make.watch(1.0)
    episodes = [make.episode("t", 0, "PAOOA", "PPAOA", reward=1.0), make.episode("t", 1, "PAOA", reward=0.0)]
    objective = lower(make.batch(episodes, losses=[watch]), PolicyConfig(unit=unit), [watch])
    np.testing.assert_allclose([ce.max() for ce in objective.ce], [1 / 6, 1 / 6, 1 / 2], rtol=1e-6)


def test_a_single_turn_adds_nothing_and_trains_no_prompt(make):
    watch = make.watch()
    objective = lower(make.batch(make.group("t", [1, 0], "PPPAAA"), losses=[watch]), PolicyConfig(), [watch])
    assert not any(ce.any() for ce in objective.ce)
    assert all(not w[:3].any() for w in objective.weights)


@settings(deadline=None)
@given(coef=st.floats(1e-3, 2.0), factor=st.floats(0.1, 10.0))
def test_lowering_is_linear_in_the_coefficient(make, mixed, coef, factor):
    one, many = make.watch(coef), make.watch(coef * factor)
    a = lower(make.batch(mixed, losses=[one]), PolicyConfig(), [one])
    b = lower(make.batch(mixed, losses=[many]), PolicyConfig(), [many])
    np.testing.assert_allclose(np.concatenate(b.ce), np.concatenate(a.ce) * factor, rtol=1e-6)


def test_losses_add_up_and_keep_their_shares(make, mixed):
    class Speak(ferrule.AuxLoss, name="speak"):
        reduction = "token-sum"

        def weight(self, row, ctx):
            return np.arange(len(row), dtype=np.float32)

    watch, speak = make.watch(0.5), Speak(Speak.Config(coef=0.01))
    batch = make.batch(mixed, losses=[watch, speak])
    both = lower(batch, PolicyConfig(), [watch, speak])
    assert both.coefs == {"watch": 0.5, "speak": 0.01}
    for i, row in enumerate(both.rows):
        np.testing.assert_allclose(both.ce[i], both.terms["watch"][i] + both.terms["speak"][i], rtol=1e-6)
        action = row.kind == ferrule.TokenKind.ACTION
        np.testing.assert_allclose(both.terms["speak"][i], np.where(action, 0.01 * np.arange(len(row)), 0), rtol=1e-6)


def test_one_loss_twice_is_an_error(make, mixed):
    with pytest.raises(ferrule.FerruleError, match="'watch'"):
        lower(make.batch(mixed), PolicyConfig(), [make.watch(0.1), make.watch(0.2)])


@settings(deadline=None)
@given(st.permutations(range(8)), st.integers(0, 8))
def test_parts_of_an_objective_sum_to_the_whole(make, mixed, order, cut):
    watch = make.watch(0.5)
    batch = make.batch(mixed[:5], losses=[watch])  # 3 trajectories of 2 rows, 2 of 1
    whole = lower(batch, PolicyConfig(reduction="seq-mean-token-mean"), [watch])
    value = total(whole)
    assert len(whole.rows) == len(order)
    parts = [part(whole, order[:cut]), part(whole, order[cut:])]
    assert total(parts[0]) + total(parts[1]) == pytest.approx(value, rel=1e-12)


def part(objective: ferrule.Objective, rows: list[int]) -> ferrule.Objective:
    pick = {
        name: tuple(getattr(objective, name)[i] for i in rows)
        for name in ("rows", "advantages", "old", "weights", "ce")
    }
    return attrs.evolve(objective, **pick)


def total(objective: ferrule.Objective) -> float:
    """The objective's value where each token's logprob is some function of it, importance-weighted."""
    out = 0.0
    for i, row in enumerate(objective.rows):
        logp = -1.0 - (row.ids % 5) / 5.0
        ratio = np.exp(logp - objective.old[i].astype(float))
        out += float((-objective.weights[i].astype(float) * objective.advantages[i] * ratio).sum())
        out += float((objective.ce[i].astype(float) * -logp).sum())
    return out


def test_token_mean_is_token_sum_over_the_number_of_tokens(make, mixed):
    batch = make.batch(mixed)
    mean, summed = (
        np.concatenate(lower(batch, PolicyConfig(reduction=r), []).weights) for r in ("token-mean", "token-sum")
    )
    np.testing.assert_allclose(mean, summed / summed.sum(), rtol=1e-6)
    assert mean.sum(dtype=np.float64) == pytest.approx(1.0, rel=1e-6)


class TestOldLogprobs:
    def test_they_are_finite_everywhere(self, make):
        batch = make.batch(make.group("t", [1, 0], "PPAAOA"))
        for row in batch.rows:
            row.logprobs[[0, 4]] = np.nan, -np.inf
        assert all(np.isfinite(old).all() for old in lower(batch, PolicyConfig(), []).old)

    def test_a_sampled_token_without_one_is_an_error_naming_task_and_attempt(self, make):
        batch = make.batch(make.group("t", [1, 0], "PPAAOA"))
        batch.rows[1].logprobs[3] = np.nan
        with pytest.raises(ferrule.FerruleError, match="task 't', attempt 1"):
            lower(batch, PolicyConfig(), [])

    def test_they_are_the_current_weights_where_recomputed(self, make):
        batch = make.batch(make.group("t", [1, 0], "PPAAOA"))
        current = [np.linspace(-2, -1, len(row), dtype=np.float32) for row in batch.rows]
        objective = lower(batch, PolicyConfig(recompute_old=True), [], logprobs=current)
        for row, old, logp in zip(objective.rows, objective.old, current, strict=True):
            np.testing.assert_array_equal(old, np.where(row.kind == ferrule.TokenKind.ACTION, logp, 0))

    @pytest.mark.parametrize("logprobs", [None, [], [np.zeros(6, np.float32), np.zeros(5, np.float32)]])
    def test_recomputing_without_them_is_an_error(self, make, logprobs):
        batch = make.batch(make.group("t", [1, 0], "PPAAOA"))
        with pytest.raises(ferrule.FerruleError, match="recompute_old"):
            lower(batch, PolicyConfig(recompute_old=True), [], logprobs=logprobs)


class TestWeights:
    def test_a_weight_sees_what_it_asked_for(self, make):
        seen = []

        class Gate(make.Watch, name="gate"):
            needs = frozenset({"logprobs"})

            def weight(self, row, ctx):
                seen.append((row.task_id, ctx.reward, ctx.advantage, ctx.step))
                return np.exp(ctx.logprobs)

        gate = Gate(Gate.Config(coef=1.0))
        batch = make.batch(make.group("t", [1, 0], "PAOA") + make.group("flat", [0.5, 0.5], "PAOA"), losses=[gate])
        current = [np.full(len(row), -0.5, np.float32) for row in batch.rows]
        objective = lower(batch, PolicyConfig(), [gate], logprobs=current, step=7)
        np.testing.assert_allclose([ce[2] for ce in objective.ce], np.exp(-0.5) / 4, rtol=1e-6)
        assert [s[1] for s in seen] == [1, 0, 0.5, 0.5]
        np.testing.assert_allclose([s[2] for s in seen], [1, -1, 0, 0], atol=1e-5)
        assert {s[3] for s in seen} == {7}
        seen.clear()
        lower(attrs.evolve(batch, policy=np.zeros(4, bool)), PolicyConfig(), [gate], logprobs=current)
        assert [s[2] for s in seen] == [0, 0, 0, 0]
        with pytest.raises(ferrule.FerruleError, match="'gate'"):
            lower(batch, PolicyConfig(), [gate])

    @pytest.mark.parametrize("weight", [np.nan, np.array([1.0, 1.0, np.inf, 1.0]), np.zeros(3)])
    def test_a_weight_beyond_use_is_an_error_naming_loss_task_and_attempt(self, make, weight):
        class Bad(make.Watch, name="bad"):
            def weight(self, row, ctx):
                return weight

        bad = Bad(Bad.Config(coef=1.0))
        with pytest.raises(ferrule.FerruleError, match=r"task 't', attempt 0.*'bad'"):
            lower(make.batch(make.group("t", [1, 0], "PAOA")), PolicyConfig(), [bad])

    def test_only_tokens_in_the_mask_are_read(self, make):
        class Sparse(make.Watch, name="sparse"):
            def weight(self, row, ctx):
                return np.where(self.tokens(row), 2.0, np.nan)

        sparse = Sparse(Sparse.Config(coef=1.0))
        objective = lower(make.batch(make.group("t", [1, 0], "PAOA")), PolicyConfig(), [sparse])
        assert [ce.tolist() for ce in objective.ce] == [[0, 0, 1, 0]] * 2


class TestFold:
    def test_weights_stand_in_the_advantages(self, make, mixed):
        objective = lower(make.batch(mixed), PolicyConfig(reduction="seq-mean-token-mean"), [])
        for folded, w, a in zip(fold(objective), objective.weights, objective.advantages, strict=True):
            assert folded.dtype == np.float32
            np.testing.assert_allclose(folded, w.astype(float) * a, rtol=1e-6)

    @pytest.mark.parametrize("loss", ["cross_entropy", "gspo", "dro"])
    def test_where_that_is_not_exact_it_is_an_error_naming_the_loss(self, make, mixed, loss):
        with pytest.raises(ferrule.FerruleError, match=loss):
            fold(lower(make.batch(mixed), PolicyConfig(loss=loss), []))


def test_the_upper_clip_is_the_lower_one_unless_given(make, mixed):
    batch = make.batch(mixed)
    assert lower(batch, PolicyConfig(eps_clip=0.3), []).options == {"eps_clip": 0.3, "eps_clip_high": 0.3}
    assert lower(batch, PolicyConfig(eps_clip_high=0.28), []).options == {"eps_clip": 0.2, "eps_clip_high": 0.28}


def test_an_empty_batch_lowers_to_an_empty_objective(make):
    objective = lower(make.batch([]), PolicyConfig(), [make.watch()])
    assert objective.rows == objective.weights == objective.ce == ()


def test_what_a_trainer_must_provide(make):
    class Gate(make.Watch, name="gate"):
        needs = frozenset({"entropy"})

    on, off = Gate.Config(coef=0.1), Gate.Config(coef=0.0)
    assert needs([], PolicyConfig()) == frozenset()
    assert needs([make.watch()], PolicyConfig()) == {"cross_entropy"}
    assert needs([Gate(on)], PolicyConfig(recompute_old=True)) == {"cross_entropy", "entropy", "logprobs"}
    assert needs([Use("gate", Gate, on)], PolicyConfig(loss="dro")) == {"cross_entropy", "entropy", "token_weights"}
    assert needs([Use("gate", Gate, off), Gate(off)], PolicyConfig()) == frozenset()


def test_a_loss_without_a_name_is_called_by_its_class(make):
    class Nameless(ferrule.AuxLoss):
        def weight(self, row, ctx):
            return 1.0

    assert label(Nameless(Nameless.Config(coef=1.0))) == "Nameless"
    assert label(make.watch()) == "watch"


class TestSupervised:
    def row(self, make, kinds: str) -> ferrule.Row:
        s = make.segment(kinds)
        return ferrule.Row(s.ids, s.kind, s.logprobs, s.version)

    def test_only_what_the_model_says_is_learned(self, make):
        objective = supervised([self.row(make, "PPAASOOSA"), self.row(make, "PAAAAA")])
        assert objective.policy == "cross_entropy"
        assert objective.ce is None
        for row, w in zip(objective.rows, objective.weights, strict=True):
            np.testing.assert_allclose(w, (row.kind == ferrule.TokenKind.ACTION) / 8, rtol=1e-6)

    def test_observations_are_learned_beside_it_without_rescaling_it(self, make):
        rows = [self.row(make, "PPAASOOSA"), self.row(make, "PAAAAA")]
        plain, seen = supervised(rows), supervised(rows, 0.5)
        action = rows[0].kind == ferrule.TokenKind.ACTION
        np.testing.assert_array_equal(seen.weights[0][action], plain.weights[0][action])
        np.testing.assert_array_equal(seen.weights[1], plain.weights[1])
        np.testing.assert_allclose(seen.weights[0][5:7], 0.5 / 8, rtol=1e-6)
        assert not seen.weights[0][[0, 1, 4, 7]].any()

    def test_each_row_is_a_sequence(self, make):
        rows = [self.row(make, "PPAASOOSA"), self.row(make, "PAAAAA")]
        assert [float(w.max()) for w in supervised(rows, 0.0, "seq-mean-token-sum").weights] == [0.5, 0.5]
        means = [float(w.max()) for w in supervised(rows, 0.0, "seq-mean-token-mean").weights]
        np.testing.assert_allclose(means, [1 / 6, 1 / 10], rtol=1e-6)

    def test_a_row_without_a_reply_teaches_nothing(self, make):
        objective = supervised([self.row(make, "PPPO"), self.row(make, "PA")], 1.0)
        assert not objective.weights[0].any()
        assert objective.weights[1].tolist() == [0, 1]
