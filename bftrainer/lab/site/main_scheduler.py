"""Slurm's main scheduler: strictly in order, at events, a moment after each.

At the tick after ``batch_sched_delay`` for what was submitted, at an end if the last pass is
``sched_min_interval`` ago (else an agent looks every second whether it is), and every
``sched_interval`` over the whole queue. The first job that cannot start closes the partition's
nodes to all behind it, in whichever partition.
"""

from __future__ import annotations

import math

from bftrainer.lab.site.jobs import Job
from bftrainer.lab.site.machine import Machine

AGENT_S = 1.0  # between two looks of who waits for sched_min_interval


class MainScheduler:
    """Passes over the queue."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._last_s = self._batched_s = -math.inf
        self._due_s = self._batch_due_s = math.inf
        self.waits: list[tuple[float, bool]] = []  # from when on a job of the queue is blocked
        machine.scheduler = self
        machine.at(machine.settings.sched_interval_s, self._whole_queue)

    def resume(self, last_s: float) -> None:
        """Go on from a pass that was made before the begin."""
        self._last_s = self._batched_s = last_s

    def wants_pass(self, *, is_end: bool) -> None:
        """Let a pass come as soon as Slurm makes one."""
        now_s, settings = self._machine.now_s, self._machine.settings
        if is_end:
            self._ask()
            return
        ready_s = max(now_s, self._batched_s + settings.batch_sched_delay_s)
        due_s = math.ceil(ready_s - settings.tick_phase_s) + settings.tick_phase_s
        if due_s < self._batch_due_s:
            self._batch_due_s = due_s
            self._machine.at(due_s, self._batch)

    def _batch(self) -> None:
        self._batched_s, self._batch_due_s = self._machine.now_s, math.inf
        self._ask()

    def _ask(self) -> None:
        now_s = self._machine.now_s
        rest_s = self._last_s + self._machine.settings.sched_min_interval_s - now_s
        due_s = now_s if rest_s <= 0.0 else now_s + math.ceil(rest_s / AGENT_S) * AGENT_S
        if due_s < self._due_s:
            self._due_s = due_s
            self._machine.at(due_s, self._if_due)

    def try_now(self, job: Job) -> None:
        """Try a job of srun, unless somebody of a higher priority waits.

        One that is immediate finds free nodes, or is refused, though who was in its way is gone.
        """
        machine = self._machine
        first = next((j for j in machine.pending if j.is_eligible), None)
        room = None
        if first is not None and first.spec.priority <= job.spec.priority:
            room = machine.room_for(job, machine.open_for(job.spec.limit_s))
        if job.spec.kind == "immediate" and (room is None or room & machine.held):
            machine.preempt((room or 0) & machine.held)
            machine.refuse(job)
        elif room is not None:
            machine.start(job, room)

    def _if_due(self) -> None:
        if self._machine.now_s >= self._due_s:
            self._pass(self._machine.settings.default_queue_depth)

    def _whole_queue(self) -> None:
        self._pass(len(self._machine.pending) + 1)
        self._machine.at(
            self._machine.now_s + self._machine.settings.sched_interval_s, self._whole_queue
        )

    def _pass(self, depth: int) -> None:
        machine = self._machine
        self._due_s, self._last_s = math.inf, machine.now_s
        is_blocked = False
        for tested, job in enumerate([j for j in machine.pending if j.is_eligible]):
            if tested == depth:
                is_blocked = True
            if is_blocked:
                job.reason = "Priority"
                continue
            room = machine.room_for(job, machine.open_for(job.spec.limit_s))
            if room is not None:
                machine.start(job, room)
            else:
                is_blocked, job.reason = True, "Resources"
        self._note(is_blocked=is_blocked)
        if not is_blocked:
            waiting = [p for p in machine.preemptable.values() if p.start_s is None]
            machine.start_waiting(waiting, machine.open_for)

    def _note(self, *, is_blocked: bool) -> None:
        if not self.waits or self.waits[-1][1] is not is_blocked:
            self.waits.append((self._machine.now_s, is_blocked))
