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
from lsf_adapters.table import blocks

DEFAULT_CYCLE_S = 10.0  # MBD_SLEEP_TIME where lsb.params does not set it (installers' template)
_PREFERENCE = re.compile(r"[+!/].*")  # behind the name of a host or group
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
BPARAMS_ALL = ("bparams", "-a")  # all parameters; of LSF 10.1 alone
SHOWCONF = ("badmin", "showconf", "mbd")
_NUMBER = re.compile(r"\d{1,9}(?!\d)")


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
        words = self.settings.get("HOSTS", "all").split()
        if "all" in words:
            return ()
        return tuple(_PREFERENCE.sub("", word) for word in words)

    def includes(self, host: str, known: Collection[str]) -> bool:
        """Return whether it uses the host; groups are not expanded and count as all hosts."""
        return not self.hosts or host in self.hosts or not set(self.hosts) <= set(known)

    @property
    def preemption(self) -> str:
        """The printed value of PREEMPTION, with names of queues where there are any."""
        texts = (self.settings.get("SCHEDULING POLICIES", ""), self.settings.get("PREEMPTION", ""))
        return " ".join(text for text in texts if "PREEMPT" in text)

    @property
    def users(self) -> tuple[str, ...]:
        """The users that may submit; (): all users."""
        words = self.settings.get("USERS", "all").split()
        if words[:1] == ["all"]:
            return ()
        return tuple(words)

    def may_submit(self, user: str) -> bool:
        """Return whether a user may submit; a group (``name/``) is not looked up: it means yes."""
        words = self.settings.get("USERS", "all").split()
        if f"~{user}" in words:
            return False
        return not self.users or user in words or any(word.endswith("/") for word in words)

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
    queue_blocks = list(blocks(text, _QUEUE))
    if not queue_blocks or not text.endswith("\n"):
        raise ParseError(f"no queue, or cut off: {text[-60:]!r}")
    return {name: _queue(name, block) for name, block in queue_blocks}


def _queue(name: str, block: str) -> Queue:
    statistics = _STATISTICS.search(block)
    if statistics is None:
        raise ParseError(f"queue {name[:40]} without priority and status")
    settings = dict(_SETTING.findall(block))
    if "HOSTS" not in settings:
        raise ParseError(f"queue {name[:40]} without hosts: cut off")
    policies = settings.get("SCHEDULING POLICIES", "").split()
    limit_s = _first_number(_LIMIT, block)  # it is printed in minutes
    if limit_s is not None:
        limit_s *= 60.0
    return Queue(
        name=name,
        priority=int(statistics[1]),
        status=statistics[2],
        is_default="This is the default queue." in block,
        limit_max_s=limit_s,
        policies=frozenset(word.partition("(")[0] for word in policies),
        accept_s=_first_number(_ACCEPT, block),
        new_job_delay_s=_first_number(_DELAY, block),
        settings=settings,
    )


def _first_number(pattern: re.Pattern[str], text: str) -> float | None:
    """Return the first group of a pattern's first match as a number; None: it does not match."""
    match = pattern.search(text)
    if match is None:
        return None
    return float(match[1])


def parameters(text: str) -> dict[str, str]:
    """Parse the ``NAME = value`` lines of ``bparams -l`` or ``-a``."""
    return dict(_PARAMETER.findall(text))


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
        return tuple(queue for name, queue in self.queues.items() if name != self.pilot_queue)

    def number(self, parameter: str) -> float | None:
        """Return a parameter of lsb.params; None: it has no number (``unlimited``, ``N``)."""
        return number_of(self.parameters.get(parameter, ""))

    def is_on(self, name: str) -> bool:
        """Return whether a switch of lsf.conf is on."""
        return (self.conf or {}).get(name, "").strip('"').upper() in {"Y", "YES", "1"}


def number_of(text: str) -> float | None:
    """Return the number with which a value begins; None: there is none, or it means no limit."""
    number = _NUMBER.match(text)
    if number is None:
        return None
    return float(number[0])


def facts(settings: LsfSettings) -> Facts:
    """Parse the settings; raises ``ParseError``: lsid or bqueues printed something unexpected."""
    conf: Mapping[str, str] | None = None
    if settings.conf is not None:
        conf = parameters(settings.conf)
    return Facts(
        dialect=Dialect.of(settings.lsid),
        cluster=cluster_of(settings.lsid),
        queues=queues(settings.queues),
        pilot_queue=settings.pilot_queue,
        parameters=parameters(settings.parameters),
        conf=conf,
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
    conf: str | None = None
    try:  # all users of LSF can read it as a rule; else badmin may tell
        conf = (envdir / "lsf.conf").read_text(errors="replace")
    except OSError:
        if is_ibm:
            answer = commands.query(SHOWCONF)
            if answer.is_ok:
                conf = answer.stdout
    bparams = BPARAMS
    if is_ibm:
        bparams = BPARAMS_ALL
    return LsfSettings(
        lsid=lsid,
        queues=poll.answer(BQUEUES),
        parameters=poll.answer(bparams),
        conf=conf,
        pilot_queue=pilot_queue,
        user=user,
        why_not_told=why_not_told,
    )
