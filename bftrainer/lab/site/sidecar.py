"""bftrainer beside a simulated machine: its polls, announcements, decisions and orders in time.

The times are the daemon's own on a real cluster (``bench_claim.py``): a line of the
hook is read within 0.02 s, a look takes 0.1 s, an agent that is told to leave is gone 0.05 s
later, ``sbatch`` and ``scancel`` take 0.05 s each, one after the other. A daemon with a hook
decides at every event and once a second; here at every event, ``AFTER_S`` after the last one,
and ``RECHECK_S`` apart, which decides the same but for that much time.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from bftrainer.lab.site.core import UNSHOWN_S, Core, SitePilot
from bftrainer.lab.site.jobs import Preemptable, SiteJob
from bftrainer.lab.site.machine import Machine, Neighbour
from bftrainer.lab.site.scheduler import queue_of, startable
from bftrainer.lab.site.timeline import Timeline

HEARD_S, LOOK_S, LEAVE_S, ORDER_S = 0.02, 0.1, 0.05, 0.05
CHANGED_S = 0.3  # from what nobody announces to the look that it calls for
LOOK_REQUESTS = 3
AFTER_S = (1.0, 3.1)  # a pass of the main scheduler, and one of its longest
RECHECK_S = 5.0
MAIN_PASS_S = 3.0  # who knew so long before a cycle could have made room for it


# A look, its queue and its timeline: what is needed to tell who could have started.
Known = tuple[float, list[SiteJob], Callable[[float], Timeline]]


class Sidecar(Neighbour):
    """The daemon and its pilots."""

    def __init__(self, machine: Machine, *, hello_s: float = 3.0, core: Core | None = None) -> None:
        """``hello_s``: from a pilot's start to its agent's hello."""
        self._machine, self._hello_s = machine, hello_s
        self.core = core or Core(machine)
        self.core.on_started = self._decide_soon
        self.last_cycle: Callable[[], tuple[float, float] | None] = lambda: None
        self.n_submissions = self.n_releases = 0
        self.requested, self._stepped = set[str](), set[str]()  # pilots; node made a first step
        self.held_s, self._counted_s, self._n_held = 0.0, 0.0, 0
        self._pilots: dict[str, SitePilot] = {}
        self._number = itertools.count(1)
        self._known: deque[Known] = deque()
        self._orders_done_s = self._stirred_s = 0.0
        self._events = 0
        self._look_at_s = math.inf
        self._is_looking = self._is_deciding = False

    def begin(self) -> None:
        """Start the daemon now; it finds what the machine has."""
        self._machine.neighbour = self
        self._counted_s = self._machine.now_s
        self._stir()
        self._plan_look()

    def count_from_now(self) -> None:
        """Forget what was counted so far."""
        self.count()
        self.held_s, self.n_submissions, self.n_releases = 0.0, 0, 0
        self.requested.clear()

    def count(self) -> None:
        """Add up what is held until now."""
        now_s = self._machine.now_s
        self.held_s += self._n_held * (now_s - self._counted_s)
        self._counted_s = now_s

    @property
    def trained(self) -> set[str]:
        """Return the pilots whose node made a first step, of those requested."""
        return self.requested & self._stepped

    # ---- what Slurm and the agents tell --------------------------------------------------

    def submitted(self, job: SiteJob) -> None:
        """The hook's line is read; of an array there is one."""
        if job.spec.array in (0, job.spec.number):
            self._machine.at(self._machine.now_s + HEARD_S, partial(self._heard, job, is_end=False))

    def ended(self, job: SiteJob) -> None:
        """The same of the end of a job."""
        self._machine.at(self._machine.now_s + HEARD_S, partial(self._heard, job, is_end=True))

    def started(self, mine: Preemptable) -> None:
        """An agent will say hello."""
        self._machine.at(self._machine.now_s + self._hello_s, partial(self._hello, mine))

    def gone(self, mine: Preemptable) -> None:
        """Its agent's connection ends; of one that never came only a look tells."""
        pilot = self._pilots.get(mine.name)
        if pilot is None or not (pilot.is_held or pilot.is_leaving):
            return
        self._hold(pilot, is_held=False)
        pilot.is_leaving, pilot.view = True, None
        self._call(CHANGED_S)
        self._decide_soon()

    def _heard(self, job: SiteJob, *, is_end: bool) -> None:
        now_s = self._machine.now_s
        self.core.hear(job, is_end=is_end)
        if is_end:
            self._call(CHANGED_S)
        elif job.spec.kind != "sbatch":
            self._call(UNSHOWN_S)
        else:
            self.core.pace.soon.call(now_s + HEARD_S)
            self._plan_look()
        self._decide_soon()

    def _hello(self, mine: Preemptable) -> None:
        pilot = self._pilots.get(mine.name)
        if pilot is None or self._machine.preemptable.get(mine.name) is not mine:
            return
        if not pilot.is_leaving:
            self._hold(pilot, is_held=True)
        self._call(CHANGED_S)
        self._decide_soon()

    def _hold(self, pilot: SitePilot, *, is_held: bool) -> None:
        if pilot.is_held is not is_held:
            self.count()
            self._n_held += 1 if is_held else -1
            pilot.is_held, pilot.view = is_held, None

    # ---- looks -----------------------------------------------------------------------------

    def _call(self, after_s: float) -> None:
        self.core.pace.calls.call(self._machine.now_s + after_s)
        self._plan_look()

    def _plan_look(self) -> None:
        due_s = self.core.pace.due_s(self._machine.now_s)
        if not self._is_looking and due_s < self._look_at_s:
            self._look_at_s = due_s
            self._machine.at(due_s, self._look_if_due)

    def _look_if_due(self) -> None:
        now_s = self._machine.now_s
        if self._is_looking or now_s < self._look_at_s:
            return
        self._look_at_s = math.inf
        if self.core.pace.due_s(now_s) > now_s:
            self._plan_look()
            return
        self._is_looking = True
        is_called = self.core.pace.is_called(now_s)
        self.core.cycle = self.last_cycle()
        machine = self._machine
        known = now_s + LOOK_S, queue_of(machine), machine.timeline_later()
        looked = partial(self._looked, self.core.look(), known, is_called=is_called)
        machine.at(now_s + LOOK_S, looked)

    def _looked(self, snapshot: object, known: Known, *, is_called: bool) -> None:
        now_s, pace = self._machine.now_s, self.core.pace
        self._is_looking = False
        pace.looked(now_s - LOOK_S, now_s, LOOK_REQUESTS, is_called=is_called)
        if self.core.take(snapshot, now_s - LOOK_S):
            self._call(UNSHOWN_S)
        shown = self.core.running_pilots(snapshot)
        for pilot in list(self._pilots.values()):
            if pilot.name in shown:
                if shown[pilot.name] != pilot.end_s:
                    pilot.end_s, pilot.view = shown[pilot.name], None
            elif pilot.submitted_s is not None and pilot.submitted_s < now_s - LOOK_S:
                self._hold(pilot, is_held=False)
                del self._pilots[pilot.name]
        self._known.append(known)
        while len(self._known) > 1 and self._known[1][0] <= now_s - MAIN_PASS_S - RECHECK_S:
            self._known.popleft()
        self._decide(is_new=True)
        self._plan_look()

    def know(self) -> Callable[[], Iterable[SiteJob]]:
        """Return a function: the jobs that could start now, as a look showed one main pass ago."""
        machine, now_s = self._machine, self._machine.now_s
        known = [k for k in self._known if k[0] <= now_s - MAIN_PASS_S]
        if not known:
            return tuple
        _, queue, timeline_at = known[-1]
        return lambda: startable(timeline_at(now_s), queue, machine.settings.bf_window_s)

    # ---- decisions -------------------------------------------------------------------------

    def _stir(self) -> None:
        now_s = self._machine.now_s
        if now_s >= self._stirred_s + RECHECK_S:
            self._decide(is_new=False)
        self._machine.at(self._stirred_s + RECHECK_S, self._stir)

    def _decide_soon(self) -> None:
        if not self._is_deciding:  # requests of one moment become one
            self._is_deciding = True
            self._machine.at(self._machine.now_s, partial(self._decide, is_new=False))
        self._decide_after()

    def _decide_after(self) -> None:
        """Decide again when what has just happened has had its time."""
        self._events += 1
        for after_s in AFTER_S:
            self._machine.at(self._machine.now_s + after_s, partial(self._after, self._events))

    def _after(self, events: int) -> None:
        if events == self._events:
            self._decide(is_new=False)

    def _decide(self, *, is_new: bool) -> None:
        now_s = self._machine.now_s
        self._is_deciding, self._stirred_s = False, now_s
        if is_new:
            self._decide_after()
        if self.core.snapshot is None:
            return
        releases, claims = self.core.decide(self._pilots.values(), is_new=is_new)
        self._stepped.update(one.name for one in self._pilots.values() if one.has_trained)
        for name in releases:
            pilot = self._pilots.get(name)
            if pilot is None or pilot.is_leaving:
                continue
            self.n_releases += 1
            leaves_s = now_s + LEAVE_S if pilot.is_held else self._order_s()
            self._hold(pilot, is_held=False)
            pilot.is_leaving, pilot.view = True, None
            self._machine.at(leaves_s, partial(self._leave, name))
        for node, limits_s in claims:
            if not limits_s:
                continue
            name = f"p{next(self._number):07d}"
            self.requested.add(name)
            self._pilots[name] = SitePilot(
                name=name, node=node, limits_s=limits_s, requested_s=now_s
            )
            for _ in limits_s:
                at_s = self._order_s()
            self._machine.at(at_s, partial(self._submit, name))

    def _order_s(self) -> float:
        """Return the time at which the next order will have been given."""
        now_s = self._machine.now_s
        self.core.pace.ordered(now_s, 1)
        self._orders_done_s = max(self._orders_done_s, now_s) + ORDER_S
        return self._orders_done_s

    def _submit(self, name: str) -> None:
        pilot = self._pilots[name]
        pilot.submitted_s = self._machine.now_s
        self.n_submissions += len(pilot.limits_s)
        if not pilot.is_leaving:
            node = 1 << pilot.node
            mine = Preemptable(name=name, limits_s=pilot.limits_s, node=node)
            self._machine.submit_preemptable(mine)

    def _leave(self, name: str) -> None:
        mine = self._machine.preemptable.get(name)
        if mine is not None:
            self._machine.cancel_preemptable(mine)
