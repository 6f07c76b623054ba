"""A decision's input that cannot be written down → one that can, without who is at fault.

Numbers are looked at where they come in; what slips through all the same (an adapter of
another package, a defect of ours) shows when the decision is to be written down. Then a
trainer, job or node with a number that is none is left out by name, as ``surviving`` leaves
out those on whom a decision fails: what can be written of it stays in its place, and the
memory says why. Of everything else, too, only what can be written is known. Pure; called by
``bftrainer.deciding``.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TypeVar

from bftrainer.canonical import CanonicalError, to_plain
from bftrainer.decide.leftout import Kind, LeftOut
from bftrainer.decide.types import DecisionInput, Memory, PilotView
from bftrainer.poll.snapshot import Job, Node, Snapshot
from bftrainer.trainer import TrainerRecord, TrainerSpec

T = TypeVar("T")


def writable(given: DecisionInput) -> DecisionInput:
    """Return the input with nothing in it that has no canonical form.

    Raises:
        CanonicalError: a name, a state, the time or the settings have none.
    """
    seen, now_s = given.snapshot, given.now_s
    out: dict[str, LeftOut] = {}

    def sound(one: T, bare: T, kind: Kind, name: str) -> T:
        """Return it, or what can be written of it, and leave it out of the decision."""
        why = _why_not(one)
        if not why:
            return one
        left = LeftOut(kind=kind, name=name, reason=why, since_s=now_s)
        out[left.key] = left
        return _kept(one, bare)

    def job(one: Job) -> Job:
        bare = _bare_job(one)
        return sound(one, bare, Kind.REQUEST, one.job_id) if one.is_ordinary else _kept(one, bare)

    def node(one: Node) -> Node:
        return sound(one, Node(name=one.name, state=one.state), Kind.NODE, one.name)

    def trainer(one: TrainerRecord) -> TrainerRecord:
        return sound(one, _bare_trainer(one, now_s), Kind.TRAINER, one.trainer_id)

    snapshot = replace(
        seen,
        nodes=seen.nodes and tuple(map(node, seen.nodes)),
        jobs=seen.jobs and tuple(map(job, seen.jobs)),
    )
    nothing_seen = Snapshot(taken_at_s=now_s, nodes=None, jobs=None, reservations=None)
    whole = replace(
        given,
        snapshot=_kept(snapshot, nothing_seen),
        pilots=tuple(_kept(pilot, _bare_pilot(pilot, now_s)) for pilot in given.pilots),
        trainers=tuple(map(trainer, given.trainers)),
    )
    memory = _kept(given.memory, Memory())
    whole = replace(whole, memory=replace(memory, left_out={**memory.left_out, **out}))
    bare = replace(whole, training={}, speeds={}, cooling={}, settled_until_s={})
    return _kept(whole, bare)


def _why_not(one: object) -> str:
    """Say what cannot be written; "": everything can."""
    try:
        to_plain(one)
    except CanonicalError as problem:
        return problem.cause
    return ""


def _kept(one: T, bare: T) -> T:
    """Return the plain dataclass ``bare`` with each field of ``one`` that can be written."""
    if not _why_not(one):
        return one
    for field in fields(one):  # type: ignore[arg-type]  # a dataclass
        more = replace(bare, **{field.name: getattr(one, field.name)})  # type: ignore[type-var]  # likewise
        bare = bare if _why_not(more) else more
    return bare


def _bare_job(job: Job) -> Job:
    return Job(
        job_id=job.job_id,
        user="?",
        partition="?",
        state=job.state,
        n_nodes=1,
        time_limit_s=None,
        pilot_id=job.pilot_id,
    )


def _bare_trainer(record: TrainerRecord, now_s: float) -> TrainerRecord:
    spec = TrainerSpec(name=record.spec.name, user=record.spec.user, script=record.spec.script)
    return TrainerRecord(
        trainer_id=record.trainer_id, spec=spec, state=record.state, submitted_s=now_s
    )


def _bare_pilot(pilot: PilotView, now_s: float) -> PilotView:
    return PilotView(
        pilot_id=pilot.pilot_id, node=pilot.node, requested_s=now_s, is_held=pilot.is_held
    )
