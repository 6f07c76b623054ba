"""Cycles of the scheduler that jobs lose by preempting, with seconds worked out by hand.

All times are seconds after T0, cycles are 30 s apart. Backfill that preempts at 5.00 s starts its
job at the next cycle; Slurm tells that start in whole seconds.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from bftrainer.daemon.harm.backoff import BackOff, record_hand_overs
from bftrainer.daemon.harm.ledger import HandOver, How, Rule, Why, explained
from bftrainer.daemon.harm.report import make_report
from bftrainer.model import canonical
from bftrainer.model.cluster import EndedBy, Job, NodeState
from bftrainer.model.reports import HarmReport
from tests.support.harm_story import TWO, Story, leaving, pilot_job
from tests.support.snapshots import T0, held, idle_nodes, pending, pilot, running, with_state

RULE = Rule(limit_s=1.0, share=0.95, quiet_s=600.0)
N1_FREE = with_state(TWO, NodeState.IDLE, "n1")


def started(job_id: str, *nodes: str, start_s: float, priority: float = 0.0) -> Job:
    """A job that was submitted at T0 and runs now."""
    job = running(job_id, *nodes, start_s=T0 + start_s)
    return replace(job, submit_s=T0, priority=priority)


def report_of(story: Story) -> HarmReport:
    return make_report(story.records, BackOff(), RULE, since_s=T0, until_s=T0 + 3600.0)


def preempted_for(job: Job, *, told_s: float = 5.0, cycle_s: float = 30.0) -> Story:
    """The pilot on n1 leaves within 0.03 s for a job that the next look still shows waiting."""
    story = Story()
    story.settings = replace(story.settings, cycle_s=cycle_s)
    story.look(0.0, TWO, [pilot_job("n1"), pilot_job("n2")], held("n1", "n2"))
    story.says("n1", "signal", told_s, told_s + 0.03)
    story.look(6.0, N1_FREE, [pilot_job("n2"), job], [pilot("n2")])
    assert not story.records
    return story


# ---- what backfill preempts for ---------------------------------------------------------


def test_a_job_that_preempts_through_backfill_waits_until_it_starts() -> None:
    story = preempted_for(pending("8", 1))
    story.look(36.0, TWO, [pilot_job("n2"), started("8", "n1", start_s=35.0)], [pilot("n2")])
    found = report_of(story)
    assert (found.hand_overs, found.preempted, found.measured) == (1, 1, 1)
    assert (found.p95_s, found.is_kept) == (30.0, False)  # 35 - 5; the node was free after 0.03
    assert (found.cycles_lost, found.cycles_lost_s) == (1, 30.0)
    (lost,) = found.lost_cycles
    assert (lost.job_id, lost.lost_s, lost.nodes) == ("8", 30.0, ("n1",))
    assert found.worst[0].reason == (
        "The batch system preempted for the job in one cycle and started it in a later one, 30 s "
        "after."
    )


def test_three_such_jobs_are_a_level_of_back_off() -> None:
    state = BackOff()
    for job_id in ("7", "8", "9"):
        story = preempted_for(pending(job_id, 1))
        job = started(job_id, "n1", start_s=35.0)
        story.look(36.0, TWO, [pilot_job("n2"), job], [pilot("n2")])
        state = record_hand_overs(state, [story.hand_over], RULE, held_nodes=8, now_s=T0)
    assert state.level == 1


@pytest.mark.parametrize("start_s", [5.0, 6.0, 9.0, 10.0])
def test_the_main_scheduler_preempts_and_starts_at_its_next_tick(start_s: float) -> None:
    story = preempted_for(pending("8", 1))
    story.look(11.0, TWO, [pilot_job("n2"), started("8", "n1", start_s=start_s)], [pilot("n2")])
    found = report_of(story)
    assert found.p95_s == pytest.approx(0.03)
    assert (found.cycles_lost, found.lost_cycles, found.is_kept) == (0, (), True)


def test_a_wide_job_loses_one_cycle_on_all_its_nodes() -> None:
    story = Story()
    story.look(0.0, TWO, [pilot_job("n1"), pilot_job("n2")], held("n1", "n2"))
    story.says("n1", "signal", 5.0, 5.03)
    story.says("n2", "signal", 5.25, 5.5)
    story.look(6.0, idle_nodes(2), [pending("8", 2)], [])
    story.look(36.0, TWO, [started("8", "n1", "n2", start_s=35.0)], [])
    found = report_of(story)
    assert (found.hand_overs, found.jobs, found.median_s) == (2, 1, 30.0)
    assert (found.cycles_lost, found.cycles_lost_s) == (1, 30.0)
    assert found.lost_cycles[0].nodes == ("n1", "n2")


def test_a_job_that_waited_for_another_pilot_of_its_own_lost_no_cycle() -> None:
    story = Story()
    story.look(0.0, TWO, [pilot_job("n1"), pilot_job("n2")], held("n1", "n2"))
    story.says("n1", "signal", 5.0, 5.03)
    story.says("n2", "signal", 5.0, 17.0)
    story.look(18.0, TWO, [started("8", "n1", "n2", start_s=17.0)], [])
    found = report_of(story)
    assert [w.delay_s for w in found.worst] == pytest.approx([12.0, 0.03])
    assert found.cycles_lost == 0


def test_cycles_shorter_than_a_tick_are_told_by_who_waits_before_the_job() -> None:
    """The main scheduler does not come to a job behind one that lacks nodes."""
    for wide, cycles_lost in (
        (pending("3", 9, priority=2.0), 1),
        (pending("3", 9, priority=0.5), 0),  # behind it
        (pending("3", 9, priority=2.0, partition="other"), 0),
        (pending("3", 9, priority=2.0, is_entitled=False), 0),  # it waits for no node
    ):
        story = preempted_for(pending("8", 1, priority=1.0), cycle_s=2.0)
        job = started("8", "n1", start_s=7.0, priority=1.0)
        story.look(8.0, TWO, [pilot_job("n2"), job, wide], [pilot("n2")])
        found = report_of(story)
        assert found.cycles_lost == cycles_lost, wide
        assert found.p95_s == pytest.approx(2.0 if cycles_lost else 0.03)


# ---- what is not known ------------------------------------------------------------------


def test_without_a_signal_a_cycle_as_configured_is_lost_if_one_fits() -> None:
    """The last look that showed the pilot was at 0 s."""
    for start_s, cycles_lost in ((28.0, 0), (29.0, 1), (31.0, 1)):
        story = Story()
        story.look(0.0, TWO, [pilot_job("n1"), pilot_job("n2")], held("n1", "n2"))
        job = started("8", "n1", start_s=start_s)
        story.look(start_s + 1.0, TWO, [pilot_job("n2"), job], [pilot("n2")])
        found = report_of(story)
        assert found.cycles_lost == found.measured == cycles_lost
        assert found.p95_s == (30.0 if cycles_lost else None)


def test_a_pilot_that_was_completing_was_preempted_before() -> None:
    story = Story()
    story.look(0.0, TWO, [pilot_job("n1"), pilot_job("n2")], held("n1", "n2"))
    story.look(20.0, TWO, [pilot_job("n1"), pilot_job("n2")], [leaving("n1"), pilot("n2")])
    job = started("8", "n1", start_s=40.0)
    story.look(41.0, TWO, [pilot_job("n2"), job], [pilot("n2")])
    assert report_of(story).cycles_lost_s == 30.0


def test_without_a_start_a_cycle_as_configured_is_lost() -> None:
    story = preempted_for(pending("8", 1))
    job = replace(started("8", "n1", start_s=0.0), start_s=None)
    story.look(36.0, TWO, [pilot_job("n2"), job], [pilot("n2")])
    assert report_of(story).p95_s == 30.0


def test_records_of_earlier_releases_are_read_by_the_same_rule() -> None:
    record = HandOver(
        job_id="8",
        n_nodes=1,
        node="n1",
        pilot_id="p1",
        how=How.PREEMPTED,
        asked_s=T0 + 5.0,
        freed_s=T0 + 5.03,
        precision_s=0.9,
        start_s=T0 + 35.0,
    )
    told = canonical.to_plain(record)
    assert isinstance(told, dict)
    assert "lost_s" not in told
    assert record.delay_s == 30.0
    assert replace(record, start_s=T0 + 8.0).delay_s == pytest.approx(0.03)
    assert replace(record, how=How.GIVEN_BACK).delay_s == pytest.approx(0.03)


# ---- whoever freed the node -------------------------------------------------------------


def given_back(ended_by: EndedBy) -> Story:
    """Job 7 gets n1 in the cycle at 40 s; our order was of 10.05 s."""
    story = Story()
    story.gives_back_for(pending("7", 1))
    story.says("n1", "told", 10.07, 10.11)
    story.ledger = explained(story.ledger, "p-n1", ended_by)
    story.look(11.0, N1_FREE, [pilot_job("n2"), pending("7", 1)], [pilot("n2")])
    story.look(41.0, TWO, [pilot_job("n2"), started("7", "n1", start_s=40.0)], [pilot("n2")])
    return story


def test_a_give_back_that_met_the_preemption_costs_a_cycle() -> None:
    story = given_back(EndedBy.PREEMPTED)
    assert (story.hand_over.how, story.hand_over.asked_for) == (How.PREEMPTED, "7")
    found = report_of(story)
    assert (found.cycles_lost, found.preempted, found.is_kept) == (1, 1, False)
    assert found.p95_s == pytest.approx(29.95)


@pytest.mark.parametrize("by", [EndedBy.CANCELLED, EndedBy.ITSELF, EndedBy.UNKNOWN])
def test_a_job_that_waited_for_the_next_cycle_anyway_lost_none(by: EndedBy) -> None:
    story = given_back(by)
    assert story.hand_over.how is How.GIVEN_BACK
    found = report_of(story)
    assert (found.cycles_lost, found.in_vain, found.taken) == (0, 0, 0)
    assert found.p95_s == pytest.approx(0.06)


def another_node(job: Job, *, at_s: float) -> Story:
    """Slurm preempts n2 for job 7 at 9.90 s; we, too late, give back n1."""
    story = Story()
    story.gives_back_for(pending("7", 1))
    story.says("n2", "signal", 9.9, 9.93)
    story.says("n1", "told", 10.07, 10.11)
    nodes = idle_nodes(3)
    if at_s > 20.0:
        story.look(11.0, nodes, [pending("7", 1)], [])
    story.look(at_s, with_state(nodes, NodeState.ALLOCATED, *job.nodes), [job], [])
    return story


def test_the_job_starts_on_the_node_that_we_gave_back_too_late() -> None:
    story = another_node(started("7", "n1", start_s=40.0), at_s=41.0)
    found = report_of(story)
    assert (found.given_back, found.preempted, found.jobs) == (1, 1, 1)
    assert [w.node for w in found.worst] == ["n2", "n1"]
    assert [w.delay_s for w in found.worst] == pytest.approx([30.1, 0.06])
    assert (found.cycles_lost, found.lost_cycles[0].job_id) == (1, "7")
    assert found.cycles_lost_s == pytest.approx(30.1)


def test_the_job_starts_on_the_preempted_node() -> None:
    found = report_of(another_node(started("7", "n2", start_s=40.0), at_s=41.0))
    assert (found.given_back, found.preempted, found.cycles_lost) == (0, 1, 1)
    assert {v.why: v.nodes for v in found.vain if v.nodes} == {Why.STARTED_ELSEWHERE: 1}


def test_the_job_starts_on_a_node_that_was_never_ours() -> None:
    found = report_of(another_node(started("7", "n3", start_s=40.0), at_s=41.0))
    assert (found.given_back, found.preempted, found.cycles_lost) == (0, 1, 1)
    assert found.cycles_lost_s == pytest.approx(30.1)
    assert {v.why: v.nodes for v in found.vain if v.nodes} == {Why.STARTED_ELSEWHERE: 1}


def test_a_job_that_starts_at_once_on_another_node_lost_nothing() -> None:
    story = another_node(started("7", "n1", start_s=11.0), at_s=12.0)
    found = report_of(story)
    assert (found.given_back, found.preempted, found.cycles_lost) == (1, 0, 0)
    assert story.ledger.ends.keys() == {"p-n2"}  # its job may still come


# ---- jobs that wait for reasons of their own ---------------------------------------------


@pytest.mark.parametrize(
    "why",
    [
        {"reason": "Dependency", "is_entitled": False},
        {"reason": "BeginTime", "is_entitled": False},
        {"reason": "Priority"},
        {"reason": "Resources"},  # of other ordinary jobs
    ],
    ids=lambda why: why["reason"],
)
def test_a_job_that_waits_beside_a_preemption_lost_nothing_by_it(why: dict[str, object]) -> None:
    """Job 8 preempts n1 and starts at once; job 9 waits, and starts on n3 a cycle later."""
    story = Story()
    three = idle_nodes(3)
    full = with_state(three, NodeState.ALLOCATED, "n1", "n2", "n3")
    other = running("5", "n3", start_s=T0 - 100.0)
    waits = pending("9", 1, required=("n3",), **why)  # type: ignore[arg-type]
    jobs = [pilot_job("n1"), pilot_job("n2"), other, waits]
    story.look(0.0, full, jobs, held("n1", "n2"))
    story.says("n1", "signal", 5.0, 5.03)
    got = started("8", "n1", start_s=5.0)
    story.look(6.0, full, [pilot_job("n2"), got, other, waits], [pilot("n2")])
    jobs = [pilot_job("n2"), got, started("9", "n3", start_s=35.0)]
    story.look(36.0, full, jobs, [pilot("n2")])
    found = report_of(story)
    assert (found.hand_overs, found.preempted, found.cycles_lost) == (1, 1, 0)
    assert found.p95_s == pytest.approx(0.03)


def test_a_job_whose_other_nodes_were_held_by_ordinary_jobs_lost_nothing() -> None:
    """We give back n1 at once; the ordinary job on n3 ends at 39 s, and only then job 7 starts."""
    story = Story()
    story.gives_back_for(pending("7", 1))
    story.says("n1", "told", 10.07, 10.11)
    other = running("5", "n3", start_s=T0 - 100.0)
    jobs = [pilot_job("n2"), pending("7", 2), other]
    story.look(11.0, N1_FREE, jobs, [pilot("n2")])
    job = started("7", "n1", "n3", start_s=40.0)
    story.look(41.0, TWO, [pilot_job("n2"), job], [pilot("n2")])
    found = report_of(story)
    assert (found.hand_overs, found.cycles_lost, found.is_kept) == (1, 0, True)
