"""Where values came from, what is shown of them, and saving."""

from __future__ import annotations

import json
import os
import stat
import tomllib

import pytest

from ferrule.config import explain, load_data, redacted, save
from ferrule.config.lines import line_of, scan
from ferrule.config.secrets import is_secret
from ferrule.errors import ConfigError


def test_every_value_says_where_it_came_from(loads, project):
    loaded = loads("trainer.tiny.width=32", "eval.limit=5", add="[sampling]\ntemperature = 1.1\n")
    where = {row.path: (row.value, row.where) for row in explain(loaded)}
    file = project / "run.toml"
    assert where["name"] == ("toy", f"{file}:1")
    assert where["trainer.use"] == ("toy", f"{file}:11")
    assert where["trainer.tiny.layers"] == (3, f"{file}:15")
    assert where["trainer.tiny.width"] == (32, "--set")
    assert where["losses[0].coef"] == (0.1, f"{file}:25")
    assert where["sampling.temperature"] == (1.1, f"{file}:30")
    assert where["eval.limit"] == (5, "--set")
    assert where["train.group_size"] == (8, "default")
    assert where["advantage.eps"] == (1e-6, "default")
    assert loaded.provenance["losses", 0, "coef"] == f"{file}:25"


def test_secrets_are_hidden_wherever_they_stand(loads, command, project):
    loaded = loads("trainer.api_key=hunter2", "seed=3")
    assert {row.path: row.value for row in explain(loaded)}["trainer.api_key"] == "***"
    assert redacted(loaded.raw)["trainer"] == {"use": "toy", "threads": 2, "tiny": {"layers": 3}, "api_key": "***"}
    assert loaded.config.trainer.config.api_key == "hunter2"
    for words in (["explain"], ["explain", "--json"]):
        code, out, err = command(*words, project / "run.toml", "--set", "trainer.api_key=hunter2")
        assert code == 0, err
        assert "hunter2" not in out + err


@pytest.mark.parametrize(
    "key",
    [
        "api_key",
        "apiKey",
        "API-KEY",
        "token",
        "HF_TOKEN",
        "client.secret",
        "password",
        "key",
        "OPENAI_API_KEY",
        "Authorization",
        "aws_credentials",
    ],
)
def test_names_of_secrets(key):
    assert is_secret(key)


@pytest.mark.parametrize(
    "key", ["max_tokens", "tokenizer", "monkey", "keyboard", "secretary", "max_prompt_tokens", "", 3]
)
def test_names_of_what_is_none(key):
    assert not is_secret(key)


def test_redaction_covers_all_below_a_secret_key_and_leaves_the_rest(loads):
    data = {"env": {"A_TOKEN": "x", "HOME": "/"}, "keys": ["a", {"b": "c"}], "token": 3, "secret": "", "n": None}
    assert redacted(data) == {
        "env": {"A_TOKEN": "***", "HOME": "/"},
        "keys": ["***", {"b": "***"}],
        "token": 3,
        "secret": "",
        "n": None,
    }


def test_what_was_loaded_loads_again_from_its_plain_data(loads, project, tmp_path, monkeypatch):
    (tmp_path / "other.json").write_text((project / "tasks.json").read_text())
    monkeypatch.chdir(tmp_path)
    loaded = loads("taskset.path=other.json", "train.steps=9")
    raw = json.loads(json.dumps(loaded.raw))
    monkeypatch.chdir("/")
    again = load_data(raw, project / "run.toml", (), loaded.registry)
    assert again.config == loaded.config
    assert again.config.train.steps == 9


def test_explain_names_the_plugins_with_their_versions_and_what_is_played(command, project):
    code, out, err = command("explain", project / "run.toml")
    assert code == 0, err
    assert "losses[0]\ttoy_echo\tferrule-toy 0.3" in out
    assert "policy loss ppo" in out
    assert "task set toy: train (2 tasks), eval (1 tasks)" in out
    assert "reinforcement: 4 steps of 4 tasks of train × 8 attempts" in out
    assert "train.steps\t4\t" in out
    code, out, _ = command("explain", project / "run.toml", "--json")
    data = json.loads(out)
    (trainer,) = [p for p in data["plugins"] if p["section"] == "trainer"]
    assert (trainer["class"], trainer["from"]) == ("ferrule_toy:ToyTrainer", "ferrule-toy 0.3")
    assert trainer["provides"] == [
        "cross_entropy",
        "logprobs",
        "policy loss cross_entropy",
        "policy loss importance_sampling",
        "policy loss ppo",
    ]


def test_explain_says_which_tokens_a_loss_is_over_with_its_options(command, project):
    (project / "wide.py").write_text(
        "import attrs, ferrule\nclass Wide(ferrule.AuxLoss, name='wide'):\n    mask = ferrule.Mask.OBSERVATION\n    @attrs.frozen\n"
        "    class Config(ferrule.AuxLoss.Config):\n        mask: str = 'observation'\n    def weight(self, row, ctx): return 1.0\n"
        "    def tokens(self, row): return ferrule.Mask(self.config.mask).of(row.kind)\n"
    )
    for mask, over in (
        ("observation", "observation"),
        ("environment", "observation and scaffold"),
        ("nonsense", "observation"),
    ):
        loss = f"losses=[{{use = '{project}/wide.py:Wide', coef = 0.5, mask = '{mask}'}}]"
        code, out, err = command("explain", project / "run.toml", "--set", loss)
        assert code == 0, err
        assert f"auxiliary loss wide: coefficient 0.5, over {over} tokens" in out


ODD = '''\
# a comment with = and [brackets]
title = "has = and [x] # in it"
a.b = 1
"quoted.key" = 2
text = """
[not.a.table]
x = 1
""\\"still"""
literal = \'\'\'
y = 2\'\'\'
array = [
  1, # one
  [2,
   3],
  { k = "v", l = [4] },
]
[one]
x = 1
[one.two]
y = """a"""   # same line
[[list]]
n = 1
[[list.inner]]
m = 1
[[list.inner]]
m = 2
[[list]]
n = 2
[list.sub]
z = 3
[[list.inner]]
m = 3
'''


def test_lines_are_found_through_strings_comments_arrays_and_tables():
    data, lines = tomllib.loads(ODD), scan(ODD)
    expected = {
        ("title",): 2,
        ("a", "b"): 3,
        ("quoted.key",): 4,
        ("text",): 5,
        ("literal",): 9,
        ("array", 0): 12,
        ("array", 1): 13,
        ("array", 1, 1): 14,
        ("array", 2, "k"): 15,
        ("array", 2, "l", 0): 15,
        ("one",): 17,
        ("one", "x"): 18,
        ("one", "two", "y"): 20,
        ("list", 0, "n"): 22,
        ("list", 0, "inner", 0, "m"): 24,
        ("list", 0, "inner", 1, "m"): 26,
        ("list", 1): 27,
        ("list", 1, "sub", "z"): 30,
        ("list", 1, "inner", 0, "m"): 32,
    }
    assert {path: lines[path] for path in expected} == expected
    for path in lines:  # nothing is found that is not there
        value = data
        for part in path:
            value = value[part]
    assert line_of(lines, ("one", "two", "absent")) == 19
    assert line_of(lines, ("absent",)) is None


def test_saving_keeps_comments_and_the_keys_that_another_tool_wrote(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        '# mine\nname = "a" # here\n[other]\nkey_of_theirs = 1\n[train]\nsteps = 1\n\n[[losses]]\nuse = "echo"\n'
    )
    save(path, {"name": "b", "train": {"steps": 2, "split": "x"}, "eval": {"limit": 3}})
    text = path.read_text()
    assert "# mine" in text
    assert "# here" in text
    assert tomllib.loads(text) == {
        "name": "b",
        "other": {"key_of_theirs": 1},
        "train": {"steps": 2, "split": "x"},
        "losses": [{"use": "echo"}],
        "eval": {"limit": 3},
    }
    save(path, {"other": None, "losses": [{"use": "sdar", "coef": 0.5}]})
    assert tomllib.loads(path.read_text())["losses"] == [{"use": "sdar", "coef": 0.5}]
    assert "other" not in tomllib.loads(path.read_text())


def test_a_file_with_a_secret_is_its_owners_alone(tmp_path):
    path = tmp_path / "run.toml"
    save(path, {"a": 1})
    assert tomllib.loads(path.read_text()) == {"a": 1}
    open_mode = stat.S_IMODE(path.stat().st_mode)
    assert open_mode & 0o044
    os.chmod(path, 0o640)
    save(path, {"b": 1})
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    save(path, {"trainer": {"api_key": "x"}})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["run.toml"]


def test_a_file_that_is_not_toml_is_left_as_it_is(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("a = = 1")
    with pytest.raises(ConfigError, match="is not TOML"):
        save(path, {"b": 1})
    assert path.read_text() == "a = = 1"
    assert os.listdir(tmp_path) == ["run.toml"]
