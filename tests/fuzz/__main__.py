"""``python -m tests.fuzz --cases 1000000 [--door NAME]``: fresh cases, shared out evenly."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz.door import Door, Drawn, all_doors, knock


def attack(door: Door, cases: int) -> int:
    """Return how many cases were tried; raises on the first that does harm, made small."""
    tried = 0

    @settings(
        max_examples=cases, deadline=None, database=None,
        phases=(Phase.generate, Phase.shrink), suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(door.drawn())
    def one(drawn: Drawn) -> None:
        nonlocal tried
        tried += 1
        knock(door, drawn)

    one()
    return tried


def main() -> int:
    """Try them; 1 if a door gave way."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000, help="of all doors together")
    parser.add_argument("--door", action="append", help="only this one; may be repeated")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)  # a line for every refusal
    doors = [door for door in all_doors() if not asked.door or door.name in asked.door]
    total, broken = 0, 0
    for door in doors:
        began_s = time.monotonic()
        try:
            tried = attack(door, max(1, asked.cases // len(doors)))
        except Exception as problem:  # noqa: BLE001  # whatever a door let through is the finding
            broken += 1
            print(f"{door.name}: {type(problem).__name__}: {str(problem)[:2000]}", flush=True)
            continue
        total += tried
        print(f"{door.name}: {tried} cases, {time.monotonic() - began_s:.0f} s", flush=True)
    print(f"{total} cases at {len(doors) - broken} doors held, {broken} gave way")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
