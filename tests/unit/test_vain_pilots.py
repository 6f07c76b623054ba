"""A trainer that uses up many pilots without a step: found, told, slowed down until it steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bftrainer.actuate.pilot_refusals import MAX_PAUSE_S, PilotRefusals
from bftrainer.actuate.pilots import Pilot
from bftrainer.actuate.vain_pilots import TIMES
from bftrainer.journal.records import PilotRecord
from bftrainer.model.decision import Claim, Memory
from bftrainer.model.trainer import TrainerProgress, TrainerRecord, TrainerState
from tests.support.snapshots import T0, record
from tests.unit.test_pilot_refusals import BOB, Steady, of, steady

__all__ = ["steady"]  # a fixture

ADA = of("t1", "ada")


class Site:
    """Refusals, and pilots of t1 that end."""

    def __init__(self) -> None:
        self.refusals, self.count = PilotRefusals(), 0
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
    del steady
    return Site()


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
