"""``bftrainer simulate``: what users type and what they get."""

from __future__ import annotations

import csv
import json
import re
import shlex
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from bftrainer.cli.main import main
from bftrainer.lab.simulator.metrics import WHICH_FIGURE, WORDS
from bftrainer.lab.simulator.physical import MEASURED
from bftrainer.lab.verbs import simulate as simulate_module
from bftrainer.lab.verbs import trace as trace_module
from bftrainer.model.errors import ExitCode

Output = pytest.CaptureFixture[str]
SHORT = ["simulate", "--nodes", "0:64", "--hours", "3", "--p-jmax", "4"]
NAMES = MEASURED.by_name()
FOUR = "milp,equal-share,fcfs-greedy,no-rescale"


def document(capsys: Output, *more: str) -> dict[str, Any]:
    assert main([*SHORT, *more, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_one_policy_is_one_object(capsys: Output) -> None:
    found = document(capsys)
    assert found["policy"] == "milp"
    assert {"utilization", "n_eq", "events", "decisions", "rescales", "completed"} <= set(found)
    assert "runs" not in found


def test_t_fwd_is_a_time() -> None:
    for nonsense in ("auto", "-1", "nan", "1e30"):
        assert main([*SHORT, "--t-fwd", nonsense]) == ExitCode.USAGE


def test_several_policies_are_a_list_of_the_same_objects(capsys: Output, tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    runs = document(capsys, "--policy", FOUR, "--csv", str(table))["runs"]
    assert isinstance(runs, list)
    assert [run["policy"] for run in runs] == FOUR.split(",")
    assert len({run["events"] for run in runs}) == 1
    one = document(capsys, "--policy", "no-rescale")
    timeless = [name for name in one if not name.startswith("decision_ms")]
    assert {n: one[n] for n in timeless} == {n: runs[3][n] for n in timeless}
    with table.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [float(row["utilization"]) for row in rows] == [run["utilization"] for run in runs]


def test_physical_costs_are_the_measured_ones_and_are_told(capsys: Output) -> None:
    found = document(capsys, "--costs", "physical")
    free = document(capsys, "--costs", "physical", *(f"--cost={name}=0" for name in NAMES))
    assert found["costs_s"] == MEASURED.by_name()
    assert found["cost_rescale"] > 0.0 == free["cost_rescale"]
    assert main([*SHORT, "--costs", "physical", "--cost", "claim=7"]) == 0
    text = capsys.readouterr().out
    assert "costs physical (detection 0.5 s, claim 7 s, warm_up 5 s, pause_up 0.3 s," in text


def test_policies_may_be_repeated_or_joined(capsys: Output) -> None:
    found = document(capsys, "--policy", "milp, fcfs-greedy", "--policy", "milp")["runs"]
    assert isinstance(found, list)
    assert [run["policy"] for run in found] == ["milp", "fcfs-greedy"]


def test_the_table_compares_every_figure(capsys: Output) -> None:
    assert main([*SHORT, "--policy", "milp,no-rescale", "--job-nodes", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("With milp, trainers used ")
    assert lines[1].startswith("Each policy was replayed once")
    assert lines[2].startswith("Trace sample: 64 nodes, 3 h")
    assert "A job of no-rescale asks for 2 nodes." in lines[2]
    head = lines.index("All figures") + 1
    assert lines[head].split() == ["milp", "no-rescale", "MEANING"]
    assert len(lines) == head + 1 + len(WORDS) + 2
    assert lines[-1].strip() == WHICH_FIGURE


def test_a_report_names_the_command_that_makes_it_again(tmp_path: Path, capsys: Output) -> None:
    pytest.importorskip("matplotlib", reason="reports need matplotlib (extra demo)")
    report = tmp_path / "a report.html"
    argv = [*SHORT, "--start", "3600", "--policy", "milp,no-rescale", "--report", str(report)]
    assert main(argv) == 0
    command = f"bftrainer {shlex.join(argv)}"
    text = report.read_text()
    start = text.index("<code>") + len("<code>")
    given = unescape(text[start : text.index("</code>")])
    assert sorted(shlex.split(given)) == sorted(shlex.split(command))
    assert main(shlex.split(given)[1:]) == 0
    assert _pictures(report.read_text()) == _pictures(text) != []
    capsys.readouterr()


def _pictures(page: str) -> list[str]:
    return re.findall(r"<svg.*?</svg>", page, re.DOTALL)


@pytest.mark.parametrize(
    ("argv", "exit_code", "code"),
    [
        (["--policy", "milp,magic"], ExitCode.VALIDATION_FAILED, "BFT-3050"),
        (["--policy", "milp,"], ExitCode.VALIDATION_FAILED, "BFT-3050"),
        (["--report", "week.pdf"], ExitCode.USAGE, "BFT-4110"),
        (["--csv", "/no/such/place.csv"], ExitCode.VALIDATION_FAILED, "BFT-4002"),
        (["--cost", "claim=5"], ExitCode.USAGE, "BFT-1000"),
        (["--costs", "physical", "--cost", "coffee=5"], ExitCode.USAGE, "BFT-4101"),
        (["--workload", "knitting"], ExitCode.VALIDATION_FAILED, "BFT-4011"),
    ],
)
def test_mistakes_have_a_code_and_a_next_step(
    capsys: Output, argv: list[str], exit_code: ExitCode, code: str
) -> None:
    assert main([*SHORT, *argv]) == exit_code
    said = capsys.readouterr()
    assert f"error {code}: " in said.err
    assert "\nnext: " in said.err
    assert said.out == ""


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_progress_bar_is_for_terminals(
    capsys: Output, monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool
) -> None:
    monkeypatch.setattr(trace_module, "PATIENCE_S", -1.0)
    monkeypatch.setattr(
        simulate_module._Bar, "is_shown", property(lambda _: is_terminal), raising=True
    )
    shown: list[float] = []
    monkeypatch.setattr(trace_module.LateProgress, "report", lambda _, share: shown.append(share))
    assert main([*SHORT, "--policy", "milp,equal-share", "--json"]) == 0
    json.loads(capsys.readouterr().out)
    # Reading the trace may report; replaying does so between 0 and 1, on terminals only.
    replaying = [share for share in shown if 0 < share < 1]
    assert bool(replaying) is is_terminal
    assert replaying == sorted(replaying)
    if is_terminal:
        assert min(replaying) < 0.1
        assert max(replaying) > 0.9
