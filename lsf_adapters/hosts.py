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
_STATES = {  # of hosts without jobs on them, but for the first two
    **dict.fromkeys(("unreach", "unavail", "closed_LIM", "unlicensed"), NodeState.DOWN),
    # Of the last two spellings the manual and the command may have either.
    **dict.fromkeys(("closed_Adm", "closed_Cu_Excl", "closed_Cu_excl"), NodeState.DRAINED),
    "closed_Excl": NodeState.ALLOCATED,
    "closed_Full": NodeState.ALLOCATED,
    "ok": NodeState.IDLE,
}
_RESERVATIONS_HEAD = re.compile(
    r"^RSVID\s+TYPE\s+USER\s+\S*\s*RSV_HOSTS\s+TIME_WINDOW", re.MULTILINE
)
NONE = re.compile(r"[Nn]o (?:advance )?reservations? found")
_RESERVED_HOST = re.compile(r"([A-Za-z0-9][\w.-]{0,255}):\d{1,9}/\d{1,9}")
_WINDOW = re.compile(
    r"(\d{1,2})/(\d{1,2})/(\d{1,2})/(\d{1,2})-(\d{1,2})/(\d{1,2})/(\d{1,2})/(\d{1,2})"
)


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
    if odd is None:
        odd = []
    if dialect is Dialect.IBM:
        host_records = records(text, "bhosts")
        return each(host_records, _of_record, lambda host: host.get("HOST_NAME", ""), _unread, odd)
    return each(rows(text, HEAD), _of_line, itemgetter(0), _unread, odd)


def _of_line(words: list[str]) -> Host:
    """Read a line of ``bhosts -w``, which has one column more than ``FIELDS``: JL/U."""
    return _host([*words[:2], *words[3:]])


def _of_record(record: Record) -> Host:
    if missing := [name for name in FIELDS if name.upper() not in record]:
        raise ParseError(f"a host without {missing[0]}")
    return _host([record[name.upper()] for name in FIELDS])


def _unread(name: str) -> Host:
    return Host(name=name, status=UNREAD, slots=None, used=0, running=0, suspended=0, reserved=0)


def _host(words: list[str]) -> Host:
    if len(words) != len(FIELDS):
        raise ParseError(f"a host of {len(words)} columns: {' '.join(words)[:60]!r}")
    name, status, slots, n_jobs, running, ssusp, ususp, reserved = words
    return Host(
        name=name,
        status=status,
        slots=None if slots == "-" else count(slots),
        used=count(n_jobs),
        running=count(running),
        suspended=count(ssusp) + count(ususp),
        reserved=count(reserved),
    )


def state_of(host: Host, load: str) -> NodeState:
    """Return a host's state; ``load``: its status in ``lsload``, "": not read."""
    state = _STATES.get(host.status, NodeState.UNKNOWN)  # closed_Busy, _Wind, _Lock and others
    if state in {NodeState.DOWN, NodeState.DRAINED}:
        return state
    if not host.is_unused:
        return NodeState.ALLOCATED
    if host.reserved:
        if host.status in {"ok", "closed_Full"} and host.reserved == host.used:
            return NodeState.PLANNED
        return NodeState.UNKNOWN
    if host.status == "closed_Excl":  # its last job has ended: the next exchange opens it
        return NodeState.COMPLETING
    # After an exclusive job bhosts says ok at once, lsload lockU until the next exchange, and
    # nothing is dispatched meanwhile (measured on volclava 2.2: up to 29 s).
    if state is NodeState.IDLE and load not in {"ok", ""}:
        state = NodeState.UNKNOWN
    return state


def node_of(
    host: Host, hardware: Hardware, load: str, queues: tuple[str, ...], *, gpus_left: int = 0
) -> Node | None:
    """Return a host as a node; None: it runs no jobs (MXJ 0).

    ``gpus_left``: those that no job uses, if it is partly used.
    """
    slots = host.slots
    if slots is None:
        slots = hardware.cpus
    if slots < 1:
        return None
    state = state_of(host, load)
    if state is NodeState.IDLE and hardware.model == LOST:
        state = NodeState.UNKNOWN
    reason = ""
    if state is not NodeState.IDLE:
        reason = f"bhosts {host.status}, lsload {load or '-'}"
    node_left: NodeLeft | None = None
    free_slots = max(0, slots - host.used)
    if state is NodeState.ALLOCATED and free_slots > 0 and host.status == "ok":
        node_left = NodeLeft(cpus=free_slots, memory_mb=hardware.memory_mb, gpus=gpus_left)
    return Node(
        name=host.name,
        state=state,
        reason=reason,
        node_type=hardware.gpu_model or hardware.model,
        gpus=hardware.gpus,
        cpus=slots,
        memory_mb=hardware.memory_mb,
        features=hardware.features,
        partitions=queues,
        left=node_left,
        why_whole=WHOLE_HOSTS if hardware.gpus else "",
    )


def hardware(text: str, odd: list[str] | None = None) -> dict[str, Hardware]:
    """Parse ``lshosts -w``. A host that cannot be read has the model ``LOST``.

    ``odd`` gets the name of each such host.

    Raises:
        ParseError: it is not what ``lshosts`` prints.
    """
    lines = rows(text, ("HOST_NAME", "type", "model", "cpuf", "ncpus", "maxmem"))
    if odd is None:
        odd = []
    return dict(
        each(lines, _hardware, itemgetter(0), lambda name: (name, Hardware(model=LOST)), odd)
    )


def _hardware(words: Sequence[str]) -> tuple[str, Hardware]:
    """Read a line; blanks in the model are found by the numbers behind it."""
    for at in range(3, len(words) - 4):
        if _is_numbers(words[at : at + 3]):
            break
    else:
        raise ParseError(f"hardware of a host: {' '.join(words)[:60]!r}")
    _, cpus, memory = words[at : at + 3]
    features = (word.strip("()") for word in words[at + 5 :])
    hardware = Hardware(
        model=" ".join(words[2:at]),
        cpus=count(cpus),
        memory_mb=_memory_mb(memory),
        features=tuple(filter(None, features)),
    )
    return words[0], hardware


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
    gpus_of: dict[str, tuple[int, str]] = {}
    name = ""
    for line in text.split("\n"):
        words = line.split()
        if len(words) < 2 or words[0] == "HOST_NAME":
            continue
        if not line[:1].isspace():
            name, *words = words
        if name and len(words) > 1 and words[0].isdecimal():
            n_gpus, _ = gpus_of.get(name, (0, ""))
            gpus_of[name] = n_gpus + 1, words[1]
    return gpus_of


def loads(text: str) -> dict[str, str]:
    """Parse ``lsload -w``: each host's status.

    Raises:
        ParseError: it is not what ``lsload`` prints.
    """
    status_of = {}
    for words in rows(text, ("HOST_NAME", "status")):
        if len(words) > 1:
            name, status, *_ = words
            status_of[name] = status
    return status_of


def _memory_mb(text: str) -> int:
    amount = _MEMORY.fullmatch(text)
    if amount is None:
        return 0
    return int(float(amount[1]) * _MB[amount[2]])


def reservations(text: str, now_s: float) -> tuple[Reservation, ...]:
    """Return the reservations that have not ended.

    Raises:
        ParseError: it is not what ``brsvs`` prints, or cut off.
    """
    if NONE.search(text):
        return ()
    head = _RESERVATIONS_HEAD.search(text)
    if head is None or not text.endswith("\n"):
        raise ParseError(f"no head, or cut off: {text[-60:]!r}")
    listed: list[Reservation] = []
    for line in text[head.end() :].split("\n"):
        matches = map(_RESERVED_HOST.fullmatch, line.split())
        hosts = tuple(match[1] for match in matches if match)
        if hosts and line[:1].isspace() and listed:  # further hosts of the one above
            listed[-1] = replace(listed[-1], nodes=(*listed[-1].nodes, *hosts))
        elif hosts:
            start_s, end_s = _window(line, now_s)
            name, *kind = line.split()
            listed.append(
                Reservation(
                    name=name,
                    start_s=start_s,
                    end_s=end_s,
                    nodes=hosts,
                    is_maintenance=kind[:1] == ["system"],
                )
            )
    return tuple(reservation for reservation in listed if reservation.end_s > now_s)


def _window(line: str, now_s: float) -> tuple[float, float]:
    """Return begin and end of ``month/day/hour/minute-...``: the first such that has not ended."""
    window = _WINDOW.search(line)
    if window is None:
        return now_s, math.inf
    numbers = list(map(int, window.groups()))
    begin, end = numbers[:4], numbers[4:]
    this_year = gmtime(now_s).tm_year
    try:
        for year in (this_year - 1, this_year, this_year + 1):
            end_s = float(timegm((year + (end < begin), *end, 0)))
            if end_s > now_s:
                return float(timegm((year, *begin, 0))), end_s
    except ValueError:
        pass  # no such month
    return now_s, math.inf
