#!/usr/bin/env python3
"""What a slow node costs a training, and what is left of that when it is replaced.

The experiment of Or, Zhang and Freedman (MLSys 2020, section 7.4): completion time with no
straggler, with one of four nodes 4, 2 or 1.33 times slower, and with that node replaced.
Real daemon, agents and workers on one machine; workers wait instead of computing. Prints
targets with ``met`` or ``missed``; exits 1 when one is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from statistics import median

from _bench.benchmark import Benchmark, Measured, note
from _bench.stragglers import Arm, Training, train, usual_s

SLOWDOWNS = (4.0, 2.0, 4.0 / 3.0)
SHORTER = {4.0: 0.514, 2.0: 0.341, 4.0 / 3.0: 0.199}  # by the replacement, in the paper
WITHIN = 1.125  # of the training without straggler, as in the paper
STEPS, QUICK_STEPS = 1500, 750  # of 80 ms
KEPT_SHARE = 4  # with a straggler that stays nothing changes: a quarter of the steps tells all


def measure(options: argparse.Namespace, measured: Measured) -> None:
    """Train with and without stragglers."""
    steps = options.steps or (QUICK_STEPS if options.quick else STEPS)
    slowdowns = SLOWDOWNS[1:2] if options.quick else SLOWDOWNS
    done: list[Training] = []
    for number in range(options.repeats):
        for arm in [*_arms(slowdowns, steps), _usual(steps)]:
            done.append(train(arm))
            note(f"{number + 1} of {options.repeats}: {_named(done[-1])}")
    measured.results |= {"steps": steps, "trainings": [asdict(m) for m in done]}
    _judge(done, slowdowns, measured)
    _tabulate(done, slowdowns, steps, measured)


def _usual(steps: int) -> Arm:
    return Arm(slowdown=1.0, is_replaced=True, steps=steps)


def _arms(slowdowns: Sequence[float], steps: int) -> Iterator[Arm]:
    yield _usual(steps)
    for slowdown in slowdowns:
        yield Arm(slowdown=slowdown, is_replaced=True, steps=steps)
        yield Arm(slowdown=slowdown, is_replaced=False, steps=steps // KEPT_SHARE)


def _named(one: Training) -> str:
    what = "no straggler" if one.slowdown == 1.0 else f"{one.slowdown:.3g}x slower"
    if one.slowdown > 1.0:
        what += ", replaced" if one.is_replaced else ", kept"
    return f"{what}: {one.steps} steps in {one.completion_s:.1f} s (load {one.load:.1f})"


def _completion_s(done: Sequence[Training], slowdown: float, *, is_replaced: bool) -> float:
    """Median over the trainings of this kind, all brought to the same number of steps."""
    steps = max(m.steps for m in done)
    return median(
        m.completion_s * steps / m.steps
        for m in done
        if m.slowdown == slowdown and m.is_replaced == is_replaced
    )


def _judge(done: Sequence[Training], slowdowns: Sequence[float], measured: Measured) -> None:
    usual = _completion_s(done, 1.0, is_replaced=True)
    for slowdown in slowdowns:
        replaced = _completion_s(done, slowdown, is_replaced=True)
        what = f"{slowdown:.3g}x slower, replaced: completion beside no straggler"
        measured.at_most(what, replaced / usual, WITHIN, "", "MLSys 2020, 7.4")
    changed = [m for m in done if m.slowdown == 1.0 and m.replaced_s is not None]
    measured.at_most("nodes replaced without a straggler", len(changed), 0, "nodes")


def _tabulate(
    done: Sequence[Training], slowdowns: Sequence[float], steps: int, measured: Measured
) -> None:
    title = f"{steps} steps, {usual_s(steps):.0f} s without any pause; medians"
    title += f"; kept: from {steps // KEPT_SHARE} steps; shorter by the replacement (paper)"
    headings = ("slower", "node", "completion", "beside none", "shorter", "found", "replaced")
    rows = []
    usual = _completion_s(done, 1.0, is_replaced=True)
    for arm in _arms(slowdowns, steps):
        some = [m for m in done if (m.slowdown, m.is_replaced) == (arm.slowdown, arm.is_replaced)]
        took_s = _completion_s(done, arm.slowdown, is_replaced=arm.is_replaced)
        node = "-" if arm.slowdown == 1.0 else "replaced" if arm.is_replaced else "kept"
        times = (
            _seconds([m.found_s for m in some]),
            _seconds([m.replaced_s for m in some]),
            _seconds([m.pause_s for m in some]),
        )
        beside, shorter = f"{took_s / usual:.3f}", "-"
        if node == "replaced":
            kept_s = _completion_s(done, arm.slowdown, is_replaced=False)
            shorter = f"{1.0 - took_s / kept_s:.1%} ({SHORTER[arm.slowdown]:.1%})"
        rows.append((f"{arm.slowdown:.3g}x", node, f"{took_s:.1f} s", beside, shorter, *times))
    measured.table(title, (*headings, "pause"), rows, left=2)


def _seconds(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{median(known):.2f} s" if known else "-"


BENCHMARK = Benchmark(
    name="stragglers",
    title="Stragglers",
    about=__doc__,
    quick="2x only, half the steps",
    options={
        "--steps": {"type": int, "help": f"of a training; {STEPS}"},
        "--repeats": {"type": int, "default": 1, "help": "of every training"},
    },
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
