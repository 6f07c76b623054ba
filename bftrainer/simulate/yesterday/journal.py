"""A daemon's journal as a trace of idle nodes and a workload.

Every decision holds the snapshot it was taken on, so the journal tells which nodes were free or
ours, and until when. Who would have used the nodes otherwise, it does not tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from bftrainer.canonical import CanonicalError
from bftrainer.errors import ExitCode, UsageError
from bftrainer.journal.journal import Journal
from bftrainer.journal.records import JournalEntry
from bftrainer.model.decision import DecisionInput, DecisionRecord
from bftrainer.model.trainer import TrainerRecord
from bftrainer.profile.curves import fitted
from bftrainer.queue.shown import FREE_STATES, LOST_STATES, names_in, nodes_by_name, taken_nodes
from bftrainer.simulate.recorded import KIND
from bftrainer.simulate.traces.fragments import HOUR_S, Fragments, make_fragments
from bftrainer.simulate.workloads.submission import Submission, TrainerWorkload

ENDLESS = 1e15  # samples of a trainer that had not ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What a daemon saw and was asked for."""

    trace: Fragments
    workload: TrainerWorkload
    decisions: int
    unread: int  # decisions of another release


def past_of(journal: Journal, hours: float) -> Past:
    """Read the last hours of a journal.

    Raises:
        UsageError: BFT-1549, there are too few decisions in it.
    """
    inputs = list(_decisions(journal.entries(KIND)))
    seen = [given for given in inputs if given is not None]
    unread = len(inputs) - len(seen)
    begin_s = max((given.now_s for given in seen), default=0.0) - hours * HOUR_S
    seen = [given for given in seen if given.now_s >= begin_s and given.snapshot.nodes]
    if len(seen) < 2 or seen[0].now_s >= seen[-1].now_s:
        raise UsageError(
            "BFT-1549",
            "The journal has no two decisions in these hours.",
            "Name the journal.db of a daemon that has run, or more --hours.",
            exit_code=ExitCode.VALIDATION_FAILED,
        )
    span_s = seen[0].now_s, seen[-1].now_s
    records = [r for r in journal.trainers() if _was_there(r, span_s)]
    workload = TrainerWorkload(
        name="of the journal", submissions=tuple(_submission(r, span_s[0]) for r in records)
    )
    return Past(trace=_trace(seen, span_s), workload=workload, decisions=len(seen), unread=unread)


def _decisions(entries: Iterable[JournalEntry]) -> Iterator[DecisionInput | None]:
    for entry in entries:
        try:
            yield entry.payload_as(DecisionRecord).input
        except CanonicalError:  # of another release
            yield None


def _available(given: DecisionInput) -> set[str]:
    """Return the nodes that were free or ours."""
    snapshot = given.snapshot
    ours = {pilot.node for pilot in given.pilots if not pilot.is_leaving}
    out = names_in(snapshot, *LOST_STATES) | taken_nodes(snapshot)
    return (names_in(snapshot, *FREE_STATES) | ours) - out


@dataclass(slots=True, kw_only=True)
class _Columns:
    """Fragments as they are found."""

    node: list[int] = field(default_factory=list)
    start_s: list[float] = field(default_factory=list)
    end_s: list[float] = field(default_factory=list)

    def add(self, node: int, start_s: float, end_s: float) -> None:
        if end_s > start_s:
            self.node.append(node)
            self.start_s.append(start_s)
            self.end_s.append(end_s)


def _trace(seen: list[DecisionInput], span_s: tuple[float, float]) -> Fragments:
    types = {n.name: n.node_type for given in seen for n in given.snapshot.nodes or ()}
    names = sorted(types)
    index = {name: i for i, name in enumerate(names)}
    since_s: dict[str, float] = {}
    found = _Columns()
    for given in seen:
        shown = nodes_by_name(given.snapshot.nodes or ()).keys()
        now = _available(given) & shown
        for name in since_s.keys() - now:
            found.add(index[name], since_s.pop(name), given.now_s)
        for name in now - since_s.keys():
            since_s[name] = given.now_s
    for name, start_s in since_s.items():
        found.add(index[name], start_s, span_s[1])
    return make_fragments(
        names=names,
        node=found.node,
        start_s=found.start_s,
        end_s=found.end_s,
        span_s=span_s,
        node_types=[types[name] for name in names],
        source="the journal",
    )


def _was_there(record: TrainerRecord, span_s: tuple[float, float]) -> bool:
    ended_s = record.ended_s if record.ended_s is not None else span_s[1]
    return record.submitted_s < span_s[1] and ended_s > span_s[0]


def _submission(record: TrainerRecord, begin_s: float) -> Submission:
    spec, progress = record.spec, record.progress
    return Submission(
        submit_s=max(0.0, record.submitted_s - begin_s),
        name=record.trainer_id,
        n_min=spec.n_min,
        n_max=spec.n_max,
        samples=max(1.0, float(progress.samples)) if record.state.is_final else ENDLESS,
        curve=spec.curve or fitted(record, explores=False).curve,
        rescale_up_s=0.0,
        rescale_down_s=0.0,
        utility=spec.utility,
        weight=spec.weight,
        gres=spec.gres,
        user=spec.user,
        account=spec.account,
    )
