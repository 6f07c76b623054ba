"""Decisions on many curves, taken again in a process that makes do with another processor.

OpenBLAS has kernels by family of processors, numpy and the C library have functions by feature. A
process can be made to use those of an older processor. ``python -m tests.support.processors
JOURNAL`` takes a journal's decisions again and prints an ``Outcome``; products and exponentials
of that process tell whether it uses another one.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from bftrainer.batch import process
from bftrainer.daemon.journal_replay import KIND, take_again
from bftrainer.decide.isolation import decide_surely
from bftrainer.decide.policies.base import load_policy
from bftrainer.journal.journal import Journal
from bftrainer.model.decision import DecisionInput, DecisionRecord, Memory, Settings
from bftrainer.model.fairness import Usage
from bftrainer.model.trainer import (
    ADASCALE,
    BatchRange,
    MeasuredCosts,
    SizeThroughput,
    TrainerProgress,
    TrainerRecord,
)
from milp.problem import Curve, Objective
from tests.support.snapshots import T0, held, node, record, snapshot

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 300.0
CPUINFO = Path("/proc/cpuinfo")

_NUMPY = import_module("numpy._core._multiarray_umath")

# By family of OpenBLAS what the processor must have, as Linux calls it.
FAMILIES = {"SkylakeX": "avx512bw", "Haswell": "avx2", "Zen": "avx2", "Prescott": "pni"}
OLD_C_LIBRARY = "glibc.cpu.hwcaps=-AVX512F,-AVX2,-AVX,-FMA,-FMA4,-AVX2_Usable,-FMA_Usable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a process made of a journal, and by what means."""

    family: str  # of OpenBLAS; "": numpy has another library
    features: tuple[str, ...]  # that numpy uses beyond those that it was built for
    blas: str  # digest of products
    library: str  # digest of exponentials of the C library
    plans: tuple[str, ...]  # digests
    differing: tuple[str, ...]  # fields of plans that are not as the journal has them


def has(feature: str) -> bool:
    """Return whether this processor is of x86-64 and has a feature."""
    if not CPUINFO.exists():
        return False
    flags = [line for line in CPUINFO.read_text().splitlines() if line.startswith("flags")]
    return feature in " ".join(flags[:1]).split()


def dispatched() -> tuple[str, ...]:
    """Return the features that numpy looks for, the least first."""
    return tuple(_NUMPY.__cpu_dispatch__)


def outcome(journal: Path, environment: Mapping[str, str]) -> Outcome:
    """Return what a process with these variables makes of a journal."""
    done = process.run(
        [sys.executable, "-m", "tests.support.processors", str(journal)],
        timeout_s=TIMEOUT_S,
        env={**os.environ, **environment},
        cwd=ROOT,
    )
    assert done.is_ok, f"{environment}: {done.returncode}: {done.stderr[-2000:]}"
    values: dict[str, Any] = json.loads(done.stdout)
    lists: dict[str, Any] = {k: v for k, v in values.items() if isinstance(v, list)}
    return Outcome(**{**values, **{name: tuple(one) for name, one in lists.items()}})


def _here(journal: Path) -> Outcome:
    chance = Random(7)  # noqa: S311 - no secret
    rows = np.array([[chance.random() for _ in range(48)] for _ in range(48)])
    powers = [math.exp(chance.uniform(-20.0, 20.0)) for _ in range(20_000)]
    features = _NUMPY.__cpu_features__
    with Journal.open(journal, clock=lambda: T0) as opened:
        again = list(take_again(opened.entries()))
    return Outcome(
        family=_family(),
        features=tuple([name for name in dispatched() if features[name]]),
        blas=hashlib.sha256((rows @ rows).tobytes()).hexdigest(),
        library=hashlib.sha256(np.array(powers).tobytes()).hexdigest(),
        plans=tuple([one.sha256 for one in again]),
        differing=tuple(sorted({name for one in again for name in one.differing})),
    )


def _family() -> str:
    """Return the family whose kernels OpenBLAS has chosen, in its own words; "": there is none."""
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    for path in sorted(one for one in mapped if "openblas" in one):
        library = ctypes.CDLL(path)
        for name in ("scipy_openblas_get_corename64_", "openblas_get_corename"):
            if hasattr(library, name):
                function = getattr(library, name)
                function.restype = ctypes.c_char_p
                return str(function().decode())
    return ""


# ---- decisions ---------------------------------------------------------------------------

POLICIES = {
    "milp": 14,
    "tetris": 3,
    "gavel-max-min": 3,
    "ibm-dp": 3,
    "throughput-scaling": 3,
    "utility-exact": 3,
    "pollux": 3,
    "optimus": 3,
    "dl2": 4,
}
STEP_S = 37.0
N_NODES = 14


def write_journal(path: Path, *, rounds: int = 1) -> int:
    """Write decisions as a daemon does; returns how many."""
    count = 0
    with Journal.open(path, clock=lambda: T0) as journal:
        journal.begin_incarnation()
        for number in range(rounds):
            for name, steps in POLICIES.items():
                chance = Random(f"{name} {number}")  # noqa: S311 - no secret
                for one in _decisions(name, steps, chance):
                    journal.append(KIND, one)
                    count += 1
    return count


def _decisions(policy: str, steps: int, chance: Random) -> Iterator[DecisionRecord]:
    """Decide, carrying the memory along, while trainers are measured."""
    rule, memory, training = load_policy(policy), Memory(), dict[str, str]()
    trainers = [_trainer(number, chance) for number in range(1, 7)]
    for step in range(steps):
        is_mixed = policy != "milp" or step % 4 == 0
        types = ["fast" if is_mixed and k <= N_NODES // 3 else "usual" for k in range(N_NODES)]
        nodes = [node(f"n{k}", node_type=one) for k, one in enumerate(types, start=1)]
        now_s = T0 + STEP_S * (step + 1)
        trainers = [_measured(one, training, chance) for one in trainers]
        settings = Settings(
            policy=policy,
            objective=chance.choice(
                [Objective.THROUGHPUT, Objective.SCALING_EFFICIENCY, Objective.WEIGHTED]
            ),
            reserve_nodes_per_type=0,
            t_fwd_s=chance.choice([60.0, 120.0]),
            explore_budget=chance.choice([0.0, 0.05]),
            straggler_threshold=0.8,
            fair_share_half_life_s=chance.choice([None, 977.0]) if policy == "milp" else None,
        )
        given = DecisionInput(
            now_s=now_s,
            snapshot=snapshot(nodes, at_s=now_s),
            is_new_snapshot=True,
            pilots=held(*sorted(training)),
            trainers=tuple(trainers),
            settings=settings,
            memory=memory if settings.fair_share_half_life_s else replace(memory, usage=Usage()),
            training=training,
            speeds=dict.fromkeys([*training][:1], 0.7) if step % 4 == 1 else {},
        )
        plan = decide_surely(given, rule)
        assert not plan.trouble, plan.trouble
        assert not plan.memory.left_out, plan.memory.left_out
        yield DecisionRecord(event=None, input=given, policy_hash="x", plan=plan, took_ms=1.0)
        memory, training = plan.memory, dict(plan.assignment)


def _trainer(number: int, chance: Random) -> TrainerRecord:
    """A trainer of a user; one has a curve of its own, another chooses its batch."""
    one = record(f"t{number}", n_min=1, n_max=chance.choice([6, 9, 14]))
    spec = replace(one.spec, user=f"u{number % 3}", weight=chance.uniform(0.5, 2.0), samples=10**6)
    if number == 2:
        sizes = (1, 3, 5)
        spec = replace(spec, curve=Curve(sizes=sizes, samples_per_s=tuple(90.0 * n for n in sizes)))
    if number in {3, 4}:
        rule = ADASCALE if number == 3 else "linear"
        spec = replace(spec, batch=BatchRange(least=32, most=512, per_worker=64, lr_rule=rule))
    return replace(one, spec=spec)


def _measured(one: TrainerRecord, training: Mapping[str, str], chance: Random) -> TrainerRecord:
    """The trainer with what was measured at some sizes; the sixth is measured nowhere."""
    if one.trainer_id == "t6":
        return one
    known = {
        size: chance.uniform(60.0, 140.0) * size / (1.0 + 0.05 * size)
        for size in sorted(chance.sample(range(1, one.spec.n_max + 1), chance.randint(1, 5)))
    }
    by_batch = tuple([(size, 64 * size, rate) for size, rate in known.items() if size <= 8])
    costs = MeasuredCosts(
        rescale_up_s=chance.uniform(0.2, 3.0),
        rescale_down_s=chance.uniform(0.1, 1.0),
        samples_per_s_by_size=tuple(known.items()),
        throughput=tuple(
            [SizeThroughput(size=n, told_error=chance.uniform(0.004, 0.1)) for n in known]
        ),
        samples_per_s_by_batch=by_batch if one.spec.batch else (),
        noise_scale=chance.uniform(100.0, 900.0),
    )
    size = sum(trainer_id == one.trainer_id for trainer_id in training.values())
    return replace(one, costs=costs, progress=TrainerProgress(size=size, batch=64 * size))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(_here(Path(sys.argv[1])))))
