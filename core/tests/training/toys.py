"""A whole run in numpy: a bigram model that really learns, over letters, for tests of the loop. Referred to from
configurations by path.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import attrs
import numpy as np

import ferrule

ALPHABET = "abcdefgh 0123456789"
END, USER, ASSISTANT, SYSTEM, TOOL = range(5)
FIRST = 5
VOCAB = FIRST + len(ALPHABET)
MARK = {"user": USER, "assistant": ASSISTANT, "system": SYSTEM, "tool": TOOL}


class ToyRenderer(ferrule.Renderer, name="toy"):
    """A mark for the role, one token a letter, an end."""

    def __init__(self, config, model):
        super().__init__(config, model)
        self.stop_ids = frozenset({END})
        self.vocab_size = VOCAB

    def _message(self, message, start):
        text = [FIRST + ALPHABET.index(c) for c in message.content]
        said = ferrule.TokenKind.ACTION if message.role == "assistant" else ferrule.TokenKind.OBSERVATION
        end = ferrule.TokenKind.ACTION if message.role == "assistant" else ferrule.TokenKind.SCAFFOLD
        ids = [MARK[message.role], *text, END]
        return ids, [ferrule.TokenKind.SCAFFOLD, *[said] * len(text), end], (start, start + len(ids))

    def _rendered(self, messages, generation):
        ids, kinds, spans = [], [], []
        for message in messages:
            new, kind, span = self._message(message, len(ids))
            ids, kinds, spans = ids + new, kinds + kind, [*spans, span]
        if generation:
            ids, kinds = [*ids, ASSISTANT], [*kinds, ferrule.TokenKind.SCAFFOLD]
        return ferrule.Rendered(np.array(ids, np.int32), np.array(kinds, np.uint8), tuple(spans))

    def render(self, messages, tools=(), *, generation=True):
        return self._rendered(messages, generation)

    def bridge(self, tail, messages, tools=()):
        return self._rendered(messages, True)

    def parse(self, ids, tools=(), *, opened=()):
        return ferrule.Parsed(ferrule.Message("assistant", self.decode(ids[ids >= FIRST])))

    def decode(self, ids):
        return "".join(ALPHABET[i - FIRST] if i >= FIRST else f"<{i}>" for i in np.asarray(ids).tolist())


class ToySession(ferrule.SamplerSession):
    def __init__(self, trainer, seed):
        self.trainer, self.seed, self.request = trainer, seed, 0

    async def sample(self, prompt, params):
        self.request += 1
        logits = self.trainer.published
        ids, logprobs, last = [], [], int(prompt[-1])
        while len(ids) < params.max_tokens:
            logp = logits[last] - np.logaddexp.reduce(logits[last])
            if params.temperature == 0:
                last = int(np.argmax(logp))
            else:
                p = np.exp(logp / params.temperature)
                rng = np.random.default_rng(ferrule.derive_seed(self.seed, self.request, len(ids)))
                last = int(rng.choice(VOCAB, p=p / p.sum()))
            ids.append(last)
            logprobs.append(logp[last])
            if last in params.stop_ids:
                break
        versions = np.full(len(ids), self.trainer.version, np.int32)
        reason = "stop" if ids[-1] in params.stop_ids else "length"
        return ferrule.Sample(np.array(ids, np.int32), np.array(logprobs, np.float32), versions, reason)


class ToySampler(ferrule.Sampler):
    context_length = 200

    def __init__(self, trainer):
        self.trainer = trainer

    @contextlib.asynccontextmanager
    async def open(self, key, *, seed):
        yield ToySession(self.trainer, seed)


class ToyTrainer(ferrule.Trainer, name="toy"):
    """logits[previous token, next token]; Adam; real gradients of the policy losses it lists."""

    provides = frozenset({"logprobs", "token_weights", "cross_entropy"})
    policy_losses = frozenset({"importance_sampling", "ppo", "cross_entropy"})

    def __init__(self, config):
        super().__init__(config)
        self.vocab_size = VOCAB

    async def start(self, run):
        self.run = run
        self.logits = np.random.default_rng(run.seed).normal(0, 0.1, (VOCAB, VOCAB))
        self.grad = np.zeros_like(self.logits)
        self.version = 0
        self.published = self.logits.copy()
        await self.reset_optimizer()

    async def close(self):
        self.logits = None

    def sampler(self):
        return ToySampler(self)

    def _logp(self, ids):
        out = np.zeros(len(ids), np.float64)
        before = self.logits[ids[:-1]]
        out[1:] = before[np.arange(len(ids) - 1), ids[1:]] - np.logaddexp.reduce(before, axis=1)
        return out

    async def forward(self, rows):
        return [self._logp(row.ids).astype(np.float32) for row in rows]

    async def forward_backward(self, objective):
        logprobs = []
        for i, row in enumerate(objective.rows):
            logp = self._logp(row.ids)
            w, adv, old = (
                np.asarray(x[i], np.float64) for x in (objective.weights, objective.advantages, objective.old)
            )
            if objective.policy == "cross_entropy":
                slope = -w
            else:
                ratio = np.exp(logp - old)
                slope = -w * ratio * adv
                if objective.policy == "ppo":
                    low, high = 1 - objective.options["eps_clip"], 1 + objective.options["eps_clip_high"]
                    slope[((ratio > high) & (adv > 0)) | ((ratio < low) & (adv < 0))] = 0.0
            if objective.ce is not None:
                slope = slope - objective.ce[i]
            before = row.ids[:-1]
            p = np.exp(self.logits[before] - np.logaddexp.reduce(self.logits[before], axis=1)[:, None])
            np.add.at(self.grad, before, -slope[1:, None] * p)
            np.add.at(self.grad, (before, row.ids[1:]), slope[1:])
            logprobs.append(logp.astype(np.float32))
        return ferrule.StepOutput(tuple(logprobs))

    async def optim_step(self, optim):
        self.steps += 1
        norm = float(np.sqrt((self.grad**2).sum()))
        grad = self.grad * min(1.0, optim.max_grad_norm / (norm + 1e-12)) if optim.max_grad_norm else self.grad
        b1, b2 = optim.betas
        self.m = b1 * self.m + (1 - b1) * grad
        self.v = b2 * self.v + (1 - b2) * grad**2
        self.logits -= optim.lr * (self.m / (1 - b1**self.steps)) / (np.sqrt(self.v / (1 - b2**self.steps)) + optim.eps)
        self.grad = np.zeros_like(self.logits)
        return {"grad_norm": norm}

    async def reset_optimizer(self):
        self.m, self.v, self.steps = np.zeros((VOCAB, VOCAB)), np.zeros((VOCAB, VOCAB)), 0

    async def publish(self):
        self.published = self.logits.copy()
        self.version += 1
        return self.version

    async def save(self, name):
        folder = self.run.dir / "checkpoints" / name
        part = folder.with_name(f".{name}.part")
        part.mkdir(parents=True)
        np.savez(
            part / "state.npz", **{k: getattr(self, k) for k in ("logits", "published", "m", "v", "steps", "version")}
        )
        os.replace(part, folder)
        return ferrule.Checkpoint(str(folder), self.steps)

    async def restore(self, checkpoint):
        path = Path(checkpoint.path) / "state.npz"
        if not path.exists():
            raise ferrule.CheckpointError(f"{path} is not there")
        with np.load(path) as state:
            self.logits, self.published, self.m, self.v = (state[k].copy() for k in ("logits", "published", "m", "v"))
            self.steps, self.version = int(state["steps"]), int(state["version"])


class LetterRun(ferrule.TaskRun):
    def __init__(self, task, attempt):
        self.task, self.attempt, self.turns, self.replies = task, attempt, 0, []

    async def next_turn(self):
        self.turns += 1
        return ferrule.TurnSpec(prompt=f"{self.task.letter}{self.turns}") if self.turns <= 2 else None

    async def call(self, call):
        raise ferrule.ToolError("there are no tools")

    async def end_turn(self, reply):
        self.replies.append(reply.content)

    async def score(self):
        if self.task.broken_attempt == self.attempt:
            raise ferrule.EpisodeFailed(ferrule.Failure.VERIFIER_CRASHED, "this one always crashes")
        text = "".join(self.replies)
        return {"reward": text.count("a") / max(len(text), 4)}


class Letter(ferrule.Task):
    score_names = ("reward",)
    metadata: Mapping = {}

    def __init__(self, id, letter, broken_attempt):
        self.id, self.letter, self.broken_attempt = id, letter, broken_attempt

    async def start(self, attempt, sandbox):
        return LetterRun(self, attempt)


class ToyTasks(ferrule.Taskset, name="toy_tasks"):
    """Say many a's, twice. ``broken_attempt``: the attempt whose verifier crashes, of the first task of the train
    split.
    """

    @attrs.frozen
    class Config(ferrule.Taskset.Config):
        tasks: int = 12
        broken_attempt: int = -1
        demonstrations: int = 40

    splits = ("train", "dev", "eval")

    def tasks(self, split):
        splits = self.splits if split == "all" else (split,)
        if not set(splits) <= set(self.splits):
            raise ferrule.FerruleError(f"no split {split!r}; there are {', '.join(self.splits)}")
        return [
            Letter(f"{name}-{i}", "bcdefgh"[i % 7], self.config.broken_attempt if (name, i) == ("train", 0) else -1)
            for name in splits
            for i in range(self.config.tasks)
        ]

    def demonstrations(self, split, count, seed):
        rng = np.random.default_rng(seed)
        found = []
        for task in list(self.tasks(split)) * 4:
            said = ["".join(rng.choice(list("aab"), size=rng.integers(1, 5))) for _ in range(2)]
            messages = [
                message
                for i, text in enumerate(said)
                for message in (ferrule.Message("user", f"{task.letter}{i + 1}"), ferrule.Message("assistant", text))
            ]
            found.append(ferrule.Demonstration(tuple(messages), task_id=task.id))
        return found[: min(count or len(found), self.config.demonstrations)]


class Talk(ferrule.Harness, name="talk"):
    """One reply a turn, no tools."""

    async def run(self, play, rollout):
        agent, messages = rollout.agent(), []
        while turn := await play.next_turn():
            messages = [*messages, *turn.messages]
            reply = await agent.reply(messages, turn.tools)
            turn.record(reply.message)
            messages = [*messages, reply.message]
            await turn.end(reply.message)


class Says(ferrule.Harness, name="says"):
    """Says the same without any model."""

    needs_model = False

    @attrs.frozen
    class Config(ferrule.Harness.Config):
        text: str = "aaaa"

    async def run(self, play, rollout):
        while turn := await play.next_turn():
            reply = ferrule.Message("assistant", self.config.text)
            turn.record(reply)
            await turn.end(reply)


class Centred(ferrule.Advantage, name="centred"):
    group_baseline = True

    def estimate(self, batch):
        return batch.centred


class Observed(ferrule.AuxLoss, name="observed"):
    mask = ferrule.Mask.OBSERVATION

    def weight(self, row, ctx):
        return 1.0


class Witness(ferrule.Observer, name="witness"):
    """Writes down what it is told, and sends the process ``signal`` after ``after`` episodes, or ``again`` that many
    after it a second time.
    """

    @attrs.frozen
    class Config(ferrule.Observer.Config):
        after: int = 0
        signal: str = "SIGKILL"
        again: int = 0

    def __init__(self, config):
        super().__init__(config)
        self.episodes = 0

    def _note(self, run, **what):
        with (run.dir / "witness.jsonl").open("a") as file:
            file.write(json.dumps(what) + "\n")

    @ferrule.hookimpl
    def ferrule_run_started(self, run, config):
        self._note(run, hook="run_started", name=config.get("name"))

    @ferrule.hookimpl
    def ferrule_episode_finished(self, run, episode):
        self.episodes += 1
        self._note(run, hook="episode_finished", id=episode.id)
        if (
            os.environ.get("TOY_SIGNALS", "on") == "on"
            and self.config.after
            and self.episodes
            in (
                self.config.after,
                self.config.after + self.config.again,
            )
        ):
            os.kill(os.getpid(), getattr(signal, self.config.signal))

    @ferrule.hookimpl
    def ferrule_metrics(self, run, stage, step, metrics):
        self._note(run, hook="metrics", stage=stage, step=step)

    @ferrule.hookimpl
    def ferrule_run_finished(self, run, summary):
        self._note(run, hook="run_finished", status=summary["status"])
