"""Removes trainers, jobs and nodes from a decision's input. Pure.

Numbers are checked where they come in. What slips through (a third-party adapter, a bug of ours) is
found before a decision (``writable``, called by ``bftrainer.daemon.decider``): a trainer, job or
node with an invalid number is left out by name, as if a decision had failed on it (``isolation``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from typing import Final, TypeVar, cast

from bftrainer.model.canonical import CanonicalError, encoder, to_plain
from bftrainer.model.cluster import Job
from bftrainer.model.decision import DecisionInput, Kind, Known, LeftOut
from milp.plain import field_hints

T = TypeVar("T")
WHAT_TO_DO: Final = (
    "It gets no nodes, and the others are decided without it. It is tried again every minute;"
    " cancel it and submit it with other sizes, weight or curve."
)


def without(given: DecisionInput, known: Known) -> DecisionInput:
    """Return the input as if those were not there; the memory records what is left out.

    Of a job only the request is left out: it then wants that many nodes of any kind.
    """
    if not known and not given.memory.left_out:
        return given

    def is_in(kind: Kind, name: str) -> bool:
        return f"{kind} {name}" not in known

    nodes, jobs = given.snapshot.nodes, given.snapshot.jobs
    if nodes is not None:
        nodes = tuple([node for node in nodes if is_in(Kind.NODE, node.name)])
    if jobs is not None:
        clear_jobs: list[Job] = []
        for job in jobs:
            if is_in(Kind.REQUEST, job.job_id):
                clear_jobs.append(job)
            else:
                clear_jobs.append(_unclear(job))
        jobs = tuple(clear_jobs)
    snapshot = replace(given.snapshot, nodes=nodes, jobs=jobs)
    trainers = tuple([r for r in given.trainers if is_in(Kind.TRAINER, r.trainer_id)])
    memory = replace(given.memory, left_out=known)
    return replace(given, snapshot=snapshot, trainers=trainers, memory=memory)


def names_of(given: DecisionInput, kind: Kind) -> Sequence[str]:
    """Return the names of a kind in the input."""
    match kind:
        case Kind.REQUEST:
            return [job.job_id for job in given.snapshot.jobs or () if job.is_ordinary]
        case Kind.TRAINER:
            return [record.trainer_id for record in given.trainers]
        case Kind.NODE:
            return [node.name for node in given.snapshot.nodes or ()]
    return [given.settings.policy]


def without_the_gone(given: DecisionInput) -> DecisionInput:
    """Return the input with a memory that leaves out only what is still there."""
    left_out, snapshot = given.memory.left_out, given.snapshot
    if not left_out or snapshot.nodes is None or snapshot.jobs is None:  # nobody knows who is there
        return given
    names_by_kind: dict[Kind, set[str]] = {}
    still_out: dict[str, LeftOut] = {}
    for key, item in left_out.items():
        if item.kind not in names_by_kind:
            names_by_kind[item.kind] = set(names_of(given, item.kind))
        names = names_by_kind[item.kind]
        if item.name in names:
            still_out[key] = item
    if len(still_out) == len(left_out):
        return given
    return replace(given, memory=replace(given.memory, left_out=still_out))


def _unclear(job: Job) -> Job:
    safe_job = _kept_job(job)
    return Job(
        job_id=safe_job.job_id,
        user=safe_job.user,
        family=safe_job.family,
        partitions=safe_job.partitions,
        state=safe_job.state,
        n_nodes=safe_job.n_nodes,
        time_limit_s=safe_job.time_limit_s,
        priority=safe_job.priority,
        submit_s=safe_job.submit_s,
        nodes=safe_job.nodes,
        unclear="what a decision failed on",
    )


def writable(given: DecisionInput) -> DecisionInput:
    """Return the input without anything that has no canonical form.

    Raises:
        CanonicalError: a name, a state, the time or the settings have none.
    """
    snapshot, now_s = given.snapshot, given.now_s
    out: dict[str, LeftOut] = {}
    for kind, named_parts in (
        (Kind.NODE, [(node.name, node) for node in snapshot.nodes or ()]),
        (Kind.REQUEST, [(job.job_id, job) for job in snapshot.jobs or () if job.is_ordinary]),
        (Kind.TRAINER, [(record.trainer_id, record) for record in given.trainers]),
    ):
        for name, part in named_parts:
            if why := _why_not(part):
                item = LeftOut(kind=kind, name=name, reason=why, since_s=now_s)
                out[item.key] = item
    memory = _kept(given.memory)
    given = replace(given, memory=memory)
    given = without(given, {**memory.left_out, **out})
    jobs = given.snapshot.jobs and tuple(map(_kept_job, given.snapshot.jobs))
    unread = {"nodes": None, "jobs": None, "reservations": None}
    pilots = tuple([_kept(pilot, requested_s=now_s) for pilot in given.pilots])
    safe_snapshot = _kept(replace(given.snapshot, jobs=jobs), taken_at_s=now_s, **unread)
    return _kept(replace(given, snapshot=safe_snapshot, pilots=pilots))


def _kept_job(job: Job) -> Job:
    return _kept(job, user="?", n_nodes=1, time_limit_s=None)


def _kept(record: T, **otherwise: object) -> T:
    """Return the dataclass with ``otherwise``, or defaults, for fields that cannot be serialised.

    Raises:
        CanonicalError: a field without a default cannot.
    """
    hints, defaults = field_hints(cast("type", type(record))), dict[str, object]()
    for field in fields(record):  # type: ignore[arg-type]  # a dataclass
        try:
            encoder(hints[field.name])(getattr(record, field.name))
        except CanonicalError:
            if field.name in otherwise:
                defaults[field.name] = otherwise[field.name]
            elif field.default_factory is not MISSING:
                defaults[field.name] = field.default_factory()
            elif field.default is not MISSING:
                defaults[field.name] = field.default
            else:
                raise
    if not defaults:
        return record
    return replace(record, **defaults)  # type: ignore[type-var]  # likewise


def _why_not(part: object) -> str:
    """Say why it cannot be serialised; "": it can."""
    try:
        to_plain(part)
    except CanonicalError as problem:
        return problem.cause
    return ""


def sentences(known: Known) -> tuple[str, ...]:
    """Say for each item what decisions leave out, and why."""
    return tuple(map(sentence, known.values()))


def why_left_out(trainer_id: str, known: Known) -> tuple[str, ...]:
    """Say why a trainer gets no nodes and what to do; (): it is not left out."""
    item = known.get(f"{Kind.TRAINER} {trainer_id}")
    if item is None:
        return ()
    return (sentence(item), WHAT_TO_DO)


def sentence(item: LeftOut) -> str:
    """Say what decisions fail on, and why."""
    subject = f"{item.kind} {item.name} and leave it out"
    match item.kind:
        case Kind.TRAINER:
            return f"BFT-2116: decisions fail on {subject}. {item.reason}"
        case Kind.POLICY:
            return f"BFT-2118: policy {item.name} gives no usable answer. {item.reason}"
        case Kind.REQUEST:
            subject = f"the request of job {item.name} and give back as many nodes of any kind"
    return f"BFT-2117: decisions fail on {subject}. {item.reason}"
