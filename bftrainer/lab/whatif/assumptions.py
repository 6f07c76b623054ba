"""The assumptions of a prediction; all of them are printed with the result."""

from __future__ import annotations

from dataclasses import dataclass, field

from bftrainer.lab.simulator.costs import MEASURED, PhysicalCosts
from bftrainer.lab.workloads.networks import NETWORKS, SAMPLES, Network

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
        return (
            (
                f"There is always a trainer waiting: {self.network.name} (Table 2 of the BFTrainer "
                f"paper), {self.samples:,.0f} samples each, {self.n_min} to {self.n_max} nodes."
            ),
            f"Costs: {self.costs}.",
            "All nodes are alike, and every trainer may use every node.",
            "Ordinary jobs run as they did; nodes come back to them when the trace says so.",
            "No node is kept in reserve; a pilot's time limit never strikes.",
            "The future of a gap is not known: no node is left alone for a gap that is too short.",
        )
