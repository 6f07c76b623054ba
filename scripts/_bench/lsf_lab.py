"""Ordinary jobs on a real volclava, on idle hosts and on hosts with a pilot that leaves.

A ``Lane`` is one cluster with its settings of MBD_SLEEP_TIME. Seconds from the call of bsub to the
job's own note of its start go out. Called by ``bench_lsf_harm``.
"""

from __future__ import annotations

import itertools
import random
import select
import shutil
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from _bench.waiting import wait_until
from bftrainer.batch.batch_system import PilotRequest
from bftrainer.model.errors import BatchSystemError
from lsf_adapters.adapter import create
from lsf_adapters.notifications.watch import EventsFile
from tests.support.volclava import RealVolclava, VolclavaConfig

PATIENCE_S: Final = 150.0
TIMEOUT_S: Final = 25.0  # of the adapter; bsub repeats its request every 10 s
_POLL_S: Final = 1.0  # between two polls
_ACCOUNT: Final = "bft"  # of pilots: volclava refuses jobs of root
_numbers = itertools.count(1)

# Leaves when it is told to, as the agent does: by the daemon (here a file), or by SIGTERM.
_PILOT: Final = """\
import os, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("started", flush=True)
while not os.path.exists(sys.argv[1]):
    if signal.sigtimedwait([signal.SIGTERM], 0.005):
        break
print(f"left {time.time()}", flush=True)
os._exit(0)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """What one ordinary job met; seconds after bsub was called."""

    started_s: float
    told_s: float | None = None  # lsb.events showed the job
    left_s: float | None = None  # the pilot's program ended


@dataclass(slots=True, kw_only=True)
class Repeated:
    """What became of one submission while mbatchd was stopped."""

    n_jobs: int  # of one bsub
    n_left: int  # of them, one poll later
    n_agents: int  # programs that were started
    said: str  # by the adapter


class Lane:
    """One cluster; a context manager that runs it."""

    def __init__(self, prefix: Path, mbd_sleep_s: int, seed: int) -> None:
        self.mbd_sleep_s = mbd_sleep_s
        self.directory = Path(tempfile.mkdtemp(prefix="bft-volclava-"))
        is_fast = mbd_sleep_s < 10  # else as an installation without settings
        self.cluster = RealVolclava(
            VolclavaConfig(
                directory=self.directory / "lab",
                prefix=prefix,
                n_nodes=2,
                mbd_sleep_s=mbd_sleep_s,
                sbd_sleep_s=2 if is_fast else 7,
                new_job_sched_delay_s=0 if is_fast else None,
            )
        )
        self._chance = random.Random(seed)  # noqa: S311 - pauses
        self._system = create(
            {**self.cluster.batch_options(), "user": _ACCOUNT, "command_timeout_s": TIMEOUT_S}
        )

    def __enter__(self) -> Self:
        try:
            self.cluster.up()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        source = self.cluster.directory / "pilot.py"
        source.write_text(_PILOT)
        source.chmod(0o644)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cluster.down()
        shutil.rmtree(self.directory)

    # -- an ordinary job -----------------------------------------------------------

    def idle_host(self) -> Delay:
        """An ordinary job for an idle host."""
        self._tidy()
        return self._ordinary()

    def pilot_leaves(self) -> Delay:
        """The same for a host whose pilot leaves when lsb.events shows the job."""
        self._tidy()
        request = self._request()
        self._system.launch_pilot(request)
        wait_until(lambda: "started" in _read(request.log_path), "a pilot", patience_s=PATIENCE_S)
        self._pause()
        options = self.cluster.batch_options()
        events = EventsFile(Path(options["events_file"]), options["pilot_queue"])
        told: list[float] = []

        def leave_when_told() -> None:
            deadline_s = time.monotonic() + 30
            while time.monotonic() < deadline_s:
                select.select([events], [], [], 1.0)
                if any(said.job is not None for said in events.read()):
                    _flag(request).touch()
                    told.append(time.time())
                    return

        watcher = threading.Thread(target=leave_when_told)
        watcher.start()
        began_s = time.time()
        try:
            delay = self._ordinary()
        finally:
            watcher.join()
            events.close()
        left = _read(request.log_path).rpartition("left ")[2]
        return Delay(
            started_s=delay.started_s, told_s=told[0] - began_s, left_s=float(left) - began_s
        )

    def _ordinary(self) -> Delay:
        host, began_s = self.cluster.node_names[0], time.time()
        job_id = self.cluster.submit(n_nodes=1, duration_s=600, extra_args=("-m", host))
        started_s = wait_until(
            lambda: self.cluster.started_s(job_id), "the ordinary job", patience_s=PATIENCE_S
        )
        return Delay(started_s=started_s - began_s)

    # -- mbatchd does not answer ---------------------------------------------------

    def submit_to_nobody(self, stall_s: float) -> Repeated:
        """Launch a pilot while mbatchd is stopped, then poll once when it is back.

        Args:
            stall_s: how long it is stopped. Beyond twice ``TIMEOUT_S`` the launch fails, and what
                it made is to end by itself; below, one pilot is kept.
        """
        self._tidy()
        self._system.snapshot()  # a daemon has polled before it launches
        request, said = self._request(), "accepted"
        self.cluster.stop_controller()
        wakes = threading.Timer(stall_s, self.cluster.start_controller)
        wakes.start()
        try:
            self._system.launch_pilot(request)
        except BatchSystemError as problem:
            said = problem.code
        finally:
            wakes.join()
        jobs = wait_until(
            lambda: found if len(found := self._jobs_of(request, "-a")) > 1 else None,
            "the repeated requests of one bsub",
            patience_s=PATIENCE_S,
        )
        self._system.snapshot()
        time.sleep(_POLL_S)
        n_left = len(self._jobs_of(request))
        if said == "accepted":
            time.sleep(2 * self.mbd_sleep_s)  # an agent would have started by now
        n_agents = _read(request.log_path).count("started")
        return Repeated(n_jobs=len(jobs), n_left=n_left, n_agents=n_agents, said=said)

    def _jobs_of(self, request: PilotRequest, *options: str) -> list[str]:
        done = self.cluster.command("bjobs", "-u", _ACCOUNT, "-w", *options)
        return [line for line in done.stdout.splitlines() if f" {request.pilot_id}." in line]

    # -- both ----------------------------------------------------------------------

    def _request(self) -> PilotRequest:
        name = f"p{next(_numbers):06d}"
        log_path = self.cluster.directory / "scratch" / f"{name}.log"
        source = self.cluster.directory / "pilot.py"
        return PilotRequest(
            pilot_id=name,
            node=self.cluster.node_names[0],
            time_limit_s=600,
            agent_argv=(sys.executable, "-I", str(source), str(log_path.with_suffix(".leave"))),
            log_path=log_path,
            gpus=0,
            environment={},
        )

    def _tidy(self) -> None:
        """End all jobs, wait for idle hosts, and begin anywhere in the scheduler's cycle."""

        def is_tidy() -> bool:
            self.cluster.command("bkill", "-s", "KILL", "-u", "all", "0")
            nothing = self.cluster.command("bjobs", "-u", "all").returncode == 254
            states = self.cluster.host_states()
            return nothing and all(states.get(n) == "ok" for n in self.cluster.node_names)

        wait_until(is_tidy, "an empty cluster", patience_s=PATIENCE_S, interval_s=0.5)
        self._pause()

    def _pause(self) -> None:
        time.sleep(self.mbd_sleep_s * (1 + self._chance.random()))


def _flag(request: PilotRequest) -> Path:
    return request.log_path.with_suffix(".leave")


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
