"""Measures node-hours by user, account and trainer.

``Accountant`` looks once a second. The time that a pilot has used since the last look counts as
what it does now, so the sum over a pilot is exact and its parts are exact to a second. Times are
cut to whole seconds, as batch systems do in their own accounting. Of a pilot with K of a node's G
GPUs K/G of the time counts: node-hours of a node's parts add up to those of the node, and a node's
GPUs times its node-hours are GPU-hours whatever pilots held. A daemon that starts counts the
time since its predecessor's last entry, because trainers go on without a daemon.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from bftrainer.batch.batch_system import PilotObservation
from bftrainer.daemon.account_report import make_report
from bftrainer.daemon.accounts import ADDED, Added, Sums, add, days, merged, read
from bftrainer.daemon.decider import Observed
from bftrainer.fleet.pilots.pilots import SIGNAL, Pilot, PilotBook
from bftrainer.fleet.trainers.occupancy import Occupancy
from bftrainer.journal.journal import Journal
from bftrainer.journal.tables import ACCOUNT_SUMS
from bftrainer.model.cluster import EndedBy, Node, node_of
from bftrainer.model.reports import AccountReport, Asked, NodeTime, Use, UserAccount, Whose, day_of
from bftrainer.model.trainer import Mark, TrainerRecord
from bftrainer.site.policy.model import SitePolicy

WRITTEN_EVERY_S: Final = 300.0
ENDS_WRITTEN_AFTER_S: Final = 10.0  # what a daemon that is killed may not have counted
DAY_S: Final = 86_400.0
SUMMED_EVERY_S: Final = 7 * DAY_S
MOST_ENTRIES: Final = 2000  # until all sums are written again; bounds what a start reads
OVERTIME_S: Final = 60.0  # batch systems end jobs so long after their limit
ASKED_FOR_S: Final = 60.0  # how an ended pilot ended is known by then


class Trainers(Protocol):
    """The part of the daemon's ``TrainerBook`` that is used here."""

    @property
    def records(self) -> Mapping[str, TrainerRecord]:
        """All trainers by id."""

    def occupancy(self) -> Occupancy:
        """Return the trainer that trains on each node."""


class _Span(NamedTuple):
    """A span of time in which a pilot did one thing."""

    trainer_id: str
    user: str  # of the pilot
    node_type: str
    share: float  # of the node
    use: Use
    begin_s: float
    end_s: float


@dataclass(slots=True, kw_only=True)
class _PilotTime:
    """A pilot, and how much of it is counted."""

    pilot: Pilot
    from_s: float  # earlier time was counted by an earlier daemon
    begin_s: float | None = None  # counted from here; None: it has not started
    until_s: float = 0.0
    trainer_id: str = ""  # the last that it was for
    share: float = 1.0  # of its node, by GPUs
    node_type: str = ""  # of a pilot with a part, when last seen; "": not yet
    ended_s: float = math.inf  # when we noticed


class Accountant:
    """Adds up node time; one per daemon."""

    def __init__(
        self,
        journal: Journal,
        pilots: PilotBook,
        trainers: Trainers,
        seen: Observed,
        clock: Callable[[], float],
        policy: Callable[[], SitePolicy],
    ) -> None:
        """Go on where the journal ends.

        Args:
            journal: keeps the sums.
            pilots: the daemon's.
            trainers: likewise.
            seen: last snapshot and plan.
            clock: seconds since the epoch.
            policy: in force; trainers of days before ``journal_days`` are not told apart any more.
        """
        self._journal, self._pilots, self._trainers, self._seen = journal, pilots, trainers, seen
        self._clock, self._policy = clock, policy
        before = read(journal, clock())
        self.since_s, self.until_s, self.sums = before.since_s, before.until_s, before.sums
        self._summed_s, self._entries = before.summed_s, before.entries
        self._added: Sums = {}
        # Most pilots of a trainer have the same span of time in a look: with how many it was so.
        self._spans: Counter[_Span] = Counter()
        self._written_s = before.until_s
        self._open: dict[str, _PilotTime] = {}
        for pilot_id, pilot in pilots.pilots.items():
            self._open[pilot_id] = _PilotTime(pilot=pilot, from_s=before.until_s)
        for record in trainers.records.values():
            for _, pilot_id in record.workers:
                if pilot_id in self._open:
                    self._open[pilot_id].trainer_id = record.trainer_id
        self._ended: dict[str, _PilotTime] = {}
        # Node-seconds since the start.
        self.used_s: dict[tuple[UserAccount, Use], float] = defaultdict(float)
        self._furthest: dict[str, Mark] = {}
        self._typed_nodes: Sequence[Node] = ()  # that the types are of
        self._types: dict[str, str] = {}  # by node
        self._gpus: dict[str, int] = {}  # likewise

    def look(self) -> None:
        """Count everything until now, and write it down now and then."""
        now_s = math.floor(self._clock())
        training, assignment = self._trainers.occupancy().training, self._seen.memory.assignment
        redoing = {trainer_id for trainer_id in set(training.values()) if self._redoes(trainer_id)}
        for pilot_id, pilot in self._pilots.pilots.items():
            pilot_time = self._open.get(pilot_id)
            if pilot_time is None:
                pilot_time = self._open[pilot_id] = _PilotTime(pilot=pilot, from_s=-math.inf)
            node = pilot.record.node
            trains, plans = training.get(node, ""), ""
            if pilot.silent_s is None and not pilot.is_leaving:
                plans = assignment.get(node, "")
            pilot_time.trainer_id = trains or plans or pilot_time.trainer_id
            self._count(pilot_time, now_s, _use(trains, plans, redoing))
        for pilot_id in self._open.keys() - self._pilots.pilots.keys():
            self._end(pilot_id, now_s)
        self._settle()
        for pilot_id, pilot_time in tuple(self._ended.items()):
            if now_s > pilot_time.ended_s + ASKED_FOR_S:
                del self._ended[pilot_id]
        self.until_s = now_s
        every_s = WRITTEN_EVERY_S
        if any(time.pilots for time in self._added.values()):
            every_s = ENDS_WRITTEN_AFTER_S
        if self._summed_s is None or now_s - self._written_s > every_s:
            self.write()

    def heard(self, pilot_id: str, seen: PilotObservation) -> None:
        """Learn from the batch system how a pilot ended whose end we did not ask for."""
        if pilot_id in self._open:
            self._end(pilot_id, math.floor(self._clock()))
        pilot_time = self._ended.pop(pilot_id, None)
        if pilot_time is None:
            return
        if pilot_time.begin_s is None and seen.start_s is not None and seen.end_s is not None:
            # It ended while no daemon was there; trainers go on without one.
            pilot_time.begin_s = pilot_time.until_s = max(seen.start_s, pilot_time.from_s)
            use: Use = "idle_s"
            if pilot_time.trainer_id:
                use = "trained_s"
            self._span(pilot_time, pilot_time.begin_s, seen.end_s, use)
            pilot_time.until_s = max(pilot_time.until_s, seen.end_s)
            self._add(pilot_time, NodeTime(pilots=1))
        self._settle()
        is_unknown = seen.ended_by is EndedBy.UNKNOWN
        if seen.ended_by is EndedBy.PREEMPTED or (
            is_unknown and pilot_time.pilot.farewell == SIGNAL
        ):
            self._add(pilot_time, NodeTime(preempted=1, returned_s=_rest_s(pilot_time)))

    def report(self, asked: Asked) -> Callable[[], AccountReport]:
        """Count until now; the result sums up, in any thread."""
        self.look()
        return partial(
            make_report,
            tuple(self.sums.items()),
            asked,
            self._policy(),
            since_s=self.since_s,
            until_s=self.until_s,
        )

    def close(self) -> None:
        """Count until now and write it down; trainers go on."""
        self.look()
        self.write()

    def write(self) -> None:
        """Write down what was added since the last time."""
        if self._summed_s is None or self._is_to_sum():
            self._write_sums()
        elif self._added:
            self._journal.note(ADDED, Added.of(self._added, until_s=self.until_s))
            self._entries += 1
        self._added, self._written_s = {}, self.until_s
        for trainer_id in tuple(self._furthest):
            if self._trainers.records[trainer_id].state.is_final:
                del self._furthest[trainer_id]

    def _is_to_sum(self) -> bool:
        every_s = min(SUMMED_EVERY_S, DAY_S * self._policy().journal_days / 3.0)
        is_old = self._summed_s is not None and self.until_s - self._summed_s > every_s
        return is_old or self._entries >= MOST_ENTRIES

    def _write_sums(self) -> None:
        kept_s = DAY_S * self._policy().journal_days
        first = day_of(self.until_s - kept_s, self._policy().time_zone)
        self.sums = merged(self.sums.items(), before=first)
        sums = Added.of(self.sums, until_s=self.until_s, since_s=self.since_s)
        self._journal.note(ACCOUNT_SUMS, sums)
        self._summed_s, self._entries = self.until_s, 0

    # ---- one pilot ---------------------------------------------------------------------

    def _count(self, pilot_time: _PilotTime, now_s: float, use: Use) -> None:
        pilot = pilot_time.pilot
        start_s = pilot.start_s
        if start_s is None and pilot_time.from_s < 0.0:  # else it has been running for longer
            start_s = pilot.came_s
        if start_s is None:
            return
        start_s = max(math.floor(start_s), pilot_time.from_s)
        if pilot_time.begin_s is None:
            pilot_time.begin_s = pilot_time.until_s = start_s
        elif start_s < pilot_time.begin_s:  # a poll shows when it started, after its agent came
            self._span(pilot_time, start_s, pilot_time.begin_s, "warm_up_s")
            pilot_time.begin_s = start_s
        end_s = min(now_s, _limit_s(pilot_time) + OVERTIME_S)
        if pilot.silent_s is not None:
            end_s = min(math.floor(pilot.silent_s), _limit_s(pilot_time) + OVERTIME_S)
        if end_s > pilot_time.until_s:
            self._span(pilot_time, pilot_time.until_s, end_s, use)
            pilot_time.until_s = end_s

    def _end(self, pilot_id: str, now_s: float) -> None:
        pilot_time = self._ended[pilot_id] = self._open.pop(pilot_id)
        pilot_time.ended_s = now_s
        if pilot_time.begin_s is None and pilot_time.pilot.came_s is None:
            return  # it never started, or ended before this daemon began
        self._count(pilot_time, now_s, "idle_s")
        is_given_back = pilot_time.pilot.is_given_back
        rest_s = 0.0
        if is_given_back:
            rest_s = _rest_s(pilot_time)
        self._add(pilot_time, NodeTime(pilots=1, given_back=int(is_given_back), returned_s=rest_s))

    def _span(self, pilot_time: _PilotTime, begin_s: float, end_s: float, use: Use) -> None:
        record = pilot_time.pilot.record
        node_type = self._type_of(record.node)
        if record.part is not None:
            node_gpus = self._gpus.get(record.part.node, 0)
            if node_gpus:  # else as before: the node is not shown at present
                pilot_time.share = min(1.0, record.part.gpus / node_gpus)
                pilot_time.node_type = node_type
            node_type = pilot_time.node_type or node_type
        span = _Span(
            trainer_id=pilot_time.trainer_id,
            user=record.user,
            node_type=node_type,
            share=pilot_time.share,
            use=use,
            begin_s=begin_s,
            end_s=end_s,
        )
        self._spans[span] += 1

    def _settle(self) -> None:
        zone = self._policy().time_zone
        for span, n_pilots in self._spans.items():
            for day, seconds in days(span.begin_s, span.end_s, zone):
                used_s = n_pilots * seconds * span.share
                owner = self._whose(day, span.trainer_id, span.user, span.node_type)
                self._sum(owner, NodeTime(**dict[str, Any]({span.use: used_s})))
                self.used_s[(owner.user, owner.account), span.use] += used_s
        self._spans.clear()

    def _add(self, pilot_time: _PilotTime, time: NodeTime) -> None:
        day = day_of(pilot_time.until_s, self._policy().time_zone)
        record = pilot_time.pilot.record
        self._sum(
            self._whose(day, pilot_time.trainer_id, record.user, self._type_of(record.node)), time
        )

    def _sum(self, owner: Whose, time: NodeTime) -> None:
        add(self.sums, owner, time)
        add(self._added, owner, time)

    def _whose(self, day: str, trainer_id: str, user: str, node_type: str) -> Whose:
        trainer, account = self._trainers.records.get(trainer_id), ""
        if trainer is not None:
            user, account = trainer.spec.user, trainer.spec.account
        return Whose(
            day=day, user=user, account=account, trainer_id=trainer_id, node_type=node_type
        )

    def _type_of(self, node: str) -> str:
        snapshot = self._seen.snapshot
        if snapshot is not None and snapshot.nodes is not None:
            self._note_types(snapshot.nodes)
        return self._types.get(node_of(node), "default")

    def _note_types(self, nodes: Sequence[Node]) -> None:
        if nodes is not self._typed_nodes:
            self._typed_nodes = nodes
            self._types = {node.name: node.node_type for node in nodes}
            self._gpus = {node.name: node.gpus for node in nodes}

    def _redoes(self, trainer_id: str) -> bool:
        """Return whether a trainer is not yet as far as it once was."""
        record = self._trainers.records[trainer_id]
        mark, before = _mark(record), self._furthest.get(trainer_id) or record.failing.best
        best = self._furthest[trainer_id] = before.joined(mark)
        if best.samples:
            return mark.samples < best.samples
        return mark.step < best.step


def _mark(record: TrainerRecord) -> Mark:
    progress = record.progress
    return Mark(step=progress.step, epoch=progress.epoch, samples=progress.samples)


def _limit_s(pilot_time: _PilotTime) -> float:
    return (pilot_time.begin_s or 0.0) + pilot_time.pilot.record.time_limit_s


def _rest_s(pilot_time: _PilotTime) -> float:
    """Return how much of its time limit a pilot did not use, by its share of the node."""
    if pilot_time.begin_s is None:
        return 0.0
    return pilot_time.share * max(0.0, _limit_s(pilot_time) - pilot_time.until_s)


def _use(trains: str, plans: str, redoing: Container[str]) -> Use:
    """Return what a pilot does.

    Args:
        trains: the trainer that trains on its node; "": none.
        plans: the one that the plan gives the node to; "": none.
        redoing: trainers that are not yet as far as they once were.
    """
    if trains in redoing:
        return "redone_s"
    if trains:
        return "trained_s"
    if plans:
        return "warm_up_s"
    return "idle_s"
