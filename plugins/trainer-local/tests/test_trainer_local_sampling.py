"""What the sampler gives: agreement with the trainer, independence of a session from its mates, caches, parameters."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

import ferrule

VOCAB = 29

SHAPES = {
    "llama": {"num_key_value_heads": 4},
    "qwen2": {"num_key_value_heads": 2},
    "qwen3": {"num_key_value_heads": 1, "head_dim": 16},
    "mistral": {"num_key_value_heads": 2, "sliding_window": None},
    "mistral-sliding": {"num_key_value_heads": 2, "sliding_window": 12},
    "gpt_neox": {},
    "gemma2": {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 4096},
}
FAST = ("llama", "qwen2", "qwen3", "mistral")


def hugging_face(name, folder, tokenizer):
    """A folder with a small random model of the architecture *name*, lively enough that numbers differ."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    config = AutoConfig.for_model(
        name.partition("-")[0],
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=256,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
        **SHAPES[name],
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for n, p in model.named_parameters():
                p.normal_(1.0 if "norm" in n and n.endswith("weight") else 0.0, 0.3)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
    return str(folder)


async def converse(trainer, talk, count=9, turns=3, seed=0, **params):
    """Ragged conversations side by side, some sharing their prompt."""
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(2, VOCAB, 3 + 5 * i).tolist() for i in range(4)]
    params = {"max_tokens": 12, "stop_ids": {1, 2, 3}, **params}

    async def play(i):
        one, own = talk(prompts[i % 4]), np.random.default_rng(100 + i)
        async with trainer.sampler().open(f"s{i}", seed=i) as session:
            for _ in range(turns):
                await one.turn(session, own.integers(2, VOCAB, own.integers(0, 9)), **params)
        return one

    return await asyncio.gather(*(play(i) for i in range(count)))


@pytest.mark.parametrize("schedule", ["lockstep", "continuous"])
async def test_logprobs_agree_with_the_trainer_on_ragged_conversations(make_trainer, talk, agreement, schedule):
    trainer = await make_trainer(schedule=schedule)
    talks = await converse(trainer, talk)
    assert await agreement(trainer, talks) < 1e-5
    reasons = {s.stop_reason for t in talks for s in t.samples}
    assert reasons == {"stop", "length"}
    for sample in (s for t in talks for s in t.samples):
        assert sample.ids.dtype == np.int32
        assert sample.logprobs.dtype == np.float32
        assert len(sample.ids) == len(sample.logprobs) == len(sample.versions) <= 12
        assert (sample.ids[-1] in (1, 2, 3)) == (sample.stop_reason == "stop")
        assert not np.isin(sample.ids[:-1], (1, 2, 3)).any()


@pytest.mark.parametrize("name", list(SHAPES))
async def test_folders_of_many_architectures_sample_what_they_train(
    make_trainer, talk, agreement, tmp_path, tokenizer, name
):
    trainer = await make_trainer(hugging_face(name, tmp_path / name, tokenizer))
    assert type(trainer.work.decoder).__name__ == ("FastDecoder" if name in FAST else "ModelDecoder")
    talks = await converse(trainer, talk, count=5)
    assert await agreement(trainer, talks) < 1e-5


async def test_a_folder_is_sampled_as_transformers_would(make_trainer, talk, tmp_path, tokenizer):
    from transformers import AutoModelForCausalLM

    path = hugging_face("qwen3", tmp_path / "model", tokenizer)
    trainer = await make_trainer(path)
    (one,) = await converse(trainer, talk, count=1, turns=1, temperature=0.0, stop_ids=())
    model = AutoModelForCausalLM.from_pretrained(path)
    prompt = torch.tensor([one.ids[:3]])
    want = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=12,
        min_new_tokens=12,
        do_sample=False,
        eos_token_id=None,
    )
    assert want[0].tolist() == one.ids[: want.shape[1]]


@pytest.mark.parametrize("temperature", [0.0, 1.0, 1.7])
async def test_a_session_samples_the_same_whoever_is_beside_it(make_trainer, talk, temperature):
    trainer = await make_trainer()
    together = await converse(trainer, talk, temperature=temperature)
    for i in (0, 4, 7):
        rng, own = np.random.default_rng(0), np.random.default_rng(100 + i)
        prompts = [rng.integers(2, VOCAB, 3 + 5 * k).tolist() for k in range(4)]
        alone = talk(prompts[i % 4])
        async with trainer.sampler().open("alone", seed=i) as session:
            for _ in range(3):
                answer = own.integers(2, VOCAB, own.integers(0, 9))
                await alone.turn(session, answer, max_tokens=12, stop_ids={1, 2, 3}, temperature=temperature)
        assert alone.ids == together[i].ids


async def test_randomness_follows_seed_request_and_position_alone(trainer, talk):
    async def play(seed, skip=0):
        one = talk([5, 6, 7])
        async with trainer.sampler().open("x", seed=seed) as session:
            for _ in range(skip):
                await session.sample(np.array([9, 9]), ferrule.SamplingParams(max_tokens=1))
            await one.turn(session, max_tokens=70)
        return one.ids

    first = await play(1)
    assert await play(1) == first
    assert await play(2) != first
    assert await play(1, skip=1) != first
    assert await play(1 + 2**64) == first


async def test_draws_follow_the_model_at_the_given_temperature(trainer):
    """The chi-square of 3,000 first tokens against the model's own probabilities, at temperature 1 and another."""
    prompt = np.array([4, 8, 15, 16, 23], np.int32)
    with torch.no_grad():
        logits = trainer.work.model(input_ids=torch.tensor(prompt[None].astype(np.int64))).logits[0, -1].double()

    async def draw(seed, temperature):
        async with trainer.sampler().open(f"{seed}", seed=seed) as session:
            sample = await session.sample(prompt, ferrule.SamplingParams(max_tokens=1, temperature=temperature))
        logp = torch.log_softmax(logits, -1)[int(sample.ids[0])]
        assert float(sample.logprobs[0]) == pytest.approx(float(logp), abs=1e-5)
        return int(sample.ids[0])

    for temperature in (1.0, 2.0):
        n = 3000
        tokens = await asyncio.gather(*(draw(i, temperature) for i in range(n)))
        want = torch.softmax(logits / temperature, -1).numpy() * n
        have = np.bincount(tokens, minlength=VOCAB)
        often = want >= 5
        chi = ((have - want)[often] ** 2 / want[often]).sum()
        degrees = often.sum() - 1
        assert degrees >= 5
        assert chi < degrees + 5 * np.sqrt(2 * degrees)


async def test_top_k_and_top_p_bound_the_choice_and_logprobs_stay_untempered(trainer, talk, agreement):
    prompt = [4, 8, 15, 16]
    with torch.no_grad():
        p = trainer.work.model(input_ids=torch.tensor([prompt])).logits[0, -1].softmax(-1)
    order = p.argsort(descending=True).tolist()
    nucleus = next(k for k in range(1, VOCAB) if float(p[order[:k]].sum()) >= 0.5)
    seen, talks = {"k": set(), "p": set(), "both": set()}, []

    async def draw(name, seed, **params):
        one = talk(prompt)
        async with trainer.sampler().open(f"{name}{seed}", seed=seed) as session:
            sample = await one.turn(session, max_tokens=2, temperature=1.5 if name == "k" else 1.0, **params)
        seen[name].add(int(sample.ids[0]))
        talks.append(one)

    jobs = [draw("k", i, top_k=3) for i in range(60)] + [draw("p", i, top_p=0.5) for i in range(150)]
    await asyncio.gather(*jobs, *(draw("both", i, top_p=0.99, top_k=1) for i in range(5)))
    assert seen["k"] == set(order[:3])
    assert seen["p"] <= set(order[:nucleus])
    assert len(seen["p"]) >= min(nucleus, 2)
    assert seen["both"] == {order[0]}
    assert await agreement(trainer, talks) < 1e-5


async def test_each_row_has_its_own_stop_ids_and_limits(trainer, talk):
    async def play(i):
        one = talk([4, 8, 15])
        async with trainer.sampler().open(f"{i}", seed=3) as session:
            await one.turn(session, max_tokens=10 + i, stop_ids=range(i * 2, i * 2 + 3))
        return one.samples[0]

    samples = await asyncio.gather(*(play(i) for i in range(8)))
    base = max(samples, key=lambda s: len(s.ids)).ids
    for i, sample in enumerate(samples):
        stops = [k for k, t in enumerate(base.tolist()) if i * 2 <= t < i * 2 + 3]
        if stops and stops[0] < 10 + i:
            assert sample.stop_reason == "stop"
            assert len(sample.ids) == stops[0] + 1
        else:
            assert len(sample.ids) == min(10 + i, len(base))
        assert sample.ids.tolist() == base[: len(sample.ids)].tolist()


async def test_a_groups_prompt_is_prefilled_once(trainer, talk):
    prompt = list(range(2, 22))

    async def play(i):
        one = talk(prompt)
        async with trainer.sampler().open(f"{i}", seed=i) as session:
            await one.turn(session, max_tokens=3)

    await asyncio.gather(*(play(i) for i in range(8)))
    counters = trainer.sampler().counters
    assert counters["prefills"] == 1
    assert counters["prefill_tokens"] == len(prompt) - 1
    assert counters["sampled_tokens"] == 24
    assert counters["steps"] == 3


async def test_what_a_conversation_shares_with_its_cache_is_not_computed_again(trainer, talk, agreement):
    """Extending feeds the new tokens only; asking again, or with an altered end, keeps what is alike."""
    sampler = trainer.sampler()
    one = talk([4, 8, 15, 16, 23, 9])
    async with sampler.open("a", seed=1) as session:
        await one.turn(session, [7, 7, 7], max_tokens=5)
        before = sampler.counters
        await one.turn(session, max_tokens=5)
        spent = sampler.counters - before
        # The last token sampled and the three of the answer.
        assert spent["forced_tokens"] == 4
        assert spent["prefill_tokens"] == 0
        again = talk(one.ids[:14])
        before = sampler.counters
        first = await again.turn(session, max_tokens=5)
        spent = sampler.counters - before
        assert spent["cropped"] == 5
        assert spent["forced_tokens"] == 1
        repeat = talk(one.ids[:14])
        await repeat.turn(session, max_tokens=5)
        other = talk([4, 8, 15, 3, 3, 3, 3, 3])
        before = sampler.counters
        await other.turn(session, max_tokens=5)
        assert (sampler.counters - before)["forced_tokens"] == 5
        shorter = talk([4, 8])
        await shorter.turn(session, max_tokens=5)
        foreign = talk([25, 24, 23, 22])
        await foreign.turn(session, max_tokens=5)
    assert len(first.ids) == 5
    assert await agreement(trainer, [one, again, repeat, other, shorter, foreign]) < 1e-5


async def test_long_answers_of_tools_are_fed_apart_and_count_alike(make_trainer, talk, agreement, monkeypatch):
    monkeypatch.setattr("ferrule_trainer_local.engine.CHUNK", 7)
    results = []
    for alone in (10, 1000):
        monkeypatch.setattr("ferrule_trainer_local.engine.ALONE", alone)
        trainer = await make_trainer()
        rng = np.random.default_rng(0)
        answers = [rng.integers(2, VOCAB, n) for n in (40, 3, 25)]

        async def play(i, trainer=trainer, answers=answers):
            one = talk([5, 6, 7, 8 + i])
            async with trainer.sampler().open(f"{i}", seed=i) as session:
                for k in range(3):
                    await one.turn(session, answers[(i + k) % 3], max_tokens=6)
                await one.turn(session, max_tokens=6)
            return one

        talks = await asyncio.gather(*(play(i) for i in range(4)))
        assert await agreement(trainer, talks) < 1e-5
        counters = trainer.sampler().counters
        results.append(([t.ids for t in talks], counters["forced_tokens"], counters["sampled_tokens"]))
    assert results[0] == results[1]


@pytest.mark.parametrize("schedule", ["lockstep", "continuous"])
async def test_more_sessions_than_rows_take_their_turns(make_trainer, talk, agreement, schedule):
    wide = await make_trainer(schedule=schedule)
    want = await converse(wide, talk)
    narrow = await make_trainer(schedule=schedule, max_batch=2)
    have = await converse(narrow, talk)
    assert [t.ids for t in have] == [t.ids for t in want]
    assert await agreement(narrow, have) < 1e-5


async def test_publishing_changes_the_samplers_weights_and_version_and_drops_caches(
    make_trainer, random_rows, talk, agreement
):
    trainer = await make_trainer(schedule="continuous")
    rows = random_rows(np.random.default_rng(0), [20, 20])
    zeros = tuple(np.zeros(20, np.float32) for _ in rows)
    weights = tuple(np.ones(20, np.float32) for _ in rows)
    one = talk([4, 8, 15, 16])
    async with trainer.sampler().open("a", seed=1) as session:
        old = await one.turn(session, [5], max_tokens=6)
        await trainer.forward_backward(ferrule.Objective(tuple(rows), "cross_entropy", zeros, zeros, weights))
        await trainer.optim_step(ferrule.OptimParams(lr=0.02))
        same = talk([4, 8, 15, 16])
        async with trainer.sampler().open("b", seed=1) as other:
            unpublished = await same.turn(other, max_tokens=6)
        assert unpublished.ids.tolist() == old.ids.tolist()
        assert await trainer.publish() == 1
        again = talk([4, 8, 15, 16])
        new = await again.turn(session, max_tokens=6)
    assert old.versions.tolist() == [0] * 6
    assert new.versions.tolist() == [1] * 6
    assert not np.allclose(old.logprobs, new.logprobs)
    assert await agreement(trainer, [again]) < 1e-5


async def test_weights_published_amid_a_completion_take_over_from_the_next_token(make_trainer, random_rows, talk):
    trainer = await make_trainer()
    rows = random_rows(np.random.default_rng(0), [20, 20])
    zeros = tuple(np.zeros(20, np.float32) for _ in rows)
    weights = tuple(np.ones(20, np.float32) for _ in rows)
    one = talk([4, 8, 15, 16])
    async with trainer.sampler().open("a", seed=1) as session:
        task = asyncio.create_task(one.turn(session, max_tokens=250))
        await trainer.forward_backward(ferrule.Objective(tuple(rows), "cross_entropy", zeros, zeros, weights))
        await trainer.optim_step(ferrule.OptimParams(lr=0.02))
        await trainer.publish()
        sample = await task
    assert len(sample.ids) == 250
    assert (np.diff(sample.versions) >= 0).all()
    assert set(sample.versions.tolist()) <= {0, 1}
    if sample.versions[-1] == 1:
        (after,) = await trainer.forward([one.row()])
        new = one.row().kind.astype(bool)
        new[np.flatnonzero(new)[sample.versions == 0]] = False
        np.testing.assert_allclose(after[new], one.row().logprobs[new], atol=1e-5)


async def test_requests_that_cannot_be_met_are_refused_at_once(trainer):
    async with trainer.sampler().open("a", seed=1) as session:
        assert trainer.sampler().context_length == 256
        with pytest.raises(ferrule.TrainerError, match="exceed the context of 256 tokens"):
            await session.sample(np.arange(2, 22), ferrule.SamplingParams(max_tokens=237))
        with pytest.raises(ferrule.TrainerError, match="empty prompt"):
            await session.sample(np.array([], np.int32), ferrule.SamplingParams(max_tokens=1))
        with pytest.raises(ferrule.EpisodeFailed) as caught:
            await session.sample(np.array([3, 29]), ferrule.SamplingParams(max_tokens=1))
        assert caught.value.reason == ferrule.Failure.INVALID_TOKEN
        sample = await session.sample(np.arange(2, 22), ferrule.SamplingParams(max_tokens=236))
        assert len(sample.ids) == 236
