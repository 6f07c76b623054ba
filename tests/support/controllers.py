"""A test cluster with a backup controller, and hosts of it whose clocks are wrong.

The backup is a second slurmctld with a host name and address of its own (namespaces); a host with
another clock has a munged of its own under libfaketime, which Slurm's commands there use.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bftrainer.batch import process
from slurm_plugins.testcluster import SlurmTestCluster, processes
from tests.support.clocks import PythonClock
from tests.support.waiting import wait_for

FAKETIME = next(iter(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")), None)
BACKUP = "bft-backup"


class BackupCluster(SlurmTestCluster):
    """One whose second controller takes over."""

    def _write_files(self) -> None:
        super()._write_files()
        own = f"SlurmctldHost={socket.gethostname().partition('.')[0]}(127.0.0.1)\n"
        text = self.config.slurm_conf.read_text()
        assert text.count(own) == 1
        text = text.replace(own, f"{own}SlurmctldHost={BACKUP}(127.0.0.2)\n")
        # Else both controllers would listen on all addresses, with one port.
        text = text.replace("NoAddrCache", "NoAddrCache,NoCtldInAddrAny")
        self.config.slurm_conf.write_text(f"{text}SlurmctldTimeout=10\n")

    def start_backup(self) -> None:
        """Start the second controller, which waits for the end of the first."""
        etc = self.directory / "backup"
        shutil.copytree(self.directory / "etc", etc, dirs_exist_ok=True)
        text = self.config.slurm_conf.read_text()
        for name in ("run/slurmctld.pid", "log/slurmctld.log"):
            text = text.replace(name, name.replace("slurmctld", "backup"))
        (etc / "slurm.conf").write_text(text)
        (etc / "hosts").write_text(f"127.0.0.2 {BACKUP}\n{Path('/etc/hosts').read_text()}")
        become = f"hostname {BACKUP} && mount --bind hosts /etc/hosts"
        script = f"{become} && exec slurmctld -f {etc}/slurm.conf"
        argv = ("unshare", "--uts", "--mount", "sh", "-c", script)
        done = process.run(argv, timeout_s=20, env=self._full_env, cwd=etc)
        assert done.is_ok, done.stderr
        wait_for(
            lambda: f"(backup) at {BACKUP} is UP" in self.command("scontrol", "ping").stdout,
            what="the backup is up",
        )

    def stop_backup(self) -> None:
        """Stop it, if it runs."""
        pid = processes.from_pid_file(self.directory / "run" / "backup.pid", "slurmctld")
        if pid is not None:
            processes.end([pid], patience_s=10)

    def down(self) -> None:
        """Stop the second controller, too."""
        self.stop_backup()
        super().down()


def munge_argv(directory: Path, name: str) -> tuple[str, ...]:
    """Start a munged with the key of the cluster in a directory."""
    run = directory / "run"
    return (
        *("munged", "--force", f"--key-file={directory}/etc/munge.key"),
        *(f"--socket={run}/{name}.sock", f"--pid-file={run}/{name}d.pid"),
        *(f"--log-file={directory}/log/{name}d.log", f"--seed-file={run}/{name}d.seed"),
    )


def stop_munge(directory: Path, name: str) -> None:
    """Stop such a munged."""
    pid = processes.from_pid_file(directory / "run" / f"{name}d.pid", "munged")
    assert pid is not None
    processes.end([pid], patience_s=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherClock:
    """A host with a clock of its own, from which the cluster is used."""

    cluster: SlurmTestCluster
    directory: Path

    @property
    def _python(self) -> PythonClock:
        return PythonClock(self.directory)

    @property
    def slurm_conf(self) -> Path:
        """The same cluster, by this host's munge."""
        return self.directory / "slurm.conf"

    @property
    def clock(self) -> dict[str, str]:
        """The environment in which a program has this host's clock."""
        return {
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(self._python.file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    @property
    def environment(self) -> dict[str, str]:
        """Of a daemon there: it and its sbatch have this host's clock, its pilots do not."""
        return {
            **self._python.environment(),
            "PATH": f"{self.directory / 'bin'}:{self.cluster.config.path}",
        }

    def set_ahead(self, seconds: int) -> None:
        """Set its clock, so far ahead of the cluster's."""
        self._python.set_ahead(seconds)

    def write_programs(self) -> None:
        """Write what such a daemon has."""
        clock = " ".join(f"{key}={value}" for key, value in self.clock.items())
        real = shutil.which("sbatch", path=self.cluster.config.path)
        kept = "PATH,HOME,USER,LOGNAME,SLURM_CONF"
        sbatch = self.directory / "bin" / "sbatch"
        sbatch.parent.mkdir()
        sbatch.write_text(f'#!/bin/sh\nexec env {clock} {real} "$@" --export={kept}\n')
        sbatch.chmod(0o755)


@contextmanager
def other_clock(cluster: SlurmTestCluster) -> Iterator[OtherClock]:
    """Add such a host to a cluster."""
    host = OtherClock(cluster=cluster, directory=cluster.directory / "other")
    shutil.copytree(cluster.directory / "etc", host.directory)
    text = host.slurm_conf.read_text()
    assert "run/munge.sock" in text
    host.slurm_conf.write_text(text.replace("run/munge.sock", "run/other.sock"))
    host.set_ahead(0)
    host.write_programs()
    argv = munge_argv(cluster.directory, "other")
    env = {"PATH": cluster.config.path, **host.clock}
    started = process.run(argv, timeout_s=20, env=env, cwd=Path("/"))
    assert started.is_ok, started.stderr
    try:
        yield host
    finally:
        stop_munge(cluster.directory, "other")
