"""The Slurm commands we run: fixed argument lists, a clean environment, a time limit.

Called by ``snapshot`` and ``launcher``; ``parse`` reads the output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bftrainer.batch import process
from bftrainer.batch.commands import Commands
from slurm_plugins import job_requests
from slurm_plugins.parse import FIELD, NODE_FIELDS, RECORD


def _long(fields: Sequence[str]) -> str:
    """Build a format for ``-O``: no widths; the separators are the fields' suffixes."""
    return ",".join((*(f"{name}:{FIELD}" for name in fields[:-1]), f"{fields[-1]}:{RECORD}"))


JOB_FORMAT = RECORD + FIELD.join(
    (
        *("%i", "%P", "%T", "%r", "%S", "%l", "%Y", "%N", "%D", "%V", "%u", "%f", "%b", "%Q"),
        *("%n", "%x", "%E"),
    )
)
# Job names are free text chosen by users, so they are read for our own jobs only.
NAME_FORMAT = RECORD + FIELD.join(("%i", "%j", "%k"))
PILOT_FORMAT = RECORD + FIELD.join(("%i", "%T", "%r", "%S", "%N", "%e"))

# Only -O shows how much memory and how many GPUs of a node are allocated.
SINFO = ("sinfo", "-h", "-N", "-a", "--noconvert", "-O", _long(NODE_FIELDS))
SQUEUE = ("squeue", "-h", "-a", "--noconvert", "-o", JOB_FORMAT)
ASKED = ("squeue", "-h", "-a", "-t", "PD", "--noconvert", "-O", _long(job_requests.FIELDS))
RESERVATIONS = ("scontrol", "-o", "show", "reservations")
SDIAG = ("sdiag",)
CONFIG = ("scontrol", "show", "config")
TOPOLOGY = ("scontrol", "show", "topology")
HOSTS = ("sinfo", "-h", "-N", "-a", "-o", "%o")  # NodeAddr, sinfo(1)
VERSION = ("sinfo", "-V")  # of the commands; the configuration has the controller's

DEFAULT_TIMEOUT_S = 15.0
"""Without the controller a command fails by itself after 9 s."""

_KINDS = {"sinfo": "nodes", "sdiag": "cycle", "sbatch": "submit", "scancel": "cancel"}


def names_argv(user: str, partition: str) -> tuple[str, ...]:
    """Query the names of the user's jobs in the pilots' partition."""
    return ("squeue", "-h", "-a", "-u", user, "-p", partition, "-o", NAME_FORMAT)


def pilots_argv(job_ids: Sequence[str]) -> tuple[str, ...]:
    """Query these jobs, including ended ones."""
    ids = ",".join(job_ids)
    return ("squeue", "-h", "-a", "-t", "all", "--noconvert", "-o", PILOT_FORMAT, "-j", ids)


class SlurmCommands(Commands):
    """Runs Slurm commands against one cluster and counts them."""

    def __init__(
        self,
        *,
        slurm_conf: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        extra_environment: Mapping[str, str] | None = None,
    ) -> None:
        """Use the cluster of this slurm.conf; None: $SLURM_CONF, else Slurm's own search."""
        named = {} if slurm_conf is None else {"SLURM_CONF": slurm_conf}
        super().__init__(
            kind_of=kind_of,
            timeout_s=timeout_s,
            kept=("SLURM_CONF",),
            added={**named, **(extra_environment or {})},
        )

    @property
    def requests(self) -> int:
        """The number of requests of all kinds."""
        return sum(self.request_counts().values())

    def query(self, argv: Sequence[str]) -> process.Completed:
        """Run a command whose output is parsed: fixed language, UTC, epoch seconds."""
        fixed = {"LC_ALL": "C", "TZ": "UTC0", "SLURM_TIME_FORMAT": "%s"}
        fixed["SLURM_BITSTR_LEN"] = "0"  # do not abbreviate arrays
        return self.run(argv, {**self.base_environment(), **fixed})


def kind_of(argv: Sequence[str]) -> str:
    """Return the kind of a request; "submit" and "cancel" are orders."""
    if argv[0] in _KINDS and tuple(argv) != VERSION:
        return _KINDS[argv[0]]
    if argv[0] == "squeue":
        return "jobs" if tuple(argv) in (SQUEUE, ASKED) else "pilots"
    kinds = dict.fromkeys((CONFIG, TOPOLOGY, VERSION), "configuration")
    kinds[RESERVATIONS] = "reservations"
    return kinds.get(tuple(argv), "settings")
