"""The physical cost model of a replay: actions take time, as with the daemon.

A node is claimed (a pilot is requested and, after a while, held), assigned to a trainer (a worker
warms up while the members train), joins (the members pause) and leaves (a shorter pause). Only
members that train make progress. The durations are parameters, modelled on this project's own
runtime (docs/design/elastic-runtime.md, docs/howto/slurm-site.md).
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bftrainer.lab.simulator.costs import PhysicalCosts, SlowNodes
from bftrainer.lab.simulator.paper import PaperModel
from bftrainer.lab.simulator.trainers import SimTrainer, Tally
from bftrainer.lab.workloads.submission import Submission
from bftrainer.model.decision import PilotView, Plan, Replacing
from bftrainer.model.trainer import MeasuredCosts

CLOCK_STEP_S = 1e-6  # resolution of floats for seconds since the epoch: about 2e-7


@dataclass(slots=True, kw_only=True)
class _Pilot:
    """A pilot that has not ended."""

    pilot_id: str
    node: str
    requested_s: float
    held_at_s: float
    end_s: float  # its time limit strikes
    user: str
    is_held: bool = False
    has_trained: bool = False


@dataclass(slots=True, kw_only=True)
class _Member:
    """A trainer that may run: ``nodes`` of its record are those that train."""

    trainer: SimTrainer
    planned: frozenset[str] = frozenset()
    warm_at_s: dict[str, float] = field(default_factory=dict)  # joiners
    resumes_at_s: float = -math.inf  # end of the present pause
    checkpointed: float = 0.0  # samples that are safe on disk
    checkpoint_at_s: float = math.inf

    def ends_at_s(self, now_s: float) -> float:
        """Return the time at which it will be complete or report, if nothing changes."""
        rate = self.trainer.rate
        if rate <= 0.0:
            return math.inf
        left = max(0.0, self.trainer.goal - self.trainer.done)
        return max(now_s, self.resumes_at_s) + left / rate


class PhysicalModel(PaperModel):
    """Progress and costs of the trainers that may run, by the clock."""

    claims_nodes = True
    sees_arrivals = True

    def __init__(
        self,
        tally: Tally,
        costs: PhysicalCosts,
        *,
        seed: int,
        slow: SlowNodes | None = None,
        runs_as_submitter: bool = False,
    ) -> None:
        super().__init__(tally)
        self._slow, self._runs_as_submitter = slow or SlowNodes(), runs_as_submitter
        self._found: frozenset[str] = frozenset()
        self._replacing: Mapping[str, Replacing] = {}  # by straggler, as planned
        self.costs = costs
        self._checkpoint_every_s = costs.checkpoint_interval.mean_s  # 0: never
        self._chance = random.Random(seed)  # noqa: S311 - a replay, reproducible by its seed
        self._members: dict[str, _Member] = {}
        self._pilots: dict[str, _Pilot] = {}  # by node
        self._numbers = itertools.count(1)

    # ---- what the replay asks ------------------------------------------------------------

    @property
    def next_event_s(self) -> float:
        """The time of the model's own next event."""
        times = [p.end_s if p.is_held else min(p.held_at_s, p.end_s) for p in self._pilots.values()]
        for member in self._members.values():
            # Warm joiners that still wait (for n_min) are admitted by events of others.
            times += [at_s for at_s in member.warm_at_s.values() if at_s > self._now_s]
            times.append(member.ends_at_s(self._now_s))
        times.append(self._slow.next_found_s(self._now_s))
        return min(times, default=math.inf)

    def known_costs(self, submission: Submission) -> MeasuredCosts:
        """The mean pauses, as the daemon measures them; not what the workload says."""
        del submission  # every trainer rescales alike
        costs = self.costs
        return MeasuredCosts(
            rescale_up_s=costs.pause_up.mean_s, rescale_down_s=costs.pause_down.mean_s
        )

    def detection_s(self) -> float:
        """Return how long the daemon takes to see a change."""
        return self.costs.detection.draw_s(self._chance)

    def pilots(self) -> tuple[PilotView, ...]:
        """Pilots as the decision sees them."""
        return tuple(
            PilotView(
                pilot_id=p.pilot_id,
                node=p.node,
                requested_s=p.requested_s,
                is_held=p.is_held,
                end_s=p.end_s if p.is_held else None,
                user=p.user,
            )
            for p in self._pilots.values()
        )

    def training(self) -> Mapping[str, str]:
        """Nodes whose workers train."""
        return {n: t for t, m in self._members.items() for n in m.trainer.nodes}

    def speeds(self) -> Mapping[str, float]:
        """Slow nodes that were found."""
        return self._slow.speeds(self._now_s)

    # ---- time ------------------------------------------------------------------------------

    def advance(self, now_s: float) -> None:
        """Train up to ``now_s``, which is not later than ``next_event_s``."""
        span_s = now_s - self._now_s
        tally = self.tally
        tally.node_s_held += span_s * sum(p.is_held for p in self._pilots.values())
        for member in self._members.values():
            trainer = member.trainer
            if not trainer.nodes:
                continue
            trained_s = min(span_s, max(0.0, now_s - member.resumes_at_s))
            trainer.done += trained_s * trainer.rate
            trainer.node_s += span_s * len(trainer.nodes)
            tally.node_s_used += trained_s * len(trainer.nodes)
            tally.rescale_cost += (span_s - trained_s) * trainer.rate
            if member.checkpoint_at_s <= now_s:
                self._checkpoint(member, now_s, trained_s)
        self._now_s = now_s

    def step(self) -> bool:
        """Process due events; return whether a decision is needed."""
        now_s = self._now_s
        found = frozenset(self.speeds())
        is_news, self._found = not found <= self._found, found
        for pilot in list(self._pilots.values()):
            if not pilot.is_held and pilot.held_at_s <= now_s:
                pilot.is_held = is_news = True
            if pilot.end_s <= now_s:
                self.lose([pilot.node])
                is_news = True
        for member in self._members.values():
            self._warm_up(member)
            is_news = self._join(member) or is_news
        self._slow.look(self.training(), now_s)
        return is_news

    # ---- trainers ----------------------------------------------------------------------------

    def admit(self, trainer: SimTrainer) -> None:
        """Let a trainer take part."""
        self._members[trainer.trainer_id] = _Member(trainer=trainer, checkpointed=trainer.done)

    def completed(self) -> list[SimTrainer]:
        """Take out the trainers that are complete."""
        complete = [
            m.trainer
            for m in self._members.values()
            if m.trainer.done >= m.trainer.submission.samples - CLOCK_STEP_S * m.trainer.rate
        ]
        self.dismiss(complete)
        return complete

    def dismiss(self, trainers: Iterable[SimTrainer]) -> None:
        """Take trainers out, complete or not."""
        for trainer in trainers:
            del self._members[trainer.trainer_id]
            trainer.nodes = set()
            trainer.finished_s = self._now_s

    def _checkpoint(self, member: _Member, now_s: float, trained_s: float) -> None:
        """Remember the last checkpoint until now; it has trained in the last ``trained_s``.

        Checkpoints are no events: nothing but a loss depends on them, and there are far more.
        """
        every_s = self._checkpoint_every_s
        taken_s = now_s - (now_s - member.checkpoint_at_s) % every_s
        member.checkpointed = (
            member.trainer.done - min(trained_s, now_s - taken_s) * member.trainer.rate
        )
        member.checkpoint_at_s = taken_s + every_s

    # ---- nodes come and go -------------------------------------------------------------------

    def lose(self, nodes: Iterable[str]) -> None:
        """Nodes go back to the batch system without notice, and their pilots end."""
        gone = {n for n in nodes if self._pilots.pop(n, None) is not None}
        if not gone:
            return
        for member in self._members.values():
            member.planned -= gone
            for node in gone & member.warm_at_s.keys():
                del member.warm_at_s[node]
            if lost := member.trainer.nodes & gone:
                member.trainer.preemptions += 1
                self._shrink(member, lost, self.costs.pause_loss.draw_s(self._chance), told=False)

    def apply_plan(self, plan: Plan) -> None:
        """Do what the plan says."""
        now_s = self._now_s
        for release in plan.releases:
            self._pilots.pop(release.node, None)
        self.tally.pilots += len(plan.claims)
        for claim in plan.claims:
            self._pilots[claim.node] = _Pilot(
                pilot_id=f"p{next(self._numbers)}",
                node=claim.node,
                requested_s=now_s,
                held_at_s=now_s + self.costs.claim.draw_s(self._chance),
                end_s=now_s + claim.time_limit_s,
                user=self._user_of(claim.for_trainer),
            )
        self._replacing = plan.memory.replacing
        planned: dict[str, set[str]] = {}
        for node, trainer_id in plan.assignment.items():
            planned.setdefault(trainer_id, set()).add(node)
        for trainer_id, member in self._members.items():
            member.planned = frozenset(planned.get(trainer_id, ()))
            for node in member.warm_at_s.keys() - member.planned:
                del member.warm_at_s[node]
            staying = self._paired(member, has_joined=False)
            if leaving := member.trainer.nodes - member.planned - staying:
                member.trainer.rescales += 1
                self._shrink(member, leaving, self.costs.pause_down.draw_s(self._chance), told=True)
        for member in self._members.values():
            self._warm_up(member)
            self._join(member)
        self._slow.look(self.training(), now_s)

    def _user_of(self, trainer_id: str) -> str:
        member = self._members.get(trainer_id) if self._runs_as_submitter else None
        return member.trainer.submission.user if member else ""

    def _warm_up(self, member: _Member) -> None:
        """Start workers on nodes that are planned and held."""
        for node in sorted(member.planned - member.trainer.nodes - member.warm_at_s.keys()):
            pilot = self._pilots.get(node)
            if pilot is not None and pilot.is_held:
                member.warm_at_s[node] = self._now_s + self.costs.warm_up.draw_s(self._chance)

    def _join(self, member: _Member) -> bool:
        """Let the warm ones join; whether that lets a straggler go."""
        trainer, now_s = member.trainer, self._now_s
        warm = {n for n, at_s in member.warm_at_s.items() if at_s <= now_s}
        if not warm or len(trainer.nodes) + len(warm) < trainer.submission.n_min:
            return False
        pause_s = 0.0  # its very first start
        if trainer.nodes:
            pause_s = self.costs.pause_up.draw_s(self._chance)
        elif trainer.started_s is not None:
            pause_s = self.costs.resume.draw_s(self._chance)
        member.resumes_at_s = max(member.resumes_at_s, now_s + pause_s)
        if trainer.started_s is None:
            trainer.started_s = now_s
        trainer.nodes |= warm
        trainer.rescales += 1
        for node in warm:
            del member.warm_at_s[node]
            self.tally.pilots_trained += not self._pilots[node].has_trained
            self._pilots[node].has_trained = True
        if member.checkpoint_at_s == math.inf and self._checkpoint_every_s > 0:
            member.checkpoint_at_s = now_s + self._checkpoint_every_s
        gone = self._paired(member, has_joined=True)
        trainer.nodes -= gone
        trainer.pace = self._slow.pace(trainer.nodes)
        return bool(gone)

    def _paired(self, member: _Member, *, has_joined: bool) -> set[str]:
        """Its stragglers whose replacement has joined, or has not."""
        trainer = member.trainer
        return {
            node
            for node, pair in self._replacing.items()
            if pair.trainer_id == trainer.trainer_id
            and node in trainer.nodes
            and (pair.node in trainer.nodes) == has_joined
        }

    def _shrink(
        self, member: _Member, leaving: Iterable[str], pause_s: float, *, told: bool
    ) -> None:
        """Members go; below n_min the trainer is parked, its last checkpoint counts."""
        trainer = member.trainer
        trainer.nodes -= set(leaving)
        trainer.pace = self._slow.pace(trainer.nodes)
        if len(trainer.nodes) >= trainer.submission.n_min:
            member.resumes_at_s = max(member.resumes_at_s, self._now_s + pause_s)
            return
        trainer.nodes = set()
        if not told and self._checkpoint_every_s > 0:
            self.tally.preemption_cost += trainer.done - member.checkpointed
            trainer.done = member.checkpointed
        member.checkpointed = trainer.done
        member.checkpoint_at_s = math.inf
