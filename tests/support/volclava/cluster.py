"""``RealVolclava``: a cluster of real daemons, used like the stand-in's test cluster."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from bftrainer.batch import process
from tests.support.volclava.config import ACCOUNTS, MASTER, VolclavaConfig, render
from tests.support.volclava.namespaces import Lab
from tests.support.waiting import wait_for

_SUBMITTED: Final = re.compile(r"Job <(\d+)> is submitted")
_HOST_DAEMONS: Final = ("lim", "res", "sbatchd", "pim")
_SUBDIRECTORIES = ("conf", "bin", "work", "log", "home", "stage", "etc", "ev", "scratch")

# Notes its own start and end, to be compared with what the commands say.
_WORK = """\
echo "$(date +%s.%N) START" >> {notes}/$LSB_JOBID
sleep {duration_s}
echo "$(date +%s.%N) END" >> {notes}/$LSB_JOBID
"""


class RealVolclava:
    """One cluster; also a context manager that runs it inside its ``with`` block."""

    def __init__(self, config: VolclavaConfig) -> None:
        self.config = config
        self.directory = config.directory
        self.node_names = config.node_names
        self.slots_per_node = config.slots_per_node
        self.lab = Lab(config)
        self.env = {
            "PATH": f"{config.bindir}:/usr/bin:/bin",
            "LSF_ENVDIR": str(config.lsf_envdir),
        }
        self.up_s: float | None = None

    def __enter__(self) -> Self:
        try:
            self.up()
        except BaseException:
            self.down()
            raise
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
        """Start everything and wait until every host is ok."""
        began_s = time.monotonic()
        self._write_files()
        self.lab.up()
        self.lab.write_wrappers(MASTER, "bft")
        for host in self.config.host_names:
            self._start_daemons(host)
        # They learn of each other at lim's exchanges, every 15 s.
        wait_for(
            self._is_ready,
            timeout_s=self.config.up_timeout_s,
            interval_s=0.5,
            what="all hosts ok",
        )
        self.up_s = time.monotonic() - began_s

    def down(self) -> None:
        """End all processes, and with them namespaces and mounts; the logs stay."""
        self.lab.down()

    def _write_files(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        for name in _SUBDIRECTORIES:
            shutil.rmtree(self.directory / name, ignore_errors=True)
            (self.directory / name).mkdir()
            (self.directory / name).chmod(0o755)
        self.directory.chmod(0o755)
        for name, text in render(self.config).items():
            (self.config.lsf_envdir / name).write_text(text)
        administrator = ACCOUNTS["lsfadm"]
        logdir = self.config.events_file.parent
        logdir.mkdir()
        for path in (self.directory / "work", logdir):
            os.chown(path, administrator, administrator)
        for name in ("ev", "log", "scratch"):
            (self.directory / name).chmod(0o1777)

    def _start_daemons(self, host: str) -> None:
        for name in ("lim", "res", "sbatchd"):
            program = f"{self.config.prefix}/sbin/{name}"
            done = self.lab.run([program], host=host, user="root")
            assert done.is_ok, (host, name, done)

    def _is_ready(self) -> bool:
        states = self.host_states()
        queues = self.command("bqueues", "normal", timeout_s=20)
        return queues.is_ok and all(states.get(name) == "ok" for name in self.node_names)

    # -- while it is up ------------------------------------------------------------

    def batch_options(self) -> dict[str, str]:
        """The options that the LSF adapter is given for this cluster."""
        return self.config.batch_options()

    def command(
        self, *argv: str, user: str | None = None, stdin: str = "", timeout_s: float = 30.0
    ) -> process.Completed:
        """Run a command on the master host; without a user as root, who may submit no jobs."""
        user = user or "root"
        cwd = "/" if user == "root" else f"{self.directory}/home/{user}"
        return self.lab.run(argv, host=MASTER, user=user, stdin=stdin, timeout_s=timeout_s, cwd=cwd)

    def host_states(self) -> dict[str, str]:
        """What ``bhosts -w`` says of every host."""
        done = self.command("bhosts", "-w", timeout_s=20)
        lines = [line.split() for line in done.stdout.splitlines()[1:]]
        return {words[0]: words[1] for words in lines} if done.is_ok else {}

    def submit(
        self,
        *,
        n_nodes: int,
        duration_s: float,
        limit_s: float | None = None,
        user: str = "alice",
        queue: str = "normal",
        extra_args: Sequence[str] = (),
    ) -> str:
        """Submit a job of whole nodes that notes its start and end; return its id."""
        slots = self.slots_per_node
        limit = () if limit_s is None else ("-W", str(max(1, round(limit_s / 60))))
        work = _WORK.format(
            notes=shlex.quote(str(self.directory / "ev")), duration_s=f"{duration_s:g}"
        )
        done = self.command(
            *("bsub", "-q", queue, "-n", str(n_nodes * slots), "-R", f"span[ptile={slots}]"),
            *limit,
            *("-o", "/dev/null"),
            *extra_args,
            user=user,
            stdin=work,
        )
        found = _SUBMITTED.search(done.stdout)
        assert found is not None, done
        return found[1]

    def started_s(self, job_id: str) -> float | None:
        """Start of a submitted job as noted by itself (epoch)."""
        return self._noted_s(job_id, "START")

    def ended_s(self, job_id: str) -> float | None:
        """End of a submitted job as noted by itself (epoch)."""
        return self._noted_s(job_id, "END")

    def _noted_s(self, job_id: str, word: str) -> float | None:
        with contextlib.suppress(FileNotFoundError):
            for line in (self.directory / "ev" / job_id).read_text().splitlines():
                if line.endswith(f" {word}"):
                    return float(line.split()[0])
        return None

    def cancel(self, job_id: str) -> None:
        """Cancel a job; one that is gone is not an error."""
        self.command("bkill", job_id)

    # -- trouble -------------------------------------------------------------------

    def stop_controller(self) -> None:
        """Freeze mbatchd: it takes connections and does not answer."""
        self._signal(MASTER, ("mbatchd",), signal.SIGSTOP)

    def kill_controller(self) -> None:
        """Kill mbatchd; the master's sbatchd, which would start it again, is frozen."""
        self._signal(MASTER, ("sbatchd",), signal.SIGSTOP)
        self._signal(MASTER, ("mbatchd",), signal.SIGKILL)

    def start_controller(self) -> None:
        """Let mbatchd run again; after ``kill_controller`` it answers about 30 s later."""
        self._signal(MASTER, ("mbatchd", "sbatchd"), signal.SIGCONT)

    def kill_host(self, name: str) -> None:
        """Kill the daemons of a host, as if the machine was dead; its jobs' processes go on."""
        self._signal(name, _HOST_DAEMONS, signal.SIGKILL)

    def start_host(self, name: str) -> None:
        """Start the daemons of a host again."""
        self._start_daemons(name)

    def _signal(self, host: str, names: Sequence[str], number: signal.Signals) -> None:
        for pid in self.lab.processes(host, names):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
