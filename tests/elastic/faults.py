"""One life of a small cluster under random faults, and what its workers wrote down.

A seed comes in; every schedule of faults that was survived, and the first that was not,
goes out. Real agents, workers, wire and journal (``tests.support.plane``), a tiny model.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from _bench.waiting import BenchError

from bftrainer.batch import process
from bftrainer.site.policy.model import SitePolicy
from tests.elastic import journal
from tests.elastic.fault_life import (
    AGENT_TIMEOUT_S,
    CHECKPOINT_S,
    NO_PROGRESS_S,
    NODES,
    SPARES,
    WORKER_LEASE_S,
    Life,
)
from tests.support.network import Network
from tests.support.plane import Plane

SCRIPT: Final = Path(journal.__file__).resolve().parent / "scripts" / "train_ids.py"
SAMPLES: Final = 203
BATCH: Final = 16  # of train_ids.py
EPOCH_STEPS: Final = math.ceil(SAMPLES / BATCH)
LOGICAL: Final = 4
EPOCHS: Final = 1_000_000  # no life is so long

POLICY: Final = SitePolicy(
    lease_s=120.0,
    heartbeat_s=0.25,
    agent_timeout_s=AGENT_TIMEOUT_S,
    worker_lease_s=WORKER_LEASE_S,
    no_progress_s=NO_PROGRESS_S,
    join_window_s=0.2,
    failure_budget=10_000,
)


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What one life showed."""

    seed: int
    schedules: list[tuple[str, ...]] = field(default_factory=list)  # survived
    recovery_s: dict[str, list[float]] = field(default_factory=dict)  # by kind of fault
    hangs: list[str] = field(default_factory=list)
    sample_errors: list[str] = field(default_factory=list)
    divergent: list[str] = field(default_factory=list)
    steps: int = 0
    took_s: float = 0.0

    @classmethod
    def of(cls, found: dict[str, Any]) -> Outcome:
        """Return one that was written as JSON."""
        return cls(**{**found, "schedules": [tuple(kinds) for kinds in found["schedules"]]})

    @property
    def is_good(self) -> bool:
        """Whether nothing went wrong."""
        return not (self.hangs or self.sample_errors or self.divergent)


# ---- a whole life -----------------------------------------------------------------------


async def live(
    directory: Path,
    seed: int,
    schedules: int | Sequence[tuple[str, ...]],
    note: Callable[[str], None],
    until_s: float,
    network: Network | None = None,
) -> Outcome:
    """Run so many random schedules, or these, then judge what the workers wrote down."""
    rng = random.Random(seed)  # noqa: S311 - a schedule
    outcome = Outcome(seed=seed)
    began_s = time.monotonic()
    is_bitwise = seed % 2 == 1
    plane = plane_of(directory, seed, is_bitwise=is_bitwise, network=network)
    kinds: tuple[str, ...] = ()
    async with plane:
        life = Life(plane, rng)
        try:
            await life.settle(NODES)
            given = [None] * schedules if isinstance(schedules, int) else schedules
            for one in given:
                if time.monotonic() > until_s:
                    break
                kinds = one or life.draw()
                took_s = await life.schedule(kinds)
                outcome.schedules.append(kinds)
                if took_s is not None:
                    outcome.recovery_s.setdefault(kinds[0], []).append(took_s)
            # However slow the machine: at least one epoch is whole, and judged as such.
            await life.trained_to(EPOCH_STEPS + 1)
        except BenchError as problem:
            outcome.hangs.append(
                f"schedule {len(outcome.schedules)}: {kinds}: {life.picture()}: {problem}"
            )
            note(f"seed {seed}: {outcome.hangs[-1]}")
    await asyncio.to_thread(judge, directory, outcome, is_bitwise=is_bitwise)
    outcome.took_s = time.monotonic() - began_s
    return outcome


def plane_of(
    directory: Path,
    seed: int,
    *,
    is_bitwise: bool,
    network: Network | None,
    policy: SitePolicy = POLICY,
    agents: int = NODES + SPARES,
) -> Plane:
    """Return the cluster of a life."""
    settings = {
        "epochs": EPOCHS,
        "delay_s": 0.03,  # lives share the processors
        "breakable": True,
        "logical": LOGICAL if is_bitwise else 0,
    }
    return Plane(
        directory,
        agents=agents,
        script=SCRIPT,
        model=json.dumps(settings),
        environment={"BFT_TEST_DIR": str(directory)},
        policy=policy,
        changes={
            "name": f"faults-{seed}",
            "n_max": NODES,
            "checkpoint_interval_s": CHECKPOINT_S,
            "epochs": EPOCHS,
        },
        network=network,
    )


def judge(directory: Path, outcome: Outcome, *, is_bitwise: bool) -> None:
    """Every sample once in each epoch, equal parameters on all members, equal to a replay."""
    commits = journal.entries(directory, "commit")
    made_by = lineage(commits, journal.entries(directory, "entered"))
    outcome.steps = max(made_by, default=0)
    missing = sorted(set(range(1, outcome.steps + 1)) - set(made_by))
    if missing:
        outcome.sample_errors.append(f"steps {missing[:5]} of {outcome.steps} were never committed")
    tries = [e for e in journal.entries(directory, "try") if made_by.get(e["step"]) == e["token"]]
    outcome.sample_errors += odd_epochs(tries)
    hashes: dict[tuple[str, int], set[str]] = {}
    for e in commits:
        hashes.setdefault((e["token"], e["step"]), set()).add(e["hash"])
    outcome.divergent += [f"{key}" for key, found in hashes.items() if len(found) > 1]
    outcome.divergent += [f"{key}" for key, _ in journal.disagreements(directory, "hash")]
    if is_bitwise and outcome.steps:
        (last,) = hashes[made_by[outcome.steps], outcome.steps]
        if replay(directory / "replay", outcome.steps) != last:
            outcome.divergent.append(f"step {outcome.steps} differs from an undisturbed run")


def odd_epochs(tries: Sequence[journal.Entry]) -> list[str]:
    """Say in which epochs a sample was not in exactly one of these batches."""
    counts: dict[int, Counter[int]] = {}
    for e in tries:
        counts.setdefault(e["epoch"], Counter()).update(e["ids"])
    found = []
    for epoch, count in sorted(counts.items()):
        is_whole = epoch < max(counts)
        if set(count.values()) != {1} or (is_whole and len(count) != SAMPLES):
            odd = [i for i, n in count.items() if n != 1]
            where = [
                {key: e[key] for key in ("step", "generation", "attempt", "pid")}
                for e in tries
                if e["epoch"] == epoch and not set(odd).isdisjoint(e["ids"])
            ]
            found.append(f"epoch {epoch}: {len(count)} samples, {odd[:5]} not once: {where[:8]}")
    return found


def lineage(commits: Sequence[journal.Entry], entered: Sequence[journal.Entry]) -> dict[int, str]:
    """Return by which generation (its token) each step was made that the last state contains.

    Followed from the last generation back: each began with a state, and the one that had
    made this very state is where it came from. A worker that was cut off may have gone on
    beside a later generation that came to nothing, so numbers do not tell.
    """
    steps: dict[str, dict[int, str]] = {}
    order: dict[str, tuple[int, int, float]] = {}
    for e in commits:
        steps.setdefault(e["token"], {})[e["step"]] = e["hash"]
        key = (e["generation"], e["attempt"], e["at_s"])
        order[e["token"]] = min(key, order.get(e["token"], key))
    began = {e["token"]: (e["step"], e["hash"]) for e in entered}
    made_by: dict[int, str] = {}
    token = max(order, key=lambda t: order[t], default="")
    last = max(steps.get(token, {}), default=0)
    while token:
        first, state = began[token]
        made_by.update({s: token for s in steps[token] if first < s <= last})
        earlier = [t for t in order if order[t] < order[token] and steps[t].get(first) == state]
        token, last = max(earlier, key=lambda t: order[t], default=""), first
    return made_by


def replay(directory: Path, steps: int) -> str:
    """Run the script plainly, alone, for so many steps; return the hash of its parameters."""
    directory.mkdir()
    settings = {"epochs": steps // EPOCH_STEPS + 2, "logical": LOGICAL}
    argv = [sys.executable, str(SCRIPT), json.dumps(settings)]
    environment = {**os.environ, "BFT_TEST_DIR": str(directory), "OMP_NUM_THREADS": "1"}
    process.run(argv, timeout_s=600.0, env=environment)
    found = [e["hash"] for e in journal.entries(directory, "commit") if e["step"] == steps]
    return str(found[0]) if found else "the replay did not get there"
