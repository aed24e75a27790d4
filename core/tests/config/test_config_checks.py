"""What only the whole configuration shows."""

from __future__ import annotations

import pytest

EVAL = {"eval": [{"id": "e1"}]}


def tasks(*entries: dict, split: str = "train") -> dict:
    return {"train": [{"id": "t1"}], **EVAL, split: list(entries)}


@pytest.mark.parametrize(
    ("sets", "changes", "found"),
    [
        ((), {}, []),
        (('required=["ferrule-toy>=0.3", "ferrule"]',), {}, []),
        (
            ('required=["ferrule-toy>=9"]',),
            {},
            ["required[0]: ferrule-toy 0.3 is installed; this configuration requires >=9"],
        ),
        (
            ('required=["ferrule-none>=1"]',),
            {},
            ["required[0]: ferrule-none is not installed: pip install 'ferrule-none>=1'"],
        ),
        (('required=["what is this"]',), {}, ["required[0]: 'what is this' is no requirement"]),
        (("policy.loss=ppoo",), {}, ["policy.loss: trainer 'toy' has no policy loss 'ppoo'; did you mean 'ppo'?"]),
        (
            ("train.optim.name=muom",),
            {},
            ["train.optim.name: trainer 'toy' has no optimizer 'muom'; did you mean 'muon'?"],
        ),
        (
            ("losses.0.use=toy_gate",),
            {},
            ["losses[0].use: loss 'toy_gate' (losses[0].use) needs 'entropy', and trainer 'toy'"],
        ),
        (("losses.0.use=toy_gate", "losses.0.coef=0.0"), {}, []),
        (
            ("observers=['toy_watcher', 'toy_watcher']",),
            {},
            ["observers[1].use: observer 'toy_watcher' is listed twice: observers[0] and observers[1]"],
        ),
        (("losses.1.use=ferrule_toy:ToyEcho",), {}, ["losses[1].use: loss 'toy_echo' is listed twice"]),
        (
            ("losses.1.use=ferrule_toy:ToyEcho", "losses.1.coeff=1"),
            {},
            ["losses[1].coeff: unknown key; did you mean 'coef'?", "losses[1].use: loss 'toy_echo' is listed twice"],
        ),
        (("train.split=trane",), {}, ["train.split: task set 'toy' has no split 'trane'; did you mean 'train'?"]),
        (("train.split=all",), {}, []),
        (("eval.split=test",), {}, ["eval.split: task set 'toy' has no split 'test'"]),
        (("sft.steps=3",), {}, ["sft.steps: unknown key"]),
        (("sft.target=0.4",), {}, ["sft.dev_split: task set 'toy' has no split 'dev'"]),
        (("sft.min_steps=3",), {}, []),
        ((), {"tasks": tasks(split="eval")}, ["eval.split: split 'eval' of task set 'toy' has no tasks"]),
        ((), {"tasks": tasks({"id": "t1", "scores": []})}, ["taskset: task 't1' makes no reward"]),
        (
            (),
            {"tasks": tasks({"id": "a", "scores": []}, {"id": "b", "scores": []})},
            ["taskset: 2 tasks ('a' and others) make no reward"],
        ),
        (
            (),
            {"tasks": tasks({"id": "t1", "scores": ["won", "fast"]})},
            ["rollout.reward: task 't1' has several scores (fast, won): name the one that is the reward"],
        ),
        (
            ("rollout.reward=won",),
            {"tasks": {"train": [{"id": "t", "scores": ["won", "fast"]}], "eval": [{"id": "e", "scores": ["won"]}]}},
            [],
        ),
        (
            ("rollout.reward=win",),
            {"tasks": {"train": [{"id": "t", "scores": ["won", "fast"]}], "eval": [{"id": "e", "scores": ["win"]}]}},
            ["rollout.reward: task 't' has no score 'win'; did you mean 'won'?"],
        ),
        (
            (),
            {"tasks": tasks({"id": "t1", "sandbox": True})},
            ["sandbox: required, and missing: task 't1' needs a sandbox; add [sandbox]"],
        ),
        (("sandbox=toy_box",), {"tasks": tasks({"id": "t1", "sandbox": True})}, []),
        (
            ("sandbox=toy_box",),
            {"tasks": tasks({"id": "t1", "sandbox": True, "isolation": True})},
            ["sandbox: task 't1' needs 'isolation', and sandbox 'toy_box' does not provide it"],
        ),
        (("sandbox=toy_jail",), {"tasks": tasks({"id": "t1", "sandbox": True, "isolation": True})}, []),
        (
            ("sandbox=toy_jail",),
            {"tasks": tasks({"id": "t1", "sandbox": True, "image": "debian"})},
            ["sandbox: task 't1' needs 'images', and sandbox 'toy_jail' does not provide it"],
        ),
        (
            (),
            {"replace": ('[renderer]\nuse = "toy"', "")},
            ["renderer: required, and missing: harness 'toy_tools' samples from a model; add [renderer]"],
        ),
        ((), {"replace": ('[advantage]\nuse = "toy_grpo"', "")}, ["advantage: required, and missing"]),
        (("train.steps=0",), {"replace": ('[advantage]\nuse = "toy_grpo"', "")}, []),
        (
            ("harness=toy_replay",),
            {
                "replace": (
                    '[trainer]\nuse = "toy"\nthreads = 2\n\n[trainer.tiny]\nlayers = 3\n\n[renderer]\nuse = "toy"\n\n[advantage]\nuse = "toy_grpo"',
                    "",
                )
            },
            [],
        ),
        (
            (),
            {"replace": ('[trainer]\nuse = "toy"\nthreads = 2\n\n[trainer.tiny]\nlayers = 3\n', "")},
            ["trainer: required, and missing: harness 'toy_tools'"],
        ),
        (("trainer.use=toyy",), {}, ["trainer.use: no trainer is called 'toyy'; did you mean 'toy'?"]),
        (("policy.recompute_old=true",), {}, []),
    ],
)
def test_the_parts_are_held_against_each_other(problems, sets, changes, found):
    got = problems(*sets, **changes)
    assert len(got) == len(found), got
    for text, expected in zip(got, found, strict=True):
        assert expected in text


def test_a_task_set_that_cannot_be_read_is_one_problem_among_others(problems, project):
    replace = ('"tasks.json"', '"broken.json"')
    (project / "broken.json").write_text("{")
    assert problems("policy.loss=ppoo", replace=replace) == [
        "3 taskset: broken.json is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        "--set policy.loss policy.loss: trainer 'toy' has no policy loss 'ppoo'; did you mean 'ppo'?",
    ]
    (project / "broken.json").write_text("3")
    assert problems(replace=replace) == [
        "3 taskset: task set 'toy' could not be read: TypeError: 'int' object is not iterable"
    ]


def test_a_section_that_is_itself_wrong_is_not_held_against_the_others(problems):
    found = problems(
        "sandbox=absent", "trainer.use=absent", tasks=tasks({"id": "t1", "sandbox": True, "isolation": True})
    )
    assert [text.partition(": ")[0] for text in found] == ["--set trainer.use trainer.use", "--set sandbox sandbox"]


def test_checking_imports_neither_torch_nor_any_plugin_that_is_not_named(site, project):
    site.add(
        "bystander", points={"ferrule.losses": {"bystander": "bystander:B"}}, modules={"bystander": "raise SystemExit"}
    )
    code = (
        "import sys; from ferrule.config import load; load(sys.argv[1]);"
        "print(sorted({'torch', 'transformers', 'bystander', 'rich', 'click'} & set(sys.modules)))"
    )
    done = site.python("-c", code, str(project / "run.toml"))
    assert done.stdout.strip() == "[]", done.stderr
