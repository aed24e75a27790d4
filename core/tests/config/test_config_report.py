"""Wrong configurations: each gives a clear report of everything that is wrong, with its place, and exit code 2."""

from __future__ import annotations

import json

import pytest

LOSS = """
import ferrule
class {name}(ferrule.AuxLoss, name="{label}"):
    def weight(self, row, ctx): return 1.0
"""


def check(site, project, *words: str):
    return site.run("check", project / "run.toml", *words)


def install(
    site, name: str, version: str = "1.0", *, source: str, requires: tuple[str, ...] = (), label: str = "extra"
) -> None:
    module = name.replace("-", "_")
    site.add(
        name,
        version,
        points={"ferrule.losses": {label: f"{module}:Extra"}},
        modules={module: source},
        requires=requires,
    )


def test_a_sound_configuration_passes(site, project):
    done = check(site, project)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no mistakes" in done.stdout


SPOILED = {
    "misspelt plugin": (
        ('use = "toy_grpo"', 'use = "toy_gpro"'),
        ["run.toml:21: advantage.use: no advantage is called 'toy_gpro'; did you mean 'toy_grpo'?"],
    ),
    "unknown key in a plugin's section": (
        ("threads = 2", "thread = 2"),
        ["run.toml:12: trainer.thread: unknown key; did you mean 'threads'?"],
    ),
    "wrong type": (
        ("threads = 2", 'threads = "2"'),
        ["run.toml:12: trainer.threads: expected a whole number, got '2' (text)"],
    ),
    "missing file": (('"tasks.json"', '"absent.json"'), ["run.toml:5: taskset.path: no such file: ", "absent.json"]),
    "unmet capability": (
        ('use = "toy_echo"', 'use = "toy_gate"'),
        [
            "run.toml:24: losses[0].use: loss 'toy_gate' (losses[0].use) needs 'entropy', and trainer 'toy' (trainer.use) provides cross_entropy, logprobs"
        ],
    ),
    "two mistakes at once": (
        ("threads = 2\n\n[trainer.tiny]\nlayers = 3", "threads = 2.5\n\n[trainer.tiny]\nlayres = 3"),
        [
            "2 mistakes",
            "run.toml:12: trainer.threads: expected a whole number, got 2.5",
            "run.toml:15: trainer.tiny.layres: unknown key; did you mean 'layers'?",
        ],
    ),
    "a loss listed twice": (
        ("[train]", '[[losses]]\nuse = "toy_echo"\n\n[train]'),
        ["run.toml:28: losses[1].use: loss 'toy_echo' is listed twice: losses[0] and losses[1]"],
    ),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_wrong_configuration_is_reported_and_exits_with_2(command, project, name):
    change, said = SPOILED[name]
    text = (project / "run.toml").read_text()
    assert change[0] in text
    (project / "run.toml").write_text(text.replace(*change, 1))
    code, out, err = command("check", project / "run.toml")
    assert (code, out) == (2, "")
    for part in said:
        assert part in err
    assert ("1 mistake in" in err) == (name != "two mistakes at once")


def test_an_incompatible_version_of_a_plugin_is_reported_before_it_is_imported(site, project):
    install(site, "old-losses", "0.4", source="raise RuntimeError('was imported')", requires=("ferrule<0.1",))
    done = check(site, project, "--set", "losses.1.use=extra")
    assert done.returncode == 2
    assert (
        "--set losses.1.use: losses[1].use: loss 'extra' cannot be used: old-losses 0.4 needs ferrule<0.1, and this is ferrule 0.1.0"
        in done.stderr
    )
    assert "was imported" not in done.stderr


@pytest.mark.parametrize("source", ["raise RuntimeError('no licence')", "raise SystemExit('no licence')"])
def test_a_plugin_that_raises_on_import_is_reported_and_breaks_nothing_else(site, project, source):
    install(site, "bad-losses", "0.7", source=source)
    done = check(site, project, "--set", "losses.1.use=extra")
    assert done.returncode == 2
    assert "loss 'extra' of bad-losses 0.7 did not load" in done.stderr
    assert "no licence" in done.stderr
    assert check(site, project).returncode == 0
    listed = site.run("plugins", "list")
    assert listed.returncode == 0
    assert "bad-losses" in listed.stdout


def test_two_distributions_with_one_name_are_reported_and_the_longer_spelling_works(site, project):
    for name in ("left-losses", "right-losses"):
        install(site, name, source=LOSS.format(name="Extra", label="extra"))
    done = check(site, project, "--set", "losses.1.use=extra", "--set", "losses.1.coef=0.1")
    assert done.returncode == 2
    assert "left-losses 1.0, right-losses 1.0; write 'extra@left-losses' or 'extra@right-losses'" in done.stderr
    assert check(site, project, "--set", "losses.1.use=extra@left-losses", "--set", "losses.1.coef=0.1").returncode == 0


def test_an_older_copy_of_a_distribution_in_use_is_mentioned(site, project, command):
    (site.path / "ferrule_toy-0.2.dist-info").mkdir()
    code, _, err = command("check", project / "run.toml")
    assert code == 0
    assert err.startswith("note: ferrule-toy: a folder without metadata")


def test_the_report_for_programs_holds_every_problem(site, project):
    done = check(site, project, "--json", "--set", "train.stesp=3", "--set", "seed=x")
    assert done.returncode == 2
    report = json.loads(done.stdout)
    assert report["ok"] is False
    assert {(p["path"], p["source"]) for p in report["problems"]} == {
        ("train.stesp", "--set train.stesp"),
        ("seed", "--set seed"),
    }


def test_a_file_that_is_missing_not_toml_or_not_text_says_where(project, command):
    code, _, err = command("check", project / "absent.toml")
    assert code == 2
    assert "absent.toml: no such file" in err
    broken = {
        b"a = 1\nb = \n": "run.toml:2: is not TOML",
        b'a = 1\nb = "open': "run.toml:2: is not TOML",
        b"a = 1\na = 2\n": "run.toml:2: is not TOML",
        b"\xff\xfe": "run.toml: is not UTF-8",
    }
    for text, said in broken.items():
        (project / "run.toml").write_bytes(text)
        code, _, err = command("check", project / "run.toml")
        assert code == 2
        assert said in err


def test_mistakes_of_every_sort_arrive_in_one_report(problems):
    found = problems(
        "seed=true",
        "name.x=1",
        "save.keep=0",
        replace=(
            "[train]\nsteps = 4",
            '[train]\nsteps = -1\ngroupsize = 2\noptim = { name = "adam", lr = inf, betas = [0.9] }\n[policy]\nloss = "pppo"',
        ),
    )
    assert found == [
        "28 train.steps: 'steps' must be >= 0: -1",
        "29 train.groupsize: unknown key; did you mean 'group_size'?",
        "30 train.optim.lr: expected a finite number, got inf (a number)",
        "30 train.optim.betas: expected 2 elements, got 1",
        "32 policy.loss: trainer 'toy' has no policy loss 'pppo'; did you mean 'ppo'?",
        "--set name.x name: is 'toy', not a table, so 'x' cannot be set in it",
        "--set seed seed: expected a whole number, got true",
        "--set save.keep save.keep: 'keep' must be >= 1: 0",
    ]


def test_a_class_in_a_users_file_is_found_beside_the_configuration(site, project):
    (project / "my_losses.py").write_text(LOSS.format(name="Mine", label="mine"))
    (project / "run.toml").write_text(
        (project / "run.toml").read_text().replace('use = "toy_echo"', 'use = "my_losses.py:Mine"')
    )
    done = check(site, project)
    assert (done.returncode, done.stderr) == (0, "")
