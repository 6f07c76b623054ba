"""What the faults befall: hosts with a real Slurm, a user's own daemon, three trainers.

What is judged is written where no fault reaches it: samples, updates and parameters in a directory
of this machine that all hosts share.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from _bench.nemesis.clock import Clock
from _bench.nemesis.keeper import Keeper
from bftrainer.lab.try_records import Line, Records
from bftrainer.model.errors import BftError
from tests.support.accounts import scratch
from tests.support.hosts import Cluster, Plan
from tests.support.hosts.own_daemon import OwnDaemon

WORKLOAD: Final = Path(__file__).resolve().parents[2] / "workloads" / "nemesis_train.py"
N_NODES: Final = 5
N_TRAINERS: Final = 3
MOST_NODES: Final = 2  # of a trainer
SAMPLE_S: Final = 0.02
EPOCH_S: Final = 240 * SAMPLE_S / MOST_NODES  # the shortest that an epoch takes
# Slurm remembers all pilots of a run.
PLAN: Final = Plan(n_nodes=N_NODES, slurm=("MinJobAge=36000",))
FOR_ALL: Final = 0o1777


@dataclass(frozen=True, slots=True, kw_only=True)
class Bed:
    """Everything that runs."""

    cluster: Cluster
    daemon: OwnDaemon  # its verbs
    keeper: Keeper  # starts it
    clock: Clock  # of it
    directory: Path  # of this machine, which all hosts see
    n_epochs: int
    trainers: tuple[str, ...]  # ids, by number
    records: tuple[Records, ...]  # of their workers

    def processes(self, number: int) -> dict[str, list[Line]]:
        """Return what each worker of a trainer has written down."""
        self.records[number].look()
        return self.records[number].processes

    def steps(self) -> list[int]:
        """Return the newest update of each trainer, whether or not it is kept."""
        return [self._newest_step(number) for number in range(len(self.trainers))]

    def _newest_step(self, number: int) -> int:
        newest = 0
        for lines in self.processes(number).values():
            for line in lines:
                if line["kind"] == "committed":
                    newest = max(newest, line["step"])
        return newest

    def hurry(self) -> None:
        """Let the trainers wait no longer."""
        (self.directory / "hurry").touch()

    def states(self) -> list[str]:
        """Return the state of each trainer; "": unknown."""
        state_of = {}
        with suppress(OSError, BftError, ValueError):
            for trainer in self.shown():
                record = trainer["record"]
                state_of[record["trainer_id"]] = record["state"]
        return [state_of.get(trainer_id, "") for trainer_id in self.trainers]

    def shown(self) -> list[dict[str, Any]]:
        """Return the trainers as the daemon shows them; none if it does not answer."""
        trainers: list[dict[str, Any]] = self.daemon.status().get("trainers", [])
        return trainers

    def on(self, *wanted: str) -> str:
        """Return a host that has power, one of these first; "": none has."""
        return next((host for host in (*wanted, *PLAN.hosts) if self.is_on(host)), "")

    def is_on(self, host: str) -> bool:
        """Whether a host has power."""
        return host in self.cluster.powered


@contextmanager
def bed(n_epochs: int) -> Iterator[Bed]:
    """Start everything, and submit the trainers."""
    directory = scratch("bft-nemesis-", "/run")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        plan = Plan(n_nodes=PLAN.n_nodes, slurm=PLAN.slurm, shared=(str(directory),))
        cluster = stack.enter_context(Cluster(plan))
        clock = Clock(cluster)
        daemon = stack.enter_context(OwnDaemon(cluster, env=clock.environment()))
        keeper = stack.enter_context(Keeper(cluster, daemon))
        keeper.await_set()
        trainers = tuple(_submit(daemon, directory, k, n_epochs) for k in range(N_TRAINERS))
        yield Bed(
            cluster=cluster, daemon=daemon, keeper=keeper, clock=clock, directory=directory,
            n_epochs=n_epochs, trainers=trainers,
            records=tuple(Records(place(directory, k)) for k in range(N_TRAINERS)),
        )  # fmt: skip


def place(directory: Path, number: int) -> Path:
    """Return where a trainer's workers write down what they do."""
    return directory / f"trainer-{number}"


def _submit(daemon: OwnDaemon, directory: Path, number: int, n_epochs: int) -> str:
    records = place(directory, number)
    records.mkdir()
    records.chmod(FOR_ALL)
    shutil.copy(WORKLOAD, daemon.directory / WORKLOAD.name)
    return daemon.does(
        *("submit", "--parsable", "-J", f"sum{number}", "--nodes", f"1:{MOST_NODES}"),
        *("--epochs", str(n_epochs), "--export", f"BFT_RECORD_SAMPLES={records}"),
        *("--export", "OMP_NUM_THREADS=1", WORKLOAD.name),
        *arguments(number, n_epochs, directory, records),
    ).strip()


def arguments(number: int, n_epochs: int, directory: Path, results: Path) -> tuple[str, ...]:
    """Return the arguments of a trainer's script."""
    return (str(number), str(n_epochs), str(SAMPLE_S), str(directory / "hurry"), str(results))
