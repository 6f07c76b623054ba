"""The request of a job, from LSF's words to data: slots, their spread, hosts, conditions. Pure.

Texts of users are searched, never trusted: whatever they contain, only the request of the job they
belong to is misread. Source: bsub(1), section "Resource requirements".
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from bftrainer.model.cluster import Job, JobState

_LONGEST_TEXT = 1 << 14  # characters of a requirement that are read
_SPAN = re.compile(r"span\[\s*(?:hosts=(1)\s*|ptile=(\d{1,6})\s*)\]")
_SELECT = re.compile(r"select\[([^\[\]]{0,2000})\]")
_USAGE = re.compile(r"rusage\[([^\[\]]{0,2000})\]")
_PLAIN_TYPES = frozenset({"type == local", "type==local", "type == any", "type==any", ""})
_PREFERENCE = re.compile(r"(?:!|\+\d*)\Z")
_MOST_UNCLEAR = 100  # characters
WAITING = frozenset({"PEND", "PSUSP", "WAIT"})
_STATES = {
    **dict.fromkeys(WAITING, JobState.PENDING),
    **dict.fromkeys(("RUN", "PROV"), JobState.RUNNING),
    # Suspended jobs keep their slots; jobs of an unreachable host may still run.
    **dict.fromkeys(("USUSP", "SSUSP", "UNKWN", "ZOMBI"), JobState.OTHER),
}
ENDED = frozenset({"DONE", "EXIT"})
LOST = frozenset({"UNKWN", "ZOMBI"})  # of a host that does not answer
STATES = frozenset({*_STATES, *ENDED})
"""All that bjobs(1) of LSF 10.1 names; another word is another language, or no state."""
# Reasons that more or other hosts would resolve, by what they begin with. All others (dependencies,
# limits of users, closed queues) would not. Texts: bjobs -p of volclava 2.2, and LSF 10.1's
# "Pending and suspended jobs"; the two differ in a few words.
_ABOUT_NODES = (
    "new job is waiting for scheduling",
    "job slot limit reached",
    *("job's requirement for exclusive execution", "job requirement for exclusive execution"),
    "running an exclusive job",
    "not enough",
    "just started a job recently",
    "load information unavailable",
    "closed by lsf administrator",
    "host is locked",
    "host load exceeded",
    "unable to reach slave batch server",
    "not specified in job submission",
    "job's resource requirements not satisfied",
    "job's requirements for resource",
    "job requirements for",
    "resource (",
    "there are no suitable hosts for the job",
    "waiting for scheduling",
    "slots are reserved",
    "slots are used or reserved",
    "candidate host",
    "the schedule of the job is postponed",
    "max hosts for this job",
    "dispatching",
    "individual host based reasons",
    "gpu",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LsfRequest:
    """A job's request."""

    slots: int = 1
    slots_max: int = 0  # -n MIN,MAX; 0: no range
    resources: str = ""  # requested or combined, LSF's syntax
    limit_s: float | None = None
    begin_s: float | None = None
    hosts: tuple[str, ...] = ()  # it may run on these alone: hosts or groups
    is_exclusive: bool = False
    gpus: int = 0  # per host
    is_gpu_use_told: bool = False  # else it may use any number of them
    dependency: str = ""
    reservations: tuple[str, ...] = ()  # advance reservations
    priority: float = 0.0  # user-assigned
    reasons: tuple[str, ...] = ()  # why it is pending
    is_held: bool = False
    start_s: float | None = None  # planned
    reserved: tuple[str, ...] = ()  # hosts on which slots are reserved for it


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job as listed, with its request."""

    job_id: str  # with the index of an array's element, as in 31[2]
    user: str
    state: str  # LSF's: PEND, RUN, ...
    queue: str
    name: str
    hosts: tuple[str, ...] = ()  # one per slot
    submit_s: float | None = None
    start_s: float | None = None
    asked: LsfRequest | None = None  # None: not read
    ended: str = ""  # how it ended, in LSF's words

    @property
    def holds_slots(self) -> bool:
        """Return whether it has started and not ended."""
        return self.state not in ENDED and _STATES.get(self.state) is not JobState.PENDING


def job_of(row: JobRow, slots_of: Mapping[str, int]) -> Job:
    """Return the job as ``decide`` sees it.

    Args:
        row: an unfinished job.
        slots_of: the nodes and their slots; what else is in ``row.hosts`` runs no jobs of ours.
    """
    request = row.asked or LsfRequest()
    nodes = tuple(dict.fromkeys(host for host in row.hosts if host in slots_of))
    n_nodes = max(1, len(nodes))
    _, _, unclear_hosts = _where(request.hosts, n_nodes, slots_of)
    state = _STATES.get(row.state, JobState.OTHER)
    array, _, index = row.job_id.partition("[")
    job = Job(
        job_id=row.job_id,
        user=row.user,
        partitions=(row.queue,),
        state=state,
        n_nodes=n_nodes,
        time_limit_s=request.limit_s,
        family=array if index else "",
        priority=request.priority,
        submit_s=row.submit_s,
        start_s=row.start_s,
        nodes=nodes,
        gpus_per_node=request.gpus,
        reservations=request.reservations,
        unclear=_in_short(_unclear(row.asked), unclear_hosts),
    )
    if state is JobState.PENDING:
        return _pending(job, row, slots_of)
    return job


def _pending(job: Job, row: JobRow, slots_of: Mapping[str, int]) -> Job:
    """Return a job that waits: how large it is, where it may run, and why it waits."""
    request = row.asked or LsfRequest()
    n_nodes, cpus, cpus_per_node = _size(request, slots_of)
    required, excluded, unclear_hosts = _where(request.hosts, n_nodes, slots_of)
    obstacles = why_not_nodes(request.reasons)
    if row.state == "PSUSP":
        obstacles = ("held by its user or an administrator", *obstacles)
    first_reason, *_ = (*obstacles, *request.reasons, "")
    return replace(
        job,
        n_nodes=n_nodes,
        cpus=cpus,
        cpus_per_node=cpus_per_node,
        reason=first_reason,
        is_entitled=not obstacles,
        waits_for=request.dependency[:_MOST_UNCLEAR],
        begin_s=request.begin_s,
        start_s=request.start_s,
        nodes=(),
        planned_nodes=tuple(dict.fromkeys(request.reserved)),
        required_nodes=required,
        excluded_nodes=excluded,
        unclear=_in_short(_unclear(row.asked), unclear_hosts),
        can_share=not _takes_whole_nodes(request, slots_of),
    )


def _in_short(requirements: Sequence[str], hosts: Sequence[str]) -> str:
    return " ".join((*requirements, *hosts))[:_MOST_UNCLEAR]


def hosts_of(text: str) -> tuple[str, ...]:
    """Expand an execution host list, ``n1:n1:n2`` or ``2*n1:n2``, to one name per slot."""
    names: list[str] = []
    for word in text.strip().split(":"):
        times, star, name = word.partition("*")
        if star and times.isdecimal() and len(times) < 6:
            names += [name] * int(times)
        elif word not in {"", "-"}:
            names.append(word)
    return tuple(names)


def asked_hosts(words: Sequence[str]) -> tuple[str, ...]:
    """Strip the preferences of ``bsub -m "a! b+2 others"``; with "others" any host will do."""
    if "others" in words:
        return ()
    return tuple(_PREFERENCE.sub("", word) for word in words)


def per_host(resources: str) -> int:
    """Return how many slots a job wants of each host; 0: not said; all on one host: -1."""
    span = _SPAN.search(resources[:_LONGEST_TEXT])
    if span is None:
        return 0
    if span[1]:
        return -1
    return int(span[2])


def _size(asked: LsfRequest, slots_of: Mapping[str, int]) -> tuple[int, int, int]:
    """Return the number of nodes, and the slots in all and at least on each."""
    slots_per_host, slots = per_host(asked.resources), max(1, asked.slots)
    if slots_per_host < 0:
        return 1, slots, slots
    if slots_per_host > 0:
        return math.ceil(slots / slots_per_host), slots, min(slots_per_host, slots)
    return math.ceil(slots / max((1, *slots_of.values()))), slots, 0


def _takes_whole_nodes(asked: LsfRequest, slots_of: Mapping[str, int]) -> bool:
    return asked.is_exclusive or per_host(asked.resources) >= max((1, *slots_of.values()))


def _where(
    hosts: tuple[str, ...], n_nodes: int, known: Collection[str]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the required and the excluded nodes, and what of the hosts is not known."""
    foreign = [host for host in hosts if host not in known]
    if foreign:
        return (), (), (f"hosts {' '.join(foreign)[:60]}",)
    if not hosts:
        return (), (), ()
    if len(set(hosts)) <= n_nodes:
        return tuple(dict.fromkeys(hosts)), (), ()
    return (), tuple(sorted(set(known) - set(hosts))), ()


def _unclear(asked: LsfRequest | None) -> tuple[str, ...]:
    """Return the requirements that are not read, in LSF's words."""
    if asked is None:
        return ("its request was not read",)
    text = asked.resources[:_LONGEST_TEXT]
    selections = map(str.strip, _SELECT.findall(text))
    selects = (f"select[{words}]" for words in selections if words not in _PLAIN_TYPES)
    usages = (f"rusage[{words}]" for words in _USAGE.findall(text))
    return (*selects, *usages)


def why_not_nodes(reasons: Sequence[str]) -> tuple[str, ...]:
    """Return the reasons for which a job would not start even if its nodes were free."""
    return tuple(
        reason for reason in reasons if not reason.strip().lower().startswith(_ABOUT_NODES)
    )
