from __future__ import annotations

import itertools
import random

import pytest
from ferrule_gridsim import demonstrations, home
from ferrule_sandbox_local import LocalSandboxes
from ferrule_taskset_bundle import BundleTaskset

from ferrule import Message, Play, ToolCall, ToolError


@pytest.fixture(scope="module")
def taskset():
    return BundleTaskset(BundleTaskset.Config(path=home() / "bundle"))


@pytest.fixture(scope="module")
def sim(taskset):
    """The bundle's own Python."""
    return taskset.tasks("eval")[0].parts.modules[0]


async def play_out(task, *calls):
    """The answers to *calls*, and the reward after them."""
    async with Play(task, sandboxes=LocalSandboxes(LocalSandboxes.Config())) as play:
        turn = await play.next_turn()
        answers = []
        for name, arguments in calls:
            message = Message("assistant", tool_calls=(ToolCall("x", name, arguments),))
            turn.record(message)
            answers += [answer.content for answer in await turn.call(message.tool_calls)]
        await turn.end(Message("assistant", "done"))
        assert await play.next_turn() is None
        return answers, (await play.result()).reward


def legal_plans(sim, day_prices):
    for letters in itertools.product("CHD", repeat=len(day_prices)):
        plan = "".join(letters)
        try:
            yield sim.profit_of(day_prices, plan), plan
        except ToolError:
            continue


def test_best_plan_is_the_best_of_all_plans(sim):
    rng = random.Random(0)
    days = [tuple(rng.randint(1, 9) for _ in range(8)) for _ in range(12)] + [sim.prices(800), (9, 8, 7, 6, 5, 4, 3, 2)]
    for day_prices in days:
        profit, plan = sim.best(day_prices)
        assert sim.profit_of(day_prices, plan) == profit
        assert profit == max(p for p, _ in legal_plans(sim, day_prices))


def test_every_day_has_something_to_earn_and_is_the_same_every_time(sim, taskset):
    for task in taskset.tasks("all"):
        day_prices = sim.prices(task.params["day"])
        assert len(day_prices) == 8
        assert all(1 <= price <= 9 for price in day_prices)
        assert sim.best(day_prices)[0] >= 4
    assert "".join(map(str, sim.prices(772))) == "13296984"


def test_train_dev_and_eval_days_are_disjoint(taskset):
    days = {split: {task.params["day"] for task in taskset.tasks(split)} for split in taskset.splits}
    assert {split: len(of) for split, of in days.items()} == {"train": 736, "dev": 64, "eval": 200}
    assert max(max(of) for of in days.values()) < 1000  # a longer number would be another task
    for of in days.values():
        assert {day // 100 for day in of} == set(range(10))  # every digit, so that copying it is no other task either
    assert not any(days[a] & days[b] for a, b in itertools.combinations(days, 2))


async def test_holding_earns_a_fifth_the_best_plan_all_and_nothing_submitted_nothing(sim, taskset):
    task = taskset.tasks("eval")[7]
    best = sim.best(sim.prices(task.params["day"]))[1]
    assert (await play_out(task, ("submit_schedule", {"plan": "H" * 8})))[1] == pytest.approx(0.2)
    assert (await play_out(task, ("submit_schedule", {"plan": best})))[1] == pytest.approx(1.0)
    assert (await play_out(task))[1] == 0.0
    assert (await play_out(task, ("get_forecast", {"day": task.params["day"]})))[1] == 0.0


async def test_reward_is_linear_in_profit_and_never_below_zero(sim, taskset):
    task = taskset.tasks("eval")[7]
    day_prices = sim.prices(task.params["day"])
    best = sim.best(day_prices)[0]
    plans = dict(legal_plans(sim, day_prices))
    assert min(plans) < -best / 4
    for profit, plan in plans.items():
        _, reward = await play_out(task, ("submit_schedule", {"plan": plan}))
        assert reward == pytest.approx(max(0.0, 0.2 + 0.8 * profit / best))


async def test_illegal_plans_are_answered_and_can_be_recovered_from(taskset):
    task = taskset.tasks("eval")[0]
    answers, reward = await play_out(
        task,
        ("submit_schedule", {"plan": "CCHHHHHH"}),
        ("submit_schedule", {"plan": "HHDHHHHH"}),
        ("submit_schedule", {"plan": "HHH"}),
        ("submit_schedule", {"plan": "hhhhhhhh"}),
        ("submit_schedule", {"plam": "HHHHHHHH"}),
        ("submit_schedule", {"plan": "HHHHHHHH"}),
    )
    assert answers == [
        "error: slot 2 full",
        "error: slot 3 empty",
        "error: need 8 letters C H D",
        "error: need 8 letters C H D",
        "submit_schedule: unknown argument 'plam', did you mean 'plan'?; argument 'plan' is missing",
        "accepted profit 0",
    ]
    assert reward == pytest.approx(0.2)


async def test_after_an_accepted_plan_more_are_refused(sim, taskset):
    task = taskset.tasks("eval")[0]
    best = sim.best(sim.prices(task.params["day"]))[1]
    answers, reward = await play_out(task, ("submit_schedule", {"plan": "H" * 8}), ("submit_schedule", {"plan": best}))
    assert answers == ["accepted profit 0", "error: already submitted"]
    assert reward == pytest.approx(0.2)


def test_tools_are_shown_as_they_are_typed(taskset):
    (turn,) = taskset.tasks("eval")[0].turns()
    assert turn.prompt == "Plan day 001."
    forecast, submit = turn.tools
    assert forecast.parameters == {
        "type": "object",
        "properties": {"day": {"type": "integer", "description": "The number of the day."}},
        "required": ["day"],
    }
    assert submit.parameters["properties"]["plan"]["type"] == "string"
    assert submit.description == "Submit the plan for the day. Once one is accepted, it stands."


async def test_gold_actions_earn_the_best(taskset):
    for task in taskset.tasks("eval")[:20]:
        gold = [Message.from_openai(message) for message in task.metadata["gold"]]
        calls = [(call.name, call.arguments) for message in gold for call in message.tool_calls]
        assert (await play_out(task, *calls))[1] == pytest.approx(1.0)


def test_demonstrations_are_legal_varied_and_a_function_of_the_seed(sim, taskset):
    demos = demonstrations("train", 600, seed=5)
    assert len(demos) == 600
    train = {task.id for task in taskset.tasks("train")}
    rewards, errors, repeats = [], 0, 0
    for demo in demos:
        assert demo.task_id in train
        said = [message for message in demo.messages if message.role == "assistant"]
        answers = [message.content for message in demo.messages if message.role == "tool"]
        assert len(said) <= sim.MAX_MESSAGES
        accepted = [answer for answer in answers if answer.startswith("accepted profit ")]
        assert len(accepted) == 1
        best = sim.best(sim.prices(int(demo.task_id.removeprefix("day-"))))[0]
        rewards.append(max(0.0, 0.2 + 0.8 * int(accepted[0].split()[-1]) / best))
        errors += any("slot" in answer or "need" in answer for answer in answers)
        repeats += "error: already submitted" in answers
    assert 0.11 < errors / 600 < 0.19
    assert 0.05 < repeats / 600 < 0.11
    assert 0.6 < sum(rewards) / 600 < 0.8
    again = demonstrations("train", 600, seed=5)
    assert [demo.messages for demo in again] == [demo.messages for demo in demos]
    assert [demo.messages for demo in demonstrations("train", 600, seed=6)] != [demo.messages for demo in demos]


def test_demonstrations_on_dev_days_play_dev_days_only(taskset):
    dev = {task.id for task in taskset.tasks("dev")}
    assert {demo.task_id for demo in demonstrations("dev", 50, seed=1)} <= dev
