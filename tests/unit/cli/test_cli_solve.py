"""``bftrainer solve``: files and pipes in, tables and JSON out, every mistake named."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bftrainer.cli.main import main
from bftrainer.lab.verbs import solve as solve_module
from bftrainer.lab.verbs.solve import SOLVERS, fold
from bftrainer.model.errors import ExitCode
from milp.reference.backends import BACKENDS

Output = pytest.CaptureFixture[str]


def document(**fields: Any) -> dict[str, Any]:
    trainer = {
        "trainer_id": "t1",
        "n_min": 1,
        "n_max": 4,
        "curve": {"sizes": [1, 4], "samples_per_s": [10, 40]},
        "rescale_up_s": 1,
        "rescale_down_s": 1,
        "current": ["n2"],
    }
    nodes = [{"name": f"n{i}"} for i in range(1, 5)]
    return {"nodes": nodes, "trainers": [trainer], "t_fwd_s": 100, "p_jmax": 1, **fields}


@pytest.fixture(name="problem_file")
def _problem_file(tmp_path: Path) -> str:
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(document()))
    return str(path)


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver_prints_one_document(solver: str, problem_file: str, capsys: Output) -> None:
    argv = ["solve", problem_file, "--solver", solver, "--json", "--time-limit", "60"]
    assert main(argv) == ExitCode.OK
    captured = capsys.readouterr()
    answer = json.loads(captured.out)
    assert captured.err == ""
    assert answer.pop("time_s") > 0
    assert answer["objective"] == pytest.approx(40 * 100 - 10)
    assert answer["node_price"] == 0.0
    assert (answer["schema"], answer["solver"]) == ("bftrainer/solve/1", solver)
    assert (answer["status"], answer["gap"], answer["failure"]) == ("optimal", 0.0, None)
    assert answer["sizes"] == {"t1": 4}
    assert answer["assignment"] == {f"n{i}": "t1" for i in range(1, 5)}
    (row,) = answer["trainers"]
    assert (row["now"], row["size"], row["nodes"]) == (1, 4, ["n1", "n2", "n3", "n4"])
    assert row["gain_of_one_more"] is None
    assert row["loss_of_one_fewer"] == pytest.approx(1000.0)


def test_people_get_a_table(problem_file: str, capsys: Output) -> None:
    assert main(["solve", problem_file]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["solver:", "exact", "(optimal)"]
    assert lines[1].split() == ["objective:", "3,990", "throughput", "x", "s"]
    assert lines[-2].split()[:4] == ["TRAINER", "NOW", "SIZE", "ONE"]
    assert lines[-1].split() == ["t1", "1", "4", "-", "1,000", "n[1-4]"]


def test_a_pipe_is_read(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    text = io.TextIOWrapper(io.BytesIO(json.dumps(document()).encode()))
    monkeypatch.setattr(sys, "stdin", text)
    assert main(["solve", "-", "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["sizes"] == {"t1": 4}


def test_a_refusal_is_said_and_replaced(tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / "large.json"
    path.write_text(json.dumps(document(nodes=[{"name": f"n{i}"} for i in range(1, 600)])))
    dumps = tmp_path / "dumps"
    argv = ["solve", str(path), "--solver", "gurobi", "--json", "--dump-dir", str(dumps)]
    assert main(argv) == ExitCode.OK
    captured = capsys.readouterr()
    answer = json.loads(captured.out)
    assert (answer["status"], answer["answered_by"]) == ("refused", "exact")
    assert "licence" in answer["failure"]
    assert captured.err.startswith("note: The solver gurobi refused")
    (dump,) = dumps.iterdir()
    assert main(["solve", str(dump)]) == ExitCode.OK  # a dump can be replayed


def test_a_solver_that_is_not_installed_is_refused(
    problem_file: str, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    entry = ("milp.reference.backends.cbc", "no_such_package", "pip install 'bftrainer[mip]'")
    monkeypatch.setitem(BACKENDS, "cbc", entry)
    assert main(["solve", problem_file, "--solver", "cbc"]) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert "error BFT-3043: The solver cbc needs the package no_such_package." in error
    assert "next: Run: pip install 'bftrainer[mip]'" in error


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in document().items() if key != name}


def with_trainer(**fields: Any) -> dict[str, Any]:
    (trainer,) = document()["trainers"]
    return document(trainers=[{**trainer, **fields}])


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (without("t_fwd_s"), "problem.t_fwd_s is missing"),
        (document(colour="red"), "problem.colour is not a known field"),
        (document(p_jmax=1.5), "problem.p_jmax must be a whole number, not a number"),
        (document(p_jmax=10**30), "problem.p_jmax is beyond 9223372036854775807"),
        (document(t_fwd_s=10**400), "problem.t_fwd_s is too large for a number"),
        (document(t_fwd_s=-1), "t_fwd_s is -1"),
        (document(objective="speed"), "scaling-efficiency, weighted, utility, not 'speed'"),
        (
            document(nodes=[{"name": 7}]),
            "problem.nodes[0].name must be a string, not a whole number",
        ),
        (document(nodes=[{"name": "a"}, {"name": "a"}]), "Node a is listed twice"),
        (with_trainer(n_min=3, n_max=2), "Trainer t1: n_min 3 and n_max 2"),
        (with_trainer(curve={"sizes": [1]}), "problem.trainers[0].curve.samples_per_s is missing"),
        (with_trainer(curve={"sizes": [2, 1], "samples_per_s": [1, 2]}), "strictly increasing"),
        (
            with_trainer(rescale_up_s="soon"),
            "problem.trainers[0].rescale_up_s must be a number, not a",
        ),
    ],
)
def test_a_wrong_field_is_named(
    data: dict[str, Any], told: str, tmp_path: Path, capsys: Output
) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(data))
    assert main(["solve", str(path)]) == ExitCode.VALIDATION_FAILED
    error = capsys.readouterr().err
    assert told in error
    assert error.startswith("error BFT-30")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"t_fwd_s": 1, "t_fwd_s": 2}', "has the field 't_fwd_s' twice"),
        (b"[]", "problem must be an object, not a list"),
    ],
)
def test_what_is_no_problem_is_refused(
    text: bytes, told: str, tmp_path: Path, capsys: Output
) -> None:
    path = tmp_path / "wrong.json"
    path.write_bytes(text)
    assert main(["solve", str(path)]) == ExitCode.VALIDATION_FAILED
    assert told in capsys.readouterr().err


def test_files_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    for name in (tmp_path / "missing.json", tmp_path, "a\0b"):
        assert main(["solve", str(name)]) == ExitCode.USAGE
        assert "error BFT-1017" in capsys.readouterr().err
    monkeypatch.setattr(solve_module, "LARGEST_FILE_BYTES", 1024)
    large = tmp_path / "large.json"
    large.write_text(" " * 1025)
    assert main(["solve", str(large)]) == ExitCode.USAGE
    assert "has more than" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [["--solver", "cplex"], ["--time-limit", "0"], ["--time-limit", "nan"], []]
)
def test_wrong_options_are_usage_errors(
    options: list[str], problem_file: str, capsys: Output
) -> None:
    argv = ["solve", *options, problem_file] if options else ["solve"]
    assert main(argv) == ExitCode.USAGE
    assert "error BFT-1000" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ([], ""),
        (["n1"], "n1"),
        (["n1", "n2", "n3", "n5"], "n[1-3],n5"),
        (["n08", "n09", "n10"], "n[08-10]"),
        (["n9", "n10"], "n9,n10"),
        (["a1", "b2"], "a1,b2"),
        (["login", "n1"], "login,n1"),
        (["n" + "9" * 5000], "n" + "9" * 5000),
        (["1", "2"], "[1-2]"),
    ],
)
def test_names_fold(names: list[str], folded: str) -> None:
    assert fold(names) == folded
