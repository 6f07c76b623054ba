"""Episodes to learn from: stretches of a pool's history, recorded or drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from bftrainer.batch.traces.fragments import Fragments
from bftrainer.batch.traces.generator import GeneratorParameters, generate
from bftrainer.decide.policies.base import AllocationPolicy
from bftrainer.decide.policies.dl2_network import Array
from bftrainer.lab.simulator.paper import PaperModel
from bftrainer.lab.simulator.replay import Replay
from bftrainer.lab.simulator.session import Choices, settings_of
from bftrainer.lab.simulator.trainers import Tally
from bftrainer.lab.workloads.builders import diverse
from bftrainer.lab.workloads.submission import Submission
from bftrainer.model.decision import DecisionInput, Plan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Episode:
    """A stretch of a pool's history with submissions to play on it."""

    trace: Fragments
    submissions: tuple[Submission, ...]
    p_jmax: int = 40
    t_fwd_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Played:
    """The times at which trainers entered and left the system."""

    begin_s: float
    end_s: float
    submitted_s: Array
    finished_s: Array  # the end for those that did not finish

    def in_system(self, at_s: Array) -> Array:
        """Return how many trainers were there at each time."""
        came = np.searchsorted(np.sort(self.submitted_s), at_s, side="right")
        went = np.searchsorted(np.sort(self.finished_s), at_s, side="right")
        found: Array = (came - went).astype(np.float64)
        return found

    @property
    def mean_s(self) -> float:
        """Mean time in the system, up to the end."""
        return float((self.finished_s - self.submitted_s).mean())


def play(
    episode: Episode,
    policy: AllocationPolicy,
    on_plan: Callable[[DecisionInput, Plan], None] | None = None,
) -> Played:
    """Play an episode with the paper's cost model."""
    choices = Choices(policy=policy.name, p_jmax=episode.p_jmax, t_fwd_s=episode.t_fwd_s)
    found = Replay(
        episode.trace,
        episode.submissions,
        settings=settings_of(choices),
        policy=policy,
        books=PaperModel(Tally()),
        on_plan=on_plan,
    ).run()
    begin_s, end_s = episode.trace.span_s
    return Played(
        begin_s=begin_s,
        end_s=end_s,
        submitted_s=np.array([t.record.submitted_s for t in found.trainers]),
        finished_s=np.array(
            [end_s if t.finished_s is None else t.finished_s for t in found.trainers]
        ),
    )


HOURS = 4.0
N_TRAINERS = 40
MEAN_ARRIVAL_S = 240.0
NODES = (8, 16, 32, 64)
HOLES_PER_NODE_H = 3.0
SPREAD = 1.0  # of the logarithm of a length
MEAN_NODE_S = 3600.0  # a trainer's length on one node


def draw(seed: int) -> Episode:
    """Draw an episode; the same seed gives the same."""
    chance = np.random.default_rng((seed, 59))
    n_nodes = int(chance.choice(NODES))
    trace = generate(
        GeneratorParameters(
            n_nodes=n_nodes,
            machine_nodes=n_nodes,
            hours=HOURS,
            holes_per_hour=HOLES_PER_NODE_H * n_nodes,
            length_scale_s=300.0,
            seed=seed,
        )
    )
    # The load follows the pool, so that there is always something to decide.
    arrivals = MEAN_ARRIVAL_S * max(NODES) / n_nodes / 4
    workload = diverse(n_trainers=N_TRAINERS, seed=seed, mean_arrival_s=arrivals)
    lengths = chance.lognormal(np.log(MEAN_NODE_S) - SPREAD**2 / 2, SPREAD, N_TRAINERS)
    return Episode(
        trace=trace,
        submissions=tuple(
            replace(one, samples=max(1.0, length * one.curve.samples_per_s[0]))
            for one, length in zip(workload, lengths, strict=True)
            if one.submit_s < HOURS * 3600.0
        ),
    )
