"""A trainer that uses up many pilots without a step: found, told, slowed down until it steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bftrainer.batch.batch_system import PilotObservation
from bftrainer.decide.claims import DID_NOT_CONNECT
from bftrainer.fleet.lifecycle import PilotPhase
from bftrainer.fleet.pilots.pilots import Pilot
from bftrainer.fleet.pilots.refusals import MAX_PAUSE_S, PilotRefusals
from bftrainer.fleet.pilots.vain import IN_A_ROW, TIMES
from bftrainer.journal.projection import PilotRecord
from bftrainer.model.cluster import EndedBy, Presence
from bftrainer.model.decision import Claim, Memory
from bftrainer.model.trainer import TrainerProgress, TrainerRecord, TrainerState
from tests.support.snapshots import T0, record
from tests.unit.fleet.test_pilot_refusals import BOB, Steady, of, steady

__all__ = ["steady"]  # a fixture

ADA = of("t1", "ada")
PILOT = PilotRecord(
    pilot_id="p000001", node="n1", job_id="1", public_key="", requested_s=T0, time_limit_s=60.0,
    owner="bft",
)  # fmt: skip


class Site:
    """Refusals, and pilots of t1 that end."""

    def __init__(self, steady: Steady) -> None:
        self.refusals, self.count = PilotRefusals(clock=steady.monotonic), 0
        self.record = ADA

    def end(self, *, plan_s: float, reason: str = "No trainer wants it.", **more: object) -> None:
        self.count += 1
        pilot = PilotRecord(
            pilot_id=f"p{self.count:06d}",
            node="n1",
            job_id=str(self.count),
            public_key="",
            requested_s=T0 + plan_s,
            time_limit_s=60.0,
            owner="bft",
            reason=reason,
        )
        ended = replace(Pilot(record=pilot, for_trainer="t1"), **more)  # type: ignore[arg-type]
        self.refusals.pilot_ended(ended, {"t1": self.record})

    def steps(self, step: int) -> None:
        self.record = replace(self.record, progress=TrainerProgress(step=step))

    @property
    def allowed(self) -> list[TrainerRecord]:
        return list(self.refusals.allowed([self.record, BOB], Memory(), ())[0])


@pytest.fixture
def site(steady: Steady) -> Site:
    return Site(steady)


def test_five_times_its_smallest_size_without_a_step_is_too_many(site: Site) -> None:
    for second in range(TIMES - 1):
        site.end(plan_s=second)
    assert (site.refusals.why_of(ADA), site.refusals.n_vain) == ("", 0)
    site.end(plan_s=9.0, farewell="signal")
    why = site.refusals.why_of(ADA)
    assert why.startswith("BFT-1311: It used 5 pilots without a step")
    assert "p000001 on n1: No trainer wants it." in why
    assert "p000005 on n1: signal" in why
    assert site.refusals.n_vain == 1
    assert site.refusals.why_of(BOB) == ""
    assert site.allowed == [BOB]


def test_a_larger_trainer_may_use_more(site: Site) -> None:
    site.record = record("t1", n_min=3)
    for second in range(3 * TIMES - 1):
        site.end(plan_s=second)
    assert site.refusals.n_vain == 0
    site.end(plan_s=99.0)
    assert site.refusals.n_vain == 1


def test_pilots_of_one_plan_that_go_together_count_as_its_smallest_size(site: Site) -> None:
    """An ordinary job takes 64 nodes at once from a trainer that was starting."""
    for _ in range(64):
        site.end(plan_s=0.0)
    assert site.refusals.n_vain == 0


@pytest.mark.parametrize(
    ("start_s", "came_s", "n_vain"), [(None, None, 0), (T0, None, 1), (None, T0, 1)]
)
def test_pilots_that_were_called_back_before_they_had_their_node_do_not_count(
    site: Site, start_s: float | None, came_s: float | None, n_vain: int
) -> None:
    """On a full machine a node is idle for seconds, and its next job comes before the pilot."""
    for second in range(TIMES):
        site.end(plan_s=second, phase=PilotPhase.GIVEN_BACK, start_s=start_s, came_s=came_s)
    assert site.refusals.n_vain == n_vain


def test_a_step_ends_the_count_and_the_pause(site: Site) -> None:
    for second in range(TIMES - 1):
        site.end(plan_s=second)
    site.steps(1)
    site.end(plan_s=9.0)
    assert site.refusals.n_vain == 0
    for second in range(TIMES - 1):
        site.end(plan_s=10.0 + second)
    assert site.allowed == [BOB]
    site.steps(2)
    assert site.allowed == [site.record, BOB]
    assert site.refusals.n_vain == 0


def test_what_was_lost_and_done_again_is_a_step(site: Site) -> None:
    """It was at step 100, lost its nodes, and begins again at its checkpoint of step 50."""
    site.steps(100)
    site.end(plan_s=0.0)
    site.steps(50)
    for second in range(TIMES):
        site.end(plan_s=1.0 + second)
    assert site.allowed == [BOB]
    site.steps(51)
    assert site.allowed == [site.record, BOB]


def test_it_is_tried_again_ever_more_rarely(site: Site, steady: Steady) -> None:
    claims = [Claim(node=f"n{k}", time_limit_s=60.0, for_trainer="t1") for k in range(3)]
    for second in range(TIMES):
        site.end(plan_s=second)
    pauses = []
    for number in range(6):
        began_s = steady.now_s
        assert site.refusals.tried(claims, {"t1": ADA}) == []
        while not site.refusals.tried(claims, {"t1": ADA}):
            steady.now_s += 1.0
        pauses.append(steady.now_s - began_s)
        assert site.refusals.tried(claims, {"t1": ADA}) == claims[:1]
        site.end(plan_s=100.0 + number)
    assert pauses == [32.0, 64.0, 128.0, 256.0, MAX_PAUSE_S, MAX_PAUSE_S]


def test_what_has_ended_or_was_never_a_job_does_not_count(site: Site) -> None:
    for second in range(TIMES):
        site.end(plan_s=second)
    site.record = replace(site.record, state=TrainerState.CANCELLED)
    assert site.refusals.why_of(site.record) == ""
    site.record = replace(ADA, trainer_id="t1")
    for second in range(2 * TIMES):
        refused = Pilot(
            record=PilotRecord(
                pilot_id=f"p{second + 100:06d}", node="n1", job_id=None, public_key="",
                requested_s=T0, time_limit_s=60.0, owner="bft",
            ),
            for_trainer="t1",
        )  # fmt: skip
        site.refusals.pilot_ended(refused, {"t1": site.record})
    assert site.refusals.n_vain == 0


# ---- agents that never speak ---------------------------------------------------------------

FAILED = PilotObservation(
    presence=Presence.ABSENT,
    reason="FAILED, exit status 1",
    ended_by=EndedBy.ITSELF,
    has_failed=True,
)


def _one_ends(site: Site, by: EndedBy = EndedBy.ITSELF, **more: object) -> None:
    site.end(plan_s=0.0, reason="Its job is no longer in the queue.", **more)
    site.refusals.pilot_explained(f"p{site.count:06d}", replace(FAILED, ended_by=by))


def test_three_pilots_in_a_row_without_a_word_stop_all_requests(site: Site, steady: Steady) -> None:
    site.refusals.where = lambda: "Look at /pilots/ID/agent.log."
    for _ in range(IN_A_ROW - 1):
        _one_ends(site)
    assert site.refusals.why == ""
    _one_ends(site)
    assert site.refusals.why.startswith(
        "BFT-1331: 3 pilots in a row ended before their agent spoke"
    )
    assert "p000003 on n1: FAILED, exit status 1 Look at /pilots/ID/agent.log." in site.refusals.why
    assert site.refusals.why_of(BOB) == site.refusals.why
    assert site.refusals.n_mute == 3
    assert not site.refusals.may_claim([ADA, BOB])
    claims = [Claim(node=f"n{k}", time_limit_s=60.0, for_trainer="t1") for k in range(3)]
    assert site.refusals.tried(claims, {"t1": ADA}) == []
    steady.now_s += 33.0
    assert site.refusals.tried(claims, {"t1": ADA}) == claims[:1]
    site.refusals.accepted(ADA)  # that a batch system takes a job says nothing of its agent
    _one_ends(site)
    steady.now_s += 33.0
    assert site.refusals.tried(claims, {"t1": ADA}) == []


def test_one_agent_that_speaks_ends_it(site: Site) -> None:
    for _ in range(IN_A_ROW):
        _one_ends(site)
    spoke = Pilot(record=replace(PILOT, pilot_id="p000099"))
    site.refusals.agent_spoke(spoke)
    assert (site.refusals.why, site.refusals.n_mute) == ("", 0)
    assert site.allowed == [ADA, BOB]


def test_agents_that_do_not_connect_in_time_count_too(site: Site) -> None:
    for _ in range(IN_A_ROW):
        site.end(plan_s=0.0, reason=f"{DID_NOT_CONNECT} (60 s).", phase=PilotPhase.CANCELLED)
    assert "p000003 on n1: Its agent did not connect in time (60 s)." in site.refusals.why


def test_pilots_that_others_ended_or_whose_agents_spoke_do_not_count(site: Site) -> None:
    for by in (EndedBy.PREEMPTED, EndedBy.CANCELLED, EndedBy.NODE, EndedBy.TIME_LIMIT):
        _one_ends(site, by)
    _one_ends(site, came_s=T0)
    site.end(plan_s=0.0, reason="No trainer wants it.", phase=PilotPhase.CANCELLED)
    assert site.refusals.n_mute == 0


def test_the_pilots_of_one_user_do_not_stop_those_of_another(steady: Steady) -> None:
    refusals = PilotRefusals(as_submitter=True, clock=steady.monotonic)
    for number in range(IN_A_ROW):
        one = replace(PILOT, pilot_id=f"p{number:06d}", user="ada")
        refusals.pilot_ended(Pilot(record=one, for_trainer="t1"), {"t1": ADA})
        refusals.pilot_explained(f"p{number:06d}", FAILED)
    assert refusals.why_of(ADA).startswith("BFT-1331")
    assert (refusals.why_of(BOB), refusals.why) == ("", "")
