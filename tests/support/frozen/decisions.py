"""Frozen decisions → what the core decides otherwise now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.support.frozen import core
from tests.support.frozen.changes import Around, Change, changes, wording
from tests.support.frozen.lines import Plain, read, write

WAITS_S = (0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 30.0, 45.0, 60.0)  # tried for "later"


def compare(path: Path, every: int = 1) -> Iterator[tuple[str, list[Change]]]:
    """Decide again on each ``every``-th situation; yield its id and what differs."""
    head, cases = read(path, every)
    for case in cases:
        yield case["id"], list(_compare(case, head["give_backs"]))


def _compare(case: Plain, gave: dict[str, list[float]]) -> Iterator[Change]:
    try:
        plan = core.decided(case["situation"])
    except Exception as failure:  # noqa: BLE001 - a finding; the other cases are compared
        yield Change(cause="failure", case=case["id"], what=repr(failure))
        return
    around = _around(gave, case["situation"])
    found = list(changes(case["plan"], plan, around)) or wording(case["plan"], plan)
    for cause, what in found:
        yield Change(cause=cause, case=case["id"], what=what)


def _around(gave: dict[str, list[float]], situation: Plain) -> Around:
    now_s: float = situation["now_s"]

    def later(job: str) -> float | None:
        for wait_s in WAITS_S:
            moment = {**situation, "now_s": now_s + wait_s, "is_new_look": False}
            if any(one["for_job"] == job for one in core.decided(moment)["give_backs"]):
                return wait_s
        return None

    then = {job for job, times_s in gave.items() if any(at_s > now_s for at_s in times_s)}
    return Around(then=then, later=later)


def accept(path: Path) -> None:
    """Freeze what is decided now in the same situations."""
    head, cases = read(path)
    write(path, head, [{**case, "plan": core.decided(case["situation"])} for case in cases])
