"""What is replayed: a trace, the workloads, and whether the paper's numbers can be expected.

The data directory and a trace file come in, a ``Scene`` goes out. Files are read here only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from bftrainer.simulate.traces import SAMPLE, Fragments, read_trace
from bftrainer.simulate.workloads import NETWORKS, TrainerWorkload, diverse, hpo, read_workload
from bftrainer.simulate.workloads.builders import RESCALE_DOWN_S, RESCALE_UP_S

SUMMIT_FILE = "summit-2021-02-10_17-idle-fragments.npz"
DIVERSE_FILE = "jobs-ImageNet-imgps.json"
SUMMIT_NODES, PAPER_NODES = 4734, 1024
PAPER_START_S, PAPER_HOURS = 1612988475.0, 168.0  # section 4.3: a week from here on
PAPER_EVENTS = 7212
DIVERSE = "diverse"
# How the published job tables call the networks of Table 2.
_TABLE_2_NAME = {name.replace("-", ""): network.name for name, network in NETWORKS.items()} | {
    "mnasnet1": "MnasNet",
    "mobilenet": "MobileNets",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One part of a trace, and where the diverse trainers come from."""

    source: str
    trace: Fragments
    is_papers: bool  # the very nodes and week of section 4.3
    is_synthetic: bool = False  # the sample that ships
    diverse_file: Path | None = None  # None: our own Poisson arrivals


def choose_scene(trace_file: Path | None, data: Path | None, *, hours: float | None) -> Scene:
    """Choose the paper's week where it can be had, else what is given, else the sample.

    Args:
        trace_file: what the user named.
        data: directory of the original data.
        hours: at most so many from the start; None: the paper's week.

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
    return Scene(
        source=(file or SAMPLE).name,
        trace=first_hours(trace, hours or PAPER_HOURS),
        is_papers=is_papers,
        is_synthetic=file is None,
        diverse_file=jobs if jobs is not None and jobs.is_file() else None,
    )


def first_hours(trace: Fragments, hours: float) -> Fragments:
    """Return the begin of a trace, all of it where it is no longer than that."""
    return trace.restrict(hours=hours) if trace.duration_s > 3600.0 * hours else trace


def _holds_papers_week(trace: Fragments) -> bool:
    begin_s, end_s = trace.span_s
    if len(trace.names) != SUMMIT_NODES or begin_s > PAPER_START_S:
        return False
    if end_s < PAPER_START_S + 3600.0 * PAPER_HOURS:
        return False
    week = trace.restrict(slice(0, PAPER_NODES), start_s=PAPER_START_S, hours=PAPER_HOURS)
    return len(week.pool_changes()) == PAPER_EVENTS


def workload_of(scene: Scene, name: str, cost_factor: float) -> TrainerWorkload:
    """Return the trainers: ``diverse``, or the trials of a network of Table 2.

    Raises:
        TraceError: the file of the diverse trainers cannot be read.
    """
    if name != DIVERSE:
        return hpo(
            NETWORKS[name],
            rescale_up_s=cost_factor * RESCALE_UP_S,
            rescale_down_s=cost_factor * RESCALE_DOWN_S,
        )
    return diverse(seed=1) if scene.diverse_file is None else _read_once(scene.diverse_file)


@lru_cache(maxsize=4)  # a thousand trainers, read by every replay of a process
def _read_once(path: Path) -> TrainerWorkload:
    return read_workload(path)


def network_name(label: str) -> str:
    """Return Table 2's name of a network, however a file writes it."""
    plain = label.lower().replace("-", "")
    return _TABLE_2_NAME.get(plain, label)
