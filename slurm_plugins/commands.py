"""The Slurm commands we run: fixed argument lists, and the cause of a failure.

Used by every module that runs Slurm's commands; ``parse`` reads the output.

Slurm 22.05 prints the same for a clock that is wrong as for a lost connection, and sbatch waits
silently on a full queue (measured with ``tests/integration/fleet/test_accidents_*.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from bftrainer.batch import commands, process
from bftrainer.batch.commands import DEFAULT_TIMEOUT_S, Commands
from bftrainer.site.submit.helper import UNHEARD
from slurm_plugins import job_requests
from slurm_plugins.parse import FIELD, NODE_FIELDS, RECORD

JOB_FORMAT = RECORD + "%i %P %T %r %S %l %Y %N %D %V %u %f %b %Q %n %x %E".replace(" ", FIELD)
# Job names are free text chosen by users, so they are read for our own jobs only.
NAME_FORMAT = RECORD + "%i %j".replace(" ", FIELD)
PILOT_FORMAT = RECORD + "%i %T %r %S %N %e".replace(" ", FIELD)
SQUEUE = ("squeue", "-h", "-a", "--noconvert", "-o", JOB_FORMAT)
RESERVATIONS = ("scontrol", "-o", "show", "reservations")
SDIAG = ("sdiag",)
CONFIG = ("scontrol", "show", "config")
TOPOLOGY = ("scontrol", "show", "topology")
NODES = ("scontrol", "-o", "show", "node")  # what sinfo does not print
HOSTS = ("sinfo", "-h", "-N", "-a", "-o", "%o")  # NodeAddr, sinfo(1)
VERSION = ("sinfo", "-V")  # of the commands; the configuration has the controller's
# How commands find their cluster and are known to it; other names of Slurm are options.
KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_SACK_SOCKET")
# Without the controller a command fails by itself after 9 s. Arrays are not abbreviated.
_FIXED = {"LC_ALL": "C", "TZ": "UTC0", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
_EMPTY: Mapping[str, str] = MappingProxyType({})
_KINDS = {"sinfo": "nodes", "sdiag": "cycle", "sbatch": "submit", "scancel": "cancel"}
_MUNGE_HERE = (
    "BFT-1551 munge on this host does not answer, so Slurm takes no request from here: start it "
    "(systemctl start munge)."
)
_MUNGE_THERE = (
    "BFT-1552 The controller drops our requests, as when its munge refuses their credentials: the "
    "clocks differ by 5 minutes or more, the keys differ, or munge is down there. Compare: "
    "munge -n | ssh CONTROLLER unmunge (of AuthType=auth/slurm: the clocks and slurm.key)."
)
_FULL = (
    "BFT-1553 Slurm takes no job for now, as when its queue is full (MaxJobCount). Wait, or lower "
    "MinJobAge or raise MaxJobCount."
)
_NO_CLUSTER = (
    "This host is of no cluster of Slurm: it has no slurm.conf, and DNS names no controller."
)
# In this order: what munge says itself comes first.
_MEANINGS = (
    ("Munge encode failed", _MUNGE_HERE),
    ("Munge decode failed", _MUNGE_THERE),
    ("authentication error", _MUNGE_THERE),
    ("authentication credential", _MUNGE_THERE),
    ("Zero Bytes were transmitted", _MUNGE_THERE),
    ("temporarily unable to accept job", _FULL),
    ("Could not establish a configuration source", _NO_CLUSTER),
)
_AWAY = ("contact slurm controller", *(sign for sign, _ in _MEANINGS[:5]))


# Of -O, which has no widths here: the separators are the fields' suffixes.
_BETWEEN_FIELDS, _AT_END = f":{FIELD},", f":{RECORD}"
_NODE_FORMAT = _BETWEEN_FIELDS.join(NODE_FIELDS) + _AT_END
_REQUEST_FORMAT = _BETWEEN_FIELDS.join(job_requests.FIELDS) + _AT_END
# Only -O shows how much memory and how many GPUs of a node are allocated.
SINFO = ("sinfo", "-h", "-N", "-a", "--noconvert", "-O", _NODE_FORMAT)
ASKED = ("squeue", "-h", "-a", "-t", "PD", "--noconvert", "-O", _REQUEST_FORMAT)


def asked_argv(release: str) -> tuple[str, ...]:
    """Query what jobs asked for that wait for nodes.

    PD alone leaves out those after --requeue=expedite, a state that 25.05 does not know.
    """
    states = "PD,EXPEDITING" if release >= "25.11" else "PD"
    request_format = _BETWEEN_FIELDS.join(job_requests.fields_of(release)) + _AT_END
    return (*ASKED[:4], states, *ASKED[5:-1], request_format)


def names_argv(user: str, partition: str) -> tuple[str, ...]:
    """Query the names of the user's jobs in the pilots' partition."""
    return ("squeue", "-h", "-a", "-u", user, "-p", partition, "-o", NAME_FORMAT)


def pilots_argv(job_ids: Sequence[str]) -> tuple[str, ...]:
    """Query these jobs, including ended ones."""
    ids = ",".join(job_ids)
    return ("squeue", "-h", "-a", "-t", "all", "--noconvert", "-o", PILOT_FORMAT, "-j", ids)


class SlurmCommands(Commands):
    """Runs Slurm commands against one cluster and counts them; prints epoch seconds."""

    def __init__(
        self,
        *,
        slurm_conf: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        extra_environment: Mapping[str, str] = _EMPTY,
    ) -> None:
        """Use the cluster of this slurm.conf; None: $SLURM_CONF, else Slurm's own search."""
        variables = dict(extra_environment)
        if slurm_conf:
            variables = {"SLURM_CONF": slurm_conf, **variables}
        super().__init__(
            kind_of=kind_of,
            timeout_s=timeout_s,
            kept=KEPT,
            added=variables,
            fixed=_FIXED,
            why_failed=why_failed,
            is_away=is_controller_away,
        )


def kind_of(argv: Sequence[str]) -> str:
    """Return the kind of a request; "submit" and "cancel" are orders."""
    if argv[0] in _KINDS and tuple(argv) != VERSION:
        return _KINDS[argv[0]]
    if argv[0] == "squeue":
        return "jobs" if tuple(argv) == SQUEUE or "-O" in argv else "pilots"
    kinds = dict.fromkeys((CONFIG, TOPOLOGY, VERSION), "configuration")
    kinds |= {RESERVATIONS: "reservations", NODES: "nodes"}
    return kinds.get(tuple(argv), "settings")


def why_failed(done: process.Completed) -> str:
    """Say in a sentence or two why a command failed, and what helps if that is known."""
    why = commands.why_failed(done)
    for sign, meaning in _MEANINGS:
        if sign in done.stderr:
            return f"{meaning} (Slurm: {sign})"
    return why


def is_unknown(done: process.Completed) -> bool:
    """Return whether a request that failed may have been carried out."""
    was_ended = done.timed_out or done.truncated or done.returncode < 0
    return was_ended or any(sign in done.stderr for sign in UNHEARD)


def is_controller_away(done: process.Completed) -> bool:
    """Return whether the failure means that no command will be answered now."""
    return done.timed_out or any(sign in done.stderr for sign in _AWAY)
