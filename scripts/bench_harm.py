"""Do ordinary jobs start later when idle nodes hold pilots?

On a real 8-node Slurm, ``bf_interval`` 30 s and Slurm's default delays: seconds from
submission to start for ``srun -N1``, ``srun -N4`` and ``sbatch -N1`` with a pilot on
every node, without pilots, and without pilots but with the same processor load beside
Slurm (control). The arms take turns. A job that only backfill can start is reported.
"""

from __future__ import annotations

import argparse
import queue
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from _bench.harm import ARMS, BLOCKED_ARMS, KINDS, Arm, Lane, Sample
from _bench.stats import tail
from _bench.targets import Target, console, exit_code, print_targets, write_json
from _bench.waiting import BenchError
from rich.table import Table

from bftrainer.errors import BftError

PHASES = (0.3, 0.75, 0.1)  # of a backfill interval, one per pair
ADDED_MEDIAN_S = 0.2
ADDED_TAIL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What one run of the benchmark does."""

    samples: int  # per arm and kind
    lanes: int
    pairs: int
    blocked_bf_interval_s: int
    load: float


def main() -> int:
    """Run everything; return 0 when every target is met."""
    arguments = _arguments()
    settings = Settings(
        samples=arguments.samples or (3 if arguments.quick else 60),
        lanes=arguments.lanes,
        pairs=1 if arguments.quick else len(PHASES),
        blocked_bf_interval_s=5 if arguments.quick else 30,
        load=arguments.load,
    )
    try:
        samples, blocked = _measure(settings)
    except (BenchError, BftError) as problem:
        console().print(f"[bold red]{problem}[/]")
        return 1
    targets = _targets(samples)
    _print_samples(samples)
    _print_blocked(blocked, settings)
    print_targets("Added to the control by a pilot on every node", targets)
    if arguments.json:
        results = {
            "settings": asdict(settings),
            "samples": [asdict(sample) for sample in samples],
            "backfill_only": [[asdict(sample) for sample in pair] for pair in blocked],
        }
        write_json(arguments.json, "harm", results, targets)
    return exit_code(targets)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few samples; shows that it works")
    parser.add_argument("--json", type=Path, help="write samples and verdicts here")
    parser.add_argument("--samples", type=int, help="per arm and kind (default 60, quick 3)")
    parser.add_argument("--lanes", type=int, default=4, help="clusters side by side (default 4)")
    parser.add_argument(
        "--load", type=float, default=0.02, help="share of a processor each pilot uses"
    )
    return parser.parse_args()


def _measure(settings: Settings) -> tuple[list[Sample], list[list[Sample]]]:
    """Run all lanes at once: those with turns of the arms, and one per blocked pair."""
    blocks = _blocks(settings.samples)
    total = blocks.qsize()
    samples: list[Sample] = []
    stop = threading.Event()

    def turns(number: int) -> None:
        with Lane(number, bf_interval_s=30, load=settings.load) as lane:
            while not stop.is_set():
                try:
                    block = blocks.get_nowait()
                except queue.Empty:
                    return
                # Appended whole: every arm has the same number of samples of a kind.
                samples.extend([lane.sample(kind, arm) for kind, arm in block])
                print(f"{len(samples) // len(ARMS)} of {total} turns", file=sys.stderr)

    def pair(number: int) -> list[Sample]:
        interval_s = settings.blocked_bf_interval_s
        with Lane(1000 + number, bf_interval_s=interval_s, load=settings.load) as lane:
            return [lane.blocked_sample(arm, PHASES[number]) for arm in BLOCKED_ARMS]

    with ThreadPoolExecutor(settings.lanes + settings.pairs) as pool:
        pairs = [pool.submit(pair, number) for number in range(settings.pairs)]
        lanes = [pool.submit(turns, number) for number in range(settings.lanes)]
        try:
            for lane in lanes:
                lane.result()
            return samples, [blocked.result() for blocked in pairs]
        finally:
            stop.set()


def _blocks(samples: int) -> queue.SimpleQueue[list[tuple[str, Arm]]]:
    """Turns in random order; each lets every arm do the same once, in random order."""
    chance = random.Random(1)  # noqa: S311 - an order, not a secret
    kinds = [kind for kind in KINDS for _ in range(samples)]
    chance.shuffle(kinds)
    blocks: queue.SimpleQueue[list[tuple[str, Arm]]] = queue.SimpleQueue()
    for kind in kinds:
        blocks.put([(kind, arm) for arm in chance.sample(ARMS, len(ARMS))])
    return blocks


def _waits(samples: list[Sample], kind: str, arm: Arm) -> list[float]:
    return [s.wait_s for s in samples if s.kind == kind and s.arm == arm]


def _targets(samples: list[Sample]) -> list[Target]:
    targets = []
    for kind in KINDS:
        pilots, control = _waits(samples, kind, "pilots"), _waits(samples, kind, "control")
        name, with_pilots = tail(pilots)
        note = f"{len(pilots)} and {len(control)} jobs"
        targets += [
            Target(
                name=f"{kind}: median",
                measured=median(pilots) - median(control),
                limit=ADDED_MEDIAN_S,
                relation="<=",
                note=note,
            ),
            Target(
                name=f"{kind}: {name}",
                measured=with_pilots - tail(control)[1],
                limit=ADDED_TAIL_S,
                relation="<=",
                note=note,
            ),
        ]
    return targets


def _print_samples(samples: list[Sample]) -> None:
    table = Table(title="Submission to start, s", title_justify="left")
    for heading in ("job", "arm", "n", "p5", "p25", "median", "p75", "p95", "max"):
        table.add_column(heading, justify="left" if heading in {"job", "arm"} else "right")
    for kind in KINDS:
        for arm in ARMS:
            waits = sorted(_waits(samples, kind, arm))
            table.add_row(
                kind,
                arm,
                str(len(waits)),
                *(f"{waits[int(q * (len(waits) - 1))]:.2f}" for q in (0.05, 0.25)),
                f"{median(waits):.2f}",
                *(f"{waits[round(q * (len(waits) - 1))]:.2f}" for q in (0.75, 0.95, 1)),
            )
    console().print(table)


def _print_blocked(blocked: list[list[Sample]], settings: Settings) -> None:
    title = f"A job only backfill can start (bf_interval {settings.blocked_bf_interval_s} s), s"
    table = Table(title=title, title_justify="left")
    for heading in ("submitted", *BLOCKED_ARMS):
        table.add_column(heading, justify="right")
    for phase, row in zip(PHASES, blocked, strict=False):
        after_s = phase * settings.blocked_bf_interval_s
        table.add_row(f"{after_s:.1f} s after a cycle", *(f"{s.wait_s:.2f}" for s in row))
    console().print(table)


if __name__ == "__main__":
    sys.exit(main())
