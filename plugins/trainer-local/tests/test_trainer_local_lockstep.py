"""When the sampler steps: lock-step, patience, cancellation, failure, the end; and that a run repeats bit for bit."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest

import ferrule

ONE = ferrule.SamplingParams(max_tokens=1)
VOCAB = 29


class Delays:
    """Waits before openings, requests and answers, drawn anew on each run: what timing may do to a batch."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    async def some(self):
        await asyncio.sleep(float(self.rng.choice([0, 0, 0.001, 0.004])))


async def episodes(trainer, talk, delays, count=10):
    rng = np.random.default_rng(0)
    prompts = [rng.integers(2, VOCAB, 4 + 3 * i).tolist() for i in range(3)]

    async def play(i):
        one, own = talk(prompts[i % 3]), np.random.default_rng(50 + i)
        async with trainer.sampler().open(f"s{i:02}", seed=i) as session:
            for _ in range(3):
                await delays.some()
                await one.turn(session, own.integers(2, VOCAB, own.integers(0, 9)), max_tokens=15, stop_ids={1, 2})
        return one

    order = np.random.default_rng(delays.rng.integers(1000)).permutation(count)
    talks = await asyncio.gather(*(play(int(i)) for i in order))
    return [t for _, t in sorted(zip(order, talks, strict=True), key=lambda x: x[0])]


async def test_lockstep_repeats_bit_for_bit_whatever_the_timing(make_trainer, talk):
    runs = []
    for seed in range(3):
        trainer = await make_trainer()
        talks = await episodes(trainer, talk, Delays(seed))
        counters = trainer.sampler().counters
        assert counters["patience_expired"] == 0
        runs.append(([t.ids for t in talks], [list(t.logprobs.values()) for t in talks], counters))
    assert runs[1] == runs[0]
    assert runs[2] == runs[0]


async def test_sessions_opened_together_wait_for_one_another_before_the_first_step(trainer, talk):
    """One asks at once, the other after a while: both are in the first step."""

    async def play(i):
        one = talk([4, 8, 15])
        async with trainer.sampler().open(f"{i}", seed=i) as session:
            await asyncio.sleep(0.05 * i)
            await one.turn(session, max_tokens=4)

    await asyncio.gather(play(0), play(1))
    assert trainer.sampler().counters["steps"] == 4
    assert trainer.sampler().counters["prefills"] == 1


async def test_a_session_that_ends_and_one_it_lets_in_leave_no_gap(trainer, talk):
    """With two slots for four sessions, whoever takes a freed slot is there before the next step."""
    slots = asyncio.Semaphore(2)

    async def play(i):
        one = talk([4, 8, 15])
        async with slots, trainer.sampler().open(f"{i}", seed=i) as session:
            await one.turn(session, max_tokens=2 if i == 0 else 4)

    await asyncio.gather(*(play(i) for i in range(4)))
    # 0 with 1 for two steps; 1 with 2 for two; 2 with 3 for two; 3 alone for two.
    assert trainer.sampler().counters["steps"] == 8


async def test_a_slow_tool_holds_the_others_only_for_the_patience(make_trainer, talk):
    trainer = await make_trainer(patience=0.2)
    sampler = trainer.sampler()
    async with sampler.open("slow", seed=1) as slow, sampler.open("quick", seed=2) as quick:
        first, second = talk([4, 8]), talk([15, 16])
        await asyncio.gather(first.turn(slow, max_tokens=2), second.turn(quick, max_tokens=2))
        begun = time.monotonic()
        await second.turn(quick, max_tokens=2)
        assert time.monotonic() - begun >= 0.15
        begun = time.monotonic()
        await second.turn(quick, max_tokens=2)
        assert time.monotonic() - begun < 0.15
        assert sampler.counters["patience_expired"] == 1
        # When it is back it counts again.
        await asyncio.gather(first.turn(slow, max_tokens=2), second.turn(quick, max_tokens=2))
        await second.turn(quick, max_tokens=2)
        assert sampler.counters["patience_expired"] == 2
    metrics = await trainer.optim_step(ferrule.OptimParams())
    assert metrics["sampler/patience_expired"] == 2
    assert (await trainer.optim_step(ferrule.OptimParams()))["sampler/patience_expired"] == 0


async def test_continuous_sampling_waits_for_nobody(make_trainer, talk):
    trainer = await make_trainer(schedule="continuous")
    async with trainer.sampler().open("idle", seed=1), trainer.sampler().open("busy", seed=2) as busy:
        async with asyncio.timeout(5):
            for _ in range(3):
                await talk([4, 8]).turn(busy, max_tokens=2)


async def test_roles_of_one_episode_do_not_wait_for_one_another(trainer, talk):
    sampler = trainer.sampler()
    async with sampler.open("a:solver", seed=1) as solver, sampler.open("a:judge", seed=2) as judge, asyncio.timeout(5):
        for _ in range(2):
            await talk([4, 8]).turn(solver, max_tokens=3)
            await talk([15, 16]).turn(judge, max_tokens=3)
    assert sampler.counters["patience_expired"] == 0


@pytest.mark.parametrize("schedule", ["lockstep", "continuous"])
async def test_a_cancelled_request_leaves_the_others_alone_and_its_session_usable(
    make_trainer, talk, agreement, schedule
):
    trainer = await make_trainer(schedule=schedule, patience=0.1)
    sampler = trainer.sampler()
    async with sampler.open("a", seed=1) as a, sampler.open("b", seed=2) as b:
        victim, other = talk([4, 8, 15]), talk([16, 23])
        task = asyncio.create_task(victim.turn(a, max_tokens=200))
        beside = asyncio.create_task(other.turn(b, max_tokens=230))
        while not sampler.counters["prefills"]:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        again = talk([4, 8, 15])
        await again.turn(a, max_tokens=4)
        await beside
        assert len(other.samples[0].ids) == 230
        assert len(again.samples[0].ids) == 4
    assert await agreement(trainer, [again, other]) < 1e-5


async def test_a_request_cancelled_before_the_engine_heard_of_it_is_never_made(trainer, talk):
    async with trainer.sampler().open("a", seed=1) as session:
        task = asyncio.create_task(session.sample(np.array([4, 8]), ONE))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await talk([4, 8]).turn(session, max_tokens=1)
    assert trainer.sampler().counters["sampled_tokens"] == 1


async def test_an_engine_failure_fails_everybody_who_waits_and_the_next_may_go_on(trainer, talk, agreement):
    decoder, broken = trainer.work.decoder, []

    class Breaks(type(decoder)):
        def __call__(self, *args, **kwargs):
            broken.append(1)
            if len(broken) == 4:
                raise MemoryError("out of memory, as it were")
            return super().__call__(*args, **kwargs)

    decoder.__class__ = Breaks
    sampler = trainer.sampler()

    async def play(i):
        async with sampler.open(f"{i}", seed=i) as session:
            await session.sample(np.array([4, 8, 15]), ferrule.SamplingParams(max_tokens=20))

    results = await asyncio.gather(*(play(i) for i in range(3)), return_exceptions=True)
    assert len(broken) == 4
    for error in results:
        assert isinstance(error, ferrule.EpisodeFailed)
        assert error.reason == ferrule.Failure.ENGINE_FAILED
        assert "out of memory, as it were" in str(error)
    one = talk([4, 8, 15])
    async with sampler.open("after", seed=1) as session:
        await one.turn(session, max_tokens=20)
    assert await agreement(trainer, [one]) < 1e-5


async def test_closing_ends_the_thread_and_fails_whoever_waits(make_trainer):
    trainer = await make_trainer()
    sampler = trainer.sampler()
    async with sampler.open("idle", seed=1), sampler.open("a", seed=2) as session:
        task = asyncio.create_task(session.sample(np.array([4, 8]), ONE))
        await asyncio.sleep(0.05)
        assert not task.done()
        await trainer.close()
        for attempt in (task, session.sample(np.array([4, 8]), ONE)):
            with pytest.raises(ferrule.EpisodeFailed) as caught:
                await attempt
            assert caught.value.reason == ferrule.Failure.ENGINE_FAILED
    assert not sampler.engine.alive
    await trainer.close()
    with pytest.raises(ferrule.TrainerError, match="not started"):
        trainer.sampler()


async def test_a_session_takes_one_request_at_a_time(trainer):
    async with trainer.sampler().open("a", seed=1) as session:
        task = asyncio.create_task(session.sample(np.array([4, 8]), ONE))
        await asyncio.sleep(0)
        with pytest.raises(ferrule.TrainerError, match="another is under way"):
            await session.sample(np.array([4, 8]), ONE)
        await task


async def test_many_sessions_with_cancellations_all_end(make_trainer, talk):
    """Two hundred conversations, a third cancelled at odd moments: everyone gets an answer or its cancellation, no
    row is left.
    """
    trainer = await make_trainer(schedule="continuous", max_batch=16)
    rng = np.random.default_rng(0)

    async def play(i):
        async with trainer.sampler().open(f"{i}", seed=i) as session:
            one = talk([4, 8, 15 + i % 5])
            for _ in range(3):
                await one.turn(session, [5] * (i % 4), max_tokens=10, stop_ids={1})

    tasks = [asyncio.create_task(play(i)) for i in range(200)]
    for task in tasks[::3]:
        asyncio.get_running_loop().call_later(float(rng.uniform(0, 0.3)), task.cancel)
    async with asyncio.timeout(30):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(r) for r in results} <= {type(None), asyncio.CancelledError}
    assert all(r is None for i, r in enumerate(results) if i % 3)
    await trainer.publish()
    assert not trainer.sampler().engine._open
