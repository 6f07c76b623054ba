"""The report that LSF puts before a job's output in the file of bsub -o."""

from __future__ import annotations

import time
from collections import Counter

from lsf_adapters.testcluster.config import MASTER
from lsf_adapters.testcluster.state import Job

_RULE = "-" * 60


def report(job: Job) -> str:
    """Return the text up to the output itself."""
    hosts = ""
    for name, n_slots in Counter(job.hosts).items():
        times = f"{n_slots}*" if n_slots > 1 else ""
        hosts += f"<{times}{name}>"
    end, result = "Done", "Successfully completed."
    if job.state != "DONE":
        end, result = "Exited", f"Exited with exit code {job.exit_code}."
    return "\n".join(
        (
            f"Sender: LSF System <lsfadm@{job.hosts[0]}>",
            f"Subject: Job {job.key}: <{job.name}> {end}",
            "",
            f"Job <{job.name}> was submitted from host <{MASTER}> by user <{job.user}>.",
            f"Job was executed on host(s) {hosts}, in queue <{job.queue}>, as user <{job.user}>.",
            f"<{job.home}> was used as the home directory.",
            f"<{job.cwd}> was used as the working directory.",
            f"Started at {_date(job.start_s)}",
            f"Results reported at {_date(job.end_s)}",
            "",
            "Your job looked like:",
            "",
            _RULE,
            "# LSBATCH: User input",
            job.command,
            _RULE,
            "",
            result,
            "",
            "Resource usage summary:",
            "",
            "    CPU time   :      0.02 sec.",
            "",
            "The output (if any) follows:",
            "",
            "",
        )
    )


def _date(moment_s: float | None) -> str:
    return time.strftime("%a %b %e %H:%M:%S %Y", time.localtime(moment_s or 0.0))
