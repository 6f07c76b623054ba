"""What is read when all faults are over: pilots, processes, journal, and what workers wrote."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from _bench.nemesis.bed import WORKLOAD, Bed, arguments, place
from _bench.nemesis.keeper import PARTITION
from _bench.nemesis.signals import USER
from _bench.nemesis.verdicts import (
    Free,
    PilotJob,
    Recorded,
    Story,
    kept_updates_s,
    pilot_breaches,
)
from _bench.waiting import BenchError, wait_until
from bftrainer.batch import process
from bftrainer.lab.try_records import epochs
from tests.support.hosts import HostError
from tests.support.hosts.plan import CONTROLLER, LOGIN

SETTLE_S: Final = 90.0  # what is on its way arrives, and what ends has ended
VERB_S: Final = 600.0
LIVE: Final = {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"}
JOBS: Final = ("squeue", "-h", f"-p{PARTITION}", "-tall", "-o%i|%j|%N|%T")
SLURM_LOGS: Final = "/var/log/slurm"
LINES: Final = 6  # of a traceback, the last


def jobs(there: Bed) -> tuple[PilotJob, ...]:
    """Return all pilots' jobs that Slurm knows."""
    rows = [line.split("|") for line in there.cluster.does(CONTROLLER, *JOBS).splitlines()]
    return tuple(
        PilotJob(job_id=row[0], name=row[1], node=row[2], is_live=row[3] in LIVE) for row in rows
    )


def of_daemon(there: Bed) -> dict[str, str]:
    """Return the daemon's pilots by node; none if it does not answer."""
    return {node["name"]: node["pilot_id"] for node in there.daemon.nodes() if node["pilot_id"]}


def pilots(there: Bed) -> tuple[tuple[PilotJob, ...], dict[str, str]]:
    """Return Slurm's and the daemon's as soon as they agree; if they do not, those of the end."""
    seen: tuple[tuple[PilotJob, ...], dict[str, str]] = ((), {})

    def agree() -> bool:
        nonlocal seen
        with contextlib.suppress(HostError):
            seen = jobs(there), of_daemon(there)
            return not pilot_breaches(*seen)
        return False

    with contextlib.suppress(BenchError):
        wait_until(agree, "pilots are settled", patience_s=SETTLE_S, interval_s=1.0)
    return seen


def recorded(
    there: Bed,
    seen: tuple[tuple[PilotJob, ...], dict[str, str]],
    states: Sequence[str],
    ended_s: float,
    free: Sequence[Free],
) -> Recorded:
    """End the daemon, and return all that is judged."""
    there.daemon.says("down")
    left_jobs, orphans = _left(there)
    return Recorded(
        stories=tuple(_story(there, k, states[k], ended_s) for k in range(len(states))),
        free=tuple(free),
        jobs=seen[0],
        pilots=seen[1],
        left_jobs=left_jobs,
        orphans=orphans,
        verify=_says(there, "journal", "verify", _journal(there)),
        replay=_says(there, "replay", _journal(there)),
    )


def _left(there: Bed) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return pilots' jobs and processes that stay, after a while."""
    left: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    def none() -> bool:
        nonlocal left
        with contextlib.suppress(HostError):
            live = (job for job in jobs(there) if job.is_live)
            left = tuple(f"job {one.job_id}, {one.name}" for one in live), tuple(_processes(there))
            return left == ((), ())
        return False

    with contextlib.suppress(BenchError):
        wait_until(none, "nothing is left", patience_s=SETTLE_S, interval_s=1.0)
    return left


def _processes(there: Bed) -> list[str]:
    """Name the user's processes on all hosts."""
    found = []
    for host in there.cluster.plan.hosts:
        for pid in there.cluster.processes(host):
            with contextlib.suppress(OSError):
                entry = Path(f"/proc/{pid}")
                if entry.stat().st_uid == USER:
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found += [f"{host}: {line.strip()}"] if line else []  # a zombie has none
    return found


def _journal(there: Bed) -> str:
    (path,) = there.cluster.home.glob(f"{there.daemon.user}/.bftrainer/*/journal.db")
    return f"/home/{path.relative_to(there.cluster.home)}"


def _says(there: Bed, *words: str) -> str:
    """Run a verb that judges the journal; "": it found nothing."""
    argv = (sys.executable, "-P", "-m", "bftrainer", *words)
    done = there.cluster.run(LOGIN, *argv, user=there.daemon.user, timeout_s=VERB_S)
    said = f"{done.stdout}\n{done.stderr}".strip()
    return "" if done.is_ok else said[-2000:] or f"status {done.returncode}"


def _story(there: Bed, number: int, state: str, ended_s: float) -> Story:
    processes = there.processes(number)
    written = sorted(place(there.directory, number).glob("parameters-*.json"))
    updates_s = kept_updates_s(processes)
    return Story(
        trainer_id=there.trainers[number],
        state=state,
        n_epochs=there.n_epochs,
        expected=undisturbed(number, there.n_epochs),
        parameters={path.stem: tuple(json.loads(path.read_text())) for path in written},
        epochs=tuple(epochs(processes)),
        updates_s=updates_s,
        ended_s=updates_s[-1] if written and updates_s else ended_s,
    )


@cache
def undisturbed(number: int, n_epochs: int) -> tuple[float, ...]:
    """Return the parameters of a trainer that is run alone, without a daemon.

    Raises:
        BenchError: it fails.
    """
    with tempfile.TemporaryDirectory(prefix="bft-nemesis-") as scratch:
        directory = Path(scratch)
        (directory / "hurry").touch()
        argv = (sys.executable, str(WORKLOAD), *arguments(number, n_epochs, directory, directory))
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = process.run(argv, timeout_s=VERB_S, env=environment)
        written = list(directory.glob("parameters-*.json"))
        if not written:
            raise BenchError(f"the undisturbed run failed: {done.stderr[-1000:]}")
        return tuple(json.loads(written[0].read_text()))


def logs(there: Bed) -> list[Path]:
    """Return the logs of daemon, pilots and workers."""
    home = there.cluster.home / there.daemon.user
    return [
        path
        for pattern in (
            ".bftrainer/*/daemon.*",
            ".bftrainer/*/pilots/*/*.log",
            "first/bft-*/logs/*",
        )
        for path in sorted(home.glob(pattern))
        if path.is_file()
    ]


def tracebacks(there: Bed) -> list[str]:
    """Return the last lines of each traceback in a log of daemon or agents.

    Workers that have lost a member may have some.
    """
    found = []
    for path in (one for one in logs(there) if one.name.startswith(("daemon", "agent"))):
        lines = path.read_text(errors="replace").splitlines()
        for number, line in enumerate(lines):
            if line.startswith("Traceback"):
                ends = (k for k in range(number + 1, len(lines)) if not lines[k].startswith(" "))
                end = next(ends, len(lines) - 1)
                found.append(
                    f"{path.name}: {' / '.join(lines[max(number, end - LINES) : end + 1])}"
                )
    return found


def keep(there: Bed, directory: Path) -> None:
    """Copy journal, logs, those of Slurm among them, and records."""
    directory.mkdir(parents=True, exist_ok=True)
    home = there.cluster.home / there.daemon.user
    journals = list(home.glob(".bftrainer/*/journal*"))
    for path in (*logs(there), *journals):
        shutil.copy(path, directory / str(path.relative_to(home)).replace("/", "_").lstrip("."))
    for host in there.cluster.plan.hosts:
        for path in there.cluster.disk(host, SLURM_LOGS).glob("*.log"):
            shutil.copy(path, directory / f"{host}_{path.name}")
    for number in range(len(there.trainers)):
        shutil.copytree(
            place(there.directory, number), directory / f"trainer-{number}", dirs_exist_ok=True
        )
