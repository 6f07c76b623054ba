"""``bftrainer trace``: what users type and what they get."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bftrainer.batch import process
from bftrainer.batch.traces import SAMPLE, read_trace
from bftrainer.cli.main import main
from bftrainer.lab.verbs import trace as trace_module
from bftrainer.model.errors import ExitCode

FIXTURES = Path(__file__).parents[1] / "fixtures" / "traces"
Output = pytest.CaptureFixture[str]


def test_info_prints_the_tables(capsys: Output) -> None:
    assert main(["trace", "info", str(SAMPLE)]) == 0
    text = capsys.readouterr().out
    for words in (
        "equivalent nodes (N_eq)",
        "pool grows, per hour (INC/h)",
        "OF NODE-TIME",
        "36-48",
    ):
        assert words in text
    assert "note: synthetic" not in text  # notes of a source are not kept in files


def test_info_as_json_of_a_part(capsys: Output) -> None:
    argv = ["trace", "info", str(SAMPLE), "--nodes", "0:100", "--start", "3600", "--hours", "12"]
    assert main([*argv, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    part = read_trace(SAMPLE).restrict(slice(0, 100), start_s=3600, hours=12)
    assert document["schema"] == "bftrainer/trace-info/1"
    assert document["n_nodes"] == 100
    assert document["events"] == len(part.pool_changes())
    assert document["eq_nodes"] == part.equivalent_nodes()
    assert document["span_s"] == [3600, 3600 + 12 * 3600]


def test_info_draws_a_picture(tmp_path: Path, capsys: Output) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib (extra demo)")
    picture = tmp_path / "trace.png"
    assert main(["trace", "info", str(SAMPLE), "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["trace", "info", str(SAMPLE), "--plot", str(tmp_path / "no" / "x.png")]) == 8
    assert "error BFT-4002" in capsys.readouterr().err


def test_generate_then_convert_gives_the_same_trace(tmp_path: Path, capsys: Output) -> None:
    made, text = tmp_path / "made.npz", tmp_path / "made.csv.gz"
    argv = [
        "trace",
        "generate",
        "--out",
        str(made),
        "--nodes",
        "20",
        "--hours",
        "30",
        "--seed",
        "5",
    ]
    assert main([*argv, "--set", "poll_s=20", "--start", "1000"]) == 0
    assert main(["trace", "convert", str(made), str(text)]) == 0
    assert capsys.readouterr().out.count("fragments of 20 nodes") == 2
    one, two = read_trace(made), read_trace(text)
    assert list(one.span_s) == list(two.span_s) == [1000, 1000 + 30 * 3600]
    assert one.start_s.tolist() == two.start_s.tolist()
    assert one.names == two.names


def test_convert_reads_accounting_and_keeps_what_nobody_could_fill(
    tmp_path: Path, capsys: Output
) -> None:
    out = tmp_path / "out.csv"
    argv = ["trace", "convert", str(FIXTURES / "sacct.txt"), str(out), "--unfillable"]
    argv += ["--start", "2024-05-01T10:00", "--end", "2024-05-01T12:00"]
    assert main([*argv, "--ignore", "bf", "--time-zone", "Europe/Berlin"]) == 0
    assert "note: nodes on which no job ran" in capsys.readouterr().out
    rows = out.read_text().splitlines()
    assert rows[0] == "# bftrainer-trace 1"
    assert rows[4] == '# partitions: ["batch", "batch", "batch", "gpu"]'
    assert rows[5] == "node,start_s,end_s,unfillable"
    assert len(rows) == 6 + 4
    assert all(row.endswith(",1") for row in rows[6:])


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["info", "missing.npz"], ExitCode.VALIDATION_FAILED, "BFT-4002"),
        (["info", str(SAMPLE), "--nodes", "1-5"], ExitCode.USAGE, "is not A:B"),
        (["info", str(SAMPLE), "--nodes", "300:400"], ExitCode.VALIDATION_FAILED, "BFT-4005"),
        (["info", str(SAMPLE), "--hours", "49"], ExitCode.VALIDATION_FAILED, "BFT-4005"),
        (["info", str(SAMPLE), "--format", "csv"], ExitCode.VALIDATION_FAILED, "BFT-4001"),
        (["generate", "--out", "x.npz", "--set", "seed=1"], ExitCode.USAGE, "no parameter 'seed'"),
        (["generate", "--out", "x.npz", "--set", "poll_s=?"], ExitCode.USAGE, "is not a number"),
        (["generate", "--out", "x.doc", "--hours", "1"], ExitCode.VALIDATION_FAILED, "BFT-4003"),
    ],
)
def test_mistakes_have_a_code_and_no_traceback(
    argv: list[str], code: int, said: str, capsys: Output
) -> None:
    assert main(["trace", *argv]) == code
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 2


def test_help_costs_no_numpy() -> None:
    code = (
        "import sys; from bftrainer.cli.main import main; main(['trace', 'info', '-h']); "
        "sys.exit('numpy' in sys.modules)"
    )
    assert process.run([sys.executable, "-c", code], timeout_s=60).is_ok


def test_a_bar_shows_up_late_and_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    with trace_module.LateProgress("quick") as quick:
        quick.report(0.5)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(trace_module, "PATIENCE_S", -1.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with trace_module.LateProgress("counting") as slow:
        slow.report(0.5)
        slow.report(7.0)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "counting" in shown.err
