"""The data of a trainer beside its spec: state, measurements, its reason for getting no nodes.

Created by ``bftrainer submit``, stored by the journal, used by ``decide``, ``fleet`` and the
agents. Trainers that are ``withheld`` are left out of decisions; the daemon tells their users why.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from bftrainer.model.declaration import declarations, defaults
from bftrainer.model.study import Report
from bftrainer.model.time_limits import limit_text
from bftrainer.model.trainer_spec import (
    ADASCALE,
    LR_RULES,
    BatchRange,
    CheckpointContract,
    Launch,
    TrainerSpec,
)
from milp.plain import Later

# What a user asks for has its own module; it is imported with the rest of a trainer's data.
__all__ = [
    "ADASCALE",
    "LR_RULES",
    "BatchRange",
    "CheckpointContract",
    "Divergence",
    "FailureRow",
    "GpuLoad",
    "Launch",
    "Lives",
    "Mark",
    "MeasuredCosts",
    "Remark",
    "RestartCosts",
    "SizeThroughput",
    "TrainerChange",
    "TrainerProgress",
    "TrainerRecord",
    "TrainerSpec",
    "TrainerState",
    "as_decided",
    "happens_anywhere",
    "is_of_full_disk",
    "reason",
    "with_place",
    "withheld",
]

_MIB_PER_GIB = 1024.0
_FULL = ("No space left on device", "Disk quota exceeded")  # ENOSPC and EDQUOT, as libc says
# What a script does wrong wherever it runs (bftrainer.ground.errors).
_ANYWHERE = frozenset(
    f"BFT-{number}"
    for number in (
        *(1401, 1402, 1403, 1404, 1405, 1406, 1407),
        *(1420, 1422, 1423, 1424, 1426, 1427, 1428, 1431, 1432, 1435, 1438, 1439),
        *(1448, 1449, 1450, 1451, 1452, 1453),
        *(1611, 1612, 1613),
    )
)


class TrainerState(enum.StrEnum):
    """State of a trainer. Only the last three are final."""

    QUEUED = "queued"  # submitted, has never run
    RUNNING = "running"  # at least one worker in a generation, or forming its first
    PARKED = "parked"  # size 0 after having run; its state is on disk
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Return whether the trainer has ended."""
        return self in (TrainerState.FINISHED, TrainerState.FAILED, TrainerState.CANCELLED)

    @property
    def ending(self) -> str:
        """Return what a trainer in this final state has done: "finished"."""
        if self is TrainerState.CANCELLED:
            return "been cancelled"
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerChange:
    """Changes by ``hold``, ``release``, ``update`` and studies; None: as it is."""

    is_held: bool | None = None
    n_min: int | None = None
    n_max: int | None = None
    weight: float | None = None
    name: str | None = None
    budget: int | None = None  # of a trial, in the unit that it was submitted with
    sizes: tuple[int, ...] | None = None
    time_limit_s: float | None = None  # 0: no limit any more
    ADDED: ClassVar = frozenset({"budget", "sizes", "time_limit_s"})

    def applied(self, spec: TrainerSpec) -> TrainerSpec:
        """Return the changed request; the same object if nothing in it changes."""
        unit = "samples" if spec.epochs is None else "epochs"
        changes: dict[str, Any] = {
            "n_min": self.n_min,
            "n_max": self.n_max,
            "sizes": self.sizes,
            "weight": self.weight,
            "name": self.name,
            unit: self.budget,
        }
        for name, value in tuple(changes.items()):
            if value is None or value == getattr(spec, name):
                del changes[name]
        if self.time_limit_s is not None and (self.time_limit_s or None) != spec.time_limit_s:
            changes["time_limit_s"] = self.time_limit_s or None
        if not changes:
            return spec
        return replace(spec, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLoad:
    """Use and memory of some GPUs, as their driver tells it."""

    gpus: int  # so many of them tell something
    use_percent: float | None = None  # of the time, mean over the GPUs; None: not told
    memory_used_mib: float | None = None  # of all of them together; None: not told
    memory_total_mib: float | None = None  # likewise

    def __str__(self) -> str:
        """Return it as text, memory in GiB."""
        parts = []
        if self.use_percent is not None:
            parts.append(f"GPU use {self.use_percent:.0f}%")
        memory_mib, total_mib = self.memory_used_mib, self.memory_total_mib
        if memory_mib is not None and total_mib is not None:
            memory_gib, total_gib = memory_mib / _MIB_PER_GIB, total_mib / _MIB_PER_GIB
            parts.append(f"memory {memory_gib:.0f} of {total_gib:.0f} GiB")
        text = ", ".join(parts)
        if parts and self.gpus > 1:
            text += f" on {self.gpus} GPUs"
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerProgress:
    """Last progress that the trainer reported."""

    generation: int = 0
    size: int = 0
    step: int = 0
    epoch: int = 0
    samples: int = 0
    samples_per_s: float = 0.0
    reported_s: float = 0.0
    node_s: float = 0.0  # node-seconds attained by then
    backend: str = ""  # of this generation, and why; "": one worker, or not known
    total: int = 0  # samples of the whole training; 0: not known
    batch: int = 0  # global batch of this generation, if the trainer admits several
    # Mean training loss of a sample, of late, over all workers; None: not told, or not finite.
    loss: float | None = None
    has_finite_loss: bool = True  # False: the last losses were NaN or infinite
    gpu_use: GpuLoad | None = None  # of its workers' GPUs, of late; None: nothing is told
    ADDED: ClassVar = frozenset({"loss", "has_finite_loss", "gpu_use"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Progress of a training; a program may count only some of these."""

    step: int = 0
    epoch: int = 0
    samples: int = 0

    def is_beyond(self, other: Mark) -> bool:
        """Return whether any count is greater than in ``other``."""
        return self.step > other.step or self.epoch > other.epoch or self.samples > other.samples

    def joined(self, other: Mark) -> Mark:
        """Return the greater of each count."""
        return Mark(
            step=max(self.step, other.step),
            epoch=max(self.epoch, other.epoch),
            samples=max(self.samples, other.samples),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lives:
    """Data that a trainer keeps from one life to the next.

    A life begins with a start from a checkpoint, or from nothing, and ends when no node is left.
    """

    reached: Mark = field(default_factory=Mark)  # in the present life, or the last one
    lost: Mark = field(default_factory=Mark)  # reached in some life, and done again in the next
    furthest: Mark = field(default_factory=Mark)  # that one has begun at
    starts: int = 0  # in a row at which none began further, with the one that came there first
    is_told: bool = True  # where the present life began
    began_s: float = 0.0
    lasted_s: tuple[float, ...] = ()  # the last of those that ended without a checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRow:
    """Consecutive failures without net progress, which count against ``failure_budget``."""

    count: int = 0
    best: Mark = field(default_factory=Mark)  # the furthest it ever got
    start: Mark | None = None  # the furthest start in this series
    cause: str = ""  # of the last failure, as are the fields below
    node: str = ""
    log_path: str = ""
    next_try_s: float = 0.0  # earliest next start; the machine's monotonic clock
    losses: int = 0  # deaths of its agents on intact nodes; the first is not a failure
    place: str = ""  # of the last failure in the script, "file:line"
    ADDED: ClassVar = frozenset({"place"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeThroughput:
    """Statistics of the throughput at one size (``bftrainer.decide.throughput.curves``)."""

    size: int
    count: float = 0.0  # weight of the observations in the window
    mean_samples_per_s: float = 0.0
    m2: float = 0.0  # sum of squared deviations from the mean, same window
    seen_s: float = 0.0  # when the last one was taken
    told_count: float = 0.0  # ``count`` when the value was last passed to decisions
    told_error: float = 1.0  # relative standard error then
    batch: int = 0  # global batch at which it was measured, if the trainer admits several


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartCosts:
    """Times of stopping and starting a trainer that is resized by restart."""

    stop_s: float | None = None  # from the request for a checkpoint to the last exit
    start_s: float | None = None  # from there until all report that they run
    unsaved: int = 0  # stops in which some program wrote no checkpoint
    unsaved_reason: str = ""  # of the last of them


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCosts:
    """Rescale costs and throughput as observed; empty until known."""

    rescale_up_s: float | None = None
    rescale_down_s: float | None = None
    samples_per_s_by_size: tuple[tuple[int, float], ...] = ()  # used by decisions
    throughput: tuple[SizeThroughput, ...] = ()  # the statistics behind it, by size
    restart: RestartCosts | None = None  # None: resized in place, or never started
    samples_per_s_by_batch: tuple[tuple[int, int, float], ...] = ()  # size, batch, samples/s
    noise_scale: float = 0.0  # of the gradients, in samples, as used by decisions; 0: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """A loss that was no finite number in several updates in a row."""

    step: int  # the last of them when it was told
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """What its user should know of a training that goes on."""

    kind: str
    step: int  # committed updates when it was made
    generation: int = 0  # the only one that it is true of; 0: it is of the training
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerRecord:
    """A trainer in the daemon's memory and in the journal's projection."""

    REMOVED: ClassVar = frozenset({"copy_holders"})

    trainer_id: str  # "t1", "t2", … in order of submission = FCFS order
    spec: TrainerSpec
    state: TrainerState
    submitted_s: float
    started_s: float | None = None
    ended_s: float | None = None
    reason: str = ""  # why it is in this state, one sentence
    progress: TrainerProgress = field(default_factory=TrainerProgress)
    costs: MeasuredCosts = field(default_factory=MeasuredCosts)
    rescales: int = 0
    failures: int = 0
    last_generation: int = 0  # greatest generation ever announced
    # (worker, pilot) of all live workers then: only they can have been in it or an earlier one.
    workers: tuple[tuple[str, str], ...] = ()
    failing: FailureRow = field(default_factory=FailureRow)
    cancelled_s: float | None = None  # when its user cancelled it
    held_s: float | None = None  # since when its user holds it
    requeued_s: float | None = None  # when its user requeued it; until its workers are gone
    waits_for: tuple[str, ...] = ()  # of ``after`` and ``after_any``: not ended yet, or not well
    reports: tuple[Report, ...] = ()  # of its metric, in order
    overtime_s: float | None = None  # since when its time limit is over
    rung_s: float | None = None  # since when its budget is used up and its study is to decide
    lives: Lives = field(default_factory=Lives)
    shrunk_s: float | None = None  # when it last shrank, if its spec has a rest after that
    diverged: Divergence | None = None
    saved_step: int | None = None  # of its newest checkpoint
    remarks: tuple[Remark, ...] = ()  # one of each kind, in order
    restarts: int = 0  # starts after the first, from a checkpoint or from nothing
    # Since when arguments and environment of a trainer that never ran are not kept; None: they are.
    cleared_s: float | None = None
    ADDED: ClassVar = frozenset(
        {
            *("reports", "rung_s", "lives", "shrunk_s", "diverged", "saved_step", "remarks"),
            *("overtime_s", "restarts", "cleared_s"),
        }
    )
    # A daemon can do without them: the release before drops them when it writes the record again.
    LATER: ClassVar = Later(
        "copy_holders", frozenset({"diverged", "saved_step", "remarks", "restarts"})
    )

    @property
    def remark_sentences(self) -> tuple[str, ...]:
        """What its workers remark on the training, and on the generation while it lasts."""
        generation: float = self.progress.generation
        if self.state.is_final:
            generation = math.inf  # none is going on
        return tuple(
            remark.cause
            for remark in self.remarks
            if not remark.generation or remark.generation >= generation
        )

    @property
    def time_ends_s(self) -> float | None:
        """When its time limit is over; None: it has none, or has not begun."""
        if self.started_s is None or self.spec.time_limit_s is None:
            return None
        return self.started_s + self.spec.time_limit_s

    @property
    def next_restarts(self) -> int:
        """How often it was started anew, for a worker that is started now."""
        is_new_life = self.started_s is not None and not self.progress.size
        return self.restarts + is_new_life

    @property
    def rests_until_s(self) -> float:
        """Until when it does not grow after a shrink (``rescale_rest_s``); 0: it may."""
        if self.shrunk_s is None:
            return 0.0
        return self.shrunk_s + self.spec.rescale_rest_s


def happens_anywhere(cause: str) -> bool:
    """True if a failure is the script's: tried again, on any node, it would happen again."""
    return cause.partition(":")[0] in _ANYWHERE


def with_place(cause: str, place: str) -> str:
    """Return what a failure says, and where the script did it ("file:line"; "": not known)."""
    if not place:
        return cause
    return f"{cause} Raised at {place}."


def is_of_full_disk(cause: str) -> bool:
    """True if a failure names a full disk or quota; a small /dev/shm is said to be full, too."""
    return any(words in cause for words in _FULL)


@functools.cache
def _undecided() -> Mapping[str, Any]:
    """Return the fields of a spec that decisions do not read, with what stands for them there."""
    unused = dict(defaults(TrainerSpec))
    for name, declaration in declarations(TrainerSpec).items():
        if declaration.is_decided_with:
            unused.pop(name, None)
    return unused


def as_decided(record: TrainerRecord) -> TrainerRecord:
    """Return it without the fields that only workers need; decisions are stored with it."""
    spec = replace(record.spec, **_undecided())
    bare = replace(record, spec=spec, reports=(), lives=Lives())
    return replace(bare, diverged=None, saved_step=None, remarks=(), restarts=0)


def withheld(records: Mapping[str, TrainerRecord], now_s: float) -> dict[str, str]:
    """Return the trainers that are to have no nodes now, each with a sentence.

    Args:
        records: all trainers by id, in order of submission.
        now_s: the present time.
    """
    reasons: dict[str, str] = {}
    arrays: dict[tuple[str, str], list[TrainerRecord]] = {}
    for record in records.values():
        if record.state.is_final:
            continue
        if sentence := reason(record, records, now_s):
            reasons[record.trainer_id] = sentence
        elif record.spec.array_limit is not None:
            arrays.setdefault((record.spec.user, record.spec.array_id), []).append(record)
    for members in arrays.values():
        reasons |= dict(_beyond_limit(members))
    return reasons


def reason(record: TrainerRecord, others: Mapping[str, TrainerRecord], now_s: float) -> str:
    """Say why this trainer gets no nodes now, whatever its array does; "": it may."""
    if record.cancelled_s is not None:  # it is ending by itself
        return ""
    if sentence := _by_its_user(record):
        return sentence
    if record.waits_for:
        if broken := list(_broken(record, others)):
            return f"It never starts (DependencyNeverSatisfied): {', '.join(broken)}. Cancel it."
        return f"It starts after {', '.join(record.waits_for)} (Dependency)."
    left_s = (record.spec.begin_s or now_s) - now_s
    if left_s > 0:
        return f"It begins in {left_s:.0f} s at the earliest (BeginTime)."
    return ""


def _by_its_user(record: TrainerRecord) -> str:
    """Say that its user, its limit or its study keeps it from having nodes; "": nobody does."""
    if record.held_s is not None:
        return f"It is held; 'bftrainer release {record.trainer_id}' lets it go on."
    if record.overtime_s is not None:
        limit, trainer_id = limit_text(record.spec.time_limit_s or 0.0), record.trainer_id
        step = f"'bftrainer update {trainer_id} --time LIMIT' lengthens it."
        return f"Its time limit of {limit} is over; {step}"
    if record.rung_s is not None:
        return f"It has trained its budget of {record.spec.budget}; its study decides about more."
    if record.requeued_s is not None:
        return "It is requeued: it leaves its nodes and starts again from its checkpoint."
    return ""


def _broken(record: TrainerRecord, others: Mapping[str, TrainerRecord]) -> Iterator[str]:
    """Yield the conditions that can no longer be met."""
    for trainer_id in record.waits_for:
        dependency = others.get(trainer_id)
        if dependency is None:
            yield f"{trainer_id} is no longer known"
        elif dependency.state.is_final:  # those that ended well are removed when they end
            yield f"{trainer_id} has {dependency.state.ending}"


def _beyond_limit(members: list[TrainerRecord]) -> Iterator[tuple[str, str]]:
    """Yield the members of an array that have to wait; those with nodes keep them."""
    first_states = (TrainerState.RUNNING, TrainerState.PARKED, TrainerState.QUEUED)
    in_order = sorted(members, key=lambda record: first_states.index(record.state))
    for number, record in enumerate(in_order):
        limit = record.spec.array_limit
        if limit is not None and number >= limit:
            yield record.trainer_id, f"Its array has nodes for {limit} at once (--array %{limit})."
