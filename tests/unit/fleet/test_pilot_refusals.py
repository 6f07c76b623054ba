"""Refused pilots: whom that concerns, how long it lasts, what the user is told."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from bftrainer.fleet.pilots import refusals as pilot_refusals
from bftrainer.fleet.pilots.refusal_words import refusal, waiting, waiting_sentences
from bftrainer.fleet.pilots.refusals import MAX_PAUSE_S, PilotRefusals
from bftrainer.model.decision import Claim, Memory
from bftrainer.model.trainer import TrainerRecord
from tests.support.snapshots import record

BATCH = "sbatch: error: Batch job submission failed: "
LIMIT = (
    "sbatch: error: QOSMaxSubmitJobPerUserLimit "
    f"{BATCH}Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
)
CLOSED = f"{BATCH}Required partition not available (inactive or drain)"


class Steady:
    """A monotonic clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def steady() -> Steady:
    return Steady()


def of(trainer_id: str, user: str, account: str = "", n_max: int = 8) -> TrainerRecord:
    made = record(trainer_id, n_max=n_max)
    return replace(made, spec=replace(made.spec, user=user, account=account))


ADA, BOB = of("t1", "ada", "physics"), of("t2", "bob")


def test_a_refusal_concerns_only_those_who_would_be_charged(steady: Steady) -> None:
    refusals = PilotRefusals(as_submitter=True, clock=steady.monotonic)
    refusals.refused(f"{BATCH}Invalid account or account/partition combination specified", ADA)
    assert refusals.may_claim()
    assert refusals.why == ""
    assert refusals.why_of(BOB) == ""
    assert "account physics may not be used by ada" in refusals.why_of(ADA)
    assert refusals.may_claim([ADA, BOB])
    assert refusals.allowed([ADA, BOB], Memory(), ()) == ([BOB], Memory())
    claims = [Claim(node="n1", time_limit_s=60.0, for_trainer=i) for i in ("t1", "t2")]
    assert refusals.tried(claims, {"t1": ADA, "t2": BOB}) == claims[1:]
    steady.now_s += 2.5
    (first, trial), _ = refusals.allowed([ADA, BOB], Memory(), ())  # it comes first no more
    assert (first, trial.trainer_id, trial.spec.n_max) == (BOB, "t1", 1)
    refusals.accepted(ADA)
    assert refusals.allowed([ADA, BOB], Memory(), ()) == ([ADA, BOB], Memory())


def test_who_is_refused_keeps_what_he_has(steady: Steady) -> None:
    refusals = PilotRefusals(as_submitter=True, clock=steady.monotonic)
    refusals.refused(LIMIT, ADA)
    memory = Memory(assignment={"n1": "t1", "n2": "t1", "n3": "t1", "n4": "t2", "n5": "t2"})
    (capped, other), seen = refusals.allowed([ADA, BOB], memory, {"n1", "n2", "n4"})
    assert capped.spec.n_max == 2
    assert other is BOB
    assert seen.assignment == {"n1": "t1", "n2": "t1", "n4": "t2", "n5": "t2"}
    # Alone, nothing but nodes with pilots may be used.
    assert refusals.allowed([ADA], memory, {"n1"}) == ([ADA], memory)
    assert not refusals.may_claim([ADA])
    steady.now_s += 2.5
    (trial,), _ = refusals.allowed([ADA], memory, {"n1", "n2", "n4"})
    assert trial.spec.n_max == 3


def test_the_pause_doubles_and_only_one_request_is_tried(steady: Steady) -> None:
    refusals = PilotRefusals(clock=steady.monotonic)
    claims = [Claim(node=f"n{i}", time_limit_s=60.0, for_trainer="t2") for i in range(6)]
    assert refusals.tried(claims, {"t2": BOB}) == claims
    pauses = []
    for _ in range(10):
        for _ in claims:  # a round counts once
            refusals.refused(CLOSED, BOB)
        assert not refusals.may_claim()
        began_s = steady.now_s
        while not refusals.may_claim():
            steady.now_s += 1.0
        pauses.append(steady.now_s - began_s)
        assert refusals.tried(claims, {"t2": BOB}) == claims[:1]
    assert pauses[:4] == [2.0, 4.0, 8.0, 16.0]
    assert pauses[-1] == MAX_PAUSE_S
    refusals.accepted(BOB)
    assert refusals.tried(claims, {"t2": BOB}) == claims
    assert refusals.why == ""


def test_one_line_is_logged_for_a_change(steady: Steady, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bftrainer.pilots")
    refusals = PilotRefusals(clock=steady.monotonic)
    for _ in range(5):
        for _ in range(6):
            refusals.refused(LIMIT, BOB)
        steady.now_s += MAX_PAUSE_S
    refusals.accepted(BOB)
    refusals.accepted(BOB)
    for closed in ("", "Partition bf is DOWN.", "Partition bf is DOWN.", "", ""):
        refusals.polled(closed)
    lines = [entry.getMessage() for entry in caplog.records]
    assert len(lines) == 4
    assert "QOSMaxSubmitJobPerUserLimit" in lines[0]
    assert lines[1:] == [
        "pilots are accepted again",
        "Partition bf is DOWN.",
        "The batch system takes pilots again.",
    ]


def test_a_closed_partition_stops_all_requests() -> None:
    refusals = PilotRefusals()
    refusals.polled("Partition bf is DRAIN.")
    assert not refusals.may_claim()
    assert refusals.why_of(ADA) == refusals.why == "Partition bf is DRAIN."
    refusals.polled("")
    assert refusals.may_claim()


def test_many_users_are_not_remembered_without_limit(steady: Steady) -> None:
    del steady
    refusals = PilotRefusals(as_submitter=True)
    for number in range(pilot_refusals.MOST_PAUSES + 50):
        refusals.refused(LIMIT, of("t9", f"u{number}"))
    assert refusals.why_of(of("t9", "u0")) == ""
    assert refusals.why_of(of("t9", f"u{pilot_refusals.MOST_PAUSES + 49}")) != ""


@pytest.mark.parametrize(
    ("words", "said", "is_for_all"),
    [
        (CLOSED, "takes no jobs now", True),
        ("bsub: bf: Queue has been closed", "takes no jobs now", True),
        (f"{BATCH}Invalid account or account/partition combination", "account x may not", False),
        (f"{BATCH}Invalid qos specification", "the QOS of pilots may not be used by ada", False),
        (f"{BATCH}User's group not permitted to use this partition", "ada may not submit", False),
        ("bsub: bf: User cannot use the queue", "ada may not submit", False),
        (f"{BATCH}Requested time limit is invalid (missing or exceeds some limit)",
         "pilot_time_limit_s", False),
        ("sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying",
         "queue of the whole cluster is full", True),
        (f"{BATCH}Invalid partition name specified", "no such partition", True),
        ("gone: No such queue. Job not submitted.", "no such partition or queue", True),
        (LIMIT, "limit of the QOS on submitted jobs of one user is reached (QOSMaxSubmitJobPer",
         False),
        ("sbatch: error: AssocGrpSubmitJobsLimit", "limit of the account on submitted jobs of all",
         False),
        ("sbatch: error: AssocMaxSubmitJobLimit", "on submitted jobs is reached", False),
        (f"{BATCH}Job violates accounting/QOS policy", "a limit of account x or of the QOS", False),
        ("something new", "The batch system refuses its pilots: something new.", False),
    ],
)  # fmt: skip
def test_refusals_in_a_users_words(words: str, said: str, *, is_for_all: bool) -> None:
    found = refusal(words, user="ada", account="x")
    assert said in found.why
    assert found.is_for_all is is_for_all


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("", "the scheduler has not looked at it yet"),
        ("None", "the scheduler has not looked at it yet"),
        (
            "PartitionDown",
            "its partition is closed until an administrator opens it (PartitionDown)",
        ),
        ("Priority", "other jobs come first (Priority)"),
        ("QOSGrpNodeLimit", "the limit of the QOS on nodes of all its users together is reached"),
        ("QOSMaxJobsPerUserLimit", "on running jobs of one user is reached"),
        ("AssocGrpCpuLimit", "the limit of the account on CPUs of all its users together"),
        ("AssocMaxJobsLimit", "the limit of the account on running jobs is reached"),
        ("QOSNotAllowed", "its QOS may not be used (QOSNotAllowed)"),
        ("ReqNodeNotAvail, UnavailableNodes:n1", "its node is down, drained or reserved"),
        ("New job is waiting for scheduling", "New job is waiting for scheduling"),
    ],
)
def test_why_a_pilot_waits_in_a_users_words(reason: str, said: str) -> None:
    assert said in waiting(reason)


def test_pilots_that_wait_for_the_same_are_counted() -> None:
    waits, down = waiting_sentences(["Priority", "PartitionDown", "Priority"])
    assert waits == "2 of its pilots wait in the queue: other jobs come first (Priority)."
    assert down.startswith("1 of its pilots waits in the queue: its partition is closed until")
    assert waiting_sentences([]) == ()
