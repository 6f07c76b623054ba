"""What min_gap_s and gap_margin_s leave alone, worked out by hand for single gaps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from bftrainer.batch.traces.fragments import make_fragments
from bftrainer.daemon.idle_watch import IdleWatch
from bftrainer.decide.decision import decide
from bftrainer.decide.policies.base import load_policy
from bftrainer.decide.short_gaps import (
    CODE,
    Gap,
    findings,
    lent_s,
    of_lengths,
    pairs_to_try,
    sentences,
)
from bftrainer.lab.whatif import Assumptions, as_document, study
from bftrainer.model.cluster import Job, JobState, Node, NodeState, Snapshot
from bftrainer.model.decision import DecisionInput, Memory, PilotView, Settings
from bftrainer.model.queue import GapEnd, Then, left_s_in
from bftrainer.model.site import GapTrial, Measured, ShortGaps, Weight
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState
from tests.support.gpu_hosts import gpu_host


@pytest.mark.parametrize(
    ("gap", "min_gap_s", "margin_s", "expected_s"),
    [
        # The plan leaves 170 s, less a margin of 60 s: 110 s.
        (Gap(length_s=150.0, left_s=170.0), 120.0, 60.0, 0.0),
        (Gap(length_s=150.0, left_s=170.0), 60.0, 60.0, 110.0),
        (Gap(length_s=150.0, left_s=170.0), 120.0, 0.0, 150.0),
        # Its job came sooner than planned.
        (Gap(length_s=20.0, left_s=170.0), 60.0, 60.0, 20.0),
        # Slurm starts a pilot 30 s later, and for a minute at least: 60 + 30 <= 110, not <= 85.
        (Gap(length_s=150.0, left_s=170.0, waits_s=30.0), 60.0, 60.0, 80.0),
        (Gap(length_s=150.0, left_s=145.0, waits_s=30.0), 60.0, 60.0, 0.0),
        # Ends of pilots take 15 s here.
        (Gap(length_s=150.0, left_s=170.0, lead_s=15.0), 60.0, 60.0, 95.0),
        # A pilot that has left for the job would have stayed on: 60 s of the margin, or 30 s.
        (Gap(length_s=60.0, left_s=60.0, is_after_pilot=True), 120.0, 60.0, 0.0),
        (Gap(length_s=60.0, left_s=60.0, is_after_pilot=True), 120.0, 30.0, 30.0),
    ],
)
def test_a_gap_is_lent_if_start_limit_and_margin_fit(
    gap: Gap, min_gap_s: float, margin_s: float, expected_s: float
) -> None:
    assert lent_s(gap, min_gap_s, margin_s) == expected_s


def test_lower_settings_are_tried_and_none_below_a_minute() -> None:
    assert pairs_to_try(120.0, 60.0) == ((60.0, 60.0), (120.0, 0.0), (60.0, 0.0))
    assert pairs_to_try(60.0, 60.0) == ((60.0, 0.0),)
    assert pairs_to_try(20.0, 0.0) == ()


def test_a_trace_s_short_gaps_are_told_with_what_other_settings_lend() -> None:
    # 100 and 150 s are shorter than 120 + 60 s: 250 of 3850 s are left alone.
    # 60 + 60: 100 s no, 150 s lends 90 s.   120 + 0: 150 s, and 60 s more of 3600 s.
    # 60 + 0: 100 + 150 + 60 s.
    found = of_lengths([100.0, 150.0, 3600.0], 2.0, min_gap_s=120.0, gap_margin_s=60.0)
    assert found.near_node_h * 3600.0 == pytest.approx(250.0)
    assert found.near_share == pytest.approx(250.0 / 3850.0)
    more_s = [trial.more_node_h * 3600.0 for trial in found.trials]
    assert more_s == pytest.approx([90.0, 210.0, 310.0])
    assert [trial.more_pilots for trial in found.trials] == [1, 1, 2]
    text = list(sentences(found, None))
    assert text[0].startswith("6.5% of the idle node-time lies in gaps shorter than 180 s")
    # 90 of 3850 s; one pilot in two hours
    assert (
        "60 with gap_margin_s 60 would lend at most 2.3% of the idle time more, with about 12"
        in text[1]
    )
    assert "too late starts one cycle of the scheduler later" in text[-1]


def test_pilots_are_whole_and_equal_numbers_of_them_are_explained() -> None:
    # Both 60 + 60 and 120 + 0 lend gaps of 120 s and more: 150 s, once in 31 h, is 0.774 a day.
    # 60 + 0 lends the gap of 100 s, too: 1.55 a day.
    found = of_lengths([100.0, 150.0, 3600.0], 31.0, min_gap_s=120.0, gap_margin_s=60.0)
    text = list(sentences(found, None))
    assert text[1].endswith("more, with about 1 more pilot a day.")
    assert text[2].endswith("more, with about 1 more pilot a day.")
    assert text[3].endswith("more, with about 2 more pilots a day.")
    assert text[4] == (
        "Pairs with the same sum (120 s) take the same gaps, hence the same number of pilots; with"
        " the smaller margin each pilot stays longer."
    )
    rare = of_lengths([100.0, 150.0, 3600.0], 24.0 * 30, min_gap_s=120.0, gap_margin_s=60.0)
    assert "with less than one more pilot a day" in list(sentences(rare, None))[1]


def test_whatif_tells_of_the_site_at_hand() -> None:
    trace = make_fragments(
        names=["n", "m"],
        node=[0, 0, 1],
        start_s=[0.0, 400.0, 0.0],
        end_s=[100.0, 550.0, 3600.0],
        span_s=(0.0, 7200.0),
    )
    given = Assumptions(t_fwd_s=(120.0,), p_jmax=(1,), hold_down_s=(0.0,))
    told = as_document(study(trace, given), "idle.npz")["short_gaps"]
    assert json.loads(json.dumps(told))["near_node_h"] * 3600.0 == pytest.approx(250.0)
    lower = as_document(study(trace, replace(given, min_gap_s=60.0)), "idle.npz")["short_gaps"]
    assert lower["near_node_h"] * 3600.0 == pytest.approx(100.0)  # 150 s are more than 60 + 60


# ---- as a daemon sees it ---------------------------------------------------------------------

NOW_S = 1_000_000.0
END_S = NOW_S + 170.0  # of the job on n2, by its limit


@pytest.mark.parametrize("then", list(Then))
def test_what_is_left_is_read_from_the_sentence_that_a_plan_keeps(then: Then) -> None:
    end = GapEnd(at_s=NOW_S + 95.0, last_end_s=NOW_S + 60.0, then=then, by="in 7 s")
    expected_s = None if then is Then.BLACKOUT else 95.0
    assert left_s_in(end.sentence(NOW_S)) == expected_s
    assert left_s_in("It is allocated.") is None


def _seen(
    at_s: float, *, is_taken: bool = False, pilots: tuple[PilotView, ...] = ()
) -> DecisionInput:
    """Return n1 idle, and a job of two nodes planned on n1 and n2 as soon as n2 is free."""
    state = JobState.RUNNING if is_taken else JobState.PENDING
    wide = Job(
        job_id="7",
        user="ann",
        partitions=("batch",),
        state=state,
        n_nodes=2,
        time_limit_s=600.0,
        reason="" if is_taken else "Resources",
        priority=10.0,
        submit_s=NOW_S - 50.0,
        start_s=at_s if is_taken else END_S,
        nodes=("n1", "n2") if is_taken else (),
        planned_nodes=() if is_taken else ("n1", "n2"),
    )
    busy = replace(
        wide, job_id="6", state=JobState.RUNNING, n_nodes=1, nodes=("n2",), reason="",
        start_s=END_S - 600.0, planned_nodes=(),
    )  # fmt: skip
    n1 = NodeState.ALLOCATED if is_taken or pilots else NodeState.IDLE
    snapshot = Snapshot(
        taken_at_s=at_s,
        nodes=(
            Node(name="n1", state=n1, partitions=("batch", "bf"), cpus=4),
            Node(name="n2", state=NodeState.ALLOCATED, partitions=("batch", "bf"), cpus=4),
        ),
        jobs=(wide,) if is_taken else (wide, busy),
        reservations=(),
    )
    return DecisionInput(
        now_s=at_s,
        snapshot=snapshot,
        is_new_snapshot=True,
        pilots=pilots,
        trainers=(
            TrainerRecord(
                trainer_id="t1",
                spec=TrainerSpec(name="a", user="b", script="/dev/null", n_min=1, n_max=8),
                state=TrainerState.RUNNING,
                submitted_s=NOW_S,
            ),
        ),
        settings=Settings(reserve_nodes_per_type=0, cycle_s=30.0),
        memory=Memory(),
    )


def test_gpus_that_are_lent_one_by_one_count_as_shares_of_a_node() -> None:
    def parted(given: DecisionInput) -> DecisionInput:
        """Return the same with n1 as a host of four GPUs, of which a job has one."""
        _, n2 = given.snapshot.nodes or ()
        n1 = replace(gpu_host("n1", ordinary=1), partitions=("batch", "bf"))
        if given.snapshot.taken_at_s == taken_at_s:
            n1 = replace(n1, lends=(replace(n1.lends[0], n_free=0),), left=None)
        return replace(given, snapshot=replace(given.snapshot, nodes=(n1, n2)))

    taken_at_s = NOW_S + 110.0
    looks = [parted(_seen(NOW_S + passed_s)) for passed_s in range(0, 101, 10)]
    looks.append(parted(_seen(taken_at_s, is_taken=True)))
    gaps = _watched(iter(looks)).short_gaps(Settings())
    assert gaps is not None
    # Three of the four GPUs were idle for 110 s, and near to the job.
    assert gaps.idle_node_h * 3600.0 == pytest.approx(0.75 * 110.0)
    assert gaps.near_node_h * 3600.0 == pytest.approx(0.75 * 110.0)
    more = {(one.min_gap_s, one.gap_margin_s): one for one in gaps.trials}
    assert more[60.0, 60.0].more_node_h * 3600.0 == pytest.approx(0.75 * 80.0)
    assert more[60.0, 60.0].more_pilots == 3  # each GPU has one of its own


def _watched(looks: Iterator[DecisionInput]) -> IdleWatch:
    watch, memory = IdleWatch(), Memory()
    for given in looks:
        plan = decide(replace(given, memory=memory), load_policy("milp"))
        memory = plan.memory
        watch.saw(given, plan)
    return watch


def test_a_daemon_counts_what_it_leaves_alone_and_what_others_would_lend() -> None:
    def looks() -> Iterator[DecisionInput]:
        for passed_s in range(0, 101, 10):
            yield _seen(NOW_S + passed_s)
        yield _seen(NOW_S + 110.0, is_taken=True)  # sooner than planned

    found = _watched(looks()).short_gaps(Settings())
    assert found is not None
    assert found.idle_node_h * 3600.0 == pytest.approx(110.0)
    assert found.near_node_h * 3600.0 == pytest.approx(110.0)  # 170 s are less than 120 + 60
    more = {(one.min_gap_s, one.gap_margin_s): one for one in found.trials}
    # 170 - 60 = 110 s are enough for 60 + 30 s; from 30 s on, until it is taken at 110 s.
    assert more[60.0, 60.0].more_node_h * 3600.0 == pytest.approx(80.0)
    # 170 s are enough for 120 s, and for 60 + 30 s.
    assert more[120.0, 0.0].more_node_h * 3600.0 == pytest.approx(80.0)
    assert [one.more_pilots for one in found.trials] == [1, 1, 1]
    assert found.cycle_s == 30.0


def test_lent_time_is_idle_time_and_near_to_nothing() -> None:
    pilot = PilotView(
        pilot_id="p1", node="n1", requested_s=NOW_S, is_held=True, end_s=NOW_S + 110.0
    )
    looks = (_seen(NOW_S + passed_s, pilots=(pilot,)) for passed_s in (0.0, 10.0, 20.0))
    found = _watched(looks).short_gaps(Settings())
    assert found is not None
    assert found.idle_node_h * 3600.0 == pytest.approx(20.0)
    assert found.near_node_h == 0.0


def test_a_pilot_s_node_that_a_look_does_not_show_is_counted() -> None:
    pilot = PilotView(pilot_id="p1", node="n9", requested_s=NOW_S, is_held=True, end_s=END_S)
    looks = (_seen(NOW_S + passed_s, pilots=(pilot,)) for passed_s in (0.0, 10.0))
    gaps = _watched(looks).short_gaps(Settings())
    assert gaps is not None
    assert gaps.idle_node_h * 3600.0 == pytest.approx(10.0)


def test_time_that_nobody_saw_is_not_counted() -> None:
    looks = (_seen(NOW_S + passed_s) for passed_s in (0.0, 10.0, 80.0, 85.0))
    found = _watched(looks).short_gaps(Settings())
    assert found is not None
    assert found.idle_node_h * 3600.0 == pytest.approx(15.0)
    assert IdleWatch().short_gaps(Settings()) is None


def test_the_doctor_tells_where_it_is_much() -> None:
    trial = GapTrial(min_gap_s=60.0, gap_margin_s=60.0, more_node_h=4.9, more_pilots=3)
    little = ShortGaps(
        hours=10.0,
        idle_node_h=100.0,
        near_node_h=20.0,
        min_gap_s=120.0,
        gap_margin_s=60.0,
        trials=(trial,),
        cycle_s=30.0,
    )
    assert findings(Measured()) == ()
    assert findings(Measured(short_gaps=little)) == ()
    much = replace(little, trials=(replace(trial, more_node_h=5.0),))
    (found,) = findings(Measured(short_gaps=much, end_s=12.0))
    assert (found.code, found.weight) == (CODE, Weight.LOSS)
    assert found.setting == "min_gap_s 120, gap_margin_s 60"
    assert found.cost.startswith("20.0% of 100.0 idle node-hours in 10.0 h were left alone")
    assert "min_gap_s: 60 and gap_margin_s: 60 in the policy would lend at most 5.0" in found.remedy
    assert "usable 12.0 s after its pilot is asked to leave (measured)" in found.remedy
    assert "one cycle of the scheduler (30 s) later" in found.remedy
