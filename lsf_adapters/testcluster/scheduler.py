"""One pass of the stand-in's scheduler: starts, reservations and preemptions of jobs. Pure.

``batch`` states the wishes of pending jobs and what the others hold, and carries out the plan.
Jobs are taken by priority of their queue, then in order of submission. Free slots that a parallel
job cannot use yet are reserved for it; a job of a queue with BACKFILL may use them if its run limit
ends before the estimated start. Preemption is IBM's: the fewest hosts give way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bftrainer.model.lookups import by_name
from lsf_adapters.testcluster.config import Parameters, Queue

_MAX_ESTIMATES = 8  # of starts in one pass; the first jobs' are the ones that matter
FULL = "Job slot limit reached"
NOT_EMPTY = "Job's requirement for exclusive execution not satisfied"
EXCLUSIVE = "Running an exclusive job"
USER_FULL = "User has reached the per-user job slot limit of the queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNow:
    """A host and why nothing may start there; empty: it may."""

    name: str
    slots: int
    gpus: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The slots that a started job holds."""

    key: str
    user: str
    queue: Queue
    hosts: tuple[str, ...]  # one per slot
    start_s: float
    ends_s: float | None  # by its run limit
    gpus: int = 0
    is_exclusive: bool = False
    is_backfilled: bool = False
    is_preempted: bool = False  # suspended for others, or being terminated for them
    is_suspended: bool = False  # for others: its slots are theirs
    preempted_by: str = ""
    was_preempted: int = 0
    obeys: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A pending job that may start."""

    key: str
    user: str
    queue: Queue
    min_slots: int = 1
    max_slots: int = 1
    ptile: int = 0
    is_one_host: bool = False
    is_exclusive: bool = False
    gpus: int = 0
    ask_hosts: tuple[str, ...] = ()
    limit_s: float | None = None
    submit_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A job starts on these hosts, one per slot."""

    key: str
    hosts: tuple[str, ...]
    is_backfilled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Slots kept for a job, and when it is estimated to start where."""

    hosts: tuple[str, ...]
    estimate_s: float | None = None
    plan_hosts: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Plan:
    """The decisions of one pass."""

    starts: list[Start] = field(default_factory=list)
    reservations: dict[str, Reservation] = field(default_factory=dict)
    preempted: dict[str, str] = field(default_factory=dict)  # victim -> who gets its slots
    resumed: list[str] = field(default_factory=list)
    reasons: dict[str, list[list[str]]] = field(default_factory=dict)


def run_pass(
    wishes: Sequence[Wish],
    held: Sequence[Held],
    hosts: Sequence[HostNow],
    parameters: Parameters,
    now_s: float,
) -> Plan:
    """Return what starts now; the wishes are in order of submission."""
    a_pass = _Pass(hosts, held, parameters, now_s)
    for wish in sorted(wishes, key=lambda wish: -wish.queue.priority):
        a_pass.serve(wish)
    a_pass.resume()
    return a_pass.plan


class _Pass:
    """The books of one pass."""

    def __init__(
        self,
        hosts: Sequence[HostNow],
        held: Sequence[Held],
        parameters: Parameters,
        now_s: float,
    ) -> None:
        self.plan = Plan()
        self._hosts = by_name(hosts)
        self._held = list(held)
        self._parameters = parameters
        self._now_s = now_s
        self._free: dict[str, int] = {}
        self._free_gpus: dict[str, int] = {}
        for host in hosts:
            self._free[host.name] = host.slots
            self._free_gpus[host.name] = host.gpus
        self._suspended = dict.fromkeys(self._hosts, 0)
        self._kept = dict.fromkeys(self._hosts, 0)  # reserved or promised
        self._kept_until: dict[str, float] = dict.fromkeys(self._hosts, math.inf)
        self._occupied: set[str] = set()
        self._exclusive: set[str] = set()
        self._of_user: dict[tuple[str, str], int] = {}
        self._n_estimates = 0
        for job in held:
            self._book(job)

    def _book(self, job: Held) -> None:
        for name in job.hosts:
            self._free[name] -= 1
            self._suspended[name] += job.is_suspended
        for name in set(job.hosts):
            self._free_gpus[name] -= job.gpus
            self._occupied.add(name)
            if job.is_exclusive:
                self._exclusive.add(name)
        queue_and_user = (job.queue.name, job.user)
        self._of_user[queue_and_user] = self._of_user.get(queue_and_user, 0) + len(job.hosts)

    def serve(self, wish: Wish) -> None:
        """Start a job, preempt for it, or keep slots for it."""
        if self._is_over_limit(wish):
            self.plan.reasons[wish.key] = [[USER_FULL, *self._hosts]]
            return
        usable = self._usable(wish)
        room: dict[str, int] = {}  # free for this job on each host, slots kept for others included
        unreserved_room: dict[str, int] = {}
        for name in usable:
            room[name] = self._room(wish, name)
            unreserved_room[name] = room[name] - self._kept[name]
        if hosts := _fit(wish, unreserved_room):
            self._start(wish, hosts)
            return
        if hosts := self._backfill(wish, room):
            self._start(wish, hosts, is_backfilled=True)
            return
        self._explain(wish)
        if self._preempt(wish, room):
            return
        self._reserve(wish, usable, room)

    def _is_over_limit(self, wish: Wish) -> bool:
        limit = wish.queue.max_slots_per_user
        n_slots = self._of_user.get((wish.queue.name, wish.user), 0)
        return limit is not None and n_slots + wish.min_slots > limit

    def _usable(self, wish: Wish) -> list[str]:
        """Hosts on which the job might run at some time, in order."""
        names = [name for name in wish.ask_hosts if name in self._hosts] or list(self._hosts)
        if wish.queue.hosts:
            names = [name for name in names if name in wish.queue.hosts]
        return [name for name in names if not self._hosts[name].problem]

    def _room(self, wish: Wish, name: str) -> int:
        """Slots that are free for this job, reserved or not."""
        if name in self._exclusive or (wish.is_exclusive and name in self._occupied):
            return 0
        if wish.gpus > self._free_gpus[name]:
            return 0
        n_slots = self._free[name]
        if wish.queue.is_preemptive:
            n_slots += self._suspended[name]
        return max(0, n_slots)

    def _start(self, wish: Wish, hosts: tuple[str, ...], *, is_backfilled: bool = False) -> None:
        self.plan.starts.append(Start(key=wish.key, hosts=hosts, is_backfilled=is_backfilled))
        ends_s: float | None = None
        if wish.limit_s is not None:
            ends_s = self._now_s + wish.limit_s
        job = Held(
            key=wish.key,
            user=wish.user,
            queue=wish.queue,
            hosts=hosts,
            start_s=self._now_s,
            ends_s=ends_s,
            gpus=wish.gpus,
            is_exclusive=wish.is_exclusive,
        )
        self._held.append(job)
        self._book(job)
        if is_backfilled:
            self._shrink(hosts)

    def _shrink(self, hosts: Sequence[str]) -> None:
        """Take slots that are used meanwhile out of the reservations."""
        for name in hosts:
            for key, reservation in self.plan.reservations.items():
                if name in reservation.hosts:
                    hosts_left = list(reservation.hosts)
                    hosts_left.remove(name)
                    self.plan.reservations[key] = replace(reservation, hosts=tuple(hosts_left))
                    self._kept[name] -= 1
                    break

    def _backfill(self, wish: Wish, room: Mapping[str, int]) -> tuple[str, ...] | None:
        if not wish.queue.backfills or wish.limit_s is None or wish.is_exclusive:
            return None
        ends_s = self._now_s + wish.limit_s
        room_until_end = dict(room)
        for name in room:
            is_back_in_time = ends_s <= self._kept_until[name] < math.inf
            if not is_back_in_time:
                room_until_end[name] -= self._kept[name]
        return _fit(wish, room_until_end)

    # -- preemption -----------------------------------------------------------------

    def _preempt(self, wish: Wish, room: Mapping[str, int]) -> bool:
        """Have others give way; return whether the job will start when they are gone."""
        if not wish.queue.is_preemptive:
            return False
        if self._now_s < wish.submit_s + self._parameters.preempt_delay_s:
            return False
        coming = dict.fromkeys(room, 0)  # slots of those that already give way to this job
        candidates: dict[str, list[Held]] = {name: [] for name in room}
        for job in self._held:
            for name in set(job.hosts) & room.keys():
                if job.preempted_by == wish.key and not job.is_suspended:
                    coming[name] += job.hosts.count(name)
                elif self._may_be_preempted(job, wish):
                    candidates[name].append(job)
        base = {name: self._net_room(wish, name) + coming[name] for name in room}
        if hosts := _fit(wish, base):
            self._keep(hosts)
            return True
        with_victims = {}  # the hosts with most room first, so that few give way
        for name in sorted(room, key=lambda name: -base[name]):
            with_victims[name] = base[name] + sum(job.hosts.count(name) for job in candidates[name])
        hosts = _fit(wish, with_victims)
        if hosts is None:
            return False
        for name in dict.fromkeys(hosts):
            lacks = hosts.count(name) - base[name]
            self._choose_victims(wish, name, lacks, candidates[name])
        self._keep(hosts)
        return True

    def _net_room(self, wish: Wish, name: str) -> int:
        if wish.is_exclusive:
            return 0
        return self._room(wish, name) - self._kept[name]

    def _choose_victims(self, wish: Wish, name: str, lacks: int, candidates: list[Held]) -> None:
        """Take the lowest priority first, then the job that started last."""
        for job in sorted(candidates, key=lambda job: (job.queue.priority, -job.start_s)):
            if lacks <= 0:
                return
            if job.key not in self.plan.preempted:
                self.plan.preempted[job.key] = wish.key
            lacks -= job.hosts.count(name)

    def _may_be_preempted(self, job: Held, wish: Wish) -> bool:
        jobtypes = self._parameters.preempt_jobtype
        limit = self._parameters.max_job_preempt
        return (
            job.queue.is_preemptable
            and job.queue.priority < wish.queue.priority
            and job.obeys
            and not job.is_preempted
            and job.key not in self.plan.preempted
            and (not job.queue.backfills or "BACKFILL" in jobtypes)
            and (not job.is_exclusive or "EXCLUSIVE" in jobtypes)
            and (limit is None or job.was_preempted < limit)
        )

    def _keep(self, hosts: Sequence[str]) -> None:
        for name in hosts:
            self._kept[name] += 1

    def resume(self) -> None:
        """Let suspended jobs go on whose slots no other job needs any more."""
        for job in self._held:
            if job.is_suspended and all(self._free[name] >= 0 for name in job.hosts):
                self.plan.resumed.append(job.key)

    # -- reservation ------------------------------------------------------------------

    def _reserve(self, wish: Wish, usable: Sequence[str], room: Mapping[str, int]) -> None:
        if not wish.queue.reserve_passes or wish.min_slots < 2 or wish.is_exclusive:
            return
        if self._n_estimates >= _MAX_ESTIMATES:
            return
        self._n_estimates += 1
        most_per_host = wish.ptile or wish.min_slots
        hosts: list[str] = []
        for name in reversed(usable):  # as recorded
            lacks = wish.min_slots - len(hosts)
            n_slots = min(room[name] - self._kept[name], most_per_host, lacks)
            if self._hosts[name].slots < min(wish.ptile, lacks):
                continue  # this host can never give what the job needs on each
            hosts += [name] * max(0, n_slots)
        estimate_s, plan_hosts = self._estimate(wish, usable)
        self.plan.reservations[wish.key] = Reservation(
            hosts=tuple(hosts), estimate_s=estimate_s, plan_hosts=plan_hosts
        )
        self._keep(hosts)
        until_s = estimate_s
        if until_s is None:
            until_s = -math.inf  # no job is short enough to backfill it
        for name in set(hosts):
            self._kept_until[name] = min(self._kept_until[name], until_s)

    def _estimate(self, wish: Wish, usable: Sequence[str]) -> tuple[float | None, tuple[str, ...]]:
        """Return when and where enough slots will be free if every job runs until its limit."""
        free = {name: self._room(wish, name) for name in usable}
        ending = [job for job in self._held if job.ends_s is not None]
        for job in sorted(ending, key=lambda job: job.ends_s or 0.0):
            for name in job.hosts:
                if name in free:
                    free[name] += 1
            if hosts := _fit(wish, free):
                return max(self._now_s, job.ends_s or 0.0), hosts
        return None, ()

    def _explain(self, wish: Wish) -> None:
        """Say per host why the job does not run there."""
        reasons: dict[str, list[str]] = {}
        for name, host in reversed(self._hosts.items()):  # as recorded
            if wish.ask_hosts and name not in wish.ask_hosts and host.slots:
                continue
            if host.problem:
                why = host.problem
            elif name in self._exclusive:
                why = EXCLUSIVE
            elif wish.is_exclusive and name in self._occupied and self._free[name]:
                why = NOT_EMPTY
            else:
                why = FULL
            reasons.setdefault(why, []).append(name)
        self.plan.reasons[wish.key] = [[why, *names] for why, names in reasons.items()]


def _fit(wish: Wish, room: Mapping[str, int]) -> tuple[str, ...] | None:
    """Choose hosts with that room, one name per slot; ``None``: they do not suffice."""
    if wish.is_one_host:
        for name, n in room.items():
            if n >= wish.min_slots:
                return (name,) * min(n, wish.max_slots)
        return None
    hosts: list[str] = []
    for name, n in room.items():
        lacks = wish.max_slots - len(hosts)
        if wish.ptile:
            share = min(wish.ptile, lacks)
            if n >= share:
                hosts += [name] * share
        elif n > 0:
            hosts += [name] * min(n, lacks)
        if len(hosts) == wish.max_slots:
            return tuple(hosts)
    if not hosts or len(hosts) < wish.min_slots:
        return None
    return tuple(hosts)
