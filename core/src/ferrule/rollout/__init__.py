"""Playing: the token ledger, the agent over it, the play of a task, the slots, and the player that joins them."""

from .agent import Agent, Reply
from .ledger import Ledger
from .plan import Extend, Repeat, Reset, Start
from .play import Play, PlayResult, Turn
from .player import Player, Stats
from .rollout import Rollout
from .slots import Slots

__all__ = [
    "Agent",
    "Extend",
    "Ledger",
    "Play",
    "PlayResult",
    "Player",
    "Repeat",
    "Reply",
    "Reset",
    "Rollout",
    "Slots",
    "Start",
    "Stats",
    "Turn",
]
