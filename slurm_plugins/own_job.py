"""A user's own daemon inside a small batch job, for sites whose login nodes end such processes.

Called by ``bftrainer up --as-job`` and ``bftrainer down`` through ``own_site``. The job asks for
one CPU. A minute before its time limit it ends the daemon and requeues itself; Slurm requeues it
after a preemption or the loss of its node. Trainers go on meanwhile (docs/adr/0010-regroup.md).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from bftrainer.model.errors import UsageError
from bftrainer.model.site import DaemonJob
from slurm_plugins.commands import SlurmCommands, why_failed

JOB_NAME = "bftrainer-daemon"
MEMORY = "2G"  # a daemon needs 150 MB, a decision on a large cluster more
_BEFORE_END_S = 60
_JOB_ID = re.compile(r"([0-9]{1,10})(?:;\S*)?")
# bash: ``wait`` ends at once when a trapped signal comes (bash(1), SIGNALS).
_SCRIPT = """\
#!/bin/bash
trap 'is_over=1; kill -TERM "$daemon"' USR1
{command} &
daemon=$!
wait "$daemon"
status=$?
if [ -n "$is_over" ]; then
    wait "$daemon"
    exec scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
"""


def submit(
    commands: SlurmCommands, argv: Sequence[str], out: Path, options: Sequence[tuple[str, str]]
) -> str:
    """Submit the job and return its id.

    Args:
        commands: of the cluster.
        argv: of the daemon.
        out: file of its output.
        options: of sbatch, as name and value; those without a value are left out.

    Raises:
        UsageError: BFT-1287, Slurm refuses it.
    """
    given = [f"{name}={value}" for name, value in options if value]
    done = commands.run(
        (
            *("sbatch", "--parsable", f"--job-name={JOB_NAME}", "--nodes=1", "--ntasks=1"),
            *("--cpus-per-task=1", f"--mem={MEMORY}", "--requeue", "--open-mode=append"),
            *(f"--signal=B:USR1@{_BEFORE_END_S}", "--chdir=/", "--input=/dev/null"),
            *("--export=ALL", f"--output={str(out).replace('%', '%%')}", *given),
        ),
        commands.base_environment(),
        stdin=_SCRIPT.format(command=shlex.join(argv)),
    )
    found = _JOB_ID.fullmatch(done.stdout.strip())
    if done.is_ok and found:
        return found[1]
    raise UsageError(
        "BFT-1287",
        f"The job of the daemon was refused: {why_failed(done)}",
        "Name a partition for it with --job-partition, and an account with --account.",
    )


def find(commands: SlurmCommands, user: str) -> DaemonJob | None:
    """Return the user's job of a daemon, if one is queued or runs."""
    done = commands.query(("squeue", "-h", "-u", user, "-n", JOB_NAME, "-o", "%i|%T|%r|%N"))
    lines = [line.split("|") for line in done.stdout.splitlines() if done.is_ok]
    if not lines or len(lines[0]) != 4:
        return None
    job_id, state, reason, node = lines[0]
    return DaemonJob(job_id=job_id, state=state.lower(), reason=reason, node=node)


def cancel(commands: SlurmCommands, job_id: str) -> None:
    """Cancel the job; one that is gone is not an error."""
    commands.query(("scancel", job_id))
