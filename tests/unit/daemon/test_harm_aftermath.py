"""Nodes after a pilot or an ordinary job left them: times, harm, and the rest they get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from bftrainer.daemon.harm.aftermath import (
    WINDOW_S,
    Aftermath,
    Departure,
    Rests,
    Unusable,
    cooling,
    fold,
    told,
    with_events,
)
from bftrainer.model.cluster import REBOOTS, STILL_COMPLETING, Job, JobState, Node, NodeState
from bftrainer.model.decision import DecisionInput, Memory, PilotView, Plan, Release, Settings
from tests.support.part_story import a_part, of_part, pilot_job
from tests.support.snapshots import T0, node, running, snapshot

BUSY = NodeState.ALLOCATED
BAD = node("n1", NodeState.DRAINED, reason="Epilog error")
PILOT = replace(running("90", "n1"), pilot_id="p-n1")
ENDING = replace(PILOT, state=JobState.COMPLETING)
THEIRS = running("7", "n1")


@dataclass(slots=True)
class Story:
    """What polls show, one after the other; each takes 0.1 s."""

    state: Aftermath = field(default_factory=Aftermath)
    left: list[Departure] = field(default_factory=list)
    unusable: list[Unusable] = field(default_factory=list)
    ordinary: int = 0

    def look(
        self,
        at_s: float,
        nodes: Sequence[Node],
        jobs: Sequence[Job],
        *,
        releases: bool = False,
        unread: tuple[str, ...] = (),
        pilots: Sequence[PilotView] = (),
    ) -> None:
        seen = replace(snapshot(nodes, jobs, at_s=T0 + at_s), unread=unread)
        given = DecisionInput(
            now_s=T0 + at_s + 0.1,
            snapshot=seen,
            is_new_snapshot=True,
            pilots=tuple(pilots),
            trainers=(),
            settings=Settings(),
            memory=Memory(),
        )
        plan = Plan(
            assignment={},
            claims=(),
            releases=(Release(pilot_id="p-n1", node="n1", reason=""),) * releases,
            pool=(),
            not_used={},
            reserve=(),
            allocation=None,
            memory=Memory(),
        )
        self.state, found = fold(self.state, given, plan)
        self.left += found.left
        self.unusable += found.unusable
        self.ordinary += found.ordinary_left

    def pilot_goes(self) -> None:
        """A pilot runs, is asked to leave 10.1 s later, and is gone when we look at 12 s."""
        self.look(0.0, [node("n1", BUSY)], [PILOT])
        self.look(10.0, [node("n1", BUSY)], [PILOT], releases=True)
        self.look(11.0, [node("n1", BUSY)], [PILOT])
        self.look(12.0, [node("n1")], [])


@pytest.fixture
def story() -> Story:
    return Story()


def test_the_time_until_the_processes_are_gone_is_an_upper_bound(story: Story) -> None:
    story.pilot_goes()
    (left,) = story.left
    assert left.took_s == pytest.approx(2.0)
    assert left.precision_s == pytest.approx(1.1)  # the poll at 11 s still showed it
    story.look(12.0 + WINDOW_S + 5.0, [node("n1")], [])
    assert (story.unusable, story.state.watches, story.state.asked_s) == ([], {}, {})


def test_the_batch_systems_signal_begins_the_time_too(story: Story) -> None:
    story.look(0.0, [node("n1", BUSY)], [PILOT])
    story.state = told(story.state, "p-n1", T0 + 3.0)
    story.look(5.0, [node("n1")], [])
    assert [one.took_s for one in story.left] == [pytest.approx(2.1)]


@pytest.mark.parametrize(
    ("after_s", "is_harm"), [(1.0, True), (WINDOW_S - 1.0, True), (WINDOW_S + 1.0, False)]
)
def test_a_node_that_drains_within_the_window_is_harm(
    story: Story, after_s: float, is_harm: bool
) -> None:
    story.pilot_goes()
    story.look(12.1 + after_s, [BAD], [])
    story.look(12.2 + after_s, [BAD], [])  # once
    assert len(story.unusable) == is_harm
    for event in story.unusable:
        assert (event.node, event.state, event.reason) == ("n1", NodeState.DRAINED, "Epilog error")
        assert (event.pilot_id, event.job_id) == ("p-n1", "90")
        assert event.after_s == pytest.approx(2.0 + after_s)


def test_a_node_on_which_a_pilot_runs_again_was_left_well(story: Story) -> None:
    story.pilot_goes()
    again = replace(PILOT, job_id="91", pilot_id="p-2")
    story.look(13.0, [node("n1", BUSY)], [again])
    story.look(14.0, [node("n1", NodeState.DOWN, reason="Not responding")], [again])
    story.look(15.0, [node("n1", NodeState.DOWN, reason="Not responding")], [])
    assert story.unusable == []


def test_a_reboot_that_was_ordered_is_no_harm(story: Story) -> None:
    """Nor is what it shows on its way."""
    story.pilot_goes()
    story.look(13.0, [replace(BAD, reason=REBOOTS)], [])
    story.look(14.0, [node("n1", NodeState.DOWN, reason="Not responding")], [])
    assert story.unusable == []


def test_a_job_that_completes_for_too_long_is_harm_and_a_shorter_one_is_not(story: Story) -> None:
    """Adapters show such a node as down after some seconds: that alone is nothing yet."""
    hangs = node("n1", NodeState.DOWN, reason=STILL_COMPLETING)
    story.look(0.0, [node("n1", BUSY)], [PILOT], releases=True)
    story.look(1.0, [node("n1", NodeState.COMPLETING)], [ENDING])
    story.look(20.0, [hangs], [ENDING])
    assert story.unusable == []
    story.look(2.0 + WINDOW_S, [hangs], [ENDING])
    story.look(4.0 + WINDOW_S, [replace(BAD, reason="Kill task failed")], [ENDING])  # no second one
    story.look(6.0 + WINDOW_S, [replace(BAD, reason="Kill task failed")], [])
    (event,) = story.unusable
    assert event.state is NodeState.COMPLETING
    assert event.after_s == pytest.approx(1.9 + WINDOW_S)
    assert [one.took_s for one in story.left] == [pytest.approx(6.0 + WINDOW_S)]


def test_ordinary_jobs_on_nodes_that_had_pilots_are_counted_by_the_same_rules(
    story: Story,
) -> None:
    elsewhere, other = running("8", "n2"), node("n2", BUSY)
    story.look(0.0, [node("n1", BUSY), other], [THEIRS, elsewhere])
    story.look(1.0, [node("n1"), node("n2")], [])
    assert story.ordinary == 0  # no pilot has been here yet
    story.pilot_goes()
    story.look(13.0, [node("n1", BUSY), other], [THEIRS, elsewhere])
    story.look(14.0, [node("n1"), node("n2")], [])
    story.look(15.0, [BAD, replace(BAD, name="n2")], [])
    assert story.ordinary == 1
    (event,) = story.unusable
    assert (event.pilot_id, event.job_id) == ("", "7"), "the last one that left it"


@pytest.mark.parametrize("is_signalled", [False, True])
@pytest.mark.parametrize("shown", [[], [ENDING]])
def test_what_was_unusable_before_is_no_release(
    story: Story, shown: list[Job], is_signalled: bool
) -> None:
    """An administrator drains the node, or it falls, under the pilot: that is why it leaves.

    Where it is set down and its slurmd is well, the agent is signalled.
    """
    story.look(0.0, [node("n1", BUSY)], [PILOT])
    story.look(1.0, [BAD], [PILOT], releases=True)
    story.look(2.0, [BAD], [])
    story.look(3.0, [node("n1", BUSY)], [PILOT])
    if is_signalled:
        story.state = told(story.state, "p-n1", T0 + 3.9)
    fallen = node("n1", NodeState.DOWN, reason="Not responding")
    story.look(4.0, [fallen], shown)
    story.look(5.0, [fallen], [])
    assert (story.left, story.unusable) == ([], [])


def test_a_poll_that_failed_proves_nothing(story: Story) -> None:
    story.look(0.0, [node("n1", BUSY)], [PILOT])
    story.look(1.0, [BAD], [], unread=("jobs",))
    assert (story.left, story.unusable) == ([], [])
    story.look(2.0, [node("n1", BUSY)], [PILOT])
    assert story.state.watches == {}


def test_a_multi_node_job_leaves_its_nodes_one_by_one(story: Story) -> None:
    """The list of a completing job lacks nodes that are free already."""
    nodes = [node("n1", BUSY), node("n2", BUSY)]
    pilots = [PILOT, replace(PILOT, job_id="91", nodes=("n2",), pilot_id="p-n2")]
    story.look(0.0, nodes, pilots)
    both = running("7", "n1", "n2")
    story.look(1.0, nodes, [both])
    assert len(story.left) == 2
    story.look(2.0, nodes, [replace(both, state=JobState.COMPLETING, nodes=("n2",))])
    assert story.ordinary == 1
    story.look(3.0, nodes, [])
    assert story.ordinary == 2


@pytest.mark.parametrize(("cool_down_s", "events"), [(0.0, 72), (10.0, 8)])
def test_a_node_that_every_pilot_spoils_spoils_few_of_a_day(
    cool_down_s: float, events: int
) -> None:
    """It is idle again every 20 minutes; without the rests each time is one more drained node."""
    rests: Rests = {}
    for at_s in range(0, 86_400, 1200):
        if not cooling(rests, cool_down_s, T0 + at_s):
            event = Unusable(
                node="n1", state=BAD.state, reason="", at_s=T0 + at_s, after_s=1.0, job_id="1",
                pilot_id="p",
            )  # fmt: skip
            rests = with_events(rests, [event])
    assert rests["n1"].events == events


def test_a_clock_that_is_set_back_ends_a_rest() -> None:
    event = Unusable(
        node="n1", state=BAD.state, reason="", at_s=T0, after_s=1.0, job_id="1", pilot_id="p"
    )
    rests = with_events({}, [event])
    assert set(cooling(rests, 10.0, T0 + 1.0)) == {"n1"}
    assert cooling(rests, 10.0, T0 - 1e6) == {}
    assert cooling(rests, 0.0, T0 + 1.0) == {}


# ---- parts of hosts ---------------------------------------------------------------------

A, B, C = a_part("n1/0"), a_part("n1/1"), a_part("n1/2")
HOST = [node("n1", BUSY)]


def three_pilots(story: Story) -> None:
    story.look(0.0, HOST, list(map(pilot_job, (A, B, C))), pilots=list(map(of_part, (A, B, C))))


def test_pilots_that_leave_a_host_at_once_are_one_event_of_the_host(story: Story) -> None:
    three_pilots(story)
    story.look(10.0, HOST, [pilot_job(C)])
    assert [(one.node, one.is_one_more) for one in story.left] == [("n1", False), ("n1", True)]
    story.look(11.0, [BAD], [pilot_job(C)])
    story.look(12.0, [BAD], [pilot_job(C)])
    (event,) = story.unusable
    assert (event.node, event.pilot_id) == ("n1", "p-n1/0")
    rests = with_events({}, story.unusable)
    assert rests["n1"].events == 1
    assert set(cooling(rests, 10.0, T0 + 12.0)) == {"n1"}, "the host, for all of its parts"


def test_ordinary_jobs_that_leave_a_shared_host_at_once_count_once_too(story: Story) -> None:
    three_pilots(story)
    theirs = [running("7", "n1"), running("8", "n1")]
    story.look(10.0, HOST, [pilot_job(C), *theirs])
    story.look(11.0, HOST, [pilot_job(C)])
    assert story.ordinary == 1
    story.look(12.0, [BAD], [pilot_job(C)])
    (event,) = story.unusable
    assert (event.node, event.pilot_id) == ("n1", "")


def test_a_host_that_completes_while_another_job_runs_is_as_it_should_be(story: Story) -> None:
    """Slurm shows it as completing as long as one of its jobs is."""
    completing = [node("n1", NodeState.COMPLETING)]
    ends = pilot_job(A, JobState.COMPLETING)
    three_pilots(story)
    story.look(1.0, completing, [ends, pilot_job(B)])
    story.look(5.0 + WINDOW_S, completing, [ends, pilot_job(B)])
    assert story.unusable == []
    story.look(6.0 + WINDOW_S, [replace(BAD, reason="Kill task failed")], [ends, pilot_job(B)])
    assert [event.state for event in story.unusable] == [NodeState.DRAINED]


def test_a_host_with_jobs_that_complete_for_too_long_and_no_other_is_harm(story: Story) -> None:
    completing = [node("n1", NodeState.COMPLETING)]
    ends = [pilot_job(part, JobState.COMPLETING) for part in (A, B, C)]
    three_pilots(story)
    story.look(1.0, completing, ends)
    story.look(5.0 + WINDOW_S, completing, ends)
    assert [event.state for event in story.unusable] == [NodeState.COMPLETING]


@pytest.mark.parametrize(("start_s", "is_harm"), [(-50.0, True), (11.0, False)])
def test_only_a_pilot_that_started_after_shows_that_a_host_was_left_well(
    story: Story, start_s: float, is_harm: bool
) -> None:
    """The pilots on its other parts ran on all the time."""
    three_pilots(story)
    other = replace(pilot_job(C), start_s=T0 + start_s)
    story.look(10.0, HOST, [pilot_job(B)])
    story.look(12.0, HOST, [pilot_job(B), other])
    story.look(13.0, [BAD], [pilot_job(B), other])
    assert len(story.unusable) == is_harm
