"""The scenario of section 5: its trace, the part that is replayed, and the published values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from bftrainer.batch.traces import SAMPLE, Fragments, read_trace
from bftrainer.lab.papers.findings import read_expected
from bftrainer.lab.papers.paper import Extent
from bftrainer.lab.workloads import (
    NETWORKS,
    RESCALE_DOWN_S,
    RESCALE_UP_S,
    TrainerWorkload,
    diverse,
    hpo,
    read_workload,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweeps(Extent):
    """The values over which section 5 varies each setting."""

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


SUMMIT_FILE = "summit-2021-02-10_17-idle-fragments.npz"
DIVERSE_FILE = "jobs-ImageNet-imgps.json"
SUMMIT_NODES, PAPER_NODES = 4734, 1024
PAPER_START_S, PAPER_HOURS = 1612988475.0, 168.0  # section 4.3: a week from here on
PAPER_EVENTS = 7212
DIVERSE = "diverse"
# The published job tables spell the networks of Table 2 differently.
_TABLE_2_NAME = {name.replace("-", ""): network.name for name, network in NETWORKS.items()} | {
    "mnasnet1": "MnasNet",
    "mobilenet": "MobileNets",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeekOfNodes:
    """A part of a trace, and the source of the diverse trainers."""

    source: str
    trace: Fragments
    is_papers: bool  # the nodes and the week of section 4.3
    is_synthetic: bool = False  # the included sample
    diverse_file: Path | None = None  # None: generated (Poisson arrivals)

    def remarks(self) -> list[str]:
        """Return what a reader must know before any value."""
        found = []
        if self.is_synthetic:
            found.append(
                "The original data were not found (BFTRAINER_DATA): this is the generated sample "
                "trace, and its numbers are NOT comparable with the paper's."
            )
        elif not self.is_papers:
            found.append(
                f"{self.source} is not the paper's week of 1,024 Summit nodes: "
                "the numbers are not comparable with the paper's."
            )
        if self.diverse_file is None:
            found.append("Diverse trainers: generated (Poisson arrivals), not the published list.")
        return found

    def summary(self) -> str:
        """Return one sentence for the report."""
        trace = self.trace
        return (
            f"Trace: {self.source}, {len(trace.names):,} nodes, "
            f"{trace.duration_s / 3600.0:g} h from second {trace.span_s[0]:.0f}, "
            f"{len(trace.pool_changes()):,} events, N_eq {trace.equivalent_nodes():.1f}."
        )

    def document(self) -> dict[str, Any]:
        """Return the section ``trace`` of the JSON document."""
        trace = self.trace
        return {
            "trace": {
                "file": self.source,
                "is_papers": self.is_papers,
                "is_synthetic": self.is_synthetic,
                "nodes": len(trace.names),
                "start_s": trace.span_s[0],
                "hours": trace.duration_s / 3600.0,
                "events": len(trace.pool_changes()),
                "n_eq": trace.equivalent_nodes(),
            }
        }


def choose_scenario(trace_file: Path | None, data: Path | None, extent: Sweeps) -> WeekOfNodes:
    """Return the paper's week if it is available, else the given trace, else the sample.

    Args:
        trace_file: named by the user.
        data: directory of the original data.
        extent: its ``hours`` limit the length.

    Raises:
        TraceError: a file cannot be read.
    """
    jobs = None if data is None else data / DIVERSE_FILE
    file = trace_file
    if file is None and data is not None and (data / SUMMIT_FILE).is_file():
        file = data / SUMMIT_FILE
    trace = read_trace(file or SAMPLE)
    is_papers = _holds_papers_week(trace)
    if is_papers:
        trace = trace.restrict(slice(0, PAPER_NODES), start_s=PAPER_START_S, hours=PAPER_HOURS)
    return WeekOfNodes(
        source=(file or SAMPLE).name,
        trace=first_hours(trace, extent.hours or PAPER_HOURS),
        is_papers=is_papers,
        is_synthetic=file is None,
        diverse_file=jobs if jobs is not None and jobs.is_file() else None,
    )


def first_hours(trace: Fragments, hours: float) -> Fragments:
    """Return the first hours of a trace, or all of a shorter one."""
    return trace.restrict(hours=hours) if trace.duration_s > 3600.0 * hours else trace


def _holds_papers_week(trace: Fragments) -> bool:
    begin_s, end_s = trace.span_s
    if len(trace.names) != SUMMIT_NODES or begin_s > PAPER_START_S:
        return False
    if end_s < PAPER_START_S + 3600.0 * PAPER_HOURS:
        return False
    week = trace.restrict(slice(0, PAPER_NODES), start_s=PAPER_START_S, hours=PAPER_HOURS)
    return len(week.pool_changes()) == PAPER_EVENTS


def workload_of(scenario: WeekOfNodes, name: str, cost_factor: float) -> TrainerWorkload:
    """Return the trainers: ``diverse``, or identical trials of a network of Table 2.

    Raises:
        TraceError: the file of the diverse trainers cannot be read.
    """
    if name != DIVERSE:
        return hpo(
            NETWORKS[name],
            rescale_up_s=cost_factor * RESCALE_UP_S,
            rescale_down_s=cost_factor * RESCALE_DOWN_S,
        )
    return diverse(seed=1) if scenario.diverse_file is None else _read_once(scenario.diverse_file)


@lru_cache(maxsize=4)  # every replay of a process needs the same thousand trainers
def _read_once(path: Path) -> TrainerWorkload:
    return read_workload(path)


def network_name(label: str) -> str:
    """Return the name of a network in Table 2 for any spelling of a file."""
    plain = label.lower().replace("-", "")
    return _TABLE_2_NAME.get(plain, label)


EXPECTED = read_expected(__package__)
