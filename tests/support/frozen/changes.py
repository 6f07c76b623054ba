"""Two plans for one situation → what differs, by cause. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.frozen.lines import Plain

SAME_S = 1e-3  # times closer than that are the same
SAME = 1e-9  # objectives: relative, or absolute below 1
CAUSES = {
    "give-back-sooner": "a job gets nodes that it got later then",
    "give-back-later": "a job gets nodes only when more time has passed",
    "give-back-new": "a job gets nodes that never got any then",
    "give-back-missing": "a job gets no nodes, however much time passes",
    "give-back-nodes": "a job gets other nodes",
    "release-new": "a pilot that runs goes, for no job",
    "release-missing": "a pilot that runs stays",
    "cancel-new": "a pilot that waits is cancelled",
    "cancel-missing": "a pilot that waits is not cancelled",
    "claim-new": "a pilot is asked for",
    "claim-missing": "no pilot is asked for",
    "claim-limit": "a pilot is asked for with another time limit",
    "claim-second-limit": "its alternative time limit is another one",
    "claim-trainer": "a pilot is asked for another trainer",
    "assignment-size": "a trainer gets more or fewer nodes",
    "assignment-nodes": "a trainer gets as many nodes, but others",
    "reserve": "other nodes stay free",
    "gap": "a node may be used, and then until another time",
    "objective": "the allocation is worth more or less",
    "trouble": "the policy gives no answer, or again gives one",
    "wording": "nothing but sentences",
    "failure": "the core raises an exception",
    "solver-objective": "a problem's optimum is another one",
    "solver-sizes": "sizes of the same worth, but others",
    "solver-failure": "a problem is refused, or its answer is not valid",
    "reproduction": "a result of the paper's evaluation is another one",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something that differs."""

    cause: str  # of CAUSES
    case: str  # which one
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What is to be known of the other moments, to say sooner or later."""

    then: Collection[str]  # jobs that got nodes later than this, then
    later: Callable[[str], float | None]  # job -> in how many seconds it gets nodes now


def changes(frozen: Plain, plan: Plain, around: Around) -> Iterator[tuple[str, str]]:
    """Yield cause and what differs; nothing where the plans are equal."""
    yield from _give_backs(_by_job(frozen), _by_job(plan), around)
    for kind in ("release", "cancel"):
        before, after = _whys(frozen[f"{kind}s"]), _whys(plan[f"{kind}s"])
        yield from ((f"{kind}-new", f"{n}: {after[n]}") for n in sorted(after.keys() - before))
        yield from ((f"{kind}-missing", f"{n}: {before[n]}") for n in sorted(before.keys() - after))
    yield from _claims(_by_node(frozen["claims"]), _by_node(plan["claims"]))
    yield from _assignment(frozen["assignment"], plan["assignment"])
    if frozen["reserve"] != plan["reserve"]:
        yield "reserve", f"{frozen['reserve']} -> {plan['reserve']}"
    before, after = frozen["ends_s"], plan["ends_s"]
    for node in sorted(before.keys() | after):
        if not same_s(before.get(node), after.get(node)):
            yield "gap", f"{node}: {_difference(before.get(node), after.get(node))}"
    if not same(frozen["objective"], plan["objective"]):
        yield "objective", f"{frozen['objective']} -> {plan['objective']}"
    if bool(frozen["trouble"]) != bool(plan["trouble"]):
        yield "trouble", frozen["trouble"] or plan["trouble"]


def wording(frozen: Plain, plan: Plain) -> Iterator[tuple[str, str]]:
    """Yield which sentences differ, of plans that do not."""
    for kind in ("give_backs", "releases", "cancels"):
        yield from _sentences(_whys(frozen[kind]), _whys(plan[kind]))
    yield from _sentences(frozen["not_used"], plan["not_used"])
    if frozen["trouble"] != plan["trouble"]:
        yield "wording", f"{frozen['trouble']} -> {plan['trouble']}"


def same(one: float | None, other: float | None) -> bool:
    """Whether two objectives are the same."""
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=SAME, abs_tol=SAME)


def same_s(one: float | None, other: float | None) -> bool:
    """Whether two times are the same."""
    if one is None or other is None:
        return one is other
    return abs(one - other) < SAME_S


def _difference(one: float | None, other: float | None) -> str:
    if one is None or other is None:
        return f"{one} -> {other}"
    return f"{other - one:+.3f} s"


def _give_backs(
    before: Mapping[str, set[str]], after: Mapping[str, set[str]], around: Around
) -> Iterator[tuple[str, str]]:
    for job in sorted(before.keys() | after):
        was, now = before.get(job), after.get(job)
        if was is None:
            cause = "give-back-sooner" if job in around.then else "give-back-new"
            yield cause, f"job {job}: {_names(now)}"
        elif now is None:
            in_s = around.later(job)
            cause = "give-back-missing" if in_s is None else "give-back-later"
            when = "" if in_s is None else f", within {in_s:g} s"
            yield cause, f"job {job}: {_names(was)}{when}"
        elif was != now:
            yield "give-back-nodes", f"job {job}: {_names(was)} -> {_names(now)}"


def _claims(before: Mapping[str, Plain], after: Mapping[str, Plain]) -> Iterator[tuple[str, str]]:
    yield from (("claim-new", node) for node in sorted(after.keys() - before))
    yield from (("claim-missing", node) for node in sorted(before.keys() - after))
    for node in sorted(before.keys() & after):
        one, other = before[node], after[node]
        for cause, limit in (
            ("claim-limit", "time_limit_s"),
            ("claim-second-limit", "or_time_limit_s"),
        ):
            if not same_s(one.get(limit), other.get(limit)):
                yield cause, f"{node}: {_difference(one.get(limit), other.get(limit))}"
        if one["for_trainer"] != other["for_trainer"]:
            yield "claim-trainer", f"{node}: {one['for_trainer']} -> {other['for_trainer']}"


def _assignment(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for trainer in sorted({*before.values(), *after.values()}):
        was = {node for node, own in before.items() if own == trainer}
        now = {node for node, own in after.items() if own == trainer}
        if len(was) != len(now):
            yield "assignment-size", f"{trainer}: {len(was)} -> {len(now)}"
        elif was != now:
            yield "assignment-nodes", f"{trainer}: {_names(was)} -> {_names(now)}"


def _sentences(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in sorted(before.keys() | after):
        if before.get(name) != after.get(name):
            yield "wording", f"{name}: {before.get(name)} -> {after.get(name)}"


def _by_job(plan: Plain) -> dict[str, set[str]]:
    jobs: dict[str, set[str]] = {}
    for one in plan["give_backs"]:
        jobs.setdefault(one["for_job"], set()).add(one["node"])
    return jobs


def _by_node(records: list[Plain]) -> dict[str, Any]:
    return {one["node"]: one for one in records}


def _whys(records: list[Plain]) -> dict[str, str]:
    return {one["node"]: one["reason"] for one in records}


def _names(nodes: Collection[str] | None) -> str:
    return " ".join(sorted(nodes or ()))
