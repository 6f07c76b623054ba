"""Training of the policy dl2: lessons are the teacher's decisions, learning makes it better."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bftrainer.cli.main import main
from bftrainer.decide.policies.base import load_policy, options_of
from bftrainer.decide.policies.dl2 import Dl2Policy
from bftrainer.decide.policies.dl2_network import of_bytes
from bftrainer.lab.teach import course
from bftrainer.lab.teach.course import (
    FADES_S,
    Episode,
    Episodes,
    Played,
    Watched,
    draw,
    play,
    returns,
    split,
    teach,
)
from bftrainer.model.decision import DecisionInput, DecisionRecord, Plan
from bftrainer.model.errors import UsageError


def short(seed: int, hours: float = 0.5) -> Episode:
    """The first half an hour of a drawn episode."""
    whole = draw(seed)
    trace = whole.trace.restrict(slice(0, 8), start_s=whole.trace.span_s[0], hours=hours)
    there = tuple(s for s in whole.submissions if s.submit_s < hours * 3600.0)
    return replace(whole, trace=trace, submissions=there)


def recorded(episode: Episode, name: str) -> list[DecisionRecord]:
    records: list[DecisionRecord] = []

    def note(given: DecisionInput, plan: Plan) -> None:
        records.append(
            DecisionRecord(input=given, plan=plan, event=None, policy_hash="", took_ms=0.0)
        )

    play(episode, load_policy(name), on_plan=note)
    return records


def test_lessons_lead_to_the_teachers_sizes() -> None:
    """Whatever the order of the steps, all of them together give each trainer what it had."""
    teacher, episode = load_policy("equal-share"), short(3)
    watched = Watched(teacher, options_of(teacher, {}), seed=1)
    plain, seen = play(episode, teacher), play(episode, watched)
    assert (plain.finished_s == seen.finished_s).all()
    assert len(watched.steps) > 50
    for step in watched.steps:
        assert step.wanted.sum() == pytest.approx(1.0)
        assert not (step.wanted[~step.mask] > 0).any()


def test_a_journal_teaches_what_its_daemon_decided() -> None:
    records = recorded(short(3, hours=3.0), "equal-share")
    found = course.read(records, seed=1)
    assert 50 <= found.teachers["equal-share"] <= len(records)  # some had no nodes
    assert len(found.steps) > len(records)
    nodes = {n.name for r in records for n in r.input.snapshot.nodes or ()}
    assert all(set(episode.trace.names) <= nodes for episode in found.episodes)
    parts = split(found.episodes)
    assert min(len(parts.learning), len(parts.validation), len(parts.judging)) > 0
    assert play(parts.judging[0], load_policy("milp")).mean_s > 0.0


def test_a_journal_of_a_few_decisions_teaches_nothing() -> None:
    with pytest.raises(UsageError, match="BFT-4180"):
        course.read(recorded(short(3), "equal-share")[:20], seed=1)


def test_returns_by_hand() -> None:
    """One trainer is there throughout, another for the first half."""
    times = np.array([0.0, 0.0])
    played = Played(
        begin_s=0.0, end_s=1000.0, submitted_s=times, finished_s=np.array([1000.0, 500.0])
    )
    at_s, found = returns(played)

    def discounted(span_s: float) -> float:
        return FADES_S * (1.0 - math.exp(-span_s / FADES_S))

    assert found[0] == pytest.approx(-discounted(1000.0) - discounted(500.0), rel=0.01)
    middle = int(np.searchsorted(at_s, 600.0))
    assert found[middle] == pytest.approx(-discounted(400.0), rel=0.02)


def _little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "drawn", _drawn)
    monkeypatch.setattr(course, "EVERY", 1)


def _drawn(teacher: str, seed: int) -> course.Source:
    policy = load_policy(teacher)
    watched = Watched(policy, options_of(policy, {}), seed)
    learning = [short(3), short(5)]
    play(learning[0], watched)
    episodes = Episodes(learning=learning, validation=[short(6)], judging=[short(9)])
    return course.Source(teacher=policy, labels=watched.steps, episodes=episodes)


@pytest.mark.long
def test_only_a_better_network_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _little(monkeypatch)
    out = tmp_path / "net.npz"
    words = ["policy", "train", "dl2", "--out", str(out), "--iterations", "1"]
    # las wastes half of its pool on turns.
    statuses = {name: main([*words, "--teacher", name]) for name in ("las", "utility-exact")}
    said = capsys.readouterr()
    if statuses["utility-exact"]:
        assert "BFT-4181: The network is not better: mean time of trainers" in said.err
    assert out.exists() == (0 in statuses.values())
    if out.exists():
        assert of_bytes(out.read_bytes()).actions == 1


@pytest.mark.long
def test_the_same_seed_teaches_the_same() -> None:
    given = _drawn("equal-share", 1)
    rivals = {"equal-share": given.teacher}
    one, other = (
        teach(given.labels[:500], given.episodes, rivals, seed=2, iterations=1) for _ in range(2)
    )
    assert one.against == other.against
    assert all((one.network.arrays()[k] == v).all() for k, v in other.network.arrays().items())


@pytest.mark.long
def test_the_network_shipped_is_better_than_most() -> None:
    """On pools that it has not seen."""
    episodes = [draw(seed) for seed in range(3000, 3006)]
    shipped = Dl2Policy()
    for name in ("equal-share", "optimus", "milp"):
        assert course.ratio(shipped, load_policy(name), episodes) < 1.0


def test_a_drawn_episode_is_the_same_again() -> None:
    one, other = draw(11), draw(11)
    assert one.submissions == other.submissions
    assert (one.trace.start_s == other.trace.start_s).all()
