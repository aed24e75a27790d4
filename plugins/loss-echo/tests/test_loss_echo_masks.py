"""What ECHO is over, and with what weight."""

from __future__ import annotations

import ferrule_loss_echo
import numpy as np
import pytest

import ferrule

P, A, X, S = (int(kind) for kind in ferrule.TokenKind)
Echo = ferrule_loss_echo.Echo


def row(*kinds: int) -> ferrule.Row:
    n = len(kinds)
    return ferrule.Row(
        np.arange(n, dtype=np.int32), np.array(kinds, np.uint8), np.zeros(n, np.float32), np.full(n, -1, np.int32)
    )


TWO_TURNS = row(P, P, A, A, S, X, X, S, A, A)


def test_it_is_over_the_content_of_what_the_environment_answered() -> None:
    assert np.flatnonzero(Echo(Echo.Config()).tokens(TWO_TURNS)).tolist() == [5, 6]


def test_the_template_around_the_answers_is_taken_in_by_option() -> None:
    assert np.flatnonzero(Echo(Echo.Config(mask="environment")).tokens(TWO_TURNS)).tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("mask", ["observation", "environment"])
def test_a_single_turn_adds_nothing_and_never_the_prompt(mask: str) -> None:
    assert not Echo(Echo.Config(mask=mask)).tokens(row(P, P, P, A, A, A)).any()


def test_every_token_weighs_the_same_and_each_trajectory_too() -> None:
    assert Echo(Echo.Config()).weight(TWO_TURNS, ferrule.LossContext()) == 1.0
    assert Echo.reduction == "seq-mean-token-mean"
    assert Echo.needs == frozenset()


def test_its_default_coefficient_is_the_paper_s() -> None:
    assert Echo.Config().coef == 0.05
    assert Echo.Config(coef=0.0).coef == 0.0


@pytest.mark.parametrize("options", [{"coef": -0.1}, {"mask": "action"}])
def test_values_outside_the_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Echo.Config(**options)
