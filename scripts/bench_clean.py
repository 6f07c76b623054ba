#!/usr/bin/env python3
"""What a give-back leaves on a node, and how long its processes last.

A real agent with one worker that has loader processes, a stray in a session of its own, blocks of
shared memory and temporary files. For each way to end it (the daemon's order, SIGTERM to the agent
or to all processes, SIGKILL of the worker, cancelling the trainer), runtime, number of loader
processes, and in an all-reduce or not: what is left, and the time until no process is. Blocks that
programs of runtime ``command`` name at random are theirs to remove and are not counted. Horovod is
measured where it is installed (``make horovod``). Beside it
``scancel`` of an ordinary job with the same script on a real Slurm, whose preemption is the same.
Prints every target with ``met`` or ``missed``; exits 1 when one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from _bench.benchmark import Benchmark, Measured, note
from _bench.stats import quantile, quantile_interval
from _bench.waiting import BenchError

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bftrainer.elastic.process.worker_keeper import SHARED_MEMORY, children  # noqa: E402
from bftrainer.fleet.runtimes.horovod import BOOTSTRAP  # noqa: E402
from bftrainer.fleet.wire.messages import (  # noqa: E402
    Hello,
    KillWorker,
    Leave,
    StartWorker,
    TellWorker,
)
from bftrainer.ground.protocol import Commit, Member, to_body  # noqa: E402 - tests are not a package
from slurm_plugins.testcluster import ClusterConfig, SlurmTestCluster  # noqa: E402
from tests.integration.agent_harness import Daemon, Lab, until  # noqa: E402
from tests.support.left_over import processes_of  # noqa: E402
from tests.support.processes import below, is_running  # noqa: E402

SCRIPT: Final = ROOT / "scripts" / "workloads" / "clean_train.py"
WAYS: Final = ("release", "SIGTERM", "SIGTERM to all", "SIGKILL of the worker", "cancel")
OF_THE_WORKER: Final = WAYS[3:]
RUNTIMES: Final = ("torch", "command", "mpi", *["horovod"] * (find_spec("horovod") is not None))
FORKED: Final = ("torch", "horovod")  # by a template that stays
COMMITTED: Final = ("command", "horovod")  # go on when they know their size
FREE_S: Final = 0.3  # then the daemon has an agent cancelled (fleet.release)
GIVE_UP_S: Final = 30.0
KEPT: Final = "torchinductor_"  # the cache of torch.compile, which later workers use
ALONE = Commit(
    generation=1,
    attempt=1,
    token="t",  # noqa: S106 - no secret
    members=(Member(worker_id="w1", rank=0, node="n1", address="127.0.0.1"),),
)
BENCHMARK = Benchmark(
    name="clean",
    title="What a give-back leaves",
    about=__doc__,
    quick="two loader processes in an all-reduce, each way and runtime once, one job",
    options={
        "--repeats": {"type": int, "default": 3, "help": "ends of each kind (default 3)"},
        "--jobs": {"type": int, "default": 10, "help": "ordinary jobs (default 10)"},
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What one end has left, and when the last process was gone."""

    way: str
    runtime: str
    loaders: int
    device: str
    free_s: float
    processes: int
    shared: int
    temporary: int


def measure(options: argparse.Namespace, measured: Measured) -> None:
    """End workers and pilots in all ways, then jobs."""
    loaders, devices = ((2,), ("busy",)) if options.quick else ((0, 2), ("idle", "busy"))
    leftovers: list[Left] = []
    for way, runtime, count, device in itertools.product(WAYS, RUNTIMES, loaders, devices):
        for _ in range(1 if options.quick else options.repeats):
            leftovers.append(in_scratch(way, runtime, count, device))
            note(str(leftovers[-1]))
    jobs = ended_jobs(1 if options.quick else options.jobs)
    measured.results = {
        "ends": [asdict(leftover) for leftover in leftovers],
        "jobs": [asdict(j) for j in jobs],
    }
    measured.table(
        "What is left, and time until no process is",
        ("way", "runtime", "ends", "processes", "shared memory", "temporary files", "p50", "p95"),
        [row(way, runtime, leftovers) for way in WAYS for runtime in RUNTIMES]
        + [row("scancel", "ordinary job", jobs)],
        left=2,
    )
    for kind in ("processes", "shared", "temporary"):
        measured.at_most(
            f"{kind} left", sum(getattr(leftover, kind) for leftover in leftovers), 0, unit=""
        )
    times = [leftover.free_s for leftover in leftovers if leftover.way not in OF_THE_WORKER]
    note_of_jobs = f"Slurm: {quantile([j.free_s for j in jobs], 0.95):.2f} s" if jobs else ""
    measured.at_most(
        "until process-free, p95",
        quantile(times, 0.95),
        FREE_S,
        note=note_of_jobs,
        interval=quantile_interval(times, 0.95),
    )


def row(way: str, runtime: str, found: Iterable[Left]) -> tuple[str, ...]:
    """Return a row of the table."""
    of_way = [leftover for leftover in found if (leftover.way, leftover.runtime) == (way, runtime)]
    times = [leftover.free_s for leftover in of_way]
    sums = (
        sum(leftover.processes for leftover in of_way),
        sum(leftover.shared for leftover in of_way),
    )
    return (
        *(
            way,
            runtime,
            str(len(of_way)),
            *map(str, sums),
            str(sum(leftover.temporary for leftover in of_way)),
        ),
        *(f"{quantile(times, q):.3f} s" if times else "-" for q in (0.5, 0.95)),
    )


def in_scratch(way: str, runtime: str, loaders: int, device: str) -> Left:
    """End one worker, in a directory for temporary files of its own."""
    before = os.environ.get("TMPDIR")
    scratch = Path(tempfile.mkdtemp(prefix="bft-clean-", dir="/tmp"))
    os.environ["TMPDIR"] = str(scratch / "tmp")
    (scratch / "tmp").mkdir()
    (scratch / "lab").mkdir()
    try:
        return asyncio.run(one_end(scratch, way, runtime, (str(loaders), device)))
    finally:
        os.environ.pop("TMPDIR") if before is None else os.environ.update(TMPDIR=before)
        shutil.rmtree(scratch, ignore_errors=True)


async def one_end(scratch: Path, way: str, runtime: str, args: tuple[str, str]) -> Left:
    """Start an agent and a worker; end it, and see what is left."""
    lab, before = Lab(scratch / "lab"), shared_files()
    try:
        daemon = await lab.start_daemon()
        agent = lab.start_agent()
        await until(lambda: daemon.of(Hello), "hello")
        daemon.send(order(lab, runtime, args))
        if runtime in COMMITTED:
            await until(lambda: daemon.said("w1", "Warm"), "its keeper is up")
            daemon.send(TellWorker(worker_id="w1", body=to_body(ALONE)))
        files = lab.directory / "files"
        await until(files.exists, "the script has started everything")
        first = min(children(agent.pid))  # the agent also inherits what others left behind
        workers = below(agent.pid) - ({first} if runtime in FORKED else set())
        pids = workers if way in OF_THE_WORKER else workers | {first, agent.pid}
        began_s = time.monotonic()
        end(daemon, way, agent.pid, pids)
        pids_left = awaited(pids)
        free_s = time.monotonic() - began_s
        if way in OF_THE_WORKER:
            await until(lambda: daemon.exited("w1"), "its end")
            daemon.send(Leave(reason="bench"))
        await lab.agent_ended()
    finally:
        await lab.close()
    shared = shared_files() - before
    for file in shared:
        file.unlink(missing_ok=True)
    return Left(
        way=way,
        runtime=runtime,
        loaders=int(args[0]),
        device=args[1],
        free_s=free_s,
        processes=len(pids_left),
        shared=sum(runtime != "command" or file.name.startswith("torch_") for file in shared),
        temporary=len(temporary_in(scratch / "tmp")),
    )


def shared_files() -> set[Path]:
    """Return the files in shared memory: of the whole machine, on which nothing else may run."""
    return set(SHARED_MEMORY.iterdir())


def temporary_in(directory: Path) -> list[Path]:
    """Return the temporary files in a directory, without the cache of torch.compile."""
    return [file for file in directory.iterdir() if not file.name.startswith(KEPT)]


def end(daemon: Daemon, way: str, agent: int, pids: set[int]) -> None:
    """End worker or pilot."""
    match way:
        case "release":
            daemon.send(Leave(reason="bench"))
        case "SIGTERM":
            os.kill(agent, signal.SIGTERM)
        case "SIGTERM to all":
            for pid in sorted(pids, reverse=True):  # loaders first
                os.kill(pid, signal.SIGTERM)
        case "SIGKILL of the worker":
            os.kill(max(pids, key=lambda pid: len(below(pid) & pids) if is_worker(pid) else -1), 9)
        case _:
            daemon.send(KillWorker(worker_id="w1"))


def is_worker(pid: int) -> bool:
    """Return whether a process is one that the agent names, not a keeper of it."""
    return os.getsid(pid) == pid


def awaited(pids: set[int]) -> set[int]:
    """Wait until none of the processes runs; return those that do not end."""
    until_s = time.monotonic() + GIVE_UP_S
    while pids := {pid for pid in pids if is_running(pid)}:
        if time.monotonic() > until_s:
            break
        time.sleep(0.002)
    return pids


def order(lab: Lab, runtime: str, args: tuple[str, str]) -> StartWorker:
    """Return the order of a worker."""
    if runtime == "horovod":
        return lab.order("w1", BOOTSTRAP, args=("0", str(SCRIPT), *args, runtime))
    if runtime != "command":
        order = lab.order("w1", SCRIPT, args=args)
        mpi = {"program": "trainers.mpi", "options": {"interpreter": sys.executable}}
        return order.model_copy(update=mpi if runtime == "mpi" else {})
    order = lab.order(
        "w1", Path(sys.executable), args=(str(SCRIPT), *args), checkpoint_dir=str(lab.directory)
    )
    options: dict[str, object] = {
        "launch": "every", "stop_signal": "USR1", "save_signal": "none", "saved_status": 85,
        "grace_s": 20.0, "run": "t1@1.0",
    }  # fmt: skip
    return order.model_copy(update={"program": "trainers.command", "options": options})


def ended_jobs(count: int) -> list[Left]:
    """Cancel ordinary jobs with the same script on a real Slurm."""
    directory = Path(tempfile.mkdtemp(prefix="bft-clean-", dir="/tmp"))
    directory.chmod(0o755)
    leftovers: list[Left] = []
    try:
        with SlurmTestCluster(ClusterConfig(directory=directory / "slurm", n_nodes=1)) as cluster:
            for number in range(count):
                leftovers.append(ended_job(cluster, directory / str(number)))
                note(str(leftovers[-1]))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return leftovers


def ended_job(cluster: SlurmTestCluster, place: Path) -> Left:
    """Cancel one job; end what it leaves."""
    temporary = place / "tmp"
    temporary.mkdir(parents=True)
    answer = cluster.command(
        *("sbatch", "--parsable", "-N1", f"--chdir={place}", "--output=/dev/null"),
        *(f"--export=ALL,TMPDIR={temporary}", "--wrap", f"exec {sys.executable} {SCRIPT} 2 busy"),
    )
    until_s = time.monotonic() + 120.0
    while not (place / "files").exists():
        if time.monotonic() > until_s:
            raise BenchError(f"the job does not start: {answer}")
        time.sleep(0.1)
    pids = set(processes_of(temporary))
    began_s = time.monotonic()
    cluster.cancel(answer.stdout.strip())
    pids_left = awaited(pids)
    free_s = time.monotonic() - began_s
    for pid in pids_left:
        os.kill(pid, signal.SIGKILL)
    remaining = [f for f in map(Path, json.loads((place / "files").read_text())) if f.exists()]
    for file in remaining:
        file.unlink(missing_ok=True)
    return Left(
        way="scancel", runtime="ordinary job", loaders=2, device="busy", free_s=free_s,
        processes=len(pids_left), shared=len(remaining), temporary=len(temporary_in(temporary)),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(BENCHMARK.main(measure))
