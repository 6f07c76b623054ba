"""The assumptions of a prediction; all of them are printed with the result."""

from __future__ import annotations

from dataclasses import dataclass, field

from bftrainer.simulate.costs import PhysicalCosts, Quantity, constant
from bftrainer.simulate.workloads.networks import NETWORKS, SAMPLES, Network

# The pauses are the limits of scripts/bench_rescale.py with 200 MB of state (docs/results.md);
# measured pauses are shorter. Detection is half a poll interval
# of 1 s. Claim: half of Slurm's default backfill interval of 30 s, and 5 s for the pilot.
# Checkpoints: a quarter of a trainer's default (ADR 23). Warm-up and resume depend on the
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

T_FWD_S = (10.0, 60.0, 120.0, 300.0, 1200.0)
HOLD_DOWN_S = (0.0, 10.0, 30.0, 60.0, 120.0)
NODES_PER_TRAINER = (16, 8, 4, 2)  # P_jmax is tried at N_eq divided by these


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """Trainers, costs and the values to try; a tuple of one value is not varied."""

    policies: tuple[str, ...] = ("milp",)  # the first one is used for the settings
    costs: PhysicalCosts = field(default_factory=lambda: MEASURED)
    network: Network = field(default_factory=lambda: NETWORKS["shufflenet"])
    samples: float = SAMPLES  # per trainer; another one always waits
    n_min: int = 1
    n_max: int = 64
    t_fwd_s: tuple[float, ...] = T_FWD_S
    p_jmax: tuple[int, ...] = ()  # empty: follows from N_eq
    hold_down_s: tuple[float, ...] = HOLD_DOWN_S
    n_nodes: int | None = None  # of the machine; None: those the trace names
    poll_interval_s: float = 1.0  # turns the hold-down time into idle_confirmations
    seed: int = 1

    def sentences(self) -> tuple[str, ...]:
        """Return the assumptions in words."""
        costs = ", ".join(
            f"{name} {_shown(getattr(self.costs, name))}" for name in PhysicalCosts.__slots__
        )
        return (
            (
                f"There is always a trainer waiting: {self.network.name} (Table 2 of the BFTrainer "
                f"paper), {self.samples:,.0f} samples each, {self.n_min} to {self.n_max} nodes."
            ),
            f"Costs: {costs}.",
            "All nodes are alike, and every trainer may use every node.",
            "Ordinary jobs run as they did; nodes come back to them when the trace says so.",
            "No node is kept in reserve; a pilot's time limit never strikes.",
            "The future of a gap is not known: no node is left alone for a gap that is too short.",
        )


def _shown(quantity: Quantity) -> str:
    if len(quantity.values_s) == 1:
        return f"{quantity.mean_s:g} s"
    return f"{quantity.mean_s:.3g} s (mean of {len(quantity.values_s)} measured)"
