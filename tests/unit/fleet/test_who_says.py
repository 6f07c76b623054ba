"""What an agent says counts for workers and copies of its own node, and for no others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bftrainer.fleet.trainers.reported_workers import MOST_REGROUPED, Believed, judge
from bftrainer.fleet.wire.messages import KillWorker, WorkerReport
from bftrainer.ground import protocol
from bftrainer.ground.protocol import Commit, Member
from bftrainer.journal.journal import Journal
from bftrainer.model.trainer import TrainerState
from tests.support.generations import offer
from tests.support.journals import journal_at
from tests.unit.fleet.test_trainer_book import Site, _entered, _progress

YEAR_S = 365 * 86400.0


journal = journal_at(100.0)


@pytest.fixture
def site(tmp_path: Path, journal: Journal) -> Site:
    """A trainer on n1 and n2, whose pilots are p-n1 and p-n2."""
    site = Site(tmp_path, journal)
    site.target("n1", "n2")
    site.enter()
    return site


def _body(step: int) -> dict[str, Any]:
    return protocol.to_body(_progress(1, step))


# ---- while the daemon is there -----------------------------------------------------------


def test_progress_counts_only_from_the_agent_of_the_workers_node(site: Site) -> None:
    first = site.book.trainers[site.trainer_id].machine.crew.members[0]
    site.book.on_body("p-n2", first, _body(10**9))
    site.book.on_body("p-elsewhere", first, _body(10**9))
    assert site.book.records[site.trainer_id].progress.step == 10
    assert site.refusals.counts["not-its-worker"] == 2
    site.book.on_body("p-n1", first, _body(12))
    assert site.book.records[site.trainer_id].progress.step == 12


def test_the_end_of_a_worker_counts_only_from_the_agent_of_its_node(site: Site) -> None:
    machine = site.book.trainers[site.trainer_id].machine
    first = machine.crew.members[0]
    site.book.on_exit("p-n2", first, 1, "It broke.")
    assert machine.crew.workers[first].is_alive
    assert site.book.records[site.trainer_id].failures == 0
    site.book.on_exit("p-n1", first, 1, "It broke.")
    assert site.book.records[site.trainer_id].failures == 1


def test_words_about_workers_nobody_has_are_nobodys_fault(site: Site) -> None:
    site.book.on_body("p-n1", f"{site.trainer_id}-1-77", _body(10**9))
    site.book.on_exit("p-n1", "t99-1-1", 1, "")
    assert not site.refusals.counts


@pytest.mark.parametrize(
    "changes",
    [{"samples_per_s": float("nan")}, {"step_s": float("inf")}, {"step": 10**400}, {"step": True}],
)
def test_a_workers_own_number_that_is_none_changes_nothing(
    site: Site, changes: Mapping[str, Any]
) -> None:
    before = site.book.records[site.trainer_id]
    first = site.book.trainers[site.trainer_id].machine.crew.members[0]
    site.book.on_body("p-n1", first, {**_body(11), **changes})
    assert site.book.records[site.trainer_id] == before
    assert site.refusals.counts["malformed"] == 1


def test_a_clock_that_is_set_by_a_year_ends_no_worker(site: Site) -> None:
    site.target("n1", "n2", "n3")  # one worker starts, a generation is about to form
    machine = site.book.trainers[site.trainer_id].machine
    (joiner,) = [w for w in machine.crew.workers.values() if w.node == "n3"]
    site.say(joiner.worker_id, protocol.Warm(warm_up_s=1.0))
    assert machine.forming is not None
    for jump_s in (YEAR_S, -2 * YEAR_S):
        site.now_s += jump_s
        site.book.tick()
        assert all(w.is_alive for w in machine.crew.workers.values())
        assert site.book.records[site.trainer_id].state is TrainerState.RUNNING
    site.form()
    assert machine.forming is not None
    assert machine.forming.is_committed


# ---- when a daemon comes back ------------------------------------------------------------


def _report(worker_id: str, *said: Any, commit: Commit | None = None) -> WorkerReport:
    return WorkerReport(
        worker_id=worker_id,
        trainer_id="t1",
        pid=1,
        commit=None if commit is None else protocol.to_body(commit),
        latest=[b if isinstance(b, dict) else protocol.to_body(b) for b in said],
    )


WARM = protocol.Warm(warm_up_s=1.0)


def _left_behind(site: Site) -> tuple[Commit, dict[str, list[WorkerReport]]]:
    """Return the last commit, and what honest agents report of it."""
    commit = site.commit
    assert commit is not None
    honest = {
        f"p-{m.node}": [_report(m.worker_id, WARM, _entered(m, commit), commit=commit)]
        for m in commit.members
    }
    return commit, honest


def _heir(tmp_path: Path, journal: Journal, reports: dict[str, list[WorkerReport]]) -> Site:
    heir = Site(tmp_path, journal)
    for pilot_id, known in reports.items():
        heir.book.reports.keep(pilot_id, known)
    heir.book.adopt_all({p: offer(p.removeprefix("p-")) for p in reports})
    return heir


def _killed(site: Site) -> list[tuple[str, str]]:
    return [(p, m.worker_id) for p, m in site.sent if isinstance(m, KillWorker)]


def test_honest_reports_are_believed(tmp_path: Path, journal: Journal, site: Site) -> None:
    commit, honest = _left_behind(site)
    honest["p-n3"] = [_report("t1-1-9", WARM)]  # started after the last announcement
    heir = _heir(tmp_path, journal, honest)
    machine = heir.book.trainers["t1"].machine
    assert machine.crew.members == tuple(m.worker_id for m in commit.members)
    assert machine.crew.workers["t1-1-9"].pilot_id == "p-n3"
    assert not machine.trouble.is_broken
    assert _killed(heir) == []


@pytest.mark.parametrize(
    "body",
    [
        {"type": "Entered", "generation": 1, "step": 1, "news": 1},
        {"type": "Warm", "warm_up_s": "long"},
        {"type": "Warm"},
        {"type": "Warm", "warm_up_s": float("nan")},
    ],
)
def test_a_worker_whose_words_are_not_understood_is_killed_and_the_others_go_on(
    tmp_path: Path, journal: Journal, site: Site, body: dict[str, Any]
) -> None:
    commit, honest = _left_behind(site)
    first, second = commit.members
    honest["p-n1"] = [_report(first.worker_id, body, _entered(first, commit), commit=commit)]
    heir = _heir(tmp_path, journal, honest)
    machine = heir.book.trainers["t1"].machine
    assert _killed(heir) == [("p-n1", first.worker_id)]
    assert list(machine.crew.workers) == [second.worker_id]
    assert machine.trouble.is_broken  # so that the survivor is told of a generation without it
    assert heir.refusals.counts["not-believed"] == 1


def test_a_type_of_message_from_a_later_release_is_left_out(
    tmp_path: Path, journal: Journal, site: Site
) -> None:
    commit, honest = _left_behind(site)
    first = commit.members[0]
    later = {"type": "Telepathy", "thought": 1}
    honest["p-n1"] = [_report(first.worker_id, later, _entered(first, commit), commit=commit)]
    heir = _heir(tmp_path, journal, honest)
    assert heir.book.trainers["t1"].machine.crew.members == tuple(
        m.worker_id for m in commit.members
    )
    assert _killed(heir) == []
    assert heir.refusals.counts == {"unknown": 1}


def _forged(commit: Commit, liar: Member, **changes: Any) -> Commit:
    return replace(
        commit, generation=commit.generation + 1, members=(liar,), abandon=True, **changes
    )


def test_an_agent_that_invents_a_member_takes_no_trainer_over(
    tmp_path: Path, journal: Journal, site: Site
) -> None:
    commit, honest = _left_behind(site)
    liar = replace(commit.members[0], worker_id="t1-1-66", node="n3")
    for forged in (_forged(commit, liar, origin="p-n3"), _forged(commit, liar), commit):
        lie = _report("t1-1-66", WARM, _entered(liar, forged, step=10**9), commit=forged)
        heir = _heir(tmp_path, journal, {**honest, "p-n3": [lie]})
        machine = heir.book.trainers["t1"].machine
        assert machine.crew.members == tuple(m.worker_id for m in commit.members)
        assert (machine.mark.step, machine.trouble.is_broken) == (10, False)
        assert _killed(heir) == [("p-n3", "t1-1-66")]
        assert heir.refusals.counts["not-believed"] == 1


def test_an_agent_that_claims_anothers_worker_does_not_get_it(
    tmp_path: Path, journal: Journal, site: Site
) -> None:
    commit, honest = _left_behind(site)
    heir = _heir(tmp_path, journal, {**honest, "p-n3": honest["p-n1"]})
    machine = heir.book.trainers["t1"].machine
    assert machine.crew.workers[commit.members[0].worker_id].pilot_id == "p-n1"
    assert _killed(heir) == [("p-n3", commit.members[0].worker_id)]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"generation": 3 + MOST_REGROUPED, "origin": "p-n1"}, "far beyond"),
        ({"generation": 3}, "not announced by a daemon"),
        ({"members": 2}, "members that were never announced"),
    ],
)
def test_a_member_that_lies_about_its_generation_costs_itself(
    site: Site, changes: dict[str, Any], why: str
) -> None:
    commit, _ = _left_behind(site)
    record = site.book.records["t1"]
    first = commit.members[0]
    if "members" in changes:
        changes = {"members": (first, first)}
    told = replace(commit, **changes)
    report = _report(first.worker_id, _entered(first, told), commit=told)
    found = judge({"p-n1": [report]}, {"t1": record})
    (doubted,) = found.doubted
    assert why in doubted.why
    assert found.believed == {}


def test_what_agents_announced_among_known_members_is_believed(site: Site) -> None:
    commit, _ = _left_behind(site)
    second = commit.members[1]
    alone = _forged(commit, second, origin="p-n2")
    report = _report(second.worker_id, _entered(second, alone, step=40), commit=alone)
    found = judge({"p-n2": [report]}, {"t1": site.book.records["t1"]})
    assert [b.worker_id for b in found.believed["t1"]] == [second.worker_id]
    assert isinstance(found.believed["t1"][0], Believed)


def test_a_journal_that_does_not_name_workers_yet_is_taken_as_it_is(site: Site) -> None:
    commit, honest = _left_behind(site)
    old = replace(site.book.records["t1"], workers=())
    assert len(judge(honest, {"t1": old}).believed["t1"]) == 2
    fresh = replace(old, last_generation=0)  # nothing was ever announced
    assert judge(honest, {"t1": fresh}).believed == {}
    assert commit.generation == 1


def test_a_worker_that_just_starts_and_that_two_agents_claim_is_nobodys(site: Site) -> None:
    twice = {p: [_report("t1-1-9", WARM)] for p in ("p-n3", "p-n4")}
    found = judge(twice, {"t1": site.book.records["t1"]})
    assert found.believed == {}
    assert len(found.doubted) == 2


def test_a_second_greeting_takes_the_place_of_the_first(
    tmp_path: Path, journal: Journal, site: Site
) -> None:
    _, honest = _left_behind(site)
    heir = Site(tmp_path, journal)
    for _ in range(3):
        heir.book.reports.keep("p-n1", honest["p-n1"])
        heir.book.reports.keep("p-n2", honest["p-n2"])
    heir.book.adopt_all({p: offer(p.removeprefix("p-")) for p in honest})
    assert len(heir.book.trainers["t1"].machine.crew.workers) == 2
    assert _killed(heir) == []
