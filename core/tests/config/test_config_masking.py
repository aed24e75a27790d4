"""Secrets that are known by value do not come back in errors, logs or episodes."""

from __future__ import annotations

import pytest
import structlog

import ferrule
from ferrule import EpisodeFailed, Failure, FerruleError, ToolError, get_logger
from ferrule.masking import masked, remember
from ferrule.rollout.shutdown import one_line


@pytest.fixture
def secret(monkeypatch):
    monkeypatch.setattr("ferrule.masking._known", set())
    remember({"losses": [{"use": "x", "api_key": "sk-0123456789"}], "trainer": {"max_tokens": "many-of-them"}})
    return "sk-0123456789"


def test_a_configurations_secret_is_masked_in_every_error(secret):
    assert str(FerruleError(f"refused: {secret}")) == "refused: ***"
    assert str(ToolError(f"no entry with {secret}")) == "no entry with ***"
    failed = EpisodeFailed(Failure.VERIFIER_CRASHED, f"GET /?key={secret}")
    assert failed.detail == "GET /?key=***"
    assert str(failed) == "verifier_crashed: GET /?key=***"
    assert one_line(ValueError(f"bad {secret}")) == "ValueError: bad ***"


def test_what_is_not_under_a_secret_key_is_left_alone(secret):
    assert masked("many-of-them") == "many-of-them"


def test_a_secret_of_the_environment_is_masked(monkeypatch):
    monkeypatch.setenv("ACME_API_KEY", "environment-secret")
    monkeypatch.setenv("ACME_TOKEN", "/a/path")
    assert masked("with environment-secret at /a/path") == "with *** at /a/path"


def test_a_secret_that_was_made_on_the_way_is_masked(secret):
    ferrule.keep_secret("made-for-this-run")
    ferrule.keep_secret("short")
    assert str(FerruleError("short text with made-for-this-run")) == "short text with ***"
    ferrule.forget_secret("made-for-this-run")
    ferrule.forget_secret("never known")
    assert ferrule.masked(f"made-for-this-run, {secret}") == "made-for-this-run, ***"


def test_logs_mask_secrets(secret):
    with structlog.testing.capture_logs() as logs:
        get_logger("ferrule.test").warning("refused", detail=f"key {secret}", count=3)
    assert [(entry["detail"], entry["count"]) for entry in logs] == [("key ***", 3)]


def test_a_fault_of_a_command_shows_its_traceback_without_secrets(secret, monkeypatch, capsys):
    import ferrule.cli as command

    def broken(*_, **__):
        raise RuntimeError(f"boom with {secret}")

    monkeypatch.setattr(command.cli, "main", broken)
    with pytest.raises(SystemExit) as ended:
        command.main(["plugins"])
    assert ended.value.code == 1
    shown = capsys.readouterr().err
    assert "RuntimeError: boom with ***" in shown
    assert secret not in shown
