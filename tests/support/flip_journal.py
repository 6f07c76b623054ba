"""Flips bits of a journal, and reads it in every way of the daemon and its verbs.

    python -m tests.support.flip_journal every [--part 1/2] [--way verify --way daemon]
    python -m tests.support.flip_journal random [--bits 10000] [--seed 1] [--part 1/2]

``every``: one bit of each byte of a journal with pages of 512 bytes, all kinds of pages among them.
``random``: bits of one of about a megabyte. Only our own codes may come of it, and what passes
``verify`` says what it said before (SECURITY.md).
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import click

from tests.support.flips import SMALL_PAGE_BYTES, WAYS, Finding, Flipper, write_journal

ROUNDS = 60  # of a large journal


def main() -> int:
    """Flip; 1 if something went wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("which", choices=("every", "random"))
    parser.add_argument("--bits", type=int, default=10_000, help="of the large one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", default="1/1", help="of the bits: 2/3 is the second third")
    parser.add_argument("--way", action="append", choices=WAYS, help="else: in all")
    parser.add_argument("--in-turn", action="store_true", help="each bit in one of the ways")
    options = parser.parse_args()
    chance = random.Random(options.seed)  # noqa: S311 - repeatable on purpose
    logging.getLogger("bftrainer").setLevel(logging.ERROR)
    base = Path(tempfile.mkdtemp(prefix="bft-flips-"))
    try:
        if options.which == "every":
            original = write_journal(base / "original", n_rounds=1, page_bytes=SMALL_PAGE_BYTES)
        else:
            original = write_journal(base / "original", n_rounds=ROUNDS)
        flipper = Flipper(original, base / "damaged")
        size = len(flipper.data)
        if options.which == "every":
            bits = [8 * place + chance.randrange(8) for place in range(size)]
        else:
            bits = [chance.randrange(8 * size) for _ in range(options.bits)]
        part, parts = map(int, options.part.split("/"))
        ways = options.way or list(WAYS)
        turns = [[way] for way in ways] if options.in_turn else [ways]
        return _flip_all(flipper, bits[part - 1 :: parts], turns)
    finally:
        shutil.rmtree(base)


def _flip_all(flipper: Flipper, bits: list[int], turns: list[list[str]]) -> int:
    click.echo(f"a journal of {len(flipper.data)} bytes, {len(bits)} bits")
    began_s, findings = time.monotonic(), list[Finding]()
    for number, bit in enumerate(bits, 1):
        for finding in flipper.flipped(bit, turns[number % len(turns)]):
            findings.append(finding)
            click.echo(str(finding))
        if number % 1000 == 0:
            click.echo(f"{number} bits, {time.monotonic() - began_s:.0f} s")
    for outcome, count in sorted(flipper.outcomes.items()):
        click.echo(f"{outcome}: {count}")
    click.echo(f"{len(bits)} bits, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
