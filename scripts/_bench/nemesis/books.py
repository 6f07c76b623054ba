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
LOGS: Final = (".bftrainer/*/daemon.*", ".bftrainer/*/pilots/*/*.log", "first/bft-*/logs/*")


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
    latest: tuple[tuple[PilotJob, ...], dict[str, str]] = ((), {})

    def agree() -> bool:
        nonlocal latest
        with contextlib.suppress(HostError):
            latest = jobs(there), of_daemon(there)
            return not pilot_breaches(*latest)
        return False

    with contextlib.suppress(BenchError):
        wait_until(agree, "pilots are settled", patience_s=SETTLE_S, interval_s=1.0)
    return latest


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
        stories=tuple(_story(there, k, state, ended_s) for k, state in enumerate(states)),
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
    remains: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    def none() -> bool:
        nonlocal remains
        with contextlib.suppress(HostError):
            live = [f"job {job.job_id}, {job.name}" for job in jobs(there) if job.is_live]
            remains = tuple(live), tuple(_processes(there))
            return remains == ((), ())
        return False

    with contextlib.suppress(BenchError):
        wait_until(none, "nothing is left", patience_s=SETTLE_S, interval_s=1.0)
    return remains


def _processes(there: Bed) -> list[str]:
    """Name the user's processes on all hosts."""
    processes = []
    for host in there.cluster.plan.hosts:
        for pid in there.cluster.processes(host):
            with contextlib.suppress(OSError):
                entry = Path(f"/proc/{pid}")
                if entry.stat().st_uid == USER:
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    if line:  # a zombie has none
                        processes.append(f"{host}: {line.strip()}")
    return processes


def _journal(there: Bed) -> str:
    (path,) = there.cluster.home.glob(f"{there.daemon.user}/.bftrainer/*/journal.db")
    return f"/home/{path.relative_to(there.cluster.home)}"


def _says(there: Bed, *words: str) -> str:
    """Run a verb that judges the journal; "": it found nothing."""
    argv = (sys.executable, "-P", "-m", "bftrainer", *words)
    ended = there.cluster.run(LOGIN, *argv, user=there.daemon.user, timeout_s=VERB_S)
    if ended.is_ok:
        return ""
    text = f"{ended.stdout}\n{ended.stderr}".strip()
    return text[-2000:] or f"status {ended.returncode}"


def _story(there: Bed, number: int, state: str, ended_s: float) -> Story:
    processes = there.processes(number)
    results = sorted(place(there.directory, number).glob("parameters-*.json"))
    updates_s = kept_updates_s(processes)
    return Story(
        trainer_id=there.trainers[number],
        state=state,
        n_epochs=there.n_epochs,
        expected=undisturbed(number, there.n_epochs),
        parameters={path.stem: tuple(json.loads(path.read_text())) for path in results},
        epochs=tuple(epochs(processes)),
        updates_s=updates_s,
        ended_s=updates_s[-1] if results and updates_s else ended_s,
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
        ended = process.run(argv, timeout_s=VERB_S, env=environment)
        results = list(directory.glob("parameters-*.json"))
        if not results:
            raise BenchError(f"the undisturbed run failed: {ended.stderr[-1000:]}")
        return tuple(json.loads(results[0].read_text()))


def logs(there: Bed) -> list[Path]:
    """Return the logs of daemon, pilots and workers."""
    home = there.cluster.home / there.daemon.user
    paths: list[Path] = []
    for pattern in LOGS:
        paths += sorted(home.glob(pattern))
    return [path for path in paths if path.is_file()]


def tracebacks(there: Bed) -> list[str]:
    """Return the last lines of each traceback in a log of daemon or agents.

    Workers that have lost a member may have some.
    """
    texts = []
    for path in logs(there):
        if not path.name.startswith(("daemon", "agent")):
            continue
        lines = path.read_text(errors="replace").splitlines()
        for number, line in enumerate(lines):
            if line.startswith("Traceback"):
                end = number + 1
                while end < len(lines) - 1 and lines[end].startswith(" "):
                    end += 1
                last_lines = lines[max(number, end - LINES) : end + 1]
                texts.append(f"{path.name}: {' / '.join(last_lines)}")
    return texts


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
