"""Pilots that stay pending: counted of all, recorded of those for parts, told in the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bftrainer.daemon.harm.backoff import BackOff
from bftrainer.daemon.harm.ledger import HarmRecords, Rule
from bftrainer.daemon.harm.pending import PendingPilots, StaysPending, fold
from bftrainer.daemon.harm.report import make_report
from bftrainer.model.cluster import Job, JobState
from bftrainer.model.decision import DecisionInput, Memory, PilotView, Settings, Slept
from bftrainer.model.reports import PendingCount
from tests.support.part_story import CYCLE_S, a_part, host, of_part, pilot_job
from tests.support.snapshots import AWAKE, T0, pilot, snapshot

PART = a_part("n1/0", 2)
ASKED = replace(of_part(PART, is_held=False), requested_s=T0)
PENDING = replace(pilot_job(PART, JobState.PENDING), reason="Resources")
WHOLE = pilot("n2", is_held=False)


def at(
    state: PendingPilots,
    at_s: float,
    pilots: Sequence[PilotView],
    jobs: Sequence[Job],
    slept: Slept = AWAKE,
) -> tuple[PendingPilots, tuple[StaysPending, ...]]:
    given = DecisionInput(
        now_s=T0 + at_s,
        snapshot=snapshot([host()], jobs, at_s=T0 + at_s),
        is_new_snapshot=True,
        pilots=tuple(pilots),
        trainers=(),
        settings=Settings(cycle_s=CYCLE_S),
        memory=Memory(),
        slept=slept,
    )
    return fold(state, given)


def test_a_pilot_that_a_cycle_passed_over_is_told_once() -> None:
    state, told = at(PendingPilots(), 1.0, [ASKED], [PENDING])
    assert (state.n_requested, state.n_stayed, told) == (1, 0, ())
    state, told = at(state, CYCLE_S + 1.0, [ASKED], [PENDING])
    (pilot_of_part,) = told
    assert (pilot_of_part.node, pilot_of_part.gpus, pilot_of_part.why) == ("n1/0", 2, "Resources")
    assert (sorted(state.staying), state.n_stayed) == (["p-n1/0"], 1)
    state, told = at(state, CYCLE_S + 5.0, [ASKED], [PENDING])
    assert (state.n_requested, state.n_stayed, told) == (1, 1, ())
    state, _ = at(state, CYCLE_S + 9.0, [], [])
    assert state.staying == frozenset()


def test_pilots_that_start_or_leave_or_that_nobody_asked_for_in_time_stay_pending_never() -> None:
    late_s = CYCLE_S + 1.0
    for pilots, jobs, slept in (
        ([of_part(PART)], [pilot_job(PART)], AWAKE),
        ([replace(ASKED, is_leaving=True)], [PENDING], AWAKE),
        ([ASKED], [PENDING], Slept(from_s=T0, until_s=T0 + late_s - 1.0)),
        ([ASKED], [], AWAKE),  # its job is not in the queue yet
    ):
        state, told = at(PendingPilots(), late_s, pilots, jobs, slept)
        assert (state.n_stayed, told) == (0, ())


def test_of_whole_nodes_they_are_counted_and_not_journalled() -> None:
    job = replace(PENDING, pilot_id=WHOLE.pilot_id)
    state, told = at(PendingPilots(), CYCLE_S + 1.0, [WHOLE], [job])
    assert (state.n_requested, state.n_stayed, told) == (1, 1, ())


def test_the_report_says_why() -> None:
    _, told = at(PendingPilots(), CYCLE_S + 1.0, [ASKED], [PENDING])
    (pilot_of_part,) = told
    records = HarmRecords(pending=(pilot_of_part, replace(pilot_of_part, why="Priority"), *told))
    found = make_report([records], BackOff(), Rule(), since_s=T0, until_s=T0 + 60.0)
    assert found.pending == 3
    assert found.pending_why == (
        PendingCount(why="Resources", pilots=2),
        PendingCount(why="Priority", pilots=1),
    )
    assert [(one.node, one.pending, one.hand_overs) for one in found.by_node] == [("n1", 3, 0)]
