"""Plays every policy with every seed in every arena, in several processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from bftrainer.lab.compare.arenas import Arena, Score
from bftrainer.lab.parallel import play_each

Key = tuple[str, str, int]  # arena, policy, seed


def play_all(
    arenas: Sequence[Arena],
    policies: Sequence[str],
    seeds: Sequence[int],
    *,
    processes: int,
    on_progress: Callable[[float], None] = lambda _: None,
) -> dict[Key, Score]:
    """Return all scores."""
    tasks = [
        (arena.name, policy, seed) for arena in arenas for seed in seeds for policy in policies
    ]
    by_name = {arena.name: arena for arena in arenas}
    play = partial(_play, by_name)
    return play_each(play, tasks, processes=processes, on_progress=on_progress)


def _play(arenas: dict[str, Arena], key: Key) -> Score:
    name, policy, seed = key
    return arenas[name].play(policy, seed)
