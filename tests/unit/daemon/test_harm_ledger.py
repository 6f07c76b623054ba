"""The ledger: what every node cost the ordinary job that wanted it, from real decisions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bftrainer.daemon.harm.ends import End
from bftrainer.daemon.harm.ledger import (
    HarmRecords,
    How,
    Why,
    explained,
    hand_over,
)
from bftrainer.model import canonical
from bftrainer.model.cluster import EndedBy, JobState, NodeState
from tests.support.harm_story import CYCLE_S, TWO, Story, leaving, pilot_job
from tests.support.snapshots import (
    T0,
    held,
    idle_nodes,
    pending,
    pilot,
    running,
    with_state,
)

# ---- hand-overs -------------------------------------------------------------------------


def test_a_node_given_back_is_measured_from_our_release_to_the_farewell() -> None:
    story = Story()
    story.gives_back_for(pending("7", 1))
    story.says("n1", "told", 10.07, 10.11)
    jobs = [pilot_job("n2"), running("7", "n1", start_s=T0 + 10.0)]
    story.look(11.0, TWO, jobs, [leaving("n1"), pilot("n2")])
    done = story.hand_over
    assert (done.job_id, done.node, done.pilot_id, done.n_nodes) == ("7", "n1", "p-n1", 1)
    assert (done.how, done.asked_for) == (How.GIVEN_BACK, "7")
    assert done.asked_s == pytest.approx(T0 + 10.05)
    assert done.delay_s == pytest.approx(0.06)
    # The job's start, a whole second, says that the node was free by 11.0.
    assert done.precision_s == pytest.approx(0.89)
    parts = (done.decision_s, done.cancel_s, done.agent_s, done.epilog_s)
    assert parts == pytest.approx((0.002, 0.018, 0.04, 0.0), abs=1e-6)
    assert done.start_s == T0 + 10.0


def test_looks_that_still_show_the_pilot_are_the_epilog() -> None:
    story = Story()
    story.gives_back_for(pending("7", 1))
    story.says("n1", "told", 10.07, 10.11)
    waiting = [pilot_job("n1", state=JobState.COMPLETING), pilot_job("n2"), pending("7", 1)]
    story.look(11.0, TWO, waiting, [leaving("n1"), pilot("n2")])
    story.look(14.0, TWO, waiting, [leaving("n1"), pilot("n2")])
    jobs = [pilot_job("n2"), running("7", "n1", start_s=T0 + 14.0)]
    story.look(15.0, TWO, jobs, [pilot("n2")])
    assert story.hand_over.delay_s == pytest.approx(14.0 - 10.05)
    assert story.hand_over.epilog_s == pytest.approx(14.0 - 10.11)


def test_without_a_farewell_the_upper_bound_counts() -> None:
    story = Story()
    story.gives_back_for(pending("7", 1))
    jobs = [pilot_job("n1"), pilot_job("n2"), pending("7", 1)]
    story.look(11.0, TWO, jobs, [leaving("n1"), pilot("n2")])
    jobs = [pilot_job("n2"), running("7", "n1", start_s=T0 + 13.0)]
    story.look(20.0, TWO, jobs, [pilot("n2")])
    done = story.hand_over
    assert done.delay_s == pytest.approx(14.0 - 10.05)
    assert done.precision_s == pytest.approx(3.0)
    assert done.agent_s is None


def test_a_job_with_the_stand_in_id_of_an_announcement_is_known_again() -> None:
    story = Story()
    announced = replace(pending("announced-1", 1), submit_s=T0 + 9.0)
    story.gives_back_for(announced)
    story.says("n1", "told", 10.06, 10.08)
    job = replace(running("7", "n1", start_s=T0 + 10.0), submit_s=T0 + 9.0)
    story.look(11.0, TWO, [pilot_job("n2"), job], [pilot("n2")])
    assert (story.hand_over.job_id, story.hand_over.asked_for) == ("7", "announced-1")


def test_preempted_by_the_batch_system_counts_from_its_signal() -> None:
    story = Story()
    story.look(0.0, TWO, [pilot_job("n1"), pilot_job("n2")], held("n1", "n2"))
    story.says("n1", "signal", 5.20, 5.23)
    job = replace(running("8", "n1", start_s=T0 + 5.0), submit_s=T0 + 5.0)
    story.look(6.0, TWO, [pilot_job("n2"), job], [leaving("n1"), pilot("n2")])
    story.look(7.0, TWO, [pilot_job("n2"), job], [pilot("n2")])  # settled once
    done = story.hand_over
    assert (done.how, done.asked_for, done.decision_s) == (How.PREEMPTED, "", 0.0)
    assert done.delay_s == pytest.approx(0.03)


def test_a_signal_before_our_own_release_is_a_preemption() -> None:
    story = Story()
    story.gives_back_for(pending("7", 1))
    story.says("n1", "signal", 9.9, 10.1)
    jobs = [pilot_job("n2"), running("7", "n1", start_s=T0 + 10.0)]
    story.look(11.0, TWO, jobs, [pilot("n2")])
    assert story.hand_over.how is How.PREEMPTED
    assert story.hand_over.delay_s == pytest.approx(0.2)


def test_the_signal_of_our_own_cancel_is_no_preemption() -> None:
    story = Story()
    story.gives_back_for(pending("7", 1))
    story.says("n1", "signal", 10.1, 10.12)
    jobs = [pilot_job("n2"), running("7", "n1", start_s=T0 + 10.0)]
    story.look(11.0, TWO, jobs, [pilot("n2")])
    assert story.hand_over.how is How.GIVEN_BACK


def test_an_end_without_a_word_has_no_figure() -> None:
    story = Story()
    story.look(0.0, TWO, [pilot_job("n1"), pilot_job("n2")], held("n1", "n2"))
    job = replace(running("8", "n1", start_s=T0 + 5.0), submit_s=T0 + 5.0)
    story.look(6.0, TWO, [pilot_job("n2"), job], [pilot("n2")])
    done = story.hand_over
    assert (done.how, done.asked_s, done.delay_s) == (How.PREEMPTED, None, None)


def test_another_waiting_job_on_the_node_is_a_hand_over_and_not_in_vain() -> None:
    story = Story()
    story.gives_back_for(pending("7", 1))
    story.says("n1", "told", 10.06, 10.08)
    other = replace(running("6", "n1", start_s=T0 + 10.0), submit_s=T0)
    story.look(11.0, TWO, [pilot_job("n2"), other, pending("7", 1)], [pilot("n2")])
    assert (story.hand_over.job_id, story.hand_over.asked_for) == ("6", "7")


# ---- in vain ----------------------------------------------------------------------------


def test_a_job_that_starts_elsewhere() -> None:
    story = Story()
    story.gives_back_for(pending("7", 1))
    story.says("n1", "told", 10.06, 10.08)
    three = (*with_state(TWO, NodeState.IDLE, "n1"), *idle_nodes(3)[2:])
    jobs = [pilot_job("n2"), running("7", "n3", start_s=T0 + 10.0)]
    story.look(11.0, three, jobs, [pilot("n2")])
    vain = story.vain
    assert (vain.job_id, vain.node, vain.why) == ("7", "n1", Why.STARTED_ELSEWHERE)
    assert vain.asked_s == pytest.approx(T0 + 10.05)


def test_a_job_that_left_the_queue() -> None:
    story = Story()
    story.gives_back_for(pending("7", 1))
    story.says("n1", "told", 10.06, 10.08)
    nodes = with_state(TWO, NodeState.IDLE, "n1")
    story.look(11.0, nodes, [pilot_job("n2")], [pilot("n2")])
    assert not story.records  # that look may have begun before the job was there
    story.look(13.0, nodes, [pilot_job("n2")], [pilot("n2")])
    assert story.vain.why is Why.LEFT_THE_QUEUE


def test_a_job_that_does_not_start_within_the_hold_off() -> None:
    story = Story()
    story.gives_back_for(pending("7", 1))
    story.says("n1", "told", 10.06, 10.08)
    nodes = with_state(TWO, NodeState.IDLE, "n1")
    jobs = [pilot_job("n2"), pending("7", 1)]
    story.look(12.0, nodes, jobs, [pilot("n2")], cycle_ended_s=T0 + 9.0)
    assert not story.records
    story.look(45.0, nodes, jobs, [pilot("n2")], cycle_ended_s=T0 + 41.0)
    assert story.vain.why is Why.DID_NOT_START


# ---- neither ----------------------------------------------------------------------------


def test_a_pilot_ended_by_the_batch_system_for_no_job_is_taken_after_two_cycles() -> None:
    story = Story()
    story.look(0.0, TWO, [pilot_job("n1"), pilot_job("n2")], held("n1", "n2"))
    story.says("n1", "signal", 5.20, 5.23)
    nodes = with_state(TWO, NodeState.DRAINED, "n1")
    for at_s in (6.0, 6.0 + CYCLE_S, 6.0 + 2 * CYCLE_S):
        story.look(at_s, nodes, [pilot_job("n2")], [pilot("n2")])
        assert not story.records
    story.look(7.0 + 2 * CYCLE_S, nodes, [pilot_job("n2")], [pilot("n2")])
    assert (story.taken.node, story.taken.ended_s) == ("n1", T0 + 5.23)


@pytest.mark.parametrize("by", [EndedBy.CANCELLED, EndedBy.NODE, EndedBy.ITSELF])
def test_a_pilot_that_was_not_preempted_is_no_hand_over(by: EndedBy) -> None:
    """Even if an ordinary job gets the node next."""
    story = Story()
    story.look(0.0, TWO, [pilot_job("n1"), pilot_job("n2")], held("n1", "n2"))
    story.says("n1", "signal", 5.20, 5.23)
    story.ledger = explained(story.ledger, "p-n1", by)
    job = replace(running("8", "n1", start_s=T0 + 5.0), submit_s=T0 + 5.0)
    story.look(6.0, TWO, [pilot_job("n2"), job], [pilot("n2")])
    assert (story.taken.by, story.taken.ended_s) == (by, T0 + 5.23)
    story.look(7.0, TWO, [pilot_job("n2"), job], [pilot("n2")])
    assert story.taken.by is by  # once
    assert story.ledger.ended_by == {}


@pytest.mark.parametrize("by", [EndedBy.PREEMPTED, EndedBy.UNKNOWN])
def test_a_preemption_waits_for_its_job(by: EndedBy) -> None:
    story = Story()
    story.look(0.0, TWO, [pilot_job("n1"), pilot_job("n2")], held("n1", "n2"))
    story.ledger = explained(story.ledger, "p-n1", by)  # the agent said nothing
    story.look(6.0, TWO, [pilot_job("n2")], [pilot("n2")])
    assert not story.records
    job = replace(running("8", "n1", start_s=T0 + 7.0), submit_s=T0 + 5.0)
    story.look(8.0, TWO, [pilot_job("n2"), job], [pilot("n2")])
    assert story.hand_over.how is How.PREEMPTED


def test_what_nobody_asked_for_is_nobodys_harm() -> None:
    """A time limit that strikes, an agent that gives up, a pilot that never started."""
    story = Story()
    ends = [pilot("n1", end_s=T0 + 12.0), pilot("n2", is_held=False)]
    story.look(0.0, TWO, [pilot_job("n1")], ends)
    story.says("n1", "signal", 5.0, 5.1)  # within the margin of its limit
    story.look(6.0, idle_nodes(2), [], [])
    story.look(0.0, TWO, [pilot_job("n1")], [pilot("n1")])
    story.says("n1", "lease", 5.0, 5.1)
    story.look(6.0, idle_nodes(2), [], [])
    assert story.ledger.ends == {}
    assert not story.records


def test_a_job_that_came_when_the_node_was_free_owes_us_nothing() -> None:
    story = Story()
    story.look(0.0, TWO, [pilot_job("n1"), pilot_job("n2")], held("n1", "n2"))
    story.says("n1", "signal", 1.0, 1.1)
    nodes = with_state(TWO, NodeState.IDLE, "n1")
    story.look(2.0, nodes, [pilot_job("n2")], [pilot("n2")])
    late = replace(running("8", "n1", start_s=T0 + 20.0), submit_s=T0 + 19.0)
    story.look(21.0, TWO, [pilot_job("n2"), late], [pilot("n2")])
    assert not story.records


def test_nothing_is_settled_without_a_new_look() -> None:
    story = Story()
    story.gives_back_for(pending("7", 1))
    before = story.ledger
    jobs = [pilot_job("n2"), running("7", "n1", start_s=T0 + 10.0)]
    story.look(11.0, TWO, jobs, [leaving("n1"), pilot("n2")], is_new=False)
    assert story.ledger.ends == before.ends
    assert not story.records


def test_records_survive_the_journal() -> None:
    story = Story()
    story.gives_back_for(pending("7", 1))
    story.says("n1", "told", 10.06, 10.08)
    jobs = [pilot_job("n2"), running("7", "n1", start_s=T0 + 10.0)]
    story.look(11.0, TWO, jobs, [pilot("n2")])
    (settled,) = story.records
    assert canonical.decode(canonical.encode(settled), HarmRecords) == settled


def test_clocks_that_disagree_make_no_negative_delay() -> None:
    end = End(pilot_id="p1", node="n1", asked_s=T0 + 5, told_s=T0, left_s=T0 + 1, gone_s=T0 + 9)
    done = hand_over(end, running("7", "n1", start_s=T0 - 100), T0 + 9)
    assert done.delay_s == 0.0
    assert min(done.cancel_s or 0, done.agent_s or 0, done.precision_s) >= 0.0
