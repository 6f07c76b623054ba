"""What was decided before the core was rebuilt is decided still; a change is found and named."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from bftrainer.batch import process
from tests.support.frozen import decisions, problems
from tests.support.frozen.changes import CAUSES, Around, changes, wording
from tests.support.frozen.core import decided
from tests.support.frozen.lines import Plain, read, write

ROOT = Path(__file__).resolve().parents[3]
FROZEN = ROOT / "tests" / "frozen"
DECISIONS = sorted((FROZEN / "decisions").glob("*.jsonl.gz"))
MANY = (("1", "4"), ("2", "5"))  # seed, every so manieth; a nineteenth takes a fourth of the time
EXPECTED: tuple[str, ...] = ()  # causes by which plans may differ from the frozen ones

# Whole plans, memory and all: what is frozen leaves out what only the core itself reads.
WHOLE = """\
import sys
sys.path.append(".")
from pathlib import Path
from tests.support.frozen import core, lines
from bftrainer.model.canonical import digest
from bftrainer.decide.decision import decide
from bftrainer.decide.policies.base import load_policy
for path in sorted(Path("tests/frozen/decisions").glob("*.jsonl.gz")):
    for case in lines.read(path)[1][::9]:
        given = core.input_of(case["situation"])
        print(case["id"], digest(decide(given, load_policy(given.settings.policy))))
"""
LATER: Callable[[str], float | None] = {"2": 5.0}.get
AROUND = Around(then={"1"}, later=LATER)


def _python(*argv: str, seed: str = "0") -> process.Completed:
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    return process.run([sys.executable, *argv], timeout_s=300.0, env=environment, cwd=ROOT)


def _compare(*options: str, seed: str = "0") -> process.Completed:
    return _python("scripts/frozen.py", *options, seed=seed)


@pytest.mark.parametrize(
    ("seed", "every"),
    [("2", "19"), *(pytest.param(*all_but, marks=pytest.mark.long) for all_but in MANY)],
)
def test_nothing_is_decided_otherwise(seed: str, every: str) -> None:
    parts = ("--parts", "decisions", "problems")
    expected = ("--expect", *EXPECTED) if EXPECTED else ()
    done = _compare("compare", *parts, "--every", every, *expected, "--json", "-", seed=seed)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    document = json.loads(done.stdout)
    assert document["decisions"]["compared"] >= 100
    assert document["problems"]["compared"] >= 20


@pytest.mark.long
def test_no_plan_hangs_on_the_order_of_a_set() -> None:
    one, other = (_python("-c", WHOLE, seed=seed) for seed in ("1", "2"))
    assert one.is_ok, one.stderr[-2000:]
    assert len(one.stdout.splitlines()) >= 50
    assert one.stdout == other.stdout


@pytest.mark.parametrize(
    "stratum",
    [
        "give-back",
        "give-back-announced",
        "release",
        "cancel",
        "claim",
        "move",
        "no-change",
        "reserve",
        "reserve-empty",
        "reservation",
        "slow-node",
        "gap",
        "planned-start",
        "announced",
        "cooling",
        "several-trainers",
        "preempted",
        "left-to-queue",
    ],
)
def test_there_are_decisions_of_each_kind(stratum: str) -> None:
    assert _strata()[stratum] >= 2


@cache
def _strata() -> Counter[str]:
    return Counter(name for path in DECISIONS for case in read(path)[1] for name in case["strata"])


def test_the_files_are_small() -> None:
    assert sum(p.stat().st_size for p in FROZEN.rglob("*") if p.is_file()) < 5_000_000


def _first(wanted: Callable[[Plain], bool]) -> tuple[Plain, Plain]:
    """The first case of that kind, and the first line of its file."""
    for path in DECISIONS:
        head, cases = read(path)
        for case in cases:
            if wanted(case):
                return head, case
    raise AssertionError("there is no such case")


def test_another_plan_is_named_and_fails_unless_it_is_expected(tmp_path: Path) -> None:
    head, case = _first(lambda c: bool(c["plan"]["give_backs"]))
    (given, *_), case["plan"]["give_backs"] = case["plan"]["give_backs"], []
    gave = {given["for_job"]: [case["situation"]["now_s"] + 9.0]}
    write(tmp_path / "decisions" / "one.jsonl.gz", {**head, "give_backs": gave}, [case])
    argv = ("--directory", str(tmp_path), "compare", "--parts", "decisions")
    done = _compare(*argv, "--json", "-")
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert document["decisions"] == {"compared": 1, "equal": 0}
    assert [row["cause"] for row in document["causes"]] == ["give-back-sooner"]
    assert f"job {given['for_job']}" in document["causes"][0]["changes"][0]["what"]
    done = _compare(*argv, "--expect", "give-back-sooner")
    assert done.returncode == 0, done.stderr
    assert "0 of 1 equal" in done.stdout
    assert _compare(*argv, "--expect", "reserve").returncode == 1


def test_nothing_to_compare_is_no_success(tmp_path: Path) -> None:
    done = _compare("--directory", str(tmp_path), "compare", "--parts", "decisions")
    assert done.returncode == 1
    assert "nothing is frozen of decisions" in done.stderr


def test_what_a_core_has_no_field_for_is_passed_over() -> None:
    _, case = _first(lambda c: bool(c["plan"]["claims"]) and bool(c["situation"]["pending_jobs"]))
    situation = case["situation"]
    for record in (situation, situation["settings"], situation["scheduler"]):
        record["of_a_deleted_rule"] = 1.0
    for kind in ("nodes", "pending_jobs", "trainers", "pilots"):
        for record in situation[kind]:
            record["of_a_deleted_rule"] = 1.0
    situation["memory_of_rules"]["a_deleted_rule"] = {"type": "DeletedRule"}
    assert json.loads(json.dumps(decided(situation))) == case["plan"]


def test_a_core_that_raises_is_a_change(tmp_path: Path) -> None:
    head, case = _first(lambda c: bool(c["plan"]["claims"]))
    case["situation"]["nodes"] = 7
    write(tmp_path / "one.jsonl.gz", head, [case])
    ((_, found),) = decisions.compare(tmp_path / "one.jsonl.gz")
    assert [change.cause for change in found] == ["failure"]


# ---- causes ------------------------------------------------------------------------------


def _plan(**other: object) -> Plain:
    released = {"pilot_id": "p1", "node": "n1", "reason": "Because."}
    plan: Plain = {
        "give_backs": [
            {**released, "for_job": "1"},
            {**released, "node": "n2", "for_job": "2"},
            {**released, "node": "n3", "for_job": "3"},
        ],
        "releases": [{**released, "node": "n4"}],
        "cancels": [{**released, "node": "n5"}],
        "claims": [{"node": "n6", "time_limit_s": 60.0, "for_trainer": "t1"}],
        "assignment": {"n6": "t1", "n7": "t2", "n8": "t2"},
        "reserve": ["n9"],
        "ends_s": {"n6": 100.0},
        "not_used": {"n9": "It is kept free."},
        "objective": 2.0,
        "trouble": "",
    }
    return {**plan, **other}


PLAN = _plan()
GAVE, (CLAIM,) = PLAN["give_backs"], PLAN["claims"]


@pytest.mark.parametrize(
    ("before", "after", "causes"),
    [
        (_plan(), _plan(), []),
        (_plan(give_backs=GAVE[1:]), _plan(), ["give-back-sooner"]),
        (_plan(give_backs=GAVE[:2]), _plan(), ["give-back-new"]),
        (_plan(), _plan(give_backs=[GAVE[0], GAVE[2]]), ["give-back-later"]),
        (_plan(), _plan(give_backs=GAVE[:2]), ["give-back-missing"]),
        (_plan(), _plan(give_backs=[*GAVE[:2], {**GAVE[2], "node": "x"}]), ["give-back-nodes"]),
        (_plan(), _plan(releases=[]), ["release-missing"]),
        (_plan(releases=[]), _plan(), ["release-new"]),
        (_plan(), _plan(cancels=[]), ["cancel-missing"]),
        (_plan(cancels=[]), _plan(), ["cancel-new"]),
        (_plan(), _plan(claims=[]), ["claim-missing"]),
        (_plan(claims=[]), _plan(), ["claim-new"]),
        (_plan(), _plan(claims=[{**CLAIM, "time_limit_s": 61.0}]), ["claim-limit"]),
        (_plan(), _plan(claims=[{**CLAIM, "time_limit_s": 60.0 + 1e-6}]), []),
        (_plan(), _plan(claims=[{**CLAIM, "or_time_limit_s": 30.0}]), ["claim-second-limit"]),
        (_plan(), _plan(claims=[{**CLAIM, "for_trainer": "t2"}]), ["claim-trainer"]),
        (_plan(), _plan(assignment={"n6": "t1", "n7": "t2"}), ["assignment-size"]),
        (
            _plan(),
            _plan(assignment={"n6": "t2", "n7": "t1", "n8": "t2"}),
            ["assignment-nodes", "assignment-nodes"],
        ),
        (_plan(), _plan(reserve=[]), ["reserve"]),
        (_plan(), _plan(ends_s={"n6": 130.0}), ["gap"]),
        (_plan(), _plan(ends_s={}), ["gap"]),
        (_plan(), _plan(objective=2.0 + 1e-6), ["objective"]),
        (_plan(), _plan(objective=2.0 + 1e-12), []),
        (_plan(), _plan(objective=None), ["objective"]),
        (_plan(), _plan(trouble="BFT-2118: nothing."), ["trouble"]),
    ],
)
def test_a_change_has_its_cause(before: Plain, after: Plain, causes: list[str]) -> None:
    found = [cause for cause, _ in changes(before, after, AROUND)]
    assert found == causes
    assert set(found) <= CAUSES.keys()


def test_other_words_are_a_cause_of_their_own() -> None:
    after = _plan(not_used={"n9": "It is left free."})
    assert list(changes(PLAN, after, AROUND)) == []
    assert list(wording(PLAN, after)) == [("wording", "n9: It is kept free. -> It is left free.")]


# ---- the solver --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "cause"),
    [
        ("objective", -1.0, "solver-objective"),
        ("sizes", {"t0": 99}, "solver-sizes"),
        ("problem", {"nodes": []}, "solver-failure"),
    ],
)
def test_another_answer_of_the_solver_is_named(
    key: str, value: object, cause: str, tmp_path: Path
) -> None:
    head, cases = read(FROZEN / "problems.jsonl.gz")
    write(tmp_path / "p.jsonl.gz", head, [cases[0], {**cases[1], key: value}])
    found = dict(problems.compare(tmp_path / "p.jsonl.gz"))
    assert found[cases[0]["id"]] == []
    assert [change.cause for change in found[cases[1]["id"]]] == [cause]
