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
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from _bench.machine import machine
from _bench.stragglers import Arm, Measured, train, usual_s
from _bench.targets import Target, console, exit_code, print_targets, write_json
from _bench.waiting import BenchError
from rich.table import Table

from bftrainer.errors import BftError

SLOWDOWNS = (4.0, 2.0, 4.0 / 3.0)
SHORTER = {4.0: 0.514, 2.0: 0.341, 4.0 / 3.0: 0.199}  # by the replacement, in the paper
WITHIN = 1.125  # of the training without straggler, as in the paper
STEPS, QUICK_STEPS = 1500, 750  # of 80 ms
KEPT_SHARE = 4  # with a straggler that stays nothing changes: a quarter of the steps tells all


def main(argv: Sequence[str]) -> int:
    """Run everything; return 0 when every target is met."""
    options = _arguments(argv)
    steps = options.steps or (QUICK_STEPS if options.quick else STEPS)
    slowdowns = SLOWDOWNS[1:2] if options.quick else SLOWDOWNS
    started, done = time.monotonic(), list[Measured]()
    try:
        for number in range(options.repeats):
            for arm in [*_arms(slowdowns, steps), _usual(steps)]:
                done.append(train(arm))
                note(f"{number + 1} of {options.repeats}: {_named(done[-1])}")
    except (BenchError, BftError, KeyboardInterrupt) as problem:
        note(f"not complete: {problem or 'interrupted'}")
        return 1
    targets = list(_targets(done, slowdowns))
    _print(done, slowdowns, steps)
    print_targets("Stragglers", targets)
    if options.json:
        results = {
            "processor": machine(),
            "steps": steps,
            "took_s": time.monotonic() - started,
            "trainings": [asdict(m) for m in done],
        }
        write_json(options.json, "stragglers", results, targets)
    return exit_code(targets)


def _usual(steps: int) -> Arm:
    return Arm(slowdown=1.0, is_replaced=True, steps=steps)


def _arms(slowdowns: Sequence[float], steps: int) -> Iterator[Arm]:
    yield _usual(steps)
    for slowdown in slowdowns:
        yield Arm(slowdown=slowdown, is_replaced=True, steps=steps)
        yield Arm(slowdown=slowdown, is_replaced=False, steps=steps // KEPT_SHARE)


def note(text: str) -> None:
    """Say where we are, on standard error."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _named(one: Measured) -> str:
    what = "no straggler" if one.slowdown == 1.0 else f"{one.slowdown:.3g}x slower"
    if one.slowdown > 1.0:
        what += ", replaced" if one.is_replaced else ", kept"
    return f"{what}: {one.steps} steps in {one.completion_s:.1f} s (load {one.load:.1f})"


def _completion_s(done: Sequence[Measured], slowdown: float, *, is_replaced: bool) -> float:
    """Median over the trainings of this kind, all brought to the same number of steps."""
    steps = max(m.steps for m in done)
    return median(
        m.completion_s * steps / m.steps
        for m in done
        if m.slowdown == slowdown and m.is_replaced == is_replaced
    )


def _targets(done: Sequence[Measured], slowdowns: Sequence[float]) -> Iterator[Target]:
    usual = _completion_s(done, 1.0, is_replaced=True)
    for slowdown in slowdowns:
        replaced = _completion_s(done, slowdown, is_replaced=True)
        yield Target(
            name=f"{slowdown:.3g}x slower, replaced: completion beside no straggler",
            measured=replaced / usual,
            limit=WITHIN,
            relation="<=",
            unit="",
            note="MLSys 2020, 7.4",
        )
    changed = [m for m in done if m.slowdown == 1.0 and m.replaced_s is not None]
    yield Target(
        name="nodes replaced without a straggler",
        measured=len(changed),
        limit=0,
        relation="<=",
        unit="nodes",
    )


def _print(done: Sequence[Measured], slowdowns: Sequence[float], steps: int) -> None:
    title = f"{steps} steps, {usual_s(steps):.0f} s without any pause; medians"
    title += f"; kept: from {steps // KEPT_SHARE} steps; shorter by the replacement (paper)"
    table = Table(title=title, title_justify="left")
    for heading in (
        "slower",
        "node",
        "completion",
        "beside none",
        "shorter",
        "found",
        "replaced",
        "pause",
    ):
        table.add_column(heading, justify="left" if heading == "node" else "right")
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
        table.add_row(f"{arm.slowdown:.3g}x", node, f"{took_s:.1f} s", beside, shorter, *times)
    console().print(table)


def _seconds(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{median(known):.2f} s" if known else "-"


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="2x only, half the steps")
    parser.add_argument("--steps", type=int, help=f"of a training; {STEPS}")
    parser.add_argument("--repeats", type=int, default=1, help="of every training")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
