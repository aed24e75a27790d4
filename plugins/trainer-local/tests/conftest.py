"""A small tokenizer, small models, and trainers over them that end with their test."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
from ferrule_trainer_local import LocalTrainer, Tiny

import ferrule

VOCAB = 29
SHAPE = Tiny(hidden_size=32, layers=2, heads=4, intermediate_size=48, max_positions=256)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    """A folder with a tokenizer of 29 words."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tokenizer")
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1", pad_token="w0").save_pretrained(folder)
    return str(folder)


@pytest.fixture
async def make_trainer(tmp_path, tokenizer):
    """``await make_trainer(**options)``: a started trainer. ``path`` loads that folder, ``folder`` is the run's."""
    trainers = []

    async def make(path=None, folder=None, seed=1, **options):
        options = {"tiny": SHAPE, "threads": 1, "device": "cpu", **options}
        trainer = LocalTrainer(LocalTrainer.Config(**options))
        trainers.append(trainer)
        spec = ferrule.ModelSpec(path, tokenizer)
        await trainer.start(ferrule.RunInfo("run", folder or tmp_path / "run", seed, spec))
        return trainer

    yield make
    for trainer in trainers:
        await trainer.close()


@pytest.fixture
async def trainer(make_trainer):
    return await make_trainer()


@pytest.fixture
def random_rows():
    def rows(rng, lengths):
        out = []
        for n in lengths:
            kind = rng.integers(0, 2, n).astype(np.uint8)
            kind[0], kind[-1] = 0, 1
            ids = rng.integers(0, VOCAB, n).astype(np.int32)
            out.append(ferrule.Row(ids, kind, np.zeros(n, np.float32), np.full(n, -1, np.int32)))
        return out

    return rows


class Talk:
    """One conversation played against a sampler: what was sampled, and where."""

    def __init__(self, prompt):
        self.ids = list(prompt)
        self.logprobs = {}
        self.samples = []

    async def turn(self, session, answer=(), **params):
        sample = await session.sample(np.array(self.ids, np.int32), ferrule.SamplingParams(**params))
        for j, logprob in enumerate(sample.logprobs):
            self.logprobs[len(self.ids) + j] = float(logprob)
        self.ids += sample.ids.tolist()
        self.ids += list(answer)
        self.samples.append(sample)
        return sample

    def row(self):
        n = len(self.ids)
        kind = np.array([i in self.logprobs for i in range(n)], np.uint8)
        logprobs = np.array([self.logprobs.get(i, 0.0) for i in range(n)], np.float32)
        return ferrule.Row(np.array(self.ids, np.int32), kind, logprobs, np.full(n, -1, np.int32))


@pytest.fixture
def talk():
    return Talk


@pytest.fixture
def agreement():
    """The largest difference between what a talk's sampler and the trainer say of the sampled tokens."""

    async def measure(trainer, talks):
        rows = [t.row() for t in talks]
        out = await trainer.forward(rows)
        return max(float(np.abs(o - r.logprobs)[r.kind == 1].max()) for o, r in zip(out, rows, strict=True))

    return measure
