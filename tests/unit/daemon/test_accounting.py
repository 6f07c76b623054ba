"""Node-hours: what is counted, how it is kept, how it is summed up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from bftrainer.batch.batch_system import PilotObservation
from bftrainer.batch.local.adapter import create
from bftrainer.cli.main import main
from bftrainer.daemon import accountant
from bftrainer.daemon.account_report import make_report
from bftrainer.daemon.accountant import Accountant
from bftrainer.daemon.accounts import ADDED, Sums, add, days, read
from bftrainer.daemon.decider import Observed
from bftrainer.fleet.pilots.pilots import SIGNAL, Pilot, PilotBook
from bftrainer.fleet.trainers.occupancy import Occupancy
from bftrainer.journal import tables
from bftrainer.journal.journal import Journal
from bftrainer.model.cluster import EndedBy, NodeState, Presence
from bftrainer.model.decision import Claim, Memory, Release
from bftrainer.model.parts import NodePart
from bftrainer.model.reports import Asked, NodeTime, Whose, day_of
from bftrainer.model.trainer import TrainerProgress
from bftrainer.site.policy.model import SitePolicy
from tests.support.snapshots import T0, node, record, snapshot

BERLIN = "Europe/Berlin"
DAY_S = 86_400.0


class Site:
    """A daemon's books, a clock and a pilot on n1, set by the test."""

    def __init__(self, path: Path) -> None:
        self.now_s, self.path = T0, path
        self.policy = SitePolicy(time_zone="UTC", journal_days=30)
        self.training: dict[str, str] = {}
        self.seen = Observed(snapshot=snapshot([node("n1", NodeState.ALLOCATED)], []))
        spec = replace(record("t1").spec, user="ada", account="physics")
        self.records = {"t1": replace(record("t1"), spec=spec)}
        self.start()

    def start(self) -> None:
        """Begin as a daemon does after another one."""
        self.journal = Journal.open(self.path, clock=lambda: self.now_s)
        self.journal.begin_incarnation()
        system = create({"socket": self.path.with_name("none")})
        self.pilots = PilotBook(self.journal, system, "root", lambda: self.now_s)
        self.accountant = Accountant(
            journal=self.journal,
            pilots=self.pilots,
            trainers=self,
            seen=self.seen,
            clock=lambda: self.now_s,
            policy=lambda: self.policy,
        )

    def occupancy(self) -> Occupancy:
        return Occupancy(training=self.training)

    def open(
        self, pilot_id: str, *, starts_s: float | None = None, part: NodePart | None = None
    ) -> Pilot:
        """Request a pilot for t1, which the batch system starts at once."""
        node = part.name if part else "n1"
        claim = Claim(node=node, time_limit_s=3600.0, for_trainer="t1", part=part)
        pilot = self.pilots.open(pilot_id, claim, "key")
        self.pilots.write_down([pilot.record])
        pilot.is_written = True
        self.pilots.launched(pilot, pilot_id[1:].lstrip("0"))
        pilot.start_s = self.now_s if starts_s is None else starts_s
        self.seen.memory = Memory(assignment={node: "t1"})
        return pilot

    def passes(self, seconds: float, *, trains: bool = False) -> None:
        self.now_s += seconds
        self.training = {"n1": "t1"} if trains else {}
        self.accountant.look()

    def total(self) -> NodeTime:
        return sum(self.accountant.sums.values(), NodeTime())


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path / "journal.db")
    yield site
    site.journal.close()


def test_the_time_of_a_pilot_is_split_by_what_it_did(site: Site) -> None:
    site.open("p000001")
    site.passes(0.0)
    site.passes(4.0)  # the agent and the worker start
    site.passes(100.0, trains=True)
    site.seen.memory = Memory()
    site.passes(6.0)  # its trainer lost it
    site.pilots.end("p000001", "")
    site.passes(0.0)
    assert site.total() == NodeTime(warm_up_s=4.0, trained_s=100.0, idle_s=6.0, pilots=1)
    whose = Whose(day=day_of(T0, "UTC"), user="ada", account="physics", trainer_id="t1")
    assert list(site.accountant.sums) == [whose]
    ada = ("ada", "physics")
    used_s = {(ada, "warm_up_s"): 4.0, (ada, "trained_s"): 100.0, (ada, "idle_s"): 6.0}
    assert site.accountant.used_s == used_s


def part_of(name: str, gpus: int) -> NodePart:
    return NodePart(name=name, node="n1", gpu_type="gpu:a100", gpus=gpus, cores=8, memory_mb=0)


def test_parts_of_a_node_count_by_their_gpus(site: Site) -> None:
    eight = node("n1", NodeState.ALLOCATED, node_type="gpu:a100:8", gpus=8)
    site.seen.snapshot = snapshot([eight], [])
    opened = []
    for pilot_id, part in (("p000001", part_of("n1/0", 2)), ("p000002", part_of("n1/1", 1))):
        pilot = site.open(pilot_id, part=part)
        pilot.record = replace(pilot.record, part=part)  # as ``PilotBook.open`` keeps it
        opened.append(pilot_id)
    site.passes(0.0)
    site.now_s += 1000.0
    site.training = {"n1/0": "t1"}
    site.accountant.look()
    site.seen.snapshot = snapshot([], [])  # the node is gone for a while: as before
    site.passes(1000.0)
    for pilot_id in opened:
        site.pilots.end(pilot_id, "")
    site.passes(0.0)
    report = make_report(
        site.accountant.sums.items(), Asked(), site.policy, since_s=T0, until_s=site.now_s
    )
    assert site.total().trained_s == pytest.approx(1000.0 * 2 / 8)
    assert report.total.harvested_h == pytest.approx(2000.0 * 3 / 8 / 3600.0)
    assert report.total.gpu_h == pytest.approx(2000.0 * 3 / 3600.0)
    assert report.total.pilots == 2


def test_all_gpus_of_a_node_count_where_it_is_held_whole(site: Site) -> None:
    four = node("n1", NodeState.ALLOCATED, node_type="gpu:a100:2,gpu:h100:2", gpus=4)
    site.seen.snapshot = snapshot([four], [])
    site.open("p000001")
    site.passes(0.0)
    site.passes(3600.0, trains=True)
    report = make_report(
        site.accountant.sums.items(), Asked(), site.policy, since_s=T0, until_s=site.now_s
    )
    assert (report.total.harvested_h, report.total.gpu_h) == (1.0, 4.0)


def test_steps_made_before_are_work_done_again(site: Site) -> None:
    def at(samples: int) -> None:
        record = site.records["t1"]
        site.records["t1"] = replace(record, progress=TrainerProgress(samples=samples))

    site.open("p000001")
    at(5000)
    site.passes(50.0, trains=True)
    at(4000)  # it goes on from its checkpoint
    site.passes(10.0, trains=True)
    at(5000)
    site.passes(20.0, trains=True)
    assert site.total() == NodeTime(trained_s=70.0, redone_s=10.0)


def test_a_start_that_is_seen_late_counts_from_the_start(site: Site) -> None:
    pilot = site.open("p000001")
    pilot.start_s = None
    site.pilots.agent_came("p000001")  # before any poll showed it running
    site.passes(10.0, trains=True)
    pilot.start_s = T0 - 3.0
    site.passes(1.0, trains=True)
    assert site.total() == NodeTime(trained_s=11.0, warm_up_s=3.0)


def test_what_is_left_of_the_limit_is_given_back_to_an_ordinary_job(site: Site) -> None:
    site.open("p000001")
    site.passes(600.0, trains=True)
    goes = Release(pilot_id="p000001", node="n1", reason="", for_job="8")
    site.pilots.release([goes])
    site.pilots.agent_left("p000001", "told")
    site.now_s += 5.0  # until a poll shows that it is gone
    site.pilots.end("p000001", "")
    site.passes(0.0)
    assert site.total() == NodeTime(trained_s=600.0, returned_s=3000.0, pilots=1, given_back=1)


@pytest.mark.parametrize(
    ("ended_by", "farewell", "is_preempted"),
    [
        (EndedBy.PREEMPTED, SIGNAL, True),
        (EndedBy.PREEMPTED, "disconnected", True),
        (EndedBy.CANCELLED, SIGNAL, False),
        (EndedBy.UNKNOWN, SIGNAL, True),  # the batch system has forgotten it
        (EndedBy.UNKNOWN, "disconnected", False),
    ],
)
def test_who_ended_a_pilot_is_what_the_batch_system_says(
    site: Site, ended_by: EndedBy, farewell: str, *, is_preempted: bool
) -> None:
    site.open("p000001")
    site.passes(600.0, trains=True)
    site.pilots.agent_left("p000001", farewell)
    site.pilots.end("p000001", "")
    said = PilotObservation(presence=Presence.ABSENT, ended_by=ended_by)
    site.accountant.heard("p000001", said)
    site.accountant.heard("p000001", said)  # once
    rest_s = 3000.0 if is_preempted else 0.0
    expected = NodeTime(trained_s=600.0, pilots=1, preempted=int(is_preempted), returned_s=rest_s)
    assert site.total() == expected


def test_the_next_daemon_counts_on_from_where_the_last_one_wrote(site: Site) -> None:
    site.open("p000001")
    site.passes(50.0, trains=True)
    site.accountant.close()
    site.journal.close()
    site.now_s += 30.0  # no daemon; the trainer goes on
    site.start()
    site.pilots.pilots["p000001"].start_s = T0
    site.passes(20.0, trains=True)
    assert site.total() == NodeTime(trained_s=100.0)


def test_a_daemon_that_is_killed_loses_nothing_of_pilots_that_go_on(site: Site) -> None:
    site.open("p000001")
    site.passes(accountant.WRITTEN_EVERY_S + 1.0, trains=True)  # written
    site.passes(100.0, trains=True)  # not written
    site.journal.close()
    site.start()
    site.pilots.pilots["p000001"].start_s = T0
    site.passes(1.0, trains=True)
    assert site.total().trained_s == pytest.approx(accountant.WRITTEN_EVERY_S + 102.0)


def test_a_pilot_that_ended_without_a_daemon_counts_until_its_end(site: Site) -> None:
    site.open("p000001")
    site.passes(50.0, trains=True)
    site.accountant.close()
    site.journal.close()
    site.now_s += 500.0
    had = (("w1", "p000001"),)
    site.records["t1"] = replace(site.records["t1"], workers=had)
    site.start()
    site.pilots.observe(snapshot([], []), T0 + 500.0)
    site.accountant.heard(
        "p000001",
        PilotObservation(
            presence=Presence.ABSENT, start_s=T0, end_s=T0 + 80.0, ended_by=EndedBy.TIME_LIMIT
        ),
    )
    assert site.total() == NodeTime(trained_s=80.0, pilots=1)
    assert {whose.user for whose in site.accountant.sums} == {"ada"}


def test_a_clock_that_jumps_counts_no_more_than_a_pilot_may_take(site: Site) -> None:
    site.open("p000001")
    site.passes(365 * DAY_S, trains=True)
    assert site.total().harvested_s == 3600.0 + accountant.OVERTIME_S


def test_days_are_the_sites_and_have_23_to_25_hours() -> None:
    def at(text: str) -> float:
        return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(BERLIN)).timestamp()

    begin_s = at("2026-10-24T22:00")
    found = list(days(begin_s, at("2026-10-26T01:00"), BERLIN))
    assert found == [
        ("2026-10-24", 2 * 3600.0),
        ("2026-10-25", 25 * 3600.0),
        ("2026-10-26", 3600.0),
    ]
    assert list(days(5.0, 5.0, BERLIN)) == []
    assert day_of(at("2026-03-29T00:30"), "UTC") == "2026-03-28"


def test_entries_that_go_take_nothing_from_old_sums(site: Site) -> None:
    """The journal keeps two days; only trainers are not told apart any more."""
    site.policy = replace_policy(site.policy, journal_days=2)
    for day in range(8):
        site.open(f"p{day + 1:06d}")
        site.passes(1000.0, trains=True)
        site.pilots.end(f"p{day + 1:06d}", "")
        site.now_s = T0 + (day + 1) * DAY_S
        site.accountant.close()
        site.journal.checkpoint(site.now_s - 2 * DAY_S)
    assert site.journal.compact(2 * DAY_S) > 0
    first = next(site.journal.entries()).at_s
    assert first > T0 + 4 * DAY_S
    kept = read(site.journal, site.now_s)
    assert kept.since_s == T0
    assert sum(used.trained_s for used in kept.sums.values()) == 8 * 1000.0
    assert {whose.day for whose in kept.sums} == {day_of(T0 + d * DAY_S, "UTC") for d in range(8)}
    assert {whose.trainer_id for whose in kept.sums} == {"", "t1"}
    assert site.journal.compact(0.0) > 0  # not even by hand
    assert read(site.journal, site.now_s).sums == kept.sums


def replace_policy(policy: SitePolicy, **changes: object) -> SitePolicy:
    return SitePolicy(**{**policy.model_dump(), **changes})


def test_all_sums_are_written_again_before_a_start_would_read_too_much(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accountant, "MOST_ENTRIES", 3)
    site.open("p000001")
    for _ in range(9):
        site.passes(accountant.WRITTEN_EVERY_S + 1.0, trains=True)
    kinds = [entry.kind for entry in site.journal.entries()]
    assert kinds.count(tables.ACCOUNT_SUMS) == 3  # the first, and after three entries each
    assert kinds.count(ADDED) == 6
    assert read(site.journal, site.now_s).entries <= 3
    assert sum((t.trained_s for t in read(site.journal, site.now_s).sums.values()), 0.0) == (
        pytest.approx(9 * (accountant.WRITTEN_EVERY_S + 1.0))
    )


def test_compacting_by_hand_sums_up_first(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.open("p000001")
    site.passes(1000.0, trains=True)
    site.accountant.close()
    before = read(site.journal, site.now_s)
    site.journal.close()
    argv = ["journal", "compact", "--state-dir", str(site.path.parent), "--days", "0"]
    assert main(argv) == 0
    assert "entries were removed" in capsys.readouterr().out
    site.start()
    first, second = [entry.kind for entry in site.journal.entries()][:2]
    assert (first, second) == ("checkpoint", tables.ACCOUNT_SUMS)
    after = read(site.journal, site.now_s)
    assert (after.sums, after.since_s) == (before.sums, before.since_s)


def test_a_journal_from_before_the_accounting_says_from_when_it_counts(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal.db", clock=lambda: T0) as journal:
        journal.begin_incarnation()
        assert read(journal, T0 + 5.0).since_s == T0 + 5.0
        assert read(journal, T0 + 5.0).sums == {}


SUMS: Sums = {}
for _user, _day, _type, _hours in (
    ("ada", "2026-11-23", "cpu", 1.0),
    ("ada", "2026-11-24", "gpu", 2.0),
    ("bob", "2026-11-24", "cpu", 4.0),
):
    _whose = Whose(day=_day, user=_user, account="x", trainer_id="t1", node_type=_type)
    add(SUMS, _whose, NodeTime(trained_s=2700.0 * _hours, idle_s=900.0 * _hours))
WATTS = {"cpu": 300.0, "gpu": 1500.0}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (Asked(), [("ada", "", 3.0), ("bob", "", 4.0)]),
        (Asked(by=("day",)), [("", "2026-11-23", 1.0), ("", "2026-11-24", 6.0)]),
        (Asked(by=("user", "day"), since="2026-11-24"), [
            ("ada", "2026-11-24", 2.0), ("bob", "2026-11-24", 4.0),
        ]),
        (Asked(until="2026-11-23"), [("ada", "", 1.0)]),
        (Asked(user="bob"), [("bob", "", 4.0)]),
        (Asked(user="eve"), []),
    ],
)  # fmt: skip
def test_lines_are_told_apart_as_asked(
    asked: Asked, expected: list[tuple[str, str, float]]
) -> None:
    policy = SitePolicy(time_zone="UTC")
    until_s = datetime(2026, 11, 24, 12, tzinfo=ZoneInfo("UTC")).timestamp()
    report = make_report(SUMS.items(), asked, policy, since_s=0.0, until_s=until_s)
    assert [(line.user, line.day, line.harvested_h) for line in report.lines] == expected
    assert report.total.harvested_h == sum(hours for _, _, hours in expected)
    assert report.total.lost_h == pytest.approx(report.total.harvested_h / 4)
    assert report.until == (asked.until or "2026-11-24")


def test_energy_is_only_shown_where_every_type_is_known() -> None:
    def energy(watts: dict[str, float]) -> list[float | None]:
        policy = SitePolicy(time_zone="UTC", watts_per_node_type=watts)
        report = make_report(SUMS.items(), Asked(), policy, since_s=0.0, until_s=2e9)
        return [*(line.energy_kwh for line in report.lines), report.total.energy_kwh]

    assert energy(WATTS) == [pytest.approx(3.3), pytest.approx(1.2), pytest.approx(4.5)]
    assert energy({"cpu": 300.0}) == [None, pytest.approx(1.2), None]
    assert energy({}) == [None, None, None]


def test_a_pilot_that_never_started_is_not_counted(site: Site) -> None:
    site.open("p000001").start_s = None
    site.passes(30.0)
    site.pilots.end("p000001", "refused")
    site.passes(30.0)
    assert site.accountant.sums == {}
