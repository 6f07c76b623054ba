#!/usr/bin/env python3
"""Another user of the host races for the groups of a trainer, and what the proof against it costs.

``races``: real agents, workers and generations; one trainer changes its size or loses a member
again and again while a process of the account ``nobody`` connects to every port on which its
workers listen, as soon as it is there or a little later, as each member; it plays the member, is
silent, hangs up or sends garbage. Every sixth member is up to 0.3 s late, as that of a slow node.
Every sum and every parameter of the training is known, so that a foreign tensor shows. ``cost``:
the same changes without a stranger, with and without the proof in turns; the time in the proof,
most of it while the old members train, and the difference of pauses. It has a network namespace of
its own; needs root.
Prints every target with ``met`` or ``missed``; exits 1 when one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import logging
import os
import pwd
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Final

from _bench import stranger
from _bench.benchmark import Benchmark, Measured, note
from _bench.choosing import names_in, refuse_unknown
from _bench.plane import Plane
from _bench.rescaling import KINDS, Rescaling
from _bench.stats import quantile
from _bench.waiting import BenchError

WORKLOADS: Final = Path(__file__).resolve().parent / "workloads"
AGENTS: Final = 4
STRANGER: Final = "nobody"
CLONE_NEWNET: Final = 0x40000000  # unshare(2)
HANG_S: Final = 60.0  # without a step
LATE_S: Final = "0.3"
MARKS: Final = ("FOREIGN", "UNPROVEN", "PROOF_S")  # files of the training
RESAMPLES: Final = 2000
PARTS: Final = ("races", "cost")


def measure(options: argparse.Namespace, measured: Measured) -> None:
    """Measure both parts."""
    refuse_unknown(names_in(options.parts), PARTS)
    logging.getLogger("bftrainer").setLevel(logging.ERROR)  # members are lost on purpose
    be_alone()
    races, cycles = (40, 3) if options.quick else (options.races, options.cycles)
    memory = Path("/dev/shm")  # noqa: S108 - tmpfs is the point; a private directory in it
    with tempfile.TemporaryDirectory(
        prefix="bft-bench-", dir=memory if memory.is_dir() else None
    ) as scratch:
        if "races" in options.parts:
            where = Path(scratch) / "races"
            where.mkdir()
            if options.unproven:
                (where / "UNPROVEN").touch()
            asyncio.run(race(where, races, options.seed, measured))
        if "cost" in options.parts:
            asyncio.run(cost(Path(scratch) / "cost", cycles, measured))


def be_alone() -> None:
    """Leave the network of the host, so that nobody else's ports are attacked."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        raise BenchError(f"no network of its own: {os.strerror(ctypes.get_errno())}")
    subprocess.run(["/bin/sh", "-c", "ip link set lo up"], check=True)


def plane_in(directory: Path, late_s: str = "0") -> tuple[Plane, Path]:
    """Return a control plane in a new directory, and where its workers leave records."""
    records = directory / "records"
    records.mkdir(parents=True)
    marks = {f"BENCH_{mark}": str(directory / mark) for mark in MARKS}
    plane = Plane(
        directory,
        agents=AGENTS,
        script=WORKLOADS / "strangers_train.py",
        model="known",
        environment={"BENCH_RECORDS": str(records), "BENCH_LATE_S": late_s, **marks},
    )
    return plane, records


# ---- races ------------------------------------------------------------------------------


async def race(directory: Path, races: int, seed: int, measured: Measured) -> None:
    """Change the size until there were so many races; count what came of it."""
    plane, _ = plane_in(directory, LATE_S)
    chance = random.Random(seed)  # noqa: S311 - which changes, not a secret
    hangs = 0
    async with plane:
        plane.set_nodes(plane.all_nodes()[:1])
        await plane.until(plane.members, "the trainer starts", timeout_s=120)
        attacker = let_loose(seed)
        try:
            for number in range(1, races + 1):
                try:
                    await change(plane, chance)
                except BenchError as problem:
                    hangs += 1
                    note(f"race {number}: {problem}")
                    if hangs == 3:
                        raise
                if number % 50 == 0:
                    note(f"race {number} of {races}")
        finally:
            said = json.loads(attacker.communicate(b"")[0])
        last = newest(plane)
    count = words_of(directory)
    foreign = (directory / "FOREIGN").read_text() if (directory / "FOREIGN").exists() else ""
    measured.results["races"] = {"stranger": said, "workers": count, "foreign": foreign}
    if foreign:
        note(foreign)
    measured.table(
        "Races",
        ("what", "count"),
        [
            *(("stranger: " + what, str(number)) for what, number in sorted(said.items())),
            *(("workers: " + what, str(number)) for what, number in sorted(count.items())),
            ("last generation", str(last)),
        ],
    )
    measured.at_most("tensors read by a stranger", said.get("read", 0), 0, "")
    measured.at_most("sums or parameters with foreign values", len(foreign.splitlines()), 0, "")
    measured.at_most(f"races without a step for {HANG_S:g} s", hangs, 0, "")


def let_loose(seed: int) -> subprocess.Popen[bytes]:
    """Start the stranger, with the interpreter that every account may run."""
    source = Path(stranger.__file__).read_text()
    return subprocess.Popen(
        ["/usr/bin/python3", "-I", "-c", source, str(os.getuid()), str(seed)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        user=STRANGER,
        group=pwd.getpwnam(STRANGER).pw_gid,
        extra_groups=(),
        cwd="/",
    )


async def change(plane: Plane, chance: random.Random) -> None:
    """Go to another size or lose a member; wait until the new generation has formed."""
    before = newest(plane)
    members = plane.members()
    if len(members) > 1 and chance.random() < 1 / 5:
        plane.kill_worker(chance.choice(members)[0])
    else:
        sizes = [size for size in range(1, AGENTS + 1) if size != len(members)]
        held = [node for _, node in members]
        free = [n for n in plane.all_nodes() if n not in held]
        plane.set_nodes((held + free)[: chance.choice(sizes)])
    await plane.until(lambda: newest(plane) > before, "a new generation", timeout_s=HANG_S)


def newest(plane: Plane) -> int:
    """Return the number of the last generation that was complete; only so many are kept."""
    return plane.rescales()[-1].generation if plane.rescales() else 0


def words_of(directory: Path) -> Counter[str]:
    """Count how the workers' attempts ended, by their logs."""
    found: Counter[str] = Counter()
    for log in directory.glob("**/logs/*.log"):
        for line in log.read_text(errors="replace").splitlines():
            if "BFT-1344" in line:
                found["a stranger was refused"] += 1
            elif "interrupted" in line:
                found["another interruption"] += 1
            elif "terminate called" in line:
                found["ended by gloo"] += 1
    return found


# ---- cost -------------------------------------------------------------------------------


async def cost(directory: Path, cycles: int, measured: Measured) -> None:
    """Measure pauses with and without the proof, in turns."""
    plane, records = plane_in(directory)
    off = directory / "UNPROVEN"
    pauses: dict[bool, list[list[float]]] = {True: [], False: []}
    async with plane:
        rescaling, seen = Rescaling(plane, records, lambda _text: None), 0
        for cycle in range(2 * cycles):
            is_proven = cycle % 4 in (0, 3)  # in turns: with, without, without, with
            off.unlink(missing_ok=True) if is_proven else off.touch()
            await rescaling.run(1)
            found = rescaling.pauses()[seen:]
            seen += len(found)
            pauses[is_proven].append([pause.pause_s for pause in found])
            note(f"cycle {cycle + 1} of {2 * cycles}")
    times = [float(line) for line in (directory / "PROOF_S").read_text().split()]
    differences = [
        [with_s - without_s for with_s, without_s in zip(one, other, strict=True)]
        for one, other in zip(pauses[True], pauses[False], strict=True)
    ]
    by_kind = [[row[k] for row in differences] for k in range(len(KINDS))]
    chance = random.Random(1)  # noqa: S311 - statistics
    resampled = sorted(
        median(v for _ in differences for v in chance.choice(differences)) for _ in range(RESAMPLES)
    )
    middle = median(v for row in differences for v in row)
    low, high = quantile(resampled, 0.025), quantile(resampled, 0.975)
    measured.results["cost"] = {
        "proof_s": times,
        "pauses_s": {"proven": pauses[True], "unproven": pauses[False]},
    }
    rows = [("time in the proof", f"{1e3 * median(times):.2f}", f"{1e3 * max(times):.2f}")]
    for kind, values in zip(KINDS, by_kind, strict=True):
        rows.append((f"pause, difference: {kind}", f"{1e3 * median(values):.2f}", ""))
    measured.table(f"Cost of the proof, ms ({len(times)} proofs)", ("what", "median", "max"), rows)
    interval = f"95% interval {1e3 * low:.1f} to {1e3 * high:.1f} ms"
    measured.at_most("proof: paired median of pauses", 1e3 * middle, 2.0, "ms", interval)


BENCHMARK = Benchmark(
    name="strangers",
    title="Targets",
    about=__doc__,
    quick="40 races and 6 cycles",
    options={
        "--parts": {"default": ",".join(PARTS), "help": "of: %(default)s"},
        "--races": {"type": int, "default": 1000, "help": "%(default)s"},
        "--cycles": {"type": int, "default": 20, "help": "pairs of cycles: %(default)s"},
        "--unproven": {
            "action": "store_true",
            "help": "races without the proof: must miss targets",
        },
        "--seed": {"type": int, "default": int(time.time()), "help": "of the races"},
    },
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
