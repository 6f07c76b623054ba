"""The trainings that ``bench_rescale --sharded`` measures in turns, two workers on each node.

``Elastic`` is ours, sharded or whole; it grows, loses a worker and shrinks in place. ``Hsdp`` is
torch's own HSDP, which torchrun starts again. All stand ready; those whose turn it is not wait
between two steps. Out come pauses by kind. Called by ``sharded_parts``.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from _bench import torchrun
from _bench.records import History, Recorder, Step, survivors
from _bench.rival import Rival, RivalError, RivalPause
from _bench.waiting import wait_until_async
from bftrainer.batch import process
from bftrainer.site.policy.model import SitePolicy
from tests.support.plane import JOIN_WINDOW_S, Plane

WORKLOADS: Final = Path(__file__).resolve().parents[1] / "workloads"
ELASTIC: Final = WORKLOADS / "sharded_elastic.py"
HSDP: Final = WORKLOADS / "sharded_hsdp.py"
PER_NODE: Final = 2
KINDS: Final = ("1->2", "2->1", "SIGKILL")
STEPS: Final = 7  # of a generation, before the next change
FIRST: Final = 2  # index of the first step that counts as usual, ...
LAST: Final = 7  # ... and how many of the last
SNAPSHOT_STEPS: Final = 5
AHEAD: Final = 2  # steps that a worker may begin before it sees that its turn is over
STEP_S: Final = 60.0  # patience with one
RESTART_S: Final = 120.0  # patience with a restart
CHANGES: Final = {"workers_per_node": PER_NODE, "checkpoint_interval_s": 3600.0}


class Turn:
    """Says from which step on a training waits."""

    def __init__(self, directory: Path, recorder: Recorder) -> None:
        self.path = directory / "turn"
        self._recorder = recorder

    async def begin(self) -> None:
        """Let it train."""
        self.path.unlink(missing_ok=True)

    async def end(self, workers: int) -> None:
        """Have it wait; return when all of its workers do."""
        self._recorder.poll()
        until = 1 + AHEAD + self._newest_step()
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(f"{until}")
        temporary.rename(self.path)

        def is_still() -> bool:
            self._recorder.poll()
            steps = [h.steps[-1].step for h in self._recorder.histories.values() if h.steps]
            return sum(step >= until for step in steps) >= workers

        await wait_until_async(is_still, "its turn ends", patience_s=STEP_S, interval_s=0.02)

    def _newest_step(self) -> int:
        histories = self._recorder.histories.values()
        return max((h.steps[-1].step for h in histories if h.steps), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """What one change cost the survivor that it cost most."""

    still_s: float  # from its last step, or the kill, until it has entered the next generation
    pause_s: float  # to its first step there, less a usual one


class Elastic:
    """One trainer of ours; used within its plane."""

    def __init__(self, directory: Path, model: str, **changes: Any) -> None:
        self.records = directory / "records"
        self.records.mkdir(parents=True)
        self.recorder = Recorder(self.records)
        self._entries = Recorder(self.records, "entries")
        self.turn = Turn(directory, self.recorder)
        self.plane = Plane(
            directory,
            agents=2,
            script=ELASTIC,
            model=model,
            environment={"BENCH_RECORDS": str(self.records), "BENCH_TURN": str(self.turn.path)},
            policy=SitePolicy(
                lease_s=60.0,
                heartbeat_s=1.0,
                agent_timeout_s=20.0,
                join_window_s=JOIN_WINDOW_S,
                failure_budget=10_000,
            ),
            changes={**CHANGES, **changes},
        )
        self._victims = itertools.cycle((3, 0, 2, 1))  # ranks

    async def begin(self) -> None:
        """Train on one node."""
        await self.resize(1)

    async def round(self) -> dict[str, list[Pause]]:
        """Grow, lose a worker and so its node, get another, shrink; return the pauses."""
        await self.turn.begin()
        alone, last_step = self._generation(), self._newest_step()
        await self.trained(alone, 1, after=last_step)
        grown = [await self.resize(2)]
        killed, killed_s = await self.kill()
        grown.append(await self.replaced())
        shrunk = await self.resize(1)
        await self.turn.end(PER_NODE)
        # Another node may come soon after the loss: the steps on one node before it are usual.
        return {
            "1->2": [self.pause(generation, generation) for generation in grown],
            "2->1": [self.pause(shrunk, shrunk)],
            "SIGKILL": [self.pause(killed, alone, killed_s)],
        }

    async def resize(self, nodes: int, steps: int = STEPS) -> int:
        """Go to that many nodes; returns the generation, in which all have trained."""
        before = len(self.plane.rescales())
        nodes_held = [node for _, node in self.plane.members()]
        free = [n for n in self.plane.all_nodes() if n not in nodes_held]
        self.plane.set_nodes((nodes_held + free)[:nodes])
        return await self._after(before, nodes, steps)

    async def kill(self) -> tuple[int, float]:
        """SIGKILL one of four workers; returns the generation without its node, and when."""
        before = len(self.plane.rescales())
        newest = self.recorder.of_generation(self._generation())
        rank = next(self._victims)
        pid = next(pid for pid, steps in newest.items() if steps[-1].rank == rank)
        killed_s = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        return await self._after(before, 1, 1), killed_s

    async def replaced(self) -> int:
        """Wait until there are two nodes again; returns their generation."""
        rescales = self.plane.rescales
        await self.plane.until(lambda: rescales()[-1].size == 2, "another node comes")
        generation = self._generation()
        await self.trained(generation, 2)
        return generation

    async def _after(self, before: int, nodes: int, steps: int = STEPS) -> int:
        rescales = self.plane.rescales
        changes = await self.plane.until(lambda: rescales()[before:], f"a change to {nodes} nodes")
        await self.trained(changes[0].generation, nodes, steps)
        return changes[0].generation

    def _generation(self) -> int:
        return self.plane.rescales()[-1].generation

    async def trained(
        self, generation: int, nodes: int, steps: int = STEPS, *, after: int = 0
    ) -> None:
        """Wait until all workers have done some steps of a generation, later than ``after``."""

        def is_trained() -> bool:
            self.recorder.poll()
            steps_of = self.recorder.of_generation(generation)
            late = [sum(s.step > after for s in worker_steps) for worker_steps in steps_of.values()]
            return len(steps_of) == nodes * PER_NODE and min(late) >= steps

        await self.plane.until(is_trained, f"{steps} steps on {nodes} nodes", steps * STEP_S)

    def _newest_step(self) -> int:
        histories = self.recorder.histories.values()
        return max((h.steps[-1].step for h in histories if h.steps), default=0)

    def pause(self, generation: int, usual: int, killed_s: float | None = None) -> Pause:
        """Return what the worst survivor lost before its first step of a generation.

        ``usual``: the generation whose steps are the usual ones.
        """
        self.recorder.poll()
        self._entries.poll()
        pairs = survivors(self.recorder.histories, generation)
        entries = {p: e[0].at_s for p, e in self._entries.of_generation(generation).items()}
        step_s = median(
            usual_s(worker_steps) for worker_steps in self.recorder.of_generation(usual).values()
        )
        began = {
            p: last_before.at_s if killed_s is None else killed_s
            for p, (last_before, _) in pairs.items()
        }
        return Pause(
            still_s=max(entries[p] - began_s for p, began_s in began.items()),
            pause_s=max(pairs[p][1].at_s - began_s for p, began_s in began.items()) - step_s,
        )


class Hsdp(Rival):
    """Torch's HSDP on the same nodes; one agent of torchrun has all processes, which favours it."""

    name = "torchrun"

    def __init__(self, directory: Path, model: str) -> None:
        super().__init__(directory, HSDP, model, lambda _text: None)
        self._workers = 2 * PER_NODE
        self.turn = Turn(directory, self.recorder)

    async def begin(self) -> None:
        """Start it and wait for its first checkpoint."""
        directory = self.directory
        argv = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc-per-node={self._workers}", "--max-restarts=1000"),
            *("--monitor-interval=0.1", "--shutdown-timeout=1"),
            *(str(self.script), self.model),
        ]
        environment = {
            **os.environ,
            **torchrun.ENVIRONMENT,
            "BENCH_RECORDS": str(directory),
            "BENCH_TURN": str(self.turn.path),
            "BENCH_SNAPSHOT": str(directory / "snapshots"),
            "BENCH_SNAPSHOT_STEPS": str(SNAPSHOT_STEPS),
        }
        with (directory / "torchrun.log").open("ab") as log:
            self.processes["all"] = process.spawn(argv, env=environment, stdout=log, stderr=log)
        await self._until(lambda: len(self._since(0.0, SNAPSHOT_STEPS + 2)) == self._workers)
        await self.turn.end(self._workers)

    async def round(self) -> RivalPause:
        """SIGKILL a process; return the time to the first step of all after the restart."""
        resumed_s = time.monotonic()
        await self.turn.begin()
        await self._until(lambda: len(self._since(resumed_s, STEPS)) == self._workers)
        pids = sorted(self._since(resumed_s, STEPS))
        self.recorder.poll()
        last_step = min(self.recorder.histories[pid].steps[-1].step for pid in pids)
        killed_s = time.monotonic()
        os.kill(pids[next(self.victims) % len(pids)], signal.SIGKILL)

        def fresh() -> list[History]:
            histories = self.recorder.histories.values()
            return [h for h in histories if h.steps and h.steps[0].at_s > killed_s]

        await self._until(lambda: len(fresh()) == self._workers and _least(fresh()) >= STEPS)
        pause_s = max(h.steps[0].at_s - usual_s(h.steps) for h in fresh()) - killed_s
        lost_steps = max(0, last_step + 1 - min(h.steps[0].step for h in fresh()))
        await self.turn.end(self._workers)
        return RivalPause(system=self.name, kind="SIGKILL", pause_s=pause_s, lost_steps=lost_steps)

    def _since(self, at_s: float, steps: int) -> dict[int, Sequence[Step]]:
        """Return the processes that have done some steps since."""
        steps_of = {pid: h.since(at_s) for pid, h in self.recorder.histories.items()}
        return {pid: list(s) for pid, s in steps_of.items() if len(s) >= steps}

    async def _until(self, condition: Any) -> None:
        def looked() -> Any:
            if self.processes["all"].poll() is not None:
                raise RivalError(f"torchrun ended; see {self.directory}")
            self.recorder.poll()
            return condition()

        await wait_until_async(looked, "HSDP trains", patience_s=RESTART_S, interval_s=0.02)


def _least(histories: Sequence[History]) -> int:
    return min(len(h.steps) for h in histories)


def usual_s(steps: Sequence[Step]) -> float:
    """Return the usual duration of the steps of a generation, s."""
    times = [s.at_s for s in steps[FIRST - 1 :][-LAST:]]
    return median(b - a for a, b in itertools.pairwise(times))
