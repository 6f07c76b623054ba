"""``bhosts``, ``lshosts``, ``lsload`` and ``brsvs``: hosts as nodes, and reserved ones. Pure.

A slot (MXJ) counts as a processor of the node. Idle nodes that no queued job can use are not
"ok": slots reserved for a waiting parallel job close a host as ``closed_Full`` with RUN 0 and
RSV = NJOBS. Sources: bhosts(1), lshosts(1), lsload(1), "host status" of LSF 10.1.

Source for reservations: brsvs(1) of LSF 10.1; documented, not tried. A time window that cannot be
read counts as one that holds now and has no end, so its hosts are left alone. volclava has no
reservations.
"""

from __future__ import annotations

import math
import re
from calendar import timegm
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from time import gmtime

from bftrainer.model.cluster import Node, NodeLeft, NodeState, Reservation
from bftrainer.model.hostlist import ParseError
from lsf_adapters.commands import Dialect
from lsf_adapters.table import Record, count, each, records, rows

HEAD = ("HOST_NAME", "STATUS", "JL/U", "MAX", "NJOBS", "RUN", "SSUSP", "USUSP", "RSV")
LOST = "UNKNOWN"  # model of a host whose lim does not answer, lshosts(1)
WHOLE_HOSTS = "Pilots of LSF have whole hosts."
UNREAD = "unread"  # status of a host whose line cannot be read
FIELDS = ("host_name", "status", "max", "njobs", "run", "ssusp", "ususp", "rsv")
_GPU_HEAD = re.compile(r"^HOST_NAME +gpu_id +gpu_model", re.MULTILINE)
_MEMORY = re.compile(r"(\d{1,9}(?:\.\d+)?)([KMGTPE])")
_MB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3, "E": 1024.0**4}
_FACTOR = re.compile(r"\d{1,6}(?:\.\d+)?|-")  # cpuf


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A line of ``bhosts``."""

    name: str
    status: str
    slots: int | None  # None: as many as it has processors
    used: int  # by jobs, reserved ones included
    running: int
    suspended: int
    reserved: int

    @property
    def is_unused(self) -> bool:
        """Return whether no job is on it; slots may be reserved for one."""
        return self.running == 0 and self.suspended == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A line of ``lshosts``."""

    model: str = "default"
    cpus: int = 0
    memory_mb: int = 0
    features: tuple[str, ...] = ()
    gpus: int = 0
    gpu_model: str = ""


def argv(dialect: Dialect) -> tuple[str, ...]:
    """Query the hosts."""
    if dialect is Dialect.IBM:
        return ("bhosts", "-o", " ".join(FIELDS), "-json")
    return ("bhosts", "-w")


def hosts(text: str, dialect: Dialect, odd: list[str] | None = None) -> list[Host]:
    """Parse the answer. A host that cannot be read is there with the status ``UNREAD``.

    ``odd`` gets the name of each such host.

    Raises:
        ParseError: it is not what ``bhosts`` prints.
    """
    odd = [] if odd is None else odd
    if dialect is Dialect.IBM:
        found = records(text, "bhosts")
        return each(found, _of_record, lambda one: one.get("HOST_NAME", ""), _unread, odd)
    lines = rows(text, HEAD)
    return each(lines, lambda words: _host([*words[:2], *words[3:]]), itemgetter(0), _unread, odd)


def _of_record(one: Record) -> Host:
    if missing := [name for name in FIELDS if name.upper() not in one]:
        raise ParseError(f"a host without {missing[0]}")
    return _host([one[name.upper()] for name in FIELDS])


def _unread(name: str) -> Host:
    return Host(name=name, status=UNREAD, slots=None, used=0, running=0, suspended=0, reserved=0)


def _host(words: list[str]) -> Host:
    if len(words) != len(FIELDS):
        raise ParseError(f"a host of {len(words)} columns: {' '.join(words)[:60]!r}")
    name, status, most, used, running, ssusp, ususp, reserved = words
    return Host(
        name=name,
        status=status,
        slots=None if most == "-" else count(most),
        used=count(used),
        running=count(running),
        suspended=count(ssusp) + count(ususp),
        reserved=count(reserved),
    )


_STATES = {  # of hosts without jobs on them, but for the first two
    **dict.fromkeys(("unreach", "unavail", "closed_LIM", "unlicensed"), NodeState.DOWN),
    # Of the last two spellings the manual and the command may have either.
    **dict.fromkeys(("closed_Adm", "closed_Cu_Excl", "closed_Cu_excl"), NodeState.DRAINED),
    "closed_Excl": NodeState.ALLOCATED,
    "closed_Full": NodeState.ALLOCATED,
    "ok": NodeState.IDLE,
}


def state_of(host: Host, load: str) -> NodeState:
    """Return a host's state; ``load``: its status in ``lsload``, "": not read."""
    state = _STATES.get(host.status, NodeState.UNKNOWN)  # closed_Busy, _Wind, _Lock and others
    if state in {NodeState.DOWN, NodeState.DRAINED}:
        return state
    if not host.is_unused:
        return NodeState.ALLOCATED
    if host.reserved:
        is_free = host.status in {"ok", "closed_Full"} and host.reserved == host.used
        return NodeState.PLANNED if is_free else NodeState.UNKNOWN
    if host.status == "closed_Excl":  # its last job has ended: the next exchange opens it
        return NodeState.COMPLETING
    # After an exclusive job bhosts says ok at once, lsload lockU until the next exchange, and
    # nothing is dispatched meanwhile (measured on volclava 2.2: up to 29 s).
    return NodeState.UNKNOWN if state is NodeState.IDLE and load not in {"ok", ""} else state


def node_of(
    host: Host, hardware: Hardware, load: str, queues: tuple[str, ...], *, gpus_left: int = 0
) -> Node | None:
    """Return a host as a node; None: it runs no jobs (MXJ 0).

    ``gpus_left``: those that no job uses, if it is partly used.
    """
    slots = hardware.cpus if host.slots is None else host.slots
    if slots < 1:
        return None
    state = state_of(host, load)
    if state is NodeState.IDLE and hardware.model == LOST:
        state = NodeState.UNKNOWN
    free = max(0, slots - host.used)
    is_partly_used = state is NodeState.ALLOCATED and free > 0 and host.status == "ok"
    left = NodeLeft(cpus=free, memory_mb=hardware.memory_mb, gpus=gpus_left)
    return Node(
        name=host.name,
        state=state,
        reason="" if state is NodeState.IDLE else f"bhosts {host.status}, lsload {load or '-'}",
        node_type=hardware.gpu_model or hardware.model,
        gpus=hardware.gpus,
        cpus=slots,
        memory_mb=hardware.memory_mb,
        features=hardware.features,
        partitions=queues,
        left=left if is_partly_used else None,
        why_whole=WHOLE_HOSTS if hardware.gpus else "",
    )


def hardware(text: str, odd: list[str] | None = None) -> dict[str, Hardware]:
    """Parse ``lshosts -w``. A host that cannot be read has the model ``LOST``.

    ``odd`` gets the name of each such host.

    Raises:
        ParseError: it is not what ``lshosts`` prints.
    """
    lines = rows(text, ("HOST_NAME", "type", "model", "cpuf", "ncpus", "maxmem"))
    odd = [] if odd is None else odd
    return dict(
        each(lines, _hardware, itemgetter(0), lambda name: (name, Hardware(model=LOST)), odd)
    )


def _hardware(words: Sequence[str]) -> tuple[str, Hardware]:
    """Read a line; blanks in the model are found by the numbers behind it."""
    at = next((i for i in range(3, len(words) - 4) if _is_numbers(words[i : i + 3])), 0)
    if not at:
        raise ParseError(f"hardware of a host: {' '.join(words)[:60]!r}")
    found = Hardware(
        model=" ".join(words[2:at]),
        cpus=count(words[at + 1]),
        memory_mb=_memory_mb(words[at + 2]),
        features=tuple(word for w in words[at + 5 :] if (word := w.strip("()"))),
    )
    return words[0], found


def _is_numbers(words: Sequence[str]) -> bool:
    """Return whether these are a CPU factor, a number of processors and an amount of memory."""
    factor, cpus, memory = words
    return bool(
        _FACTOR.fullmatch(factor)
        and (cpus == "-" or cpus.isdecimal())
        and (memory == "-" or _MEMORY.fullmatch(memory))
    )


def gpus(text: str) -> dict[str, tuple[int, str]]:
    """Parse ``lshosts -gpu``: the number of GPUs of each host, and their model.

    One line per GPU; the lines of a host's further ones begin with a blank. Documented for LSF
    10.1, not tried.

    Raises:
        ParseError: it is not that, or cut off.
    """
    if not _GPU_HEAD.search(text) or not text.endswith("\n"):
        raise ParseError(f"no head, or cut off: {text[-60:]!r}")
    found: dict[str, tuple[int, str]] = {}
    name = ""
    for line in text.split("\n"):
        words = line.split()
        if len(words) < 2 or words[0] == "HOST_NAME":
            continue
        if not line[:1].isspace():
            name, *words = words
        if name and len(words) > 1 and words[0].isdecimal():
            n_gpus, _ = found.get(name, (0, ""))
            found[name] = n_gpus + 1, words[1]
    return found


def loads(text: str) -> dict[str, str]:
    """Parse ``lsload -w``: each host's status.

    Raises:
        ParseError: it is not what ``lsload`` prints.
    """
    return {words[0]: words[1] for words in rows(text, ("HOST_NAME", "status")) if len(words) > 1}


def _memory_mb(text: str) -> int:
    found = _MEMORY.fullmatch(text)
    return int(float(found[1]) * _MB[found[2]]) if found else 0


_HEAD = re.compile(r"^RSVID\s+TYPE\s+USER\s+\S*\s*RSV_HOSTS\s+TIME_WINDOW", re.MULTILINE)
NONE = re.compile(r"[Nn]o (?:advance )?reservations? found")
_HOST = re.compile(r"([A-Za-z0-9][\w.-]{0,255}):\d{1,9}/\d{1,9}")
_WINDOW = re.compile(
    r"(\d{1,2})/(\d{1,2})/(\d{1,2})/(\d{1,2})-(\d{1,2})/(\d{1,2})/(\d{1,2})/(\d{1,2})"
)


def reservations(text: str, now_s: float) -> tuple[Reservation, ...]:
    """Return the reservations that have not ended.

    Raises:
        ParseError: it is not what ``brsvs`` prints, or cut off.
    """
    if NONE.search(text):
        return ()
    head = _HEAD.search(text)
    if head is None or not text.endswith("\n"):
        raise ParseError(f"no head, or cut off: {text[-60:]!r}")
    found: list[Reservation] = []
    for line in text[head.end() :].split("\n"):
        hosts = tuple(found[1] for found in map(_HOST.fullmatch, line.split()) if found)
        if hosts and line[:1].isspace() and found:  # further hosts of the one above
            found[-1] = replace(found[-1], nodes=(*found[-1].nodes, *hosts))
        elif hosts:
            start_s, end_s = _window(line, now_s)
            name, *kind = line.split()
            found.append(
                Reservation(
                    name=name,
                    start_s=start_s,
                    end_s=end_s,
                    nodes=hosts,
                    is_maintenance=kind[:1] == ["system"],
                )
            )
    return tuple(one for one in found if one.end_s > now_s)


def _window(line: str, now_s: float) -> tuple[float, float]:
    """Return begin and end of ``month/day/hour/minute-...``: the first such that has not ended."""
    found = _WINDOW.search(line)
    if found is None:
        return now_s, math.inf
    this = gmtime(now_s).tm_year
    numbers = [int(one) for one in found.groups()]
    begin, end = numbers[:4], numbers[4:]
    try:
        for year in (this - 1, this, this + 1):
            end_s = float(timegm((year + (end < begin), *end, 0)))
            if end_s > now_s:
                return float(timegm((year, *begin, 0))), end_s
    except ValueError:
        pass  # no such month
    return now_s, math.inf
