"""Our training step beside TRL's GRPOTrainer, on identical weights and prompts: CPU seconds a step, and the rewards
of both.

Every step samples 64 completions of 64 tokens, 8 to each of 8 prompts, and takes one optimizer step on them. Each
side runs in a process of its own, one thread, by turns; the medians of all their steps but the first are compared.

    python tests/benchmarks/bench_trl.py [--repeats 3] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROMPTS, GROUP, TOKENS, STEPS, PROMPT = 8, 8, 64, 10, 64
LR, VOCAB = 2e-3, 433


def reward(ids: list[int]) -> float:
    """The share of even ids: easy to learn in a few steps."""
    return sum(i % 2 == 0 for i in ids) / max(1, len(ids))


def prompts() -> list[list[int]]:
    import numpy as np

    rng = np.random.default_rng(0)
    return rng.integers(4, VOCAB, (PROMPTS, PROMPT)).tolist()


async def make(folder: Path) -> None:
    """A model of about a million parameters and its tokenizer, as a Hugging Face folder."""
    from ferrule_trainer_local import LocalTrainer
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    import ferrule

    vocabulary = {"<pad>": 0, "<eos>": 1, **{f"w{i}": i for i in range(2, VOCAB)}}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>").save_pretrained(
        folder / "words"
    )
    trainer = LocalTrainer(LocalTrainer.Config(threads=1))
    await trainer.start(ferrule.RunInfo("made", folder, 0, ferrule.ModelSpec(tokenizer=str(folder / "words"))))
    await trainer.export(str(folder / "model"))
    await trainer.close()


async def ours(model: Path, seed: int) -> dict[str, list[float]]:
    import numpy as np
    from ferrule_advantage_grpo import Grpo
    from ferrule_trainer_local import LocalTrainer

    import ferrule
    from ferrule.algorithm import build_batch, lower
    from ferrule.config.schema import FilterConfig, PolicyConfig

    trainer = LocalTrainer(LocalTrainer.Config(threads=1, device="cpu", micro_batch_tokens=64 * (PROMPT + TOKENS)))
    await trainer.start(ferrule.RunInfo("bench", model.parent / "ours", 0, ferrule.ModelSpec(str(model))))
    sampler, estimator = trainer.sampler(), {"*": Grpo(Grpo.Config())}
    params = ferrule.SamplingParams(max_tokens=TOKENS)
    optim = ferrule.OptimParams(lr=LR, betas=(0.9, 0.999))

    async def play(step: int, task: int, attempt: int, prompt: list[int]) -> ferrule.Episode:
        async with sampler.open(f"{task}#{attempt}", seed=ferrule.derive_seed(seed, step, task, attempt)) as session:
            sample = await session.sample(np.array(prompt, np.int32), params)
        n, m = len(prompt), len(sample.ids)
        segment = ferrule.Segment(
            np.concatenate([np.array(prompt, np.int32), sample.ids]),
            np.repeat([int(ferrule.TokenKind.PROMPT), int(ferrule.TokenKind.ACTION)], [n, m]).astype(np.uint8),
            np.concatenate([np.zeros(n, np.float32), sample.logprobs]),
            np.concatenate([np.full(n, -1, np.int32), sample.versions]),
        )
        one = ferrule.Step(segment, 0, n, n + m, sample.stop_reason, ferrule.Message("assistant"))
        score = reward(sample.ids.tolist())
        trajectory = ferrule.Trajectory("agent", (one,), (segment,), score)
        return ferrule.Episode(f"{task}#{attempt}", str(task), attempt, (trajectory,), reward=score)

    out: dict[str, list[float]] = {"cpu": [], "reward": []}
    for step in range(STEPS):
        begun = time.process_time()
        episodes = await asyncio.gather(*(play(step, t, a, p) for t, p in enumerate(prompts()) for a in range(GROUP)))
        batch = build_batch(episodes, advantage=estimator, filter=FilterConfig(), vocab_size=VOCAB)
        await trainer.forward_backward(lower(batch, PolicyConfig(), ()))
        await trainer.optim_step(optim)
        await trainer.publish()
        out["cpu"].append(time.process_time() - begun)
        out["reward"].append(statistics.mean(e.reward for e in episodes))
    await trainer.close()
    return out


def theirs(model: Path, seed: int) -> dict[str, list[float]]:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(1)
    out: dict[str, list[float]] = {"cpu": [], "reward": []}

    class Clock(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            self.begun = self.begun if getattr(self, "begun", None) else time.process_time()

        def on_step_end(self, args, state, control, **kwargs):
            now = time.process_time()
            out["cpu"].append(now - self.begun)
            self.begun = now

    def score(completion_ids: list[list[int]], **kwargs) -> list[float]:
        scores = [reward(list(ids)) for ids in completion_ids]
        assert all(len(ids) == TOKENS for ids in completion_ids)
        out["reward"].append(statistics.mean(scores))
        return scores

    config = GRPOConfig(
        output_dir=str(model.parent / "theirs"),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        per_device_train_batch_size=PROMPTS * GROUP,
        num_generations=GROUP,
        max_completion_length=TOKENS,
        max_steps=STEPS,
        learning_rate=LR,
        lr_scheduler_type="constant",
        beta=0.0,
        temperature=1.0,
        top_k=0,
        max_grad_norm=1.0,
        seed=seed,
        loss_type="dapo",
        generation_kwargs={"min_new_tokens": TOKENS},
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        shuffle_dataset=False,
    )
    tokenizer = AutoTokenizer.from_pretrained(model)
    texts = [" ".join(f"w{i}" for i in p) for p in prompts()]
    assert tokenizer(texts).input_ids == prompts()
    data = Dataset.from_list([{"prompt": text} for text in texts] * STEPS)
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model),
        reward_funcs=score,
        args=config,
        train_dataset=data,
        processing_class=tokenizer,
        callbacks=[Clock()],
    )
    trainer.train()
    return out


def run(side: str, folder: Path, seed: int = 0) -> dict[str, list[float]]:
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "KMP_BLOCKTIME": "0",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    command = [sys.executable, __file__, "--side", side, "--folder", str(folder), "--seed", str(seed)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--side", choices=["make", "ours", "trl"])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.side == "make":
        asyncio.run(make(args.folder))
        print("{}")
        return
    if args.side:
        model = args.folder / "model"
        print(json.dumps(asyncio.run(ours(model, args.seed)) if args.side == "ours" else theirs(model, args.seed)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run("make", folder)
        sides: dict[str, list[dict[str, list[float]]]] = {"ours": [], "trl": []}
        for seed in range(args.repeats):
            for side, results in sides.items():
                results.append(run(side, folder, seed))
    medians = {s: statistics.median(c for r in rs for c in r["cpu"][1:]) for s, rs in sides.items()}
    rewards = {s: [[r["reward"][i] for r in rs] for i in (0, -1)] for s, rs in sides.items()}
    ratio = medians["ours"] / medians["trl"]
    if args.json:
        print(json.dumps({"cpu_seconds_per_step": medians, "ratio": ratio, "reward_first_last": rewards}))
        return
    print(f"CPU seconds a step, median: ours {medians['ours']:.3f}, TRL {medians['trl']:.3f}, ratio {ratio:.2f}")
    for side, (first, last) in rewards.items():
        band = f"{min(last):.3f} to {max(last):.3f}"
        print(
            f"reward of {side}: {statistics.mean(first):.3f} at step 1, {statistics.mean(last):.3f} ({band}) at step {STEPS}"
        )


if __name__ == "__main__":
    main()
