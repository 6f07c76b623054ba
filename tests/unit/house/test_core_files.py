"""A crash of an agent or worker writes no memory to a file, unless its user wants it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bftrainer.batch import process
from bftrainer.model.preamble import under
from tests.support import core_files
from tests.support.core_files import core_files_allowed

__all__ = ["core_files_allowed"]
pytestmark = pytest.mark.usefixtures("core_files_allowed")

# Becomes a program as an agent starts one.
STARTING = """
import os, sys
from bftrainer.batch.process import forbid_core_files
forbid_core_files()
os.execv(sys.argv[1], sys.argv[1:])
"""
CRASHING = ("/bin/sh", "-c", "cat /proc/self/limits; kill -ABRT $$")


def crashed(directory: Path, *argv: str) -> tuple[tuple[str, str], bool]:
    """Crash a program there; return its limits, and whether it left a core file."""
    done = process.run((sys.executable, "-c", STARTING, *argv), timeout_s=60, cwd=directory)
    assert done.returncode == -6, done.stderr
    cores = list(directory.glob("core*"))
    for core in cores:
        core.unlink()  # megabytes
    return core_files.limits_in(done.stdout), bool(cores)


def test_a_crash_leaves_no_core_file(tmp_path: Path) -> None:
    """Seen failing before: a crashed worker left its keys and its tracker's token in a file."""
    _, hard = core_files.limits_of("self")
    assert crashed(tmp_path, *CRASHING) == (("0", hard), False)


def test_a_preamble_may_raise_the_limit(tmp_path: Path) -> None:
    _, hard = core_files.limits_of("self")
    preamble = tmp_path / "preamble.sh"
    preamble.write_text("ulimit -Sc hard\n")
    limits, left_core = crashed(tmp_path, *under(str(preamble), CRASHING))
    assert limits == (hard, hard)
    assert left_core or not core_files.are_written_beside()
