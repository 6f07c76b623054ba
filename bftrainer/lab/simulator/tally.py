"""Sums over a replay, in node-seconds and samples."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Tally:
    """What a replay adds up."""

    node_s_offered: float = 0.0  # resource integral, eq. 17 of the BFTrainer paper
    node_s_held: float = 0.0  # with a pilot of ours on it
    node_s_used: float = 0.0  # of a trainer that trains
    rescale_cost: float = 0.0  # samples not processed because of rescales
    preemption_cost: float = 0.0  # the same, because nodes were taken back
    pilots: int = 0  # requested
    pilots_trained: int = 0  # whose node made a first step
    events: int = 0
    decisions: int = 0
    decide_s: float = 0.0  # time spent deciding, by the wall clock
