"""Solvers in child processes: real ones, and ones that crash, hang, overrun and lie."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

import pytest

from bftrainer.batch import process
from bftrainer.lab.solvers.runner import MOST_DUMPS, ChildRunner, solve_in_child
from milp.check import check, find_violations, objective_value
from milp.codec import problem_from_dict
from milp.problem import (
    Allocation,
    Curve,
    Objective,
    Problem,
    ProblemError,
    ProblemNode,
    ProblemTrainer,
)
from milp.reference.backends import ModelStatus
from milp.reference.guard import (
    LimitedAnswer,
    RunnerReport,
    read_answer,
    solve_limited,
    write_request,
)
from milp.reference.solve import keep_map, solve_reference
from milp.solve import solve
from tests.support import solver_batch
from tests.support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[3]
SOLVERS = ("highs", "gurobi", "cbc")
GIB = 1024**3
CURVES = {
    "concave": (10.0, 18.0, 30.0, 44.0),
    "linear": (10.0, 20.0, 40.0, 80.0),
    "spiked": (10.0, 60.0, 12.0, 13.0),
    "falling": (30.0, 20.0, 10.0, 5.0),
    "late": (1.0, 1.0, 2.0, 90.0),
}


@pytest.fixture(autouse=True)
def _tests_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def draw(seed: int, *, n_nodes: int = 12, n_trainers: int = 4) -> Problem:
    """Gaps below n_min, departed nodes, waiting trainers, all curves, one or two classes."""
    random = Random(seed)  # noqa: S311 - for variety, not for secrets
    classes = "ab" if seed % 3 == 0 else "a"
    names = [f"n{i}" for i in range(n_nodes)] + ["gone1", "gone2"]
    nodes = tuple(ProblemNode(name=name, eligibility=random.choice(classes)) for name in names[:-2])
    random.shuffle(names)
    trainers = []
    for j in range(n_trainers):
        current, names = names[: (n_held := random.choice((0, 0, 2, 3)))], names[n_held:]
        n_min = random.choice((1, 1, 2, 4))
        trainers.append(
            ProblemTrainer(
                trainer_id=f"t{j}",
                n_min=n_min,
                n_max=n_min + random.choice((0, 2, 8)),
                curve=Curve(
                    sizes=(1, 2, 4, 8),
                    samples_per_s=tuple(
                        rate * random.uniform(0.8, 1.2)
                        for rate in random.choice([*CURVES.values()])
                    ),
                ),
                rescale_up_s=random.choice((0.0, 5.0, 40.0)),
                rescale_down_s=random.choice((0.0, 5.0, 40.0)),
                current=tuple(current),
                eligible=random.choice(((), ("a",), ("b",))) if len(classes) > 1 else (),
                weight=random.choice((0.5, 1.0, 2.0)),
            )
        )
    return Problem(
        nodes=nodes,
        trainers=tuple(trainers),
        t_fwd_s=random.choice((10.0, 60.0, 120.0)),
        p_jmax=random.choice((n_trainers, n_trainers - 1)),
        objective=random.choice(
            (Objective.THROUGHPUT, Objective.SCALING_EFFICIENCY, Objective.WEIGHTED)
        ),
    )


def steady(*, n_nodes: int = 6) -> Problem:
    """One trainer that has some of the nodes already and would like them all."""
    return Problem(
        nodes=tuple(ProblemNode(name=f"n{i}") for i in range(n_nodes)),
        trainers=(
            ProblemTrainer(
                trainer_id="t",
                n_min=1,
                n_max=n_nodes,
                curve=Curve(sizes=(1, n_nodes), samples_per_s=(10.0, 10.0 * n_nodes)),
                rescale_up_s=1.0,
                rescale_down_s=1.0,
                current=("n0", "n1"),
            ),
        ),
        t_fwd_s=100.0,
        p_jmax=1,
    )


def use(problem: Problem, work: str, *, time_limit_s: float = 120.0) -> LimitedAnswer:
    answer = solve_limited(
        problem,
        solver="highs",
        time_limit_s=time_limit_s,
        runner=ChildRunner(work=f"tests.support.bad_solvers:{work}"),
        memory_limit_bytes=GIB,
    )
    check(problem, answer.allocation)
    return answer


# --- The same optimum from all three ------------------------------------------------


@pytest.mark.long
def test_all_solvers_give_the_exact_optimum() -> None:
    """Forty problems; each solver gets them in one process of its own."""
    problems = [draw(seed) for seed in range(40)]
    exact = [solve(problem).objective for problem in problems]
    for solver in SOLVERS:
        answers = solver_batch.solve_all(problems, solver)
        for problem, optimum, answer in zip(problems, exact, answers, strict=True):
            assert answer.status is ModelStatus.OPTIMAL, (solver, answer.message)
            value = objective_value(problem, Counter(answer.assignment.values()))
            claim = Allocation(assignment=answer.assignment, objective=value, node_price=0.0)
            assert find_violations(problem, claim) == []
            assert value == pytest.approx(optimum, rel=1e-6, abs=1e-6)
            assert answer.objective == pytest.approx(optimum, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_real_solver_through_the_runner(solver: str) -> None:
    problem = draw(7)
    answer = solve_in_child(problem, solver=solver, time_limit_s=60.0)
    check(problem, answer.allocation)
    assert (answer.status, answer.failure) == ("optimal", "")
    assert answer.allocation.objective == pytest.approx(solve(problem).objective, rel=1e-6)
    assert answer.allocation.gap == 0.0
    assert set(answer.allocation.marginals) == {t.trainer_id for t in problem.trainers}


def test_the_current_map_is_kept_among_equals() -> None:
    problem = steady()
    best = solve(problem).assignment
    settled = replace(problem, trainers=(replace(problem.trainers[0], current=tuple(best)),))
    answer = solve_in_child(settled, solver="highs", time_limit_s=60.0)
    assert answer.allocation.assignment == best
    assert answer.failure == ""


def test_gurobi_refuses_a_large_model_and_the_exact_solver_answers(tmp_path: Path) -> None:
    problem = draw(1, n_nodes=120, n_trainers=6)
    answer = solve_in_child(problem, solver="gurobi", time_limit_s=60.0, dump_dir=tmp_path)
    check(problem, answer.allocation)
    assert answer.status == "refused"
    assert "more than the licence of this Gurobi allows" in answer.failure
    assert answer.allocation.objective == solve(problem).objective
    assert answer.allocation.solver == "exact"


def test_too_little_time_keeps_the_current_map_or_better() -> None:
    problem = draw(2, n_nodes=60, n_trainers=8)
    kept = objective_value(problem, Counter(keep_map(problem).values()))
    for solver in SOLVERS:
        answer = solve_in_child(problem, solver=solver, time_limit_s=1.0)
        check(problem, answer.allocation)
        assert answer.allocation.objective >= kept - 1e-6 * abs(kept)
        assert answer.allocation.objective <= solve(problem).objective * (1 + 1e-6)


def test_unequal_times_are_refused_and_the_fallback_answers() -> None:
    one, *others = steady().trainers
    problem = replace(steady(), trainers=(replace(one, warm_up_s=1.0), *others))
    answer = solve_in_child(problem, solver="highs", time_limit_s=60.0)
    assert answer.status == "refused"
    assert "warm_up_s" in answer.failure


# --- Misbehaviour does no harm ------------------------------------------------------


@pytest.mark.parametrize(
    ("work", "told"),
    [
        ("crash", "died of SIGSEGV"),
        ("hog", "needed more than its 1073741824 bytes of memory"),
        pytest.param("flood", "printed more than", marks=pytest.mark.long),
        ("garbage", "answered what cannot be read"),
        pytest.param("nested", "answered what cannot be read", marks=pytest.mark.long),
        pytest.param("silent", "answered what cannot be read", marks=pytest.mark.long),
        ("leave", "ended with status 9 (the licence server is away)"),
        pytest.param("no_such_function", "ended with status 1", marks=pytest.mark.long),
        pytest.param("infeasible", "calls the model infeasible", marks=pytest.mark.long),
        pytest.param("unbounded", "calls the model unbounded", marks=pytest.mark.long),
        pytest.param("nobody_is_optimal", "less than the current map's", marks=pytest.mark.long),
        ("all_to_the_first", "returned a map that is not legal"),
        ("wrong_value", "states an objective of 1e+09"),
        pytest.param("not_a_number", "answered what cannot be read", marks=pytest.mark.long),
        ("low_bound", "states a bound of 1 below a map that is known"),
    ],
)
def test_a_bad_solver_is_caught_and_replaced(work: str, told: str) -> None:
    problem = replace(steady(), trainers=(replace(steady().trainers[0], n_max=5),))
    if work == "low_bound":  # values the current map as two nodes' worth
        problem = replace(problem, trainers=(replace(problem.trainers[0], n_max=6),))
    answer = use(problem, work)
    assert answer.status == "failed"
    assert told in answer.failure
    assert answer.failure.startswith("The solver highs ")
    assert answer.allocation.objective == solve(problem).objective
    assert answer.allocation.solver == "exact"


def test_what_native_code_prints_is_not_the_answer() -> None:
    answer = use(steady(), "chatter")
    assert (answer.status, answer.failure) == ("nothing", "")
    assert answer.allocation.assignment == {"n0": "t", "n1": "t"}
    assert answer.allocation.solver == "current map kept, nothing found by highs"


def test_a_hang_ends_at_the_limit_with_all_its_processes(tmp_path: Path) -> None:
    pids_file = tmp_path / "pids"
    problem = steady()
    problem = replace(problem, trainers=(replace(problem.trainers[0], trainer_id=str(pids_file)),))
    for limit_s in (2.0, 8.0, 32.0):  # until it got as far as that within its limit
        started_s = time.monotonic()
        answer = use(problem, "loop_and_spawn", time_limit_s=limit_s)
        took_s = time.monotonic() - started_s
        assert answer.failure == (
            f"The solver highs did not end within its {limit_s:g} s and was killed."
        )
        assert answer.allocation.objective == solve(problem).objective
        assert took_s >= limit_s
        if pids_file.exists() and pids_file.read_text():
            break
    pids = [int(pid) for pid in pids_file.read_text().split()]
    assert len(pids) == 2
    for pid in pids:
        wait_for(partial(_is_gone, pid))


def _is_gone(pid: int) -> bool:
    """Whether a process has ended (a zombie has no executable)."""
    return not Path(f"/proc/{pid}/exe").exists()


def test_a_child_that_never_reads_is_killed_too() -> None:
    """The request is larger than a pipe, so that handing it over would block for ever."""
    runner = ChildRunner(work="tests.support.bad_solvers_at_import:none")
    request = "x" * (1 << 22)
    report = runner.run(request, time_limit_s=1.0, memory_limit_bytes=GIB)
    assert "did not end within its 1 s" in report.failure


def test_the_child_limits_itself() -> None:
    code = (
        "import resource as r; from bftrainer.lab.solvers.child import limit_self;"
        " limit_self(memory_bytes=2**30, cpu_s=7.5);"
        " print(*r.getrlimit(r.RLIMIT_CPU), *r.getrlimit(r.RLIMIT_AS), *r.getrlimit(r.RLIMIT_CORE))"
    )
    done = process.run([sys.executable, "-c", code], timeout_s=60.0)
    assert done.stdout.split() == ["12", "12", str(GIB), str(GIB), "0", "0"]


@dataclass(frozen=True)
class Says:
    """A runner that returns what it is told."""

    report: RunnerReport

    def run(self, *_: object, **__: object) -> RunnerReport:
        return self.report


def test_when_the_fallback_fails_as_well_the_current_map_stays() -> None:
    def refuses(problem: Problem) -> Allocation:
        raise ProblemError("BFT-3000", "No.", "Nothing.")

    def cheats(problem: Problem) -> Allocation:
        everything = {node.name: "t" for node in problem.nodes}
        return Allocation(assignment=everything, objective=1e12, node_price=0.0)

    for fallback in (refuses, cheats):
        answer = solve_limited(
            steady(),
            solver="cbc",
            time_limit_s=1.0,
            runner=Says(RunnerReport(stdout="", failure="died of SIGABRT")),
            fallback=fallback,
        )
        check(steady(), answer.allocation)
        assert answer.allocation.assignment == {"n0": "t", "n1": "t"}
        assert answer.failure == "The solver cbc died of SIGABRT."
        assert answer.allocation.gap > 0


def test_best_so_far_has_a_gap_that_holds() -> None:
    problem = steady()
    found = {"n0": "t", "n1": "t", "n2": "t"}
    stdout = json.dumps(
        {
            "status": "feasible",
            "assignment": found,
            "objective": 2980.0,
            "bound": 7000.0,
            "message": "",
        }
    )
    answer = solve_limited(
        problem, solver="cbc", time_limit_s=1.0, runner=Says(RunnerReport(stdout=stdout))
    )
    check(problem, answer.allocation)
    assert answer.allocation.assignment == found
    assert answer.status == "feasible"
    best = solve(problem).objective
    assert best - answer.allocation.objective <= answer.allocation.gap <= 7000.0 - 2980.0


# --- What a failure leaves behind ---------------------------------------------------


def test_the_problem_of_a_failure_is_kept_for_replay(tmp_path: Path) -> None:
    problem, dumps = steady(), tmp_path / "dumps"
    runner = Says(RunnerReport(stdout="", failure="died of SIGSEGV"))
    for _ in range(2):
        answer = solve_in_child(problem, solver="cbc", dump_dir=dumps, runner=runner)
    (path,) = dumps.iterdir()
    assert str(path) in answer.failure
    assert problem_from_dict(json.loads(path.read_text())) == problem
    assert solve_reference(problem_from_dict(json.loads(path.read_text()))).objective > 0


def test_dumps_do_not_fill_the_disk(tmp_path: Path) -> None:
    for i in range(MOST_DUMPS):
        (tmp_path / f"problem-cbc-{i}.json").touch()
    runner = Says(RunnerReport(stdout="", failure="died of SIGSEGV"))
    answer = solve_in_child(steady(), solver="cbc", dump_dir=tmp_path, runner=runner)
    assert f"already has {MOST_DUMPS}" in answer.failure
    assert len(list(tmp_path.iterdir())) == MOST_DUMPS


def test_a_place_that_cannot_be_written_is_no_second_failure(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    runner = Says(RunnerReport(stdout="", failure="died of SIGSEGV"))
    answer = solve_in_child(steady(), solver="cbc", dump_dir=blocked, runner=runner)
    assert "could not be kept" in answer.failure
    check(steady(), answer.allocation)


def test_nothing_is_left_of_a_success(tmp_path: Path) -> None:
    answer = solve_in_child(steady(), solver="highs", dump_dir=tmp_path)
    assert answer.failure == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "[]",
        "{}",
        '{"status": "optimal"}',
        '{"status": "best", "assignment": {}, "objective": 0, "bound": 0, "message": ""}',
        '{"status": "optimal", "assignment": [], "objective": 0, "bound": 0, "message": ""}',
        '{"status": "optimal", "assignment": {"n": 1}, "objective": 0, "bound": 0, "message": ""}',
        '{"status": "optimal", "assignment": {}, "objective": "0", "bound": 0, "message": ""}',
        '{"status": "optimal", "assignment": {}, "objective": true, "bound": 0, "message": ""}',
        '{"status": "optimal", "assignment": {}, "objective": NaN, "bound": 0, "message": ""}',
        '{"status": "optimal", "assignment": {}, "objective": 1@, "bound": 0, "message": ""}',
    ],
)
def test_an_answer_of_the_wrong_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json says it in its own words
        read_answer(text.replace("@", "0" * 400))


def test_a_request_holds_the_start() -> None:
    request = json.loads(write_request(steady(), solver="cbc", start={"n0": "t"}))
    assert request["start"] == {"n0": "t"}
    assert problem_from_dict(request["problem"]) == steady()
