"""What each node was used for, and when: a fold over decisions, for people who look at a site.

The daemon feeds it with the decisions that it takes and journals what changed (``UsesNote``);
``bftrainer web --replay`` adds the same notes to the same fold, so that both show the same. The
journal has no decision that changed nothing, so decisions alone do not tell when a node was left.
Pure; times are as in ``bftrainer.model.decision``.

A node that lends its GPUs one by one is one node here, too: its use is ``shared``, and in place of
the trainer stand its shares (``gpu_shares.shares_text``), with every GPU in one of them.
"""

from __future__ import annotations

import enum
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Final

from bftrainer.model.cluster import PART_MARK, JobState, Node, NodeState, node_of
from bftrainer.model.decision import DecisionInput, PilotView, Plan
from bftrainer.model.gpu_shares import GpuShare, shares_of, shares_text
from bftrainer.model.lookups import by_node
from bftrainer.model.progress import CurvesNote, ProgressCurve, ProgressCurves
from bftrainer.model.reports import day_of
from bftrainer.model.study import Seen
from bftrainer.model.trainer import TrainerRecord

KEEP_S: Final = 6 * 3600.0
MOST_CHANGES: Final = 100_000  # 5,000 nodes that change twenty times
MOST_DAYS: Final = 31
MOST_AWAY_S: Final = 900.0  # of a daemon; what nodes were used for meanwhile is not known
_FREE = (NodeState.IDLE, NodeState.PLANNED)
_JOBS = (NodeState.ALLOCATED, NodeState.COMPLETING)
_UP = (*_FREE, *_JOBS)
_MOST_CACHED: Final = 1 << 13  # nodes
_PENDING: Final = JobState.PENDING


class NodeUse(enum.StrEnum):
    """What a node is used for."""

    TRAINING = "training"  # a worker of the trainer takes part in its training
    STARTING = "starting"  # for the trainer: a pilot is requested, or a worker starts
    HELD = "held"  # a pilot is there, no trainer is to have it
    LEAVING = "leaving"  # a pilot ends
    UNREACHABLE = "unreachable"  # the pilot's agent is not heard
    IDLE = "idle"
    RESERVE = "reserve"  # idle, left to the queue
    ORDINARY = "ordinary"  # jobs that are not ours
    UNAVAILABLE = "unavailable"  # reserved, drained, down, switched off or unknown
    SHARED = "shared"  # it lends GPUs one by one, which are used in the ways above


USES: Final = tuple(NodeUse)
State = tuple[NodeUse, str]  # with the trainer, "" if there is none, or the shares
# When, which node and which use (indices in ``TimelineView.nodes`` and ``USES``), trainer as above.
Change = tuple[float, int, int, str]
_NOT_HAD = (NodeUse.ORDINARY, NodeUse.UNAVAILABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedUse:
    """What a node is to be used for."""

    node: int  # index
    trainer_id: str  # "": an ordinary job, as the batch system plans it
    from_s: float  # 0: from now on
    until_s: float | None  # None: not known
    gpus: int = 0  # so many of it; 0: all of it


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineView:
    """The uses of all nodes from ``since_s`` on, or what is new to a reader."""

    incarnation: int
    change: int  # grows whenever something is new, trainers' progress included
    since_s: float  # uses before are not known
    now_s: float  # of the last decision
    nodes: tuple[str, ...]  # names in the order in which they were first seen
    base: tuple[tuple[int, str], ...]  # use and trainer of each node at ``since_s``; (): as it was
    changes: tuple[Change, ...]
    planned: tuple[PlannedUse, ...]
    # Day, node-seconds without ordinary jobs and of them in training, while a daemon ran.
    days: tuple[tuple[str, float, float], ...] = ()
    curves: tuple[ProgressCurve, ...] = ()  # of trainers: all, or those with a new point
    is_whole: bool = True  # False: ``changes`` follow those that the reader has seen

    @property
    def seen(self) -> Seen:
        """What the reader of this view has seen."""
        return Seen(change=self.change, incarnation=self.incarnation)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsesNote:
    """What a decision saw that was new to the timeline, as the journal keeps it."""

    now_s: float  # of the decision
    changes: tuple[tuple[str, str, str], ...]  # node, name of its use, trainer
    is_whole: bool  # the first of a daemon: nodes that it does not name are gone
    give_backs: int  # of this daemon so far, as in ``StatusView``
    preemptions: int


def pieced(
    known: Sequence[tuple[int, str]], view: TimelineView, until_s: float = math.inf
) -> list[tuple[int, str]]:
    """Return use and trainer of each node of ``view``, by index, at its end or ``until_s``.

    Args:
        known: what the view that the reader saw before gave.
        view: all, or what is new.
        until_s: later changes are left out.
    """
    states = list(view.base if view.is_whole else known)
    states += [_GONE] * (len(view.nodes) - len(states))
    for at_s, node, use, trainer_id in view.changes:
        if at_s <= until_s:
            states[node] = use, trainer_id
    return states


def uses(given: DecisionInput, plan: Plan) -> dict[str, State]:
    """Return the use of every node of the snapshot, as a decision saw it."""
    whole_nodes = by_node(given.pilots)
    parted = _PartedNodes(given, plan)
    reserve = frozenset(plan.reserve)
    states: dict[str, State] = {}
    for node in given.snapshot.nodes or ():
        pilot = whole_nodes.get(node.name)
        if node.lends or node.name in parted.pilots:
            states[node.name] = parted.state_of(node, pilot)
        elif pilot is not None:
            states[node.name] = _of_pilot(pilot, given, plan)
        elif node.state in _FREE:
            states[node.name] = NodeUse.RESERVE if node.name in reserve else NodeUse.IDLE, ""
        else:
            use = NodeUse.ORDINARY if node.state in _JOBS else NodeUse.UNAVAILABLE
            states[node.name] = use, ""
    return states


def _of_pilot(pilot: PilotView, given: DecisionInput, plan: Plan) -> State:
    node = pilot.node
    trains = given.training.get(node, "")
    if pilot.is_silent:
        return NodeUse.UNREACHABLE, trains
    if pilot.is_leaving:
        return NodeUse.LEAVING, trains
    if trains:
        return NodeUse.TRAINING, trains
    will_train = plan.assignment.get(node, "")
    if will_train:
        return NodeUse.STARTING, will_train
    return NodeUse.HELD, ""


# A part with a pilot: name, GPUs, use, and whether the snapshot shows no job of it that has begun.
_HeldPart = tuple[str, int, State, bool]


class _PartedNodes:
    """Nodes of which pilots may have parts, as a decision saw them.

    There are eight times as many parts as nodes, and all are looked at after every decision.
    """

    def __init__(self, given: DecisionInput, plan: Plan) -> None:
        self._given, self._plan = given, plan
        self.pilots: dict[str, list[_HeldPart]] = {}  # of parts, by node
        started: set[str | None] | None = None
        for pilot in given.pilots:
            part = pilot.part
            if part is None or part.name == part.node:
                continue
            if started is None:
                jobs = given.snapshot.jobs or ()
                started = {job.pilot_id for job in jobs if job.state is not _PENDING}
            state, is_unstarted = _of_pilot(pilot, given, plan), pilot.pilot_id not in started
            self.pilots.setdefault(part.node, []).append(
                (part.name, part.gpus, state, is_unstarted)
            )
        self._n_reserved = Counter(map(node_of, plan.reserve))  # parts, by node
        self._reserve = frozenset(plan.reserve)

    def state_of(self, node: Node, whole: PilotView | None) -> State:
        """Return the shares of a node; ``whole``: the pilot that has, or is to have, all of it."""
        n_lent = n_free = 0
        for lent in node.lends:
            n_lent += lent.n_gpus
            n_free += lent.n_free
        n_gpus = n_lent or node.gpus
        if whole is not None:
            use, trainer_id = _of_pilot(whole, self._given, self._plan)
            return NodeUse.SHARED, shares_text({(use, trainer_id): n_gpus})
        n_reserved = n_gpus
        if node.name not in self._reserve:
            n_reserved = self._n_reserved.get(node.name, 0)
        held_parts = tuple(self.pilots.get(node.name, ()))
        return _shared(held_parts, n_gpus, n_free, n_reserved, node.state in _UP)


@lru_cache(maxsize=_MOST_CACHED)  # most nodes are as they were at the decision before
def _shared(
    held_parts: tuple[_HeldPart, ...], n_gpus: int, n_free: int, n_reserved: int, is_up: bool, /
) -> State:
    """Return the shares of a node.

    Args:
        held_parts: those that pilots of ours have.
        n_gpus: in all.
        n_free: as the snapshot shows them.
        n_reserved: left to the queue, if they are free.
        is_up: jobs may run on the node.
    """
    shares: dict[tuple[str, str], int] = {}
    n_held = n_unstarted = 0
    for _, gpus, state, is_unstarted in sorted(held_parts):  # each keeps its place
        shares[state] = shares.get(state, 0) + gpus
        n_held += gpus
        if is_unstarted:
            n_unstarted += gpus
    # What is requested and has not begun is among those that the snapshot shows as free.
    n_free = max(0, min(n_free - n_unstarted, n_gpus - n_held))
    n_others = max(0, n_gpus - n_held - n_free)
    n_reserved = min(n_free, n_reserved)
    unlent: dict[State, int] = {
        (NodeUse.RESERVE, ""): n_reserved,
        (NodeUse.IDLE, ""): n_free - n_reserved,
        (NodeUse.ORDINARY, ""): n_others,
    }
    if not is_up:
        unlent = {(NodeUse.UNAVAILABLE, ""): n_free + n_others}
    for state, gpus in unlent.items():
        shares[state] = shares.get(state, 0) + gpus
    return NodeUse.SHARED, shares_text(shares)


# Node, trainer ("": an ordinary job's), begin, end, number of its GPUs (0: all).
_ToCome = tuple[str, str, float, float | None, int]


def planned_uses(given: DecisionInput, plan: Plan) -> Iterator[_ToCome]:
    """Yield what nodes are to be used for; alike GPUs of a node once."""
    gpus_to_come: dict[tuple[str, str, float | None], int] = {}
    for offer in plan.pool:
        trainer_id = plan.assignment.get(offer.name)
        if not (offer.pilot_id and trainer_id):
            continue
        if PART_MARK in offer.name:
            alike = node_of(offer.name), trainer_id, offer.usable_until_s
            gpus_to_come[alike] = gpus_to_come.get(alike, 0) + max(1, offer.gpus)
        else:
            yield offer.name, trainer_id, 0.0, offer.usable_until_s, 0
    for (node, trainer_id, until_s), gpus in gpus_to_come.items():
        yield node, trainer_id, 0.0, until_s, gpus
    lent_nodes = frozenset([node.name for node in given.snapshot.nodes or () if node.lends])
    for job in given.snapshot.jobs or ():
        if job.state is JobState.PENDING and job.start_s is not None and job.pilot_id is None:
            end_s = None
            if job.time_limit_s is not None:
                end_s = job.start_s + job.time_limit_s
            for name in job.planned_nodes:
                gpus = job.gpus_per_node if job.can_share and name in lent_nodes else 0
                yield name, "", job.start_s, end_s, gpus


class NodeUses:
    """The fold: what changed of late, and what each node was used for before."""

    def __init__(
        self,
        keep_s: float = KEEP_S,
        most: int = MOST_CHANGES,
        zone: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._keep_s, self._most, self._zone = keep_s, most, zone  # zone: of days
        self._names: dict[str, int] = {}
        self._now: list[tuple[int, str]] = []  # by index, as ``_base``
        self._counts: Counter[int] = Counter()  # of nodes, by use
        # Use and GPUs of a node -> how many GPUs of such nodes are used so: exact, unlike sums of
        # fractions.
        self._gpu_counts: Counter[tuple[str, int]] = Counter()
        self._days: dict[str, tuple[float, float]] = {}
        self._base: list[tuple[int, str]] = []
        self._changes: deque[tuple[int, Change]] = deque()  # with the number of the change
        self._planned: tuple[PlannedUse, ...] = ()
        self._progress = ProgressCurves()
        self._newest: tuple[Change, ...] = ()  # of the last ``_change``
        self._since_s: float | None = None
        self._last: object = None
        self._forgotten = 0  # number of the last change that is in the base
        self._noted: tuple[int, int] | None = None  # None: nothing was noted yet
        self.now_s, self.count, self._is_resumed = 0.0, 0, False

    def saw(self, given: DecisionInput, plan: Plan) -> bool:
        """Add what a decision saw; return whether any use is another."""
        if given.snapshot.nodes is None:
            return False
        self.passes(given.now_s)
        inputs = (given.snapshot, given.pilots, given.training, plan.assignment, plan.reserve)
        if inputs == self._last:  # 4 ms less with 5,000 nodes
            return False
        self._last = inputs
        states: dict[str, tuple[int, str]] = {}
        for node, (use, trainer_id) in uses(given, plan).items():
            states[node] = _NUMBER[use], trainer_id
        is_new = self._change(states)
        self.plans(given, plan)
        return is_new

    def plans(self, given: DecisionInput, plan: Plan) -> None:
        """Take what a decision plans to come."""
        uses_to_come: list[PlannedUse] = []
        for name, trainer_id, from_s, until_s, gpus in planned_uses(given, plan):
            if name not in self._names:
                continue
            use = PlannedUse(
                node=self._names[name],
                trainer_id=trainer_id,
                from_s=from_s,
                until_s=until_s,
                gpus=gpus,
            )
            uses_to_come.append(use)
        self._planned = tuple(uses_to_come)

    def _change(self, states: Mapping[str, tuple[int, str]], *, is_whole: bool = True) -> bool:
        """Set the uses of nodes now; of all, if ``is_whole``: others are gone."""
        if self._since_s is None:
            self._since_s = self.now_s
        number, before = self.count + 1, len(self._changes)
        for name, state in states.items():
            self._set(number, self.now_s, name, state)
        if is_whole and len(states) < len(self._names):  # taken out of the system
            for name in self._names.keys() - states.keys():
                self._set(number, self.now_s, name, _GONE)
        is_new = len(self._changes) > before
        self._newest = ()
        if is_new:
            self._newest = tuple(change for _, change in self._later(number - 1))
        self._forget()
        if is_new:
            self.count = number
        return is_new

    def note(self, counts: tuple[int, int], *, is_new: bool) -> UsesNote | None:
        """Return what the journal is to keep of the decision that was seen last; None: nothing.

        Args:
            counts: give-backs and preemptions so far.
            is_new: what ``saw`` returned.
        """
        is_whole = self._noted is None
        if self._since_s is None or not (is_whole or is_new or counts != self._noted):
            return None
        self._noted = counts
        give_backs, preemptions = counts
        names = list(self._names)
        rows: list[tuple[int, int, str]] = []  # node, use, trainer
        if is_whole:
            rows = [(index, *state) for index, state in enumerate(self._now)]
        elif is_new:
            rows = [(index, use, trainer_id) for _, index, use, trainer_id in self._newest]
        return UsesNote(
            now_s=self.now_s,
            changes=tuple(
                (names[index], USES[use].value, trainer_id) for index, use, trainer_id in rows
            ),
            is_whole=is_whole,
            give_backs=give_backs,
            preemptions=preemptions,
        )

    def add(self, note: UsesNote) -> None:
        """Add what the journal has of a decision.

        Raises:
            ValueError: another release named a use that this one does not know.
        """
        states = {
            name: (_NUMBER[NodeUse(use)], trainer_id) for name, use, trainer_id in note.changes
        }
        if not all(map(_is_known, states.values())):
            raise ValueError("unknown shares of a node")
        self.passes(note.now_s)
        self._last = None
        self._change(states, is_whole=note.is_whole)

    def passes(self, now_s: float) -> None:
        """Nodes are used as they were until a decision at this time."""
        self._add_time(max(0.0, now_s - self.now_s))  # clocks are set back at times
        self.now_s = now_s

    def is_away(self) -> None:
        """No daemon runs until the next decision: that time is nobody's."""
        self._is_resumed = self._since_s is not None

    def resume(self, earlier: TimelineView, now_s: float) -> None:
        """Go on where another fold ended; only its days count if that is long ago.

        Raises:
            ValueError: it is of another release, or not whole.
        """
        n_nodes, states = len(earlier.nodes), list(earlier.base)
        states += [(use, trainer_id) for _, _, use, trainer_id in earlier.changes]
        is_whole = len(earlier.base) == n_nodes
        are_numbered = all(0 <= node < n_nodes for _, node, _, _ in earlier.changes)
        if not (is_whole and are_numbered and all(map(_is_known, states))):
            raise ValueError("unknown nodes or uses of them")
        self._days = {day: (had_s, trained_s) for day, had_s, trained_s in earlier.days}
        if not 0.0 <= now_s - earlier.now_s <= MOST_AWAY_S:
            return
        self._names = {name: index for index, name in enumerate(earlier.nodes)}
        self._base, self._now = list(earlier.base), pieced((), earlier)
        self._counts = Counter(use for use, _ in self._now)
        for state in self._now:
            self._count_gpus(state, 1)
        self._changes = deque((1, change) for change in earlier.changes)
        self._since_s, self.now_s, self.count = earlier.since_s, earlier.now_s, 1
        self._progress.resume(earlier.curves)
        self._is_resumed = True

    def touch(self, now_s: float = 0.0, records: Iterable[TrainerRecord] = ()) -> None:
        """Something else that people look at is new: trainers, as they are now."""
        self.count += 1
        self._progress.saw(now_s, records, self.count)

    def curves_note(self) -> CurvesNote | None:
        """Return what the journal is to keep of trainers' curves; None: nothing is new."""
        return self._progress.note()

    def add_curves(self, note: CurvesNote) -> None:
        """Add what the journal has of trainers' curves."""
        self.count += 1
        self._progress.add(note, self.count)

    def timeline(self, incarnation: int, seen: int | None = None) -> TimelineView:
        """Return all, or what came after the count was ``seen``."""
        is_whole = seen is None or not self._forgotten <= seen <= self.count
        since = -1
        if seen is not None and not is_whole:
            since = seen
        return TimelineView(
            incarnation=incarnation,
            change=self.count,
            since_s=self.now_s if self._since_s is None else self._since_s,
            now_s=self.now_s,
            nodes=tuple(self._names),
            base=tuple(self._base) if is_whole else (),
            changes=tuple(change for _, change in self._later(since)),
            planned=self._planned,
            days=tuple((day, *sums) for day, sums in self._days.items()),
            curves=self._progress.since(since),
            is_whole=is_whole,
        )

    def _add_time(self, passed_s: float) -> None:
        """Count the time since the last decision, for the day in which it began."""
        if self._since_s is None or self._is_resumed:
            self._is_resumed = False
            return
        day, training = day_of(self.now_s, self._zone()), self._nodes_with(NodeUse.TRAINING)
        had = self._counts.total() - sum(map(self._nodes_with, _NOT_HAD))
        had_s, trained_s = self._days.pop(day, (0.0, 0.0))
        self._days[day] = had_s + had * passed_s, trained_s + training * passed_s
        while len(self._days) > MOST_DAYS:
            del self._days[next(iter(self._days))]

    def _nodes_with(self, use: NodeUse) -> float:
        """Return how many nodes have the use; a node with GPUs in several counts in parts."""
        count: float = self._counts[_NUMBER[use]]
        for (share_use, n_gpus), gpus in self._gpu_counts.items():
            if share_use == use:
                count += gpus / n_gpus
        return count

    def _count_gpus(self, state: tuple[int, str], by: int) -> None:
        """Count the GPUs of a node in or, with -1, out."""
        use, text = state
        if use != _SHARED:
            return
        shares = shares_of(text)
        n_gpus = sum([share.gpus for share in shares])
        for share in shares:
            self._gpu_counts[share.use, n_gpus] += by * share.gpus

    def _later(self, seen: int) -> list[tuple[int, Change]]:
        n_new = 0
        for number, _ in reversed(self._changes):
            if number <= seen:
                break
            n_new += 1
        return list(islice(self._changes, len(self._changes) - n_new, None))

    def _set(self, number: int, at_s: float, name: str, state: tuple[int, str]) -> None:
        index = self._names.setdefault(name, len(self._names))
        if index == len(self._now):
            self._now.append(_GONE)
            self._base.append(_GONE)
            self._counts[_GONE_USE] += 1
        if self._now[index] != state:
            (use_before, _), (use, _) = self._now[index], state
            self._counts[use_before] -= 1
            self._counts[use] += 1
            self._count_gpus(self._now[index], -1)
            self._count_gpus(state, 1)
            self._now[index] = state
            self._changes.append((number, (at_s, index, *state)))

    def _forget(self) -> None:
        """Fold what is old into the base."""
        oldest_s = self.now_s - self._keep_s
        while self._changes:
            number, (at_s, index, use, trainer_id) = self._changes[0]
            if at_s > oldest_s and len(self._changes) <= self._most:
                break
            self._changes.popleft()
            self._base[index], self._forgotten = (use, trainer_id), number
            self._since_s = max(at_s, self._since_s or 0.0)
        if self._since_s is not None:
            self._since_s = max(self._since_s, oldest_s)


_NUMBER: Final[Mapping[NodeUse, int]] = {use: number for number, use in enumerate(USES)}
_GONE_USE: Final = _NUMBER[NodeUse.UNAVAILABLE]
_SHARED: Final = _NUMBER[NodeUse.SHARED]
_GONE: Final = (_GONE_USE, "")


def _is_known(state: tuple[int, str]) -> bool:
    """Return whether this release can tell what a node was used for."""
    use, text = state
    if not 0 <= use < len(USES):
        return False
    if use != _SHARED:
        return True
    try:
        return all(share.use in _PLAIN_USES for share in shares_of(text))
    except ValueError:
        return False


_PLAIN_USES: Final = frozenset([use.value for use in USES]) - {NodeUse.SHARED.value}


def parted(state: tuple[int, str]) -> tuple[GpuShare, ...]:
    """Return the shares of a node in this state; (): it is used as a whole."""
    use, text = state
    if use == _SHARED:
        return shares_of(text)
    return ()
