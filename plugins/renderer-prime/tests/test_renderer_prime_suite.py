"""The conformance suite over the package's families, thinking and not thinking; of those that share all their code but a
default, one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from ferrule_testkit import RendererSuite

LAST = {
    "test_the_last_reply_ends_with_a_stop_token_too": (
        "the template ends the last reply with nothing; a demonstration gets a stop token"
    )
}
TOOLS_HIDDEN = {"test_tools_are_shown": "the template leaves the tools out; the renderer warns"}
SUFFIX = "the prompt opens a think block, and the template writes a reply without reasoning as if it had not"


def unlike(*names: str) -> dict[str, str]:
    """Checks whose replies have no reasoning, where the prompt leaves no choice but to think."""
    return dict.fromkeys((f"test_{name}" for name in names), SUFFIX)


PREFIX = unlike(
    "a_prompt_is_a_prefix_of_what_holds_its_reply[plain]", "a_prompt_is_a_prefix_of_what_holds_its_reply[call]"
)
PLAIN = PREFIX | unlike("text_comes_back_as_it_stands", "what_was_sampled_need_not_be_canonical")
STUCK = PLAIN | unlike(
    "text_beside_a_call_comes_back",
    "a_control_tokens_text_in_a_delta_stays_text",
    "a_users_message_extends_as_a_rendering_has_it",
    "the_delta_repeats_and_does_not_depend_on_earlier_ones",
    "the_delta_depends_on_the_tail_alone",
    "kept_reasoning_never_starts_a_segment",
    "other_tools_are_no_bridge",
)
CALLS = unlike(
    "a_call_comes_back_with_its_arguments",
    "text_beside_a_call_comes_back",
    "several_calls_come_back_in_order_with_ids_of_their_own",
    "a_call_without_arguments_has_none",
    "a_call_of_an_unknown_tool_comes_back_as_it_was_made",
    "text_for_a_string_parameter_comes_back_as_exactly_that_text",
    "other_parameters_are_typed_by_the_schema",
    "an_argument_of_the_wrong_type_is_an_error_on_its_call",
    "a_malformed_call_is_told_and_spares_the_good_one",
    "text_after_a_malformed_call_changes_nothing_of_that",
)
R1 = {n: w for n, w in (PLAIN | CALLS | TOOLS_HIDDEN).items() if "canonical" not in n}
HARMONY = dict.fromkeys(
    (
        *(name for name in STUCK | CALLS if "prefix" not in name),
        "test_a_prompt_is_a_prefix_of_what_holds_its_reply",
        *(
            f"test_action_is_what_the_model_would_have_sampled[{case}]"
            for case in ("plain", "answered", "unicode", "lines", "call", "call and text", "several")
        ),
        "test_reasoning_is_told_apart",
        "test_a_reply_cut_anywhere_is_truncated_and_raises_nothing",
        "test_reasoning_that_is_cut_is_no_answer",
        "test_each_stop_token_ends_a_reply",
        "test_a_cut_reply_is_closed_wherever_it_was_cut",
        "test_an_open_call_is_closed_before_the_turn",
        "test_open_reasoning_is_closed_before_the_turn",
    ),
    "the prompt opens the analysis channel, and the template drops the analysis of a reply that is not followed",
)
LLAMA = {
    "test_text_beside_a_call_comes_back": "the template has either text or one call; the renderer refuses both",
    "test_a_reply_cut_anywhere_is_truncated_and_raises_nothing": "text beside a call is refused",
    "test_a_control_tokens_text_in_a_content_stays_text[tool]": "the template writes answers as JSON strings",
    **{
        f"test_{name}": "the template has one call a reply; the renderer refuses several"
        for name in (
            "several_calls_come_back_in_order_with_ids_of_their_own",
            "a_malformed_call_is_told_and_spares_the_good_one",
            "text_after_a_malformed_call_changes_nothing_of_that",
            "reading_repeats",
            "answers_come_in_any_order_and_are_paired_by_id",
            "answers_stand_in_the_order_of_their_calls",
        )
    },
    **{
        f"test_{name}[{case}]": "the template has either text or one call; the renderer refuses more"
        for name in (
            "tokens_kinds_and_spans_have_their_shapes",
            "every_content_stands_in_the_span_of_its_message",
            "spans_follow_each_other",
            "observation_is_the_content_of_what_the_model_did_not_write",
            "action_is_what_the_model_would_have_sampled",
        )
        for case in ("call and text", "several")
    },
}
GEMMA = {
    f"test_{name}[call and text]": "the template moves text beside a call behind the call's answer"
    for name in (
        "spans_follow_each_other",
        "observation_is_the_content_of_what_the_model_did_not_write",
        "action_is_what_the_model_would_have_sampled",
    )
}
KIMI25 = dict.fromkeys(
    ("test_reasoning_is_told_apart", "test_reasoning_that_is_cut_is_no_answer"),
    "the template keeps the reasoning of replies that call, and drops it of a last reply",
)
LAGUNA = {
    "test_a_prompt_is_a_prefix_of_what_holds_its_reply[reasoning]": "the prompt closes a think block never opened"
}
V4 = {"test_answers_come_in_any_order_and_are_paired_by_id": "the package extends by one answer, and not by several"}
OFF = {"enable_thinking": False}


class Suite(RendererSuite):
    use = "prime"
    real: ClassVar[bool] = False

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _tokenizer(cls, folder: Any) -> None:
        cls.model = folder(cls.options["family"], cls.real)


def add(
    family: str,
    extra: str = "",
    xfails: Mapping[str, str] = {},
    *,
    real: bool = False,
    reasoning: bool = True,
    **options: Any,
) -> None:
    """A class for *family* in this module. *reasoning* is False where these options leave out a reply's reasoning."""
    name = f"Test_{family}{extra}".replace("-", "_").replace(".", "_")
    members: dict[str, Any] = {
        "options": {"family": family, "options": options},
        "real": real,
        "reasoning": reasoning,
        "xfails": xfails,
        "__module__": __name__,
    }
    globals()[name] = type(name, (Suite,), members)


add("qwen3", real=True)
add("prime-qwen3", "", {"test_a_call_after_reasoning_comes_back": "the template leaves it out of a reply that calls"})
add("qwen3-vl", reasoning=False)
add("qwen3.5")
add("qwen3.8")
add("nemotron-3", "", PLAIN)
add("nemotron-3-ultra", "_silent", reasoning=False, **OFF)
add("glm-4.5", "", LAST)
add("glm-5", "", STUCK | LAST)
add("glm-5", "_silent", LAST, real=True, reasoning=False, **OFF)
add("glm-5.3", "", LAST)
add("laguna-xs.2", "", LAGUNA)
add("laguna-xs-2.1", reasoning=False)
add("laguna-s-2.1")
add("hy3", "", LAST, reasoning=False)
add("hy3", "_thinking", LAST, reasoning_effort="high")
add("deepseek-v3", "", TOOLS_HIDDEN, real=True, reasoning=False)
add("deepseek-r1", "", R1, reasoning=False)
add("deepseek-v4", "", V4, reasoning=False)
add("deepseek-v4", "_thinking", V4, enable_thinking=True)
add("kimi-k2", real=True, reasoning=False)
add("kimi-k2.5", "", KIMI25)
add("kimi-k2.5", "_silent", reasoning=False, thinking=False)
add("gpt-oss", "", HARMONY)
add("llama-3", "", LLAMA, reasoning=False)
add("inkling")
add("minimax-m2", "", STUCK)
add("gemma4", "", GEMMA)
