"""Small honest parts for playing in tests: a renderer over whole words, a sampler that follows a script, tasks made
of functions.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections import Counter
from contextlib import asynccontextmanager
from types import SimpleNamespace

import attrs
import numpy as np
import pytest

import ferrule
from ferrule import (
    EpisodeFailed,
    Failure,
    Message,
    NoBridge,
    Parsed,
    ParseProblem,
    Rendered,
    Sample,
    TokenKind,
    ToolCall,
    ToolSpec,
    TurnSpec,
)
from ferrule.config.schema import RolloutConfig
from ferrule.rollout import Player, Rollout

END, CALL, END_CALL = "<end>", "<call>", "</call>"


class WordRenderer(ferrule.Renderer, name="words"):
    """A token is a word; ``<role> words <end>`` is a message, ``<call> name arguments </call>`` a call.

    ``strips`` makes it refuse every bridge, as a template does that rewrites history; ``refuses_tools`` makes it fail
    where tools are offered.
    """

    def __init__(self, strips=False, refuses_tools=False):
        self.words, self.ids = [], {}
        self.stop_ids = frozenset({self.id(END)})
        self.vocab_size = 1 << 20
        self.strips, self.refuses_tools = strips, refuses_tools
        self.rendered, self.tails, self.bridged = 0, [], []

    def id(self, word):
        if word not in self.ids:
            self.ids[word] = len(self.words)
            self.words.append(word)
        return self.ids[word]

    def encode(self, words):
        return np.array([self.id(w) for w in words], np.int32)

    def decode(self, ids):
        return " ".join(self.words[i] for i in ids)

    def _message(self, message):
        body = message.content.split()
        for call in message.tool_calls:
            arguments = json.dumps(dict(call.arguments), separators=(",", ":"))
            body += [CALL, call.name, arguments, END_CALL]
        inner = TokenKind.ACTION if message.role == "assistant" else TokenKind.OBSERVATION
        close = inner if message.role == "assistant" else TokenKind.SCAFFOLD
        return [f"<{message.role}>", *body, END], [TokenKind.SCAFFOLD, *[inner] * len(body), close]

    def _all(self, words, kinds, messages, generation):
        spans = []
        for message in messages:
            w, k = self._message(message)
            spans.append((len(words), len(words) + len(w)))
            words, kinds = words + w, kinds + k
        if generation:
            words, kinds = [*words, "<assistant>"], [*kinds, TokenKind.SCAFFOLD]
        return Rendered(self.encode(words), np.array(kinds, np.uint8), tuple(spans))

    def render(self, messages, tools=(), *, generation=True):
        self.rendered += 1
        if tools and self.refuses_tools:
            raise EpisodeFailed(Failure.RENDER_FAILED, "cannot write tools")
        head = ["<tools>", *(t.name for t in tools), END] if tools else []
        return self._all(head, [TokenKind.SCAFFOLD] * len(head), messages, generation)

    def bridge(self, tail, messages, tools=()):
        self.bridged.append((len(tail.ids), len(messages)))
        self.tails.append(tail)
        if self.strips:
            return NoBridge("strips", "the template rewrites what was said")
        head = [] if tail.stop != "length" else [END]
        return self._all(head, [TokenKind.ACTION] * len(head), messages, True)

    def parse(self, ids, tools=(), *, opened=()):
        words = self.decode(ids).split()
        stopped = bool(words) and words[-1] == END
        words = words[:-1] if stopped else words
        text, calls, problems, closed = [], [], [], True
        while words:
            word = words.pop(0)
            if word != CALL:
                text.append(word)
                continue
            if END_CALL not in words:
                closed = False
                problems.append(ParseProblem((0, len(ids)), " ".join(words), "the call never closes"))
                break
            at = words.index(END_CALL)
            name, raw, words = words[0], " ".join(words[1:at]), words[at + 1 :]
            try:
                calls.append(ToolCall(f"call_{len(calls)}", name, json.loads(raw or "{}")))
            except ValueError as error:
                calls.append(ToolCall(f"call_{len(calls)}", name, {}, error=str(error), raw=raw))
                problems.append(ParseProblem((0, len(ids)), raw, str(error)))
        status = "malformed" if problems else "ok" if stopped else "truncated"
        said = " ".join(text)
        reasoning = None
        if "</think>" in text:
            reasoning, said = said.split(" </think> ")
        return Parsed(Message("assistant", said, reasoning, calls), status, closed, tuple(problems))


class ScriptedSampler(ferrule.Sampler):
    """Answers what *script(prompt words, number of the request, key)* says: text, an exception, or an awaitable of
    either.
    """

    def __init__(self, renderer, script, context_length=4096):
        self.renderer, self.script, self.context_length = renderer, script, context_length
        self.prompts, self.completions, self.params, self.seeds = {}, {}, [], {}
        self.opened, self.closed, self.events = Counter(), Counter(), []
        self.on_close = None

    @asynccontextmanager
    async def open(self, key, *, seed):
        self.opened[key] += 1
        self.seeds[key] = seed
        self.events.append(("open", key))
        try:
            yield _ScriptedSession(self, key)
        finally:
            if self.on_close is not None:
                await maybe(self.on_close(key))
            self.closed[key] += 1
            self.events.append(("close", key))


class _ScriptedSession(ferrule.SamplerSession):
    def __init__(self, sampler, key):
        self.sampler, self.key, self.asked = sampler, key, 0

    async def sample(self, prompt, params):
        s, number = self.sampler, self.asked
        self.asked += 1
        if len(prompt) + params.max_tokens > s.context_length:
            raise ferrule.TrainerError("prompt and max_tokens exceed the context")
        s.prompts.setdefault(self.key, []).append(prompt)
        s.params.append(params)
        answer = s.script(s.renderer.decode(prompt).split(), number, self.key)
        if inspect.isawaitable(answer):
            answer = await answer
        else:
            await asyncio.sleep(0)
        if isinstance(answer, BaseException):
            raise answer
        ids = s.renderer.encode([*answer.split(), END])
        reason = "stop" if len(ids) <= params.max_tokens else "length"
        ids = ids[: params.max_tokens]
        s.completions.setdefault(self.key, []).append(ids)
        return Sample(ids, np.full(len(ids), -0.5, np.float32), np.full(len(ids), 7, np.int32), reason)


@attrs.define(eq=False)
class FunctionTask(ferrule.Task):
    """A task of turns, tools (functions of the run and the arguments) and a verdict (a function of the run)."""

    turns: list
    tools: dict = attrs.field(factory=dict)
    verdict: object = None
    setup: object = None
    sandbox: object = None
    needs_isolation: bool = False
    on_close: object = None
    id: str = "task"
    metadata: dict = attrs.field(factory=dict)
    score_names: tuple = ("reward",)
    runs: list = attrs.field(factory=list)

    async def start(self, attempt, sandbox):
        if self.setup is not None:
            await maybe(self.setup(attempt, sandbox))
        self.runs.append(FunctionRun(self, attempt, sandbox))
        return self.runs[-1]


async def maybe(value):
    value = await value if inspect.isawaitable(value) else value
    if isinstance(value, BaseException):
        raise value
    return value


class FunctionRun(ferrule.TaskRun):
    def __init__(self, task, attempt, sandbox):
        self.task, self.attempt, self.sandbox = task, attempt, sandbox
        self.calls, self.ended, self.scored, self.closed = [], [], 0, 0
        self.left = list(task.turns)

    async def next_turn(self):
        turn = self.left.pop(0) if self.left else None
        return await maybe(turn)

    async def call(self, call):
        self.calls.append((call.name, dict(call.arguments)))
        return await maybe(self.task.tools[call.name](self, **call.arguments))

    async def end_turn(self, reply):
        self.ended.append(reply)

    async def score(self):
        self.scored += 1
        verdict = self.task.verdict
        return await maybe(verdict(self) if callable(verdict) else {"reward": 1.0} if verdict is None else verdict)

    async def close(self):
        self.closed += 1
        if self.task.on_close is not None:
            await maybe(self.task.on_close(self))


class LoopHarness(ferrule.Harness, name="loop"):
    """The plain tool loop."""

    def __init__(self):
        super().__init__(self.Config())

    async def run(self, play, rollout):
        agent, messages = rollout.agent(), []
        while turn := await play.next_turn():
            messages += turn.messages
            while True:
                reply = (await agent.reply(messages, turn.tools)).message
                messages.append(reply)
                turn.record(reply)
                if not reply.tool_calls:
                    await turn.end(reply)
                    break
                messages += await turn.call(reply.tool_calls)


class FunctionHarness(ferrule.Harness, name="function"):
    """Plays as *function(play, rollout)* does."""

    def __init__(self, function, needs_model=True, roles=("agent",)):
        super().__init__(self.Config())
        self.run_function, self.needs_model, self.roles = function, needs_model, roles

    async def run(self, play, rollout):
        await self.run_function(play, rollout)


class CountingSandboxes(ferrule.SandboxBackend, name="counting"):
    """Sandboxes that only exist: what is made is counted, and what is closed."""

    def __init__(self, create=None, close=None):
        super().__init__(self.Config())
        self.on_create, self.on_close, self.made = create, close, []

    async def create(self, spec, *, label=""):
        if self.on_create is not None:
            await maybe(self.on_create(len(self.made)))
        self.made.append(_CountingSandbox(self, label))
        return self.made[-1]

    @classmethod
    async def sweep(cls, run_id=None):
        return []


class _CountingSandbox(ferrule.Sandbox):
    def __init__(self, backend, id):
        self.backend, self.id, self.closed = backend, id, 0

    async def exec(self, command, *, user=None, env=None, cwd=None, timeout=None, output_limit=0):
        return ferrule.ExecResult("", "", 0)

    async def read(self, path, *, user="root"):
        raise FileNotFoundError(path)

    async def write(self, path, data, *, user=None, mode=0o644):
        raise PermissionError(path)

    async def close(self):
        self.closed += 1
        if self.backend.on_close is not None:
            await maybe(self.backend.on_close(self))


ECHO = ToolSpec("echo", "Says it again.")


def turn(prompt="hello", system=None, tools=(ECHO,)):
    return TurnSpec(prompt, system, tuple(tools))


def call(name, **arguments):
    return f"{CALL} {name} {json.dumps(arguments, separators=(',', ':'))} {END_CALL}"


def script(*answers):
    """The n-th answer to the n-th request of each session; the last one from then on."""
    return lambda prompt, number, key: answers[min(number, len(answers) - 1)]


def player(
    script, *, harness=None, renderer=None, sandboxes=None, context_length=4096, sampling=None, timeouts=None, **limits
):
    renderer = renderer or WordRenderer()
    sampler = ScriptedSampler(renderer, script, context_length)
    limits.setdefault("retries", 0)
    return Player(
        harness or LoopHarness(),
        renderer,
        sampler,
        sandboxes,
        config=RolloutConfig(**limits),
        sampling=sampling,
        vocab_size=renderer.vocab_size,
        run_seed=1,
        **(timeouts or {}),
    )


@asynccontextmanager
async def agent(script, renderer=None, context_length=4096, sampling=None, roles=("agent",), vocab_size=None, **limits):
    """One agent over a scripted sampler, without a play."""
    renderer = renderer or WordRenderer()
    sampler = ScriptedSampler(renderer, script, context_length)
    rollout = Rollout(
        FunctionTask([]),
        0,
        seed=3,
        limits=RolloutConfig(**limits),
        sampling=sampling or ferrule.SamplingParams(),
        roles=roles,
        renderer=renderer,
        sampler=sampler,
        vocab_size=vocab_size or renderer.vocab_size,
        key="s",
    )
    await rollout.open()
    try:
        yield SimpleNamespace(agent=rollout.agent(), rollout=rollout, renderer=renderer, sampler=sampler)
    finally:
        await rollout.close()


@pytest.fixture
def kit():
    """The parts above, by name."""
    return SimpleNamespace(
        WordRenderer=WordRenderer,
        ScriptedSampler=ScriptedSampler,
        FunctionTask=FunctionTask,
        LoopHarness=LoopHarness,
        FunctionHarness=FunctionHarness,
        CountingSandboxes=CountingSandboxes,
        ECHO=ECHO,
        turn=turn,
        call=call,
        script=script,
        player=player,
        agent=agent,
    )
