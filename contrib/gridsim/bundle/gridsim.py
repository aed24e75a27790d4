"""GridSim: a battery that holds one unit, a day of eight prices, and one plan to make of them.

A plan has one letter per slot: C buys a unit at the slot's price, D sells it, H holds. The battery starts empty. The
plan that is accepted is filed in the day's sandbox, and what lies there at the end is what is judged.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from ferrule import Sandbox, ToolError

SLOTS = 8
IDLE_REWARD = 0.2
PLAN = "plan.txt"
DAYS = 1000
LEAST_PROFIT = 4
"""Days whose best profit is below this are drawn again: there would be little to learn from them."""

MAX_MESSAGES = 4
"""How many messages a demonstration may have; the recipe's ``max_steps``."""


@lru_cache(maxsize=4096)
def prices(day: int) -> tuple[int, ...]:
    """The prices of *day*, 1 to 9 per slot; a function of the day alone."""
    rng = random.Random(f"grid-{day}")
    while True:
        drawn = tuple(rng.randint(1, 9) for _ in range(SLOTS))
        if best(drawn)[0] >= LEAST_PROFIT:
            return drawn


@lru_cache(maxsize=65536)
def best(day_prices: tuple[int, ...]) -> tuple[int, str]:
    """The best (profit, plan), by dynamic programming backwards over the slots; the battery is empty or full.

    Of plans that earn the same, the one that holds where it can.
    """
    empty, full = (0, ""), (0, "")
    for price in reversed(day_prices):
        charge, discharge = (full[0] - price, "C" + full[1]), (empty[0] + price, "D" + empty[1])
        empty, full = (
            max((empty[0], "H" + empty[1]), charge, key=lambda option: option[0]),
            max((full[0], "H" + full[1]), discharge, key=lambda option: option[0]),
        )
    return empty


def profit_of(day_prices: tuple[int, ...], plan: str) -> int:
    """What *plan* earns. Raises ToolError where it is illegal, saying why."""
    if len(plan) != len(day_prices) or set(plan) - set("CHD"):
        raise ToolError(f"error: need {len(day_prices)} letters C H D")
    full, profit = False, 0
    for slot, (letter, price) in enumerate(zip(plan, day_prices, strict=True), 1):
        if letter == "C":
            if full:
                raise ToolError(f"error: slot {slot} full")
            full, profit = True, profit - price
        elif letter == "D":
            if not full:
                raise ToolError(f"error: slot {slot} empty")
            full, profit = False, profit + price
    return profit


class Day:
    """One attempt at a day: whether a plan was accepted."""

    def __init__(self, day: int) -> None:
        self.day = day
        self.prices = prices(day)
        self.accepted = False


def get_forecast(state: Day, day: int) -> dict[str, str]:
    """The prices of a day, one digit per slot.

    Args:
        day: The number of the day.
    """
    return {"prices": "".join(map(str, prices(day)))}


async def submit_schedule(state: Day, plan: str, sandbox: Sandbox | None = None) -> str:
    """Submit the plan for the day. Once one is accepted, it stands.

    Args:
        plan: One letter per slot: C charge, H hold, D discharge.
    """
    if state.accepted:
        raise ToolError("error: already submitted")
    profit = profit_of(state.prices, plan)
    if sandbox is not None:  # None where a demonstration is played
        await sandbox.write(PLAN, plan.encode())
    state.accepted = True
    return f"accepted profit {profit}"


async def profit_score(state: Day, sandbox: Sandbox) -> float:
    """0 where no plan was filed; 0.2 for no profit, 1.0 for the best, linear between and below, never under 0."""
    try:
        plan = (await sandbox.read(PLAN)).decode()
    except FileNotFoundError:
        return 0.0
    return max(0.0, IDLE_REWARD + (1.0 - IDLE_REWARD) * profit_of(state.prices, plan) / best(state.prices)[0])


def days(first: int, count: int) -> Iterator[dict[str, Any]]:
    """The params of *count* days, from the *first* of a fixed shuffle of all: every split has days of every sort.

    An agent that has only seen days below 700 copies the digits 8 and 9 badly, and its reward would tell that instead.
    """
    shuffled = random.Random("grid-days").sample(range(DAYS), DAYS)
    for day in sorted(shuffled[first : first + count]):
        yield {"id": f"day-{day:03d}", "day": day}


def best_actions(params: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages that earn a day's best."""
    day = params["day"]
    return [_forecast(day), _submit(best(prices(day))[1]), {"content": "done"}]


def demonstrations(rng: random.Random, count: int, tasks: list[Any]) -> Iterator[dict[str, Any]]:
    """Scripts of a planner of middling skill, some with a mistake and its recovery, some that submit twice.

    They show every tool and every answer, and leave the best plans to be found: 55 % buy and sell once, 10 % follow
    thresholds, 10 % are random but legal, 25 % are the best.
    """
    for _ in range(count):
        task = rng.choice(tasks)
        day = task.params["day"]
        plan = _plan(rng, prices(day))
        script = [_forecast(day)]
        if rng.random() < 0.15:
            script.append(_submit(_broken(rng, plan)))
        script.append(_submit(plan))
        if len(script) < MAX_MESSAGES and rng.random() < 0.08:
            script.append(_submit(_plan(rng, prices(day))))
        if len(script) < MAX_MESSAGES:
            script.append({"content": "done"})
        yield {"task": task.id, "script": script}


def _forecast(day: int) -> dict[str, Any]:
    return {"call": "get_forecast", "arguments": {"day": day}}


def _submit(plan: str) -> dict[str, Any]:
    return {"call": "submit_schedule", "arguments": {"plan": plan}}


def _plan(rng: random.Random, day_prices: tuple[int, ...]) -> str:
    kind = rng.choices(("single", "threshold", "random", "best"), (55, 10, 10, 25))[0]
    if kind == "single":
        return single_cycle(day_prices)
    if kind == "threshold":
        return threshold(day_prices)
    return random_legal(rng, len(day_prices)) if kind == "random" else best(day_prices)[1]


def single_cycle(day_prices: tuple[int, ...]) -> str:
    """The best plan that buys once and sells once."""
    pairs = ((j, i) for j in range(len(day_prices)) for i in range(j))
    sell, buy = max(pairs, key=lambda pair: (day_prices[pair[0]] - day_prices[pair[1]], -pair[1], -pair[0]))
    return "".join("C" if slot == buy else "D" if slot == sell else "H" for slot in range(len(day_prices)))


def threshold(day_prices: tuple[int, ...], low: int = 4, high: int = 6) -> str:
    """Buy at *low* or less, sell at *high* or more."""
    full, out = False, ""
    for price in day_prices:
        letter = "C" if price <= low and not full else "D" if price >= high and full else "H"
        full = letter == "C" or (full and letter == "H")
        out += letter
    return out


def random_legal(rng: random.Random, slots: int) -> str:
    """A plan without a mistake and without a thought."""
    full, out = False, ""
    for _ in range(slots):
        letter = rng.choice("HD" if full else "HC")
        full = letter == "C" or (full and letter == "H")
        out += letter
    return out


def _broken(rng: random.Random, plan: str) -> str:
    """*plan* with a mistake: a letter too few or too many, or one that the battery cannot do."""
    if rng.random() < 0.2:
        return plan[:-1] if rng.random() < 0.5 else plan + "H"
    for _ in range(20):
        slot = rng.randrange(len(plan))
        changed = plan[:slot] + rng.choice("CD") + plan[slot + 1 :]
        try:
            profit_of((1,) * len(plan), changed)
        except ToolError:
            return changed
    return "D" + plan[1:]
