"""Files and values that Python's own reader gives up on are mistakes like any other."""

from __future__ import annotations

import pytest

from ferrule import ConfigError
from ferrule.config import load, load_data

DEEP = "[" * 3000 + "]" * 3000


@pytest.mark.parametrize("text", [f"x = {DEEP}", "seed = " + "9" * 5000, "[" + ".".join("a" * 3000) + "]\nb = 1"])
def test_a_file_nested_too_deep_or_with_numbers_too_long_is_refused(registry, tmp_path, text):
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"run\.toml: cannot be read"):
        load(path, (), registry)


@pytest.mark.parametrize("value", [DEEP, "9" * 5000])
def test_an_override_like_that_is_refused_with_its_key(problems, value):
    assert any("--set train.steps" in text and "cannot be read" in text for text in problems(f"train.steps={value}"))


def test_a_tokenizer_whose_name_no_folder_can_have_is_left_to_the_renderer(registry, tmp_path):
    data = {"model": {"tokenizer": "x" * 5000}}
    with pytest.raises(ConfigError, match="taskset: required"):  # and not an OSError
        load_data(data, tmp_path / "run.toml", (), registry)
