"""Journals → a stratified sample of frozen decisions. Goes with today's journals.

A case is ``id`` (journal and entry), ``strata`` (what is to be seen in it), ``situation`` and
``plan`` (``core`` has the form of both). The first line of a file has every give-back of its
journal: job -> when.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from bftrainer.journal.journal import Journal
from bftrainer.model.canonical import to_plain
from bftrainer.model.cluster import Job, JobState, Snapshot
from bftrainer.model.decision import DecisionInput, DecisionRecord, Memory
from bftrainer.model.trainer import TrainerRecord
from tests.support.frozen.core import plan_of, said
from tests.support.frozen.lines import Plain, write

PLANNING = ("plan_window_s", "plan_resolution_s", "pilots_come_last")  # fields of Snapshot
BESIDE = ("training", "speeds", "settled_until_s", "gives_back_only")  # fields of DecisionInput
KINDS = ("pending", "running", "announced", "pilot")  # of jobs
NEUTRAL = {  # what is remembered whatever the rules are -> its field of Memory
    "assignment": "assignment",
    "idle_looks": "idle_seen",
    "left_to_queue_since_s": "held_off",
    "unwanted_since_s": "unused_since",
    "slow_nodes": "slow_nodes",
    "replacing": "replacing",
    "left_out": "left_out",
}


def record(name: str, journal: Path, target: Path, per_stratum: int, seed: int) -> None:
    """Freeze a sample of a journal's decisions."""
    cases = list(_cases(name, journal))
    gave: dict[str, list[float]] = {}
    for case in cases:
        for job in sorted({one["for_job"] for one in case["plan"]["give_backs"]}):
            gave.setdefault(job, []).append(case["situation"]["now_s"])
    chosen = _sample(cases, per_stratum, seed)
    head = {"journal": name, "decisions": len(cases), "sample": len(chosen), "give_backs": gave}
    write(target, head, chosen)


def _cases(name: str, path: Path) -> Iterator[Plain]:
    released: set[str] = set()
    with Journal.open(path, clock=time.time, is_verified=False) as journal:
        for entry in journal.entries("decision"):
            taken = entry.payload_as(DecisionRecord)
            situation = _as_read(_situation(taken.input))
            plan = _as_read(plan_of(taken.plan, situation))
            strata = sorted(_strata(situation, plan, released))
            released |= _released(plan)
            case = {"id": f"{name}-{entry.seq}", "strata": strata}
            yield {**case, "situation": situation, "plan": plan}


def _as_read(plain: Plain) -> Plain:
    """Return it as it comes out of a file."""
    read: Plain = json.loads(json.dumps(plain))
    return read


def _sample(cases: Sequence[Plain], per_stratum: int, seed: int) -> list[Plain]:
    """Return so many of each stratum, or all there are, in their order."""
    chosen: set[str] = set()
    for stratum in sorted({name for case in cases for name in case["strata"]}):
        ids = [case["id"] for case in cases if stratum in case["strata"]]
        chance = random.Random(f"{seed} {stratum}")  # noqa: S311 - a sample
        chosen.update(chance.sample(ids, min(per_stratum, len(ids))))
    return [case for case in cases if case["id"] in chosen]


# ---- what a decision was about -----------------------------------------------------------


def _strata(situation: Plain, plan: Plain, released: set[str]) -> Iterator[str]:
    """Name what the decision did, and what it had to think of.

    ``released``: pilots that earlier decisions have released; others leave because the batch
    system preempts them, or because they are over.
    """
    pending, announced = situation["pending_jobs"] or [], situation["announced_jobs"] or []
    before, after = situation["memory"]["assignment"], plan["assignment"]
    settings, gave = situation["settings"], plan["give_backs"]
    stays = before == after and not plan["claims"] and not _released(plan)
    leaving = {pilot["pilot_id"] for pilot in situation["pilots"] if "is_leaving" in pilot}
    of_announced = {job["job_id"] for job in announced} & {one["for_job"] for one in gave}
    free = {n["name"] for n in situation["nodes"] or () if n["state"] in ("idle", "planned")}
    holds = {
        "give-back": gave,
        "give-back-announced": of_announced,
        "release": plan["releases"],
        "cancel": plan["cancels"],
        "claim": plan["claims"],
        "move": before != after,
        "no-change": stays,
        "no-change-job-waits": stays and pending,
        "reserve": plan["reserve"],
        "reserve-empty": settings["reserve_nodes_per_type"] and not plan["reserve"],
        "gap": plan["ends_s"].keys() & free,
        "planned-start": [j for j in pending if "start_s" in j and "planned_nodes" in j],
        "reservation": situation["reservations"],
        "announced": announced,
        "cooling": situation["cooling"],
        "several-trainers": len(set(after.values())) > 1,
        "preempted": leaving - released,
        "left-to-queue": situation["memory"]["left_to_queue_since_s"],
        "backs-off": settings["max_held_nodes"] is not None,
        "may-not-claim": not situation["may_claim"],
        "settled": situation["settled_until_s"],
        "slow-node": situation["speeds"] or situation["memory"]["slow_nodes"],
        "left-out": situation["memory"]["left_out"],
        "unread": situation["unread"],
    }
    return (name for name, found in holds.items() if found)


def _released(plan: Plain) -> set[str]:
    kinds = ("give_backs", "releases", "cancels")
    return {one["pilot_id"] for kind in kinds for one in plan[kind]}


# ---- input → situation -------------------------------------------------------------------


def _situation(given: DecisionInput) -> Plain:
    seen, memory = given.snapshot, given.memory
    cycle = {} if seen.cycle is None else {"ended_s": None, **said(seen.cycle)}
    return {
        "now_s": given.now_s,
        "looked_s": seen.taken_at_s,
        "is_new_look": given.is_new_snapshot,
        "unread": list(seen.failures),
        "nodes": said(seen.nodes),
        "partitions": said(seen.partitions),
        "reservations": said(seen.reservations),
        "scheduler": cycle | {name: getattr(seen, name) for name in PLANNING},
        **_jobs(seen),
        "pilots": said(given.pilots),
        "trainers": list(map(_trainer, given.trainers)),
        **{name: said(getattr(given, name)) for name in BESIDE},
        "cooling": said(given.cooling),
        "may_claim": given.may_claim,
        "settings": said(given.settings, is_whole=True),
        "memory": {name: said(getattr(memory, own)) for name, own in NEUTRAL.items()},
        "memory_of_rules": _of_rules(memory),
    }


def _jobs(seen: Snapshot) -> Plain:
    if seen.jobs is None:
        return {f"{kind}_jobs": None for kind in KINDS}
    lists: dict[str, list[Plain]] = {kind: [] for kind in KINDS}
    for job in seen.jobs:
        lists[_kind(job)].append(said(job))
    for kind in ("pending", "announced"):
        for plain in lists[kind]:
            del plain["state"]
    return {f"{kind}_jobs": jobs for kind, jobs in lists.items()}


def _kind(job: Job) -> str:
    if not job.is_ordinary:
        return "pilot"
    if job.is_announced:
        return "announced"
    return "pending" if job.state is JobState.PENDING else "running"


def _trainer(record: TrainerRecord) -> Plain:
    """Return what decisions know of a trainer: nothing of its program or where that lies."""
    spec, costs = record.spec, record.costs
    errors = {one.size: one.told_error for one in costs.throughput}
    return {
        "trainer_id": record.trainer_id,
        "user": spec.user,
        "state": record.state.value,
        "submitted_s": record.submitted_s,
        "n_min": spec.n_min,
        "n_max": spec.n_max,
        "weight": spec.weight,
        "curve": said(spec.curve),
        "utility": said(spec.utility),
        "size": record.progress.size,
        "rescale_up_s": costs.rescale_up_s,
        "rescale_down_s": costs.rescale_down_s,
        "measured": [
            {"size": size, "samples_per_s": rate}
            | ({"relative_error": errors[size]} if size in errors else {})
            for size, rate in costs.samples_per_s_by_size
        ],
    }


def _of_rules(memory: Memory) -> Plain:
    empty = Memory()
    names = {field.name for field in fields(Memory)} - set(NEUTRAL.values())
    found = {name: to_plain(getattr(memory, name)) for name in sorted(names)}
    return {k: plain for k, plain in found.items() if plain != to_plain(getattr(empty, k))}
