"""``bhosts``, ``lshosts`` and ``lsload``: hosts as nodes. Pure.

A slot (MXJ) counts as a processor of the node. Idle nodes that no queued job can use are not
"ok": slots reserved for a waiting parallel job close a host as ``closed_Full`` with RUN 0 and
RSV = NJOBS. Sources: bhosts(1), lshosts(1), lsload(1), "host status" of LSF 10.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bftrainer.hostlist import ParseError
from bftrainer.model.cluster import Node, NodeLeft, NodeState
from lsf_adapters.dialect import Dialect
from lsf_adapters.table import count, records, rows

HEAD = ("HOST_NAME", "STATUS", "JL/U", "MAX", "NJOBS", "RUN", "SSUSP", "USUSP", "RSV")
LOST = "UNKNOWN"  # model of a host whose lim does not answer, lshosts(1)
FIELDS = ("host_name", "status", "max", "njobs", "run", "ssusp", "ususp", "rsv")
_GPU_HEAD = re.compile(r"^HOST_NAME +gpu_id +gpu_model", re.MULTILINE)
_MEMORY = re.compile(r"(\d{1,9}(?:\.\d+)?)([KMGT])")
_MB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024.0}


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
        """Whether no job is on it; slots may be reserved for one."""
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


def hosts(text: str, dialect: Dialect) -> list[Host]:
    """Parse the answer.

    Raises:
        ParseError: it is not what ``bhosts`` prints.
    """
    if dialect is Dialect.IBM:
        return [_host([one[name.upper()] for name in FIELDS]) for one in _whole(text)]
    return [_host([*words[:2], *words[3:9]]) for words in rows(text, HEAD)]


def _whole(text: str) -> Iterable[Mapping[str, str]]:
    found = records(text, "bhosts")
    for one in found:
        if missing := [name for name in FIELDS if name.upper() not in one]:
            raise ParseError(f"a host without {missing[0]}")
    return found


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
    **dict.fromkeys(("closed_Adm", "closed_Cu_Excl"), NodeState.DRAINED),
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


def node_of(host: Host, hardware: Hardware, load: str, queues: tuple[str, ...]) -> Node | None:
    """Return a host as a node; None: it runs no jobs (MXJ 0)."""
    slots = hardware.cpus if host.slots is None else host.slots
    if slots < 1:
        return None
    state = state_of(host, load)
    free = max(0, slots - host.used)
    is_partly_used = state is NodeState.ALLOCATED and free > 0 and host.status == "ok"
    left = NodeLeft(cpus=free, memory_mb=hardware.memory_mb, gpus=hardware.gpus)
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
    )


def hardware(text: str) -> dict[str, Hardware]:
    """Parse ``lshosts -w``.

    Raises:
        ParseError: it is not what ``lshosts`` prints.
    """
    found = {}
    for words in rows(text, ("HOST_NAME", "type", "model", "cpuf", "ncpus", "maxmem")):
        if len(words) < 8:
            raise ParseError(f"a host of {len(words)} columns: {' '.join(words)[:60]!r}")
        found[words[0]] = Hardware(
            model=words[2],
            cpus=count(words[4]),
            memory_mb=_memory_mb(words[5]),
            features=tuple(word for w in words[8:] if (word := w.strip("()"))),
        )
    return found


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
            found[name] = found.get(name, (0, ""))[0] + 1, words[1]
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
