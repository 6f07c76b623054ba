"""What is made of harm records: the report, the journal, the log, the metrics."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bftrainer.api.documents import document, view_of
from bftrainer.daemon.harm import backoff, ledger
from bftrainer.daemon.harm.aftermath import Departure, Unusable
from bftrainer.daemon.harm.backoff import BackOff
from bftrainer.daemon.harm.book import on_our_clock
from bftrainer.daemon.harm.ledger import (
    BUCKETS_S,
    HandOver,
    HarmRecords,
    How,
    Rule,
    Taken,
    Vain,
    Why,
    histogram,
    quantile,
    slow_part,
)
from bftrainer.daemon.harm.monitor import HarmMonitor
from bftrainer.daemon.harm.report import make_report, wilson
from bftrainer.daemon.metrics import (
    MetricSample,
    MetricsRegistry,
    daemon_figures,
    use_figures,
    user_figures,
)
from bftrainer.journal.journal import Journal
from bftrainer.model import canonical
from bftrainer.model.cluster import EndedBy, Job, Node, NodeState
from bftrainer.model.decision import DecisionInput, Memory, PilotView, Plan, Release, Settings
from bftrainer.model.reports import HarmReport, TakenCount, Use, UserAccount
from bftrainer.model.trainer import TrainerState
from bftrainer.model.views import PollingView, RequestCount, StatusView
from bftrainer.site.policy.model import SitePolicy
from tests.support.snapshots import T0, held, pending, record, running, snapshot
from tests.support.snapshots import node as a_node

GOOD = HandOver(
    job_id="7",
    n_nodes=2,
    node="n1",
    pilot_id="p000001",
    how=How.GIVEN_BACK,
    asked_s=T0,
    freed_s=T0 + 0.06,
    precision_s=0.9,
    asked_for="7",
    decision_s=0.002,
    cancel_s=0.018,
    agent_s=0.04,
    epilog_s=0.0,
)
SLOW = replace(GOOD, node="n2", freed_s=T0 + 4.0, epilog_s=3.94)
PREEMPTED = replace(GOOD, job_id="8", node="n3", how=How.PREEMPTED, asked_for="", freed_s=T0 + 0.03)
MUTE = replace(PREEMPTED, node="n4", asked_s=None, cancel_s=None, agent_s=None, epilog_s=None)
VAIN = Vain(
    job_id="9",
    node="n5",
    pilot_id="p000005",
    asked_s=T0,
    settled_s=T0 + 30,
    why=Why.DID_NOT_START,
)
TAKEN = Taken(node="n6", pilot_id="p000006", ended_s=T0, settled_s=T0 + 60, by=EndedBy.CANCELLED)
LEFT = Departure(node="n1", pilot_id="p000001", asked_s=T0, gone_s=T0 + 1.5, precision_s=0.9)
DRAINED = Unusable(
    node="n1",
    state=NodeState.DRAINED,
    reason="Epilog error",
    at_s=T0 + 3.0,
    after_s=3.0,
    job_id="90",
    pilot_id="p000001",
)
ALL = HarmRecords(
    hand_overs=(GOOD, SLOW, PREEMPTED, MUTE),
    vain=(VAIN,),
    taken=(TAKEN,),
    left=(LEFT, replace(LEFT, asked_s=None), replace(LEFT, gone_s=T0 + 2.5), LEFT),
    unusable=(DRAINED, replace(DRAINED, job_id="7", pilot_id="")),
    ordinary_left=20,
)


def test_the_report_adds_up() -> None:
    found = make_report([ALL, HarmRecords()], BackOff(), Rule(), since_s=T0, until_s=T0 + 1800)
    assert (found.hand_overs, found.jobs, found.measured) == (4, 2, 3)
    assert (found.given_back, found.preempted, found.preempted_jobs) == (2, 2, 1)
    assert (found.share_preempted, found.preempted_jobs_per_hour) == (0.5, 2.0)
    assert (found.in_vain, found.share_in_vain, found.in_vain_per_hour) == (1, 1 / 3, 2.0)
    assert {v.why: v.nodes for v in found.vain}["did-not-start"] == 1
    assert found.taken == 1
    assert found.taken_by == (TakenCount(by="cancelled", pilots=1),)
    assert (found.share_within, found.is_kept) == (2 / 3, False)
    assert found.median_s == pytest.approx(0.06)
    assert found.p95_s == found.max_s == pytest.approx(4.0)
    assert sum(bar.count for bar in found.histogram) == found.measured
    assert [w.node for w in found.worst] == ["n2", "n1", "n3", "n4"]
    assert "epilog took 3.94 s" in found.worst[0].reason
    assert view_of(HarmReport, "harm", json.loads(json.dumps(document("harm", found)))) == found


def test_what_nodes_do_after_pilots_stands_beside_what_they_do_after_ordinary_jobs() -> None:
    """Intervals: Wilson's as R's prop.test(correct=FALSE), Newcombe's of them by hand."""
    found = make_report([ALL], BackOff(), Rule(), since_s=T0, until_s=T0 + 1800).leavings
    assert (found.measured, found.median_s, found.p95_s, found.max_s) == (3, 1.5, 2.5, 2.5)
    assert found.precision_s == 0.9
    ours, theirs = found.by_pilots, found.by_jobs
    assert (ours.unusable, ours.left, ours.share) == (1, 4, 0.25)
    assert (ours.low, ours.high) == pytest.approx((0.0456, 0.6994), abs=1e-4)
    assert (theirs.unusable, theirs.left, theirs.share) == (1, 20, 0.05)
    assert (theirs.low, theirs.high) == pytest.approx((0.0089, 0.2361), abs=1e-4)
    assert found.excess == pytest.approx(0.2)
    assert (found.excess_low, found.excess_high) == pytest.approx((-0.0764, 0.6513), abs=1e-4)
    assert [(one.node, one.reason, one.pilot_id) for one in found.nodes] == [
        ("n1", "Epilog error", "p000001"),
        ("n1", "Epilog error", ""),
    ]
    assert wilson(0, 0) is None
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)


def test_records_of_earlier_releases_have_none_of_it(tmp_path: Path) -> None:
    """And while there is none, records are written as those releases do."""
    told = canonical.to_plain(HarmRecords(hand_overs=(GOOD,)))
    assert isinstance(told, dict)
    assert not {"left", "unusable", "ordinary_left"} & told.keys()
    assert canonical.from_plain(told, HarmRecords) == HarmRecords(hand_overs=(GOOD,))


def test_nothing_to_report() -> None:
    found = make_report([], BackOff(level=1, base_nodes=4), Rule(), since_s=T0, until_s=T0)
    assert (found.share_within, found.is_kept, found.worst) == (None, True, ())
    assert found.share_in_vain is found.preempted_jobs_per_hour is None
    assert found.back_off.startswith("bftrainer backs off")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"decision_s": 0.5}, "Our decision took 0.50 s."),
        ({"cancel_s": 0.5}, "The agent received our order after 0.50 s."),
        (
            {"cancel_s": 0.5, "how": How.PREEMPTED},
            "The agent received the batch system's signal after 0.50 s",
        ),
        ({"agent_s": 0.5}, "The agent took 0.50 s to leave."),
        ({"epilog_s": 0.5}, "The batch system's epilog took 0.50 s."),
        ({"agent_s": None}, "The agent did not report"),
        ({"asked_s": None}, "The batch system ended the pilot and its agent did not report."),
    ],
)
def test_the_slow_part_is_named(changes: dict[str, object], says: str) -> None:
    assert slow_part(replace(GOOD, **changes)).startswith(says)  # type: ignore[arg-type]  # table


def test_bars_and_quantiles() -> None:
    bars = histogram([0.05, 0.051, 61.0])
    assert [b.count for b in bars][:2] == [1, 1]
    assert (bars[-1].at_most_s, bars[-1].count) == (None, 1)
    assert len(bars) == len(BUCKETS_S) + 1
    assert quantile([], 0.5) is None
    assert [quantile([3.0, 1.0, 2.0, 4.0], q) for q in (0.0, 0.5, 0.51, 1.0)] == [
        1.0,
        2.0,
        3.0,
        4.0,
    ]


# ---- the monitor ------------------------------------------------------------------------


@dataclass
class Said:
    """An agent's last words."""

    reason: str = "told"
    told_s: float | None = None
    left_s: float | None = None


@pytest.mark.parametrize(
    ("said", "told_and_left"),
    [
        (Said(told_s=T0 - 0.5, left_s=T0 - 0.4), (T0 - 0.5, T0 - 0.4)),
        (Said(told_s=T0 - 90.5, left_s=T0 - 90.0), (T0 - 0.5, T0)),  # its clock is late
        (Said(told_s=T0 + 89.5, left_s=T0 + 90.0), (T0 - 0.5, T0)),  # its clock is early
        (Said(), (T0, T0)),
    ],
    ids=["right", "late", "early", "silent"],
)
def test_last_words_are_put_on_our_clock(said: Said, told_and_left: tuple[float, float]) -> None:
    assert on_our_clock(said, T0) == told_and_left


@dataclass(slots=True)
class Site:
    """A monitor with a real journal and a clock that a test turns."""

    path: Path
    now_s: float = T0
    settled: list[HarmRecords] = field(default_factory=list)

    def open(self, journal: Journal, **policy: float) -> HarmMonitor:
        return HarmMonitor(journal, SitePolicy(**policy), lambda: self.now_s, self.settled.append)  # type: ignore[arg-type]  # numbers

    def hands_over(self, monitor: HarmMonitor, node: str, delay_s: float) -> None:
        """One node, given back for a job and taken by it."""
        job, pilots = pending("7", 1), held(node)
        nodes = [a_node(node)]
        self._decide(monitor, nodes, [job], pilots, is_released=True)
        asked_s = self.now_s
        self.now_s = asked_s + delay_s
        monitor.left(f"p-{node}", node, Said(told_s=asked_s, left_s=self.now_s))
        taken = running("7", node, start_s=self.now_s)
        self._decide(monitor, nodes, [taken], (), is_released=False)

    def _decide(
        self,
        monitor: HarmMonitor,
        nodes: Sequence[Node],
        jobs: Sequence[Job],
        pilots: tuple[PilotView, ...],
        *,
        is_released: bool,
    ) -> None:
        given = DecisionInput(
            now_s=self.now_s,
            snapshot=snapshot(nodes, jobs, at_s=self.now_s),
            is_new_snapshot=True,
            pilots=pilots,
            trainers=(),
            settings=Settings(),
            memory=Memory(),
        )
        releases = tuple(
            Release(pilot_id=p.pilot_id, node=p.node, reason="", for_job="7")
            for p in pilots
            if is_released
        )
        plan = Plan(
            assignment={},
            claims=(),
            releases=releases,
            pool=(),
            not_used={},
            reserve=(),
            allocation=None,
            memory=Memory(held_off={p.node: self.now_s for p in pilots}),
        )
        monitor.decided(given, plan, 0.001)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "journal.db")


def test_violations_lead_to_levels_that_survive_a_restart_and_go_again(
    site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("bftrainer"), "propagate", True)
    settings = Settings()
    with Journal.open(site.path, clock=lambda: site.now_s) as journal:
        journal.begin_incarnation()
        monitor = site.open(journal, harm_slo_s=0.5, harm_quiet_s=100.0)
        assert monitor.applied(settings) is settings
        for number in range(3):
            site.hands_over(monitor, f"n{number}", 2.0)
        assert "bftrainer backs off (level 1 of 5)" in caplog.text
        assert "job 7 got n2 after 2.00 s: The agent took 2.00 s to leave." in caplog.text
        assert monitor.applied(settings).reserve_extra_nodes == 1
        assert len(list(journal.entries(ledger.KIND))) == 3
        assert len(list(journal.entries(backoff.KIND))) == 1
    with Journal.open(site.path, clock=lambda: site.now_s) as journal:  # a daemon's heir
        journal.begin_incarnation()
        monitor = site.open(journal, harm_slo_s=0.5, harm_quiet_s=100.0)
        assert monitor.report(None).hand_overs == 3
        assert monitor.report(site.now_s - 0.5).hand_overs == 1
        assert monitor.applied(settings).reserve_extra_nodes == 1
        site.hands_over(monitor, "n9", 0.1)
        site.now_s += 101.0
        assert monitor.applied(settings) is settings
        assert "no longer backs off" in caplog.text
        assert len(list(journal.entries(backoff.KIND))) == 2
    assert sum(len(s.hand_overs) for s in site.settled) == 4


def test_the_rest_of_a_node_survives_a_restart_and_begins_when_it_is_usable(
    site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("bftrainer"), "propagate", True)
    bad = a_node("n1", NodeState.DRAINED, reason="Epilog error \x1b[31m")
    job = replace(running("90", "n1"), pilot_id="p-n1")
    with Journal.open(site.path, clock=lambda: site.now_s) as journal:
        journal.begin_incarnation()
        monitor = site.open(journal, quarantine_s=1.0)
        site._decide(monitor, [a_node("n1")], [job], held("n1"), is_released=True)
        site.now_s += 2.0
        site._decide(monitor, [bad], [], (), is_released=False)
        assert monitor.cooling(site.now_s)["n1"].until_s == site.now_s + 60.0
        assert "BFT-1334 n1 is drained (Epilog error ) 2 s after its release" in caplog.text
        assert "\x1b" not in caplog.text
        assert monitor.report(None).leavings.by_pilots.unusable == 1
    with Journal.open(site.path, clock=lambda: site.now_s) as journal:  # a daemon's heir
        journal.begin_incarnation()
        monitor = site.open(journal, quarantine_s=1.0)
        site.now_s += 500.0  # the administrator sleeps
        site._decide(monitor, [bad], [], (), is_released=False)
        assert (
            monitor.cooling(site.now_s + 59.0)["n1"]
            .sentence(site.now_s)
            .startswith(
                "BFT-1334: It gets no pilot for 60 s more: once it was unusable soon after a pilot,"
            )
        )
        assert monitor.cooling(site.now_s + 61.0) == {}


# ---- metrics ----------------------------------------------------------------------------


def samples(text: str) -> dict[tuple[str, str], float]:
    """Parse Prometheus' text format as Prometheus does."""
    return {
        (s.name, ",".join(s.labels.values())): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def test_metrics_count_lost_cycles_by_job() -> None:
    """Job 8 lost one on two nodes, job 9 on one; job 7 was given its node in time."""
    metrics = MetricsRegistry()
    assert samples(metrics.text())["bftrainer_cycles_lost_total", ""] == 0.0
    lost = replace(PREEMPTED, start_s=T0 + 30.0)
    others = (replace(lost, node="n4"), replace(lost, job_id="9", start_s=T0 + 25.0))
    metrics.settled(HarmRecords(hand_overs=(GOOD, lost, *others)), 1.0)
    found = samples(metrics.text())
    assert found["bftrainer_cycles_lost_total", ""] == 2.0
    assert found["bftrainer_cycle_seconds_lost_total", ""] == 55.0
    assert found["bftrainer_hand_overs_late_total", ""] == 3.0
    assert found["bftrainer_hand_over_seconds_bucket", "preempted,10.0"] == 0.0
    assert found["bftrainer_hand_over_seconds_sum", "preempted"] == 85.0


def test_metrics_say_what_was_settled() -> None:
    metrics = MetricsRegistry()
    before = samples(metrics.text())
    assert before["bftrainer_vain_give_backs_total", "did-not-start"] == 0.0
    assert before["bftrainer_hand_over_seconds_count", "preempted"] == 0.0
    metrics.settled(ALL, 1.0)
    metrics.decided(0.003)
    metrics.polled(0.2)
    found = samples(metrics.text())
    assert found["bftrainer_hand_over_seconds_count", "given-back"] == 2.0
    assert found["bftrainer_hand_over_seconds_bucket", "given-back,1.0"] == 1.0
    assert found["bftrainer_hand_overs_unmeasured_total", ""] == 1.0
    assert found["bftrainer_hand_overs_late_total", ""] == 1.0
    assert found["bftrainer_vain_give_backs_total", "did-not-start"] == 1.0
    assert found["bftrainer_preemptions_total", ""] == 2.0
    assert found["bftrainer_pilots_taken_total", ""] == 1.0
    assert found["bftrainer_decision_seconds_sum", ""] == 0.003
    assert found["bftrainer_poll_seconds_sum", ""] == 0.2
    for what in ("poll", "decision"):  # as of a daemon that has begun and is stuck
        assert before[f"bftrainer_last_{what}_timestamp_seconds", ""] == 0.0
        assert found[f"bftrainer_last_{what}_timestamp_seconds", ""] > T0
    assert before["bftrainer_nodes_left_unusable_total", "pilot"] == 0.0
    assert found["bftrainer_nodes_left_unusable_total", "pilot"] == 1.0
    assert found["bftrainer_nodes_left_unusable_total", "job"] == 1.0
    assert found["bftrainer_nodes_left_total", "pilot"] == 4.0
    assert found["bftrainer_nodes_left_total", "job"] == 20.0
    assert found["bftrainer_process_free_seconds_count", ""] == 3.0
    assert not [name for name, _ in found if name.endswith("_created")]


def test_a_source_is_asked_at_every_scrape() -> None:
    metrics, value = MetricsRegistry(), [1.0]
    metrics.add(lambda: [MetricSample(name="bftrainer_x_seconds", meaning="X.", value=value[0])])
    assert samples(metrics.text())["bftrainer_x_seconds", ""] == 1.0
    value[0] = 2.0
    assert samples(metrics.text())["bftrainer_x_seconds", ""] == 2.0


def test_the_daemons_figures_are_counters_and_gauges() -> None:
    polling = PollingView(
        mode="hook",
        interval_s=20.0,
        requests_per_minute=12,
        total_per_minute=130,
        requests_last_minute=6,
        looks=3,
        called_looks=1,
        last_look_s=0.02,
        requests=(RequestCount(kind="nodes", total=40), RequestCount(kind="jobs", total=41)),
    )
    status = StatusView(
        incarnation=1,
        pid=2,
        started_s=T0,
        batch_system="slurm",
        observed="present",
        failures=(),
        policy_hash="",
        nodes_total=8,
        nodes_idle=3,
        nodes_held=4,
        nodes_requested=1,
        decisions=5,
        last_decision_ms=1.0,
        last_decision_s=None,
        rescales=6,
        give_backs=7,
        preemptions=0,
        trainers=(),
        polling=polling,
    )
    metrics = MetricsRegistry()
    values = {"nodes_pool": 5, "pauses_total": 6, "pause_seconds_total": 0.6, "back_off_level": 2}
    metrics.add(lambda: daemon_figures(status, values, {"malformed": 3}))
    found = samples(metrics.text())
    assert found["bftrainer_nodes_held", ""] == 4.0
    assert found["bftrainer_nodes_pool", ""] == 5.0
    assert found["bftrainer_controller_requests_total", "jobs"] == 41.0
    assert found["bftrainer_controller_requests_allowed_per_second", ""] == 130 / 60
    assert found["bftrainer_pause_seconds_total", ""] == 0.6
    assert found["bftrainer_back_off_level", ""] == 2.0
    assert found["bftrainer_trainers", "running"] == 0.0
    assert found["bftrainer_refused_total", "malformed"] == 3.0
    assert found["bftrainer_refused_total", "stranger"] == 0.0
    assert "# TYPE bftrainer_rescales_total counter" in metrics.text()
    assert "# TYPE bftrainer_nodes_held gauge" in metrics.text()


def test_the_time_of_nodes_is_told_by_use_and_of_users_by_account() -> None:
    """Labels as Slurm names them, so that its metrics of the same users can be joined."""
    ada, bob = ("ada", "physics"), ("bob", "")
    used_s: dict[tuple[UserAccount, Use], float] = {
        (ada, "trained_s"): 90.0, (ada, "warm_up_s"): 10.0, (bob, "trained_s"): 5.0
    }  # fmt: skip
    one = record("t1")
    trainers = [
        replace(one, spec=replace(one.spec, user=user, account=account), state=state)
        for (user, account), state in (
            (ada, TrainerState.RUNNING), (bob, TrainerState.QUEUED), (bob, TrainerState.FINISHED)
        )
    ]  # fmt: skip
    metrics = MetricsRegistry()
    metrics.add(lambda: use_figures(used_s))
    metrics.add(lambda: user_figures(trainers, {ada: 3}, used_s, {bob: 7}))
    found = samples(metrics.text())
    assert {value: found["bftrainer_node_seconds_total", value] for value in
            ("trained", "redone", "warm-up", "idle")} == {
        "trained": 95.0, "redone": 0.0, "warm-up": 10.0, "idle": 0.0
    }  # fmt: skip
    assert {key: value for key, value in found.items() if "user" in key[0]} == {
        ("bftrainer_user_trainers", "physics,running,ada"): 1.0,
        ("bftrainer_user_trainers", ",queued,bob"): 1.0,
        ("bftrainer_user_nodes_training", "physics,ada"): 3.0,
        ("bftrainer_user_node_seconds_total", "physics,trained,ada"): 90.0,
        ("bftrainer_user_node_seconds_total", "physics,warm-up,ada"): 10.0,
        ("bftrainer_user_node_seconds_total", ",trained,bob"): 5.0,
        ("bftrainer_user_steps_lost_total", ",bob"): 7.0,
    }
    assert 'bftrainer_user_nodes_training{account="physics",username="ada"} 3.0' in metrics.text()
