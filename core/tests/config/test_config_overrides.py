"""``--set``: what it can reach, and what it says where it cannot."""

from __future__ import annotations

import pytest

from ferrule.config.overrides import Override, parse
from ferrule.errors import Problem


@pytest.mark.parametrize(
    ("text", "keys", "value"),
    [
        ("a.b=1", ("a", "b"), 1),
        ("a = 1.5", ("a",), 1.5),
        ("a=cpu", ("a",), "cpu"),
        ("a=true", ("a",), True),
        ("a='1'", ("a",), "1"),
        ("a=[1, {x = 2}]", ("a",), [1, {"x": 2}]),
        ("a=b=c", ("a",), "b=c"),
        ("a=", ("a",), ""),
        ('a."b.c".d=x', ("a", "b.c", "d"), "x"),
        ("losses.0.coef=0.1", ("losses", "0", "coef"), 0.1),
        ("a=1\nb = 2", ("a",), "1\nb = 2"),
        ("a=my_losses.py:Mine", ("a",), "my_losses.py:Mine"),
        ("a=1e-5", ("a",), 1e-5),
    ],
)
def test_values_are_tomls_and_bare_words_are_text(text, keys, value):
    assert parse(text) == Override(keys, value)


@pytest.mark.parametrize("text", ["", "a", "a.b", "=1", "a..b=1", ".a=1", "a.=1", "a b=1", "a=[1,", 'a="x', "a={x=}"])
def test_what_cannot_be_read_is_a_problem_and_not_an_exception(text):
    assert isinstance(parse(text), Problem)


def test_overrides_reach_every_depth_and_make_what_is_missing(loads):
    config = loads(
        "trainer.tiny.layers=5",
        "train.optim.lr=0.5",
        "losses.0.coef=0.25",
        "losses.1.use=toy_watcherless",
        'eval.modes=["greedy"]',
        "losses=[{use = 'toy_echo', coef = 0.5}]",
        "losses.0.coef=0.75",
        "observers.0.use=toy_watcher",
        "observers.0.every=3",
        "renderer.trim=true",
    ).config
    assert (config.trainer.config.tiny.layers, config.train.optim.lr, config.eval.modes) == (5, 0.5, ("greedy",))
    assert [(loss.label, loss.config.coef) for loss in config.losses] == [("toy_echo", 0.75)]
    assert [(use.label, use.config.every) for use in config.observers] == [("toy_watcher", 3)]
    assert config.renderer.config.trim is True


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("seed.x=1", "--set seed.x seed: expected a whole number, got a table"),
        ("name.x=1", "--set name.x name: is 'toy', not a table, so 'x' cannot be set in it"),
        ("losses.coef=1", "--set losses.coef losses: is a list: write its index, losses.0.coef"),
        ("losses.7.coef=1", "--set losses.7.coef losses[7]: the list has 1 element"),
        ("train.stesp=1", "--set train.stesp train.stesp: unknown key; did you mean 'steps'?"),
        ("trian.steps=1", "--set trian.steps trian: unknown key; did you mean 'train'?"),
        ("train.steps=many", "--set train.steps train.steps: expected a whole number, got 'many' (text)"),
        (
            "advantage.use=toy_gpro",
            "--set advantage.use advantage.use: no advantage is called 'toy_gpro'; did you mean 'toy_grpo'?",
        ),
        (
            "advantage=toy_gpro",
            "--set advantage advantage: no advantage is called 'toy_gpro'; did you mean 'toy_grpo'?",
        ),
    ],
)
def test_a_wrong_override_is_reported_by_its_own_text(problems, text, found):
    assert problems(text) == [found]


def test_a_secret_that_is_set_is_never_shown(problems, command, project):
    (found,) = problems('trainer.api_key=["hunter2"]')
    assert "hunter2" not in found
    _, out, err = command(
        "check",
        project / "run.toml",
        "--set",
        "trainer.api_key={a = 'hunter2'}",
        "--set",
        "trainer.api_key.b.c=1",
        "--set",
        'trainer.api_key="hunter2',
    )
    assert "hunter2" not in out + err
    assert "***" in err


def test_a_later_override_wins(loads):
    assert loads("train.steps=1", "train.steps=2").config.train.steps == 2
