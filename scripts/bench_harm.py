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
from statistics import median

from _bench.benchmark import Benchmark, Measured, note
from _bench.harm import ARMS, BLOCKED_ARMS, KINDS, Arm, Lane, Sample
from _bench.stats import tail

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


def measure(arguments: argparse.Namespace, measured: Measured) -> None:
    """Run every arm and kind of job."""
    settings = Settings(
        samples=arguments.samples or (3 if arguments.quick else 60),
        lanes=arguments.lanes,
        pairs=1 if arguments.quick else len(PHASES),
        blocked_bf_interval_s=5 if arguments.quick else 30,
        load=arguments.load,
    )
    samples, blocked = _measure(settings)
    measured.results |= {
        "settings": asdict(settings),
        "samples": [asdict(sample) for sample in samples],
        "backfill_only": [[asdict(sample) for sample in pair] for pair in blocked],
    }
    for kind in KINDS:
        _judge(kind, samples, measured)
    _tabulate(samples, measured)
    _tabulate_blocked(blocked, settings, measured)


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
                note(f"{len(samples) // len(ARMS)} of {total} turns")

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


def _judge(kind: str, samples: list[Sample], measured: Measured) -> None:
    pilots, control = _waits(samples, kind, "pilots"), _waits(samples, kind, "control")
    name, with_pilots = tail(pilots)
    of = f"{len(pilots)} and {len(control)} jobs"
    added = median(pilots) - median(control)
    measured.at_most(f"{kind}: median", added, ADDED_MEDIAN_S, note=of)
    added = with_pilots - tail(control)[1]
    measured.at_most(f"{kind}: {name}", added, ADDED_TAIL_S, note=of)


def _tabulate(samples: list[Sample], measured: Measured) -> None:
    rows = []
    for kind in KINDS:
        for arm in ARMS:
            waits = sorted(_waits(samples, kind, arm))
            rows.append(
                (
                    kind,
                    arm,
                    str(len(waits)),
                    *(f"{waits[int(q * (len(waits) - 1))]:.2f}" for q in (0.05, 0.25)),
                    f"{median(waits):.2f}",
                    *(f"{waits[round(q * (len(waits) - 1))]:.2f}" for q in (0.75, 0.95, 1)),
                )
            )
    headings = ("job", "arm", "n", "p5", "p25", "median", "p75", "p95", "max")
    measured.table("Submission to start, s", headings, rows, left=2)


def _tabulate_blocked(blocked: list[list[Sample]], settings: Settings, measured: Measured) -> None:
    interval_s = settings.blocked_bf_interval_s
    rows = [
        (f"{phase * interval_s:.1f} s after a cycle", *(f"{s.wait_s:.2f}" for s in row))
        for phase, row in zip(PHASES, blocked, strict=False)
    ]
    title = f"A job only backfill can start (bf_interval {interval_s} s), s"
    measured.table(title, ("submitted", *BLOCKED_ARMS), rows, left=0)


BENCHMARK = Benchmark(
    name="harm",
    title="Added to the control by a pilot on every node",
    about=__doc__,
    quick="few samples; shows that it works",
    options={
        "--samples": {"type": int, "help": "per arm and kind (default 60, quick 3)"},
        "--lanes": {"type": int, "default": 4, "help": "clusters side by side (default 4)"},
        "--load": {
            "type": float,
            "default": 0.02,
            "help": "share of a processor each pilot uses",
        },
    },
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
