"""One life of a small cluster under random faults, and what its workers wrote down.

A seed comes in; every schedule of faults that was survived, and the first that was not,
goes out. Real agents, workers, wire and journal (``plane``), a tiny model. Called by
``bench_faults`` and by a test.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from _bench.plane import Plane
from _bench.waiting import BenchError
from bftrainer import process
from bftrainer.actuate.group import WorkerPhase
from bftrainer.policy.model import Policy
from tests.elastic import journal

SCRIPT: Final = Path(journal.__file__).resolve().parent / "scripts" / "train_ids.py"
SAMPLES: Final = 203
NODES: Final = 3
WORKER_LEASE_S: Final = 1.0
AGENT_TIMEOUT_S: Final = 3.0
HANG_S: Final = 60.0  # no step within this is a hang
LOGICAL: Final = 4
MEASURED: Final = (("kill",), ("kill rank 0",), ("stop",), ("agent falls silent",))

POLICY: Final = Policy(
    lease_s=120.0,
    heartbeat_s=0.25,
    agent_timeout_s=AGENT_TIMEOUT_S,
    worker_lease_s=WORKER_LEASE_S,
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

    @property
    def is_good(self) -> bool:
        """Whether nothing went wrong."""
        return not (self.hangs or self.sample_errors or self.divergent)


class Life:
    """The faults; each leaves the cluster so that training must go on by itself."""

    def __init__(self, plane: Plane, rng: random.Random) -> None:
        self._plane = plane
        self._rng = rng
        self._agents = {f"p{i}": a for i, a in enumerate(plane.agents)}
        self._node_of = {f"p{i}": f"n{i}" for i in range(NODES)}
        self._victims: set[str] = set()  # workers that will not come back
        self._hit_s: float | None = None  # when the others lost a member, the plane's clock
        self.faults: dict[str, Callable[[], Awaitable[None]]] = {
            "kill": self._kill,
            "kill rank 0": self._kill_first,
            "stop": self._stop,
            "raise": self._raise,
            "out of memory": self._out_of_memory,
            "kill all": self._kill_all,
            "agent dies": self._agent_dies,
            "agent falls silent": self._agent_falls_silent,
            "kill in a rescale": self._kill_in_rescale,
            "kill in warm-up": self._kill_in_warm_up,
            "kill in a park": self._kill_in_park,
            "without a daemon: kill": self._orphan_kill,
            "without a daemon: rank 0's node": self._orphan_node,
        }

    # ---- one schedule ------------------------------------------------------------------

    def draw(self) -> tuple[str, ...]:
        """Return one to three kinds of faults."""
        return tuple(self._rng.choices(sorted(self.faults), k=self._rng.choice((1, 1, 2, 3))))

    async def schedule(self, kinds: Sequence[str]) -> float | None:
        """Do these faults, then wait until a new plan trains.

        Returns how long a single loss kept the others from training, if it is one.
        """
        self._hit_s = None
        for kind in kinds:
            await self.faults[kind]()
            await asyncio.sleep(self._rng.choice((0.0, 0.0, 0.02, 0.2)))
        recovered_s = await self._recovered() if tuple(kinds) in MEASURED else None
        await self.settle(self._rng.sample(range(NODES), self._rng.randint(1, NODES)))
        return recovered_s

    async def _recovered(self) -> float | None:
        """Wait for the first generation after the hit; None when nobody was left to form it."""
        hit_s = self._hit_s
        if hit_s is None:
            return None
        [done_s, *_] = await self._plane.until(
            lambda: [at_s for _, at_s, _ in self._plane.trainers.rescales if at_s > hit_s],
            "the next generation",
            HANG_S,
        )
        return done_s - hit_s

    async def settle(self, nodes: list[int]) -> None:
        """Plan these nodes and wait until the trainer trains on all of them."""
        await self._replace_agents()
        self._plan([f"n{i}" for i in nodes])
        machine = self._machine()

        def is_there() -> bool:
            is_noticed = not self._victims & set(machine.members)
            return is_noticed and machine.forming is None and len(machine.members) == len(nodes)

        await self._plane.until(is_there, f"{len(nodes)} members", HANG_S)
        await self._trained()

    async def _trained(self, steps: int = 2) -> None:
        machine = self._machine()
        before = machine.step
        await self._plane.until(lambda: machine.step >= before + steps, "steps", HANG_S)

    async def _replace_agents(self) -> None:
        """A node whose agent ended gets a new pilot, as from the daemon."""
        for pilot_id in [p for p, a in self._agents.items() if a.poll() is not None]:
            node = self._node_of.pop(pilot_id)
            del self._agents[pilot_id]
            fresh, agent = self._plane.start_agent(node)
            self._agents[fresh] = agent
            self._node_of[fresh] = node
        await self._plane.until(
            lambda: set(self._agents) <= set(self._plane.connected), "agents", HANG_S
        )

    def _plan(self, nodes: list[str]) -> None:
        self._plane.set_nodes(nodes)

    def _machine(self) -> Any:
        return self._plane.trainers.trainers[self._plane.trainer_id].machine

    # ---- faults ------------------------------------------------------------------------

    def _members(self) -> list[str]:
        return [w for w, _ in self._plane.members() if w not in self._plane.exited]

    def _signal(self, worker_id: str, number: signal.Signals) -> None:
        try:
            os.kill(self._plane.pids[worker_id], number)
        except (ProcessLookupError, KeyError):  # gone, or not forked yet
            return
        self._victims.add(worker_id)
        if len(self._members()) > 1:
            self._hit_s = time.time()

    def _hit(self, number: signal.Signals) -> None:
        members = self._members()
        if members:
            self._signal(self._rng.choice(members), number)

    async def _kill(self) -> None:
        self._hit(signal.SIGKILL)

    async def _kill_first(self) -> None:
        for worker_id in self._members()[:1]:
            self._signal(worker_id, signal.SIGKILL)

    async def _stop(self) -> None:
        self._hit(signal.SIGSTOP)

    async def _raise(self) -> None:
        self._hit(signal.SIGUSR1)

    async def _out_of_memory(self) -> None:
        self._hit(signal.SIGUSR2)

    async def _kill_all(self) -> None:
        for worker_id in self._members():
            self._signal(worker_id, signal.SIGKILL)

    async def _agent_dies(self) -> None:
        self._end_agent(self._rng.choice(sorted(self._agents)))

    def _end_agent(self, pilot_id: str) -> None:
        self._agents[pilot_id].kill()
        self._agents[pilot_id].wait()

    async def _agent_falls_silent(self) -> None:
        """Stopped, it says nothing and closes nothing, as a host that is cut off."""
        pilot_id = self._rng.choice(sorted(self._agents))
        agent = self._agents[pilot_id]
        members = self._plane.members()
        if len(members) > 1 and self._node_of[pilot_id] in [node for _, node in members]:
            self._hit_s = time.time()
        agent.send_signal(signal.SIGSTOP)
        await asyncio.sleep(AGENT_TIMEOUT_S + 0.5)
        self._end_agent(pilot_id)

    async def _kill_in_rescale(self) -> None:
        self._plan([f"n{i}" for i in self._rng.sample(range(NODES), self._rng.randint(1, NODES))])
        await asyncio.sleep(self._rng.uniform(0.0, 0.3))
        self._hit(signal.SIGKILL)

    async def _kill_in_warm_up(self) -> None:
        self._plan([f"n{i}" for i in range(NODES)])
        starting = [
            w.worker_id
            for w in self._machine().workers.values()
            if w.phase in {WorkerPhase.STARTING, WorkerPhase.WARM}
        ]
        await asyncio.sleep(self._rng.uniform(0.0, 0.5))
        for worker_id in starting[:1]:
            self._signal(worker_id, signal.SIGKILL)

    async def _kill_in_park(self) -> None:
        members = self._members()
        self._plan([])
        await asyncio.sleep(self._rng.uniform(0.0, 0.05))
        for worker_id in members[:1]:
            self._signal(worker_id, signal.SIGKILL)

    async def _orphan_kill(self) -> None:
        await self._orphaned(lambda: self._hit(signal.SIGKILL))

    async def _orphan_node(self) -> None:
        nodes = dict(self._plane.members())
        first = [nodes[w] for w in self._members()[:1]]
        pilots = [p for p, node in self._node_of.items() if node in first]

        def end() -> None:
            for pilot_id in pilots:
                self._end_agent(pilot_id)

        await self._orphaned(end)

    async def _orphaned(self, fault: Callable[[], None]) -> None:
        """Something happens while the daemon is dead; its heir comes after a while."""
        await self._replace_agents()
        port = await self._plane.stop_daemon()
        await asyncio.sleep(self._rng.uniform(0.0, 0.2))
        fault()
        await asyncio.sleep(self._rng.choice((0.0, 0.3, 1.5)))
        alive = [p for p, agent in self._agents.items() if agent.poll() is None]
        await self._plane.return_daemon(port, alive)


# ---- a whole life -----------------------------------------------------------------------


async def live(
    directory: Path,
    seed: int,
    schedules: int | Sequence[tuple[str, ...]],
    note: Callable[[str], None],
    until_s: float,
) -> Outcome:
    """Run so many random schedules, or these, then judge what the workers wrote down."""
    rng = random.Random(seed)  # noqa: S311 - a schedule
    outcome = Outcome(seed=seed)
    is_bitwise = seed % 2 == 1
    settings = {
        "epochs": 1_000_000,
        "delay_s": 0.004,
        "breakable": True,
        "logical": LOGICAL if is_bitwise else 0,
    }
    plane = Plane(
        directory,
        agents=NODES,
        script=SCRIPT,
        model=json.dumps(settings),
        environment={"BFT_TEST_DIR": str(directory)},
        policy=POLICY,
        changes={"name": f"faults-{seed}", "checkpoint_interval_s": 0.5, "epochs": 1_000_000},
    )
    kinds: tuple[str, ...] = ()
    async with plane:
        life = Life(plane, rng)
        try:
            await life.settle(list(range(NODES)))
            given = [None] * schedules if isinstance(schedules, int) else schedules
            for one in given:
                if time.monotonic() > until_s:
                    break
                kinds = one or life.draw()
                took_s = await life.schedule(kinds)
                outcome.schedules.append(kinds)
                if took_s is not None:
                    outcome.recovery_s.setdefault(kinds[0], []).append(took_s)
        except BenchError as problem:
            outcome.hangs.append(f"schedule {len(outcome.schedules)}: {kinds}: {problem}")
            note(f"seed {seed}: {outcome.hangs[-1]}")
    judge(directory, outcome, is_bitwise=is_bitwise)
    return outcome


def judge(directory: Path, outcome: Outcome, *, is_bitwise: bool) -> None:
    """Every sample once in each epoch, equal parameters on all members, equal to a replay."""
    commits = journal.entries(directory, "commit")
    made_by = lineage(commits)
    outcome.steps = max(made_by, default=0)
    missing = sorted(set(range(1, outcome.steps + 1)) - set(made_by))
    if missing:
        outcome.sample_errors.append(f"steps {missing[:5]} of {outcome.steps} were never committed")
    counts: dict[int, Counter[int]] = {}
    for e in journal.entries(directory, "try"):
        if made_by.get(e["step"]) == (e["generation"], e["attempt"]):
            counts.setdefault(e["epoch"], Counter()).update(e["ids"])
    for epoch, count in sorted(counts.items()):
        is_whole = epoch < max(counts)
        if set(count.values()) != {1} or (is_whole and len(count) != SAMPLES):
            odd = [i for i, n in count.items() if n != 1][:5]
            outcome.sample_errors.append(f"epoch {epoch}: {len(count)} samples, {odd} not once")
    hashes: dict[tuple[int, int, int], set[str]] = {}
    for e in commits:
        hashes.setdefault((e["generation"], e["attempt"], e["step"]), set()).add(e["hash"])
    outcome.divergent += [f"{key}" for key, found in hashes.items() if len(found) > 1]
    outcome.divergent += [f"{key}" for key, _ in journal.disagreements(directory, "hash")]
    if is_bitwise and outcome.steps:
        generation, attempt = made_by[outcome.steps]
        (last,) = hashes[generation, attempt, outcome.steps]
        if replay(directory / "replay", outcome.steps) != last:
            outcome.divergent.append(f"step {outcome.steps} differs from an undisturbed run")


def lineage(commits: list[journal.Entry]) -> dict[int, tuple[int, int]]:
    """Return by which generation each step was made that the present state contains.

    A generation that begins at an earlier step than the one before it has ended redoes
    what follows: those steps are no longer part of the state.
    """
    first: dict[tuple[int, int], set[int]] = {}
    for e in commits:
        first.setdefault((e["generation"], e["attempt"]), set()).add(e["step"])
    made_by: dict[int, tuple[int, int]] = {}
    for key in sorted(first):
        begin = min(first[key])
        made_by = {s: k for s, k in made_by.items() if s < begin}
        made_by.update(dict.fromkeys(first[key], key))
    return made_by


def replay(directory: Path, steps: int) -> str:
    """Run the script plainly, alone, for so many steps; return the hash of its parameters."""
    directory.mkdir()
    settings = {"epochs": steps * 16 // SAMPLES + 2, "logical": LOGICAL}
    argv = [sys.executable, str(SCRIPT), json.dumps(settings)]
    environment = {**os.environ, "BFT_TEST_DIR": str(directory), "OMP_NUM_THREADS": "1"}
    process.run(argv, timeout_s=600.0, env=environment)
    found = [e["hash"] for e in journal.entries(directory, "commit") if e["step"] == steps]
    return str(found[0]) if found else "the replay did not get there"
