"""Faults that are drawn, done to a small cluster, and the way back from each.

A ``Plane`` comes in; each schedule of faults is done to it and survived, or raises
``BenchError``. Real processes and real signals. Called by ``faults``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from _bench.waiting import BenchError, wait_until_async

from bftrainer.fleet.lifecycle import WorkerPhase
from tests.support.network import Cut
from tests.support.plane import Plane

NODES: Final = 3  # that the trainer may have
SPARES: Final = 1  # warm: a node whose agent ended is replaced at once, as in a large pool
WORKER_LEASE_S: Final = 1.0
AGENT_TIMEOUT_S: Final = 2.0
NO_PROGRESS_S: Final = 4.0
HANG_S: Final = 75.0  # no step within this is a hang; longer than a leaver may take
CHECKPOINT_S: Final = 0.5  # between two
ONE_STEP_APART: Final = signal.SIGRTMIN  # as train_ids.py understands them
HANG: Final = signal.SIGRTMIN + 1
MEASURED: Final = (
    ("kill",),
    ("kill rank 0",),
    ("stop",),
    ("agent falls silent",),
    ("node cut off",),
)


class Life:
    """The faults; each leaves the cluster so that training must go on by itself."""

    def __init__(self, plane: Plane, rng: random.Random) -> None:
        self._plane = plane
        self._rng = rng
        self._agents = {f"p{i}": a for i, a in enumerate(plane.agents)}
        self._node_of = {f"p{i}": f"n{i}" for i in range(len(self._agents))}
        self.nodes = [f"n{i}" for i in range(NODES)]  # in use; the others are spares
        self._fresh = len(self._agents)  # number of the next node
        self._victims: set[str] = set()  # workers that will not come back
        self._hit_s: float | None = None  # when the others lost a member, the plane's clock
        self.faults: dict[str, Callable[[], Awaitable[None]]] = {
            "kill": self._kill,
            "kill rank 0": self._kill_first,
            "stop": self._stop,
            "hang": self._hang,
            "raise": self._raise,
            "out of memory": self._out_of_memory,
            "kill all": self._kill_all,
            "one step apart": self._one_step_apart,
            "agent dies": self._agent_dies,
            "agent falls silent": self._agent_falls_silent,
            "kill in a rescale": self._kill_in_rescale,
            "kill in warm-up": self._kill_in_warm_up,
            "kill in a checkpoint": self._kill_in_checkpoint,
            "kill in a park": self._kill_in_park,
            "without a daemon: kill": self._orphan_kill,
            "without a daemon: rank 0's node": self._orphan_node,
        }
        if plane.network is not None:
            self.faults["node cut off"] = self._cut_off
            self.faults["node cut off for a moment"] = self._cut_off_briefly

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
        await self.settle(self._rng.randint(1, NODES))
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

    async def settle(self, size: int) -> None:
        """Plan so many nodes and wait until the trainer trains on all of them."""
        await self._replace_agents()
        self._plan(self._some(size))
        machine = self._machine()

        def is_there() -> bool:
            is_noticed = not self._victims & set(machine.crew.members)
            return is_noticed and machine.forming is None and len(machine.crew.members) == size

        await self._plane.until(is_there, f"{size} members", HANG_S)
        await self._trained()

    def _some(self, size: int) -> list[str]:
        return self._rng.sample(self.nodes, size)

    async def _trained(self, steps: int = 2) -> None:
        await self.trained_to(self._machine().mark.step + steps)

    async def trained_to(self, step: int) -> None:
        """Wait until the trainer has made this step."""
        machine = self._machine()
        await self._plane.until(lambda: machine.mark.step >= step, f"step {step}", HANG_S)

    async def _replace_agents(self) -> None:
        """A spare takes the place of a node whose agent ended; a new spare starts beside it."""
        for pilot_id in [p for p, a in self._agents.items() if a.poll() is not None]:
            ended = self._node_of.pop(pilot_id)
            del self._agents[pilot_id]
            node = f"n{self._fresh}"
            self._fresh += 1
            fresh, self._agents[fresh] = self._plane.start_agent(node)
            self._node_of[fresh] = node
            if ended in self.nodes:
                self.nodes.remove(ended)
        ready = [n for n in self._node_of.values() if n not in self.nodes]
        self.nodes += ready[: NODES - len(self.nodes)]  # the oldest spares: warm by now
        used = {p for p, node in self._node_of.items() if node in self.nodes}
        await self._plane.until(lambda: used <= set(self._plane.connected), "agents", HANG_S)

    def _plan(self, nodes: list[str]) -> None:
        self._plane.set_nodes(nodes)

    def picture(self) -> str:
        """Say where the trainer stands, for whoever looks into a hang."""
        machine = self._machine()
        phases = {
            w.worker_id: f"{w.phase.value} on {w.node}"
            for w in machine.crew.workers.values()
            if w.is_alive
        }
        return (
            f"members {machine.crew.members}, forming {machine.forming}, workers {phases},"
            f" hit {sorted(self._victims & set(phases))}, failures {machine.failures}"
        )

    def _machine(self) -> Any:
        return self._plane.trainers.trainers[self._plane.trainer_id].machine

    # ---- faults ------------------------------------------------------------------------

    def _members(self) -> list[str]:
        return [w for w, _ in self._plane.members() if w not in self._plane.exited]

    def _signal(self, worker_id: str, number: int) -> None:
        try:
            os.kill(self._plane.pids[worker_id], number)
        except (ProcessLookupError, KeyError):  # gone, or not forked yet
            return
        self._victims.add(worker_id)
        if len(self._members()) > 1:
            self._hit_s = time.time()

    def _hit(self, number: int) -> None:
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

    async def _hang(self) -> None:
        self._hit(HANG)

    async def _raise(self) -> None:
        self._hit(signal.SIGUSR1)

    async def _out_of_memory(self) -> None:
        self._hit(signal.SIGUSR2)

    async def _kill_all(self) -> None:
        for worker_id in self._members():
            self._signal(worker_id, signal.SIGKILL)

    async def _one_step_apart(self) -> None:
        """A member takes a step for broken that the others committed; then one may die."""
        members = self._members()
        for worker_id in self._rng.sample(members, min(1, len(members))):
            with contextlib.suppress(ProcessLookupError, KeyError):
                os.kill(self._plane.pids[worker_id], ONE_STEP_APART)
        await asyncio.sleep(self._rng.uniform(0.0, 0.05))
        if self._rng.random() < 0.5:
            self._hit(signal.SIGKILL)

    async def _agent_dies(self) -> None:
        self._end_agent(self._some_pilot())

    def _some_pilot(self) -> str:
        return self._rng.choice(sorted(p for p, n in self._node_of.items() if n in self.nodes))

    def _end_agent(self, pilot_id: str) -> None:
        self._agents[pilot_id].kill()
        self._agents[pilot_id].wait()

    async def _agent_falls_silent(self) -> None:
        """Stopped, it says nothing and closes nothing, as a host that is cut off."""
        pilot_id = self._some_pilot()
        agent = self._agents[pilot_id]
        members = self._plane.members()
        if len(members) > 1 and self._node_of[pilot_id] in [node for _, node in members]:
            self._hit_s = time.time()
        agent.send_signal(signal.SIGSTOP)
        await asyncio.sleep(AGENT_TIMEOUT_S + 0.5)
        self._end_agent(pilot_id)

    async def _cut_off(self) -> None:
        """A node loses its network, in one direction or both, and gets it back too late."""
        await self._cut_for(AGENT_TIMEOUT_S + 0.5 + self._rng.uniform(0.0, 1.0))

    async def _cut_off_briefly(self) -> None:
        """Its network is back before anybody takes it for lost, or just then."""
        await self._cut_for(self._rng.uniform(0.05, 1.1 * AGENT_TIMEOUT_S), counts=False)

    async def _cut_for(self, seconds: float, *, counts: bool = True) -> None:
        node = self._node_of[self._some_pilot()]
        members = [n for _, n in self._plane.members()]
        if counts and len(members) > 1 and node in members:
            self._hit_s = time.time()
        self._plane.cut_node(node, self._rng.choice(list(Cut)))
        await asyncio.sleep(seconds)
        self._plane.mend_node(node)

    async def _kill_in_rescale(self) -> None:
        self._plan(self._some(self._rng.randint(1, NODES)))
        await asyncio.sleep(self._rng.uniform(0.0, 0.3))
        self._hit(signal.SIGKILL)

    async def _kill_in_warm_up(self) -> None:
        self._plan(self.nodes)
        starting = [
            w.worker_id
            for w in self._machine().crew.workers.values()
            if w.phase in {WorkerPhase.STARTING, WorkerPhase.WARM}
        ]
        await asyncio.sleep(self._rng.uniform(0.0, 0.5))
        for worker_id in starting[:1]:
            self._signal(worker_id, signal.SIGKILL)

    async def _kill_in_checkpoint(self) -> None:
        """Rank 0 dies while its file has another name yet."""
        directory = self._plane.directory / "checkpoints"
        with contextlib.suppress(BenchError):  # nobody writes just now
            await wait_until_async(
                lambda: any(directory.glob(".*.tmp")),
                "a checkpoint is being written",
                patience_s=2.0 * CHECKPOINT_S,
                interval_s=0.001,
            )
        await self._kill_first()

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
            for pilot_id in set(pilots) & self._agents.keys():  # an earlier fault may have been it
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
