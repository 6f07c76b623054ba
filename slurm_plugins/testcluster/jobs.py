"""Ordinary jobs on a test cluster, with the exact times of their starts and ends.

``submit`` is used by tests and ``workload``. Each job writes its own start and
end, to the microsecond, into ``DIR/ev/JOBID``, because Slurm's times are whole seconds and not
always right after a preemption.
"""

from __future__ import annotations

import math
import os
import pwd
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bftrainer.batch import process
from bftrainer.batch.commands import why_failed
from bftrainer.model.errors import BatchSystemError
from bftrainer.model.hostlist import expand
from slurm_plugins.testcluster import processes

Kind = Literal["sbatch", "srun"]

ORDINARY = "ordinary"
"""Submit as an unprivileged account if we are root, else as ourselves."""

# Written once per cluster. The trap runs also when the job is cancelled.
JOB_SCRIPT = """\
#!/bin/bash
export LC_ALL=C
note() { echo "$EPOCHREALTIME $1 $SLURMD_NODENAME $SLURM_JOB_NODELIST" >>"$events/$job"; }
events=$1
job=$SLURM_JOB_ID
[ -z "$SLURM_ARRAY_JOB_ID" ] || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
if [ "${SLURM_PROCID:-0}" = 0 ]; then
  note START
  trap 'note END' EXIT
fi
sleep "$2" &
wait $!
"""
_JOB_ID = re.compile(r"^srun: job(?:id)? ([0-9]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a job takes of each of its nodes."""

    gpus: int = 0
    gpu_type: str = ""  # "": any
    cpus: int = 1
    memory_mb: int = 0  # 0: the default of its partition

    @property
    def options(self) -> tuple[str, ...]:
        """The options of sbatch and srun that ask for it."""
        options = [f"--cpus-per-task={self.cpus}"]
        if self.memory_mb:
            options.append(f"--mem={self.memory_mb}")
        if self.gpus:
            words = ["gpu", self.gpu_type, str(self.gpus)]
            options.append(f"--gres={':'.join(filter(None, words))}")
        return tuple(options)


@dataclass(slots=True, kw_only=True)
class JobRunner:
    """Submits jobs to one cluster and reads the times they noted."""

    directory: Path
    env: Mapping[str, str]
    _srun: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def install(self) -> None:
        """Write the job script and create the folder where all users' jobs note their times."""
        script = self.directory / "etc" / "job.sh"
        script.write_text(JOB_SCRIPT)
        script.chmod(0o755)
        events = self.directory / "ev"
        events.mkdir(exist_ok=True)
        events.chmod(0o1777)

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
        """Submit a job and return its id.

        Args:
            n_nodes: that it needs.
            duration_s: after which it ends by itself.
            limit_s: rounded up to Slurm's minutes; by default slightly above the duration.
            user: whose job it is; None: ourselves.
            kind: the command that submits it.
            partition: where it is submitted.
            share: what it takes of each node; None: all of it.
            n_tasks: more than one: an array (of sbatch), whose tasks are ID_0, ID_1 and so on.
            extra_args: further options.

        Raises:
            BatchSystemError: BFT-1241, Slurm refuses it.
        """
        if limit_s is None:
            limit_s = duration_s + 5
        limit_min = max(1, math.ceil(limit_s / 60))
        options = [f"--nodes={n_nodes}"]
        if share is None:
            options.append("--exclusive")
        else:
            options += share.options
        options.append(f"--time={limit_min}")
        if n_tasks > 1:
            options.append(f"--array=0-{n_tasks - 1}")
        options += [f"--partition={partition}", "--chdir=/", *extra_args]
        script, events = self.directory / "etc" / "job.sh", self.directory / "ev"
        work = (str(script), str(events), f"{duration_s:.3f}")
        account = _account(user)
        if kind == "srun":
            return self._run(options, work, account)
        as_user: tuple[str, ...] = ()
        if account is not None:
            as_user = (f"--uid={account.pw_uid}", f"--gid={account.pw_gid}")
        answer = process.run(
            ("sbatch", "--parsable", *as_user, "--output=/dev/null", *options, *work),
            timeout_s=30,
            env=self.env,
        )
        if not answer.is_ok:
            raise refused(why_failed(answer))
        job_id, _, _ = answer.stdout.strip().partition(";")
        return job_id

    def _run(
        self, options: Sequence[str], work: Sequence[str], account: pwd.struct_passwd | None
    ) -> str:
        """Start srun and read the job id from its messages."""
        prefix: tuple[str, ...] = ()
        if account is not None:
            prefix = (
                *("setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}"),
                "--clear-groups",
            )
        # One task per node, like an MPI job; the first one notes the times.
        argv = (*prefix, "srun", "-v", "--ntasks-per-node=1", *options, *work)
        with tempfile.TemporaryFile() as messages:
            child = process.spawn(argv, env=self.env, cwd=Path("/"), stderr=messages)
            self._srun = [srun for srun in self._srun if srun.poll() is None] + [child]
            deadline_s = time.monotonic() + 30
            while time.monotonic() < deadline_s:
                has_ended = child.poll() is not None  # before reading: then nothing more comes
                text = os.pread(messages.fileno(), 1 << 16, 0).decode(errors="replace")
                if job_id := _JOB_ID.search(text):
                    return job_id[1]
                if has_ended:
                    raise refused(" ".join(text.split())[-300:])
                time.sleep(0.005)
        raise refused("srun did not print a job id within 30 s.")

    def noted_s(self, job_id: str, word: Literal["START", "END"]) -> float | None:
        """Return when the job itself noted its start or end; ``None`` while it has not."""
        words = self._noted(job_id, word)
        if words is None:
            return None
        time_s, *_ = words
        return float(time_s)

    def noted_nodes(self, job_id: str) -> tuple[str, ...]:
        """Return all nodes of a job that has started."""
        words = self._noted(job_id, "START")
        if words is None:
            return ()
        _, _, _, nodes, *_ = words
        return expand(nodes)

    def _noted(self, job_id: str, word: str) -> list[str] | None:
        try:
            text = (self.directory / "ev" / job_id).read_text()
        except FileNotFoundError:
            return None
        for line in text.splitlines():
            words = line.split()
            if words[1:2] == [word]:
                return words
        return None

    def end_srun(self) -> None:
        """End every srun that is still running."""
        processes.end([srun.pid for srun in self._srun if srun.poll() is None], patience_s=2)
        for srun in self._srun:
            srun.wait()
        self._srun = []


def refused(why: str) -> BatchSystemError:
    """Return the error that a job could not be submitted."""
    return BatchSystemError(
        "BFT-1241",
        f"The test cluster did not accept the job: {why}",
        "Check its size and limit against the cluster with sinfo.",
    )


def _account(user: str | None) -> pwd.struct_passwd | None:
    """Return the account to submit as; only root can use another's."""
    if user is None or (user == ORDINARY and os.geteuid() != 0):
        return None
    names: tuple[str, ...] = (user,)
    if user == ORDINARY:
        names = ("nobody", "games", "daemon")  # the first that this machine has
    for name in names:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise refused(f"there is no user {' or '.join(names)}.")
