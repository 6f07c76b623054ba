"""Replays one trace and workload with two policies, and compares the results."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean

from bftrainer.batch.traces.fragments import HOUR_S, Fragments
from bftrainer.decide.policies.base import load_policy
from bftrainer.lab.simulator.costs import MEASURED
from bftrainer.lab.simulator.metrics import measure
from bftrainer.lab.simulator.physical import PhysicalModel
from bftrainer.lab.simulator.replay import Outcome, Replay
from bftrainer.lab.simulator.trainers import Tally
from bftrainer.lab.workloads.submission import TrainerWorkload
from bftrainer.model.decision import Settings
from bftrainer.site.policy.calendar import next_blackout
from bftrainer.site.policy.model import SitePolicy
from bftrainer.site.policy.settings import settings_on

CYCLE_S = 1800.0  # a trace has no scheduler cycles; pilots start at once
UNKNOWN = (
    "Whether ordinary jobs would have come otherwise is not known: nodes come back when they did.",
    "What would have been given back in time is not told from what would have been preempted.",
    "Short gaps, stragglers, failures and idle_confirmations are not replayed.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserWait:
    """The waits of a user's trainers for their first nodes."""

    user: str
    trainers: int
    never: int  # of these, had none before the end
    mean_s: float | None  # of the others
    longest_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one policy on the trace."""

    offered_node_h: float
    harvested_node_h: float  # of trainers that trained
    held_node_h: float  # with a pilot
    utilization: float  # U
    rescales: int
    nodes_taken: int  # from trainers, when the nodes left
    finished: int
    waits: tuple[UserWait, ...]  # by user


def figures(trace: Fragments, workload: TrainerWorkload, policy: SitePolicy) -> Figures:
    """Replay with a policy."""
    tally, seed = Tally(), 1
    outcome = Replay(
        trace,
        workload,
        settings=replayed(policy),
        policy=load_policy(policy.policy),
        books=PhysicalModel(tally, MEASURED, seed=seed, runs_as_submitter=policy.is_for_all),
        seed=seed,
        blackout_at=partial(next_blackout, policy.blackouts, policy.time_zone),
    ).run()
    found = measure(outcome)
    return Figures(
        offered_node_h=tally.node_s_offered / HOUR_S,
        harvested_node_h=tally.node_s_used / HOUR_S,
        held_node_h=tally.node_s_held / HOUR_S,
        utilization=found.utilization,
        rescales=found.rescales,
        nodes_taken=found.preemptions,
        finished=found.completed,
        waits=tuple(_waits(outcome)),
    )


def replayed(policy: SitePolicy) -> Settings:
    """Return the decision's settings; without those that a trace has nothing to say to."""
    return replace(
        settings_on(policy, idle_confirmations=1, cycle_s=CYCLE_S),
        min_gap_s=0.0,
        gap_margin_s=0.0,
        straggler_threshold=0.0,
    )


def _waits(outcome: Outcome) -> Iterator[UserWait]:
    by_user = sorted(outcome.trainers, key=lambda t: t.record.spec.user)
    for user, group in itertools.groupby(by_user, key=lambda t: t.record.spec.user):
        trainers = list(group)
        waited_s = [t.started_s - t.record.submitted_s for t in trainers if t.started_s is not None]
        yield UserWait(
            user=user,
            trainers=len(trainers),
            never=len(trainers) - len(waited_s),
            mean_s=mean(waited_s) if waited_s else None,
            longest_s=max(waited_s, default=None),
        )
