"""A ``HarmStudy`` as a report in sentences and tables, and as a JSON document. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
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


def worth(told: Told) -> Worth:
    """Return what the trained time is worth."""
    kinds, prices = told.found.node_types, told.prices
    drawn = [kind.energy_kwh for kind in kinds if kind.energy_kwh is not None]
    energy_kwh = sum(drawn) if drawn else None
    return Worth(
        energy_kwh=energy_kwh,
        energy_cost=_product(energy_kwh, prices.kwh),
        node_value=_product(sum(k.trained_node_hours for k in kinds), prices.node_hour),
        gpu_value=_product(sum(k.trained_gpu_hours for k in kinds), prices.gpu_hour),
    )


def _product(amount: float | None, price: float | None) -> float | None:
    return None if amount is None or price is None else amount * price


def as_document(told: Told) -> dict[str, Any]:
    """Return the document."""
    found, replica = told.found, told.study.replica
    return {
        "schema": SCHEMA,
        "answers": list(answers(told)),
        "log": told.source,
        **dataclasses.asdict(found),
        "worth": dataclasses.asdict(worth(told)),
        "log_hours": replica.span_s / HOUR_S,
        "jobs_in_log": len(replica.jobs),
        "left_out": [dataclasses.asdict(some) for some in replica.left_out],
        "slurm": _scheduling(told),
        "policy": _policy(told),
        "assumptions": list(assumptions(told)),
        "not_modelled": list(not_modelled(told)),
        "notes": list(replica.notes),
        "warnings": list(told.warnings),
        "seed": told.study.choices.seed,
        "took_s": told.took_s,
    }


def _policy(told: Told) -> dict[str, Any]:
    """Return the keys of the policy that have not their defaults."""
    lend, values = told.study.choices.lend, dict(told.study.choices.policy_values)
    return values if lend is Lend.NODES else {**values, "lend": str(lend)}


def _scheduling(told: Told) -> dict[str, Any]:
    """Return the settings of Slurm's schedulers."""
    slurm = told.study.replica.slurm
    names = [field.name for field in dataclasses.fields(slurm)]
    without = {"capacities", "partitions", "cycles_s", "first_cycle_s", "tick_phase_s"}
    return {name: getattr(slurm, name) for name in names if name not in without}


def report_of(told: Told) -> ReportPage:
    """Return the report."""
    found = told.found
    return ReportPage(
        title=f"What jobs would notice: {told.source}",
        answers=tuple(answers(told)),
        more=tuple(_worth_sentences(told)),
        warnings=told.warnings,
        sections=(
            Section(
                title="What jobs notice: seconds per job, with 95% intervals",
                tables=(TextTable(headers=HARM_HEADERS, rows=tuple(_harm_rows(found))),),
                items=(LOGGED,),
            ),
            Section(title="What trainers would get, a day", tables=(_yield_table(told),)),
            *proposal_sections(found.proposal),
            *_settings_section(found),
            *_left_out_section(told),
            Section(title="Assumptions", items=tuple(assumptions(told))),
            Section(title="Not modelled", items=tuple(not_modelled(told))),
            Section(title="How long it took", text=(_took(told),)),
        ),
    )


def answers(told: Told) -> Iterator[str]:
    """Yield the answer in sentences: what is given, and what each partition's jobs notice."""
    found = told.found
    yield from _gpus_given(found) if found.lend != Lend.NODES else _nodes_given(found)
    yield from (noticed(harm) for harm in found.partitions)
    if found.lend == Lend.NODES:
        yield from proposal_sentences(told.study.replica, found.proposal)


def _nodes_given(found: HarmFindings) -> Iterator[str]:
    trained_h = sum(kind.trained_node_hours for kind in found.node_types)
    idle_h = sum(kind.idle_node_hours for kind in found.node_types)
    gpu_h = sum(kind.trained_gpu_hours for kind in found.node_types)
    gpus = f", {quantity(gpu_h)} GPU-hours" if gpu_h else ""
    yield (
        f"bftrainer would give trainers {quantity(trained_h)} node-hours a day"
        f" ({share(trained_h, idle_h)} of the idle time){gpus}."
    )


def _gpus_given(found: HarmFindings) -> Iterator[str]:
    with_gpus = [kind for kind in found.node_types if kind.idle_gpu_hours]
    others = [kind for kind in found.node_types if not kind.idle_gpu_hours]
    lent_h = sum(kind.held_gpu_hours for kind in with_gpus)
    trained_h = sum(kind.trained_gpu_hours for kind in with_gpus)
    idle_h = sum(kind.idle_gpu_hours for kind in with_gpus)
    yield (
        f"bftrainer would lend {quantity(lent_h)} GPU-hours a day"
        f" ({share(lent_h, idle_h)} of the idle GPU time); trainers would train in"
        f" {quantity(trained_h)} of them."
    )
    if others:
        node_h = sum(kind.trained_node_hours for kind in others)
        idle_node_h = sum(kind.idle_node_hours for kind in others)
        yield (
            f"On nodes without GPUs it would give trainers {quantity(node_h)} node-hours a day"
            f" ({share(node_h, idle_node_h)} of the idle time)."
        )


def _worth_sentences(told: Told) -> Iterator[str]:
    value = worth(told)
    if value.energy_kwh is not None:
        cost = ""
        if value.energy_cost is not None:
            cost = f", which cost {quantity(value.energy_cost)}"
        yield f"The trained time draws {quantity(value.energy_kwh)} kWh a day{cost}."
    if value.node_value is not None:
        yield f"At the price of a node-hour it is worth {quantity(value.node_value)} a day."
    if value.gpu_value is not None:
        yield f"At the price of a GPU-hour it is worth {quantity(value.gpu_value)} a day."


HARM_HEADERS = (
    *("PARTITION", ">JOBS", ">MEAN WAIT", ">IN THE LOG", ">ADDED", ">95% OF IT"),
    *(">BY CHANCE, 95%", "BEYOND CHANCE"),
)
LOGGED = (
    "Where the mean wait of the simulated site differs much from that of the log, something that "
    "is not modelled held the jobs back, or let them pass."
)


def _harm_rows(found: HarmFindings) -> Iterator[tuple[str, ...]]:
    for harm in (*found.partitions, found.everybody):
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


def _yield_table(told: Told) -> TextTable:
    """Return what trainers would get by type of node; columns without a figure are left out."""
    kinds = told.found.node_types
    columns: list[tuple[str, Sequence[str]]] = [
        ("NODES OF", [kind.node_type for kind in kinds]),
        (">NODES", [f"{kind.nodes:,}" for kind in kinds]),
        (">IDLE NODE-H", [quantity(kind.idle_node_hours) for kind in kinds]),
        (">HELD", [quantity(kind.held_node_hours) for kind in kinds]),
        (">TRAINED", [quantity(kind.trained_node_hours) for kind in kinds]),
    ]
    if told.found.lend != Lend.NODES:
        columns += [
            (">IDLE GPU-H", [quantity(kind.idle_gpu_hours) for kind in kinds]),
            (">GPU-H LENT", [quantity(kind.held_gpu_hours) for kind in kinds]),
            (">GPU-H TRAINED", [quantity(kind.trained_gpu_hours) for kind in kinds]),
            (">TRAINED OF IDLE", [_of_idle(kind) for kind in kinds]),
        ]
    else:
        nodes = [share(kind.trained_node_hours, kind.idle_node_hours) for kind in kinds]
        columns.append((">OF IDLE", nodes))
    has_gpus = any(kind.trained_gpu_hours or kind.leftover_gpu_hours for kind in kinds)
    if told.found.lend == Lend.NODES and has_gpus:
        columns += [
            (">GPU-H TRAINED", [quantity(kind.trained_gpu_hours) for kind in kinds]),
            (">GPU-H UNUSED BESIDE JOBS", [quantity(kind.leftover_gpu_hours) for kind in kinds]),
        ]
    if any(kind.energy_kwh is not None for kind in kinds):
        columns.append((">KWH", [_or_dash(kind.energy_kwh) for kind in kinds]))
    headers, cells = zip(*columns, strict=True)
    return TextTable(headers=headers, rows=tuple(zip(*cells, strict=True)))


def _of_idle(kind: TypeYield) -> str:
    """Return the trained share of what is idle: of GPUs, or of nodes that have none."""
    if kind.idle_gpu_hours:
        return share(kind.trained_gpu_hours, kind.idle_gpu_hours)
    return share(kind.trained_node_hours, kind.idle_node_hours)


def _or_dash(value: float | None) -> str:
    return "-" if value is None else quantity(value)


SETTING_HEADERS = ("SETTING", ">VALUE", ">TRAINED NODE-H A DAY", ">CHANGE", ">ADDED", ">95% OF IT")


def _settings_section(found: HarmFindings) -> Iterator[Section]:
    if not found.settings:
        return
    as_is, *_ = found.settings
    hours = as_is.trained_node_hours
    rows = [
        (
            effect.setting or "as they are",
            effect.value or "-",
            quantity(effect.trained_node_hours),
            "-" if effect is as_is else _change(effect.trained_node_hours, hours),
            seconds(effect.added.mean_s),
            interval(effect.added),
        )
        for effect in found.settings
    ]
    text = (
        f"Each setting is played for the same {as_is.hours:.1f} h, in which {as_is.jobs:,} jobs "
        "were submitted. Changes are more certain than the figures themselves."
    )
    yield Section(
        title="Which settings change it: one at a time, on fewer blocks",
        text=(text,),
        tables=(TextTable(headers=SETTING_HEADERS, rows=tuple(rows)),),
    )


def _change(value: float, of: float) -> str:
    return f"{value / of - 1.0:+.1%}" if of else "-"


def _left_out_section(told: Told) -> Iterator[Section]:
    items = tuple(left_out_sentence(some) for some in told.study.replica.left_out)
    if items:
        yield Section(title="Jobs of the log that are not played", items=items)


def left_out_sentence(some: UnplayedJobs) -> str:
    """Return how many jobs are not played, and why."""
    return f"{counted(some.jobs, 'job')}, the first is {some.example}: {some.why}."


def assumptions(told: Told) -> Iterator[str]:
    """Yield what was assumed, a sentence each."""
    study, found = told.study, told.found
    replica, choices, slurm = study.replica, study.choices, study.replica.slurm
    span_h = replica.span_s / HOUR_S
    yield (
        f"Played: {found.hours:.1f} h of the log's {span_h:.1f} h beside bftrainer "
        f"({min(1.0, found.hours / span_h):.0%}), in {counted(len(study.stretches), 'part')} spread"
        f" over it. Each begins with up to {time_span(WARM_S)} without bftrainer, from the jobs "
        "that ran and waited then."
    )
    length = time_span(block_s(slurm))
    yield (
        f"{counted(found.blocks, 'block')} of {length} are played from one state each: beside "
        "bftrainer, without it, and without it again with backfill in another phase (by chance). "
        "A delay that goes on into the next block counts there only if bftrainer causes it anew."
    )
    scale = "nothing is rescaled"
    if told.closer != 1.0:
        scale = f"submissions are drawn closer together by {told.closer:g} (--scale-load)"
    yield (
        f"The site has {counted(slurm.n_nodes, 'node')} and {len(replica.jobs):,} jobs; {scale}. "
        f"bf_interval is {slurm.bf_interval_s:g} s, bf_max_job_test {slurm.bf_max_job_test}, "
        f"bf_window {slurm.bf_window_s / MINUTE_S:g} min, bf_resolution "
        f"{slurm.bf_resolution_s:g} s."
    )
    yield (
        f"A cycle of backfill takes {told.cycle_s:g} s (--bf-cycle); neither slurm.conf nor sacct "
        "tells it, sdiag does."
    )
    yield (
        "There is always enough to train on each type of nodes, and the hook of bftrainer is "
        "installed. An agent connects 3 s after its pilot starts, a worker begins "
        f"{choices.worker_start_s:g} s later."
    )
    values = ", ".join(f"{key} {value}" for key, value in sorted(_policy(told).items()))
    yield f"The policy's settings are the defaults{f', but {values}' if values else ''}."
    yield from lending_assumptions(replica, choices.lend)
    yield (
        f"A day has {found.pilots_per_day:,.0f} pilots, of which {found.preempted_per_day:,.0f} "
        "are preempted by jobs."
    )
    yield from replica.notes


def not_modelled(told: Told) -> tuple[str, ...]:
    """Return what the simulation leaves out: what occurs in the files, and what always does."""
    replica, leaves_gpus = told.study.replica, told.study.choices.lend is Lend.NODES
    return (*replica.not_modelled, *NOT_MODELLED, *[LEFTOVER] * leaves_gpus)


def _took(told: Told) -> str:
    return (
        f"{time_span(told.took_s)}, with {counted(told.processes, 'process', 'processes')} and "
        f"{time_span(told.found.cpu_s)} of processor time."
    )
