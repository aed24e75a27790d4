"""Requests in OpenAI's shape, checked: what is asked for, and how it is to be sampled.

Fields that no OpenAI-compatible server must know are ignored, as such servers do. A field that would change what is
sampled or returned, and cannot be followed, is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import orjson

from ferrule import SamplingParams

from . import checks
from .errors import WireError, bad

PLAIN = ("temperature", "top_p", "top_k", "n", "frequency_penalty", "presence_penalty")
KNOWN = 64

UNFOLLOWED: Mapping[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "audio": (),
    "bad_words": ([],),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "ignore_eos": (False,),
    "length_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "repetition_penalty": (1,),
    "structured_outputs": (),
    "use_beam_search": (False,),
    "web_search_options": (),
}
"""Fields of OpenAI's or vLLM's that would change the answer, and the values, beside null, that change nothing."""

CHOSEN_ONLY = "only the logprobs of the sampled tokens are known"


@attrs.frozen(eq=False)
class Sampling:
    """How a session samples: *defaults* for what a request does not give, *forced* for what it may not change, and
    *stops*: the texts of the stop tokens, which a request may name.
    """

    defaults: SamplingParams
    forced: Mapping[str, Any] = attrs.field(factory=dict)
    stops: Mapping[str, int] = attrs.field(factory=dict)
    known: dict[tuple[Any, ...], SamplingParams] = attrs.field(factory=dict)
    """What was worked out before, by what was asked for: clients ask for the same all the time."""


@attrs.frozen(eq=False)
class Asked:
    """What a request asks for, beside its messages. ``messages`` and ``tools`` are as they came."""

    model: str
    params: SamplingParams
    stream: bool = False
    usage: bool = False
    logprobs: bool = False
    token_ids: bool = False
    seed: int | None = None
    messages: list[Any] = attrs.field(factory=list)
    tools: list[Any] | None = None
    prompt: list[int] = attrs.field(factory=list)


def parse_json(body: bytes) -> dict[str, Any]:
    """The object that *body* is."""
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise WireError(400, "invalid_json", f"the body is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise WireError(400, "invalid_json", f"the body must be an object, not {checks.shown(data)}")
    return data


def chat_request(body: Mapping[str, Any], sampling: Sampling) -> Asked:
    """What a body of ``/chat/completions`` asks for; its messages and tools are yet to be read."""
    model = checks.required_text(body, "model")
    _followed(body)
    messages = body.get("messages")
    if messages is None:
        raise bad("messages", "messages is required", "missing_required_parameter")
    if not isinstance(messages, list):
        raise checks.wrong("messages", "a list", messages)
    if not messages:
        raise bad("messages", "messages must hold at least one message")
    tools = body.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise checks.wrong("tools", "a list", tools)
    for name in ("functions", "function_call"):
        if body.get(name) not in (None, [], "auto", "none"):
            raise bad(name, f"{name} is not supported: use tools", "unsupported_parameter")
    choice = body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise bad(
            "tool_choice",
            f"tool_choice must be 'auto' or 'none', not {checks.shown(choice)}: a model that is trained chooses itself",
            "unsupported_value",
        )
    response_format = body.get("response_format")
    if response_format is not None:
        if not isinstance(response_format, dict):
            raise checks.wrong("response_format", "an object", response_format)
        if response_format.get("type", "text") != "text":
            raise bad("response_format", "response_format must be of type 'text'", "unsupported_value")
    logprobs = checks.boolean(body, "logprobs")
    top = checks.integer(body, "top_logprobs", 0, 20)
    if top is not None and not logprobs:
        raise bad("top_logprobs", "top_logprobs needs logprobs: true")
    if top:
        raise bad("top_logprobs", f"top_logprobs must be 0: {CHOSEN_ONLY}", "unsupported_value")
    limit = checks.integer(body, "max_completion_tokens", 1)
    if limit is None:
        limit = checks.integer(body, "max_tokens", 1)
    stream, usage = _stream(body)
    return Asked(
        model=model,
        params=_params(body, sampling, limit),
        stream=stream,
        usage=usage,
        logprobs=logprobs,
        seed=checks.integer(body, "seed", -(2**63), 2**63 - 1),
        messages=messages,
        tools=None if choice == "none" else tools or None,
    )


def completion_request(body: Mapping[str, Any], sampling: Sampling, vocab_size: int | None) -> Asked:
    """What a body of ``/completions`` asks for: a prompt of token ids."""
    model = checks.required_text(body, "model")
    _followed(body)
    prompt = body.get("prompt")
    if prompt is None:
        raise bad("prompt", "prompt is required", "missing_required_parameter")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], list):
        prompt = prompt[0]
    if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and isinstance(prompt[0], str)):
        raise bad("prompt", "prompt must be a list of token ids: text has no exact tokens", "unsupported_value")
    prompt = checks.ids(prompt, "prompt")
    if not prompt:
        raise bad("prompt", "prompt must hold at least one token id")
    if vocab_size is not None and max(prompt) >= vocab_size:
        raise bad("prompt", f"prompt holds token {max(prompt)}; the vocabulary has {vocab_size}", "invalid_token")
    for name, usual in (("echo", False), ("best_of", 1), ("suffix", "")):
        if body.get(name) not in (None, usual):
            raise bad(name, f"{name} is not supported", "unsupported_parameter")
    logprobs = body.get("logprobs")
    if logprobs is not None and not isinstance(logprobs, bool) and (checks.integer(body, "logprobs", 0, 20) or 0) > 1:
        raise bad("logprobs", f"logprobs must be 0 or 1: {CHOSEN_ONLY}", "unsupported_value")
    stream, usage = _stream(body)
    return Asked(
        model=model,
        params=_params(body, sampling, checks.integer(body, "max_tokens", 1)),
        stream=stream,
        usage=usage,
        logprobs=logprobs is not None and logprobs is not False,
        token_ids=checks.boolean(body, "return_token_ids"),
        seed=checks.integer(body, "seed", -(2**63), 2**63 - 1),
        prompt=prompt,
    )


def _followed(body: Mapping[str, Any]) -> None:
    for name in body.keys() & UNFOLLOWED.keys():
        value, usual = body[name], UNFOLLOWED[name]
        if value is not None and value not in usual:
            raise bad(name, f"{name} is not supported here: leave it out", "unsupported_parameter")


def forced_sampling(body: Mapping[str, Any]) -> dict[str, Any]:
    """The ``sampling`` that a session was created with, checked: it goes before whatever a request says."""
    table = body.get("sampling")
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise checks.wrong("sampling", "an object", table)
    known = {"temperature", "top_p", "top_k", "max_tokens", "stop_token_ids", "seed"}
    for name in table:
        if name not in known:
            raise bad(f"sampling.{name}", f"sampling knows {', '.join(sorted(known))}; not {checks.shown(name)}")
    out = {
        **_drawn(table, "sampling."),
        "max_tokens": checks.integer(table, "max_tokens", 1, where="sampling."),
        "seed": checks.integer(table, "seed", -(2**63), 2**63 - 1, where="sampling."),
    }
    stop_ids = table.get("stop_token_ids")
    out["stop_ids"] = None if stop_ids is None else frozenset(checks.ids(stop_ids, "sampling.stop_token_ids"))
    return {name: value for name, value in out.items() if value is not None}


def _drawn(body: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    top_k = checks.integer(body, "top_k", -1, where=where)
    return {
        "temperature": checks.number(body, "temperature", 0.0, 100.0, where=where),
        "top_p": checks.number(body, "top_p", 0.0, 1.0, above=True, where=where),
        "top_k": 0 if top_k == -1 else top_k,
    }


def _params(body: Mapping[str, Any], sampling: Sampling, limit: int | None) -> SamplingParams:
    if any(body.get(name) is not None for name in ("stop", "stop_token_ids", "logit_bias")):
        return _new_params(body, sampling, limit)
    given = [body.get(name) for name in PLAIN]
    # With the types: true is no number here, and 1.0 is one.
    key = (limit, *given, *map(type, given))
    try:
        found = sampling.known.get(key)
    except TypeError:  # a list or an object: it is about to be refused
        return _new_params(body, sampling, limit)
    if found is None:
        found = _new_params(body, sampling, limit)
        if len(sampling.known) < KNOWN:
            sampling.known[key] = found
    return found


def _new_params(body: Mapping[str, Any], sampling: Sampling, limit: int | None) -> SamplingParams:
    if checks.integer(body, "n", -(2**31)) not in (None, 1):
        raise bad("n", "n must be 1: one request is one completion", "unsupported_value")
    for name in ("frequency_penalty", "presence_penalty"):
        if checks.number(body, name, -2.0, 2.0):
            raise bad(
                name, f"{name} is not supported: what is sampled must be the model's own", "unsupported_parameter"
            )
    if body.get("logit_bias") not in (None, {}):
        raise bad(
            "logit_bias",
            "logit_bias is not supported: what is sampled must be the model's own",
            "unsupported_parameter",
        )
    given = {**_drawn(body), "max_tokens": limit}
    changes = {name: value for name, value in given.items() if value is not None}
    stops = _stops(body, sampling)
    changes.update(sampling.forced)
    changes.pop("seed", None)
    if stops or "stop_ids" in changes:
        changes["stop_ids"] = frozenset((*sampling.defaults.stop_ids, *changes.get("stop_ids", stops)))
    return attrs.evolve(sampling.defaults, **changes) if changes else sampling.defaults


def _stops(body: Mapping[str, Any], sampling: Sampling) -> list[int]:
    value = body.get("stop_token_ids")
    out = [] if value is None else list(checks.ids(value, "stop_token_ids"))
    stop = body.get("stop")
    if stop is None:
        return out
    for i, each in enumerate([stop] if isinstance(stop, str) else stop if isinstance(stop, list) else [stop]):
        param = f"stop[{i}]" if isinstance(stop, list) else "stop"
        if not isinstance(each, str):
            raise checks.wrong(param, "text", each)
        if each not in sampling.stops:
            known = ", ".join(map(repr, sampling.stops)) or "none"
            raise bad(
                param,
                f"{param} {checks.shown(each)} is not one of the model's stop tokens ({known}): a completion can end "
                "at a token only; stop_token_ids takes others",
                "unsupported_value",
            )
        out.append(sampling.stops[each])
    return out


def _stream(body: Mapping[str, Any]) -> tuple[bool, bool]:
    stream, options = checks.boolean(body, "stream"), body.get("stream_options")
    if options is None:
        return stream, False
    if not isinstance(options, dict):
        raise checks.wrong("stream_options", "an object", options)
    if not stream:
        raise bad("stream_options", "stream_options needs stream: true")
    return stream, checks.boolean(options, "include_usage", "stream_options.")
