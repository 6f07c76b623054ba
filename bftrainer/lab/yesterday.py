"""The effect of a change of the policy: the past of a daemon, or a trace, replayed twice.

Every decision in a daemon's journal holds the snapshot it was taken on, so the journal tells which
nodes were free or ours, and until when. It does not tell which jobs would have used the nodes
otherwise. ``bftrainer policy test`` calls ``past_of`` and ``figures``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean
from typing import TYPE_CHECKING

from bftrainer.batch.traces.fragments import HOUR_S, Fragments, make_fragments
from bftrainer.daemon.journal_replay import KIND
from bftrainer.decide.policies.base import load_policy
from bftrainer.decide.throughput.curves import fitted
from bftrainer.journal.decisions import DecisionReader
from bftrainer.lab.simulator.metrics import measure
from bftrainer.lab.simulator.physical import MEASURED, PhysicalModel
from bftrainer.lab.simulator.replay import Outcome, Replay
from bftrainer.lab.simulator.trainers import Tally
from bftrainer.lab.workloads import Submission, TrainerWorkload
from bftrainer.model.census import census_of
from bftrainer.model.decision import DecisionInput, Settings
from bftrainer.model.errors import ExitCode, UsageError
from bftrainer.model.trainer import TrainerRecord
from bftrainer.site.policy.calendar import next_blackout
from bftrainer.site.policy.model import SitePolicy, settings_on

if TYPE_CHECKING:
    from bftrainer.journal.journal import Journal  # SQLAlchemy is slow

ENDLESS = 1e15  # samples of a trainer that had not ended
CYCLE_S = 1800.0  # a trace has no scheduler cycles; pilots start at once
UNKNOWN = (
    "Whether ordinary jobs would have come otherwise is not known: nodes come back when they did.",
    "What would have been given back in time is not told from what would have been preempted.",
    "Short gaps, stragglers, failures and idle_confirmations are not replayed.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The idle nodes and the trainers of a daemon's journal."""

    trace: Fragments
    workload: TrainerWorkload
    decisions: int
    unread: int  # decisions of another release


def past_of(journal: Journal, hours: float) -> Past:
    """Read the last hours of a journal.

    Raises:
        UsageError: BFT-1549, there are too few decisions in it.
    """
    begin_s = 0.0
    if (last := journal.latest(KIND)) is not None:
        begin_s = last.at_s - hours * HOUR_S
    reader, availability, decisions, unread = DecisionReader(), Availability(), 0, 0
    for entry in journal.entries(KIND):
        if entry.at_s < begin_s:
            continue
        record = reader.read_if(entry)
        unread += record is None
        if record is not None and (nodes := record.input.snapshot.nodes) is not None:
            decisions += 1
            for node in nodes:
                availability.node_types[node.name] = node.node_type
            availability.note(record.input.now_s, _available(record.input))
    if not availability.begin_s < availability.end_s:
        raise UsageError(
            "BFT-1549",
            "The journal has no two decisions in these hours.",
            "Name the journal.db of a daemon that has run, or more --hours.",
            exit_code=ExitCode.VALIDATION_FAILED,
        )
    records = [
        r for r in journal.trainers() if _was_there(r, availability.begin_s, availability.end_s)
    ]
    workload = TrainerWorkload(
        name="of the journal",
        submissions=tuple(_submission(r, availability.begin_s) for r in records),
    )
    trace = availability.trace(availability.end_s)
    return Past(trace=trace, workload=workload, decisions=decisions, unread=unread)


def _available(facts: DecisionInput) -> AbstractSet[str]:
    """Return the shown nodes that were free or ours."""
    census = census_of(facts.snapshot, facts.pilots)
    return (census.free | census.ours.keys()) & census.unoccupied


class Availability:
    """The nodes that were available over time; ``note`` is called in order of time."""

    def __init__(self) -> None:
        self.begin_s, self.end_s = math.inf, -math.inf
        self.node_types: dict[str, str] = {}  # of all nodes; none: they are those noted
        self._since_s: dict[str, float] = {}  # of those available now
        self._fragments: list[tuple[str, float, float]] = []

    def note(self, at_s: float, names: AbstractSet[str]) -> None:
        """Let these nodes be available from now on, and no others."""
        self.begin_s, self.end_s = min(self.begin_s, at_s), max(self.end_s, at_s)
        for name in sorted(self._since_s.keys() - names):
            since_s = self._since_s.pop(name)
            if at_s > since_s:
                self._fragments.append((name, since_s, at_s))
        for name in names - self._since_s.keys():
            self._since_s[name] = at_s

    def trace(self, end_s: float) -> Fragments:
        """Return what was available when; all of it ends with ``end_s``."""
        self.note(end_s, frozenset())
        names = sorted(self.node_types or {name for name, _, _ in self._fragments})
        index = {name: i for i, name in enumerate(names)}
        node_types = None
        if self.node_types:
            node_types = [self.node_types[name] for name in names]
        nodes, starts_s, ends_s = list[int](), list[float](), list[float]()
        for name, start_s, fragment_end_s in self._fragments:
            nodes.append(index[name])
            starts_s.append(start_s)
            ends_s.append(fragment_end_s)
        return make_fragments(
            names=names,
            node=nodes,
            start_s=starts_s,
            end_s=ends_s,
            span_s=(self.begin_s, self.end_s),
            node_types=node_types,
            source="the journal",
        )


def _was_there(record: TrainerRecord, begin_s: float, end_s: float) -> bool:
    has_ended = record.ended_s is not None and record.ended_s <= begin_s
    return record.submitted_s < end_s and not has_ended


def _submission(record: TrainerRecord, begin_s: float) -> Submission:
    spec, samples = record.spec, ENDLESS
    if record.state.is_final:
        samples = max(1.0, float(record.progress.samples))
    return Submission(
        submit_s=max(0.0, record.submitted_s - begin_s),
        name=record.trainer_id,
        n_min=spec.n_min,
        n_max=spec.n_max,
        sizes=spec.sizes,
        samples=samples,
        curve=spec.curve or fitted(record, explores=False).curve,
        rescale_up_s=0.0,
        rescale_down_s=0.0,
        utility=spec.utility,
        weight=spec.weight,
        gres=spec.gres,
        user=spec.user,
        account=spec.account,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UserWait:
    """The waits of a user's trainers for their first nodes."""

    user: str
    trainers: int
    never: int  # of these, had none before the end
    mean_s: float | None  # of the others
    longest_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one policy on the trace."""

    offered_node_h: float
    harvested_node_h: float  # in which trainers trained
    held_node_h: float  # with a pilot
    utilization: float  # U
    reference_node_h: float  # work done, whichever trainers ran (bftrainer.lab.simulator.metrics)
    samples: float
    makespan_s: float | None  # None: not all trainers ended
    rescales: int
    nodes_taken: int  # from trainers, when the nodes left
    finished: int
    waits: tuple[UserWait, ...]  # by user


def figures(trace: Fragments, workload: TrainerWorkload, policy: SitePolicy) -> Figures:
    """Replay with a policy."""
    tally, seed = Tally(), 1
    outcome = Replay(
        trace,
        workload,
        settings=replayed(policy),
        policy=load_policy(policy.policy),
        books=PhysicalModel(tally, MEASURED, seed=seed, runs_as_submitter=policy.is_for_all),
        seed=seed,
        blackout_at=partial(next_blackout, policy.blackouts, policy.time_zone),
    ).run()
    metrics = measure(outcome)
    return Figures(
        offered_node_h=tally.node_s_offered / HOUR_S,
        harvested_node_h=tally.node_s_used / HOUR_S,
        held_node_h=tally.node_s_held / HOUR_S,
        utilization=metrics.utilization,
        reference_node_h=metrics.reference_node_h,
        samples=metrics.a_e,
        makespan_s=metrics.makespan_s,
        rescales=metrics.rescales,
        nodes_taken=metrics.preemptions,
        finished=metrics.completed,
        waits=tuple(_waits(outcome)),
    )


def replayed(policy: SitePolicy) -> Settings:
    """Return the decision's settings; without those that a trace has nothing to say to."""
    return replace(
        settings_on(policy, idle_confirmations=1, cycle_s=CYCLE_S),
        min_gap_s=0.0,
        gap_margin_s=0.0,
        straggler_threshold=0.0,
    )


def _waits(outcome: Outcome) -> Iterator[UserWait]:
    by_user = sorted(outcome.trainers, key=lambda t: t.record.spec.user)
    for user, group in itertools.groupby(by_user, key=lambda t: t.record.spec.user):
        trainers = list(group)
        waited_s = [t.started_s - t.record.submitted_s for t in trainers if t.started_s is not None]
        yield UserWait(
            user=user,
            trainers=len(trainers),
            never=len(trainers) - len(waited_s),
            mean_s=mean(waited_s) if waited_s else None,
            longest_s=max(waited_s, default=None),
        )
