"""The LSF commands we run, in IBM's dialect and volclava's.

LSF's commands wait for daemons that do not answer, without an end ("... still trying"), so each has
a limit and its process group is killed then. Called by ``snapshot``, ``launcher`` and ``doctor``.

The dialect is read from the first lines of ``lsid``. An LSF that is neither is observed only:
nothing is submitted to it, because what it does with a pilot is not known.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from bftrainer.batch import process
from bftrainer.batch.commands import DEFAULT_PATH, DEFAULT_TIMEOUT_S, Commands
from bftrainer.model.hostlist import ParseError

# volclava answers 1,000 pending jobs in 0.3 s; its commands repeat a request every 10 s.
LSID = ("lsid",)
BPARAMS = ("bparams", "-l")
BQUEUES = ("bqueues", "-l")
LSHOSTS = ("lshosts", "-w")
LSHOSTS_GPU = ("lshosts", "-gpu")
LSLOAD = ("lsload", "-w")
BSLOTS = ("bslots", "-l")
BRSVS = ("brsvs", "-w")

_KINDS = {
    "bhosts": "nodes",
    "bjobs": "jobs",
    "bsub": "submit",
    "bkill": "cancel",
    "bqueues": "queues",
    "brsvs": "reservations",
    "lsload": "load",
    "bslots": "slots",
}
_KEPT = ("LSF_ENVDIR", "LSF_BINDIR", "LSF_LIBDIR", "LSF_SERVERDIR", "TZ")
# Said while a command waits; IBM's words by LSB_MBD_DOWN_MSG's documentation.
_STILL_TRYING = ("still trying", "please wait", "is down; try later")
_IBM = re.compile(r"IBM (?:Spectrum )?(?:Platform )?LSF\b.*?\b(\d+)\.(\d+)")
_VOLCLAVA = re.compile(r"volclava project (\d+)\.(\d+)")
_CLUSTER = re.compile(r"^My cluster name is (\S+)$", re.MULTILINE)


class LsfCommands(Commands):
    """Runs LSF commands against one cluster and counts them; dates are in UTC."""

    def __init__(
        self,
        *,
        lsf_envdir: Path | None = None,
        bindir: Path | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        extra_environment: Mapping[str, str] | None = None,
    ) -> None:
        """Use the cluster of this lsf.conf, and the commands of this folder.

        Args:
            lsf_envdir: folder of lsf.conf; None: $LSF_ENVDIR, else LSF's own search.
            bindir: folder of the commands; None: as in $PATH.
            timeout_s: limit per command.
            extra_environment: further variables of the commands.
        """
        variables: dict[str, str] = {}
        if lsf_envdir is not None:
            variables["LSF_ENVDIR"] = str(lsf_envdir)
        super().__init__(
            kind_of=lambda argv: _KINDS.get(Path(argv[0]).name, "settings"),
            timeout_s=timeout_s,
            kept=_KEPT,
            added={**variables, **(extra_environment or {})},
            fixed={"LC_ALL": "C", "TZ": "UTC0", "LSB_DISPLAY_YEAR": "Y"},
            is_away=lambda done: done.timed_out or has_waited(done),
        )
        self._bindir = bindir

    def base_environment(self) -> dict[str, str]:
        """Return the environment of every command and pilot: paths, no settings."""
        environment = super().base_environment()
        if self._bindir is not None:
            path = environment.get("PATH", DEFAULT_PATH)
            environment["PATH"] = f"{self._bindir}:{path}"
        return environment

    def run(
        self, argv: Sequence[str], environment: Mapping[str, str], *, stdin: str = ""
    ) -> process.Completed:
        """Run one command with exactly this environment, found through its PATH."""
        if self._bindir is not None:
            argv = (str(self._bindir / argv[0]), *argv[1:])
        return super().run(argv, environment, stdin=stdin)


def said(done: process.Completed) -> list[str]:
    """Return the messages of a command, but for those that it waits."""
    lines = done.stderr.split("\n")
    return [line for line in lines if line.strip() and not _is_waiting(line)]


def printed(done: process.Completed) -> str:
    """Return what a command printed, but for lines before it that it waits."""
    lines = done.stdout.split("\n")
    while lines and (_is_waiting(lines[0]) or not lines[0].strip()):
        del lines[0]
    return "\n".join(lines)


def _is_waiting(line: str) -> bool:
    return any(words in line.lower() for words in _STILL_TRYING)


def has_waited(done: process.Completed) -> bool:
    """Return whether a command had to repeat its request: LSF's daemons did not answer at once."""
    return _is_waiting(f"{done.stderr}\n{done.stdout}")


class Dialect(enum.StrEnum):
    """The relatives of LSF."""

    IBM = "ibm"  # IBM Spectrum LSF 10.1; documented, not tried
    VOLCLAVA = "volclava"  # 2.x; measured
    UNKNOWN = "unknown"

    @classmethod
    def of(cls, lsid: str) -> Dialect:
        """Return the dialect of what ``lsid`` printed.

        Raises:
            ParseError: it is not the answer of lsid.
        """
        if not _CLUSTER.search(lsid):
            raise ParseError("no cluster name")
        if (ibm := _IBM.search(lsid)) and (int(ibm[1]), int(ibm[2])) == (10, 1):
            return cls.IBM
        if (volclava := _VOLCLAVA.search(lsid)) and int(volclava[1]) == 2:
            return cls.VOLCLAVA
        return cls.UNKNOWN


def cluster_of(lsid: str) -> str:
    """Return the cluster's name; "": not said."""
    match = _CLUSTER.search(lsid)
    if match is None:
        return ""
    return match[1]
