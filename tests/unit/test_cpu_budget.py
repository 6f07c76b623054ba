"""The budget of processor time that ``make test`` is held to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "cpu_budget.py"
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
