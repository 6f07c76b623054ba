"""The points of the sweeps and the length of the replays: in full, and shortened."""

from __future__ import annotations

from dataclasses import dataclass

from bftrainer.lab.papers.paper import Extent


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweeps(Extent):
    """What section 5 varies."""

    hours: float | None  # from the start of the scenario; None: all of it
    t_fwd_s: tuple[float, ...]  # Figs. 7, 8, 9
    diverse_t_fwd_s: tuple[float, ...]  # Fig. 13
    p_jmax: tuple[int, ...]  # Fig. 14, Tables 3 and 4
    cost_factors: tuple[float, ...]  # Fig. 16
    networks_hours: float  # Fig. 15


FULL = Sweeps(
    name="full",
    hours=None,
    t_fwd_s=(10, 30, 60, 90, 120, 150, 180, 210, 240, 270, 300, 1200),
    diverse_t_fwd_s=(10, 30, 60, 120, 180, 240, 300),
    p_jmax=(5, 10, 15, 20, 25, 30, 35),
    cost_factors=(1, 2, 3, 4, 5, 6, 7, 8, 9, 10),
    networks_hours=60.0,
)
QUICK = Sweeps(
    name="quick",
    hours=72.0,
    t_fwd_s=(10, 60, 120, 300, 1200),
    diverse_t_fwd_s=(10, 120, 300),
    p_jmax=(5, 10, 35),
    cost_factors=(1, 2, 5, 10),
    networks_hours=24.0,
    shortened="72 h instead of 168 h (Fig. 15: 24 h instead of 60 h); T_fwd 10, 60, 120, 300 and "
    "1200 s; P_jmax 5, 10 and 35; rescale costs x1, x2, x5 and x10.",
)
