"""What ``bench_rescale`` has found: targets, tables, and results for files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Final

from _bench.mishaps import MISHAPS
from _bench.rescaling import KINDS, Pause
from _bench.rival import TIMEOUT_S, RivalPause
from _bench.stats import quantile, quantile_interval, tail
from _bench.targets import Target, at_least, at_most, console, new_table

LIMIT_S: Final = {"1->2": 0.25, "2->4": 0.25, "4->2": 0.05, "rank 0 leaves": 0.05, "SIGKILL": 0.30}
GROWN: Final = ("1->2", "2->4")
TIMES_SHORTER: Final = {k: 3.0 if k == "SIGKILL" else 10.0 for k in KINDS}
STEP_RATIO: Final = 1.01
RESUME_S: Final = 2.0
CHECK_S: Final = 50e-6
NOTICED_S: Final = 0.5  # beyond the lease
LEASE_S: Final = 2.0  # agent_timeout_s of the silent part
RIVALS: Final = ("torchrun", "torchft")


@dataclass(slots=True, kw_only=True)
class Found:
    """Everything measured for one model."""

    pauses: list[Pause] = field(default_factory=list)
    warm_up_s: list[float] = field(default_factory=list)  # of joiners, while others train
    # Kind of mishap (``mishaps``) -> from there to the others' step.
    lost_s: dict[str, list[float]] = field(default_factory=dict)
    resume_s: list[float] = field(default_factory=list)  # parked to its first step
    check_s: float | None = None  # a step's check of its membership
    others: list[RivalPause] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)  # system -> why it was not measured
    steps: dict[int, tuple[float, float, float]] = field(default_factory=dict)  # ratio, low, high
    step_s: dict[int, tuple[float, float]] = field(default_factory=dict)  # elastic, ddp

    def of(self, kind: str) -> list[float]:
        """Return our pauses of one kind."""
        return [p.pause_s for p in self.pauses if p.kind == kind]

    def of_other(self, system: str, kind: str) -> list[RivalPause]:
        """Return another system's pauses of one kind."""
        return [p for p in self.others if (p.system, p.kind) == (system, kind)]


def targets_of(model: str, found: Found, wire_s: float = 0.0) -> list[Target]:
    """Return the targets of one model with what was measured.

    ``wire_s``: what the network alone takes to bring a state to a joiner.
    """
    limits = _own_targets(model, found, wire_s)
    return [*limits, *_ratios(model, found), *_step_targets(model, found)]


def _own_targets(model: str, found: Found, wire_s: float) -> Iterator[Target]:
    parts = [
        (f"pause {kind}", found.of(kind), LIMIT_S[kind] + wire_s * (kind in GROWN))
        for kind in KINDS
    ]
    parts += [
        (f"{MISHAPS[kind].name}, lease {LEASE_S:g} s", values, LEASE_S + NOTICED_S)
        for kind, values in found.lost_s.items()
    ]
    parts.append(("parked to its first step", found.resume_s, RESUME_S))
    for case, values, limit in parts:
        if values:
            name, value = tail(values)
            ends, note = quantile_interval(values, 0.95), f"{name} of {len(values)}"
            yield at_most(f"{model}: {case}", value, limit, note=note, interval=ends)
    if found.check_s is not None:
        yield at_most(
            f"{model}: membership check of a step",
            1e6 * found.check_s,
            1e6 * CHECK_S,
            "us",
            "median",
        )


def _ratios(model: str, found: Found) -> Iterator[Target]:
    for kind in KINDS:
        pauses, rival_pauses = found.of(kind), found.of_other("torchrun", kind)
        if pauses and rival_pauses:
            name, value = tail(pauses)
            yield at_least(
                f"{model}: {kind} shorter than torchrun",
                median(p.pause_s for p in rival_pauses) / max(value, 1e-3),
                TIMES_SHORTER[kind],
                "",
                f"its median of {len(rival_pauses)} / our {name}",
            )


def _step_targets(model: str, found: Found) -> Iterator[Target]:
    for size, (ratio, low, high) in found.steps.items():
        yield at_most(
            f"{model}: step / DDP step, size {size}",
            high,
            STEP_RATIO,
            "",
            f"upper end; ratio {ratio:.4f}, 95% in [{low:.4f}, {high:.4f}]",
            interval=(low, high),
        )


# ---- tables --------------------------------------------------------------------------


def print_found(model: str, found: Found) -> None:
    """Print the pauses, those of others beside them, and the steps between them."""
    if found.pauses and all(found.of(kind) for kind in KINDS):
        _print_table(
            f"{model} model: pauses of the worst survivor, s",
            ("transition", "n", "median", "p95/max", "max", "usual step"),
            [[kind, *_own_cells(found, kind)] for kind in KINDS],
        )
        gaps = [p.gap_s for p in found.pauses if p.kind == "SIGKILL"]
        name, value = tail(gaps)
        print(
            "SIGKILL to the first committed step, nothing subtracted:"
            f" median {median(gaps):.3f} s, {name} {value:.3f} s"
        )
        warm = found.warm_up_s
        print(f"warm-up of a joiner, while the others train: median {median(warm):.2f} s")
    if found.others or found.missing:
        headings, rows = beside(found)
        _print_table(f"{model} model: pauses beside those of others, s", headings, rows)
        for system, why in found.missing.items():
            print(f"{system}: {why}")
    for size, (own_s, ddp_s) in found.step_s.items():
        print(
            f"{model} model, size {size}: median step {1e3 * own_s:.3f} ms,"
            f" DistributedDataParallel {1e3 * ddp_s:.3f} ms"
        )


def beside(found: Found) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of the table of all systems.

    Ours is the tail, theirs the median, with the steps they have to do again.
    """
    headings = ["transition", "bftrainer, p95 or max", *(f"{r}, median" for r in RIVALS)]
    rows = []
    for kind in KINDS:
        rival_cells = [_other_cell(found, rival, kind) for rival in RIVALS]
        rows.append([kind, _own_cell(found, kind), *rival_cells])
    return headings, rows


def _own_cell(found: Found, kind: str) -> str:
    values = found.of(kind)
    if not values:
        return "-"
    _, value = tail(values)
    return f"{value:.3f} of {len(values)}"


def _other_cell(found: Found, system: str, kind: str) -> str:
    rival_pauses = found.of_other(system, kind)
    if not rival_pauses:
        return "-" if system not in found.missing else "not measured"
    if not all(p.has_recovered for p in rival_pauses):
        failed = sum(not p.has_recovered for p in rival_pauses)
        return f"none in {TIMEOUT_S:g} s, {failed} of {len(rival_pauses)}"
    lost_steps = median(p.lost_steps for p in rival_pauses)
    again = f", {lost_steps:g} steps again" if lost_steps else ""
    return f"{median(p.pause_s for p in rival_pauses):.2f} of {len(rival_pauses)}{again}"


def _print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    console().print(new_table(title, headings, rows))


def _own_cells(found: Found, kind: str) -> list[str]:
    mine = [p for p in found.pauses if p.kind == kind]
    values = [p.pause_s for p in mine]
    return [
        str(len(values)),
        f"{median(values):.3f}",
        f"{tail(values)[1]:.3f}",
        f"{max(values):.3f}",
        f"{median(p.step_s for p in mine):.4f}",
    ]


# ---- files -----------------------------------------------------------------------------


def results_of(found: Found) -> dict[str, Any]:
    """Return everything measured for one model, for the JSON file."""
    return {
        "pauses": [asdict(p) for p in found.pauses],
        "warm_up_s": found.warm_up_s,
        "p95_s": {k: quantile(found.of(k), 0.95) for k in KINDS if found.of(k)},
        "lost_s": found.lost_s,
        "resume_s": found.resume_s,
        "check_s": found.check_s,
        "others": [asdict(p) for p in found.others],
        "missing": found.missing,
        "step_ratio": {
            str(size): {"ratio": ratio, "low": low, "high": high}
            for size, (ratio, low, high) in found.steps.items()
        },
        "step_s": {
            str(size): {"elastic": own_s, "ddp": ddp_s}
            for size, (own_s, ddp_s) in found.step_s.items()
        },
    }
