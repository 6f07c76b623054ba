"""Each file of tests passes alone, without what others import or leave behind.

A process that aborts after its last test (status 134) is seen here only: xdist hides how its
workers end. ``make test-long`` runs all files, a shard those whose day it is (``proofs.is_due``).
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from bftrainer.batch import process

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 580.0
PASSED, NOTHING_TO_RUN = 0, 5  # statuses of pytest; 5 also where all tests of a file are long
LONG_AS_A_WHOLE = re.compile(r"^pytestmark = .*\bmark\.long\b", re.MULTILINE)
# What pytest and xdist leave in the environment would make the other pytest a worker of this one.
OF_PYTEST = re.compile("PYTEST_|COV_")


def files_to_run() -> list[str]:
    """Return the files that have tests which are not long, as paths in the tree."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    texts = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in paths}
    return [file for file, text in texts.items() if not LONG_AS_A_WHOLE.search(text)]


def test_there_are_files_to_run() -> None:
    assert len(files_to_run()) > 500


@pytest.mark.parametrize("file", files_to_run())
def test_a_file_passes_alone(file: str) -> None:
    options = ("-m", "not long", "-x", "-q", "-p", "no:cacheprovider")
    environment = {name: value for name, value in os.environ.items() if not OF_PYTEST.match(name)}
    run = process.run(
        [sys.executable, "-m", "pytest", file, *options],
        timeout_s=LIMIT_S,
        env=environment,
        cwd=ROOT,
    )
    output = f"{run.stdout[-4000:]}\n{run.stderr[-2000:]}"
    assert run.returncode in (PASSED, NOTHING_TO_RUN), f"status {run.returncode}\n{output}"
