"""The suite for renderers: an honest renderer passes, and each of many wrong ones fails for the reason it should."""

from __future__ import annotations

from pathlib import Path

import ferrule_test_assets as assets
import pytest
from ferrule_testkit import RendererSuite

from ferrule import ConfigError, ModelSpec

pytest_plugins = ["pytester"]

SMALL = Path(__file__).with_name("small_renderers.py")


class TestSmall(RendererSuite):
    use = "small_renderers.py:Small"
    model = assets.byte_tokenizer


class TestRefusing(RendererSuite):
    use = "small_renderers.py:Refusing"
    model = assets.byte_tokenizer
    calls = False


@pytest.fixture
def run(pytester: pytest.Pytester):
    """Run a suite in a pytest of its own; the outcome of each check that *select* names."""

    def run(body: str, select: str) -> dict[str, pytest.TestReport]:
        folder = assets.byte_tokenizer()
        lines = "\n".join(f"    {line}" for line in body.splitlines())
        pytester.makepyfile(
            "from ferrule_testkit import RendererSuite\n"
            f"class TestIt(RendererSuite):\n    model = {str(folder)!r}\n{lines}\n"
        )
        # Plugins of the outer run that are slow to load and that no suite needs.
        apart = [f"-pno:{name}" for name in ("cacheprovider", "hypothesispytest", "asyncio", "anyio")]
        recorded = pytester.inline_run("-k", select, *apart)
        reports = [
            r for r in recorded.getreports("pytest_runtest_logreport") if r.when == "call" or r.skipped or r.failed
        ]
        return {r.nodeid.partition("::TestIt::")[2]: r for r in reports}

    return run


WRONG = {
    "DropsAMessage": ("every_content_stands_in", "the tool message is not in its span"),
    "OffByOne": ("action_is_what", "action does not end with a stop token"),
    "WideIds": ("tokens_kinds_and_spans", "ids are int64, not int32"),
    "NoStopInAction": ("action_is_what", "action does not end with a stop token"),
    "OtherPrompt": ("a_prompt_is_a_prefix", "the reply's action does not begin where the prompt ends"),
    "ControlText": ("a_control_tokens_text_in_a_content", "came of plain text"),
    "BySpokenOrder": ("answers_come_in_any_order", "assert ["),
    "RendersAgain": ("a_users_message_extends", "after the reply come"),
    "NoNewline": ("a_users_message_extends", "after the reply come"),
    "LeavesOpen": ("open_reasoning_is_closed", "a block stays open"),
    "NeverCloses": ("a_cut_reply_is_closed", "the turn is not closed before the next message"),
    "RaisesOnSystem": ("messages_that_cannot_be_written", "bridge raised ValueError: System message must be"),
    "SkipsSystem": ("a_system_message_is_written_or_refused", "a system message was dropped in silence"),
    "Remembers": ("the_delta_repeats", "depends on what was bridged before it"),
    "AcceptsOtherTools": ("other_tools_are_no_bridge", "isinstance"),
    "Retypes": ("text_for_a_string_parameter", "19122"),
    "Unsteady": ("reading_repeats", "the same tokens were read in two ways"),
    "HidesMalformed": ("a_malformed_call_is_told", "assert 0 == 1"),
    "ParseRaises": ("any_tokens_at_all", "parse raised UnicodeDecodeError"),
    "AnyThinking": ("a_way_of_thinking_that_it_cannot_do", "DID NOT RAISE"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_renderer_fails_for_its_reason(run, wrong):
    check, reason = WRONG[wrong]
    reports = run(f"use = {f'{SMALL}:{wrong}'!r}", check)
    failed = [r for r in reports.values() if r.failed]
    assert failed, f"{check} lets {wrong} pass: {reports}"
    assert any(reason in str(r.longrepr) for r in failed), failed[0].longrepr


def test_an_import_of_heavy_libraries_is_told(run, pytester):
    source = SMALL.read_text().replace("import numpy as np\n", "import numpy as np\nimport tokenizers\n", 1)
    heavy = pytester.path / "heavy.py"
    heavy.write_text(source)
    (report,) = run(f"use = {f'{heavy}:Small'!r}", "imported_without_heavy").values()
    assert report.failed
    assert "imports ['tokenizers']" in str(report.longrepr)


def test_a_declared_gap_is_an_expected_failure_with_its_reason(run):
    gap = "{'test_a_system_message_is_written_or_refused_by_name': 'the library skips it'}"
    (report,) = run(f"use = {f'{SMALL}:SkipsSystem'!r}\nxfails = {gap}", "a_system_message_is_written").values()
    assert report.skipped
    assert report.wasxfail == "the library skips it"


def test_a_gap_may_be_one_case_or_a_group_of_checks(run):
    gaps = "{'test_text_for_a_string_parameter_comes_back_as_exactly_that_text[19122]': 'x'}"
    reports = run(f"use = {f'{SMALL}:Retypes'!r}\nxfails = {gaps}", "exactly_that_text and (19122 or null)")
    assert sorted((r.outcome, hasattr(r, "wasxfail")) for r in reports.values()) == [
        ("failed", False),
        ("skipped", True),
    ]
    reports = run(f"use = {f'{SMALL}:HidesMalformed'!r}\nxfails = {{'reading calls': 'x'}}", "a_malformed_call_is_told")
    assert [r.wasxfail for r in reports.values()] == ["x"]


def test_a_declared_gap_that_is_none_fails(run):
    gap = "{'test_rendering_repeats': 'it never does'}"
    (report,) = run(f"use = {f'{SMALL}:Small'!r}\nxfails = {gap}", "rendering_repeats").values()
    assert report.failed
    assert "it never does" in str(report.longrepr)


@pytest.mark.parametrize(
    ("gaps", "told"),
    [({"test_rendering_repeat": "why"}, "test_rendering_repeats"), ({"test_rendering_repeats": " "}, "no reason")],
)
def test_gaps_name_checks_that_exist_and_give_reasons(gaps, told):
    with pytest.raises(TypeError, match=told):
        type("TestIt", (RendererSuite,), {"xfails": gaps})


def test_what_the_renderer_says_of_its_limits_is_skipped_with_the_limit(run):
    reports = run(f"use = {f'{SMALL}:Refusing'!r}\ncalls = False", "extends or stays_text or tools_are_shown")
    reasons = {r.longrepr[2] for r in reports.values() if r.skipped}
    assert reasons == {
        "Skipped: the renderer extends no history",
        "Skipped: the library behind reads a control token's text as the token",
        "Skipped: the format has no tool calls",
    }
    assert not any(r.failed for r in reports.values())


def test_calls_declared_missing_that_are_there_are_told(run):
    (report,) = run(f"use = {f'{SMALL}:Small'!r}\ncalls = False", "calls_are_written_or_refused").values()
    assert report.failed
    assert "take `calls = False` away" in str(report.longrepr)


def test_options_are_read_as_those_of_a_configuration(tmp_path):
    suite = type("TestIt", (TestSmall,), {"options": {"thinkin": "keep"}, "__module__": __name__})
    with pytest.raises(ConfigError, match="did you mean 'thinking'"):
        suite.make()


@pytest.mark.parametrize(
    "model", [str(assets.byte_tokenizer()), assets.byte_tokenizer(), ModelSpec(tokenizer=str(assets.byte_tokenizer()))]
)
def test_a_model_may_be_a_folder_or_a_spec(model):
    suite = type("TestIt", (TestSmall,), {"model": model})
    assert suite.make().model == ModelSpec(tokenizer=str(assets.byte_tokenizer()))


def test_the_class_itself_may_be_given():
    cls = type(TestSmall.make())
    assert type(type("TestIt", (TestSmall,), {"use": cls}).make(thinking="keep")) is cls
