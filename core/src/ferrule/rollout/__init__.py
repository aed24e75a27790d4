"""Playing: the token ledger, the session and the agent over it, the play of a task, the slots, and the player that joins them."""

from .agent import Agent
from .forecast import Forecast, forecast
from .ledger import Ledger
from .plan import Extend, Repeat, Reset, Start
from .play import Play, PlayResult, Turn
from .player import Player, Stats
from .rollout import Rollout
from .session import Reply, Session
from .slots import Slots

__all__ = [
    "Agent",
    "Extend",
    "Forecast",
    "Ledger",
    "Play",
    "PlayResult",
    "Player",
    "Repeat",
    "Reply",
    "Reset",
    "Rollout",
    "Session",
    "Slots",
    "Start",
    "Stats",
    "Turn",
    "forecast",
]
