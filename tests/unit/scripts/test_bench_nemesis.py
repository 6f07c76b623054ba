"""The parts of bench_nemesis that draw, judge and shrink."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import bench_nemesis
import pytest
from _bench.benchmark import Measured
from _bench.nemesis import verdicts
from _bench.nemesis.life import events
from _bench.nemesis.reduction import reduce
from _bench.nemesis.schedule import (
    ALL_DOWN_S,
    DAEMON_REST_S,
    DURATIONS_S,
    Fault,
    Kind,
    Schedule,
    all_down_s,
    closed_up,
    draw,
    is_allowed,
    targets,
)
from _bench.nemesis.verdicts import (
    RULES,
    Breach,
    Free,
    PilotJob,
    Recorded,
    Rule,
    Story,
    judge,
    longest_stop,
)
from _bench.waiting import BenchError

from bftrainer.batch import process
from bftrainer.lab.try_records import EpochUse, Line
from tests.support.clocks import SHIFTED_SBATCH

NODES = ("n1", "n2", "n3", "n4", "n5")
SEEDS = range(1, 13)


def fault(kind: Kind, target: str, at_s: float, duration_s: float = 0.0) -> Fault:
    return Fault(kind=kind, target=target, at_s=at_s, duration_s=duration_s)


# ---- drawing ------------------------------------------------------------------------------


def test_a_seed_draws_its_schedule_again_and_others_draw_others() -> None:
    drawn = [draw(seed, 60, NODES, 3) for seed in SEEDS]
    assert drawn == [draw(seed, 60, NODES, 3) for seed in SEEDS]
    assert len({one.faults for one in drawn}) == len(SEEDS)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_kind_is_drawn_with_its_durations_and_targets(seed: int) -> None:
    faults = draw(seed, 60, NODES, 3).faults
    assert {one.kind for one in faults} == set(Kind)
    assert [one.at_s for one in faults] == sorted(one.at_s for one in faults)
    among = targets(NODES, 3)
    for one in faults:
        low_s, high_s = DURATIONS_S[one.kind]
        assert low_s <= one.duration_s <= high_s
        assert one.target in among[one.kind]


@pytest.mark.parametrize("seed", SEEDS)
def test_faults_leave_room_for_one_another(seed: int) -> None:
    faults = draw(seed, 60, NODES, 3).faults
    assert all_down_s(faults, NODES) <= ALL_DOWN_S
    of_daemon = [one for one in faults if one.is_of_daemon]
    assert len(of_daemon) > 5
    assert all(b.at_s >= a.end_s + DAEMON_REST_S for a, b in pairwise(of_daemon))
    for number, one in enumerate(faults):
        for other in faults[:number]:
            if other.end_s < one.at_s:
                continue
            assert other.effect != one.effect
            if Kind.POWER in (one.kind, other.kind):
                assert not one.hosts & other.hosts


@pytest.mark.parametrize(
    ("second", "is_fine"),
    [
        (fault(Kind.CUT, "n2", 5.0, 9.0), True),
        (fault(Kind.CUT, "n1", 5.0, 9.0), False),  # twice the same
        (fault(Kind.DEAF, "n1", 5.0, 9.0), True),
        (fault(Kind.POWER, "n1", 5.0, 9.0), False),
        (fault(Kind.POWER, "n1", 12.0, 9.0), True),
        (fault(Kind.POWER, "n2", 5.0, 9.0), True),
    ],
)
def test_nothing_is_done_to_a_host_that_has_no_power(second: Fault, *, is_fine: bool) -> None:
    assert is_allowed(second, [fault(Kind.CUT, "n1", 1.0, 10.0)], NODES) is is_fine


def test_one_node_has_power_and_network_nearly_all_the_time() -> None:
    beside = [fault(Kind.CUT, "n1", 1.0, 10.0), fault(Kind.POWER, "n2", 4.0, 2.0)]
    assert is_allowed(fault(Kind.CUT, "n3", 5.0, 20.0), beside, ("n1", "n2", "n3"))
    longer = [beside[0], fault(Kind.POWER, "n2", 4.0, 12.0)]
    assert not is_allowed(fault(Kind.CUT, "n3", 5.0, 20.0), longer, ("n1", "n2", "n3"))


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        (Kind.DAEMON_STOP, ""),
        (Kind.CLOCK, "ahead"),
        (Kind.DISK, "login:/tmp"),
        (Kind.APART, "login+n3"),
    ],
)
def test_the_daemons_host_keeps_its_power_while_something_is_done_there(
    kind: Kind, target: str
) -> None:
    lasting = fault(kind, target, 1.0, 10.0)
    assert not is_allowed(fault(Kind.POWER, "login", 5.0, 4.0), [lasting], NODES)


def test_the_time_without_any_node_is_that_of_all_cuts_together() -> None:
    ends_s = {"n1": 20.0, "n2": 12.0, "n3": 30.0}
    faults = [fault(Kind.CUT, node, 1.0, end_s - 1.0) for node, end_s in ends_s.items()]
    later = [fault(Kind.POWER, "n2", 12.0, 3.0), fault(Kind.MUTE, "n2", 16.0, 2.0)]
    assert all_down_s(faults, tuple(ends_s)) == 11.0
    assert all_down_s([*faults, *later], tuple(ends_s)) == 14.0
    assert all_down_s([*faults, *later], NODES) == 0.0


def test_a_schedule_is_the_same_after_it_was_written() -> None:
    drawn = draw(3, 20, NODES, 3)
    assert Schedule.of(json.loads(json.dumps(drawn.document()))) == drawn


@pytest.mark.parametrize("document", [{}, {"seed": 1, "faults": [{"kind": "cut"}]}])
def test_what_is_no_schedule_is_refused(document: Mapping[str, object]) -> None:
    with pytest.raises(ValueError, match="no schedule"):
        Schedule.of(document)


def test_a_part_of_a_schedule_loses_its_empty_times() -> None:
    faults = (
        fault(Kind.CUT, "n1", 100.0, 10.0),
        fault(Kind.JOB, "1", 105.0, 3.0),
        fault(Kind.WORKER_KILL, "n2", 190.0),
        fault(Kind.SCANCEL, "all", 191.0),
    )
    moved = closed_up(faults, first_s=1.0, gap_s=12.0)
    assert [one.at_s for one in moved] == [1.0, 6.0, 23.0, 24.0]
    assert [replace(one, at_s=0.0) for one in moved] == [replace(one, at_s=0.0) for one in faults]


def test_what_ends_does_so_before_something_begins() -> None:
    faults = (
        fault(Kind.CUT, "n1", 1.0, 4.0),
        fault(Kind.WORKER_KILL, "n2", 2.0),
        fault(Kind.POWER, "n1", 5.0, 2.0),
    )
    found = events(Schedule(seed=1, faults=faults))
    assert [(one.at_s, one.fault.kind, one.is_end) for one in found] == [
        (1.0, Kind.CUT, False),
        (2.0, Kind.WORKER_KILL, False),
        (5.0, Kind.CUT, True),
        (5.0, Kind.POWER, False),
        (7.0, Kind.POWER, True),
    ]


@pytest.mark.parametrize("text", ["", "{}", '{"seed": 1, "faults": [{"kind": "flood"}]}'])
def test_a_file_without_a_schedule_cannot_be_repeated(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "schedule.json"
    path.write_text(text)
    with pytest.raises(SystemExit):
        bench_nemesis.BENCHMARK.parse(["--repeat", str(path)])
    assert "error: --repeat: " in capsys.readouterr().err


def test_a_file_is_repeated_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    drawn = draw(5, 7, NODES, 3)
    path.write_text(json.dumps(drawn.document()))
    assert bench_nemesis.BENCHMARK.parse(["--repeat", str(path)]).repeat == drawn


# ---- judging ------------------------------------------------------------------------------

EXPECTED = (0.5, -2.0)
FIRST, SECOND = EpochUse(epoch=0, of=9, used=9), EpochUse(epoch=1, of=9, used=9)


def story(trainer_id: str = "t1", **changes: object) -> Story:
    made = Story(
        trainer_id=trainer_id,
        state="finished",
        n_epochs=2,
        expected=EXPECTED,
        parameters={"n1-7": EXPECTED},
        epochs=(FIRST, SECOND),
        updates_s=(100.0, 101.0, 102.0),
        ended_s=102.5,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def job(job_id: str, name: str, node: str, *, is_live: bool = True) -> PilotJob:
    return PilotJob(job_id=job_id, name=name, node=node, is_live=is_live)


JOBS = (job("3", "p1.x", "n1", is_live=False), job("4", "p2.x", "n1"), job("5", "p3.x", "n2"))
PILOTS = {"n1": "p2", "n2": "p3"}
GOOD = Recorded(
    stories=(story(), story("t2")),
    free=(Free(at_s=90.0, nodes=3), Free(at_s=110.0, nodes=3)),
    jobs=JOBS,
    pilots=PILOTS,
    left_jobs=(),
    orphans=(),
    verify="",
    replay="",
)


def test_what_holds_all_rules_breaks_none() -> None:
    rounded = story(parameters={"n1-7": (0.5, -2.0 * (1.0 + 1e-13))})
    assert judge(GOOD) == ()
    assert judge(replace(GOOD, stories=(rounded,))) == ()


@pytest.mark.parametrize(
    ("changes", "rule", "words"),
    [
        ({"state": "failed", "parameters": {"n1-7": EXPECTED}}, verdicts.END, "t1 is failed"),
        ({"state": ""}, verdicts.END, "t1 is unknown"),
        ({"parameters": {}}, verdicts.PARAMETERS, "none"),
        ({"parameters": {"a": EXPECTED, "b": (0.5, -2.0001)}}, verdicts.PARAMETERS, "of b: 5e-05"),
        ({"parameters": {"a": (0.5, math.nan)}}, verdicts.PARAMETERS, "nan"),
        ({"parameters": {"a": (0.5,)}}, verdicts.PARAMETERS, "inf"),
        (
            {"epochs": (replace(FIRST, repeated=1), SECOND)},
            verdicts.SAMPLES,
            "epoch 0: 9 of 9 used, 0 missed, 1 repeated",
        ),
        (
            {"epochs": (replace(FIRST, used=8), SECOND)},
            verdicts.SAMPLES,
            "epoch 0: 8 of 9",
        ),
        ({"epochs": (FIRST,)}, verdicts.SAMPLES, r"epochs \[1\]"),
        ({"updates_s": (100.0, 166.0), "ended_s": 167.0}, verdicts.STOP, "66.0 s without"),
        ({"updates_s": (100.0, 101.0), "ended_s": 167.0}, verdicts.STOP, "from 101.0"),
    ],
)
def test_a_trainer_that_breaks_a_rule_is_named(
    changes: Mapping[str, object], rule: Rule, words: str
) -> None:
    told = replace(story(), **changes)  # type: ignore[arg-type]
    (breach,) = judge(replace(GOOD, stories=(told,)))
    assert breach.rule == rule.name
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(breach.why)


@pytest.mark.parametrize(
    ("changes", "rule", "words"),
    [
        (
            {"jobs": (*JOBS, job("6", "p1.x", "n3", is_live=False))},
            verdicts.PILOTS,
            "doubled: p1.x is 2 jobs, 3, 6",
        ),
        (
            {"jobs": (*JOBS, job("6", "p4.x", "n2")), "pilots": {**PILOTS, "x": "p4"}},
            verdicts.PILOTS,
            "doubled: 2 pilots run on n2",
        ),
        (
            {"jobs": (*JOBS, job("6", "p4.x", "n3"))},
            verdicts.PILOTS,
            "lost: the daemon does not have job 6, p4.x, on n3",
        ),
        (
            {"pilots": {**PILOTS, "n3": "p4"}},
            verdicts.PILOTS,
            "lost: the daemon's p4 on n3 has no job",
        ),
        ({"orphans": ("n2: python agent",)}, verdicts.ORPHANS, "n2: python agent"),
        ({"left_jobs": ("job 9, p9.x",)}, verdicts.ORPHANS, "job 9, p9.x"),
        ({"verify": "entry 7 is damaged"}, verdicts.VERIFY, "entry 7 is damaged"),
        ({"replay": "entry 8: other claims"}, verdicts.REPLAY, "entry 8: other claims"),
    ],
)
def test_a_site_that_breaks_a_rule_is_told(
    changes: Mapping[str, object], rule: Rule, words: str
) -> None:
    (breach,) = judge(replace(GOOD, **changes))  # type: ignore[arg-type]
    assert (breach.rule, breach.why) == (rule.name, words)


def test_a_stop_does_not_count_while_too_few_nodes_are_free() -> None:
    free = [Free(at_s=0.0, nodes=3), Free(at_s=120.0, nodes=2), Free(at_s=170.0, nodes=3)]
    assert longest_stop((100.0, 200.0), 201.0, free, 2) == (100.0, 100.0)
    assert longest_stop((100.0, 200.0), 201.0, free, 3) == (50.0, 100.0)
    assert longest_stop((100.0, 150.0), 151.0, free, 3) == (20.0, 100.0)
    assert longest_stop((), 151.0, [], 3) == (0.0, 151.0)


def test_how_long_no_daemon_ran_is_told_with_a_stop() -> None:
    times = ((90.0, True), (120.0, False), (150.0, True), (300.0, True))
    free = tuple(Free(at_s=at_s, nodes=3, has_daemon=has) for at_s, has in times)
    slow = story(updates_s=(100.0, 200.0), ended_s=200.5)
    (breach,) = judge(replace(GOOD, stories=(slow,), free=free))
    assert "100.0 s without an update" in breach.why
    assert "no daemon ran for 30.0 s of it" in breach.why


def test_only_updates_of_the_state_that_is_kept_count() -> None:
    """Workers went on beside the generation that followed: their updates came to nothing."""

    def line(kind: str, group: str, step: int, at_s: float, **more: object) -> Line:
        number = {"a": 1, "b": 3, "c": 2}[group]
        return {"kind": kind, "group": group, "generation": number, "attempt": 1, "step": step,
                "at_s": at_s, **more}  # fmt: skip

    processes = {
        "n1-1": [line("entered", "a", 0, 0.0), *(line("committed", "a", k, k) for k in (1, 2, 3))],
        "n2-1": [line("entered", "a", 0, 0.0), line("committed", "a", 1, 1.5)],
        "n3-1": [
            line("entered", "c", 1, 4.0, **{"from": "a"}),
            *(line("committed", "c", k, 4.0 + k) for k in (2, 3, 4)),
        ],
        "n4-1": [
            line("entered", "b", 3, 10.0, **{"from": "a"}),
            *(line("committed", "b", k, 10.0 + k) for k in (4, 5)),
        ],
    }
    assert verdicts.kept_updates_s(processes) == (1, 2, 3, 14.0, 15.0)


# ---- shrinking ----------------------------------------------------------------------------


@pytest.mark.parametrize("culprit", [0, 17, 31, 59])
def test_one_culprit_among_sixty_is_found_in_few_tries(culprit: int) -> None:
    found = reduce(range(60), lambda part: culprit in part, 40)
    assert (found.items, found.is_least) == ((culprit,), True)
    assert found.tries <= 2 * math.ceil(math.log2(60))


@pytest.mark.parametrize("culprits", [{3, 4}, {2, 55}, {10, 30, 50}])
def test_culprits_that_need_each_other_are_found_in_their_order(culprits: set[int]) -> None:
    tried: list[tuple[int, ...]] = []

    def fails(part: tuple[int, ...]) -> bool:
        tried.append(part)
        return culprits <= set(part)

    found = reduce(range(60), fails, 200)
    assert (found.items, found.is_least) == (tuple(sorted(culprits)), True)
    assert len(tried) == len(set(tried)) == found.tries


def test_when_the_tries_run_out_the_shortest_so_far_is_given() -> None:
    found = reduce(range(64), lambda part: 40 in part, 4)
    assert (found.items, found.tries, found.is_least) == (tuple(range(32, 48)), 4, False)


def test_a_list_of_which_no_part_fails_stays_whole() -> None:
    found = reduce(range(4), lambda _: False, 100)
    assert (found.items, found.is_least) == ((0, 1, 2, 3), True)


# ---- the clock ----------------------------------------------------------------------------


@pytest.mark.parametrize(("ahead", "deadline_s"), [("+3600s", 3700), ("-3600s", -3500)])
def test_a_shifted_sbatch_counts_from_its_own_now(
    tmp_path: Path, ahead: str, deadline_s: int
) -> None:
    file, sbatch = tmp_path / "ahead", tmp_path / "sbatch"
    file.write_text(f"{ahead}\n")
    sbatch.write_text(SHIFTED_SBATCH.format(file=file, sbatch="printf '[%s]'"))
    sbatch.chmod(0o755)
    argv = [str(sbatch), "--comment=two words", "--deadline=now+100", "--time=4", "a b.sh"]
    done = process.run(argv, timeout_s=10.0)
    assert done.stdout == f"[--comment=two words][--deadline=now+{deadline_s}][--time=4][a b.sh]"


# ---- several runs -------------------------------------------------------------------------


def run_of(seed: int, commit: str, broken: Sequence[Breach] = ()) -> dict[str, Any]:
    """Return what a run of one life, of two faults, writes."""
    life = {
        **Schedule(seed=seed, faults=draw(seed, 60, NODES, 3).faults[:2]).document(),
        "broken": [asdict(breach) for breach in broken],
        "longest_stop_s": {"t1": 3.0 + seed},
        "pilots": 4,
        "steps": [5, 5],
        "left_out": [],
        "n_starts": 1,
        "tracebacks": [],
    }
    return {"recorded": {"commit": commit, "date": "2026-11-30"}, "lives": [life]}


def joined(directory: Path, runs: Sequence[dict[str, Any]]) -> Measured:
    paths = [directory / f"{number}.json" for number in range(len(runs))]
    for path, run in zip(paths, runs, strict=True):
        path.write_text(json.dumps(run))
    measured = Measured()
    options = bench_nemesis.BENCHMARK.parse(["--join", *map(str, paths)])
    bench_nemesis.measure(options, measured)
    return measured


def test_runs_of_one_commit_are_judged_together(tmp_path: Path) -> None:
    rule = RULES[0]
    runs = [run_of(7, "abc", [Breach(rule=rule.name, why="a sum is off")]), run_of(2, "abc")]
    measured = joined(tmp_path, runs)
    assert [life["seed"] for life in measured.results["lives"]] == [2, 7]
    assert measured.results["recorded"]["commit"] == "abc"
    counts = {target.name: target.measured for target in measured.targets}
    assert counts == {each.words: int(each == rule) for each in RULES}
    assert {target.note for target in measured.targets} == {"4 faults in 2 lives, 20 updates"}


def test_runs_of_different_commits_are_not_judged_together(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="several commits: abc, def"):
        joined(tmp_path, [run_of(1, "abc"), run_of(2, "def")])
