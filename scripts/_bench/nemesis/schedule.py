"""Faults as data, and schedules of them that are drawn from a seed. Pure.

A schedule says what is done, to what, when and for how long; the same seed draws the same one. A
file of a schedule can be run again, whole or in part, by ``bench_nemesis``.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from itertools import combinations, pairwise
from typing import Any, Final

from tests.support.hosts.plan import CONTROLLER, LOGIN

EVERYWHERE: Final = "all"
HOME: Final = "home"  # the file system of all hosts
TEMPORARY: Final = ":/tmp"  # of a host, "n1:/tmp"
GAP_S: Final = 3.0  # between two faults, mean
GAP_LIMITS_S: Final = (0.2, 12.0)
ALL_DOWN_S: Final = 5.0  # longest time in which no node has power and network
DAEMON_REST_S: Final = 30.0  # between two faults of the daemon: its start takes some seconds
TRIES: Final = 50  # draws of target and duration before the fault is put off
PUT_OFF_S: Final = 1.0


class Kind(StrEnum):
    """What a fault is."""

    DAEMON_KILL = "daemon-kill"  # SIGKILL; started again at the end
    DAEMON_TERM = "daemon-term"  # SIGTERM; likewise
    DAEMON_STOP = "daemon-stop"  # SIGSTOP; SIGCONT at the end
    AGENT_KILL = "agent-kill"
    AGENT_STOP = "agent-stop"
    WORKER_KILL = "worker-kill"
    WORKER_STOP = "worker-stop"
    WORKERS_KILL = "workers-kill"  # all of a trainer
    WORKERS_STOP = "workers-stop"
    CUT = "cut"  # a host is cut off, both ways
    DEAF = "deaf"  # a host hears no other
    MUTE = "mute"  # no other hears a host
    APART = "apart"  # two hosts do not hear each other
    POWER = "power"  # all processes of a host end at once; it boots at the end
    DISK = "disk"  # a file system is full
    CONTROLLER = "controller"  # slurmctld is stopped, and started at the end
    CLOCK = "clock"  # the daemon's wall clock is an hour off
    JOB = "job"  # an ordinary job of so many nodes
    SCANCEL = "scancel"  # somebody cancels pilots


STOP_S: Final = (3.0, 20.0)
CUT_S: Final = (1.0, 20.0)
DOWN_S: Final = (0.5, 8.0)
AT_ONCE: Final = (0.0, 0.0)
DURATIONS_S: Final[Mapping[Kind, tuple[float, float]]] = {
    Kind.DAEMON_KILL: DOWN_S,
    Kind.DAEMON_TERM: DOWN_S,
    Kind.DAEMON_STOP: STOP_S,
    Kind.AGENT_KILL: AT_ONCE,
    Kind.AGENT_STOP: STOP_S,
    Kind.WORKER_KILL: AT_ONCE,
    Kind.WORKER_STOP: STOP_S,
    Kind.WORKERS_KILL: AT_ONCE,
    Kind.WORKERS_STOP: STOP_S,
    Kind.CUT: CUT_S,
    Kind.DEAF: CUT_S,
    Kind.MUTE: CUT_S,
    Kind.APART: CUT_S,
    Kind.POWER: (2.0, 20.0),
    Kind.DISK: STOP_S,
    Kind.CONTROLLER: (1.0, 10.0),
    Kind.CLOCK: STOP_S,
    Kind.JOB: STOP_S,
    Kind.SCANCEL: AT_ONCE,
}
OFTEN: Final[Mapping[Kind, int]] = {  # how often in a deck; the others once
    Kind.WORKER_KILL: 3,
    Kind.JOB: 3,
    Kind.AGENT_KILL: 2,
    Kind.WORKER_STOP: 2,
    Kind.CUT: 2,
    Kind.POWER: 2,
    Kind.SCANCEL: 2,
}
DAEMON: Final = (Kind.DAEMON_KILL, Kind.DAEMON_TERM, Kind.DAEMON_STOP)
UNREACHABLE: Final = (Kind.CUT, Kind.DEAF, Kind.MUTE, Kind.POWER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault, by when it begins after the schedule does."""

    kind: Kind
    target: str  # a host, two, a trainer's number, nodes of a job; by kind
    at_s: float
    duration_s: float  # 0: it has no end

    @property
    def end_s(self) -> float:
        """When it is over."""
        return self.at_s + self.duration_s

    @property
    def hosts(self) -> frozenset[str]:
        """The hosts that must have power for it, beside those it is sent through."""
        if self.kind in (*DAEMON, Kind.CLOCK):
            return frozenset({LOGIN})
        if self.kind is Kind.CONTROLLER:
            return frozenset({CONTROLLER})
        return frozenset(self.target.replace(TEMPORARY, "").split("+"))

    @property
    def is_of_daemon(self) -> bool:
        """Whether the daemon does not run meanwhile."""
        return self.kind in DAEMON or (self.kind is Kind.POWER and self.target == LOGIN)

    @property
    def effect(self) -> tuple[str, str]:
        """What two faults must not do at the same time."""
        return ("daemon", "") if self.kind in DAEMON else (self.kind, self.target)

    def __str__(self) -> str:
        lasts = f" for {self.duration_s:.1f} s" if self.duration_s else ""
        return f"{self.at_s:.1f} s: {self.kind} {self.target}{lasts}".replace("  ", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Faults in the order of their begin."""

    seed: int
    faults: tuple[Fault, ...]

    @property
    def span_s(self) -> float:
        """When all of them are over."""
        return max((fault.end_s for fault in self.faults), default=0.0)

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {"seed": self.seed, "faults": [asdict(fault) for fault in self.faults]}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Schedule:
        """Return the schedule of a document.

        Raises:
            ValueError: it is none.
        """
        try:
            faults = [
                Fault(**{**fault, "kind": Kind(fault["kind"])}) for fault in document["faults"]
            ]
            return cls(seed=int(document["seed"]), faults=in_order(faults))
        except (KeyError, TypeError) as problem:
            raise ValueError(f"this is no schedule: {problem!r}") from problem


def in_order(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    """Return faults in the order of their begin."""
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def draw(seed: int, count: int, nodes: Sequence[str], n_trainers: int) -> Schedule:
    """Draw so many faults: each kind as often as its deck has it, targets and durations at random.

    No two of the same effect overlap, nothing is done to a host without power, not all nodes are
    without power or network for longer than ``ALL_DOWN_S``, and between two of its faults the
    daemon has ``DAEMON_REST_S`` to start in.
    """
    rng = random.Random(seed)  # noqa: S311 - a schedule
    kinds, among = _kinds(rng), targets(nodes, n_trainers)
    faults: list[Fault] = []
    at_s = 0.0
    for _ in range(count):
        low_s, high_s = GAP_LIMITS_S
        at_s += min(max(rng.expovariate(1.0 / GAP_S), low_s), high_s)
        kind = next(kinds)
        fault = _drawn(rng, kind, at_s, faults, nodes, among[kind])
        faults.append(fault)
        at_s = fault.at_s
    return Schedule(seed=seed, faults=tuple(faults))


def _kinds(rng: random.Random) -> Iterator[Kind]:
    """Deal decks that hold every kind."""
    while True:
        deck = [kind for kind in Kind for _ in range(OFTEN.get(kind, 1))]
        rng.shuffle(deck)
        yield from deck


def _drawn(
    rng: random.Random,
    kind: Kind,
    at_s: float,
    before: Sequence[Fault],
    nodes: Sequence[str],
    among: Sequence[str],
) -> Fault:
    while True:
        for _ in range(TRIES):
            fault = Fault(
                kind=kind,
                target=rng.choice(among),
                at_s=round(at_s, 2),
                duration_s=round(rng.uniform(*DURATIONS_S[kind]), 2),
            )
            if is_allowed(fault, before, nodes):
                return fault
        at_s += PUT_OFF_S


def targets(nodes: Sequence[str], n_trainers: int) -> dict[Kind, tuple[str, ...]]:
    """Return what each kind of fault may be done to; nodes come up more often than other hosts."""
    of_nodes = tuple(nodes)
    hosts = (*nodes, *nodes, LOGIN, CONTROLLER)
    trainers = tuple(map(str, range(n_trainers)))
    places = (*(HOME for _ in nodes), *(f"{host}{TEMPORARY}" for host in (*nodes, LOGIN)))
    return {
        **dict.fromkeys(DAEMON, ("",)),
        **dict.fromkeys((Kind.AGENT_KILL, Kind.AGENT_STOP), of_nodes),
        **dict.fromkeys((Kind.WORKER_KILL, Kind.WORKER_STOP), of_nodes),
        **dict.fromkeys((Kind.WORKERS_KILL, Kind.WORKERS_STOP), trainers),
        **dict.fromkeys(UNREACHABLE, hosts),
        Kind.APART: tuple("+".join(pair) for pair in combinations((LOGIN, *nodes), 2)),
        Kind.DISK: places,
        Kind.CONTROLLER: ("",),
        Kind.CLOCK: ("ahead", "behind"),
        Kind.JOB: ("1", "2"),
        Kind.SCANCEL: (*nodes, EVERYWHERE),
    }


def is_allowed(fault: Fault, before: Sequence[Fault], nodes: Sequence[str]) -> bool:
    """Whether a fault may come beside earlier ones, see ``draw``."""
    beside = [earlier for earlier in before if earlier.end_s >= fault.at_s]
    if any(earlier.effect == fault.effect for earlier in beside):
        return False
    rests_from_s = max(
        (earlier.end_s for earlier in before if earlier.is_of_daemon), default=-DAEMON_REST_S
    )
    if fault.is_of_daemon and fault.at_s < rests_from_s + DAEMON_REST_S:
        return False
    without_power = (earlier for earlier in beside if Kind.POWER in (earlier.kind, fault.kind))
    if any(earlier.hosts & fault.hosts for earlier in without_power):
        return False
    return all_down_s([*before, fault], nodes) <= ALL_DOWN_S


def all_down_s(faults: Sequence[Fault], nodes: Sequence[str]) -> float:
    """Return the longest time in which no node has power and network."""
    cuts = [fault for fault in faults if fault.kind in UNREACHABLE and fault.target in nodes]
    times = sorted({time_s for fault in cuts for time_s in (fault.at_s, fault.end_s)})
    longest_s = lasts_s = 0.0
    for begin_s, end_s in pairwise(times):
        down = {fault.target for fault in cuts if fault.at_s <= begin_s and fault.end_s >= end_s}
        if down >= set(nodes):
            lasts_s += end_s - begin_s
        else:
            lasts_s = 0.0
        longest_s = max(longest_s, lasts_s)
    return longest_s


def closed_up(
    faults: Sequence[Fault], first_s: float = 1.0, gap_s: float = DAEMON_REST_S
) -> tuple[Fault, ...]:
    """Return faults with long times of nothing between them cut to ``gap_s``; the first soon.

    A fault that another overlaps keeps its place beside it.
    """
    moved: list[Fault] = []
    end_s = back_s = 0.0
    for fault in in_order(faults):
        most_s = gap_s if moved else first_s
        back_s += max(0.0, fault.at_s - end_s - most_s)
        moved.append(replace(fault, at_s=round(fault.at_s - back_s, 2)))
        end_s = max(end_s, fault.end_s)
    return tuple(moved)
