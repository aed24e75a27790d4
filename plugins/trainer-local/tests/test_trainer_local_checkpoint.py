"""Checkpoints that resume bit for bit, exports that others load, LoRA, and errors that say what is missing."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from ferrule_trainer_local import LocalTrainer, Lora, Tiny

import ferrule


async def sample(trainer, step):
    async with trainer.sampler().open(f"{step}", seed=step) as session:
        return await session.sample(np.array([4, 8, 15, 16], np.int32), ferrule.SamplingParams(max_tokens=12))


async def train(trainer, steps, optimizer="adamw"):
    """Steps of RL on what is sampled; all that a run would record."""
    record = []
    for step in steps:
        got = await sample(trainer, step)
        ids = np.concatenate([[4, 8, 15, 16], got.ids]).astype(np.int32)
        n = len(ids)
        old = np.concatenate([np.zeros(4), got.logprobs]).astype(np.float32)
        action = (np.arange(n) >= 4).astype(np.float32)
        row = ferrule.Row(ids, action.astype(np.uint8), old, np.full(n, -1, np.int32))
        advantage = np.where(ids % 2, 1.0, -1.0).astype(np.float32)
        out = await trainer.forward_backward(ferrule.Objective((row,), "ppo", (advantage,), (old,), (action / n,)))
        metrics = await trainer.optim_step(ferrule.OptimParams(optimizer, lr=0.01, adamw_lr=0.01))
        version = await trainer.publish()
        record.append(
            (ids.tolist(), out.logprobs[0].tolist(), dict(out.metrics), metrics, version, got.versions.tolist())
        )
    return record


def weights(trainer):
    return {n: p.detach().clone() for n, p in trainer.work.model.named_parameters()}


@pytest.mark.parametrize(("optimizer", "options"), [("adamw", {}), ("muon", {}), ("adamw", {"lora": Lora(rank=4)})])
async def test_a_restored_run_goes_on_bit_for_bit(make_trainer, tmp_path, optimizer, options):
    unbroken = await make_trainer(folder=tmp_path / "a", **options)
    await train(unbroken, range(3), optimizer)
    saved = await unbroken.save("step-3")
    want = await train(unbroken, range(3, 6), optimizer)
    assert saved.step == 3
    resumed = await make_trainer(folder=tmp_path / "b", **options)
    await train(resumed, range(10, 12), "adamw")
    await resumed.restore(saved)
    assert await train(resumed, range(3, 6), optimizer) == want
    for name, value in weights(unbroken).items():
        assert torch.equal(value, weights(resumed)[name]), name
    assert (await resumed.save("x")).step == 6


async def test_the_optimizers_state_matters_and_can_be_forgotten(make_trainer, tmp_path):
    trainer = await make_trainer()
    await train(trainer, range(3))
    saved = await trainer.save("a")
    want = await train(trainer, [3, 4])
    await trainer.restore(saved)
    await trainer.reset_optimizer()
    have = await train(trainer, [3, 4])
    assert have[0][:3] == want[0][:3]
    assert have[1][1] != want[1][1]


async def test_weights_saved_before_publishing_reach_the_sampler_on_restore(make_trainer, tmp_path, random_rows):
    trainer = await make_trainer()
    await train(trainer, range(2))
    rows = random_rows(np.random.default_rng(0), [9])
    zeros, ones = (np.zeros(9, np.float32),), (np.ones(9, np.float32),)
    await trainer.forward_backward(ferrule.Objective(tuple(rows), "cross_entropy", zeros, zeros, ones))
    await trainer.optim_step(ferrule.OptimParams(lr=0.05))
    saved = await trainer.save("dirty")
    assert await trainer.publish() == 3
    want = await sample(trainer, 7)
    await train(trainer, range(2))
    await trainer.restore(saved)
    have = await sample(trainer, 7)
    assert have.ids.tolist() == want.ids.tolist()
    assert have.logprobs.tolist() == want.logprobs.tolist()
    assert have.versions.tolist() == want.versions.tolist()


async def test_a_stop_between_two_publications_changes_no_version(make_trainer, random_rows):
    trainer = await make_trainer()
    rows = random_rows(np.random.default_rng(0), [9])
    zeros, ones = (np.zeros(9, np.float32),), (np.ones(9, np.float32),)
    objective = ferrule.Objective(tuple(rows), "cross_entropy", zeros, zeros, ones)
    await trainer.forward_backward(objective)
    await trainer.optim_step(ferrule.OptimParams(lr=0.05))
    saved = await trainer.save("between")
    await trainer.restore(saved)
    await trainer.forward_backward(objective)
    await trainer.optim_step(ferrule.OptimParams(lr=0.05))
    assert await trainer.publish() == 1
    assert await trainer.publish() == 2
    await trainer.restore(saved)
    assert set((await sample(trainer, 7)).versions.tolist()) == {1}
    assert await trainer.publish() == 2  # 1 is now the name of what was sampled from


async def test_a_checkpoint_that_does_not_fit_on_the_disk_is_named_and_leaves_nothing(make_trainer):
    trainer = await make_trainer()
    first = await trainer.save("first")
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(ferrule.CheckpointError, match="cannot be written"):
            await trainer.save("second")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert [p.name for p in Path(first.path).parent.iterdir()] == ["first"]
    await trainer.restore(first)


async def test_torchs_random_state_is_restored(make_trainer):
    trainer = await make_trainer()
    saved = await trainer.save("a")
    want = torch.rand(3)
    await trainer.restore(saved)
    assert torch.equal(torch.rand(3), want)


async def test_saving_twice_under_one_name_keeps_the_newer(make_trainer):
    trainer = await make_trainer()
    first = await trainer.save("last")
    await train(trainer, range(2))
    second = await trainer.save("last")
    assert second.path == first.path
    assert sorted(p.name for p in Path(second.path).parent.iterdir()) == ["last"]
    now = weights(trainer)
    await train(trainer, range(1))
    await trainer.restore(second)
    assert all(torch.equal(v, now[n]) for n, v in weights(trainer).items())


async def test_a_checkpoint_cut_short_is_refused_and_nothing_changes(make_trainer, tmp_path):
    trainer = await make_trainer()
    await train(trainer, range(2))
    saved = await trainer.save("a")
    before = weights(trainer)
    file = Path(saved.path) / "weights.safetensors"
    whole = file.read_bytes()

    async def refused(match):
        with pytest.raises(ferrule.CheckpointError, match=match):
            await trainer.restore(saved)

    file.write_bytes(whole[:-10])
    await refused("incomplete: weights.safetensors has")
    file.write_bytes(b"\xff" * len(whole))
    await refused("weights.safetensors cannot be read")
    file.unlink()
    await refused("weights.safetensors is missing")
    file.write_bytes(whole)
    state = Path(saved.path) / "state.json"
    text = state.read_text()
    state.write_text(text[:50])
    await refused("state.json cannot be read")
    state.write_text(json.dumps({"format": 99}))
    await refused("not of format")
    state.unlink()
    await refused("has no state.json")
    with pytest.raises(ferrule.CheckpointError, match="does not exist"):
        await trainer.restore(ferrule.Checkpoint(str(tmp_path / "nowhere")))
    assert all(torch.equal(v, before[n]) for n, v in weights(trainer).items())
    state.write_text(text)
    await trainer.restore(saved)


async def test_a_checkpoint_of_another_model_is_refused(make_trainer, tmp_path):
    saved = await (await make_trainer()).save("a")
    other = await make_trainer(tiny=Tiny(hidden_size=32, layers=1, heads=4, intermediate_size=48, max_positions=256))
    with pytest.raises(ferrule.CheckpointError, match="another model"):
        await other.restore(saved)
    one = await make_trainer(lora=Lora(rank=2), folder=tmp_path / "one")
    frozen_differ = await make_trainer(lora=Lora(rank=2), folder=tmp_path / "two", seed=2)
    with pytest.raises(ferrule.CheckpointError, match="frozen weights differ"):
        await frozen_differ.restore(await one.save("a"))


async def test_a_failed_save_leaves_the_old_checkpoint_and_no_litter(make_trainer, monkeypatch):
    trainer = await make_trainer()
    saved = await trainer.save("a")

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ferrule_trainer_local.checkpoint.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        await trainer.save("a")
    monkeypatch.undo()
    assert [p.name for p in Path(saved.path).parent.iterdir()] == ["a"]
    await trainer.restore(saved)


@pytest.mark.parametrize("lora", [None, Lora(rank=4)])
async def test_an_export_loads_elsewhere_with_the_same_numbers_and_its_tokenizer(
    make_trainer, tmp_path, random_rows, lora
):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    trainer = await make_trainer(lora=lora)
    await train(trainer, range(3))
    rows = random_rows(np.random.default_rng(0), [20, 11])
    want = await trainer.forward(rows)
    await trainer.export(str(tmp_path / "out"))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert AutoTokenizer.from_pretrained(tmp_path / "out").convert_tokens_to_ids("w7") == 7
    with torch.no_grad():
        for row, logprobs in zip(rows, want, strict=True):
            ids = torch.tensor(row.ids[None].astype(np.int64))
            logp = model(input_ids=ids).logits[0].log_softmax(-1)[:-1].gather(1, ids[0, 1:, None])[:, 0]
            np.testing.assert_allclose(logp.numpy(), logprobs[1:], atol=1e-5)
    again = await make_trainer(str(tmp_path / "out"), folder=tmp_path / "again")
    for a, b in zip(await again.forward(rows), want, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


async def test_lora_trains_adapters_alone_and_the_sampler_has_them_merged(make_trainer, talk, agreement):
    trainer = await make_trainer(lora=Lora(rank=4, alpha=16))
    before = weights(trainer)
    await train(trainer, range(4))
    changed = {n for n, p in weights(trainer).items() if not torch.equal(p, before[n])}
    assert changed
    assert changed == {n for n in before if ".lora_" in n}
    one = talk([4, 8, 15])
    async with trainer.sampler().open("a", seed=1) as session:
        await one.turn(session, [5, 6], max_tokens=20)
        await one.turn(session, max_tokens=20)
    assert await agreement(trainer, [one]) < 1e-5


async def test_dropout_is_on_for_gradients_alone(make_trainer, random_rows):
    trainer = await make_trainer(lora=Lora(rank=4, dropout=0.5))
    await train(trainer, range(2))
    rows = random_rows(np.random.default_rng(0), [20])
    first, second = [(await trainer.forward(rows))[0] for _ in range(2)]
    np.testing.assert_array_equal(first, second)
    zeros, ones = (np.zeros(20, np.float32),), (np.ones(20, np.float32),)
    out = await trainer.forward_backward(ferrule.Objective(tuple(rows), "cross_entropy", zeros, zeros, ones))
    assert not np.allclose(out.logprobs[0], first, atol=1e-5)
    np.testing.assert_array_equal((await trainer.forward(rows))[0], first)


async def test_lora_without_peft_says_what_to_install(make_trainer, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ferrule.TrainerError, match=r"ferrule-trainer-local\[lora\]"):
        await make_trainer(lora=Lora())


async def test_lora_on_modules_that_are_not_there_is_an_error(make_trainer):
    with pytest.raises(ferrule.TrainerError, match="does not fit this model"):
        await make_trainer(lora=Lora(target_modules=("nothing",)))


async def test_bfloat16_computes_in_it_and_keeps_float32_weights(make_trainer, talk, agreement):
    trainer = await make_trainer(dtype="bfloat16")
    await train(trainer, range(2))
    assert {p.dtype for p in trainer.work.model.parameters()} == {torch.float32}
    assert trainer.work.decoder.dtype == torch.bfloat16
    one = talk([4, 8, 15])
    async with trainer.sampler().open("a", seed=1) as session:
        await one.turn(session, [5, 6], max_tokens=20)
        await one.turn(session, max_tokens=20)
    assert await agreement(trainer, [one]) < 0.2


async def test_what_is_missing_at_the_start_is_said(tmp_path, tokenizer):
    async def start(match, spec, **options):
        trainer = LocalTrainer(LocalTrainer.Config(**options))
        with pytest.raises(ferrule.TrainerError, match=match):
            await trainer.start(ferrule.RunInfo("r", tmp_path, 0, spec))
        await trainer.close()

    await start("is not a folder", ferrule.ModelSpec("no/such/model"))
    await start("has no config.json", ferrule.ModelSpec(str(tmp_path)))
    await start("give model.tokenizer", ferrule.ModelSpec())
    await start("tokenizer in .* cannot be loaded", ferrule.ModelSpec(tokenizer=str(tmp_path)))
    await start("over the model's 512 positions", ferrule.ModelSpec(tokenizer=tokenizer), context_length=1000)
    if not torch.cuda.is_available():
        await start("finds no GPU", ferrule.ModelSpec(tokenizer=tokenizer), device="cuda")
    (tmp_path / "config.json").write_text('{"model_type": "unheard-of"}')
    await start("cannot be loaded", ferrule.ModelSpec(str(tmp_path)))


async def test_the_models_beginning_is_a_function_of_the_runs_seed(make_trainer, tmp_path):
    first, same, other = [
        weights(await make_trainer(seed=s, folder=tmp_path / str(i))) for i, s in enumerate((1, 1, 2))
    ]
    assert all(torch.equal(first[n], same[n]) for n in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_shapes_that_cannot_be_are_refused_by_the_configuration():
    with pytest.raises(ValueError, match="hidden_size 100"):
        Tiny(hidden_size=100, heads=3)
    with pytest.raises(ValueError, match="multiple of kv_heads"):
        Tiny(kv_heads=3)


def test_naming_the_trainer_imports_nothing_heavy():
    code = (
        "import sys, ferrule_trainer_local as m; m.LocalTrainer(m.LocalTrainer.Config()); "
        "print([n for n in ('torch', 'transformers', 'peft', 'safetensors') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ), check=True
    )
    assert done.stdout.strip() == "[]"
