"""The page of a journal shows the history that the daemon's page showed."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.daemon.decider import DECISION
from bftrainer.daemon.journal_page import JournalSource
from bftrainer.daemon.uses import CURVES, KIND, UsesOfNodes
from bftrainer.journal.journal import Journal
from bftrainer.journal.projection import PilotRecord, PilotState
from bftrainer.model.cluster import NodeState
from bftrainer.model.decision import DecisionInput, DecisionRecord
from bftrainer.model.timeline import USES, TimelineView
from bftrainer.model.trainer import GpuLoad, TrainerProgress, TrainerSpec, TrainerState, as_decided
from tests.support.snapshots import T0
from tests.support.timelines import PLAN, input_of, nodes, pilot

IDLE, BUSY, DOWN = NodeState.IDLE, NodeState.ALLOCATED, NodeState.DOWN
PILOT = PilotRecord(
    pilot_id="p000001",
    node="n1",
    job_id="7",
    public_key="",
    requested_s=T0 + 10,
    time_limit_s=3600.0,
    owner="ada",
    state=PilotState.RUNNING,
)


def scene(*, is_down_seen: bool = True) -> list[tuple[DecisionInput, bool, tuple[int, int]]]:
    """What a daemon decides on; whether it journals the decision; its counts.

    Node n1 is idle for 10 s, trains for 30, is preempted and left within 6, has an ordinary job for
    54 and is idle for 10; n2 is idle for 80 s, then down for 30.
    """
    ours = replace(pilot("n1"), pilot_id="p000001")
    leaving = replace(ours, is_leaving=True)
    trains = {"n1": "t1"}
    gone = DOWN if is_down_seen else IDLE
    return [
        (input_of(nodes(n1=IDLE, n2=IDLE)), True, (0, 0)),
        (input_of(nodes(n1=BUSY, n2=IDLE), ours, at_s=T0 + 10, training=trains), True, (0, 0)),
        (input_of(nodes(n1=BUSY, n2=IDLE), leaving, at_s=T0 + 40, training=trains), True, (0, 1)),
        (input_of(nodes(n1=BUSY, n2=IDLE), at_s=T0 + 46), False, (0, 1)),
        (input_of(nodes(n1=BUSY, n2=gone), at_s=T0 + 80), False, (0, 1)),
        (input_of(nodes(n1=IDLE, n2=gone), at_s=T0 + 100), True, (0, 1)),
        (input_of(nodes(n1=IDLE, n2=gone), at_s=T0 + 110), True, (0, 1)),
    ]


def node_seconds(view: TimelineView) -> dict[str, float]:
    """Sum up what a page draws, node by node."""
    sums: dict[str, float] = defaultdict(float)
    for index in range(len(view.nodes)):
        use, since_s = view.base[index][0], view.since_s
        for at_s, node, new, _ in view.changes:
            if node == index:
                sums[USES[use]] += at_s - since_s
                use, since_s = new, at_s
        sums[USES[use]] += view.now_s - since_s
    return {use: found for use, found in sums.items() if found}


def test_a_replay_equals_the_live_page(tmp_path: Path) -> None:
    now_s, path = [float(T0)], tmp_path / "journal.db"
    with Journal.open(path, clock=lambda: now_s[0]) as journal:
        live = UsesOfNodes(lambda: "UTC", lambda note: journal.note(KIND, note))
        live.incarnation = journal.begin_incarnation()
        for given, is_journalled, counts in scene():
            now_s[0] = given.now_s
            if is_journalled:
                journal.note_large(DECISION, decided(given))
            live.saw(given, PLAN, counts)
    page = JournalSource(path)
    told, drawn = live.timeline(None), page.timeline(None)
    assert node_seconds(drawn) == {
        "idle": 10 + 10 + 80,
        "training": 30,
        "leaving": 6,
        "ordinary": 54,
        "unavailable": 30,
    }
    assert replace(drawn, change=told.change) == told
    assert (page.status().give_backs, page.status().preemptions) == (0, 1)


def test_a_replay_has_the_losses_that_the_live_page_had(tmp_path: Path) -> None:
    """Told at four moments, the last of them when it is parked; once it is not finite."""
    now_s, path = [float(T0)], tmp_path / "journal.db"
    spec = TrainerSpec(name="net", user="ada", script="/s.py", n_max=4)
    with Journal.open(path, clock=lambda: now_s[0]) as journal:
        live = UsesOfNodes(lambda: "UTC", lambda note: journal.note(KIND, note))
        live.incarnation = journal.begin_incarnation()
        submitted = journal.submit(spec, T0)
        for number, (loss, size) in enumerate([(2.5, 1), (None, 1), (1.25, 2), (1.0, 0)], start=1):
            now_s[0] = at_s = T0 + 10.0 * number
            told = TrainerProgress(
                size=size, samples_per_s=5.0 * size, loss=loss, has_finite_loss=loss is not None,
                reported_s=at_s,
            )  # fmt: skip
            state = TrainerState.RUNNING if size else TrainerState.PARKED
            record = replace(submitted, state=state, progress=told)
            seen = (as_decided(record),) if number % 2 else ()  # the others are in entries alone
            given = replace(input_of(nodes(n1=IDLE), at_s=at_s), trainers=seen)
            journal.note_large(DECISION, decided(given))
            journal.note("rescaled", {}, trainers=[record])
            live.saw(given, PLAN)
            live.look(number, at_s, [record])
    page = JournalSource(path)
    [curve] = page.timeline(None).curves
    assert curve.losses == (2.5, None, 1.25, None)
    assert (curve,) == live.timeline(None).curves
    [shown] = page.status().trainers
    assert shown.record.progress.loss == 1.0, "what it had last"


def test_a_replay_has_the_curves_of_a_site_on_which_nothing_is_decided(tmp_path: Path) -> None:
    """One decision, then four minutes of training: a point a minute, and those around a rescale."""
    now_s, path = [float(T0)], tmp_path / "journal.db"
    spec = TrainerSpec(name="net", user="ada", script="/s.py", n_max=4)
    with Journal.open(path, clock=lambda: now_s[0]) as journal:
        live = UsesOfNodes(lambda: "UTC", note_curves=lambda note: journal.note(CURVES, note))
        live.incarnation = journal.begin_incarnation()
        submitted = journal.submit(spec, T0)
        journal.note_large(DECISION, decided(input_of(nodes(n1=IDLE))))
        for number in range(1, 25):  # every 10 s; a minute of it on two workers
            now_s[0] = at_s = T0 + 10.0 * number
            size = 2 if 9 <= number <= 14 else 1
            told = TrainerProgress(
                size=size, samples_per_s=5.0 * size, loss=0.5 * number, reported_s=at_s,
                gpu_use=GpuLoad(gpus=size, use_percent=float(number)),
            )  # fmt: skip
            live.look(number, at_s, [replace(submitted, state=TrainerState.RUNNING, progress=told)])
        live.close()
    [curve] = JournalSource(path).timeline(None).curves
    kept = [1, 7, 8, 9, 14, 15, 21]
    assert [round(at_s - T0) for at_s, _, _ in curve.points] == [10 * number for number in kept]
    assert [size for _, _, size in curve.points] == [1, 1, 1, 2, 2, 1, 1]
    assert curve.losses == tuple(0.5 * number for number in kept)
    assert curve.gpu_uses == tuple(float(number) for number in kept)
    [whole] = live.timeline(None).curves
    assert set(curve.points) <= set(whole.points)


def test_the_journal_of_an_earlier_release_is_as_true_as_its_entries(tmp_path: Path) -> None:
    """It has no notes: that a node went down is not in it, that a pilot was taken is."""
    now_s, path = [float(T0)], tmp_path / "journal.db"
    with Journal.open(path, clock=lambda: now_s[0]) as journal:
        journal.begin_incarnation()
        for given, is_journalled, _ in scene(is_down_seen=False):
            now_s[0] = given.now_s
            if is_journalled:
                journal.note_large(DECISION, decided(given))
            if given.now_s == T0 + 10:
                journal.note("pilot-updated", {"pilot_ids": ["p000001"]}, pilots=[PILOT])
            if given.now_s == T0 + 46:
                ended = replace(PILOT, state=PilotState.ENDED, ended_s=T0 + 46)
                journal.note("pilot-ended", {"pilot_id": "p000001"}, pilots=[ended])
    page = JournalSource(path)
    assert node_seconds(page.timeline(None)) == {
        "idle": 10 + 10 + 110,
        "training": 30,
        "leaving": 6,
        "ordinary": 54,
    }
    assert page.status().preemptions == 1


def test_the_time_between_two_daemons_is_nobodys(tmp_path: Path) -> None:
    now_s, path = [float(T0)], tmp_path / "journal.db"
    given = input_of(nodes(n1=IDLE))
    with Journal.open(path, clock=lambda: now_s[0]) as journal:
        for began_s in (T0, T0 + 1000.0):
            live = UsesOfNodes(lambda: "UTC", lambda note: journal.note(KIND, note))
            live.incarnation = journal.begin_incarnation()
            for at_s in (began_s, began_s + 30.0):
                now_s[0] = at_s
                journal.note_large(DECISION, decided(replace(given, now_s=at_s)))
                live.saw(replace(given, now_s=at_s), PLAN, (2, 1))
    page = JournalSource(path)
    assert sum(had_s for _, had_s, _ in page.timeline(None).days) == pytest.approx(60.0)
    assert (page.status().give_backs, page.status().preemptions) == (4, 2)


def test_what_came_late_to_the_disk_changes_nothing(tmp_path: Path) -> None:
    """An heir's first entries are written after its first decision, with the time of the disk."""
    now_s, path = [float(T0)], tmp_path / "journal.db"
    ours = replace(pilot("n1"), pilot_id="p000001")
    given = input_of(nodes(n1=BUSY), ours, training={"n1": "t1"})
    with Journal.open(path, clock=lambda: now_s[0]) as journal:
        for began_s in (T0, T0 + 1000.0):
            live = UsesOfNodes(lambda: "UTC", lambda note: journal.note(KIND, note))
            live.incarnation = journal.begin_incarnation()
            now_s[0] = began_s + 2.0  # the disk is slow
            ended = {"trainer_id": "t1", "what": {"nodes": []}}
            journal.note("rescaled", ended)
            seen = replace(given, now_s=began_s)
            journal.note_large(DECISION, decided(seen))
            live.saw(seen, PLAN)
    drawn = JournalSource(path).timeline(None)
    assert [(at_s, USES[use]) for at_s, _, use, _ in drawn.changes] == [(T0, "training")]


def decided(given: DecisionInput) -> DecisionRecord:
    return DecisionRecord(event=None, input=given, policy_hash="", plan=PLAN, took_ms=1.0)
