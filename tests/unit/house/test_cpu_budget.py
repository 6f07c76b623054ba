"""The budget of processor time that ``make test`` is held to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import cpu_budget
import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "cpu_budget.py"
WORK = f"{sys.executable} -c 'sum(range(50_000_000))'"
# Its end is waited for: what still runs when the command ends does not count.
ORPHAN = (
    f"(setsid bash -c 'echo $$ > pid; {WORK.replace(chr(39), chr(34))}; touch done' &);"
    " until test -e done && ! kill -0 $(cat pid) 2>/dev/null; do sleep 0.05; done"
)


@pytest.mark.parametrize(
    ("minutes", "command", "expected"),
    [
        (1.0, "true", 0),
        (1.0, "exit 5", 5),
        (1.0, "kill -TERM $$", 143),
        (0.0001, "exit 5", 5),
        (0.002, "true", 0),
        (0.002, WORK, 3),
        (0.002, ORPHAN, 3),
    ],
)
def test_what_a_command_and_all_that_it_leaves_behind_take(
    tmp_path: Path, minutes: float, command: str, expected: int
) -> None:
    argv = [sys.executable, str(SCRIPT), f"--minutes={minutes}", "--", "bash", "-c", command]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == expected, done.stdout + done.stderr
    assert "processor time: " in done.stdout


@pytest.mark.parametrize(
    ("machine", "minutes", "expected"),
    [
        (2.0, "2.0", 0),  # 240 s where all takes twice as long
        (1.0, "4.0", 0),
        # Twice as fast: 480 s of the budget's machine. Seen failing before: it was let through.
        (0.5, "8.0", 3),
    ],
)
def test_a_machine_that_is_faster_is_allowed_less(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    machine: float,
    minutes: str,
    expected: int,
) -> None:
    monkeypatch.setattr(cpu_budget, "loop", lambda: machine * cpu_budget.LOOP_S)
    monkeypatch.setattr(cpu_budget, "taken_by", lambda *_: (0, 240.0))
    monkeypatch.setattr(sys, "argv", ["cpu_budget.py", "--minutes=4", "--", "true"])
    assert cpu_budget.main() == expected  # of 4 minutes, half of it added: 6
    assert f"processor time: {minutes} min of the budget's machine, of 4;" in capfd.readouterr().out


BUSY = """
import time
import pytest

@pytest.fixture(scope="module")
def warm():
    spin()

def spin():
    began_s = time.process_time()
    while time.process_time() < began_s + 0.3:
        pass

def test_one(warm):
    spin()
"""
IDLE = "def test_two():\n    pass\n"


def test_files_of_tests_tell_what_they_took(tmp_path: Path) -> None:
    (tmp_path / "test_busy.py").write_text(BUSY)
    (tmp_path / "test_idle.py").write_text(IDLE)
    (tmp_path / "conftest.py").write_text(
        "from tests.support.costs import register\n"
        "def pytest_configure(config):\n    register(config)\n"
    )
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    environment = {**os.environ, cpu_budget.COSTS_VARIABLE: str(tmp_path)}
    root = Path(__file__).resolve().parents[3]
    environment["PYTHONPATH"] = str(root)
    done = subprocess.run(
        argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    told = cpu_budget.told_in(tmp_path)
    assert set(told) == {"(start and collection)", "test_busy.py", "test_idle.py"}
    assert told["test_busy.py"] >= 0.6  # its fixture's, too
    assert 0.0 <= told["test_idle.py"] < 0.3


def test_what_is_more_than_was_kept_is_told() -> None:
    seconds = {"tests/a.py": 50.0, "tests/b.py": 7.5}
    lines = cpu_budget.report(seconds, {"tests/a.py": 12.0, "tests/c.py": 5.0})
    assert lines == [
        "    50.0 s    +38.0  tests/a.py",
        "     7.5 s     +7.5  tests/b.py",
        "+40.5 s against tests/costs.json; an issue may add 40",
    ]
    assert cpu_budget.report(seconds, {})[-1].endswith("tests/b.py"), "there is nothing to compare"


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    assert cpu_budget.read(file) == {}
    file.write_text(cpu_budget.written({"tests/b.py": 7.54, "tests/a.py": 50.0}))
    assert file.read_text() == json.dumps({"tests/a.py": 50.0, "tests/b.py": 7.5}, indent=0) + "\n"
    assert cpu_budget.read(file) == {"tests/a.py": 50.0, "tests/b.py": 7.5}
