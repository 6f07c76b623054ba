"""A site as its administrator describes it to Slurm: nodes, partitions, settings. Pure.

Read are the text of slurm.conf, or of ``scontrol show config`` with that of ``scontrol show node``
and ``scontrol show partition``; both name things alike. ``bftrainer whatif --harm`` simulates the
site; what its simulation leaves out is in ``DescribedSite.not_modelled``, as far as it occurs.

Source: slurm.conf(5), 22.05; output of ``scontrol`` of 22.05. Names of settings are read in any
case. ``Include`` files are not followed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from bftrainer.model.generic_resources import by_kind, gpus_of, items_of
from bftrainer.model.hostlist import ParseError, expand
from slurm_plugins.described_gpus import (
    cluster_limits_of,
    node_limits_of,
    partition_limits_of,
)
from slurm_plugins.fields import NOTHING, TAKING_NODES, exclusive_of, whole
from slurm_plugins.lending import NodeLimits, SharingLimits
from slurm_plugins.omissions import omissions
from slurm_plugins.parse import (
    duration_s,
    parameter_in_range,
    scheduler_parameters,
    settings_in,
    values_in,
)

Record = Mapping[str, str]  # a line's settings; names in small letters

NODE, PARTITION, NODE_SET, DOWN = "nodename", "partitionname", "nodeset", "downnodes"
DEFAULT, ALL = "DEFAULT", "ALL"
MICROSECONDS = 1e6
MINUTE_S = 60.0
LONGEST_INTERVAL_S = 10_800.0
LONGEST_WINDOW_MIN = 43_200.0
MOST = 1e9
MOST_NODES = 65_536
MOST_PARTITIONS = 1000
MOST_MEMBERS = 1 << 21  # nodes of all partitions and sets together
_SHARING_SELECTS = ("select/cons_tres", "select/cons_res")
_ABSENT = ("FUTURE", "CLOUD")  # node states: it is not there, or only sometimes
_CLOSED = ("DOWN", "DRAIN", "FAIL")
_PRINTED = "Configuration data as of"  # the begin of ``scontrol show config``
_SETTING = re.compile(r'(?<![\w/])([A-Za-z_][\w/]{0,63})=("[^"]*"|\S*)')
_COMMENT = re.compile(r"(?<!\\)#.*")
_BLOCK = re.compile(r"^(?=(?:NodeName|PartitionName)=)", re.MULTILINE)
_FREE_TEXT = re.compile(r"\b(?:Reason|Comment|Extra|OS)=.*")
_UNLIMITED = frozenset({"UNLIMITED", "INFINITE", *NOTHING})


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedNode:
    """A node; CPUs and memory kept for the system are taken off."""

    name: str
    cpus: int
    memory_mb: int  # 0: not described
    gpus: tuple[tuple[str, int], ...]  # type and number
    node_type: str  # as the daemon names it: gpu:a100:4, or cpu
    weight: int = 1  # nodes of a lower one are taken first
    limits: NodeLimits | None = field(default=None, compare=False)  # of its parts

    @property
    def n_gpus(self) -> int:
        """Return the GPUs of all types."""
        return sum(number for _, number in self.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedPartition:
    """A partition."""

    name: str
    nodes: tuple[str, ...]
    tier: int = 1
    is_whole: bool = False  # OverSubscribe=EXCLUSIVE, or Exclusive=NODE of 26.05
    max_cpus_per_node: int = 0  # 0: no limit
    max_time_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedScheduler:
    """The settings of Slurm's schedulers, with its defaults; see slurm.conf(5)."""

    bf_interval_s: float
    bf_window_s: float
    bf_resolution_s: float
    bf_max_job_test: int
    bf_max_job_array_resv: int
    default_queue_depth: int
    batch_sched_delay_s: float
    sched_min_interval_s: float
    sched_interval_s: float
    has_epilog: bool
    are_nodes_shared: bool  # select/cons_tres or cons_res
    is_memory_counted: bool  # CR_..._Memory
    is_least_loaded_first: bool  # CR_LLN, or LLN=YES of a partition


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedSite:
    """A site."""

    nodes: tuple[DescribedNode, ...]  # in Slurm's order
    partitions: tuple[DescribedPartition, ...]
    scheduler: DescribedScheduler
    sharing: SharingLimits = field(default_factory=SharingLimits, compare=False)
    not_modelled: tuple[str, ...] = ()  # a sentence each
    notes: tuple[str, ...] = ()  # what of it was left out


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    settings: Record
    nodes: tuple[Record, ...]
    partitions: tuple[Record, ...]
    node_sets: tuple[Record, ...] = ()
    down: tuple[Record, ...] = ()
    notes: tuple[str, ...] = ()


def has_nodes(text: str) -> bool:
    """Return whether a text describes nodes and partitions itself: it is no ``show config``."""
    return not text.lstrip().startswith(_PRINTED)


def read_site(config: str, shown: str = "") -> DescribedSite:
    """Return the site.

    Args:
        config: the text of slurm.conf, or of ``scontrol show config``.
        shown: the text of ``scontrol show node`` and ``scontrol show partition``, one after the
            other; it goes before the nodes and partitions of slurm.conf.

    Raises:
        ParseError: a line cannot be read, or there are no nodes or no partitions.
    """
    parts = _parts_of(config, shown)
    nodes, left_out = _nodes(parts)
    partitions = _partitions(parts, nodes)
    scheduler = _scheduler(parts)
    return DescribedSite(
        nodes=tuple(nodes),
        partitions=tuple(partitions),
        scheduler=scheduler,
        sharing=_sharing(parts, nodes),
        not_modelled=omissions(
            parts.settings,
            tuple(_with_defaults(parts.nodes, NODE)),
            tuple(_with_defaults(parts.partitions, PARTITION)),
        ),
        notes=(*parts.notes, *left_out),
    )


def _sharing(parts: _Parts, nodes: Iterable[DescribedNode]) -> SharingLimits:
    """Return what the site says of the sharing of its nodes."""
    return SharingLimits(
        cluster=cluster_limits_of(parts.settings),
        partitions=partition_limits_of(_with_defaults(parts.partitions, PARTITION)),
        nodes={node.name: node.limits for node in nodes if node.limits is not None},
    )


def _parts_of(config: str, shown: str) -> _Parts:
    if has_nodes(config):
        parts = _slurm_conf(config)
    else:
        values = {name.lower(): value for name, value in settings_in(config).items()}
        parts = _Parts(settings=values, nodes=(), partitions=())
    if not shown.strip():
        return parts
    records = [_block(block) for block in _BLOCK.split(shown) if block.strip()]
    return _Parts(
        settings=parts.settings,
        nodes=tuple(record for record in records if NODE in record),
        partitions=tuple(record for record in records if PARTITION in record),
        notes=parts.notes,
    )


def _block(text: str) -> Record:
    lines = (_FREE_TEXT.sub("", line) for line in text.splitlines())
    record = {name.lower(): value for name, value in values_in(" ".join(lines)).items()}
    if NODE not in record and PARTITION not in record:
        raise ParseError(f"neither a node nor a partition: {text.strip()[:80]!r}")
    return record


def _slurm_conf(text: str) -> _Parts:
    settings = dict[str, str]()
    kinds: dict[str, list[Record]] = {NODE: [], PARTITION: [], NODE_SET: [], DOWN: []}
    notes = list[str]()
    for number, line in _lines(text):
        if line.split()[0].lower() == "include":
            notes.append(f"The file of the line {line!r} was not read.")
            continue
        pairs = [(name.lower(), value.strip('"')) for name, value in _SETTING.findall(line)]
        if not pairs:
            raise ParseError(f"line {number} is not Name=value: {line[:60]!r}")
        first, _ = pairs[0]
        if first in kinds:
            kinds[first].append(dict(pairs))
        else:
            settings[first] = line.partition("=")[2].strip().strip('"')
    return _Parts(
        settings=settings,
        nodes=tuple(kinds[NODE]),
        partitions=tuple(kinds[PARTITION]),
        node_sets=tuple(kinds[NODE_SET]),
        down=tuple(kinds[DOWN]),
        notes=tuple(notes),
    )


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines without comments, those that go on behind a backslash as one."""
    begun = ""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = begun + _COMMENT.sub("", raw).rstrip()
        begun = ""
        if line.endswith("\\"):
            begun = f"{line[:-1]} "
        elif line.strip():
            yield number, line.strip()


def _with_defaults(records: Iterable[Record], key: str) -> Iterator[Record]:
    """Yield the records that name something, completed by the DEFAULT lines before them."""
    default = dict[str, str]()
    for record in records:
        if record[key].upper() == DEFAULT:
            default.update(record)
        else:
            yield {**default, **record}


def _nodes(parts: _Parts) -> tuple[list[DescribedNode], tuple[str, ...]]:
    """Return the nodes, and sentences on those that are left out."""
    nodes, closed, absent = list[DescribedNode](), list[str](), list[str]()
    down = set[str]()
    for record in parts.down:
        down.update(expand(record[DOWN]))
    for record in _with_defaults(parts.nodes, NODE):
        names = expand(record[NODE], MOST_NODES - len(nodes) - len(closed) - len(absent))
        state = record.get("state", "").upper()
        if any(word in state for word in _ABSENT):
            absent += names
            continue
        is_closed = any(word in state for word in _CLOSED)
        unnamed = _node(record)
        for name in names:
            if is_closed or name in down:
                closed.append(name)
            else:
                nodes.append(replace(unnamed, name=name))
    if not nodes:
        raise ParseError("no node is described that can be used")
    sentences = []
    for left_out, clause in (
        (closed, "are down or drained in the files and left out"),
        (absent, "are of the states FUTURE or CLOUD and left out"),
    ):
        if left_out:
            sentences.append(f"{len(left_out)} of the nodes {clause}, such as {left_out[0]}.")
    return nodes, tuple(sentences)


def _node(record: Record) -> DescribedNode:
    """Return a node of a line, without its name."""
    gres = record.get("gres", "")
    if gres in NOTHING:
        gres = ""
    _, node_type = gpus_of(gres)
    all_cpus = _all_cpus(record)
    cpus = _cpus(record, all_cpus)
    return DescribedNode(
        name="",
        cpus=cpus,
        memory_mb=max(0, _number(record, "realmemory") - _number(record, "memspeclimit")),
        gpus=tuple((kind, count) for kind, count in by_kind(items_of(gres)).items() if count),
        node_type=node_type,
        weight=_number(record, "weight", 1),
        limits=node_limits_of(record, cpus, all_cpus),
    )


def _cpus(record: Record, all_cpus: int) -> int:
    """Return the CPUs that jobs can have."""
    if "cpuefctv" in record:
        return whole(record["cpuefctv"])
    reserved = record.get("cpuspeclist", "")
    if reserved not in NOTHING:
        return max(1, all_cpus - len(expand(f"c[{reserved}]")))
    threads = _number(record, "threadspercore", 1)
    return max(1, all_cpus - threads * _number(record, "corespeccount"))


def _all_cpus(record: Record) -> int:
    threads = _number(record, "threadspercore", 1)
    sockets = _number(record, "sockets") or _number(record, "socketsperboard", 1)
    boards = 1
    if "sockets" not in record:
        boards = _number(record, "boards", 1)
    cpus = _number(record, "cputot") or _number(record, "cpus") or _number(record, "procs")
    return cpus or boards * sockets * _number(record, "corespersocket", 1) * threads


def _number(record: Record, name: str, otherwise: int = 0) -> int:
    text = record.get(name, "")
    if text in _UNLIMITED:
        return otherwise
    return whole(text)


def _partitions(parts: _Parts, nodes: Sequence[DescribedNode]) -> list[DescribedPartition]:
    places = {node.name: place for place, node in enumerate(nodes)}
    if max(len(parts.partitions), len(parts.node_sets)) > MOST_PARTITIONS:
        raise ParseError(f"more than {MOST_PARTITIONS:,} partitions or sets of nodes")
    sets = {record[NODE_SET]: _of_set(record, parts.nodes) for record in parts.node_sets}
    partitions, n_members = list[DescribedPartition](), 0
    for record in _with_defaults(parts.partitions, PARTITION):
        partitions.append(_partition(record, places, sets))
        n_members += len(partitions[-1].nodes)
        if n_members > MOST_MEMBERS:
            raise ParseError(f"more than {MOST_MEMBERS:,} nodes in all partitions together")
    if not partitions:
        raise ParseError("no partition is described")
    return partitions


def _of_set(record: Record, nodes: Iterable[Record]) -> tuple[str, ...]:
    """Return the nodes of a NodeSet: those it names, and those with its feature."""
    feature = record.get("feature", "")
    members = list(expand(record.get("nodes", "")))
    for node in _with_defaults(nodes, NODE):
        if feature and feature in node.get("feature", node.get("features", "")).split(","):
            members += expand(node[NODE])
    return tuple(members)


def _partition(
    record: Record, places: Mapping[str, int], sets: Mapping[str, Sequence[str]]
) -> DescribedPartition:
    """Return a partition; ``places``: of the nodes, in Slurm's order."""
    text = record.get("nodes", "")
    members = set[str]()
    if text.upper() == ALL:
        members.update(places)
    elif text not in NOTHING:
        for word in expand(text):
            members.update(sets.get(word, (word,)))
    limit = record.get("maxtime", "UNLIMITED")
    return DescribedPartition(
        name=record[PARTITION],
        nodes=tuple(sorted(members & places.keys(), key=places.__getitem__)),
        tier=_number(record, "prioritytier", _number(record, "priority", 1)),
        is_whole=exclusive_of(record) in TAKING_NODES,
        max_cpus_per_node=_number(record, "maxcpuspernode"),
        max_time_s=_max_time_s(limit),
    )


def _max_time_s(text: str) -> float | None:
    """Return a partition's MaxTime; a lone number is minutes."""
    if text.upper() in _UNLIMITED:
        return None
    if text.isdecimal():
        return float(text) * MINUTE_S
    return duration_s(text)


def _scheduler(parts: _Parts) -> DescribedScheduler:
    settings = parts.settings
    parameters = scheduler_parameters(
        {"SchedulerParameters": settings.get("schedulerparameters", "")}
    )
    number = partial(parameter_in_range, parameters)
    select = settings.get("selecttypeparameters", "").upper()
    lln = any(record.get("lln", "").upper() == "YES" for record in parts.partitions)
    return DescribedScheduler(
        bf_interval_s=number("bf_interval", 30.0, LONGEST_INTERVAL_S),
        bf_window_s=MINUTE_S * number("bf_window", 1440.0, LONGEST_WINDOW_MIN),
        bf_resolution_s=number("bf_resolution", 60.0, 3600.0),
        bf_max_job_test=int(number("bf_max_job_test", 500.0, 1_000_000.0)),
        bf_max_job_array_resv=int(number("bf_max_job_array_resv", 20.0, 1000.0)),
        default_queue_depth=int(number("default_queue_depth", 100.0, MOST)),
        batch_sched_delay_s=number("batch_sched_delay", 3.0, MOST),
        sched_min_interval_s=number("sched_min_interval", 2.0 * MICROSECONDS, MOST) / MICROSECONDS,
        sched_interval_s=number("sched_interval", 60.0, MOST),
        has_epilog=settings.get("epilog", "") not in NOTHING,
        # The default of SelectType is select/cons_tres since 23.02, select/linear before.
        are_nodes_shared=settings.get("selecttype", _SHARING_SELECTS[0]) in _SHARING_SELECTS,
        is_memory_counted="MEMORY" in select,
        is_least_loaded_first=lln or "CR_LLN" in select,
    )
