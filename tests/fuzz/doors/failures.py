"""What a worker or its agent says of a failure: put into the reason of its trainer."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from bftrainer.daemon.explain.trainers import trouble
from bftrainer.fleet.generations.failures import given_up
from bftrainer.fleet.generations.members import WorkerFailed
from bftrainer.site.policy.model import SitePolicy
from tests.fuzz.door import Door
from tests.fuzz.hostile import texts
from tests.support.generations import Driver
from tests.support.snapshots import record

MOST_CHARS = 2000
RAISED = "BFT-1410: The script raised SyntaxError: invalid syntax (train.py, line 3)."
POLICY = SitePolicy()


def _fail(given: tuple[int, str]) -> None:
    """Fail twice in the same way; what is said of it is of bounded length."""
    returncode, cause = given
    d = Driver()
    d.target("n1")
    for _ in range(2):
        failed = d.wanted(WorkerFailed, d.exit(d.on("n1"), returncode, cause))
        why = given_up(d.machine.failures, record(), POLICY) or ""
        said = trouble(replace(record(), failing=d.machine.failures.row), 5, d.now_s)
        assert max(map(len, (why, said, *(f.cause for f in failed)))) < MOST_CHARS
        d.wait(60.0)


def _from_bytes(raw: bytes) -> Any:
    return tuple(json.loads(raw))


DOORS = (
    Door(
        name="failure",
        call=_fail,
        inputs=st.tuples(st.integers(), texts(RAISED, "It did not answer for 10 s.")),
        from_bytes=_from_bytes,
    ),
)
