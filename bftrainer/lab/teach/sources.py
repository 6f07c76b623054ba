"""Where a network learns from: a journal, or drawn pools with a teacher that plays on them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bftrainer.decide.policies.base import AllocationPolicy, load_policy, options_of
from bftrainer.lab.teach.batches import Step
from bftrainer.lab.teach.course import Episodes, split
from bftrainer.lab.teach.episode import play
from bftrainer.lab.teach.journal import read
from bftrainer.lab.teach.lessons import Watched
from bftrainer.lab.teach.random_episodes import draw
from bftrainer.model.decision import DecisionRecord

LEARNING, WATCHED, VALIDATION, JUDGING = range(60), 20, range(1000, 1008), range(2000, 2012)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    """A teacher's steps, and episodes."""

    teacher: AllocationPolicy
    labels: list[Step]
    episodes: Episodes


def drawn(teacher: str, seed: int) -> Source:
    """Let a policy play on drawn pools.

    Raises:
        UsageError: BFT-3050, there is no such policy.
    """
    policy = load_policy(teacher)
    watched = Watched(policy, options_of(policy, {}), seed)
    learning = [draw(number) for number in LEARNING]
    for episode in learning[:WATCHED]:
        play(episode, watched)
    episodes = Episodes(
        learning=learning,
        validation=[draw(number) for number in VALIDATION],
        judging=[draw(number) for number in JUDGING],
    )
    return Source(teacher=policy, labels=watched.steps, episodes=episodes)


def of_journal(path: Path, seed: int) -> Source:
    """Read a daemon's journal; the daemon may be running.

    Raises:
        UsageError: BFT-4180, it holds too few decisions.
    """
    found = read(_decisions(path), seed=seed)
    [(teacher, _)] = found.teachers.most_common(1)
    return Source(teacher=load_policy(teacher), labels=found.steps, episodes=split(found.episodes))


def _decisions(path: Path) -> Iterator[DecisionRecord]:
    from bftrainer.journal.journal import Journal  # noqa: PLC0415 - SQLAlchemy is slow

    with Journal.open(path, clock=time.time, is_verified=False) as journal:
        for entry in journal.entries():
            if entry.kind == "decision":
                yield entry.payload_as(DecisionRecord)
