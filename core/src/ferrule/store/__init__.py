"""Runs on disk: one folder each, and one index over all of them."""

from .catalogue import RunSummary, find_episode, find_episodes, list_runs
from .codec import KIND_LETTERS, episode_from_line, episode_to_line
from .ids import new_run_id, run_folder
from .index import EpisodeRow, Index
from .runs import Rewound, RunStore

__all__ = [
    "KIND_LETTERS",
    "EpisodeRow",
    "Index",
    "Rewound",
    "RunStore",
    "RunSummary",
    "episode_from_line",
    "episode_to_line",
    "find_episode",
    "find_episodes",
    "list_runs",
    "new_run_id",
    "run_folder",
]
