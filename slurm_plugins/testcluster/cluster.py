"""Starts a real Slurm of several nodes on this host and stops it again.

Used by tests and ``bftrainer-testcluster``. Every node is a slurmd on loopback
with its own port; key, socket, state and logs are in one directory, so any number of clusters can
run side by side, as root or as any user.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from bftrainer.batch import process
from bftrainer.batch.commands import why_failed
from bftrainer.model.errors import BatchSystemError, UsageError
from slurm_plugins.hook import scripts
from slurm_plugins.releases import release_of
from slurm_plugins.testcluster import accounting, power, processes
from slurm_plugins.testcluster.config import ClusterConfig, Site, gpu_devices, render
from slurm_plugins.testcluster.jobs import ORDINARY, JobRunner, Kind, Share
from slurm_plugins.testcluster.sharing import OVER_SUBSCRIBE, RESTRICTED_CORES_SINCE

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol")
_ATTEMPTS = 3
_NULL = (1, 3)
_NO_DRIVER = 120  # major number for local use (Linux, Documentation/admin-guide/devices.txt)
_SUBDIRECTORIES = ("etc", "state", "log", "run", "spool", "ev", "hook", accounting.DATABASE)


class SlurmTestCluster:
    """One cluster; also a context manager that runs it inside its ``with`` block."""

    def __init__(self, config: ClusterConfig) -> None:
        self.config = config
        self.directory = config.directory
        # PATH only, because it becomes the jobs' environment.
        self.env = {"SLURM_CONF": str(config.slurm_conf)}
        self._full_env = {"PATH": config.path, "LC_ALL": "C", **self.env}
        self.jobs = JobRunner(directory=config.directory, env=self._full_env)
        self._accounting_port = 0
        self.up_s: float | None = None  # duration of ``up``
        self.down_s: float | None = None

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Return the cluster that was started in a directory.

        Raises:
            UsageError: BFT-1242, there is none.
        """
        try:
            return cls(ClusterConfig.load(directory))
        except FileNotFoundError as problem:
            raise UsageError(
                "BFT-1242",
                f"There is no test cluster in {directory}.",
                "Bring one up with: bftrainer-testcluster up.",
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
        """Start everything and wait until every node is idle.

        What an earlier run left in the directory is ended and removed first.

        Raises:
            UsageError: BFT-1243, it cannot work here.
            BatchSystemError: BFT-1244, it does not come up.
        """
        started = time.monotonic()
        check_host(self.config)
        for attempt in range(1, _ATTEMPTS + 1):
            self._remove_leftovers()
            self._write_files()
            try:
                self._start_daemons()
                self._wait_idle()
            except BatchSystemError:
                is_port_taken = "Address already in use" in self._logs()
                self.down()
                if not is_port_taken or attempt == _ATTEMPTS:
                    raise
                continue
            self.up_s = time.monotonic() - started
            return

    def down(self) -> None:
        """Cancel all jobs, end all processes; the logs stay in the directory."""
        started = time.monotonic()
        if self._pid("slurmctld") is not None:
            self._cancel_everything()
        self.jobs.end_srun()
        # A slurmd waits for its jobs; those still running now ignore signals.
        processes.kill(self._processes(jobs_only=True))
        daemons = list(map(self._pid, ("slurmctld", "slurmdbd", "munged")))
        daemons += [self._pid("slurmd", name) for name in self.config.node_names]
        processes.end([pid for pid in daemons if pid is not None], patience_s=2)
        processes.kill(self._processes())
        self.down_s = time.monotonic() - started

    def _processes(self, *, jobs_only: bool = False) -> frozenset[int]:
        config = self.config
        return processes.of_cluster(config.slurm_conf, config.cluster_name, jobs_only=jobs_only)

    def _remove_leftovers(self) -> None:
        processes.kill(self._processes())
        for name in _SUBDIRECTORIES:
            shutil.rmtree(self.directory / name, ignore_errors=True)

    def _write_files(self) -> None:
        config = self.config
        self.directory.mkdir(parents=True, exist_ok=True)
        for name in _SUBDIRECTORIES:
            (self.directory / name).mkdir()
            (self.directory / name).chmod(0o755)
        self.directory.chmod(0o755)
        self._accounting_port, *ports = free_ports(config.n_nodes + 2)
        user = pwd.getpwuid(os.geteuid()).pw_name
        site = Site(
            hostname=socket.gethostname().partition(".")[0],
            user=user,
            controller_port=ports[0],
            node_ports=tuple(ports[1:]),
            gpu_devices=gpu_devices(config, own_devices=self._make_devices()),
            added=self._added_settings(),
        )
        for name, text in render(config, site).items():
            (self.directory / "etc" / name).write_text(text)
        if config.saves_power:
            power.install(config)
        if config.has_hook:
            scripts.install(self.directory / "etc", config.hook_file)
        if config.accounting:
            slurmdbd = self.directory / "etc" / "slurmdbd.conf"
            slurmdbd.touch(mode=0o600)  # required by slurmdbd
            slurmdbd.write_text(accounting.render(config, user, self._accounting_port))
        key = self.directory / "etc" / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        config.save()
        self.jobs.install()

    def _added_settings(self) -> dict[str, object]:
        config, port = self.config, self._accounting_port
        settings: dict[str, object] = {}
        if config.accounting:
            settings |= accounting.slurm_settings(config, port)
        if config.saves_power:
            settings |= power.settings(config)
        return settings

    def _make_devices(self) -> bool:
        """Create devices that stand for GPUs; needs root, and fails in some containers.

        All are null devices. Where GPUs are to be hidden from jobs each has a number of its own and
        no driver: opening it fails with EPERM where Slurm forbids it, and with ENXIO where not.
        """
        try:
            for number, device in enumerate(gpu_devices(self.config, own_devices=True)):
                major, minor = _NULL
                if self.config.hides_gpus:
                    major, minor = _NO_DRIVER, number
                os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        except PermissionError:
            return False
        return True

    def _start_daemons(self) -> None:
        run = self.directory / "run"
        self._start(
            "munged",
            "--force",
            f"--key-file={self.directory}/etc/munge.key",
            f"--socket={run}/munge.sock",
            f"--pid-file={run}/munged.pid",
            f"--log-file={self.directory}/log/munged.log",
            f"--seed-file={run}/munged.seed",
        )
        self._start_accounting()
        conf = str(self.config.slurm_conf)
        self._start("slurmctld", "-f", conf, "-c")
        for name in self.config.node_names:
            self._start("slurmd", "-f", conf, "-N", name)

    def _start_accounting(self) -> None:
        if not self.config.accounting:
            return
        user = pwd.getpwuid(os.geteuid()).pw_name
        behind = accounting.Accounting(config=self.config, user=user, env=self._full_env)
        if problem := behind.start(self._accounting_port):
            raise not_up(problem)

    def _start(self, *argv: str) -> None:
        """Start a daemon, which writes a pid file and goes to the background."""
        answer = process.run(argv, timeout_s=20, env=self._full_env, cwd=Path("/"))
        if not answer.is_ok:
            raise not_up(why_failed(answer))

    def _wait_idle(self) -> None:
        deadline_s = time.monotonic() + self.config.up_timeout_s
        last_words = ""
        while time.monotonic() < deadline_s:
            answer = self.command("sinfo", "-h", "-N", "-p", "batch", "-o", "%N %T")
            last_words = answer.stdout
            if not answer.is_ok:
                last_words = why_failed(answer)
            states = dict(line.split() for line in answer.stdout.splitlines())
            if answer.is_ok and states == dict.fromkeys(self.config.node_names, "idle"):
                return
            if self._pid("slurmctld") is None and "Address already in use" in self._logs():
                break
            time.sleep(0.05)
        raise not_up(f"nodes are not idle: {' '.join(last_words.split())[:200]}.")

    def _cancel_everything(self) -> None:
        queue = self.command("squeue", "-h", "-a", "-o", "%A")
        if not queue.is_ok or not queue.stdout.strip():
            return
        self.command("scancel", "-f", *sorted(set(queue.stdout.split())))
        # Jobs that obey end at once; the others are not given their KillWait here.
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            if not self.command("squeue", "-h", "-a", "-o", "%A").stdout.strip():
                return
            time.sleep(0.05)

    def _pid(self, program: str, node: str = "") -> int | None:
        name = f"{program}.pid"
        if node:
            name = f"{program}.{node}.pid"
        return processes.from_pid_file(self.directory / "run" / name, program)

    def _logs(self) -> str:
        return "".join(
            log.read_text(errors="replace")
            for log in sorted((self.directory / "log").glob("*.log"))
        )

    # -- while it is up ------------------------------------------------------------

    def command(self, *argv: str, timeout_s: float = 30.0) -> process.Completed:
        """Run a Slurm command against this cluster."""
        return process.run(argv, timeout_s=timeout_s, env=self._full_env, cwd=Path("/"))

    def submit(
        self,
        *,
        n_nodes: int,
        duration_s: float,
        limit_s: float | None = None,
        user: str | None = ORDINARY,
        kind: Kind = "sbatch",
        partition: str = "batch",
        share: Share | None = None,
        n_tasks: int = 1,
        extra_args: Sequence[str] = (),
    ) -> str:
        """Submit an ordinary job and return its id (see ``JobRunner.submit``)."""
        return self.jobs.submit(
            n_nodes=n_nodes,
            duration_s=duration_s,
            limit_s=limit_s,
            user=user,
            kind=kind,
            partition=partition,
            share=share,
            n_tasks=n_tasks,
            extra_args=extra_args,
        )

    def started_s(self, job_id: str) -> float | None:
        """Start of a submitted job as noted by itself (epoch)."""
        return self.jobs.noted_s(job_id, "START")

    def ended_s(self, job_id: str) -> float | None:
        """End of a submitted job as noted by itself (epoch)."""
        return self.jobs.noted_s(job_id, "END")

    def cancel(self, job_id: str) -> None:
        """Cancel a job; one that is gone is not an error."""
        self.command("scancel", job_id)

    def set_node(self, name: str, state: str, reason: str = "test") -> None:
        """Drain, resume or fail a node, as an administrator would.

        Raises:
            BatchSystemError: BFT-1245, the controller refuses.
        """
        answer = self.command(
            "scontrol", "update", f"NodeName={name}", f"State={state}", f"Reason={reason}"
        )
        if not answer.is_ok:
            cause = f"Node {name} was not changed: {why_failed(answer)}"
            raise BatchSystemError("BFT-1245", cause, "See scontrol(1).")

    def stop_controller(self) -> None:
        """Stop slurmctld; jobs and slurmd continue. Harmless if it is down already."""
        pid = self._pid("slurmctld")
        if pid is not None:
            processes.end([pid], patience_s=10)

    def start_controller(self) -> None:
        """Start slurmctld with its saved state. Harmless if it is up already."""
        if self._pid("slurmctld") is None:
            self._start("slurmctld", "-f", str(self.config.slurm_conf))


def not_up(why: str) -> BatchSystemError:
    """Return the error that the cluster does not come up."""
    return BatchSystemError(
        "BFT-1244",
        f"The test cluster does not come up: {why}",
        "Read the logs in its directory under log/.",
    )


def check_host(config: ClusterConfig) -> None:
    """Refuse configurations that cannot work here, before anything is started."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_path_of(name, config)) is None]
    packages = "slurmctld slurmd slurm-client munge"
    if config.accounting:
        missing += accounting.missing(config.path)
        packages += f" {accounting.PACKAGES}"
    problem = next_step = ""
    if missing:
        problem = f"These programs are not installed: {', '.join(missing)}."
        next_step = f"On Debian: apt-get install {packages}."
        if config.prefix:
            next_step = f"See whether Slurm is installed under {config.prefix}."
    elif not _is_ours(config.directory):
        problem = f"{config.directory} contains something other than a test cluster of yours."
        next_step = "Choose a new directory, or one that an earlier cluster was in."
    elif len(str(config.directory / "run" / "munge.sock")) > 100:
        problem = f"The path {config.directory} is too long for a socket in it."
        next_step = "Choose a directory with a shorter path."
    elif config.n_gpu_files > 5 and os.geteuid() != 0:
        problem = "Without root a node cannot have more than 5 stand-ins for GPUs."
        next_step = "Ask for at most 5, or run as root."
    elif not OVER_SUBSCRIBE.fullmatch(config.sharing.over_subscribe):
        problem = f"A partition cannot be OverSubscribe={config.sharing.over_subscribe}."
        next_step = "Use NO, EXCLUSIVE, YES, FORCE, YES:COUNT or FORCE:COUNT."
    elif config.sharing.restricted_cores_per_gpu and _release(config) < RESTRICTED_CORES_SINCE:
        problem = f"Slurm {_release(config)} has no RestrictedCoresPerGPU."
        next_step = f"Use Slurm {RESTRICTED_CORES_SINCE} or later, with --slurm PREFIX."
    elif closed := _closed_parent(config.directory):
        problem = f"Jobs of ordinary users could not reach {config.directory}: see {closed}."
        next_step = "Choose a directory that every user may enter, such as one under /tmp."
    if problem:
        raise UsageError("BFT-1243", problem, next_step)


def _closed_parent(directory: Path) -> Path | None:
    """Return the first folder above it that ordinary users may not enter; None: they reach it."""
    if os.geteuid() != 0:
        return None  # all jobs are ours
    for parent in directory.resolve().parents:
        if parent.exists() and not parent.stat().st_mode & stat.S_IXOTH:
            return parent
    return None


def _release(config: ClusterConfig) -> str:
    """Return the release of the Slurm that is used."""
    answer = process.run(("slurmctld", "-V"), timeout_s=20, env={"PATH": config.path})
    return release_of(answer.stdout)


def _path_of(program: str, config: ClusterConfig) -> str:
    """Return where a program must be: Slurm's under the prefix, if there is one."""
    if config.prefix and program != "munged":
        return f"{config.prefix}/bin:{config.prefix}/sbin"
    return config.path


def _is_ours(directory: Path) -> bool:
    """Return whether ``up`` may empty the directory: it is new, empty or an earlier cluster's."""
    if directory.is_symlink() or (directory.exists() and not directory.is_dir()):
        return False
    if not directory.exists():
        return True
    is_cluster = (directory / "cluster.json").exists() or not any(directory.iterdir())
    return directory.stat().st_uid == os.geteuid() and is_cluster


def free_ports(count: int) -> tuple[int, ...]:
    """Find unused ports, below those the kernel assigns to connections."""
    ports: list[int] = []
    candidates = random.SystemRandom().sample(range(10_000, 30_000), 2_000)
    with contextlib.ExitStack() as listeners:  # open to the end, so that no port comes twice
        for port in candidates:
            if len(ports) == count:
                break
            listener = listeners.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            ports.append(port)
    if len(ports) < count:
        raise not_up("there are not enough free ports.")
    return tuple(ports)
