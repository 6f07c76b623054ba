#!/usr/bin/env python3
"""Is the default policy behind a simpler one anywhere? All shipped policies, paired, by regime.

A regime (``_bench/regimes.py``) is a small pool, a curve and physical costs. Each seed draws a
pool; every policy plays the same pool with the same trainers, all of them admitted from the start.
The default is ``milp`` for scaling efficiency, as a policy file has it. Compared are the reference
node-hours of work done (``bftrainer.lab.simulator.metrics``): a rival's over the default's minus 1,
pair by pair, with Student's 95% interval over seeds. The target is the mean of the best rival, who
is chosen after the fact: with few seeds some of it is chance. ``--t-fwd joins`` gives each pool the
mean time between its joins as T_fwd (docs/design/estimators.md). The default utility of
``utility-exact`` parks trainers that need more than a day. Prints targets with ``met`` or
``missed``; exits 1 when one is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from _bench import regimes
from _bench.benchmark import Benchmark, Measured, note
from _bench.choosing import refuse_unknown, refuse_unmatched
from _bench.regimes import Regime

from bftrainer.batch.traces.fragments import Fragments
from bftrainer.decide.policies.base import policy_names
from bftrainer.lab.compare import Interval, interval
from bftrainer.lab.parallel import play_each
from bftrainer.lab.simulator.session import Choices, play
from milp.problem import Objective

DEFAULT: Final = "milp"
BEHIND_AT_MOST: Final = 0.015
USUAL_T_FWD_S: Final = 120.0
LEAST_T_FWD_S: Final = 1.0  # of a policy file
JOINS: Final = "joins"
SEEDS, QUICK_SEEDS = 8, 3
QUICK_SHARE: Final = 0.5  # of the hours


@dataclass(frozen=True, slots=True)
class Task:
    """One replay; hashed and pickled."""

    regime: str
    seed: int
    policy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The figures of one replay."""

    reference_node_h: float
    samples: float
    completed: int
    makespan_s: float | None
    utilization: float
    t_fwd_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A rival in a regime, against the default."""

    regime: str
    policy: str
    work: Interval  # work over the default's minus 1
    samples: Interval  # the same of samples


def measure(arguments: argparse.Namespace, measured: Measured) -> None:
    """Play all regimes."""
    refuse_unmatched(arguments.regime or (), [regime.name for regime in _regimes()])
    refuse_unknown(arguments.policies or (), sorted(policy_names()))
    chosen = [regime for regime in _regimes() if _is_chosen(regime, arguments.regime)]
    names = arguments.policies or sorted(policy_names())
    rivals = [name for name in names if name != DEFAULT]
    n_seeds = arguments.seeds or (QUICK_SEEDS if arguments.quick else SEEDS)
    share, seeds = (QUICK_SHARE if arguments.quick else 1.0), range(1, n_seeds + 1)
    rows: list[Row] = []
    for regime in chosen:
        tasks = [Task(regime.name, s, policy) for s in seeds for policy in (DEFAULT, *rivals)]
        played = play_each(
            partial(_played, share, arguments.t_fwd), tasks, processes=arguments.processes
        )
        own = list(rows_of(regime.name, rivals, seeds, played))
        rows += own
        best = max(own, key=lambda row: row.work.mean)
        note(f"{regime.name}: {best.policy} {_percent(best.work)}")
        measured.at_most(
            regime.name,
            round(100.0 * best.work.mean, 3),
            100.0 * BEHIND_AT_MOST,
            "% behind",
            f"{best.policy} {_percent(best.work)} over {n_seeds} seeds",
        )
        measured.results.setdefault("plays", []).extend(
            asdict(task) | asdict(played[task]) for task in tasks
        )
    if skipped := regimes.why_no_spot():
        note(f"spot traces are skipped: {skipped}")
        measured.results["skipped"] = {"spot": skipped}
    measured.results["rows"] = [asdict(row) for row in rows]
    _tell(measured, rows, [regime.name for regime in chosen], rivals)


def _regimes() -> Sequence[Regime]:
    return (*regimes.synthetic(), *regimes.spot())


def _is_chosen(regime: Regime, words: Sequence[str] | None) -> bool:
    return not words or any(word in regime.name for word in words)


def _played(share: float, t_fwd: str, task: Task) -> Played:
    regime = next(regime for regime in _regimes() if regime.name == task.regime)
    pool, trainers = regime.pool(task.seed, share), regime.trainers(task.seed)
    choices = Choices(
        policy=task.policy,
        objective=Objective.SCALING_EFFICIENCY,
        t_fwd_s=forward_s(pool, t_fwd),
        p_jmax=len(trainers),
        costs=regime.costs,
        seed=task.seed,
    )
    _, metrics = play(pool, trainers, choices)
    return Played(
        reference_node_h=metrics.reference_node_h,
        samples=metrics.a_e,
        completed=metrics.completed,
        makespan_s=metrics.makespan_s,
        utilization=metrics.utilization,
        t_fwd_s=choices.t_fwd_s,
    )


def forward_s(pool: Fragments, text: str) -> float:
    """Return T_fwd in seconds: what the option says, or what fits the pool."""
    if text != JOINS:
        return float(text)
    return max(LEAST_T_FWD_S, regimes.mean_join_gap_s(pool))


def rows_of(
    regime: str, rivals: Sequence[str], seeds: Sequence[int], played: Mapping[Task, Played]
) -> Iterator[Row]:
    """Yield each rival's row, in pairs: seed by seed against the default."""

    def pairs(rival: str, figure: str) -> Interval:
        ratios = [
            getattr(played[Task(regime, seed, rival)], figure)
            / getattr(played[Task(regime, seed, DEFAULT)], figure)
            - 1.0
            for seed in seeds
        ]
        of_all = interval(ratios)
        assert of_all is not None  # noqa: S101 - no ratio is missing
        return of_all

    for rival in rivals:
        yield Row(
            regime=regime,
            policy=rival,
            work=pairs(rival, "reference_node_h"),
            samples=pairs(rival, "samples"),
        )


def _percent(share: Interval) -> str:
    return f"{share.shown(1, scale=100.0, sign='+')}%"


def _tell(
    measured: Measured, rows: Sequence[Row], names: Sequence[str], rivals: Sequence[str]
) -> None:
    by_pair: dict[tuple[str, str], Row] = {(row.regime, row.policy): row for row in rows}
    title = f"Work against {DEFAULT}, %"
    cells: list[list[Any]] = [
        [rival, *(_percent(by_pair[name, rival].work) for name in names)] for rival in rivals
    ]
    measured.table(title, ["policy", *names], cells)


BENCHMARK = Benchmark(
    name="regimes",
    title="How far the default is behind the best rival",
    about=__doc__,
    quick=f"{QUICK_SEEDS} seeds instead of {SEEDS}, half the hours",
    measure=measure,
    options={
        "--regime": {"nargs": "+", "metavar": "WORD", "help": "only those with this in their name"},
        "--policies": {"nargs": "+", "metavar": "NAME", "help": "rivals (default: all shipped)"},
        "--seeds": {"type": int, "help": "how many pools of each regime"},
        "--t-fwd": {"default": f"{USUAL_T_FWD_S:g}", "help": f"seconds, or {JOINS}"},
        "--processes": {"type": int, "default": 2, "help": "replays at a time (default: 2)"},
    },
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
