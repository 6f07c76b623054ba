"""Where no hosts can run, it is said why, and tests are skipped for that reason."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bftrainer.batch import process
from tests.support.hosts import running_hosts, why_not

ROOT = Path(__file__).parents[2]
ASK = """\
import os, sys
from tests.support.hosts.why_not import why_not
os.setresuid(*[int(sys.argv[1])] * 3)
print(why_not())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="gives up what root may")
@pytest.mark.parametrize(
    ("user", "without", "reason"),
    [
        ("65534", "-kill", "not root"),
        ("0", "-sys_admin", "unshare: unshare failed: Operation not permitted"),
        ("0", "-net_admin", "Operation not permitted"),
    ],
)
def test_what_may_not_be_done_is_named(user: str, without: str, reason: str) -> None:
    argv = ("setpriv", f"--bounding-set={without}", sys.executable, "-c", ASK, user)
    done = process.run(argv, timeout_s=60, cwd=ROOT)
    assert done.is_ok, done.stderr
    assert done.stdout.startswith("no hosts: ")
    assert reason in done.stdout


def test_tests_are_skipped_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(why_not, "PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    why_not.why_not.cache_clear()
    try:
        with pytest.raises(pytest.skip.Exception, match=r"no hosts: unshare, .* is missing"):
            running_hosts().__enter__()
    finally:
        why_not.why_not.cache_clear()
