"""Discrete-event replay of a trace with the daemon's own decisions.

Only the two ends are simulated: the pool (by a trace) and the trainers (by a cost model, such as
``paper`` or ``physical``). Everything between is the daemon's code: ``decide`` and ``milp``.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from bftrainer.batch.traces.fragments import Fragments
from bftrainer.decide.decision import decide
from bftrainer.decide.policies.base import AllocationPolicy
from bftrainer.lab.simulator.paper import PaperModel
from bftrainer.lab.simulator.trainers import SimTrainer, Tally, World, make_trainer
from bftrainer.lab.workloads import Submission
from bftrainer.model.decision import DecisionInput, Memory, Plan, Settings
from bftrainer.model.fairness import Blackout

_NOBODY = np.empty(0, dtype=np.intp)
NO_CHANGE = (math.inf, _NOBODY, _NOBODY)  # of a pool after its last one
POLL_S = 1.0
SWAP_POLLS = 4  # the worker leaves, its pilot leaves, the node is idle, and again
MAX_NOTES = 2000  # of a replay: more than a figure can show


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSums:
    """Sums from the start of the replay to one instant."""

    at_s: float
    processed: float  # samples up to the end of each trainer
    node_s_offered: float
    node_s_training: float
    lost_to_preemptions: float  # samples
    lost_to_rescales: float  # samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a replay."""

    trace: Fragments
    settings: Settings
    trainers: tuple[SimTrainer, ...]  # all submitted, in FCFS order
    tally: Tally
    notes: tuple[RunningSums, ...]  # in order of time; the last is the end of the replay
    decision_s: tuple[float, ...]  # wall time of each decision


class Replay:
    """One replay; ``run`` plays the trace to its end."""

    def __init__(
        self,
        trace: Fragments,
        submissions: Iterable[Submission],
        *,
        settings: Settings,
        policy: AllocationPolicy,
        books: PaperModel,
        seed: int = 0,
        blackout_at: Callable[[float], Blackout | None] = lambda _now_s: None,
        poll_s: float | None = None,
        on_plan: Callable[[DecisionInput, Plan], None] | None = None,
    ) -> None:
        """``poll_s``: the daemon looks, and decides, so often; None: whenever the pool changes."""
        self._poll_s = poll_s
        self._trace, self._settings, self._policy, self._seed = trace, settings, policy, seed
        self._books, self._on_plan, self._blackout_at = books, on_plan, blackout_at
        self._world = World(trace.names, trace.node_types)
        self._begin_s, self._end_s = trace.span_s
        everybody = []
        for number, submission in enumerate(submissions, start=1):
            costs = books.known_costs(submission)
            everybody.append(make_trainer(submission, number, self._begin_s, costs))
        self._everybody = tuple(everybody)
        self._coming = deque(self._everybody)
        self._running: list[SimTrainer] = []  # those that decisions see
        has_shares = settings.fair_share_half_life_s is not None or settings.limits.is_of_groups
        self._most = math.inf  # of them: the decision chooses who takes part
        if not has_shares and not policy.traits.admits:
            self._most = settings.p_jmax  # the first ones take part
        self._memory = Memory()
        self._wake_at_s = math.inf  # when the policy wants to be asked again
        self._polls_left = 0
        self._now_s = self._next_note_s = self._begin_s
        self._processed = 0.0  # samples of the trainers that are complete
        self._notes: list[RunningSums] = []
        self._decision_s: list[float] = []

    def run(self) -> Outcome:
        """Play it."""
        books, tally, names = self._books, self._books.tally, self._trace.names
        changes = iter(self._trace.pool_changes())
        change_at_s, joining, leaving = next(changes, NO_CHANGE)
        books.begin(self._begin_s)
        seen_at_s = math.inf  # when the daemon sees what has changed
        if self._poll_s is not None:
            seen_at_s = self._begin_s
        while True:
            now_s = min(
                change_at_s,
                seen_at_s,
                self._next_arrival_s(),
                books.next_event_s,
                self._patience_ends_s(),
                self._wake_at_s,
            )
            if now_s > self._end_s or now_s == math.inf:
                break
            self._advance(now_s)
            is_due = books.step()
            while change_at_s <= now_s:
                idle_names = [names[i] for i in joining.tolist()]
                busy_names = [names[i] for i in leaving.tolist()]
                books.lose(busy_names)
                self._world.leave(busy_names)
                self._world.join(idle_names)
                tally.events += 1
                is_due = is_due or bool(busy_names)
                if self._poll_s is None:
                    seen_at_s = min(seen_at_s, now_s + books.detection_s())
                change_at_s, joining, leaving = next(changes, NO_CHANGE)
            if seen_at_s <= now_s:
                is_due = True
                seen_at_s = math.inf if self._poll_s is None else now_s + self._poll_s
                self._world.look()
            is_due = self._turn_over() or is_due
            is_due = is_due or min(self._patience_ends_s(), self._wake_at_s) <= now_s
            if is_due:
                self._decide()
        self._advance(self._end_s)
        self._note()
        return Outcome(
            trace=self._trace,
            settings=self._settings,
            trainers=self._everybody,
            tally=tally,
            notes=tuple(self._notes),
            decision_s=tuple(self._decision_s),
        )

    def _advance(self, now_s: float) -> None:
        tally = self._books.tally
        tally.node_s_offered += (now_s - self._now_s) * self._world.n_idle
        self._books.advance(now_s)
        self._now_s = now_s

    def _next_arrival_s(self) -> float:
        """Return the time at which the next trainer arrives that may run at once."""
        is_room = len(self._running) < self._most
        if not (is_room and self._coming and self._books.sees_arrivals):
            return math.inf
        return max(self._now_s, self._coming[0].record.submitted_s)

    def _patience_ends_s(self) -> float:
        """Return the time at which the next pilot that no trainer wants is to be released."""
        unused = self._memory.unused_since
        if not unused:
            return math.inf
        # Slightly later, because of rounding errors.
        return max(self._now_s, min(unused.values()) + self._settings.hold_idle_s + 1e-6)

    def _turn_over(self) -> bool:
        """Complete trainers leave, waiting ones enter; whether there were any."""
        complete = self._books.completed()
        for trainer in complete:
            self._running.remove(trainer)
            self._processed += trainer.processed
        is_new = bool(complete)
        while len(self._running) < self._most and self._coming:
            if self._coming[0].record.submitted_s > self._now_s:
                break
            trainer = self._coming.popleft()
            self._running.append(trainer)
            self._books.admit(trainer)
            is_new = True
        return is_new

    def _decide(self) -> None:
        books, tally = self._books, self._books.tally
        pilots = books.pilots()
        facts = DecisionInput(
            now_s=self._now_s,
            snapshot=self._world.snapshot(self._now_s, {p.node for p in pilots}),
            is_new_snapshot=True,
            pilots=pilots,
            trainers=tuple([t.as_decided() for t in self._running]),
            settings=self._settings,
            memory=self._memory,
            training=books.training(),
            speeds=books.speeds(),
            may_claim=books.claims_nodes,
            seed=self._seed,
            blackout=self._blackout_at(self._now_s),
        )
        began = time.perf_counter()
        plan = decide(facts, self._policy)
        self._decision_s.append(time.perf_counter() - began)
        tally.decide_s += self._decision_s[-1]
        tally.decisions += 1
        self._memory = plan.memory
        self._wake_at_s = math.inf if plan.wake_at_s is None else plan.wake_at_s
        if plan.swaps:
            self._polls_left = SWAP_POLLS
        if self._polls_left:  # the daemon polls, and sees when the node is free
            self._polls_left -= 1
            self._wake_at_s = min(self._wake_at_s, self._now_s + POLL_S)
        books.apply_plan(plan)
        if plan.dropped:  # the policy does not let them enter; they are never seen again
            for trainer in self._running:
                trainer.dropped = plan.dropped.get(trainer.trainer_id, "")
            self._running = [t for t in self._running if not t.dropped]
        if self._now_s >= self._next_note_s:
            self._next_note_s = self._now_s + (self._end_s - self._begin_s) / MAX_NOTES
            self._note()
        if self._on_plan is not None:
            self._on_plan(facts, plan)

    def _note(self) -> None:
        tally = self._books.tally
        self._notes.append(
            RunningSums(
                at_s=self._now_s,
                processed=self._processed + sum(t.processed for t in self._running),
                node_s_offered=tally.node_s_offered,
                node_s_training=tally.node_s_used,
                lost_to_preemptions=tally.preemption_cost,
                lost_to_rescales=tally.rescale_cost,
            )
        )
