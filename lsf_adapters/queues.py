"""``bqueues -l`` and ``bparams``: queues and settings, for polls, ``doctor`` and site files.

``read_settings`` runs the commands, ``facts`` parses their output and is pure. Sources:
bqueues(1), bparams(1), badmin(8), lsb.queues(5), lsf.conf(5) of LSF 10.1 and volclava 2.2.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bftrainer.batch.commands import PollCommands
from bftrainer.model.cluster import Partition
from bftrainer.model.hostlist import ParseError
from lsf_adapters.commands import BPARAMS, BQUEUES, LSID, Dialect, LsfCommands, cluster_of

DEFAULT_CYCLE_S = 10.0  # MBD_SLEEP_TIME where lsb.params does not set it (installers' template)
_QUEUE = re.compile(r"^QUEUE: (\S+)\s*$", re.MULTILINE)
_STATISTICS = re.compile(
    r"^PRIO NICE STATUS +MAX JL/U JL/P JL/H NJOBS +PEND +RUN +SSUSP +USUSP +RSV[^\n]*\n"
    r"\s*(-?\d{1,9})\s+\S+\s+(\S+)",
    re.MULTILINE,
)
_LIMIT = re.compile(
    r"^MAXIMUM LIMITS:\n(?:[^\n]+\n)*? RUNLIMIT *\n (\d{1,9}(?:\.\d+)?) min", re.MULTILINE
)
# LSF writes some lines with a colon and some with an equals sign: ``RERUNNABLE :  yes``.
_SETTING = re.compile(r"^[ \t]*([A-Z][A-Z_ ]*[A-Z])[ \t]*[:=][ \t]*(.*?)[ \t]*$", re.MULTILINE)
_PARAMETER = re.compile(r"^[ \t]*([A-Z][A-Z_]+)[ \t]*=[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_ACCEPT = re.compile(r"^Interval for a host to accept two jobs is (\d{1,9}) seconds", re.MULTILINE)
_DELAY = re.compile(r"^Schedule delay for a new job is (\d{1,9}) seconds", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue of LSF."""

    name: str
    priority: int
    status: str  # as in Open:Active
    is_default: bool = False
    limit_max_s: float | None = None  # hard run limit
    policies: frozenset[str] = frozenset()  # BACKFILL, PREEMPTABLE, ...
    accept_s: float | None = None  # between two jobs that a host accepts
    new_job_delay_s: float | None = None
    settings: Mapping[str, str] = field(default_factory=dict)  # lines, by name in lsb.queues

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts or groups that it uses; (): all."""
        said = self.settings.get("HOSTS", "all").split()
        return () if "all" in said else tuple(re.sub(r"[+!/].*", "", word) for word in said)

    def includes(self, host: str, known: Collection[str]) -> bool:
        """Return whether it uses the host; groups are not expanded and count as all hosts."""
        return not self.hosts or host in self.hosts or not set(self.hosts) <= set(known)

    @property
    def preemption(self) -> str:
        """The printed value of PREEMPTION, with names of queues where there are any."""
        shown = (self.settings.get("SCHEDULING POLICIES", ""), self.settings.get("PREEMPTION", ""))
        return " ".join(text for text in shown if "PREEMPT" in text)

    @property
    def users(self) -> tuple[str, ...]:
        """The users that may submit; (): all users."""
        said = self.settings.get("USERS", "all").split()
        return () if not said or said[0] == "all" else tuple(said)

    def may_submit(self, user: str) -> bool:
        """Return whether a user may submit; a group (``name/``) is not looked up: it means yes."""
        said = self.settings.get("USERS", "all").split()
        if f"~{user}" in said:
            return False
        return not self.users or user in said or any(word.endswith("/") for word in said)

    def as_partition(self) -> Partition:
        """Return it as ``decide`` sees it: LSF serves queues by priority."""
        return Partition(
            name=self.name,
            can_start=self.status.endswith(":Active"),
            accepts=self.status.startswith("Open"),
            time_limit_s=self.limit_max_s,
            tier=self.priority,
        )


def queues(text: str) -> dict[str, Queue]:
    """Parse ``bqueues -l``.

    Raises:
        ParseError: it is not what ``bqueues`` prints, or cut off.
    """
    heads = list(_QUEUE.finditer(text))
    if not heads or not text.endswith("\n"):
        raise ParseError(f"no queue, or cut off: {text[-60:]!r}")
    ends = [*(head.start() for head in heads[1:]), len(text)]
    return {
        head[1]: _queue(head[1], text[head.end() : end])
        for head, end in zip(heads, ends, strict=True)
    }


def _queue(name: str, block: str) -> Queue:
    statistics = _STATISTICS.search(block)
    if statistics is None:
        raise ParseError(f"queue {name[:40]} without priority and status")
    settings = dict(_SETTING.findall(block))
    if "HOSTS" not in settings:
        raise ParseError(f"queue {name[:40]} without hosts: cut off")
    policies = settings.get("SCHEDULING POLICIES", "").split()
    accept, delay, limit = (one.search(block) for one in (_ACCEPT, _DELAY, _LIMIT))
    return Queue(
        name=name,
        priority=int(statistics[1]),
        status=statistics[2],
        is_default="This is the default queue." in block,
        limit_max_s=60.0 * float(limit[1]) if limit else None,
        policies=frozenset(word.partition("(")[0] for word in policies),
        accept_s=float(accept[1]) if accept else None,
        new_job_delay_s=float(delay[1]) if delay else None,
        settings=settings,
    )


def parameters(text: str) -> dict[str, str]:
    """Parse the ``NAME = value`` lines of ``bparams -l`` or ``-a``."""
    return dict(_PARAMETER.findall(text))


BPARAMS_ALL = ("bparams", "-a")  # all parameters; of LSF 10.1 alone
SHOWCONF = ("badmin", "showconf", "mbd")
_NUMBER = re.compile(r"\d{1,9}(?!\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LsfSettings:
    """The printed settings, and who asks."""

    lsid: str
    queues: str  # bqueues -l
    parameters: str  # bparams -l; of LSF 10.1: -a
    conf: str | None  # lsf.conf, or badmin showconf; None: not readable
    pilot_queue: str
    user: str  # owner of the pilots
    why_not_told: str = ""  # why lsb.events is not followed; "": it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The settings as data."""

    dialect: Dialect
    cluster: str
    queues: Mapping[str, Queue]
    pilot_queue: str
    parameters: Mapping[str, str]
    conf: Mapping[str, str] | None
    user: str
    why_not_told: str = ""

    @property
    def pilots(self) -> Queue | None:
        """The pilots' queue; None: there is none."""
        return self.queues.get(self.pilot_queue)

    @property
    def others(self) -> tuple[Queue, ...]:
        """All other queues."""
        return tuple(one for name, one in self.queues.items() if name != self.pilot_queue)

    def number(self, parameter: str) -> float | None:
        """Return a parameter of lsb.params; None: it has no number (``unlimited``, ``N``)."""
        return number_of(self.parameters.get(parameter, ""))

    def is_on(self, name: str) -> bool:
        """Return whether a switch of lsf.conf is on."""
        return (self.conf or {}).get(name, "").strip('"').upper() in {"Y", "YES", "1"}


def number_of(text: str) -> float | None:
    """Return the number with which a value begins; None: there is none, or it means no limit."""
    found = _NUMBER.match(text)
    return float(found[0]) if found else None


def facts(settings: LsfSettings) -> Facts:
    """Parse the settings; raises ``ParseError``: lsid or bqueues printed something unexpected."""
    return Facts(
        dialect=Dialect.of(settings.lsid),
        cluster=cluster_of(settings.lsid),
        queues=queues(settings.queues),
        pilot_queue=settings.pilot_queue,
        parameters=parameters(settings.parameters),
        conf=None if settings.conf is None else parameters(settings.conf),
        user=settings.user,
        why_not_told=settings.why_not_told,
    )


def read_settings(
    commands: LsfCommands, *, pilot_queue: str, user: str, envdir: Path, why_not_told: str = ""
) -> LsfSettings:
    """Run the commands.

    Args:
        commands: to run.
        pilot_queue: of our pilots.
        user: owner of our pilots.
        envdir: folder of lsf.conf.
        why_not_told: why lsb.events is not followed; "": it is.

    Raises:
        ParseError: one failed; the text is a sentence.
    """
    poll = PollCommands(commands)
    lsid = poll.answer(LSID)
    is_ibm = Dialect.of(lsid) is Dialect.IBM
    conf: str | None = None  # all users of LSF can read it as a rule; else badmin may tell
    try:
        conf = (envdir / "lsf.conf").read_text(errors="replace")
    except OSError:
        if is_ibm and (shown := commands.query(SHOWCONF)).is_ok:
            conf = shown.stdout
    return LsfSettings(
        lsid=lsid,
        queues=poll.answer(BQUEUES),
        parameters=poll.answer(BPARAMS_ALL if is_ibm else BPARAMS),
        conf=conf,
        pilot_queue=pilot_queue,
        user=user,
        why_not_told=why_not_told,
    )
