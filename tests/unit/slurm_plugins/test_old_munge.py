"""The munge that the doctor names: this host's, unless its distribution has mended it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from slurm_plugins.releases import MUNGE_HOLE, old_munge

MENDED = f"munge (0.5.15-2+deb12u1)\n\n  * Fix buffer overflow ({MUNGE_HOLE})\n"
OTHERS = "munge (0.5.15-2)\n\n  * New upstream release\n"


def program(directory: Path, name: str, says: str, status: int = 0) -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\nexit {status}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("says", "found"),
    [
        ("munge-0.5.18 (2026-02-10)", ""),
        ("munge-0.5.17 (2026-01-01)", "0.5.17"),
        ("munge-0.5.9 (2011-01-01)", "0.5.9"),
        ("munge-0.6.0", ""),
        ("munge-1.0.0", ""),
        ("munge-0.5", ""),
        ("", ""),
        ("munged: error", ""),
    ],
)
def test_its_release(tmp_path: Path, says: str, found: str) -> None:
    program(tmp_path, "munged", says)
    assert old_munge(f"{tmp_path}:/bin", tmp_path / "none") == found


def test_a_host_without_munge(tmp_path: Path) -> None:
    assert old_munge(str(tmp_path), tmp_path) == ""


@pytest.mark.parametrize(("changes", "found"), [(MENDED, ""), (OTHERS, "0.5.15")])
def test_a_package_that_was_mended_says_so(tmp_path: Path, changes: str, found: str) -> None:
    program(tmp_path, "munged", "munge-0.5.15 (2022-06-22)")
    path = f"{tmp_path}:/bin"
    with gzip.open(tmp_path / "changelog.Debian.gz", "wt") as written:
        written.write(changes)
    assert old_munge(path, tmp_path) == found
    (tmp_path / "changelog.Debian.gz").write_bytes(b"no archive")
    assert old_munge(path, tmp_path) == ""  # not known
    program(tmp_path, "rpm", changes)
    assert old_munge(path, tmp_path / "none") == found
    program(tmp_path, "rpm", "file /usr/sbin/munged is not owned by any package", status=1)
    assert old_munge(path, tmp_path / "none") == "0.5.15"  # built from source
