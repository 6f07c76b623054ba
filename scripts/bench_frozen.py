#!/usr/bin/env python3
"""What it costs trainers that the daemon is stopped for a while, and goes on.

The real daemon, agents and workers on the embedded batch system; one torch trainer on up to 4
nodes, and on each of the others a program of runtime ``command`` of its own. The daemon is stopped
(SIGSTOP) for 4 to 300 s, with 1, 4 and 50 agents, and then goes on (SIGCONT): while nothing
happens, in the middle of a rescale, in the middle of a give-back, and while an agent is killed.
Figures: workers that were lost beyond those that were given back or killed; pilots that ended
beyond those; whether training went on during the stop; how long after waking all agents were
heard, or a killed one was missed (policy: ``agent_timeout_s`` 5 s).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from _bench.benchmark import Benchmark, Measured, note
from _bench.choosing import names_in, refuse_unknown
from _bench.waiting import BenchError, wait_until

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bftrainer.lab.demo.local_site import LocalSite  # noqa: E402 - tests are not a package
from bftrainer.model.trainer import TrainerChange  # noqa: E402
from milp.problem import Curve  # noqa: E402
from tests.integration.daemon_scripts import SCALES, trainer_spec  # noqa: E402

STOPS_S: Final = (4.0, 8.0, 12.0, 20.0, 60.0, 300.0)
QUICK_STOPS_S: Final = (4.0, 8.0, 12.0)
AGENTS: Final = (1, 4, 50)
KINDS: Final = ("quiet", "rescale", "give-back", "killed")
TIMEOUT_S: Final = 5.0  # agent_timeout_s
PATIENCE_S: Final = 600.0
SETTLE_S: Final = 3.0 * TIMEOUT_S  # after waking; whatever is taken for late is late by then
JOB_S: Final = 5.0  # of the ordinary job that gets a node
MOST_TORCH: Final = 4  # agents
LATE_SHARE: Final = 1.25  # a slow machine finds a killed agent this much later

POLICY: Final = f"""\
poll_interval_s: 0.5
min_gap_s: 2
gap_margin_s: 1
reserve_nodes_per_type: 0
join_window_s: 0.5
agent_timeout_s: {TIMEOUT_S:g}
worker_lease_s: 600
start_timeout_s: 600
p_jmax: 50
"""

# Each worker says in a file of its own that it lives, and trains.
TORCH: Final = SCALES.replace(
    "    for x, y in run.batches():\n",
    "    for x, y in run.batches():\n        open(f'now.{os.getpid()}', 'a').write('.')\n",
)
# So that the plan always wants all of its nodes, whatever else runs on the machine.
CURVE: Final = Curve(sizes=(1, 2, 4), samples_per_s=(240.0, 470.0, 920.0))
PROGRAM: Final = """\
while :; do printf . >> now.$$; sleep 1; done
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One stop of the daemon."""

    n_agents: int
    kind: str
    stop_s: float
    lost_workers: int
    lost_pilots: int
    went_on: bool  # training, during the stop
    heard_s: float  # after waking, until all agents were, or the killed one was missed
    told_s: float  # how long the daemon says that it slept


class Stage:
    """A trainer on all nodes of a site, and what is seen of it from outside."""

    def __init__(self, site: LocalSite, directory: Path, n_agents: int) -> None:
        self.site, self.directory, self.n_agents = site, directory, n_agents
        self.n_torch = min(n_agents, MOST_TORCH)
        spec = trainer_spec(directory, TORCH, n_max=self.n_torch, curve=CURVE)
        self.trainer = site.client.submit(spec).record.trainer_id
        shell: dict[str, object] = {"runtime": "command", "script": "/bin/sh", "interpreter": ""}
        shell |= {"epochs": None, "n_max": 1}
        for number in range(self.n_torch, n_agents):
            place = directory / f"program-{number}"
            shell |= {"name": f"program-{number}", "args": (str(place / "train.py"),)}
            site.client.submit(trainer_spec(place, PROGRAM, **shell))

    def await_size(self, size: int) -> None:
        """Wait until the trainer trains on so many nodes, and all others run."""
        wait_until(
            lambda: self.site.client.trainer(self.trainer).record.progress.size == size,
            f"{self.trainer} trains on {size} nodes",
            patience_s=PATIENCE_S,
        )
        wait_until(
            lambda: len(self.workers()) == size + self.n_agents - self.n_torch,
            "all have their workers",
            patience_s=PATIENCE_S,
        )

    def workers(self) -> dict[int, int]:
        """Return the living workers and how much each has done."""
        done = {int(p.suffix[1:]): p.stat().st_size for p in self.directory.rglob("now.*")}
        return {pid: count for pid, count in done.items() if Path(f"/proc/{pid}").exists()}

    def pilots(self) -> set[str]:
        """Return the pilots that run."""
        jobs = self.site.look().jobs or ()
        return {job.pilot_id for job in jobs if job.pilot_id is not None}

    def agents(self) -> dict[str, int]:
        """Return the process of each agent, by its pilot."""
        logs = (self.site.sidecar.state_dir / "pilots").glob("*/agent.log")
        found = {log.parent.name: re.search(r", pid (\d+)", log.read_text()) for log in logs}
        return {pilot_id: int(one[1]) for pilot_id, one in found.items() if one}

    def pilot_of_a_member(self) -> str:
        """Return the pilot of the trainer's last worker."""
        return self.site.client.trainer(self.trainer).record.workers[-1][1]

    def generation(self) -> int:
        """Return the number of the trainer's last generation."""
        return self.site.client.trainer(self.trainer).record.last_generation

    def reasons(self) -> list[str]:
        """Return why each of its generations came."""
        found = self.site.sidecar.entries("rescaled")
        return [str(entry.payload["what"]["reason"]) for entry in found]

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the daemon for as long as the block lasts."""
        pid = self.site.sidecar.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def heard(self) -> bool:
        """Return whether the daemon hears all agents there are."""
        metrics = self.site.client.metrics()
        held = re.search(r"^bftrainer_nodes_held (\d+)", metrics, re.MULTILINE)
        silent = re.search(r"^bftrainer_unreachable_agents (\d+)", metrics, re.MULTILINE)
        if held is None or silent is None:
            return False
        return int(held[1]) >= len(self.pilots()) and silent[1] == "0"


def one(stage: Stage, kind: str, stop_s: float) -> Cell:
    """Stop the daemon once."""
    site, n_agents = stage.site, stage.n_agents
    size = stage.n_torch - 1 if kind == "rescale" else stage.n_torch
    if kind == "rescale":
        site.client.change(stage.trainer, TrainerChange(n_max=size))
    stage.await_size(size)
    before, pilots, reasons = stage.workers(), stage.pilots(), len(stage.reasons())
    slept_s = _figure(site, "slept_seconds_total")
    spared, job_id, victim = 0, "", ""
    if kind == "rescale":
        generation = stage.generation()
        site.client.change(stage.trainer, TrainerChange(n_max=stage.n_torch))
        wait_until(
            lambda: stage.pilots() - pilots or stage.generation() > generation,
            "the rescale begins",
            patience_s=PATIENCE_S,
            interval_s=0.02,
        )
    elif kind == "give-back":
        job_id = site.server.client.submit(n_nodes=1, limit_s=60.0, duration_s=JOB_S)
        # A program whose node is taken may get one of the trainer's, and starts anew there.
        spared = 1 if n_agents == stage.n_torch else 2
    with stage.stopped():
        begun = stage.workers()
        time.sleep(stop_s / 2)
        if kind == "killed":
            victim, spared = stage.pilot_of_a_member(), 1
            os.kill(stage.agents()[victim], signal.SIGKILL)
        time.sleep(stop_s / 2)
        after = stage.workers()
        goes_on = sum(after[pid] > count for pid, count in begun.items() if pid in after)
    woke_s = time.monotonic()
    if kind == "killed":
        _missed(stage, victim, reasons)
    else:
        wait_until(stage.heard, "all agents are heard", patience_s=PATIENCE_S)
    heard_s = time.monotonic() - woke_s
    time.sleep(SETTLE_S)
    living, there = stage.workers(), stage.pilots()
    if job_id:
        wait_until(
            lambda: not any(j.job_id == job_id for j in site.look().jobs or ()),
            "the ordinary job is over",
            patience_s=PATIENCE_S,
        )
    return Cell(
        n_agents=n_agents,
        kind=kind,
        stop_s=stop_s,
        lost_workers=max(0, len(before.keys() - living.keys()) - spared),
        lost_pilots=max(0, len(pilots - there) - spared),
        went_on=goes_on > 0,
        heard_s=heard_s,
        told_s=_figure(site, "slept_seconds_total") - slept_s,
    )


def _missed(stage: Stage, victim: str, reasons: int) -> None:
    """Wait until a killed agent's pilot is none of the trainer's any more."""
    if stage.n_agents > 1:
        wait_until(
            lambda: "a member was lost" in stage.reasons()[reasons:],
            "the killed one is missed",
            patience_s=PATIENCE_S,
        )
    else:
        wait_until(lambda: victim not in stage.pilots(), "its pilot is over", patience_s=PATIENCE_S)


def _figure(site: LocalSite, name: str) -> float:
    found = re.search(rf"^bftrainer_{name} (\S+)", site.client.metrics(), re.MULTILINE)
    if found is None:
        raise BenchError(f"the daemon does not export bftrainer_{name}")
    return float(found[1])


def kinds_of(n_agents: int, asked: str) -> list[str]:
    """Return the kinds of stops with so many agents; one node has no size to change."""
    kinds = names_in(asked) or list(KINDS)
    refuse_unknown(kinds, KINDS)
    if n_agents == 1:
        return [kind for kind in kinds if kind in ("quiet", "killed")]
    return kinds


def measure(arguments: argparse.Namespace, measured: Measured) -> None:
    """Measure every cell; one site for each number of agents."""
    stops_s = [float(s) for s in arguments.stops.split(",")] if arguments.stops else (
        QUICK_STOPS_S if arguments.quick else STOPS_S
    )  # fmt: skip
    counts = [int(n) for n in arguments.agents.split(",")] if arguments.agents else (
        AGENTS[:2] if arguments.quick else AGENTS
    )  # fmt: skip
    cells: list[Cell] = []
    measured.results["cells"] = []
    for n_agents in counts:
        with (
            tempfile.TemporaryDirectory(prefix="bft-frozen-") as base,
            LocalSite.open(Path(base), n_nodes=n_agents, policy=POLICY) as site,
        ):
            stage = Stage(site, Path(base) / "trainer", n_agents)
            stage.await_size(stage.n_torch)
            for kind in kinds_of(n_agents, arguments.kinds):
                for stop_s in stops_s:
                    cell = one(stage, kind, stop_s)
                    note(f"{n_agents} agents, {kind}, {stop_s:g} s: {cell}")
                    cells.append(cell)
                    measured.results["cells"].append(asdict(cell))
                    stage.await_size(stage.n_torch)
    _judge(cells, measured)


def _judge(cells: list[Cell], measured: Measured) -> None:
    measured.table(
        "Stops of the daemon",
        ("what", "agents", "stop", "workers lost", "pilots ended", "went on", "heard", "told"),
        [
            [
                cell.kind,
                str(cell.n_agents),
                f"{cell.stop_s:g} s",
                str(cell.lost_workers),
                str(cell.lost_pilots),
                "yes" if cell.went_on else "no",
                f"{cell.heard_s:.1f} s",
                f"{cell.told_s:.1f} s",
            ]
            for cell in cells
        ],
    )
    measured.at_most("workers lost", sum(c.lost_workers for c in cells), 0, "workers")
    measured.at_most("pilots that ended", sum(c.lost_pilots for c in cells), 0, "pilots")
    # Who loses a member to a job or a kill meanwhile waits for the daemon: its host is there.
    stood = sum(not c.went_on for c in cells if c.kind in ("quiet", "rescale"))
    measured.at_most("trainers that stood still meanwhile", stood, 0, "stops")
    found = [c.heard_s for c in cells if c.kind == "killed" and c.n_agents > 1]
    if found:
        measured.at_most("a killed agent is missed", max(found), LATE_SHARE * TIMEOUT_S)
    measured.at_least("stops that the daemon tells", sum(c.told_s > 0 for c in cells), len(cells))


BENCHMARK = Benchmark(
    name="frozen",
    title="A daemon that slept",
    about=__doc__,
    quick="1 and 4 agents, 4 to 12 s",
    measure=measure,
    options={
        "--agents": {"default": "", "help": "numbers of agents, as 1,4"},
        "--stops": {"default": "", "help": "lengths in seconds, as 4,8"},
        "--kinds": {"default": "", "help": f"of {', '.join(KINDS)}, as quiet,killed"},
    },
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
