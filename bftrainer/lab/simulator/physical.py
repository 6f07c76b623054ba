"""The physical cost model of a replay: actions take time, as with the daemon.

A node is claimed (a pilot is requested and, after a while, held), assigned to a trainer (a worker
warms up while the members train), joins (the members pause) and leaves (a shorter pause). Only
members that train make progress. The durations are parameters, modelled on this project's own
runtime (docs/design/elastic-runtime.md, docs/howto/slurm-site.md); ``measured.json`` is what
``scripts/bench_rescale.py --json`` writes.

A share of the trace's nodes, drawn once by the seed, reaches only a fraction of the usual
throughput. A trainer is as fast as its slowest node; a slow node is detected after its trainer
has trained with other nodes for a while.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from statistics import mean
from typing import Any

from bftrainer.decide.throughput.stragglers import ALPHA
from bftrainer.lab.simulator.paper import PaperModel
from bftrainer.lab.simulator.trainers import SimTrainer, Tally
from bftrainer.lab.workloads import Submission
from bftrainer.model.decision import PilotView, Plan, Replacing
from bftrainer.model.errors import UsageError
from bftrainer.model.quantities import quantity
from bftrainer.model.trainer import MeasuredCosts
from milp.portable import log

CLOCK_STEP_S = 1e-6  # resolution of floats for seconds since the epoch: about 2e-7
# transition in the benchmark's file -> the duration it measures
_OF_TRANSITION = {
    "1->2": "pause_up",
    "2->4": "pause_up",
    "4->2": "pause_down",
    "rank 0 leaves": "pause_down",
    "SIGKILL": "pause_loss",
}


@dataclass(frozen=True, slots=True)
class Quantity:
    """A duration in seconds: one value, or one drawn from measured values."""

    values_s: tuple[float, ...]

    def draw_s(self, chance: random.Random) -> float:
        """Return one duration."""
        if len(self.values_s) == 1:
            (value_s,) = self.values_s
            return value_s
        return chance.choice(self.values_s)

    @property
    def mean_s(self) -> float:
        """Return the mean duration, which decisions use."""
        return mean(self.values_s)

    def __str__(self) -> str:
        """Return it in words."""
        if len(self.values_s) == 1:
            return f"{quantity(self.mean_s)} s"
        return f"{quantity(self.mean_s)} s (mean of {len(self.values_s)} measured)"


def constant(value_s: float) -> Quantity:
    """Return a duration that is always the same."""
    return Quantity((value_s,))


FREE = constant(0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicalCosts:
    """Durations of the effects of a decision; none has one unless given."""

    detection: Quantity = FREE  # change of the pool -> the daemon sees it
    claim: Quantity = FREE  # pilot requested -> its agent is connected
    warm_up: Quantity = FREE  # node given to a trainer -> its worker can join
    pause_up: Quantity = FREE  # pause of the members when others join
    pause_down: Quantity = FREE  # pause of the others when members leave
    pause_loss: Quantity = FREE  # the same when they are lost without notice
    checkpoint_interval: Quantity = FREE  # losing all nodes costs half of it on average
    resume: Quantity = FREE  # reading the checkpoint when coming from size 0

    def by_name(self) -> dict[str, list[float]]:
        """Return the durations in seconds, as a file may have them."""
        return {cost.name: list(getattr(self, cost.name).values_s) for cost in fields(self)}

    def __str__(self) -> str:
        """Return them in words."""
        return ", ".join(f"{cost.name} {getattr(self, cost.name)}" for cost in fields(self))


# The pauses are the limits of scripts/bench_rescale.py with 200 MB of state (docs/results.md);
# measured pauses are shorter. Detection is half a poll interval
# of 1 s. Claim: half of Slurm's default backfill interval of 30 s, and 5 s for the pilot.
# Checkpoints: a quarter of a trainer's default (ADR 32). Warm-up and resume depend on the
# user's script.
MEASURED = PhysicalCosts(
    detection=constant(0.5),
    claim=constant(20.0),
    warm_up=constant(5.0),
    pause_up=constant(0.3),
    pause_down=constant(0.1),
    pause_loss=constant(0.5),
    checkpoint_interval=constant(15.0),
    resume=constant(2.0),
)


def costs_from_mapping(
    data: Mapping[str, Any], where: str, base: PhysicalCosts = MEASURED
) -> PhysicalCosts:
    """Read durations by name: a number, or a list of measured ones; the others are ``base``'s.

    Raises:
        UsageError: BFT-4101 for an unknown name, BFT-4102 for what is not a duration.
    """
    names = {f.name for f in fields(PhysicalCosts)}
    quantities: dict[str, Quantity] = {}
    for name, value in data.items():
        key = name.removesuffix("_s")
        if key not in names:
            raise UsageError(
                "BFT-4101",
                f"{where}: unknown cost {name!r}.",
                f"Choose from {', '.join(sorted(names))}.",
            )
        values = value if isinstance(value, list) else [value]
        if not values or not all(map(_is_duration, values)):
            raise UsageError(
                "BFT-4102",
                f"{where}: {name} is not a number of seconds, nor a list of them.",
                "Give seconds >= 0.",
            )
        quantities[key] = Quantity(tuple(map(float, values)))
    return replace(base, **quantities)


def _is_duration(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9


def costs_from_file(path: Path) -> PhysicalCosts:
    """Read a file of durations, or what ``bench_rescale.py --json`` wrote (its big model).

    Raises:
        UsageError: BFT-4103, the file cannot be read; BFT-4101 and BFT-4102 as above.
    """
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as problem:
        raise UsageError(
            "BFT-4103", f"{path} cannot be read: {problem}.", "Give a JSON file of durations."
        ) from problem
    if not isinstance(data, dict):
        raise UsageError("BFT-4102", f"{path} is not a JSON object.", 'Write e.g. {"claim_s": 20}.')
    if data.get("benchmark") != "rescale":
        return costs_from_mapping(data, str(path))
    models = data.get("models", {})
    model: Mapping[str, Any] = models.get("big", models.get("small", {}))
    pauses: Sequence[Mapping[str, Any]] = model.get("pauses", [])
    durations_s: dict[str, list[float]] = {}
    if warm_up := model.get("warm_up_s"):
        durations_s["warm_up"] = list(map(float, warm_up))
    for pause in pauses:
        if name := _OF_TRANSITION.get(str(pause.get("kind"))):
            durations_s.setdefault(name, []).append(max(0.0, float(pause["pause_s"])))
    return costs_from_mapping(durations_s, str(path))


def chosen_costs(path: Path | None, options: Sequence[str]) -> PhysicalCosts:
    """Return ``MEASURED``, but what a file names, but what is given as ``NAME=SECONDS``.

    Raises:
        UsageError: as above.
    """
    durations: dict[str, Any] = {}
    for option in options:
        name, _, text = option.partition("=")
        try:
            durations[name] = float(text)
        except ValueError:
            durations[name] = text  # refused with its name
    base = MEASURED
    if path is not None:
        base = costs_from_file(path)
    return costs_from_mapping(durations, "--cost", base)


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """The share of slow nodes and their speed, as the user chooses them."""

    share: float  # of the nodes, 0 to 1
    fraction: float  # of the usual throughput, in (0, 1)


@dataclass(slots=True, kw_only=True)
class SlowNodes:
    """The slow nodes of one replay, and what has been found of them."""

    fractions: Mapping[str, float] = field(default_factory=dict)
    threshold: float = 0.0  # 0: nobody looks
    report_s: float = 0.5  # between two reports of a worker
    _since_s: dict[tuple[str, str], float] = field(default_factory=dict)  # (trainer, node)

    def pace(self, nodes: Iterable[str]) -> float:
        """Return the fraction of its usual throughput that a trainer on these nodes reaches."""
        return min([self.fractions.get(node, 1.0) for node in nodes], default=1.0)

    def look(self, training: Mapping[str, str], now_s: float) -> None:
        """Note which slow nodes train, beside others, since when."""
        if not self.fractions:
            return
        sizes: dict[str, int] = {}
        for trainer_id in training.values():
            sizes[trainer_id] = sizes.get(trainer_id, 0) + 1
        since_s = {}
        for node, trainer_id in training.items():
            if node in self.fractions and sizes[trainer_id] > 1:
                pair = (trainer_id, node)
                since_s[pair] = self._since_s.get(pair, now_s)
        self._since_s = since_s

    def speeds(self, now_s: float) -> dict[str, float]:
        """The slow nodes that were found, with their fractions."""
        return {
            node: self.fractions[node]
            for (trainer_id, node), since_s in self._since_s.items()
            if now_s >= since_s + self.found_after_s(node)
        }

    def next_found_s(self, now_s: float) -> float:
        """Return the time at which the next slow node is found."""
        times = [since_s + self.found_after_s(node) for (_, node), since_s in self._since_s.items()]
        return min([at_s for at_s in times if at_s > now_s], default=math.inf)

    def found_after_s(self, node: str) -> float:
        """Return how long the moving average needs to fall below the threshold."""
        fraction = self.fractions[node]
        if fraction >= self.threshold:
            return math.inf
        share = (self.threshold - fraction) / (1.0 - fraction)
        return self.report_s * math.ceil(log(share) / log(1.0 - ALPHA))


def draw(
    names: Sequence[str], injection: Injection | None, threshold: float, seed: int
) -> SlowNodes:
    """Choose the slow nodes of a trace."""
    if injection is None:
        return SlowNodes()
    chance = random.Random(seed)  # noqa: S311 - a replay, reproducible by its seed
    slow_nodes = chance.sample(sorted(names), round(injection.share * len(names)))
    return SlowNodes(fractions=dict.fromkeys(slow_nodes, injection.fraction), threshold=threshold)


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

    @property
    def next_s(self) -> float:
        """The time of its next event: its agent connects, or its limit strikes."""
        if self.is_held:
            return self.end_s
        return min(self.held_at_s, self.end_s)


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
        samples = max(0.0, self.trainer.goal - self.trainer.done)
        return max(now_s, self.resumes_at_s) + samples / rate


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
        times = [pilot.next_s for pilot in self._pilots.values()]
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
        trainer_on: dict[str, str] = {}
        for trainer_id, member in self._members.items():
            trainer_on.update(dict.fromkeys(member.trainer.nodes, trainer_id))
        return trainer_on

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
        slow_nodes = frozenset(self.speeds())
        is_news = not slow_nodes <= self._found
        self._found = slow_nodes
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
        pilot_nodes = {node for node in nodes if self._pilots.pop(node, None) is not None}
        if not pilot_nodes:
            return
        for member in self._members.values():
            member.planned -= pilot_nodes
            for node in pilot_nodes & member.warm_at_s.keys():
                del member.warm_at_s[node]
            if leaving := member.trainer.nodes & pilot_nodes:
                member.trainer.preemptions += 1
                pause_s = self.costs.pause_loss.draw_s(self._chance)
                self._shrink(member, leaving, pause_s, is_announced=False)

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
        nodes_of: dict[str, set[str]] = {}  # by trainer
        for node, trainer_id in plan.assignment.items():
            nodes_of.setdefault(trainer_id, set()).add(node)
        for trainer_id, member in self._members.items():
            member.planned = frozenset(nodes_of.get(trainer_id, ()))
            for node in member.warm_at_s.keys() - member.planned:
                del member.warm_at_s[node]
            staying = self._paired(member, has_joined=False)
            if leaving := member.trainer.nodes - member.planned - staying:
                member.trainer.rescales += 1
                pause_s = self.costs.pause_down.draw_s(self._chance)
                self._shrink(member, leaving, pause_s, is_announced=True)
        for member in self._members.values():
            self._warm_up(member)
            self._join(member)
        self._slow.look(self.training(), now_s)

    def _user_of(self, trainer_id: str) -> str:
        if not self._runs_as_submitter or trainer_id not in self._members:
            return ""
        return self._members[trainer_id].trainer.submission.user

    def _warm_up(self, member: _Member) -> None:
        """Start workers on nodes that are planned and held."""
        for node in sorted(member.planned - member.trainer.nodes - member.warm_at_s.keys()):
            pilot = self._pilots.get(node)
            if pilot is not None and pilot.is_held:
                member.warm_at_s[node] = self._now_s + self.costs.warm_up.draw_s(self._chance)

    def _join(self, member: _Member) -> bool:
        """Let the warm ones join; whether any did, at which a daemon decides anew."""
        trainer, now_s = member.trainer, self._now_s
        warm = {n for n, at_s in member.warm_at_s.items() if at_s <= now_s}
        if only := trainer.submission.sizes:
            size = max([s for s in only if s <= len(trainer.nodes) + len(warm)], default=0)
            warm = set(sorted(warm)[: max(0, size - len(trainer.nodes))])
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
        trainer.nodes -= self._paired(member, has_joined=True)
        trainer.pace = self._slow.pace(trainer.nodes)
        return True

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
        self, member: _Member, leaving: Iterable[str], pause_s: float, *, is_announced: bool
    ) -> None:
        """Members go; below n_min the trainer is parked, its last checkpoint counts."""
        trainer = member.trainer
        trainer.nodes -= set(leaving)
        trainer.pace = self._slow.pace(trainer.nodes)
        if len(trainer.nodes) >= trainer.submission.n_min:
            member.resumes_at_s = max(member.resumes_at_s, self._now_s + pause_s)
            return
        trainer.nodes = set()
        if not is_announced and self._checkpoint_every_s > 0:
            self.tally.preemption_cost += trainer.done - member.checkpointed
            trainer.done = member.checkpointed
        member.checkpointed = trainer.done
        member.checkpoint_at_s = math.inf
