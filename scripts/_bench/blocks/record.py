"""One cluster, one stream of jobs, and two versions of the code in turn: what happens, kept.

Called by ``bench_blocks``. Everything an evaluation needs goes to one directory, after every
block: slurmctld's log, the jobs and blocks as JSON, what the journals say of pilots, and samples
of the machine's load. Each arm runs from a copy of its code with an interpreter
of its own, because agents ignore PYTHONPATH. Ends every process it has started.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
import venv
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from _bench.waiting import BenchError, wait_until
from _bench.zero_harm import cycles
from _bench.zero_harm.workload import PlannedJob
from bftrainer.demo.sidecar import DaemonProcess
from bftrainer.errors import BftError
from slurm_plugins.testcluster import ClusterConfig, SlurmTestCluster

INSIDE = Path(__file__).with_name("inside.py")
PACKAGES = ("bftrainer", "milp", "trainers", "slurm_plugins", "scripts")
# Many small jobs and a few of half the machine; shares of jobs.
SIZES = ((1, 0.30), (2, 0.20), (4, 0.20), (8, 0.15), (16, 0.10), (32, 0.05))  # of 64 nodes
RUN_S = (60.0, 600.0)
LIMIT = (2.0, 4.0)  # times the run time
DRAWN = 1.5  # times the load
SAMPLE_S = 15.0
LEAVE_S = 90.0  # patience with pilots at the end of a block
AT_ONCE = 4
YIELD_EVERY_US, YIELD_US = 40_000, 550_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one call runs."""

    n_nodes: int
    bf_interval_s: int
    minutes: float  # of a block
    n_blocks: int
    n_hopeless: int
    load: float  # node-seconds asked for, of those there are
    seed: int
    keep: Path

    @property
    def cluster_parameters(self) -> str:
        """How backfill comes to look at every job in every cycle, pilots last, and to take long.

        It lets others have the locks often and for a while: a cycle as long by work alone
        would take one of two processors from everybody.
        """
        return (
            f"bf_max_job_test={2 * self.n_hopeless + 2_000},bf_continue"
            f",bf_max_time={5 * self.bf_interval_s}"
            f",bf_yield_interval={YIELD_EVERY_US},bf_yield_sleep={YIELD_US}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One arm's turn; epochs."""

    number: int
    arm: str  # old or new
    began_s: float  # the daemon answers and has its trainers
    ended_s: float  # its trainers are asked to leave
    left_s: float  # no pilot is left, the daemon has ended
    daemon_cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One version of the code, copied, with its interpreter."""

    name: str
    code: Path
    python: Path

    @classmethod
    def copy(cls, name: str, checkout: Path, directory: Path) -> Arm:
        """Copy a checkout's packages and make an interpreter that finds them first."""
        home = directory / name
        for package in PACKAGES:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(checkout / package, home / "code" / package, ignore=ignored)
        venv.create(home / "venv", symlinks=True)
        found = dict.fromkeys(p for p in sys.path if p.endswith("-packages"))
        version = sysconfig.get_python_version()
        site = home / "venv" / "lib" / f"python{version}" / "site-packages" / "arm.pth"
        site.write_text("".join(f"{path}\n" for path in (home / "code", *found)))
        return cls(name=name, code=home / "code", python=home / "venv" / "bin" / "python")

    def run(self, *words: str) -> subprocess.Popen[bytes]:
        """Start ``inside.py`` with this arm's code."""
        argv = (str(self.python), str(INSIDE), str(self.code / "scripts"), *words)
        return subprocess.Popen(argv, cwd="/")

    def do(self, *words: str) -> None:
        """Run ``inside.py`` to its end.

        Raises:
            BenchError: it failed.
        """
        if self.run(*words).wait() != 0:
            raise BenchError(f"{self.name}: {words[0]} failed")


class ArmDaemon(DaemonProcess):
    """The daemon of one arm's code."""

    python = sys.executable

    def argv(self) -> tuple[str, ...]:
        """Return the command line, with the arm's interpreter."""
        return tuple(self.python if w == sys.executable else w for w in super().argv())


def stream(plan: Plan) -> tuple[PlannedJob, ...]:
    """Draw ordinary jobs for all blocks, from the seed alone, in order of submission.

    More are drawn than the load asks for, and those dropped that come while more than it was
    submitted: by chance alone one block would have twice the load of another.
    """
    chance = random.Random(plan.seed)  # noqa: S311 - a workload, not a secret
    length_s = plan.n_blocks * (60.0 * plan.minutes + LEAVE_S + 60.0)
    sizes = [(max(1, n * plan.n_nodes // 64), share) for n, share in SIZES]
    mean_nodes = sum(n * share for n, share in sizes)
    mean_run_s = (RUN_S[1] - RUN_S[0]) / math.log(RUN_S[1] / RUN_S[0])
    wanted = plan.load * (plan.n_nodes - 1)  # node-seconds per second; one has the long job
    jobs, at_s, node_s = list[PlannedJob](), 0.0, 0.0
    while at_s < length_s:
        run_s = RUN_S[0] * (RUN_S[1] / RUN_S[0]) ** chance.random()
        n_nodes = chance.choices([n for n, _ in sizes], [share for _, share in sizes])[0]
        limit_min = math.ceil(run_s * chance.uniform(*LIMIT) / 60.0)
        if node_s <= wanted * at_s:
            jobs.append(PlannedJob(at_s=at_s, n_nodes=n_nodes, run_s=run_s, limit_min=limit_min))
            node_s += n_nodes * run_s
        at_s += chance.expovariate(DRAWN * wanted / (mean_nodes * mean_run_s))
    return tuple(jobs)


@dataclass(slots=True, kw_only=True)
class Recorder:
    """One run: ``play`` is all there is to call; ``is_enough`` ends it after this block."""

    plan: Plan
    directory: Path
    arms: tuple[Arm, ...]
    cluster: SlurmTestCluster
    is_enough: threading.Event = field(default_factory=threading.Event)
    _over: threading.Event = field(default_factory=threading.Event)
    _blocks: list[Block] = field(default_factory=list)
    _readers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def play(self) -> Iterator[Block]:
        """Run block after block; each is kept when it is returned, but for its journal.

        The last block's journal, and those before, are kept when the iterator ends.
        """
        keep = self.plan.keep
        (keep / "plan.json").write_text(json.dumps(asdict(self.plan), default=str))
        log = cycles.note(self.cluster)
        self._hopeless()
        helpers = [threading.Thread(target=t) for t in (self._submit, self._sample)]
        for helper in helpers:
            helper.start()
        try:
            for number in range(self.plan.n_blocks):
                if self.is_enough.is_set():
                    break
                self._blocks.append(self._block(number))
                shutil.copy(log, keep)
                rows = [asdict(block) for block in self._blocks]
                (keep / "blocks.json").write_text(json.dumps(rows))
                yield self._blocks[-1]
            for reader in self._readers:
                reader.wait()
        finally:
            self._over.set()
            for helper in helpers:
                helper.join()
            shutil.copy(log, keep)

    def _hopeless(self) -> None:
        """Fill the queue: a job that runs throughout, and those that need its node too."""
        whole_run_s = 12 * 3600.0
        node = self.cluster.config.node_names[0]
        self.cluster.submit(
            n_nodes=1,
            duration_s=whole_run_s,
            limit_s=whole_run_s,
            extra_args=(f"--nodelist={node}",),
        )
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for _ in range(self.plan.n_hopeless):
                pool.submit(
                    self.cluster.submit,
                    n_nodes=1,
                    duration_s=60.0,
                    limit_s=60.0,
                    extra_args=("--priority=1", f"--nodelist={node}"),
                )

    def _submit(self) -> None:
        """Submit the stream, until the last block is over."""
        origin_s = time.time()
        with (
            (self.plan.keep / "jobs.jsonl").open("w", buffering=1) as out,
            ThreadPoolExecutor(AT_ONCE, "submit") as pool,
        ):
            for job in stream(self.plan):
                if self._over.wait(max(0.0, origin_s + job.at_s - time.time())):
                    return
                pool.submit(self._submit_one, job, out.write)

    def _submit_one(self, job: PlannedJob, write: Callable[[str], object]) -> None:
        row: dict[str, object] = {**job.model_dump(), "asked_s": time.time(), "job_id": ""}
        try:
            row["job_id"] = self.cluster.submit(
                n_nodes=job.n_nodes,
                duration_s=job.run_s,
                limit_s=60.0 * job.limit_min,
                extra_args=("--priority=1000",),
            )
        except BftError as problem:
            row["refused"] = problem.cause
        write(json.dumps(row) + "\n")

    def _sample(self) -> None:
        """Note how busy the machine is."""
        with (self.plan.keep / "samples.jsonl").open("w", buffering=1) as out:
            while not self._over.wait(SAMPLE_S):
                out.write(json.dumps({"at_s": time.time(), "load": os.getloadavg()}) + "\n")

    def _block(self, number: int) -> Block:
        arm = self.arms[number % len(self.arms)]
        state = self.directory / f"block{number}" / "state"
        daemon = ArmDaemon(
            state, batch_system="slurm", batch_options=self.cluster.config.batch_options()
        )
        daemon.python = str(arm.python)
        try:
            daemon.start()
            arm.do("submit", str(state), str(self.plan.n_nodes))
            began_s = time.time()
            self.is_enough.wait(60.0 * self.plan.minutes)
            if not daemon.is_running():
                raise BenchError(
                    f"the {arm.name} daemon has ended: {daemon.log.read_text()[-800:]}"
                )
            ended_s, cpu_s = time.time(), _cpu_s(daemon.pid)
            arm.do("leave", str(state))
            self._wait_for_pilots()
        finally:
            daemon.stop()
            for path in (daemon.log, daemon.out):
                shutil.copy(path, self.plan.keep / f"block{number}-{path.name}")
        out = self.plan.keep / f"block{number}-pilots.json"
        self._readers.append(arm.run("read", str(state), str(out)))
        return Block(
            number=number,
            arm=arm.name,
            began_s=began_s,
            ended_s=ended_s,
            left_s=time.time(),
            daemon_cpu_s=cpu_s,
        )

    def _wait_for_pilots(self) -> None:
        """Wait until no pilot is left; those that stay too long are cancelled."""

        def are_gone() -> bool:
            seen = self.cluster.command("squeue", "-h", "-p", "bf", "-o", "%i")
            return seen.is_ok and not seen.stdout.strip()

        try:
            wait_until(are_gone, "pilots leave", patience_s=LEAVE_S, interval_s=2.0)
        except BenchError:
            self.cluster.command("scancel", "--partition=bf")
            wait_until(are_gone, "pilots are cancelled", patience_s=LEAVE_S, interval_s=2.0)


def _cpu_s(pid: int) -> float:
    """Return the processor time of a process and of the children it has waited for."""
    words = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def recorder(plan: Plan, directory: Path, old: Path, new: Path) -> Iterator[Recorder]:
    """Bring up a cluster with two versions of the code beside it, and take it down again."""
    arms = tuple(Arm.copy(n, c, directory) for n, c in (("old", old), ("new", new)))
    config = ClusterConfig(
        directory=directory / "c",
        n_nodes=plan.n_nodes,
        gpus_per_node=0,
        bf_interval_s=plan.bf_interval_s,
        scheduler_parameters=plan.cluster_parameters,
        has_hook=True,
        up_timeout_s=240.0,
    )
    with SlurmTestCluster(config) as cluster:
        yield Recorder(plan=plan, directory=directory, arms=arms, cluster=cluster)
