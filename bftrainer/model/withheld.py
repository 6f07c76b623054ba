"""Why a trainer gets no nodes for now: held, requeued, too early, or others come first. Pure.

``actuate.trainers`` leaves such trainers out of decisions; ``service`` tells their users why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bftrainer.model.trainer import TrainerRecord, TrainerState

_ORDER = (TrainerState.RUNNING, TrainerState.PARKED, TrainerState.QUEUED)  # within an array


def withheld(records: Mapping[str, TrainerRecord], now_s: float) -> dict[str, str]:
    """Return the trainers that are to have no nodes now, each with a sentence.

    Args:
        records: all trainers by id, in order of submission.
        now_s: the present time.
    """
    open_ones = [r for r in records.values() if not r.state.is_final]
    found = {r.trainer_id: why for r in open_ones if (why := reason(r, records, now_s))}
    arrays: dict[tuple[str, str], list[TrainerRecord]] = {}
    for record in open_ones:
        if record.spec.array_limit is not None and record.trainer_id not in found:
            arrays.setdefault((record.spec.user, record.spec.array_id), []).append(record)
    for members in arrays.values():
        found |= dict(_beyond_limit(members))
    return found


def reason(record: TrainerRecord, others: Mapping[str, TrainerRecord], now_s: float) -> str:
    """Say why this trainer gets no nodes now, whatever its array does; "": it may."""
    if record.cancelled_s is not None:  # it is ending by itself
        return ""
    if why := _by_its_user(record):
        return why
    if record.waits_for:
        if broken := list(_broken(record, others)):
            return f"It never starts (DependencyNeverSatisfied): {', '.join(broken)}. Cancel it."
        return f"It starts after {', '.join(record.waits_for)} (Dependency)."
    left_s = (record.spec.begin_s or now_s) - now_s
    return f"It begins in {left_s:.0f} s at the earliest (BeginTime)." if left_s > 0 else ""


def _by_its_user(record: TrainerRecord) -> str:
    """Say that its user, or its study, keeps it from having nodes; "": nobody does."""
    if record.held_s is not None:
        return f"It is held; 'bftrainer release {record.trainer_id}' lets it go on."
    if record.rung_s is not None:
        return f"It has trained its budget of {record.spec.budget}; its study decides about more."
    if record.requeued_s is not None:
        return "It is requeued: it leaves its nodes and starts again from its checkpoint."
    return ""


def _broken(record: TrainerRecord, others: Mapping[str, TrainerRecord]) -> Iterator[str]:
    """Yield the conditions that can no longer be met."""
    for trainer_id in record.waits_for:
        other = others.get(trainer_id)
        if other is None:
            yield f"{trainer_id} is no longer known"
        elif other.state.is_final:  # those that ended well are removed when they end
            yield f"{trainer_id} has {_ENDED[other.state]}"


_ENDED = {
    TrainerState.FINISHED: "finished",
    TrainerState.FAILED: "failed",
    TrainerState.CANCELLED: "been cancelled",
}


def _beyond_limit(members: list[TrainerRecord]) -> Iterator[tuple[str, str]]:
    """Yield the members of an array that have to wait; those with nodes keep them."""
    in_order = sorted(members, key=lambda record: _ORDER.index(record.state))
    for number, record in enumerate(in_order):
        limit = record.spec.array_limit
        if limit is not None and number >= limit:
            yield record.trainer_id, f"Its array has nodes for {limit} at once (--array %{limit})."
