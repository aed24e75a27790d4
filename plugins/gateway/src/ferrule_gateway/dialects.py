"""What servers that complete token ids are asked, and how their answers are read.

vLLM's: ``return_token_ids`` (0.10.2 and newer) brings ``choices[0].token_ids``, the stop token among them, and
``logprobs.token_logprobs``; by its default, ``logprobs_mode = raw_logprobs``, these are the model's own at temperature 1.
Where ids are missing, those of ``return_tokens_as_token_ids`` are read.

llama.cpp's: ``logprobs.content[{id, logprob}]``, the stop token among them, before any sampler but the softmax
(``post_sampling_probs = false``, its default): the model's own at temperature 1. It ends at the tokens that the model file
calls ends of generation and knows no other stop ids, so a completion that runs on is cut after the first of ours. Its
samplers are named in full and in the order in which others apply them, temperature first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import orjson

from ferrule import Sample, SamplingParams

from .errors import UpstreamError

Dialect = Literal["vllm", "llama.cpp"]

TOKEN = "token_id:"

ROUNDING = 1e-3
"""How far above 0 a logprob may come by rounding."""


def request_body(dialect: Dialect, model: str | None, prompt: Any, params: SamplingParams, seed: int) -> bytes:
    """The JSON of a ``POST /v1/completions`` for *prompt*, int32[T]."""
    body: dict[str, Any] = {
        "prompt": prompt,
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "logprobs": 1,
        "seed": seed,
        "stream": False,
    }
    if model is not None:
        body["model"] = model
    if dialect == "llama.cpp":
        body |= {
            "top_k": params.top_k,
            "min_p": 0.0,
            "repeat_penalty": 1.0,
            "post_sampling_probs": False,
            "samplers": ["temperature", "top_k", "top_p"],
            "cache_prompt": True,
        }
    else:
        body |= {
            "top_k": params.top_k or -1,
            "stop_token_ids": sorted(params.stop_ids),
            "skip_special_tokens": False,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


def read_answer(
    raw: bytes,
    headers: Mapping[str, str],
    prompt_length: int,
    params: SamplingParams,
    version: int,
    need_logprobs: bool,
) -> Sample:
    """The sample that an answer with status 200 holds. Raises UpstreamError 502 where it holds none that can be
    believed: no ids, other logprobs than ids, an unknown logprob where they are needed, an end that is no end.
    """
    try:
        body = orjson.loads(raw)
        choice = body["choices"][0]
        reason = choice["finish_reason"]
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError) as error:
        raise _unusable(f"it is no completion: {type(error).__name__}: {error}") from error
    if reason not in ("stop", "length"):
        raise _unusable(f"its finish_reason is {reason!r}")
    usage = body.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    counted, sampled = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if counted is not None and counted != prompt_length:
        raise _unusable(f"it counts {counted} tokens of prompt; {prompt_length} were sent")
    try:
        ids, logprobs = _tokens(choice)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _unusable(f"its tokens are not as they should be: {type(error).__name__}: {error}") from error
    if len(logprobs) != len(ids):
        raise _unusable(f"it has {len(ids)} token ids and {len(logprobs)} logprobs")
    if not all(type(id_) is int for id_ in ids):  # numpy would make integers of much else
        raise _unusable(f"its token ids are no integers: {str(ids)[:80]}")
    if not params.stop_ids.isdisjoint(ids):
        cut = next(i + 1 for i, id_ in enumerate(ids) if id_ in params.stop_ids)
        ids, logprobs, reason = ids[:cut], logprobs[:cut], "stop"
    elif reason == "stop" and isinstance(sampled, int) and sampled > len(ids):
        raise _unusable(
            "it ended at a stop token that it leaves out, so that nobody knows which one was sampled: "
            "use a newer server, or one that gives it"
        )
    if len(ids) > params.max_tokens:
        raise _unusable(f"it has {len(ids)} tokens, and max_tokens was {params.max_tokens}")
    try:
        out_ids = np.array(ids, np.int32)
        out_logprobs = np.array(logprobs, np.float32)  # null becomes NaN
    except (ValueError, TypeError, OverflowError) as error:
        raise _unusable(f"its ids or logprobs are no numbers: {error}") from error
    if need_logprobs and not np.isfinite(out_logprobs).all():
        at = int(np.flatnonzero(~np.isfinite(out_logprobs))[0])
        raise _unusable(f"the logprob of its token {at} is unknown, and nothing can be trained on that")
    if (out_logprobs > ROUNDING).any():
        at = int(np.flatnonzero(out_logprobs > ROUNDING)[0])
        raise _unusable(f"the logprob of its token {at} is {out_logprobs[at]:g}, which is above that of certainty")
    versions = np.full(len(ids), _version(body, headers, version), np.int32)
    return Sample(out_ids, out_logprobs, versions, reason)


def error_text(raw: bytes) -> str:
    """What the body of an error says, on one line, bounded."""
    text = raw[:4000].decode("utf-8", "replace")
    try:
        data = orjson.loads(raw)
        error = data.get("error", data) if isinstance(data, dict) else data
        found = error.get("message") or error.get("detail") if isinstance(error, dict) else error
        text = found if isinstance(found, str) else text
    except orjson.JSONDecodeError:
        pass
    text = " ".join(text.split())
    return text if len(text) <= 400 else text[:399] + "…"


def _tokens(choice: dict[str, Any]) -> tuple[list[int], list[float | None]]:
    ids, given = choice.get("token_ids"), choice.get("logprobs")
    logprobs: list[float | None] | None = None
    if isinstance(given, dict):
        content = given.get("content")
        if isinstance(content, list):
            logprobs = [each.get("logprob") for each in content]
            if ids is None and all("id" in each for each in content):
                ids = [each["id"] for each in content]
        else:
            logprobs = given.get("token_logprobs")
            names = given.get("tokens")
            if ids is None and isinstance(names, list) and all(str(each).startswith(TOKEN) for each in names):
                ids = [int(each.removeprefix(TOKEN)) for each in names]
    if ids is None and choice.get("text") == "" and not logprobs:
        ids = []
    if not isinstance(ids, list):
        raise _unusable("it has no token ids: vLLM gives them from 0.10.2 on, llama.cpp with its logprobs")
    return ids, [None] * len(ids) if logprobs is None else logprobs


def _version(body: dict[str, Any], headers: Mapping[str, str], fallback: int) -> int:
    for value in (headers.get("x-weight-version"), body.get("weight_version")):
        try:
            found = int(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            continue
        if not 0 <= found < 2**31:
            raise _unusable(f"its weight version is {found}")
        return found
    return fallback


def _unusable(why: str) -> UpstreamError:
    return UpstreamError(502, "upstream_unusable", f"the upstream's answer cannot be used: {why}")
