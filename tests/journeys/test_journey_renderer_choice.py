"""``ferrule explain`` and a run's header on a real tokenizer: which renderer ``auto`` came to, why, and what thinking
costs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from ferrule.config import load
from ferrule.training.parts import Parts, facts

ROOT = Path(__file__).parents[2]


def explain(*sets: str, as_json: bool = True):
    words = [str(ROOT / "contrib/gridsim/train.toml"), *(word for s in sets for word in ("--set", s))]
    done = subprocess.run(
        [sys.executable, "-m", "ferrule", "explain", *words, *(["--json"] if as_json else [])],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["renderer"] if as_json else done.stdout


@pytest.fixture(scope="module")
def qwen3() -> str:
    import ferrule_test_assets

    return str(ferrule_test_assets.qwen3())


def test_a_model_by_its_id_and_the_price_of_each_choice_about_thinking(qwen3) -> None:
    sets = (f"model.tokenizer={qwen3}", "renderer.use=auto", "model.id=Qwen/Qwen3-8B")
    said = explain(*sets)
    assert (said["name"], said["guess"], said["thinking"]) == ("chatml", False, "template")
    assert "written for Qwen/Qwen3-8B" in said["why"]
    rows = {choice["thinking"]: choice["rows"] for choice in said["choices"]}
    # Three questions: the template strips thinking at each, keeping never does, stripping does after every reply.
    assert rows == {"template": 3, "keep": 1, "strip": 12}
    tokens = {choice["thinking"]: choice["tokens"] for choice in said["choices"]}
    assert tokens["keep"] < tokens["template"] < tokens["strip"]
    text = explain(*sets, as_json=False)
    assert "template *" in text
    assert "kept as text" in text


def test_a_model_that_nobody_is_written_for_is_a_loud_guess(qwen3) -> None:
    sets = (f"model.tokenizer={qwen3}", "renderer.use=auto", "model.id=acme/new-model")
    assert explain(*sets)["guess"] is True
    assert "WARNING: this is a guess" in explain(*sets, as_json=False)


@pytest.mark.parametrize(
    ("model", "thinking", "cost"),
    [
        ("Qwen/Qwen3-8B", "template", "(3 replies with reasoning are 3 rows"),
        ("Qwen/Qwen3-8B", "keep", ""),
        ("acme/new-model", "template", "(3 replies with reasoning are 3 rows"),
    ],
)
async def test_the_header_of_a_run_says_what_thinking_costs_and_a_guess_is_warned_of(
    qwen3, model, thinking, cost
) -> None:
    sets = [f"model.tokenizer={qwen3}", "renderer.use=auto", f"model.id={model}", f"renderer.thinking={thinking}"]
    with structlog.testing.capture_logs() as logs:
        structlog.configure(processors=structlog.get_config()["processors"])
        parts = Parts.build(load(ROOT / "contrib/gridsim/train.toml", sets), train=True)
    structlog.reset_defaults()
    parts.trainer.vocab_size = parts.renderer.vocab_size  # which it knows once it is started
    said = dict(await facts(parts, "runs/one", []))["renderer"]
    assert f"(auto: {parts.loaded.config.renderer.why})" in said
    assert cost in said
    assert ("rows" in said) == bool(cost)
    warned = [entry["renderer"] for entry in logs if entry["event"] == "renderer_guessed"]
    assert warned == (["chat_template"] if model.startswith("acme") else [])
