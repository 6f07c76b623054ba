"""Starts a stand-in of LSF on this host and stops it again.

Used by tests. Server, commands, journal and job files are in one directory, so any number of
clusters can run side by side, as root or as any user.
"""

from __future__ import annotations

import contextlib
import math
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import lsf_adapters
from bftrainer.batch import process
from bftrainer.model.errors import BatchSystemError, UsageError
from lsf_adapters.testcluster import processes
from lsf_adapters.testcluster.config import LsfConfig
from lsf_adapters.testcluster.files import install

ORDINARY = "ordinary"
"""Submit as an unprivileged account if we are root, else as ourselves."""

_SUBDIRECTORIES = ("bin", "conf", "etc", "ev", "jobs", "lib", "log", "run", "work")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class LsfTestCluster:
    """One cluster; also a context manager that runs it inside its ``with`` block."""

    def __init__(self, config: LsfConfig) -> None:
        self.config = config
        self.directory = config.directory
        self.env = {"PATH": f"{config.bin}:{_PATH}", "LSF_ENVDIR": str(config.conf)}
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def node_names(self) -> tuple[str, ...]:
        """All hosts with slots."""
        return self.config.node_names

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Return the cluster that was started in a directory.

        Raises:
            UsageError: BFT-1276, there is none.
        """
        try:
            return cls(LsfConfig.load(directory))
        except FileNotFoundError as problem:
            raise UsageError(
                "BFT-1276",
                f"There is no stand-in of LSF in {directory}.",
                "Start one with LsfTestCluster(LsfConfig(directory=...)).up().",
            ) from problem

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.down()

    # -- up and down -------------------------------------------------------------

    def up(self) -> None:
        """Start mbatchd and wait until it answers.

        What an earlier run left in the directory is ended and removed first.

        Raises:
            UsageError: BFT-1277, it cannot work here.
            BatchSystemError: BFT-1278, it does not come up.
        """
        check_directory(self.config.directory)
        self._remove_leftovers()
        self.directory.mkdir(parents=True, exist_ok=True)
        for name in _SUBDIRECTORIES:
            (self.directory / name).mkdir()
            (self.directory / name).chmod(0o755)
        (self.directory / "ev").chmod(0o1777)  # any user's job notes its start and end there
        self.directory.chmod(0o755)
        self.config.logdir.mkdir(parents=True)
        self.config.save()
        install(self.config)
        self.start_controller()

    def down(self) -> None:
        """End all jobs and the server; the files stay in the directory."""
        processes.end(self._server_pids(), patience_s=2.0)
        self._end_everything()
        self._collect()

    def _remove_leftovers(self) -> None:
        self._end_everything()
        for name in _SUBDIRECTORIES:
            shutil.rmtree(self.directory / name, ignore_errors=True)

    def _end_everything(self) -> None:
        processes.kill(self._server_pids())  # first: it would start further jobs
        processes.kill_all(lambda: processes.of_jobs(self.config.conf))

    def _server_pids(self) -> frozenset[int]:
        return processes.of_server(self.directory)

    def _collect(self) -> None:
        """Collect our own ended server."""
        if self._server is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(2.0)
            self._server = None

    # -- daemons --------------------------------------------------------------------

    def stop_controller(self) -> None:
        """Stop mbatchd without ending it: requests wait, and are served when it goes on."""
        for pid in self._server_pids():
            os.kill(pid, signal.SIGSTOP)

    def kill_controller(self) -> None:
        """Kill mbatchd: nobody listens any more. Jobs go on."""
        processes.kill(self._server_pids())
        self._collect()

    def start_controller(self) -> None:
        """Let mbatchd go on, or start it; waits until it answers.

        Raises:
            BatchSystemError: BFT-1278, it does not answer.
        """
        pids = self._server_pids()
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        if not pids:
            self._spawn()
        deadline = time.monotonic() + self.config.up_timeout_s
        while time.monotonic() < deadline:
            if self._listens() and self._order("ping").is_ok:
                return
            if self._server is not None and self._server.poll() is not None:
                break
            time.sleep(0.02)
        log = (self.directory / "log" / "mbatchd.log").read_text(errors="replace")
        raise BatchSystemError(
            "BFT-1278",
            f"The stand-in of LSF does not come up: {log[-300:] or 'no answer.'}",
            f"Read {self.directory}/log/mbatchd.log.",
        )

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(str(self.config.socket)) == 0

    def _spawn(self) -> None:
        root = Path(lsf_adapters.__file__).parents[1]
        with (self.directory / "log" / "mbatchd.log").open("ab") as log:
            self._server = process.spawn(
                (
                    *process.own_python("lsf_adapters.testcluster.server"),
                    str(self.directory),
                ),
                env={"PATH": _PATH, "PYTHONPATH": str(root), "LC_ALL": "C.UTF-8", **_zone()},
                cwd=Path("/"),
                stderr=log,
            )

    def stop_lim(self) -> None:
        """Stop the load information manager of the master host."""
        (self.directory / "run" / "lim.stopped").touch()

    def start_lim(self) -> None:
        """Let it go on."""
        (self.directory / "run" / "lim.stopped").unlink(missing_ok=True)

    def kill_host(self, name: str, *, processes_too: bool = False) -> None:
        """Kill lim and sbatchd of a host, and, if asked, its jobs' processes."""
        words = ["kill_host", name]
        if processes_too:
            words.append("processes")
        self._ordered(*words)

    def kill_sbatchd(self, name: str) -> None:
        """Kill sbatchd of a host alone."""
        self._ordered("kill_sbatchd", name)

    def start_host(self, name: str) -> None:
        """Start the daemons of a host again."""
        self._ordered("start_host", name)

    def fail_start(self, name: str) -> None:
        """Let the next start on a host fail: the job is RUN, has no process and waits again."""
        self._ordered("fail_start", name)

    def set_host(self, name: str, action: Literal["close", "open"]) -> None:
        """Close or open a host as an administrator would."""
        self._checked(self.command("badmin", f"h{action}", name))

    def spoil(self, command: str, how: str | None) -> None:
        """Spoil the answers of a command (see ``faults.SPOILS``); ``None``: no longer."""
        self._ordered("spoil", command, how or "none")

    def _ordered(self, *words: str) -> None:
        self._checked(self._order(*words))

    def _order(self, *words: str) -> process.Completed:
        timeout_s = min(2.0, self.config.up_timeout_s)
        return process.run(
            (str(self.config.directory / "lib" / "_fault"), *words),
            timeout_s=timeout_s,
            env=self.env,
        )

    def _checked(self, done: process.Completed) -> None:
        if not done.is_ok:
            raise BatchSystemError(
                "BFT-1279",
                f"The stand-in of LSF refused {' '.join(done.argv)}: {done.stderr.strip()}",
                "Is it up? See its log.",
            )

    # -- commands and jobs ------------------------------------------------------------

    def command(
        self, *argv: str, user: str | None = None, stdin: str = "", timeout_s: float = 30.0
    ) -> process.Completed:
        """Run a command of the cluster, as us or as another account."""
        program, *arguments = argv
        path = self.config.bin / program
        if path.exists():
            program = str(path)
        return process.run(
            (*_as_user(user), program, *arguments),
            timeout_s=timeout_s,
            env=self.env,
            cwd=Path("/"),
            stdin=stdin,
        )

    def submit(
        self,
        *,
        n_nodes: int,
        duration_s: float,
        limit_s: float | None = None,
        user: str | None = ORDINARY,
        queue: str = "normal",
        extra_args: Sequence[str] = (),
    ) -> str:
        """Submit an ordinary job of whole nodes and return its id.

        ``limit_s`` is rounded up to minutes; the default is slightly above the duration.

        Raises:
            BatchSystemError: BFT-1280, it is refused.
        """
        slots = self.config.slots_per_node
        if limit_s is None:
            limit_s = duration_s + 5
        limit_min = max(1, math.ceil(limit_s / 60))
        answer = self.command(
            *("bsub", "-q", queue, "-n", str(n_nodes * slots), "-R", f"span[ptile={slots}]"),
            *("-W", str(limit_min), "-o", "/dev/null", *extra_args),
            *("sh", str(self.directory / "lib" / "job.sh"), str(self.directory / "ev")),
            f"{duration_s:.3f}",
            user=user,
        )
        if not answer.is_ok:
            raise BatchSystemError(
                "BFT-1280",
                f"The stand-in of LSF did not accept the job: {answer.stderr.strip()}",
                "Check its size and limit against the cluster with bhosts.",
            )
        _, _, behind_bracket = answer.stdout.partition("<")
        job_id, _, _ = behind_bracket.partition(">")
        return job_id

    def started_s(self, job_id: str) -> float | None:
        """Start of a submitted job as noted by itself (epoch)."""
        return self._noted_s(job_id, "START")

    def ended_s(self, job_id: str) -> float | None:
        """End of a submitted job as noted by itself (epoch); a killed one notes none."""
        return self._noted_s(job_id, "END")

    def _noted_s(self, job_id: str, word: str) -> float | None:
        try:
            text = (self.directory / "ev" / job_id).read_text()
        except FileNotFoundError:
            return None
        for line in text.splitlines():
            words = line.split()
            if words[1:2] == [word]:
                return float(words[0])
        return None

    def cancel(self, job_id: str) -> None:
        """Cancel a job; one that is gone is not an error."""
        self.command("bkill", job_id)


def _zone() -> dict[str, str]:
    if "TZ" not in os.environ:
        return {}
    return {"TZ": os.environ["TZ"]}


def _as_user(user: str | None) -> tuple[str, ...]:
    """Return what starts a command as another account; only root can."""
    if user is None or os.geteuid() != 0:
        return ()
    names: tuple[str, ...] = (user,)
    if user == ORDINARY:
        names = ("nobody", "games", "daemon")  # the first that this machine has
    for name in names:
        with contextlib.suppress(KeyError):
            account = pwd.getpwnam(name)
            if account.pw_uid == 0:
                return ()
            ids = (f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}")
            return ("setpriv", *ids, "--clear-groups")
    raise UsageError("BFT-1289", f"There is no account {' or '.join(names)}.", "Name another.")


def check_directory(directory: Path) -> None:
    """Refuse a directory that cannot hold a cluster, before anything is started.

    Raises:
        UsageError: BFT-1277.
    """
    problem = next_step = ""
    if not _is_ours(directory):
        problem = f"{directory} contains something other than a stand-in of LSF of yours."
        next_step = "Choose a new directory, or one that an earlier cluster was in."
    elif len(str(directory / "run" / "mbatchd")) > 100:
        problem = f"The path {directory} is too long for a socket in it."
        next_step = "Choose a directory with a shorter path."
    elif closed_parent := _closed_parent(directory):
        problem = f"Jobs of ordinary users could not reach {directory}: see {closed_parent}."
        next_step = "Choose a directory that every user may enter, such as one under /tmp."
    if problem:
        raise UsageError("BFT-1277", problem, next_step)


def _closed_parent(directory: Path) -> Path | None:
    """Return the first folder above it that ordinary users may not enter; None: they reach it."""
    if os.geteuid() != 0:
        return None  # all jobs are ours
    for parent in directory.resolve().parents:
        if parent.exists() and not parent.stat().st_mode & stat.S_IXOTH:
            return parent
    return None


def _is_ours(directory: Path) -> bool:
    """Return whether ``up`` may empty the directory: it is new, empty or an earlier cluster's."""
    if directory.is_symlink() or (directory.exists() and not directory.is_dir()):
        return False
    if not directory.exists():
        return True
    is_cluster = (directory / "cluster.json").exists() or not any(directory.iterdir())
    return directory.stat().st_uid == os.geteuid() and is_cluster
