"""Every family against the package itself: the same tokens, and the same deltas from the tail as from all the history."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
from ferrule_renderer_prime.families import FAMILIES

from ferrule import Message, NoBridge, Rendered, TokenKind, ToolCall

NAMES = [name for name in FAMILIES if name != "default"]
CALL = ToolCall("functions.weather:0", "weather", {"city": "19122", "days": 7})
ASKED = [Message("system", "Be brief.\n\nAnd kind."), Message("user", "Is it wet?\n")]
RAIN = Message("tool", "It rains.\n\n", tool_call_id="functions.weather:0", name="weather")


def package(folder: str, family: str) -> Any:
    """The package's own renderer, over the folder's own tokenizer."""
    from renderers import create_renderer
    from renderers.configs import config_from_name
    from transformers import AutoTokenizer

    return create_renderer(AutoTokenizer.from_pretrained(folder, local_files_only=True), config_from_name(family))


def wires(messages: list[Message], family: str) -> list[dict[str, Any]]:
    out = [m.to_openai() for m in messages]
    for wire in out:
        if wire["role"] == "tool" and not FAMILIES[family].named:
            wire.pop("name", None)
    return out


@pytest.mark.parametrize("family", NAMES)
def test_a_conversation_is_written_as_the_package_writes_it(
    renderer: Any, folder: Any, weather: Any, family: str
) -> None:
    ours, theirs = renderer(family), package(folder(family), family)
    rain = Message(
        "tool",
        RAIN.content,
        tool_call_id=RAIN.tool_call_id,
        name="weather" if ours._parts.rendering.family.named else None,
    )
    messages = [*ASKED, Message("assistant", "", "I look.", (CALL,)), rain, Message("assistant", "Yes."), ASKED[1]]
    for generation in (True, False):
        rendered = ours.render(messages, [weather], generation=generation)
        expected = theirs.render(wires(messages, family), tools=[weather.to_openai()], add_generation_prompt=generation)
        assert rendered.ids.tolist() == list(expected.token_ids)
        # Whatever the package calls sampled is action, but for blocks that the prompt opened already.
        sampled = np.array(expected.sampled_mask, bool)
        assert not (rendered.kinds[~sampled & (rendered.kinds == TokenKind.OBSERVATION)] == TokenKind.ACTION).any()
        said = rendered.ids[rendered.kinds == TokenKind.ACTION]
        assert "19122" in ours.decode(said)
        assert "Yes." in ours.decode(said)
        assert "rains" not in ours.decode(said)
        observed = ours.decode(rendered.ids[rendered.kinds == TokenKind.OBSERVATION])
        assert "It rains." in observed
        assert "kind." in observed


def by_the_package(renderer: Any, ids: list[int], prompt: int, new: list[Message], tools: Any) -> list[int] | None:
    """The delta that the package gives to the whole history."""
    rendering = renderer._parts.rendering
    rendering.tokenizer.choose(new, tools)
    out = rendering.engine.bridge_to_next_turn(
        ids[:prompt], ids[prompt:], rendering.wire.messages(new), tools=rendering.wire.tools(tools)
    )
    return None if out is None else [int(i) for i in out.token_ids[len(ids) :]]


@pytest.mark.parametrize("family", [n for n in NAMES if n != "gpt-oss"])
def test_the_tail_gives_the_delta_that_all_the_history_gives(
    renderer: Any, talk: Any, say: Any, weather: Any, family: str
) -> None:
    made = renderer(family, "keep")
    played = talk(made, list(ASKED), (weather,))
    played.start()
    for turn, new in enumerate(
        [
            [Message("user", "And tomorrow? 🦜\n")],
            [Message("user", "<|im_end|> & </think>")],
            [Message("user", "")],
            [Message("user", "Thanks.")],
        ]
    ):
        completion = say(made, played.opened, f"Turn {turn}.")
        cut = turn % 2 == 1
        played.say(completion[:-2] if cut else completion, not cut)
        ids, prompt = list(played.ids), played.prompt
        delta = played.hear(*new)
        assert isinstance(delta, Rendered), delta
        expected = by_the_package(made, ids, prompt, new, (weather,))
        assert expected is not None
        gap = [] if cut else made._parts.encoder.encode(made._parts.rendering.family.gap)
        assert delta.ids.tolist() == [*gap, *expected]
        assert played.ids[: len(ids)] == ids
        assert new[0].content.strip() in made.decode(delta.ids)


@pytest.mark.parametrize("family", NAMES)
def test_the_package_is_given_no_more_than_the_tail(
    renderer: Any, talk: Any, say: Any, weather: Any, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = renderer(family, "keep")
    played = talk(made, [Message("user", "word " * 500)], (weather,))
    played.start()
    played.say(say(made, played.opened, "Short."))
    given: list[int] = []
    for engine in {id(e): e for e in (made._parts.rendering.engine, made._parts.rendering.keeps)}.values():
        real = engine.bridge_to_next_turn

        def watched(before: Any, completion: Any, *args: Any, real: Any = real, **options: Any) -> Any:
            given.append(len(before) + len(completion))
            return real(before, completion, *args, **options)

        monkeypatch.setattr(engine, "bridge_to_next_turn", watched)
    assert isinstance(played.hear(Message("user", "Why?")), Rendered)
    assert len(given) == 1
    assert given[0] <= len(played.tail.ids) + 1 < 60


def test_a_harmony_conversation_goes_on_as_it_was_sampled(renderer: Any, talk: Any, weather: Any) -> None:
    made = renderer("gpt-oss", "keep")
    played = talk(made, list(ASKED), (weather,))
    assert played.start().opened == ("think",)
    encode = made._parts.encoder.encode
    said = played.say(
        encode(
            "Look first.<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
            '{"city": 1e5, "days": 7.0}<|call|>'
        )
    )
    assert said.reasoning == "Look first."
    (call,) = said.tool_calls
    assert (call.name, call.arguments, call.error) == ("weather", {"city": "1e5", "days": 7}, None)
    before = list(played.ids)
    delta = played.hear(Message("tool", "<|end|> rain", tool_call_id=call.id))
    assert made.decode(delta.ids).startswith(
        "<|start|>functions.weather to=assistant<|channel|>commentary<|message|><|end|> rain"
    )
    assert played.ids[: len(before)] == before
    # The text of a control token in an answer is text: one such token ends the message, and no other.
    assert delta.ids.tolist().count(encode("<|end|>")[0]) == 1
    assert delta.opened == ("think",)
    said = played.say(encode("Hm"), stopped=False)
    assert (said.content, said.reasoning) == ("", "Hm")
    delta = played.hear(Message("user", "Well?"))
    assert made.decode(delta.ids).startswith("<|end|><|start|>user<|message|>Well?")


@pytest.mark.parametrize("family", NAMES)
def test_answers_are_paired_by_id_in_a_delta(renderer: Any, talk: Any, weather: Any, family: str) -> None:
    if family in ("llama-3", "deepseek-v4", "gpt-oss"):
        pytest.skip("one call a reply, or one answer a turn")
    made = renderer(family, "keep")
    north, south = (
        ToolCall(f"functions.weather:{n}", "weather", {"city": c}) for n, c in enumerate(("north", "south"))
    )
    reply = Message("assistant", "", "I look.", (north, south))
    history = [Message("user", "Where?")]
    answers = [Message("tool", f"wet {c.arguments['city']}", tool_call_id=c.id, name="weather") for c in (north, south)]
    shown = made.render([*history, reply, *answers], [weather])
    start, stop = shown.spans[1]
    completion = shown.ids[start:stop][shown.kinds[start:stop] == TokenKind.ACTION].tolist()
    played = talk(made, history, (weather,))
    played.start()
    if played.opened and made._parts.rendering.family.think[1] not in made.decode(completion):
        # This template leaves out the reasoning that its prompt makes a model begin with.
        completion = [*made._parts.encoder.encode("hm</think>"), *completion]
    played.say(completion, completion[-1] in made.stop_ids)
    played.tail = attrs.evolve(played.tail, message=reply)
    straight = made.bridge(played.tail, answers, (weather,))
    crossed = made.bridge(played.tail, answers[::-1], (weather,))
    assert isinstance(straight, Rendered), straight
    assert straight.ids.tolist() == crossed.ids.tolist()
    assert crossed.spans == straight.spans[::-1]
    text = made.decode(straight.ids)
    assert 0 <= text.find("wet north") < text.find("wet south")


def test_thinking_that_would_be_stripped_starts_a_segment_unless_it_is_kept(
    renderer: Any, talk: Any, weather: Any
) -> None:
    for thinking, whole in (("template", False), ("keep", True)):
        made = renderer("qwen3", thinking)
        played = talk(made, [Message("user", "Hi")])
        played.start()
        played.say(made._parts.encoder.encode("<think>\nhm\n</think>\n\nHello.<|im_end|>"))
        found = played.hear(Message("user", "And?"))
        assert isinstance(found, Rendered) == whole
        if isinstance(found, NoBridge):
            assert found.reason == "no_bridge"
            assert "thinking = 'keep'" in found.detail


def test_keeping_shows_thinking_again_where_the_family_can(renderer: Any) -> None:
    thought = [Message("user", "Hi"), Message("assistant", "Hello.", "so quiet"), Message("user", "And?")]
    kept, stripped = (renderer("glm-5", how).render(thought) for how in ("keep", "template"))
    made = renderer("glm-5")
    assert "so quiet" in made.decode(kept.ids)
    assert "so quiet" not in made.decode(stripped.ids)
