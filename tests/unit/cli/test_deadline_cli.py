"""``bftrainer study deadline``: what it prints, from traces and journals, and its errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bftrainer.batch.traces import SAMPLE
from bftrainer.cli.main import main
from bftrainer.model.errors import ExitCode
from tests.unit.journal.test_yesterday import write_journal

Output = pytest.CaptureFixture[str]
TRACE = ("--history", str(SAMPLE))


def study(directory: Path, **keys: Any) -> str:
    path = directory / "resnet.yaml"
    body = {
        "parameters": {"lr": {"type": "float", "low": 0.001, "high": 0.3, "log": True}},
        "rule": {"name": "sha", "trials": 81, "least": 1, "most": 27, "eta": 3},
        "nodes": "1:8",
        "unit_s": {"1": 1800, "2": 950, "4": 520, "8": 300},
        **keys,
    }
    path.write_text(json.dumps({k: v for k, v in body.items() if v is not None}))
    return str(path)


def ask(*args: str) -> int:
    return main(["study", "deadline", *args])


@pytest.mark.long
def test_a_trace_tells_how_likely_it_is_and_what_the_reserve_takes(
    tmp_path: Path, capsys: Output
) -> None:
    asked = (study(tmp_path), "--deadline", "6h", *TRACE, "--now-idle", "3")
    assert ask(*asked) == ExitCode.OK
    printed = capsys.readouterr().out
    assert ask(*asked, "--json") == ExitCode.OK
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "bftrainer/study-deadline/1"
    assert 0.0 <= found["low"] <= found["probability"] <= found["high"] <= 1.0
    assert found["low"] < found["high"]
    assert found["probability_reserved"] >= 0.95 > found["probability"]
    assert found["reserved"] > 0
    assert f"{found['probability']:.1%}" in printed
    assert f"{found['reserved']} reserved nodes" in printed
    assert found["held"]["cost"] is None
    assert found["least_s"] < found["held"]["time_s"]["mean"] < found["held"]["time_s"]["p95"]
    assert found["held"]["time_s"]["p95"] <= 6 * 3600.0
    for name in ("mean", "p95"):
        hours = found["held"]["time_s"][name] / 3600.0
        assert found["held"]["node_h"][name] == pytest.approx(hours * found["reserved"])
    mean, late = (f"{found['held']['node_h'][name]:.2f}" for name in ("mean", "p95"))
    assert f"{mean} ({late}) node-hours" in printed
    assert "cost" not in printed
    assert ask(*asked, "--price", "0.2/min") == ExitCode.OK
    mean, late = (f"{found['held']['node_h'][name] * 12.0:.2f}" for name in ("mean", "p95"))
    assert capsys.readouterr().out.partition("cost, mean (p95) ")[2].split()[:2] == [
        mean,
        f"({late})",
    ]


def test_a_study_for_more_nodes_than_there_are(tmp_path: Path, capsys: Output) -> None:
    rule = {"name": "none", "trials": 20_000, "most": 1}
    wide = study(tmp_path, rule=rule, nodes="1:100000", unit_s={"1": 100})
    assert ask(wide, "--deadline", "3h", *TRACE) == ExitCode.OK
    assert " reserved nodes (" in capsys.readouterr().out
    large = study(tmp_path, nodes="1000000", unit_s={"1": 100})
    assert ask(large, "--deadline", "3h", *TRACE) == ExitCode.OK
    assert "no number of nodes up to 200,000" in capsys.readouterr().out


@pytest.mark.parametrize("deadline", ["0s", "0h0m", "0.000000001s"])
def test_a_deadline_takes_time(deadline: str, tmp_path: Path, capsys: Output) -> None:
    assert ask(study(tmp_path), "--deadline", deadline, *TRACE) == ExitCode.USAGE
    assert "error BFT-1642: " in capsys.readouterr().err


def test_more_idle_nodes_now_make_it_likelier(tmp_path: Path, capsys: Output) -> None:
    found = []
    for now in ("0", "100"):
        ask(study(tmp_path), "--deadline", "6h", *TRACE, "--now-idle", now, "--json")
        found.append(json.loads(capsys.readouterr().out)["probability"])
    assert found[0] + 0.1 < found[1]


def test_the_end_of_the_history_is_now(tmp_path: Path, capsys: Output) -> None:
    assert ask(study(tmp_path), "--deadline", "1h", *TRACE, "--json") == ExitCode.OK
    found = json.loads(capsys.readouterr().out)
    same = str(found["now_idle"])
    assert ask(study(tmp_path), "--deadline", "1h", *TRACE, "--now-idle", same, "--json") == 0
    assert json.loads(capsys.readouterr().out) == found


def test_what_is_assumed_of_a_rule_is_said(tmp_path: Path, capsys: Output) -> None:
    rule = {"name": "median", "trials": 3, "most": 2}
    assert ask(study(tmp_path, rule=rule), "--deadline", "1h", *TRACE) == ExitCode.OK
    assert "note: Nobody is taken to be stopped" in capsys.readouterr().out


def test_a_study_that_takes_longer_on_any_nodes(tmp_path: Path, capsys: Output) -> None:
    assert ask(study(tmp_path), "--deadline", "1h", *TRACE) == ExitCode.OK
    printed = capsys.readouterr().out
    assert "no number of nodes; it takes at least 2h23m" in printed
    assert "held" not in printed


def test_a_history_that_is_too_short_says_how_long_it_has_to_be(
    tmp_path: Path, capsys: Output
) -> None:
    assert ask(study(tmp_path), "--deadline", "13h", *TRACE) == ExitCode.VALIDATION_FAILED
    told = capsys.readouterr().err
    assert "BFT-1651" in told
    assert "at least 52 h" in told


def test_a_journal_is_a_history(tmp_path: Path, capsys: Output) -> None:
    write_journal(tmp_path / "journal.db")  # of three hours
    journal = str(tmp_path / "journal.db")
    asked = (study(tmp_path), "--deadline", "10m", "--history", journal)
    assert ask(*asked) == ExitCode.VALIDATION_FAILED
    assert "BFT-1651: A history of 3.0 h" in capsys.readouterr().err
    assert ask(*asked, "--hours", "2") == ExitCode.VALIDATION_FAILED
    assert "BFT-1651: A history of 2.0 h" in capsys.readouterr().err
    assert ask(*asked, "--nodes", "0:1") == ExitCode.USAGE


@pytest.mark.parametrize(
    ("keys", "options", "code"),
    [
        ({"unit_s": None}, TRACE, "BFT-1643"),
        ({}, ("--history", "/nowhere/trace.npz"), "BFT-4002"),
        ({}, (*TRACE, "--price", "free"), "BFT-1642"),
        ({}, (*TRACE, "--hours", "1000"), "BFT-4005"),
        ({"rule": {"name": "shah"}}, TRACE, "BFT-1622"),
    ],
)
def test_mistakes_have_their_codes(
    tmp_path: Path, capsys: Output, keys: dict[str, Any], options: tuple[str, ...], code: str
) -> None:
    assert ask(study(tmp_path, **keys), "--deadline", "1h", *options) != ExitCode.OK
    assert code in capsys.readouterr().err
