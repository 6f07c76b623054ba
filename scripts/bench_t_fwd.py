#!/usr/bin/env python3
"""What a forward-looking time that follows the pool is worth, beside fixed ones.

Replays the same traces with fixed T_fwd, with rules that learn from the lengths of
fragments, and with oracles that know the future; prints U with 95% intervals over node
subsets and weeks. The rules are in ``_bench.forward_time``, what was found in
``docs/design/estimators.md``. Prints targets with ``met`` or ``missed``; exits 1 when one is
missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, Final

from _bench import forward_time as rules
from _bench.targets import Target, console, exit_code, print_targets, write_json
from _bench.timing import note
from rich.table import Table

from bftrainer.simulate.costs import PhysicalCosts, constant
from bftrainer.simulate.metrics import measure
from bftrainer.simulate.session import Choices, play
from bftrainer.simulate.traces.fragments import Fragments
from bftrainer.simulate.traces.generator import GeneratorParameters, generate
from bftrainer.simulate.traces.read import read_trace
from bftrainer.simulate.workloads import by_name
from bftrainer.simulate.workloads.submission import Submission

DATA_FILE = "summit-2021-02-10_17-idle-fragments.npz"
DATA_START_S = 1612988475.0  # the paper's week
N_REAL, SEEDS = 4, (11, 12, 13, 14)
FIXED_S: Final = (10.0, 60.0, 120.0, 300.0, 1200.0)
BASE = "T 120"  # what the others are compared with
KEPT = "next join"  # _bench.joins
CLAIM_S, WARM_UP_S = 5.0, 10.0
# Two-sided 95% points of Student's t, by degrees of freedom.
T_95: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)

RULES: Final[dict[str, rules.Rule]] = {
    "life": rules.life,
    "first loss": rules.first_loss,
    "next join": rules.next_join,
    "rhythm": rules.rhythm,
    "life, both ends": rules.both_ends(rules.life),
    "120, both ends": rules.both_ends(rules.fixed(120.0)),
    "120, ends": rules.with_ends(rules.fixed(120.0)),
    "120, oracle ends": rules.oracle_ends(rules.fixed(120.0)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """What is varied beside the rule."""

    pause_s: float | None = None  # of the physical costs; None: the paper's books
    dearer: float = 1.0  # rescales of the paper's books cost so many times as much
    pace: float = 1.0  # the trace runs so many times as fast
    is_endless: bool = False  # trials never end: what completions add by chance is left out
    n_nodes: int = 1024
    p_jmax: int = 10


REGIMES: Final[dict[str, Regime]] = {
    "paper": Regime(),
    "paper, endless": Regime(is_endless=True),
    "5 times dearer, endless": Regime(is_endless=True, dearer=5.0),
    "5 times cheaper, endless": Regime(is_endless=True, dearer=0.2),
    "20 times dearer, endless": Regime(is_endless=True, dearer=20.0),
    "5 times faster, endless": Regime(is_endless=True, pace=5.0),
    "5 times slower, endless": Regime(is_endless=True, pace=0.2),
    "128 nodes, endless": Regime(is_endless=True, n_nodes=128, p_jmax=3),
    "pause 0.3 s, endless": Regime(is_endless=True, pause_s=0.3),
    "pause 1 s, endless": Regime(is_endless=True, pause_s=1.0),
}

QUICK_REGIMES = ("paper, endless", "5 times faster, endless", "pause 0.3 s, endless")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One trace to replay."""

    name: str
    kind: str  # "summit" or "generated"
    trace: Fragments


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One replay."""

    regime: str
    unit: str
    kind: str
    hours: float
    arm: str
    utilization: float
    cost_preemption: float
    cost_rescale: float
    cost_unused: float
    rescales: int
    preemptions: int
    events: int
    t_fwd_s: float  # median over the decisions
    decision_ms: float
    took_s: float


def main() -> int:
    """Replay, print, judge."""
    options = _options()
    found: list[Result] = []
    if options.merge:
        found += [Result(**row) for path in options.merge for row in _rows(path)]
    else:
        for result in _replay_all(options):
            found.append(result)
            if options.json:  # hours may have gone into them
                _write(options.json, found, [])
    if not found:
        sys.exit("Nothing to replay: Summit's traces need BFTRAINER_DATA.")
    targets: list[Target] = []
    for regime in dict.fromkeys(r.regime for r in found):
        for kind in ("summit", "generated", ""):
            chosen = [r for r in found if r.regime == regime and r.kind.startswith(kind)]
            if len({r.unit for r in chosen}) > 1:
                _print(f"{regime}; {kind or 'all'}", chosen)
        targets += _targets(regime, [r for r in found if r.regime == regime])
    if targets:
        print_targets("Targets", targets)
    if options.json:
        _write(options.json, found, targets)
    return exit_code(targets)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true",
                        help="what is kept and fixed T_fwd, three regimes, a day of two traces of "
                        "each kind")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write results to FILE")
    parser.add_argument("--hours", type=float, help="length of each replay (168; --quick: 24)")
    parser.add_argument("--regimes", nargs="+", choices=list(REGIMES))
    parser.add_argument("--arms", nargs="+", help="only these (and T 120)")
    parser.add_argument("--units", nargs="+", help="only these, such as summit-0")
    parser.add_argument("--merge", nargs="+", type=Path, metavar="FILE",
                        help="replay nothing, judge what --json wrote")  # fmt: skip
    return parser.parse_args()


def _write(path: Path, found: Sequence[Result], targets: list[Target]) -> None:
    write_json(path, "t_fwd", {"rows": [asdict(r) for r in found]}, targets)


def _rows(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows


# ---- replays ---------------------------------------------------------------------------------


def _replay_all(options: argparse.Namespace) -> Iterator[Result]:
    hours = options.hours or (24.0 if options.quick else 168.0)
    fixed = [_fixed_name(t) for t in FIXED_S]
    chosen = options.arms or ([*fixed, KEPT] if options.quick else [*fixed, *RULES])
    arms = [a for a in (*fixed, *RULES) if a in chosen or a == BASE]
    for name in options.regimes or (QUICK_REGIMES if options.quick else REGIMES):
        regime = REGIMES[name]
        for unit in _units(2 if options.quick else N_REAL, hours, regime.n_nodes, options.units):
            for arm in arms:
                result = _replay(unit, name, arm)
                note(f"{name}, {unit.name}, {arm}: U {result.utilization:.4f}")
                yield result


def _units(count: int, hours: float, n_nodes: int, names: Sequence[str] | None) -> Iterator[Unit]:
    """The first traces of each kind; without the data generated ones only."""
    directory = os.environ.get("BFTRAINER_DATA")
    for k in range(count if directory else 0):
        if names is None or f"summit-{k}" in names:
            first = 1024 * k
            trace = read_trace(Path(str(directory)) / DATA_FILE).restrict(
                slice(first, first + n_nodes), start_s=DATA_START_S, hours=hours
            )
            yield Unit(name=f"summit-{k}", kind="summit", trace=trace)
    for seed in SEEDS[:count]:
        if names is None or f"generated-{seed}" in names:
            trace = generate(GeneratorParameters(n_nodes=n_nodes, hours=hours, seed=seed))
            yield Unit(name=f"generated-{seed}", kind="generated", trace=trace)


def _replay(unit: Unit, regime_name: str, arm: str) -> Result:
    regime = REGIMES[regime_name]
    workload, trace = _workload(regime), _at_pace(unit.trace, regime.pace)
    fixed_s = float(arm.removeprefix("T ")) if arm.startswith("T ") else 120.0
    choices = Choices(
        t_fwd_s=fixed_s,
        p_jmax=regime.p_jmax,
        costs=None if regime.pause_s is None else _costs(regime.pause_s),
    )
    began_s = time.process_time()
    if arm in RULES:
        outcome, policy = rules.replay_with(RULES[arm], trace, workload, choices)
        metrics, t_fwd_s = measure(outcome), median(policy.t_fwd_s)
    else:
        _, metrics = play(trace, workload, choices)
        t_fwd_s = fixed_s
    return Result(
        regime=regime_name,
        unit=unit.name,
        kind=unit.kind,
        hours=unit.trace.duration_s / 3600.0,
        arm=arm,
        utilization=metrics.utilization,
        cost_preemption=metrics.cost_preemption,
        cost_rescale=metrics.cost_rescale,
        cost_unused=metrics.cost_unused,
        rescales=metrics.rescales,
        preemptions=metrics.preemptions,
        events=metrics.events,
        t_fwd_s=t_fwd_s,
        decision_ms=metrics.decision_ms_mean,
        took_s=time.process_time() - began_s,
    )


def _at_pace(trace: Fragments, pace: float) -> Fragments:
    """The same trace on a machine on which everything goes faster, or slower."""
    begin_s, end_s = trace.span_s
    return replace(
        trace,
        start_s=begin_s + (trace.start_s - begin_s) / pace,
        end_s=begin_s + (trace.end_s - begin_s) / pace,
        observed_s=begin_s + (trace.observed_s - begin_s) / pace,
        span_s=(begin_s, begin_s + (end_s - begin_s) / pace),
    )


def _workload(regime: Regime) -> list[Submission]:
    """The paper's trials; with physical costs a decision is told what a pause costs."""
    trials = list(by_name("hpo-shufflenet"))
    if regime.is_endless:
        trials = [replace(t, samples=1e15) for t in trials[: regime.p_jmax]]
    return [
        replace(
            t,
            rescale_up_s=regime.dearer * t.rescale_up_s if pause_s is None else pause_s,
            rescale_down_s=regime.dearer * t.rescale_down_s if pause_s is None else pause_s,
        )
        for t in trials
        for pause_s in (regime.pause_s,)
    ]


def _costs(pause_s: float) -> PhysicalCosts:
    return PhysicalCosts(
        claim=constant(CLAIM_S),
        warm_up=constant(WARM_UP_S),
        pause_up=constant(pause_s),
        pause_down=constant(pause_s),
        pause_loss=constant(pause_s),
    )


def _fixed_name(t_fwd_s: float) -> str:
    return f"T {t_fwd_s:g}"


# ---- judging ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean and its 95% interval."""

    mean: float
    half_width: float

    def in_points(self) -> str:
        """As percentage points."""
        return f"{100 * self.mean:+.2f} ± {100 * self.half_width:.2f}"


def interval(values: Sequence[float]) -> Interval:
    """Student's interval of the mean of a few independent values."""
    n = len(values)
    if n < 2:
        return Interval(mean=values[0], half_width=float("inf"))
    point = T_95[n - 2] if n - 2 < len(T_95) else 1.96
    return Interval(mean=mean(values), half_width=point * stdev(values) / n**0.5)


def differences(found: Sequence[Result], arm: str, base: str = BASE) -> list[float]:
    """U of an arm minus U of another one, trace by trace."""
    by_unit = {(r.unit, r.arm): r.utilization for r in found}
    return [
        u - by_unit[unit, base]
        for (unit, a), u in by_unit.items()
        if a == arm and (unit, base) in by_unit
    ]


def _print(title: str, found: Sequence[Result]) -> None:
    table = Table(title=title, title_justify="left")
    headings = ("rule", "traces", "U", f"against {BASE}, points", "preempted", "rescaled", "unused",
                "T_fwd s", "rescales", "ms")  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "rule" else "right")
    for arm in dict.fromkeys(r.arm for r in found):
        rows = [r for r in found if r.arm == arm]
        against = differences(found, arm)
        table.add_row(
            arm,
            str(len(rows)),
            f"{mean(r.utilization for r in rows):.4f}",
            interval(against).in_points() if len(against) > 1 and arm != BASE else "",
            *(
                f"{100 * mean(getattr(r, name) for r in rows):.2f}%"
                for name in ("cost_preemption", "cost_rescale", "cost_unused")
            ),
            f"{mean(r.t_fwd_s for r in rows):.0f}",
            f"{mean(r.rescales for r in rows):.0f}",
            f"{mean(r.decision_ms for r in rows):.2f}",
        )
    console().print(table)


def _targets(regime: str, found: Sequence[Result]) -> list[Target]:
    """What is kept has to be as good as the fixed T_fwd that turns out best afterwards."""
    against = {r.arm: differences(found, KEPT, r.arm) for r in found if r.arm.startswith("T ")}
    if not all(against.values()) or not against:
        return []
    best = min(against, key=lambda arm: mean(against[arm]))
    return [
        Target(
            name=f"{regime}: {KEPT} against {best}",
            measured=100 * mean(against[best]),
            limit=-0.3,
            relation=">=",
            unit="points",
            note=f"the best fixed; ± {100 * interval(against[best]).half_width:.2f}, "
            f"{len(against[best])} traces",
        )
    ]


if __name__ == "__main__":
    sys.exit(main())
