"""An OpenPBS behind the conformance tests' ``ClusterDriver``: an installed one, or the stand-in.

It is found by its pbs.conf(8B). An installed one must be idle, have at least four vnodes and the
settings of docs/howto/add-batch-system.md; its server must run on this host.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bftrainer.batch import process
from bftrainer.batch.local.client import start_server

COMMANDS = ("qsub", "qstat", "qdel", "pbsnodes", "pbs_rstat")


class PbsDriver:
    """What tests do to it; ordinary jobs take whole nodes and note when they start."""

    preempts = True

    def __init__(self, conf: Path, directory: Path, *, cycle_s: float) -> None:
        """Use the PBS of this pbs.conf.

        Args:
            conf: its configuration.
            directory: scratch.
            cycle_s: its scheduler_iteration.
        """
        self.directory, self.cycle_s = directory, cycle_s
        found = dict(re.findall(r"^(\w+)=(.*)$", conf.read_text(), re.MULTILINE))
        path = f"{found['PBS_EXEC']}/bin:{os.environ['PATH']}"
        self.environment = {"PATH": path, "PBS_CONF_FILE": str(conf)}
        self._lock = Path(found["PBS_HOME"]) / "server_priv" / "server.lock"
        rows = json.loads(self.run("pbsnodes", "-a", "-v", "-F", "json").stdout)["nodes"]
        sizes = {name: row["resources_available"] for name, row in rows.items()}
        self._cpus = {name: has["ncpus"] for name, has in sizes.items() if has.get("ncpus")}
        self.gpus_per_node: int = max(has.get("ngpus", 0) for has in sizes.values())

    def run(self, *argv: str) -> process.Completed:
        """Run one of PBS's commands."""
        return process.run(argv, timeout_s=30, env={**os.environ, **self.environment})

    def node_names(self) -> tuple[str, ...]:
        return tuple(self._cpus)

    def submit_ordinary(self, *, n_nodes: int, limit_s: float, duration_s: float) -> str:
        start = f"date +%s.%N >{self.directory}/started-$PBS_JOBID; exec sleep {duration_s}"
        select = f"select={n_nodes}:ncpus={min(self._cpus.values())}"
        options = f"-f -l {select} -l place=scatter:excl -l walltime={limit_s:.0f}"
        null = ("-o", "/dev/null", "-e", "/dev/null")
        done = self.run("qsub", *options.split(), *null, "--", "/bin/sh", "-c", start)
        assert done.is_ok, done
        return done.stdout.strip()

    def job_started_s(self, job_id: str) -> float | None:
        noted = self.directory / f"started-{job_id}"
        text = noted.read_text().strip() if noted.exists() else ""
        return float(text) if text else None

    def cancel(self, job_id: str) -> None:
        self.run("qdel", job_id)  # one that is gone is no error

    def stop_controller(self) -> None:
        os.kill(int(self._lock.read_text()), signal.SIGSTOP)

    def start_controller(self) -> None:
        os.kill(int(self._lock.read_text()), signal.SIGCONT)


@contextmanager
def stand_in(directory: Path) -> Iterator[PbsDriver]:
    """Start the stand-in: the embedded batch system under PBS's commands."""
    home = directory / "home"
    with start_server(home, n_nodes=4, gpus=2, cycle_s=0.2, kill_wait_s=3) as server:
        for name in ("bin", "server_priv"):
            (home / name).mkdir()
        (home / "server_priv" / "server.lock").write_text(f"{server.pid}\n")
        source = Path(__file__).with_name("command.py").read_text()
        for name in COMMANDS:
            command = home / "bin" / name
            command.write_text(f"#!{sys.executable} -IS\n{source}")
            command.chmod(0o755)
        conf = home / "pbs.conf"
        conf.write_text(f"PBS_EXEC={home}\nPBS_HOME={home}\nPBS_SERVER=pbslab\n")
        scratch = directory / "scratch"
        scratch.mkdir()
        try:
            yield PbsDriver(conf, scratch, cycle_s=0.5)
        finally:
            os.kill(server.pid, signal.SIGCONT)
