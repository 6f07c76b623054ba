"""The stand-in's mbatchd: keeps all jobs, runs the passes of the scheduler, follows the hosts.

``server`` calls ``tick`` often; whatever is due by then happens. Commands change jobs through
``submission`` and ``control``. Every change is written to the store and to lsb.events.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Mapping

from bftrainer.model.lookups import by_name
from lsf_adapters.testcluster import dependency, plan_file
from lsf_adapters.testcluster.config import MASTER, LsfConfig, Queue
from lsf_adapters.testcluster.events import EventsFile
from lsf_adapters.testcluster.job_processes import Runner
from lsf_adapters.testcluster.reports import report
from lsf_adapters.testcluster.scheduler import Held, HostNow, Plan, Wish, run_pass
from lsf_adapters.testcluster.state import Host, Job, QueueState
from lsf_adapters.testcluster.store import Store

_START_FAILED = 1603  # PEND_JOB_START_FAIL, as recorded
_LADDER = ["INT", "TERM", "KILL"]
_DEPENDS = "Job dependency condition not satisfied"
_HELD = "The job was suspended by the user while pending"
_NEW = "New job is waiting for scheduling"
_TOO_EARLY = "The job's specified start time has not been reached"
_INACTIVE = "The queue has been inactivated by the administrator"
_CLOSED = "Closed by LSF administrator"
_DOWN = "Unable to reach slave batch server"
_LOCKED = "Host is locked by its lim"


class Batch:
    """The state of one cluster and what happens to it."""

    def __init__(self, config: LsfConfig) -> None:
        self.config = config
        self.runner = Runner(config.directory, config.conf, config.enter)
        self.queue_of: dict[str, Queue] = by_name(config.all_queues)
        self._store = Store(config.directory / "work" / "state")
        self.jobs, self.hosts, self.queues = self._store.load()
        self.hosts.setdefault(MASTER, Host(name=MASTER, slots=0, gpus=0))
        for name in config.node_names:
            if name == MASTER:
                continue
            node = Host(name=name, slots=config.slots_per_node, gpus=config.gpus_per_node)
            self.hosts.setdefault(name, node)
        for queue in config.all_queues:
            self.queues.setdefault(queue.name, QueueState())
        self.events = EventsFile(
            config.events_file,
            is_ibm=config.is_ibm,
            cpu_factor=config.parameters.cpu_factor,
            max_job_num=config.parameters.max_job_num,
        )
        self.live = {key: job for key, job in self.jobs.items() if not job.is_finished}
        self._last_id = max((job.id for job in self.jobs.values()), default=0)
        self._n_finished = max((job.finish_order for job in self.jobs.values()), default=0)
        self._next_pass_s = 0.0
        self._dirty: set[str] = set()
        self._hosts_are_dirty = True
        self._random = random.Random()  # noqa: S311 - delays

    def now_s(self) -> float:
        """The time of day."""
        return time.time()

    def next_id(self) -> int:
        """Return a job id that was never used."""
        self._last_id += 1
        return self._last_id

    def touch(self, job: Job) -> None:
        """Have a changed job written at the end of this step."""
        self._dirty.add(job.key)

    def touch_hosts(self) -> None:
        """Have hosts and queues written at the end of this step."""
        self._hosts_are_dirty = True

    def flush(self) -> None:
        """Write what changed."""
        jobs, forgotten = [], []
        for key in self._dirty:
            if key in self.jobs:
                jobs.append(self.jobs[key])
            else:
                forgotten.append(key)
        if self._hosts_are_dirty:
            self._store.write(jobs, self.hosts, self.queues, forgotten)
        else:
            self._store.write(jobs, {}, {}, forgotten)
        self._dirty.clear()
        self._hosts_are_dirty = False

    def ask_for_pass(self, delay_s: float | None) -> None:
        """Have the next pass of the scheduler no later than in so many seconds."""
        if delay_s is not None:
            self._next_pass_s = min(self._next_pass_s, self.now_s() + delay_s)

    # -- submissions --------------------------------------------------------------------

    def add(self, elements: list[Job], script: str, environment: Mapping[str, str]) -> None:
        """Take a job, or all elements of an array."""
        now_s = self.now_s()
        self.runner.store(elements[0], script, environment)
        self.events.new(elements[0], now_s)
        for job in elements:
            job.pending_reasons = [[_HELD if job.state == "PSUSP" else _NEW, MASTER]]
            self.jobs[job.key] = self.live[job.key] = job
            self.touch(job)
            self._remove_if_too_late(job, now_s, is_new=True)
        self.ask_for_pass(self.config.profile.new_job_sched_delay_s)

    # -- what is due ----------------------------------------------------------------------

    def tick(self) -> None:
        """Do everything that is due by now."""
        now_s = self.now_s()
        self.runner.reap()
        self._follow_hosts(now_s)
        for job in list(self.live.values()):
            if job.is_pending:
                self._remove_if_too_late(job, now_s)
            else:
                self._follow(job, now_s)
        if now_s >= self._next_pass_s:
            self._next_pass_s = now_s + self.config.profile.mbd_sleep_s
            self._run_pass(now_s)
            self._forget_old(now_s)
        self.flush()

    def _remove_if_too_late(self, job: Job, now_s: float, *, is_new: bool = False) -> None:
        """Remove a pending job that could not end by its termination time (-t)."""
        if job.term_s is None:
            return
        end_s = now_s
        if is_new:
            end_s += job.limit_s or 0.0
        if end_s >= job.term_s:
            self.finish(job, 0, "TERM_DEADLINE", state="EXIT")

    def _follow(self, job: Job, now_s: float) -> None:
        """Notice the end of a started job, its limits, and the signals it is to get."""
        host = self.hosts[job.hosts[0]]
        if not host.is_reachable:
            return
        if job.start_fails_s is not None:
            if now_s >= job.start_fails_s:
                self.requeue(job, _START_FAILED)
            return
        if not job.pid and self.runner.session(job):
            self.events.execute(job, now_s)
            self.touch(job)
        if job.ended_at_s is None and self.runner.has_ended(job):
            job.ended_at_s = now_s + self._random.uniform(*self.config.profile.end_noticed_s)
        if job.ended_at_s is not None:
            if now_s >= job.ended_at_s:
                self._note_end(job)
            return
        self._enforce_limit(job, now_s)
        if job.ladder and now_s >= job.ladder_s:
            self._step(job, now_s)

    def _note_end(self, job: Job) -> None:
        code = self.runner.exit_code(job)
        if job.preempted_by and job.is_rerunnable:
            self.requeue(job)
            return
        self.finish(job, code, job.exit_reason)

    def _enforce_limit(self, job: Job, now_s: float) -> None:
        """Send SIGUSR2 at the run limit, and end the job some minutes later, as LSF does."""
        end_s = job.term_s
        if job.limit_s is not None and job.start_s is not None:
            end_s = min(job.start_s + job.limit_s, end_s or job.start_s + job.limit_s)
        if end_s is None or now_s < end_s or job.state not in ("RUN", "USUSP", "SSUSP"):
            return
        if not job.is_over_limit:
            if self.runner.send(job, signal.SIGUSR2):
                job.is_over_limit = True
                job.exit_reason = "TERM_RUNLIMIT"
                self.touch(job)
        elif now_s >= end_s + self.config.profile.usr2_to_kill_s and not job.ladder:
            self.start_ladder(job, ["KILL"])

    def _step(self, job: Job, now_s: float) -> None:
        """Send the next signal of a ladder."""
        name = job.ladder[0]
        number = signal.Signals[f"SIG{name}"]
        if not self.runner.send(job, number):
            return  # it is only just starting
        if job.state in ("USUSP", "SSUSP") or name == "INT":
            self.runner.send(job, signal.SIGCONT)
        job.ladder = job.ladder[1:]
        job.ladder_s = now_s + self.config.profile.terminate_interval_s
        self.touch(job)

    def start_ladder(self, job: Job, names: list[str] | None = None) -> None:
        """Terminate a started job: by the queue's signal, or by the ladder of its kind."""
        queue = self.queue_of[job.queue]
        parameters = self.config.parameters
        if names is None:
            names = list(_LADDER)
            if queue.terminate_signal:
                names = [queue.terminate_signal.removeprefix("SIG")]
            elif self.config.is_ibm and job.is_parallel and not parameters.sequential_signal:
                # LSF kills parallel jobs at once unless LSB_USE_SEQUENTIAL_SIGNAL is set.
                names = ["KILL"]
        job.ladder = names
        job.ladder_s = 0.0
        self._step(job, self.now_s())
        self.touch(job)

    def finish(self, job: Job, code: int, reason: str, *, state: str = "") -> None:
        """Note that a job has ended."""
        now_s = self.now_s()
        was_started = not job.is_pending
        self._n_finished += 1
        job.state = state or ("DONE" if code == 0 else "EXIT")
        job.exit_code = code
        job.exit_reason = reason
        job.end_s = now_s
        job.finish_order = self._n_finished
        job.ladder = []
        job.reserved, job.reserved_s, job.estimate_s, job.plan_hosts = [], None, None, []
        job.pending_reasons = []
        self.live.pop(job.key, None)
        self.events.status(job, now_s)
        if was_started:
            self.runner.report(job, report(job))
        if was_started and job.is_exclusive and not self._is_lock_free():
            exchange_s = self.config.profile.lim_exchange_s
            until_s = now_s + self._random.uniform(exchange_s * 0.1, exchange_s)
            for name in set(job.hosts):
                self.hosts[name].locked_until_s = until_s
            self.touch_hosts()
        self.touch(job)

    def _is_lock_free(self) -> bool:
        return self.config.is_ibm and self.config.parameters.disable_limlock_excl

    def requeue(self, job: Job, reason: int = 0) -> None:
        """Have a job wait again, as one that may be rerun does; a killed one is over."""
        if job.is_killed:
            self.finish(job, 137, job.exit_reason, state="EXIT")
            return
        job.state = "PEND"
        job.hosts, job.ladder, job.pid, job.wrapper_pid = [], [], 0, 0
        job.start_s = job.ended_at_s = None
        job.start_fails_s = None
        job.is_over_limit = job.is_backfilled = False
        job.preempted_by = job.exit_reason = ""
        job.pending_reasons = [[_NEW, MASTER]]
        self.events.status(job, self.now_s(), reason)
        self.touch(job)

    def _forget_old(self, now_s: float) -> None:
        oldest_s = now_s - self.config.profile.clean_period_s
        for key, job in list(self.jobs.items()):
            if job.end_s and job.end_s < oldest_s:
                del self.jobs[key]
                self._dirty.add(key)

    # -- hosts ------------------------------------------------------------------------------

    def host_status(self, host: Host, now_s: float | None = None) -> str:
        """The state of a host without what its jobs make of it: ok, unreach or unavail."""
        if now_s is None:
            now_s = self.now_s()
        profile = self.config.profile
        status = "ok"
        if host.lim_dead_s is not None:
            if now_s >= host.lim_dead_s + profile.unavail_s:
                status = "unavail"
            elif now_s >= host.lim_dead_s + profile.unreach_s:
                status = "unreach"
        elif host.sbatchd_dead_s is not None:
            if now_s >= host.sbatchd_dead_s + profile.sbd_unreach_s:
                status = "unreach"
        elif host.back_s is not None and now_s < host.back_s:
            status = "unavail"
        return status

    def _follow_hosts(self, now_s: float) -> None:
        status = {name: self.host_status(host, now_s) for name, host in self.hosts.items()}
        if set(status.values()) == {"ok"} and not any(
            job.state in ("UNKWN", "ZOMBI") for job in self.live.values()
        ):
            return
        for job in list(self.live.values()):
            if job.is_pending or job.is_finished:
                continue
            self._follow_its_host(job, status[job.hosts[0]])

    def _follow_its_host(self, job: Job, status: str) -> None:
        host = self.hosts[job.hosts[0]]
        if status == "unreach" and job.state in ("RUN", "USUSP", "SSUSP"):
            job.state = "UNKWN"
            self.touch(job)
        elif status == "unavail" and job.state in ("RUN", "USUSP", "SSUSP", "UNKWN"):
            job.state = "ZOMBI"
            self.touch(job)
        elif status == "unavail" and job.state == "ZOMBI" and job.is_rerunnable:
            self.requeue(job)
        elif host.is_reachable and status == "ok" and job.state in ("UNKWN", "ZOMBI"):
            # sbatchd is back: it ends what mbatchd has given up, and reports the others.
            if job.state == "ZOMBI":
                self.runner.send(job, signal.SIGKILL)
                self.finish(job, 137, "TERM_ZOMBI", state="EXIT")
            else:
                job.state = "RUN"
                self.touch(job)

    # -- the pass -----------------------------------------------------------------------------

    def _run_pass(self, now_s: float) -> None:
        wishes = []
        for job in self._waiting():
            wish = self._wish(job, now_s)
            if wish is not None:
                wishes.append(wish)
        started = [self._held(job) for job in self.live.values() if job.holds_slots]
        hosts = [self._host_now(host, now_s) for host in self.hosts.values()]
        plan = run_pass(wishes, started, hosts, self.config.parameters, now_s)
        self._carry_out(plan, now_s)
        if self.config.is_ibm and self.config.parameters.allocation_planner:
            plan_file.write(self.config.logdir, self.live.values(), now_s)

    def _waiting(self) -> list[Job]:
        waiting = (job for job in self.live.values() if job.state == "PEND")
        return sorted(waiting, key=lambda job: (job.submit_s, job.id, job.index))

    def _wish(self, job: Job, now_s: float) -> Wish | None:
        """Return what a job asks for; ``None``: it may not start at all now."""
        queue = self.queue_of[job.queue]
        why = ""
        if not self.queues[job.queue].is_active:
            why = _INACTIVE
        elif job.dependency and not dependency.is_satisfied(
            job.dependency, self.jobs.values(), job.user
        ):
            why = _DEPENDS
        elif job.begin_s is not None and now_s < job.begin_s:
            why = _TOO_EARLY
        if why:
            job.pending_reasons = [[why, MASTER]]
            self._unreserve(job)
            return None
        return Wish(
            key=job.key,
            user=job.user,
            queue=queue,
            min_slots=job.min_slots,
            max_slots=job.max_slots,
            ptile=job.ptile,
            is_one_host=job.is_one_host,
            is_exclusive=job.is_exclusive,
            gpus=job.gpus,
            ask_hosts=tuple(job.ask_hosts),
            limit_s=job.limit_s,
            submit_s=job.submit_s,
        )

    def _held(self, job: Job) -> Held:
        ends_s = None
        if job.limit_s is not None and job.start_s is not None:
            ends_s = job.start_s + job.limit_s
        is_suspended = job.state == "SSUSP" and job.stop_reason == "preempt"
        return Held(
            key=job.key,
            user=job.user,
            queue=self.queue_of[job.queue],
            hosts=tuple(job.hosts),
            start_s=job.start_s or 0.0,
            ends_s=ends_s,
            gpus=job.gpus,
            is_exclusive=job.is_exclusive,
            is_backfilled=job.is_backfilled,
            is_preempted=bool(job.preempted_by) or is_suspended,
            is_suspended=is_suspended,
            preempted_by=job.preempted_by,
            was_preempted=job.was_preempted,
            obeys=job.state in ("RUN", "SSUSP") and self.hosts[job.hosts[0]].is_reachable,
        )

    def _host_now(self, host: Host, now_s: float) -> HostNow:
        problem = self._problem(host, now_s)
        return HostNow(name=host.name, slots=host.slots, gpus=host.gpus, problem=problem)

    def _problem(self, host: Host, now_s: float) -> str:
        if host.is_closed:
            return _CLOSED
        if not host.is_reachable or self.host_status(host, now_s) != "ok":
            return _DOWN
        if now_s < host.locked_until_s:
            return _LOCKED
        return ""

    def _carry_out(self, plan: Plan, now_s: float) -> None:
        for key, reasons in plan.reasons.items():
            self.live[key].pending_reasons = reasons
        for job in self.live.values():
            if not job.is_pending:
                continue
            reservation = plan.reservations.get(job.key)
            if reservation is None:
                self._unreserve(job)
                continue
            if not job.reserved:
                job.reserved_s = now_s
            job.reserved = list(reservation.hosts)
            job.estimate_s = reservation.estimate_s
            job.plan_hosts = list(reservation.plan_hosts)
        for victim, winner in plan.preempted.items():
            self._preempt(self.live[victim], winner)
        for start in plan.starts:
            self._start(self.live[start.key], start.hosts, start.is_backfilled, now_s)
        resumed = [key for key, job in self.live.items() if job.stop_reason == "resume"]
        for key in (*plan.resumed, *resumed):
            job = self.live[key]
            self.runner.send(job, signal.SIGCONT)
            job.state, job.stop_reason, job.preempted_by = "RUN", "", ""
            self.events.status(job, now_s)
            self.touch(job)

    def _unreserve(self, job: Job) -> None:
        job.reserved, job.reserved_s, job.estimate_s, job.plan_hosts = [], None, None, []

    def _start(self, job: Job, hosts: tuple[str, ...], backfilled: bool, now_s: float) -> None:
        self._unreserve(job)
        job.hosts = list(hosts)
        job.state = "RUN"
        job.start_s = now_s
        job.is_backfilled = backfilled
        job.pending_reasons = []
        host = self.hosts[job.hosts[0]]
        if host.failing_starts:
            host.failing_starts -= 1
            job.start_fails_s = now_s + self.config.profile.start_fails_s
        else:
            self.runner.start(job)
        self.events.start(job, now_s)
        self.touch(job)

    def _preempt(self, job: Job, winner: str) -> None:
        """Suspend or terminate a job for another."""
        job.preempted_by = winner
        job.was_preempted += 1
        job.exit_reason = "TERM_PREEMPT"
        if self.queue_of[job.queue].terminates_preempted:
            self.start_ladder(job)
        else:
            self.runner.send(job, signal.SIGSTOP if job.is_parallel else signal.SIGTSTP)
            job.state, job.stop_reason = "SSUSP", "preempt"
            self.events.status(job, self.now_s())
            self.ask_for_pass(0.0)
        self.touch(job)
