"""The pure parts of the zero-harm and controller benchmarks: pairing, oracle, verdict."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from _bench.zero_harm import cycles, idle, journal, program, report, verdict
from _bench.zero_harm.arm import Stage
from _bench.zero_harm.cells import CELLS, TIER
from _bench.zero_harm.compare import Draw, compare, late, overtaken, refused_beside
from _bench.zero_harm.runs import JobOutcome, NodeSpan, PlanSeen, Run, Shelf, Sidecar, length_s

from bftrainer.journal.projection import JournalEntry, PilotRecord, PilotState

NODES = ("n1", "n2")
RULES = idle.Rules(reserve=0, shortest_gap_s=0.0, start_s=1.0)


def job(number: int, at_s: float, start_s: float, end_s: float, *nodes: str) -> JobOutcome:
    return JobOutcome(
        number=number,
        n_nodes=len(nodes),
        planned_s=at_s,
        submitted_s=at_s,
        job_id=str(number),
        started_s=start_s,
        ended_s=end_s,
        nodes=nodes,
    )


def run(*jobs: JobOutcome, name: str = "A", sidecar: Sidecar | None = None) -> Run:
    return Run(
        name=name,
        nodes=NODES,
        bf_interval_s=30,
        jobs=jobs,
        cycles_s=(-15.0, 15.0, 45.0, 75.0),
        cpu_share=0.1,
        sidecar=sidecar,
    )


def starting(*starts_s: float, name: str = "A") -> Run:
    return run(*(job(i, 0.0, s, s + 1.0, "n1") for i, s in enumerate(starts_s)), name=name)


# ---- which runs ----------------------------------------------------------------------


def test_equal_settings_share_controls_and_kinds_take_turns() -> None:
    names = [p.name for p in program.all_runs(CELLS, 1)]
    assert len(set(names)) == len(names) == 3 * 3 + 4 * 2 + 2 * 3  # controls; B; grace, defer
    assert names[:2] == ["tier-bf30 A", "qos-bf30 A"]
    assert names.index("tier-bf30 B tier") < names.index("tier-bf30 A2")
    fewer = {p.name for p in program.all_runs(CELLS, 0)}
    assert set(names[: len(fewer)]) == fewer
    tier, polling = CELLS[0], CELLS[3]
    assert program.controls(tier, 1) == program.controls(polling, 1)
    assert [p.jitter for p in program.runs(tier, 2)] == [0, 1, 2]


def test_a_run_kept_is_not_made_and_one_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    shelf, said = Shelf(tmp_path), list[str]()
    stage = Stage(
        jobs=(), n_nodes=1, deadline_s=1.0, ticks="", keep=Path("/proc/none"), say=said.append
    )
    kept = program.Planned(settings=TIER)
    shelf.put(run(name=kept.name))
    assert list(program.make(stage, [kept], shelf, 1)) == []
    assert said == ["tier-bf30 A: kept from an earlier call"]


# ---- pairing -------------------------------------------------------------------------


def test_what_the_controls_show_as_well_is_not_harm() -> None:
    a, again = starting(1.0, 2.0, 30.0), starting(1.0, 2.0, 60.0)
    found = compare([Draw(controls=[a, again], runs=[starting(1.0, 2.0, 60.0, name="B")])])
    assert found.harm.added.max_s == found.control.added.max_s == 30.0
    assert found.p99_beyond_s == 0.0
    assert max(found.harm.lost_a_cycle) == 0.5  # A' started as late; without it A would stand alone


def test_a_job_that_waits_a_cycle_more_than_ever_is_found() -> None:
    controls = [starting(1.0, 2.0, 30.0), starting(1.1, 2.0, 30.2), starting(1.0, 2.1, 30.0)]
    found = compare([Draw(controls=controls, runs=[starting(1.0, 32.0, 30.1, name="B")])])
    assert found.harm.lost_a_cycle == (1.0,)
    assert [j.beyond_s for j in found.jobs] == pytest.approx([-0.1, 29.9, -0.1])
    assert found.harm.overtaken == (1.0,)
    assert found.harm.moved_behind == (1.0,)
    assert found.control.moved_behind == (0.0, 0.0, 0.0)
    assert found.moved_behind_beyond == 1.0
    assert found.lost_cycle_share == pytest.approx(1 / 3)
    assert found.p95_beyond_s > 29.0


def test_harm_is_the_mean_of_runs_and_chance_the_worst_control() -> None:
    controls = [starting(1.0, 5.0), starting(9.0, 5.0), starting(1.0, 5.0)]
    found = compare(
        [
            Draw(
                controls=controls,
                runs=[starting(9.0, 5.0, name="B"), starting(1.0, 5.0, name="B j1")],
            )
        ]
    )
    # With the second control left out, the first run moves its job; chance does as much.
    assert list(found.harm.moved_behind) == pytest.approx([1 / 3, 0.0])
    assert found.control.moved_behind == (0.0, 1.0, 0.0)
    assert found.moved_behind_beyond < 0


def test_each_run_is_held_against_the_controls_of_its_own_draw() -> None:
    one = Draw(controls=[starting(1.0, 2.0)] * 2, runs=[starting(1.0, 2.0, name="B")])
    other = Draw(controls=[starting(50.0, 60.0)] * 2, runs=[starting(50.0, 63.0, name="B")])
    found = compare([one, other])
    assert (found.n_draws, found.n_jobs) == (2, 4)
    assert [(j.draw, j.number, j.beyond_s) for j in found.jobs][-1] == (1, 1, 3.0)
    assert (found.harm.pooled.n, found.harm.pooled.median_s, found.harm.pooled.max_s) == (8, 0, 3.0)
    assert found.control.pooled.max_s == 0.0
    assert len(found.harm.makespan_s) == 2
    with pytest.raises(ValueError, match="each draw alike"):
        compare([one, replace(other, controls=[starting(50.0, 60.0)] * 3)])


def test_the_worst_control_is_one_of_each_draw() -> None:
    calm = Draw(controls=[starting(1.0, 5.0)] * 3, runs=[starting(1.0, 5.0, name="B")])
    rough = replace(calm, controls=[starting(1.0, 5.0), starting(9.0, 5.0), starting(1.0, 5.0)])
    assert compare([rough]).moved_behind_beyond == -1.0
    assert compare([calm, rough]).moved_behind_beyond == -0.5


def test_who_is_passed_by_a_job_that_starts_sooner_is_not_moved() -> None:
    controls = [starting(10.0, 20.0)] * 3
    found = compare([Draw(controls=controls, runs=[starting(10.0, 5.0, name="B")])])
    assert found.harm.overtaken == (1.0,)
    assert found.harm.moved_behind == (0.0,)


def test_starts_of_one_pass_have_no_order() -> None:
    assert overtaken([2.0, 1.5], [[1.0, 1.5], [1.0, 1.5]]) == ()
    assert overtaken([5.0, 1.5], [[1.0, 3.5], [1.0, 3.5]]) == (0,)
    assert late([5.0, 1.5], [[1.0, 3.5], [4.5, 3.5]], 1.0) == ()


def test_who_is_refused_while_ordinary_jobs_have_all_nodes_is_not_our_doing() -> None:
    def refused(at_s: float) -> JobOutcome:
        return JobOutcome(
            number=0, n_nodes=1, planned_s=at_s, submitted_s=at_s, refused="no node", nodes=()
        )

    held = (NodeSpan(node="n1", start_s=10.0, end_s=20.0),)
    moments = (9.0, 10.0, 20.5, 22.0)
    jobs = [refused(at_s) for at_s in moments]
    assert refused_beside(run(*jobs, sidecar=Sidecar(held=held))) == 2
    assert refused_beside(run(*jobs)) == 0


def test_nothing_is_compared_without_a_control() -> None:
    with pytest.raises(ValueError, match="two controls"):
        compare([Draw(controls=[starting(1.0)], runs=[starting(1.0)])])


# ---- the oracle ----------------------------------------------------------------------


def test_idle_intervals_end_with_the_last_job() -> None:
    one = run(job(0, 0.0, 10.0, 20.0, "n1"), job(1, 0.0, 10.0, 40.0, "n2"))
    found = [(g.node, g.start_s, g.end_s) for g in idle.idle_intervals(one)]
    assert found == [("n1", 0.0, 10.0), ("n1", 20.0, 40.0), ("n2", 0.0, 10.0)]


def test_with_an_empty_queue_the_oracle_waits_for_slurm_alone() -> None:
    one = run(job(0, 0.0, 0.0, 20.0, "n1"), job(1, 35.0, 35.0, 60.0, "n2"))
    # n1 a second after it fell idle, n2 from the begin to the job's submission.
    assert idle.oracle_node_s(one, RULES) == pytest.approx(39.0 + 35.0)


def test_the_reserve_stays_unborrowed() -> None:
    one = run(job(0, 10.0, 10.0, 40.0, "n2"))
    # Two idle nodes, one of them borrowed, until n2 is taken; then n1 is the reserve.
    assert idle.oracle_node_s(one, replace(RULES, reserve=1)) == pytest.approx(10.0)


@pytest.mark.parametrize(("starts_s", "borrowed_s"), [(11.0, 10.0), (25.0, 25.0)])
def test_what_a_job_starts_on_at_the_next_tick_is_nobodys_reserve(
    starts_s: float, borrowed_s: float
) -> None:
    one = run(job(0, 10.0, starts_s, 40.0, "n2"))
    # n2 is given back at 10 s; where backfill starts the job it is the reserve until then.
    assert idle.oracle_node_s(one, replace(RULES, reserve=1)) == pytest.approx(borrowed_s)


def test_while_somebody_waits_a_node_is_slurms_until_the_next_cycle() -> None:
    one = run(job(0, 0.0, 0.0, 20.0, "n1"), job(1, 5.0, 70.0, 80.0, "n2"), job(2, 60, 70, 80, "n1"))
    # Job 1 waits: n1 is taken at the cycle after 20 s and given back for job 2, which could
    # start at 60 s; n2 is given back for job 1 at 5 s, whatever Slurm does then.
    assert idle.oracle_node_s(one, RULES) == pytest.approx(15.0 + 5.0)


def test_a_job_too_large_costs_nothing_until_its_last_node_is_idle() -> None:
    one = run(job(0, 0.0, 0.0, 20.0, "n1"), job(1, 5.0, 22.0, 80.0, "n1", "n2"))
    assert idle.oracle_node_s(one, RULES) == pytest.approx(20.0)  # n2, until n1 ends


def test_a_node_planned_too_soon_is_not_taken() -> None:
    ends = (("n1", 50.0),)
    seen = Sidecar(
        plans=(PlanSeen(at_s=0.0, starts_s=ends), PlanSeen(at_s=25.0, starts_s=())),
    )
    one = run(job(0, 40.0, 40.0, 60.0, "n1", "n2"), sidecar=seen)
    free = idle.oracle_node_s(one, RULES)
    assert free == pytest.approx(40.0 + 40.0)
    bound = idle.oracle_node_s(one, replace(RULES, shortest_gap_s=70.0))
    assert bound == pytest.approx(25.0 + 40.0)  # n1 only once the plan has moved, at 15 s


def test_the_plan_of_the_cycle_that_frees_a_node_binds_the_oracle() -> None:
    seen = Sidecar(
        plans=(
            PlanSeen(at_s=10.0, starts_s=()),
            PlanSeen(at_s=16.5, starts_s=(("n1", 60.0),)),  # of the cycle at 15 s
        ),
    )
    one = run(
        job(0, 0.0, 0.0, 12.0, "n1"),
        job(1, 0.0, 0.0, 60.0, "n2"),
        job(2, 5.0, 60.0, 70.0, "n1", "n2"),
        sidecar=seen,
    )
    assert idle.oracle_node_s(one, RULES) == pytest.approx(60.0 - 15.0)
    assert idle.oracle_node_s(one, replace(RULES, shortest_gap_s=50.0)) == 0.0


@pytest.mark.parametrize(
    ("looks", "held_s"),
    [
        # At 15 s n1 falls to the oracle; whoever looks later saw what was planned then.
        ([(10.0, False), (17.5, True)], 0.0),
        ([(10.0, False), (40.0, True)], 0.0),
        ([(10.0, True), (40.0, False)], 45.0),
        # Too soon after the cycle to tell, and a better look later.
        ([(15.5, False), (17.5, True)], 0.0),
        ([(15.5, True), (17.5, False)], 45.0),
        ([(10.0, False), (15.5, True)], 45.0),
        # Within a cycle it moves when a look shows it.
        ([(17.0, True), (40.0, False)], 20.0),
    ],
)
def test_a_plan_holds_from_its_cycle_on(looks: list[tuple[float, bool]], held_s: float) -> None:
    plans = [
        PlanSeen(at_s=at_s, starts_s=(("n1", 60.0),) if is_planned else ())
        for at_s, is_planned in looks
    ]
    one = run(
        job(0, 0.0, 0.0, 12.0, "n1"),
        job(1, 0.0, 0.0, 60.0, "n2"),
        job(2, 5.0, 60.0, 70.0, "n1", "n2"),
        sidecar=Sidecar(plans=tuple(plans)),
    )
    rules = replace(RULES, shortest_gap_s=50.0)
    assert idle.oracle_node_s(one, rules) == pytest.approx(held_s)


def test_slurms_own_delay_is_that_of_jobs_that_found_nodes() -> None:
    one = run(
        job(0, 10.0, 12.0, 20.0, "n1"),  # alone: 2 s
        job(1, 30.0, 31.0, 50.0, "n1", "n2"),  # alone: 1 s
        job(2, 40.0, 60.0, 70.0, "n1"),  # behind it
        job(3, 41.0, 60.0, 90.0, "n2"),
    )
    assert idle.start_delay_s(one) == pytest.approx(1.5)


def test_spans_lose_what_an_ordinary_job_had() -> None:
    spans = [NodeSpan(node="n1", start_s=0.0, end_s=10.0)]
    taken = [NodeSpan(node="n1", start_s=4.0, end_s=6.0), NodeSpan(node="n2", start_s=0, end_s=9)]
    left = idle.without(spans, taken)
    assert [(s.start_s, s.end_s) for s in left] == [(0.0, 4.0), (6.0, 10.0)]
    assert length_s(left) == 8.0
    assert idle.without(spans, [NodeSpan(node="n1", start_s=0.0, end_s=10.0)]) == ()


# ---- the journal ---------------------------------------------------------------------


def entry(seq: int, at_s: float, kind: str, payload: Any, *pilots: PilotRecord) -> JournalEntry:
    return JournalEntry(
        seq=seq,
        at_s=at_s,
        incarnation=1,
        kind=kind,
        payload=payload,
        trainers=(),
        pilots=pilots,
        sha256="",
    )


def pilot(state: PilotState, pilot_id: str = "p000001", node: str = "n1") -> PilotRecord:
    return PilotRecord(
        pilot_id=pilot_id,
        node=node,
        job_id="5",
        public_key="",
        requested_s=0.0,
        time_limit_s=600.0,
        owner="u",
        state=state,
    )


def test_a_node_is_held_from_hello_to_give_back() -> None:
    waiting = {"pilot_id": None, "state": "pending", "start_s": 160.0, "planned_nodes": ["n2"]}
    given = {"now_s": 105.0, "snapshot": {"taken_at_s": 104.0, "jobs": [waiting]}}
    plan = {"releases": [{"for_job": "7"}, {"for_job": ""}]}
    rescaled = {"trainer_id": "t1", "what": {"nodes": ["n1"]}}
    found = journal.read(
        [
            entry(1, 90.0, "pilot-requested", {}, pilot(PilotState.REQUESTED)),
            entry(2, 95.0, "pilot-updated", {}, pilot(PilotState.RUNNING)),
            entry(3, 97.0, "rescaled", rescaled),
            entry(4, 104.0, "decision", {"input": given, "plan": plan}),
            entry(5, 105.0, "pilot-updated", {}, pilot(PilotState.CANCELLED)),
            entry(6, 105.5, "parked", {"trainer_id": "t1", "what": {}}),
            entry(7, 106.0, "pilot-ended", {}, pilot(PilotState.ENDED)),
            entry(8, 107.0, "pilot-updated", {}, pilot(PilotState.RUNNING, "p000002", "n2")),
            entry(9, 109.0, "pilot-ended", {}, pilot(PilotState.ENDED, "p000002", "n2")),
            entry(10, 109.0, "pilot-updated", {}, pilot(PilotState.RUNNING, "p000003", "n2")),
        ],
        origin_s=100.0,
        end_s=112.0,
    )
    assert [(s.node, s.start_s, s.end_s) for s in found.held] == [
        ("n1", 0.0, 5.0), ("n2", 7.0, 9.0), ("n2", 9.0, 12.0)
    ]  # fmt: skip
    assert [(s.start_s, s.end_s) for s in found.training] == [(0.0, 5.5)]
    assert found.plans == (PlanSeen(at_s=4.0, starts_s=(("n2", 60.0),)),)
    assert (found.pilots, found.give_backs, found.preemptions) == (2, 1, 1)


def test_a_plan_begins_with_its_slot() -> None:
    job = {"pilot_id": None, "state": "pending", "start_s": 263.0, "planned_nodes": ["n2"]}
    shown = {"taken_at_s": 104.0, "jobs": [job], "plan_resolution_s": 60.0}
    assert journal.plan_seen({"snapshot": shown}, 100.0).starts_s == (("n2", 140.0),)


def test_a_pilot_holds_its_node_from_its_start_in_slurm() -> None:
    entries = [
        entry(2, 105.0, "pilot-updated", {}, pilot(PilotState.RUNNING)),
        entry(3, 109.0, "pilot-ended", {}, pilot(PilotState.ENDED)),
    ]
    found = journal.read(entries, 100.0, 112.0, {"5": 103.5, "6": 101.0})
    assert [(s.start_s, s.end_s) for s in found.held] == [(3.5, 9.0)]


# ---- verdict and report --------------------------------------------------------------


def results() -> list[verdict.Result]:
    jobs = [job(0, 10.0, 10.0, 40.0, "n2")]
    seen = Sidecar(held=(NodeSpan(node="n1", start_s=1.0, end_s=40.0),), pilots=1)
    a = run(*jobs)
    b = run(*jobs, name="B", sidecar=seen)
    return [verdict.judge(cell, [Draw(controls=[a, a], runs=[b])], RULES) for cell in CELLS]


def test_only_the_first_cells_are_judged() -> None:
    judged = {r.cell.name: [t.verdict for t in verdict.targets(r)] for r in results()}
    assert judged["tier"] == ["met", "met", "met", "met", "missed"]
    assert judged["polling"] == ["met"]
    assert judged["grace"] == judged["defer"] == []
    harvest = results()[0].harvest
    assert harvest.held_s == 39.0
    assert harvest.of_oracle == pytest.approx(39.0 / 50.0)
    assert harvest.of_idle == pytest.approx(39.0 / 50.0)


def test_results_are_rows_of_tables_and_plain_values() -> None:
    found = results()
    assert next(report.added_rows(found))[:3] == ("tier", "B", "0.00")
    assert next(report.pooled_rows(found))[:3] == ("tier", "1 B", "0.00")
    assert [row[0] for row in report.worst_rows(found)] == [c.name for c in CELLS]
    assert json.loads(json.dumps(report.as_values(found)))[0]["sidecars"][0]["pilots"] == 1


def test_a_finished_run_is_kept_and_a_broken_one_made_again(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "kept")
    seen = Sidecar(plans=(PlanSeen(at_s=0.0, starts_s=(("n1", 2.0),)),))
    made = run(job(0, 1.0, 2.0, 3.0, *NODES), name="tier-bf30 B tier", sidecar=seen)
    assert shelf.get(made.name) is None
    shelf.put(made)
    assert shelf.get(made.name) == made
    shelf.put(replace(made, problem="3 jobs had not ended in time"))
    assert shelf.get(made.name) is None


def test_cells_with_equal_settings_share_their_runs_without_us() -> None:
    assert [c.settings for c in CELLS if c.name in ("tier", "polling")] == [TIER, TIER]
    assert len({c.settings for c in CELLS}) == 5
    assert [c.name for c in CELLS if c.must_pass] == ["tier", "qos", "tier-bf5"]


def test_cycles_are_read_to_the_millisecond(tmp_path: Path) -> None:
    log = tmp_path / "slurmctld.log"
    log.write_text(
        "[2026-11-20T17:56:38.275] debug:  sched/backfill: _attempt_backfill: beginning\n"
        "[2026-11-20T17:56:38.275] debug:  sched/backfill: _attempt_backfill: no jobs\n"
        "[2026-11-20T17:57:08.300] debug:  sched/backfill: _attempt_backfill: beginning\n"
    )
    first, second = cycles.read(log)
    assert second - first == pytest.approx(30.025)


def test_starts_of_both_schedulers_are_read(tmp_path: Path) -> None:
    log = tmp_path / "slurmctld.log"
    log.write_text(
        "[2026-11-20T17:56:38.275] sched: Allocate JobId=1 NodeList=n1 #CPUs=4 Partition=bf\n"
        "[2026-11-20T17:56:38.375] _slurm_rpc_submit_batch_job: JobId=94 InitPrio=1 usec=721\n"
        "[2026-11-20T17:56:39.275] sched/backfill: _start_job: Started JobId=33 in bf on n10\n"
    )
    found = cycles.starts(log)
    assert list(found) == ["1", "33"]
    assert found["33"] - found["1"] == pytest.approx(1.0)
