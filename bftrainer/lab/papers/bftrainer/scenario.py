"""The scenario of section 5: its trace, the part that is replayed, and the published values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from bftrainer.batch.traces import SAMPLE, Fragments, TraceError, read_trace
from bftrainer.lab.papers.paper import Extent, Scenario, read_expected
from bftrainer.lab.workloads import (
    NETWORKS,
    RESCALE_DOWN_S,
    RESCALE_UP_S,
    SAMPLES,
    TrainerWorkload,
    diverse,
    hpo,
    read_workload,
)

WEEK_FILE = "summit-2021-02-10_17-idle-fragments.npz"
TWO_WEEKS_FILE = "summit-2021-02-10_24-idle-fragments.npz"  # holds the other one, too
DIVERSE_FILE = "jobs-ImageNet-imgps.json"
SUMMIT_NODES, PAPER_NODES = 4734, 1024
PAPER_START_S, PAPER_HOURS = 1612988475.0, 168.0  # section 4.3: a week from here on
PAPER_EVENTS = 7212
TWO_WEEKS_H = 336.0
NO_TWO_WEEKS = f"needs two weeks of Summit; {TWO_WEEKS_FILE} is not in $BFTRAINER_DATA"
DIVERSE = "diverse"
COSTS = 1.0  # times those of the published trials
# The published job tables spell the networks of Table 2 differently.
_TABLE_2_NAME = {name.replace("-", ""): network.name for name, network in NETWORKS.items()}
_TABLE_2_NAME |= {"mnasnet1": "MnasNet", "mobilenet": "MobileNets"}
TABLES = read_expected(__package__)["tables"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweeps(Extent):
    """The values over which section 5 varies each setting."""

    hours: float | None = None  # from the start of the scenario; None: all of it
    t_fwd_s: tuple[float, ...] = (10, 30, 60, 90, 120, 150, 180, 210, 240, 270, 300, 1200)
    diverse_t_fwd_s: tuple[float, ...] = (10, 30, 60, 120, 180, 240, 300)  # Fig. 13
    p_jmax: tuple[int, ...] = (5, 10, 15, 20, 25, 30, 35)  # Fig. 14, Tables 3 and 4
    cost_factors: tuple[float, ...] = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)  # Fig. 16
    networks_hours: float = 60.0  # Fig. 15
    is_to_the_end: bool = False  # section 5.3 is played until all trainers are complete


@dataclass(frozen=True, slots=True, kw_only=True)
class WeekOfNodes:
    """A part of a trace, what follows it, and the source of the diverse trainers."""

    trace: Fragments
    to_the_end: Fragments | None = None  # from the same start, longer; None: not available
    two_weeks_file: Path | None = None  # of all nodes
    diverse_file: Path | None = None  # None: generated (Poisson arrivals)


def choose_scenario(trace_file: Path | None, data: Path | None, extent: Sweeps) -> Scenario:
    """Return the paper's week if it is available, else the given trace, else the sample.

    Args:
        trace_file: named by the user.
        data: directory of the original data.
        extent: its ``hours`` limit the length.

    Raises:
        TraceError: a file cannot be read.
    """
    file = trace_file or _first_file(data, TWO_WEEKS_FILE, WEEK_FILE)
    trace = read_trace(file or SAMPLE)
    is_papers = _holds_papers_week(trace)
    has_two_weeks = is_papers and trace.span_s[1] >= PAPER_START_S + 3600.0 * TWO_WEEKS_H
    if file is not None and file.name == TWO_WEEKS_FILE and not has_two_weeks:
        raise TraceError(
            "BFT-2124",
            f"{file} does not hold the two weeks of Summit from second {PAPER_START_S:.0f} on.",
            f"Import them again, or remove it: {WEEK_FILE} is enough for the first week.",
        )
    to_the_end = None
    if has_two_weeks:
        to_the_end = trace.restrict(slice(0, PAPER_NODES), start_s=PAPER_START_S)
    if is_papers:
        trace = trace.restrict(slice(0, PAPER_NODES), start_s=PAPER_START_S, hours=PAPER_HOURS)
    else:
        to_the_end = trace
    trace = first_hours(trace, extent.hours or PAPER_HOURS)
    week = WeekOfNodes(
        trace=trace,
        to_the_end=to_the_end,
        two_weeks_file=file if has_two_weeks else None,
        diverse_file=_first_file(data, DIVERSE_FILE),
    )
    return _described(week, file, is_papers)


def _first_file(data: Path | None, *names: str) -> Path | None:
    """Return the first of these files that is in the directory of original data."""
    if data is None:
        return None
    for name in names:
        if (data / name).is_file():
            return data / name
    return None


def _described(week: WeekOfNodes, file: Path | None, is_papers: bool) -> Scenario:
    trace, source = week.trace, (file or SAMPLE).name
    remarks = []
    if file is None:
        remarks.append(
            "The original data were not found (BFTRAINER_DATA): this is the generated sample "
            "trace, and its numbers are NOT comparable with the paper's."
        )
    elif not is_papers:
        remarks.append(
            f"{source} is not the paper's week of 1,024 Summit nodes: "
            "the numbers are not comparable with the paper's."
        )
    elif week.two_weeks_file is None:
        remarks.append(f"What {NO_TWO_WEEKS} is left out.")
    if week.diverse_file is None:
        remarks.append("Diverse trainers: generated (Poisson arrivals), not the published list.")
    about = {
        "file": source,
        "is_papers": is_papers,
        "is_synthetic": file is None,  # the included sample
        "nodes": len(trace.names),
        "start_s": trace.span_s[0],
        "hours": trace.duration_s / 3600.0,
        "events": len(trace.pool_changes()),
        "n_eq": trace.equivalent_nodes(),
    }
    summary = (
        "Trace: {file}, {nodes:,} nodes, {hours:g} h from second {start_s:.0f}, {events:,} events, "
        "N_eq {n_eq:.1f}."
    )
    return Scenario(
        summary=summary.format_map(about), document={"trace": about}, remarks=remarks,
        is_papers=is_papers, content=week,
    )  # fmt: skip


def first_hours(trace: Fragments, hours: float) -> Fragments:
    """Return the first hours of a trace, or all of a shorter one."""
    if trace.duration_s <= 3600.0 * hours:
        return trace
    return trace.restrict(hours=hours)


def _holds_papers_week(trace: Fragments) -> bool:
    begin_s, end_s = trace.span_s
    if len(trace.names) != SUMMIT_NODES or begin_s > PAPER_START_S:
        return False
    if end_s < PAPER_START_S + 3600.0 * PAPER_HOURS:
        return False
    week = trace.restrict(slice(0, PAPER_NODES), start_s=PAPER_START_S, hours=PAPER_HOURS)
    return len(week.pool_changes()) == PAPER_EVENTS


def workload_of(week: WeekOfNodes, name: str, cost_factor: float) -> TrainerWorkload:
    """Return the trainers: ``diverse``, or identical trials of a network of Table 2.

    Raises:
        TraceError: the file of the diverse trainers cannot be read.
    """
    if name != DIVERSE:
        return hpo(
            NETWORKS[name],
            samples=SAMPLES,
            rescale_up_s=COSTS * cost_factor * RESCALE_UP_S,
            rescale_down_s=COSTS * cost_factor * RESCALE_DOWN_S,
        )
    if week.diverse_file is None:
        return diverse(seed=1)
    return _read_once(week.diverse_file)


@lru_cache(maxsize=4)  # every replay of a process needs the same thousand trainers
def _read_once(path: Path) -> TrainerWorkload:
    return read_workload(path)


def network_name(label: str) -> str:
    """Return the name of a network in Table 2 for any spelling of a file."""
    plain = label.lower().replace("-", "")
    return _TABLE_2_NAME.get(plain, label)
