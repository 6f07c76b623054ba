"""Agents that are not heard: what decisions, pilots and trainers make of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.batch.local.adapter import create
from bftrainer.daemon.explain.nodes import cut_off_sentence, true_cause
from bftrainer.fleet.pilots.pilots import FORCE_AFTER_S, PilotBook
from bftrainer.fleet.wire.messages import KillWorker, TellWorker, WorkerReport
from bftrainer.fleet.wire.peers import Reach
from bftrainer.ground import protocol
from bftrainer.journal.journal import Journal
from bftrainer.journal.projection import PilotState
from bftrainer.model import canonical
from bftrainer.model.cluster import JobState, NodeState
from bftrainer.model.decision import Claim, Ends, Memory, PilotView, Settings
from bftrainer.model.trainer import TrainerState
from tests.support.generations import offer
from tests.support.snapshots import (
    T0,
    Fold,
    idle_nodes,
    pending,
    pilot,
    record,
    released,
    running,
    snapshot,
    with_state,
)
from tests.unit.fleet.test_trainer_book import Site, _entered, _progress

BUSY = with_state(idle_nodes(2), NodeState.ALLOCATED, "n1", "n2")
SILENT = replace(pilot("n1", is_held=False, end_s=T0 + 9999), is_silent=True)
HELD = pilot("n2", end_s=T0 + 9999)
FREE = Settings(reserve_nodes_per_type=0)


# ---- decisions -------------------------------------------------------------------------


def test_a_silent_pilot_is_no_node_for_trainers_and_is_not_given_up_by_a_decision() -> None:
    fold = Fold()
    for second in (0.0, 100.0, 1000.0):
        seen = snapshot(BUSY, at_s=T0 + second)
        plan = fold.decide(seen, [SILENT, HELD], [record()], at_s=T0 + second)
        assert plan.assignment == {"n2": "t1"}
        assert released(plan) == set()
    assert "The agent of pilot p-n1 is not heard" in plan.not_used["n1"]
    assert fold.memory.agents.started_s == {}


def test_an_ordinary_job_gets_the_node_of_a_silent_pilot_first() -> None:
    seen = snapshot(BUSY, [pending("7", 1)])
    assert released(Fold().decide(seen, [SILENT, HELD], [record()])) == {"n1"}


def test_neither_its_end_nor_its_return_is_learnt() -> None:
    fold = Fold()
    begun = replace(running("j1", "n1"), pilot_id="p-n1")
    fold.decide(snapshot(BUSY, [begun]), [SILENT])
    leaving = replace(SILENT, is_leaving=True)
    for second in (10.0, 60.0):
        job = replace(begun, state=JobState.COMPLETING)
        fold.decide(snapshot(BUSY, [job], at_s=T0 + second), [leaving], at_s=T0 + second)
    fold.decide(snapshot(idle_nodes(2), at_s=T0 + 70), at_s=T0 + 70)
    back = replace(SILENT, is_silent=False, is_held=True)
    fold.decide(snapshot(BUSY, [begun], at_s=T0 + 500), [back], at_s=T0 + 500)
    assert (fold.memory.ends.took_s, fold.memory.ends.joined_s) == ((), ())


def test_journals_of_before_do_not_know_of_silence() -> None:
    text = canonical.encode(pilot("n1")).decode()
    assert "is_silent" not in text
    assert canonical.decode(text.encode(), PilotView) == pilot("n1")


def test_a_node_that_is_kept_free_tells_why() -> None:
    fold = Fold(settings=FREE)
    fold.memory = Memory(ends=Ends(took_s=(69.0,) * 3))
    plan = fold.decide(snapshot(idle_nodes(1)), trainers=[record()])
    (why,) = plan.not_used.values()
    assert "comes back only 69 s" in true_cause(why, plan, FREE)
    assert true_cause(why, plan, Settings()) == why
    assert true_cause("It is down.", plan, FREE) == "It is down."


# ---- pilots ----------------------------------------------------------------------------


class Book:
    """The book of one pilot, and its clock."""

    def __init__(self, journal: Journal, socket: Path) -> None:
        self.now_s = T0
        system, now = create({"socket": socket}), lambda: self.now_s
        self.book = PilotBook(journal, system, "root", lambda: T0, now)
        self.book.unreachable_s = 300.0
        claim = Claim(node="n1", time_limit_s=3600.0, for_trainer="t1")
        self.book.launched(self.book.open("p000001", claim, "key"), "71")
        self.book.agent_came("p000001")

    @property
    def view(self) -> PilotView:
        (view,) = self.book.views([])
        return view


@pytest.fixture
def pilots(tmp_path: Path) -> Iterator[Book]:
    with closing(Journal.open(tmp_path / "journal.db", clock=lambda: T0)) as journal:
        yield Book(journal, tmp_path / "none")


@pytest.mark.parametrize("why", ["silent", "disconnected"])
def test_a_pilot_lost_without_a_word_may_come_back(pilots: Book, why: str) -> None:
    pilots.book.agent_left("p000001", why)
    assert (pilots.view.is_silent, pilots.view.is_leaving) == (True, False)
    pilots.now_s += 299.0
    assert pilots.book.overdue() == []
    assert pilots.book.agent_came("p000001") == ""
    assert not pilots.view.is_silent
    pilots.now_s += 1000.0
    assert pilots.book.overdue() == []


def test_one_that_was_given_up_is_not_taken_back(pilots: Book) -> None:
    pilots.book.agent_left("p000001", "silent")
    pilots.now_s += 301.0
    assert pilots.book.overdue() == ["71"]
    assert pilots.book.pilots["p000001"].record.state is PilotState.CANCELLED
    assert "not heard for 301 s" in pilots.book.agent_came("p000001")
    assert pilots.view.is_leaving
    pilots.now_s += FORCE_AFTER_S + 1
    assert pilots.book.overdue() == ["71"]  # again, until its job is gone


def test_one_whose_job_is_ending_has_to_go(pilots: Book) -> None:
    job = replace(running("71", "n1"), pilot_id="p000001", state=JobState.COMPLETING)
    pilots.book.agent_left("p000001", "silent")
    pilots.book.observe(snapshot([], [job]), T0 + 1)
    assert pilots.book.agent_came("p000001") == "Its job is ending."
    assert pilots.view.is_leaving


def test_who_said_that_he_leaves_is_not_waited_for(pilots: Book) -> None:
    pilots.book.agent_left("p000001", "lease")
    pilots.book.agent_left("p000001", "disconnected")  # follows every farewell
    assert (pilots.view.is_silent, pilots.view.is_leaving) == (False, True)
    pilots.now_s += FORCE_AFTER_S + 1
    assert pilots.book.overdue() == ["71"]


# ---- the daemon is cut off ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("ages_s", "is_cut_off"),
    [
        ((5.1, 4.6, 4.9), True),
        ((5.1, 4.6, 0.1), True),
        ((5.1, 4.6, 0.1, 0.2), False),  # half is not most
        ((5.1, 0.1, 0.1), False),
        ((5.1,), False),  # one agent may as well be lost
        ((), False),
    ],
)
def test_most_at_once_and_at_least_two(ages_s: tuple[float, ...], *, is_cut_off: bool) -> None:
    assert Reach(timeout_s=5.0).is_cut_off(ages_s) is is_cut_off


def test_who_does_not_come_back_with_the_others_is_lost() -> None:
    reach = Reach(timeout_s=5.0)
    for name in ("p1", "p2", "p3"):
        reach.left(name, 100.0)
    assert reach.lost([], 900.0) == []
    reach.drop(["p1"])
    assert reach.lost([0.1], 1000.0) == []  # two of three: still cut off
    reach.drop(["p2"])
    assert reach.lost([0.1, 0.1], 1001.0) == []
    assert reach.lost([0.1, 0.1], 1006.1) == ["p3"]
    reach.drop(["p3"])
    assert reach.since_s is None


def test_it_is_said_whom_the_daemon_does_not_hear() -> None:
    assert cut_off_sentence([], 4, 0.0) == ""
    said = cut_off_sentence([f"n{k}" for k in range(10)], 12, 42.0)
    assert said.startswith("BFT-1330: The daemon has not heard 10 of its 12 agents for 42 s (n0,")
    assert "n8" not in said


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A trainer on n1 and n2, at step 10."""
    with closing(Journal.open(tmp_path / "journal.db", clock=lambda: T0)) as journal:
        site = Site(tmp_path, journal)
        site.target("n1", "n2")
        site.enter()
        site.sent.clear()
        yield site


def _reports(site: Site, step: int) -> dict[str, WorkerReport]:
    """What the agents say of their workers, by node."""
    commit = site.commit
    assert commit is not None
    return {
        member.node: WorkerReport(
            worker_id=member.worker_id,
            trainer_id=site.trainer_id,
            pid=1,
            commit=protocol.to_body(commit),
            latest=[
                protocol.to_body(_entered(member, commit)),
                protocol.to_body(_progress(commit.generation, step)),
            ],
        )
        for member in commit.members
    }


def _pass(site: Site, seconds: float) -> None:
    site.now_s += seconds
    site.steady_s += seconds
    site.book.tick()


def test_a_trainer_that_nobody_hears_is_taken_over_as_it_is(site: Site) -> None:
    before, machine = site.book.records[site.trainer_id], site.machine
    for node in ("n1", "n2"):
        site.book.cannot_reach(f"p-{node}")
    site.target()  # no agent is connected, so no node is an offer
    _pass(site, 10_000.0)  # far beyond all time limits
    assert site.book.records[site.trainer_id] == before
    assert set(site.book.occupancy().training) == {"n1", "n2"}
    assert site.trainer_id in site.book.occupancy().settled_until_s
    for node, report in _reports(site, step=900).items():
        site.book.reports.keep(f"p-{node}", [report])
    site.book.reached({f"p-{n}": offer(n) for n in ("n1", "n2")})
    _pass(site, 1.0)
    assert site.machine is not machine
    assert (site.machine.mark.step, site.machine.numbers.generation) == (
        900,
        machine.numbers.generation,
    )
    assert set(site.machine.crew.members) == set(machine.crew.members)
    assert site.sent == []  # no change of any kind
    site.target("n1", "n2", "n3")
    assert site.machine.numbers.started_workers == 3  # numbers of workers go on


def test_who_did_not_come_back_is_missed_then(site: Site) -> None:
    for node in ("n1", "n2"):
        site.book.cannot_reach(f"p-{node}")
    site.book.on_agent_lost("p-n2")
    site.book.reports.keep("p-n1", [_reports(site, step=900)["n1"]])
    site.book.reached({"p-n1": offer("n1")})
    forming = site.machine.forming
    assert forming is not None
    assert (forming.reason, len(forming.roster)) == ("a member was lost", 1)


def test_all_may_be_lost_in_the_end(site: Site) -> None:
    for node in ("n1", "n2"):
        site.book.cannot_reach(f"p-{node}")
        site.book.on_agent_lost(f"p-{node}")
    assert site.book.records[site.trainer_id].state is TrainerState.RUNNING
    site.book.reached({})
    assert site.book.records[site.trainer_id].state is TrainerState.PARKED


def test_a_member_that_is_heard_and_says_that_its_group_broke_is_believed(site: Site) -> None:
    missed: list[set[str]] = []
    site.book.on_broken = lambda pilots: missed.append(set(pilots))
    site.book.cannot_reach("p-n1")
    reports, commit = _reports(site, step=10), site.commit
    assert commit is not None
    other = reports["n2"].worker_id
    site.say(other, _progress(commit.generation, 50))
    assert site.book.records[site.trainer_id].progress.step == 50  # what is heard is shown
    site.say(
        other, protocol.Interrupted(generation=commit.generation, attempt=1, step=50, reason="x")
    )
    assert missed == [{"p-n1"}]
    assert site.sent == []
    site.book.on_agent_lost("p-n1")
    site.book.reached({"p-n2": offer("n2")})
    assert site.machine.crew.members == (other,) or site.machine.forming is not None


def test_a_trainer_that_was_cancelled_meanwhile_is_not_taken_over(site: Site) -> None:
    reports = _reports(site, step=20)
    site.book.cannot_reach("p-n1")
    site.book.cancel(site.trainer_id, now=True)
    assert site.book.records[site.trainer_id].state is TrainerState.CANCELLED
    site.sent.clear()
    site.book.reports.keep("p-n1", [reports["n1"]])
    site.book.reached({"p-n1": offer("n1"), "p-n2": offer("n2")})
    assert site.sent == [("p-n1", KillWorker(worker_id=reports["n1"].worker_id))]


@pytest.mark.parametrize("has_arrived", [False, True])
def test_what_was_said_on_a_connection_that_broke_is_said_again_if_it_was_lost(
    site: Site, *, has_arrived: bool
) -> None:
    number = 1
    site.book.connection_of = lambda _pilot_id: number
    reports = _reports(site, step=10)
    site.target("n1")  # both are told of a generation without n2
    told = [body for _, message in site.sent if isinstance(message, TellWorker)
            and (body := message.body)["type"] == "Prepare"]  # fmt: skip
    worker = reports["n1"].worker_id
    assert [(body["generation"], body["open_store"]) for body in told] == [(2, True)]
    ready = protocol.Ready(generation=2, attempt=1, store_port=4711)
    report = reports["n1"]
    if has_arrived:
        latest = [*report.latest, protocol.to_body(ready)]
        report = report.model_copy(update={"latest": latest})
    site.sent.clear()
    site.book.reconcile("p-n1", [report])  # its agent repeats its Hello, the connection stands
    prepared = ("p-n1", TellWorker(worker_id=worker, body=told[0]))
    assert prepared not in site.sent
    number = 2
    site.book.reconcile("p-n1", [report])
    site.book.reconcile("p-n1", [report])  # it has been sent on this one
    assert site.sent.count(prepared) == (not has_arrived)


# ---- the daemon starts cut off -----------------------------------------------------------

AWAY = {"p-n1": "n1", "p-n2": "n2"}


def _heir(site: Site, tmp_path: Path, *heard: str, step: int = 900) -> Site:
    """The book of a daemon that starts, which hears these nodes only."""
    heir = Site(tmp_path, site.journal)
    for node in heard:
        heir.book.reports.keep(f"p-{node}", [_reports(site, step=step)[node]])
    away = {pilot_id: node for pilot_id, node in AWAY.items() if node not in heard}
    heir.book.adopt_all({f"p-{node}": offer(node) for node in heard}, away)
    return heir


@pytest.mark.parametrize("heard", [(), ("n2",)])
def test_a_daemon_that_starts_cut_off_takes_a_trainer_over_as_it_is(
    site: Site, tmp_path: Path, heard: tuple[str, ...]
) -> None:
    before, members = site.book.records[site.trainer_id], site.machine.crew.members
    heir = _heir(site, tmp_path, *heard)
    heir.target(*heard)
    _pass(heir, 10_000.0)
    assert heir.book.records[site.trainer_id] == before
    assert set(heir.book.occupancy().training) == {"n1", "n2"}
    assert site.trainer_id in heir.book.occupancy().settled_until_s
    for node in {"n1", "n2"} - set(heard):
        heir.book.reports.keep(f"p-{node}", [_reports(site, step=950)[node]])
    heir.book.reached({f"p-{n}": offer(n) for n in ("n1", "n2")})
    _pass(heir, 1.0)
    assert (set(heir.machine.crew.members), heir.machine.mark.step) == (set(members), 950)
    assert set(heir.machine.plan.targets) == {"n1", "n2"}
    assert heir.machine.forming is None
    assert heir.sent == []


def test_who_does_not_come_back_to_it_is_missed_then(site: Site, tmp_path: Path) -> None:
    heir = _heir(site, tmp_path, "n2")
    heir.book.on_agent_lost("p-n1")
    assert heir.sent == []
    heir.book.reached({"p-n2": offer("n2")})
    forming = heir.machine.forming
    assert forming is not None
    assert len(forming.roster) == 1
    alone = _heir(site, tmp_path)
    for pilot_id in AWAY:
        alone.book.on_agent_lost(pilot_id)
    alone.book.reached({})
    assert alone.book.records[site.trainer_id].state is TrainerState.PARKED


def test_who_was_heard_all_the_time_misses_who_was_lost_without_a_word(site: Site) -> None:
    site.book.cannot_reach("p-n1")
    site.book.on_agent_lost("p-n1")
    site.book.reached({"p-n2": offer("n2")})
    forming = site.machine.forming
    assert forming is not None
    assert len(forming.roster) == 1
