"""A ``HarmStudy`` as a report in sentences and tables, and as a JSON document. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bftrainer.lab.harm.findings import HarmFindings, TypeYield
from bftrainer.lab.harm.lend_proposal import (
    lending_assumptions,
    proposal_sections,
    proposal_sentences,
)
from bftrainer.lab.harm.replica import UnplayedJobs
from bftrainer.lab.harm.segments import WARM_S, block_s
from bftrainer.lab.harm.sentences import interval, noticed, seconds, share
from bftrainer.lab.harm.study import HarmStudy
from bftrainer.lab.report_page import ReportPage, Section
from bftrainer.model.columns import TextTable, counted
from bftrainer.model.parts import Lend
from bftrainer.model.quantities import quantity, time_span

SCHEMA = "bftrainer/whatif-harm/1"
HOUR_S, MINUTE_S = 3600.0, 60.0
NOT_MODELLED = (
    "Dependencies: a job is submitted when sacct says that it became eligible.",
    "Jobs of srun and salloc: all are tried as sbatch's are.",
    "Nodes that were down, drained or reserved during the log: they are there all the time.",
    "Users who would submit other jobs if theirs waited longer.",
    "The load on slurmctld: a cycle of backfill takes as long beside bftrainer as without it.",
)
LEFTOVER = "GPUs that are left on nodes with jobs: while whole nodes are lent, these are not."
# Settings of the simulated Slurm that the document leaves out: they describe nodes and cycles.
NOT_SCHEDULING = frozenset(
    {"capacities", "partitions", "cycles_s", "first_cycle_s", "tick_phase_s"}
)
HARM_HEADERS = (
    *("PARTITION", ">JOBS", ">MEAN WAIT", ">IN THE LOG", ">ADDED", ">95% OF IT"),
    *(">BY CHANCE, 95%", "BEYOND CHANCE"),
)
SETTING_HEADERS = ("SETTING", ">VALUE", ">TRAINED NODE-H A DAY", ">CHANGE", ">ADDED", ">95% OF IT")
LOGGED = (
    "Where the mean wait of the simulated site differs much from that of the log, something that "
    "is not modelled held the jobs back, or let them pass."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Of one site, in one currency; None: not given."""

    node_hour: float | None = None
    gpu_hour: float | None = None
    kwh: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """The energy of the trained time and its worth, a day, in the currency of the prices."""

    energy_kwh: float | None  # null: --watts-per-node is not given
    energy_cost: float | None  # null: --price-per-kwh or --watts-per-node is not given
    node_value: float | None  # null: --price-per-node-hour is not given
    gpu_value: float | None  # null: --price-per-gpu-hour is not given


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The study, and what else the report says."""

    study: HarmStudy
    source: str  # of the log
    prices: Prices
    warnings: tuple[str, ...]
    cycle_s: float  # of backfill, as it was given
    closer: float
    processes: int
    took_s: float

    @property
    def found(self) -> HarmFindings:
        """The figures of the segments."""
        return self.study.findings


def worth(material: Told) -> Worth:
    """Return what the trained time is worth."""
    kinds, prices = material.found.node_types, material.prices
    draws_kwh = [kind.energy_kwh for kind in kinds if kind.energy_kwh is not None]
    energy_kwh = sum(draws_kwh) if draws_kwh else None
    return Worth(
        energy_kwh=energy_kwh,
        energy_cost=_product(energy_kwh, prices.kwh),
        node_value=_product(sum(k.trained_node_hours for k in kinds), prices.node_hour),
        gpu_value=_product(sum(k.trained_gpu_hours for k in kinds), prices.gpu_hour),
    )


def _product(amount: float | None, price: float | None) -> float | None:
    if amount is None or price is None:
        return None
    return amount * price


def as_document(material: Told) -> dict[str, Any]:
    """Return the document."""
    findings, replica = material.found, material.study.replica
    return {
        "schema": SCHEMA,
        "answers": list(answers(material)),
        "log": material.source,
        **dataclasses.asdict(findings),
        "worth": dataclasses.asdict(worth(material)),
        "log_hours": replica.span_s / HOUR_S,
        "jobs_in_log": len(replica.jobs),
        "left_out": list(map(dataclasses.asdict, replica.left_out)),
        "slurm": _scheduling(material),
        "policy": _policy(material),
        "assumptions": list(assumptions(material)),
        "not_modelled": list(not_modelled(material)),
        "notes": list(replica.notes),
        "warnings": list(material.warnings),
        "seed": material.study.choices.seed,
        "took_s": material.took_s,
    }


def _policy(material: Told) -> dict[str, Any]:
    """Return the keys of the policy that have not their defaults."""
    lend, values = material.study.choices.lend, dict(material.study.choices.policy_values)
    if lend is not Lend.NODES:
        values["lend"] = str(lend)
    return values


def _scheduling(material: Told) -> dict[str, Any]:
    """Return the settings of Slurm's schedulers."""
    slurm = material.study.replica.slurm
    settings = {}
    for field in dataclasses.fields(slurm):
        if field.name not in NOT_SCHEDULING:
            settings[field.name] = getattr(slurm, field.name)
    return settings


def report_of(material: Told) -> ReportPage:
    """Return the report."""
    findings = material.found
    return ReportPage(
        title=f"What jobs would notice: {material.source}",
        answers=tuple(answers(material)),
        more=tuple(_worth_sentences(material)),
        warnings=material.warnings,
        sections=(
            Section(
                title="What jobs notice: seconds per job, with 95% intervals",
                tables=(TextTable(headers=HARM_HEADERS, rows=tuple(_harm_rows(findings))),),
                items=(LOGGED,),
            ),
            Section(title="What trainers would get, a day", tables=(_yield_table(material),)),
            *proposal_sections(findings.proposal),
            *_settings_section(findings),
            *_left_out_section(material),
            Section(title="Assumptions", items=tuple(assumptions(material))),
            Section(title="Not modelled", items=tuple(not_modelled(material))),
            Section(title="How long it took", text=(_took(material),)),
        ),
    )


def answers(material: Told) -> Iterator[str]:
    """Yield the answer in sentences: what is given, and what each partition's jobs notice."""
    findings = material.found
    if findings.lend == Lend.NODES:
        yield from _nodes_given(findings)
    else:
        yield from _gpus_given(findings)
    yield from map(noticed, findings.partitions)
    if findings.lend == Lend.NODES:
        yield from proposal_sentences(material.study.replica, findings.proposal)


def _nodes_given(findings: HarmFindings) -> Iterator[str]:
    trained_h = sum(kind.trained_node_hours for kind in findings.node_types)
    idle_h = sum(kind.idle_node_hours for kind in findings.node_types)
    gpu_h = sum(kind.trained_gpu_hours for kind in findings.node_types)
    gpus = ""
    if gpu_h:
        gpus = f", {quantity(gpu_h)} GPU-hours"
    yield (
        f"bftrainer would give trainers {quantity(trained_h)} node-hours a day"
        f" ({share(trained_h, idle_h)} of the idle time){gpus}."
    )


def _gpus_given(findings: HarmFindings) -> Iterator[str]:
    with_gpus = [kind for kind in findings.node_types if kind.idle_gpu_hours]
    without_gpus = [kind for kind in findings.node_types if not kind.idle_gpu_hours]
    lent_h = sum(kind.held_gpu_hours for kind in with_gpus)
    trained_h = sum(kind.trained_gpu_hours for kind in with_gpus)
    idle_h = sum(kind.idle_gpu_hours for kind in with_gpus)
    yield (
        f"bftrainer would lend {quantity(lent_h)} GPU-hours a day"
        f" ({share(lent_h, idle_h)} of the idle GPU time); trainers would train in"
        f" {quantity(trained_h)} of them."
    )
    if without_gpus:
        node_h = sum(kind.trained_node_hours for kind in without_gpus)
        idle_node_h = sum(kind.idle_node_hours for kind in without_gpus)
        yield (
            f"On nodes without GPUs it would give trainers {quantity(node_h)} node-hours a day"
            f" ({share(node_h, idle_node_h)} of the idle time)."
        )


def _worth_sentences(material: Told) -> Iterator[str]:
    value = worth(material)
    if value.energy_kwh is not None:
        cost = ""
        if value.energy_cost is not None:
            cost = f", which cost {quantity(value.energy_cost)}"
        yield f"The trained time draws {quantity(value.energy_kwh)} kWh a day{cost}."
    if value.node_value is not None:
        yield f"At the price of a node-hour it is worth {quantity(value.node_value)} a day."
    if value.gpu_value is not None:
        yield f"At the price of a GPU-hour it is worth {quantity(value.gpu_value)} a day."


def _harm_rows(findings: HarmFindings) -> Iterator[tuple[str, ...]]:
    for harm in (*findings.partitions, findings.everybody):
        logged = "-"
        if harm.logged_wait_s is not None:
            logged = seconds(harm.logged_wait_s)
        yield (
            harm.partition or "all",
            f"{harm.jobs:,}",
            seconds(harm.wait_s),
            logged,
            seconds(harm.added.mean_s),
            interval(harm.added),
            interval(harm.by_chance),
            "yes" if harm.is_beyond_chance else "no",
        )


def _yield_table(material: Told) -> TextTable:
    """Return what trainers would get by type of node; columns without a figure are left out."""
    kinds = material.found.node_types
    columns: dict[str, Callable[[TypeYield], str]] = {  # header -> cell
        "NODES OF": lambda kind: kind.node_type,
        ">NODES": lambda kind: f"{kind.nodes:,}",
        ">IDLE NODE-H": lambda kind: quantity(kind.idle_node_hours),
        ">HELD": lambda kind: quantity(kind.held_node_hours),
        ">TRAINED": lambda kind: quantity(kind.trained_node_hours),
    }
    if material.found.lend != Lend.NODES:
        columns |= {
            ">IDLE GPU-H": lambda kind: quantity(kind.idle_gpu_hours),
            ">GPU-H LENT": lambda kind: quantity(kind.held_gpu_hours),
            ">GPU-H TRAINED": lambda kind: quantity(kind.trained_gpu_hours),
            ">TRAINED OF IDLE": _of_idle,
        }
    else:
        columns[">OF IDLE"] = lambda kind: share(kind.trained_node_hours, kind.idle_node_hours)
    has_gpus = any(kind.trained_gpu_hours or kind.leftover_gpu_hours for kind in kinds)
    if material.found.lend == Lend.NODES and has_gpus:
        columns |= {
            ">GPU-H TRAINED": lambda kind: quantity(kind.trained_gpu_hours),
            ">GPU-H UNUSED BESIDE JOBS": lambda kind: quantity(kind.leftover_gpu_hours),
        }
    if any(kind.energy_kwh is not None for kind in kinds):
        columns[">KWH"] = lambda kind: _or_dash(kind.energy_kwh)
    rows = []
    for kind in kinds:
        row = tuple(cell(kind) for cell in columns.values())
        rows.append(row)
    return TextTable(headers=tuple(columns), rows=tuple(rows))


def _of_idle(kind: TypeYield) -> str:
    """Return the trained share of what is idle: of GPUs, or of nodes that have none."""
    if kind.idle_gpu_hours:
        return share(kind.trained_gpu_hours, kind.idle_gpu_hours)
    return share(kind.trained_node_hours, kind.idle_node_hours)


def _or_dash(value: float | None) -> str:
    return "-" if value is None else quantity(value)


def _settings_section(findings: HarmFindings) -> Iterator[Section]:
    if not findings.settings:
        return
    as_is, *_ = findings.settings
    hours = as_is.trained_node_hours
    rows = []
    for effect in findings.settings:
        difference = "-"
        if effect is not as_is:
            difference = _change(effect.trained_node_hours, hours)
        row = (
            effect.setting or "as they are",
            effect.value or "-",
            quantity(effect.trained_node_hours),
            difference,
            seconds(effect.added.mean_s),
            interval(effect.added),
        )
        rows.append(row)
    text = (
        f"Each setting is played for the same {as_is.hours:.1f} h, in which {as_is.jobs:,} jobs "
        "were submitted. Changes are more certain than the figures themselves."
    )
    yield Section(
        title="Which settings change it: one at a time, on fewer blocks",
        text=(text,),
        tables=(TextTable(headers=SETTING_HEADERS, rows=tuple(rows)),),
    )


def _change(value: float, base: float) -> str:
    return f"{value / base - 1.0:+.1%}" if base else "-"


def _left_out_section(material: Told) -> Iterator[Section]:
    items = tuple(map(left_out_sentence, material.study.replica.left_out))
    if items:
        yield Section(title="Jobs of the log that are not played", items=items)


def left_out_sentence(unplayed: UnplayedJobs) -> str:
    """Return how many jobs are not played, and why."""
    return f"{counted(unplayed.jobs, 'job')}, the first is {unplayed.example}: {unplayed.why}."


def assumptions(material: Told) -> Iterator[str]:
    """Yield what was assumed, a sentence each."""
    study, findings = material.study, material.found
    replica, choices, slurm = study.replica, study.choices, study.replica.slurm
    span_h = replica.span_s / HOUR_S
    yield (
        f"Played: {findings.hours:.1f} h of the log's {span_h:.1f} h beside bftrainer "
        f"({min(1.0, findings.hours / span_h):.0%}), in {counted(len(study.stretches), 'part')} "
        f"spread over it. Each begins with up to {time_span(WARM_S)} without bftrainer, from the "
        "jobs that ran and waited then."
    )
    length = time_span(block_s(slurm))
    yield (
        f"{counted(findings.blocks, 'block')} of {length} are played from one state each: beside "
        "bftrainer, without it, and without it again with backfill in another phase (by chance). "
        "A delay that goes on into the next block counts there only if bftrainer causes it anew."
    )
    scale = "nothing is rescaled"
    if material.closer != 1.0:
        scale = f"submissions are drawn closer together by {material.closer:g} (--scale-load)"
    yield (
        f"The site has {counted(slurm.n_nodes, 'node')} and {len(replica.jobs):,} jobs; {scale}. "
        f"bf_interval is {slurm.bf_interval_s:g} s, bf_max_job_test {slurm.bf_max_job_test}, "
        f"bf_window {slurm.bf_window_s / MINUTE_S:g} min, bf_resolution "
        f"{slurm.bf_resolution_s:g} s."
    )
    yield (
        f"A cycle of backfill takes {material.cycle_s:g} s (--bf-cycle); neither slurm.conf nor "
        "sacct tells it, sdiag does."
    )
    yield (
        "There is always enough to train on each type of nodes, and the hook of bftrainer is "
        "installed. An agent connects 3 s after its pilot starts, a worker begins "
        f"{choices.worker_start_s:g} s later."
    )
    differences = ""
    if policy := _policy(material):
        values = ", ".join(f"{key} {value}" for key, value in sorted(policy.items()))
        differences = f", but {values}"
    yield f"The policy's settings are the defaults{differences}."
    yield from lending_assumptions(replica, choices.lend)
    yield (
        f"A day has {findings.pilots_per_day:,.0f} pilots, of which "
        f"{findings.preempted_per_day:,.0f} are preempted by jobs."
    )
    yield from replica.notes


def not_modelled(material: Told) -> tuple[str, ...]:
    """Return what the simulation leaves out: what occurs in the files, and what always does."""
    replica, leaves_gpus = material.study.replica, material.study.choices.lend is Lend.NODES
    return (*replica.not_modelled, *NOT_MODELLED, *[LEFTOVER] * leaves_gpus)


def _took(material: Told) -> str:
    return (
        f"{time_span(material.took_s)}, with "
        f"{counted(material.processes, 'process', 'processes')} and "
        f"{time_span(material.found.cpu_s)} of processor time."
    )
