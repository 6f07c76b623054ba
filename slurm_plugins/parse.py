"""Parses the output of Slurm's commands into plain data, each row once, on its clock.

Results are kept by their input from one poll to the next, which makes a poll of 10,000 nodes and as
many jobs five times as fast (``scripts/bench_scale.py``).

The formats are our own (``slurm_plugins.commands``): every record starts with the record separator,
and fields are divided by the unit separator, two characters that no node, partition or reason
contains. Anything else raises ``ParseError``, and only that; but user-written fields that cannot be
read are left out of their job (``fields``).

``switches`` is called by ``snapshot`` where the site has ``TopologyPlugin=topology/tree``. Source:
output of release 22.05.

``scontrol show config`` and ``sdiag`` begin with the controller's time in whole seconds. Each
bounds the offset of its clock; bounds are kept until one contradicts them (``ControllerClock``).
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Generic, TypeVar

from bftrainer.model.cluster import (
    BEFORE_ALL,
    REBOOTS,
    Job,
    Node,
    NodeLeft,
    NodeState,
    Partition,
    Reservation,
    SchedulerCycle,
)
from bftrainer.model.generic_resources import LONGEST, gpus_of
from bftrainer.model.hostlist import ParseError, expand
from slurm_plugins import states
from slurm_plugins.arrays import tasks_of
from slurm_plugins.fields import NOTHING, Doubts, NodeLists, PrintedLists, said, ways_of, whole
from slurm_plugins.gres import TypedGpus, gpus_by_type, gpus_left, gpus_needed, type_of
from slurm_plugins.releases import release_of

T = TypeVar("T")
RECORD = "\x1e"
FIELD = "\x1f"
NODE_FIELDS = (
    *("NodeList", "StateLong", "PartitionName", "Gres", "CPUs", "Memory", "Features"),
    *("CPUsState", "AllocMem", "GresUsed"),
    *("Available", "Time", "Size", "PriorityTier", "OverSubscribe", "Reason"),
)
NO_NODE = "n/a"  # sinfo of an empty partition
NOT_READ = "its line in sinfo cannot be read"
N_JOB_FIELDS = 17
FEW_NODES = 64
_MEGABYTES = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}
_MEMORY = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,6})?)([KMGTP]?)")
_WHOLE = re.compile(r"[0-9]{1,18}")
_NUMBER = re.compile(r"[0-9]+")  # of a job
_PRIORITY = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?")
# In days or seconds: 32 bits of minutes are 2,982,616 days.
_LIMIT = re.compile(r"(?:([0-9]{1,7})-)?([0-9]{1,7})(?::([0-9]{1,2}))?(?::([0-9]{1,2}))?")
# The field order of releases 22.05 to 26.05; free text follows the nodes.
_RESERVATION = re.compile(
    r"ReservationName=(.+?) StartTime=(\S+) EndTime=(\S+) Duration=\S+ Nodes=(\S*) NodeCnt=[0-9]+"
    r" CoreCnt=[0-9]+ Features=.*? PartitionName=\S* Flags=(\S*) .*?MaxStartDelay="
)
_COMMENT = " Comment="
_NO_LIMIT = frozenset({"UNLIMITED", "NOT_SET", "Partition_Limit", "INVALID", "N/A"})
_HEADER = re.compile(
    r"^(?:Configuration data as of (\S+)|sdiag output at .*\(([0-9]+)\))$", re.MULTILINE
)


@dataclass(slots=True)
class RowCache(Generic[T]):
    """Rows of text and their parsed values."""

    value_of: dict[str, T] = field(default_factory=dict)

    def read(
        self,
        rows: Iterable[str],
        one: Callable[[str], T],
        is_small: Callable[[T], bool] = lambda _: True,
    ) -> list[T]:
        """Parse each row with ``one``, unless the last poll had the same row.

        Values that are not small are not kept, so that users' input cannot fill the memory.
        """
        before, self.value_of = self.value_of, {}
        values: list[T] = []
        for row in rows:
            value = before.get(row)
            if value is None:
                value = one(row)
            if is_small(value):
                self.value_of[row] = value
            values.append(value)
        return values


@dataclass(frozen=True, slots=True)
class _Derived(Generic[T]):
    record: T
    beside: object  # what else the value depends on
    value: T


@dataclass(slots=True)
class Made(Generic[T]):
    """Values derived from records, by name, with what else they depend on."""

    _now: dict[str, _Derived[T]] = field(default_factory=dict)
    _before: dict[str, _Derived[T]] = field(default_factory=dict)

    def begin(self) -> None:
        """Drop what the last poll did not use."""
        self._before, self._now = self._now, {}

    def of(self, name: str, record: T, beside: object, make: Callable[[], T]) -> T:
        """Return the value for this same record object and an equal ``beside``."""
        derived = self._before.get(name)
        if derived is None or derived.record is not record or derived.beside != beside:
            derived = _Derived(record, beside, make())
        self._now[name] = derived
        return derived.value


ReadTime = Callable[[str], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedPart:
    """What no job uses of a node with GPUs, specialised cores included."""

    gpus: tuple[TypedGpus, ...]
    cpus: int
    memory_mb: int
    unclear: str = ""  # why Slurm does not tell; then there are no GPUs here

    @property
    def n_gpus(self) -> int:
        """Return the GPUs of all types."""
        return sum(kind.count for kind in self.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """A line of ``sinfo -N``: one node in one partition."""

    partition: str
    node: Node
    allows: Partition
    gpus_unclear: str = ""  # why it is not told how many are in use
    room: UnusedPart | None = None  # None: the node has no GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillStats:
    """The report of ``sdiag`` about the backfill scheduler."""

    cycle: SchedulerCycle
    is_in_progress: bool  # then its numbers mix two cycles


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """The settings we use from ``scontrol show config``; defaults are Slurm's."""

    release: str  # e.g. 23.11
    bf_interval_s: float  # between two backfill cycles; 30 s
    bf_resolution_s: float  # of the slots of backfill's plan; a minute
    bf_window_s: float  # for which backfill plans ahead; set in minutes, a day
    bf_max_job_array_resv: int  # tasks of an array that backfill plans; 20
    are_nodes_shared: bool  # two jobs may share a node
    is_memory_counted: bool  # memory is allocated to jobs, too
    slurm_uid: int | None  # of SlurmUser, which runs the controller
    has_switches: bool  # it knows the network switches
    enforces_accounts: bool  # a job needs a valid one


def records(text: str, n_fields: int) -> Iterator[list[str]]:
    """Split the output of one of our formats into its fields."""
    return (_fields(row, n_fields) for row in _rows(text))


def _rows(text: str) -> list[str]:
    """Split the output of one of our formats into its records."""
    head, *rows = text.split(RECORD)
    if head.strip():
        raise ParseError(f"text before the first record: {head.strip()[:80]!r}")
    cut = next((row for row in rows if not row.endswith("\n")), None)
    if cut is not None:
        raise ParseError(f"a record was cut off: {cut[-80:]!r}")
    return rows


def long_records(text: str, n_fields: int) -> Iterator[list[str]]:
    """Split the output of one of our ``-O`` formats: every record ends with the separator."""
    return (_fields(row, n_fields) for row in _long_rows(text))


def _long_rows(text: str) -> list[str]:
    *rows, end = text.split(RECORD + "\n")
    if end:
        raise ParseError(f"a record was cut off: {end[-80:]!r}")
    return rows


def _fields(row: str, n_fields: int) -> list[str]:
    fields = row.split(FIELD)
    if len(fields) != n_fields:
        raise ParseError(f"{len(fields)} fields instead of {n_fields}: {row[:80]!r}")
    return [field.strip() for field in fields]


def node_rows(text: str, known: RowCache[NodeRow] | None = None) -> tuple[NodeRow, ...]:
    """Parse ``sinfo -N`` in ``NODE_FIELDS``; ``known``: rows of the last poll."""
    rows = (row for row in _long_rows(text) if row.partition(FIELD)[0].strip() != NO_NODE)
    return tuple((known or RowCache()).read(rows, _node_row))


def _node_row(row: str) -> NodeRow:
    fields = _fields(row, len(NODE_FIELDS))
    name, partition, allows = fields[0], fields[2], fields[10:-1]
    if not name or not partition:
        raise ParseError("a node without a name or a partition")
    unclear, room = "", None
    try:
        node, unclear = _node(fields)
        if node.gpus:
            room = _room(fields)
    except ParseError:  # no reason to know nothing of the others
        node = Node(name=name, state=NodeState.UNKNOWN, reason=NOT_READ)
    return NodeRow(
        partition=partition,
        allows=_partition(partition, *allows),
        node=node,
        gpus_unclear=unclear,
        room=room,
    )


def _node(fields: list[str]) -> tuple[Node, str]:
    """Return a node, and why it is not told how many of its GPUs are in use."""
    name, state, _, gres, cpus, memory, features, by_state, memory_used, gres_used = fields[:10]
    gpus, gpu_type = gpus_of(gres)
    known_state = states.node_state(state)
    reason = fields[-1]
    if states.is_to_reboot(state):
        reason = REBOOTS
    feature_names: tuple[str, ...] = ()
    if features not in NOTHING:
        feature_names = tuple(features.split(","))
    node_left, unclear = None, ""
    # Of a node on which a job completes the rest is free, or in use, as before.
    if known_state in (NodeState.ALLOCATED, NodeState.COMPLETING):
        free_gpus = gpus_left(gres, gres_used)
        node_left = _left(by_state, memory, memory_used, free_gpus.count)
        if node_left is not None:
            unclear = free_gpus.unclear
    node = Node(
        name=name,
        state=known_state,
        left=node_left,
        reason="" if reason in NOTHING else reason,
        node_type=gpu_type,
        gpus=gpus,
        cpus=whole(cpus),
        memory_mb=whole(memory),
        features=feature_names,
    )
    return node, unclear


def _room(fields: list[str]) -> UnusedPart:
    _, _, _, gres, _, memory, _, by_state, memory_used, gres_used = fields[:10]
    gpus, unclear = tuple[TypedGpus, ...](), ""
    try:
        gpus = gpus_by_type(gres, gres_used)
    except ParseError as problem:
        unclear = str(problem)
    memory_mb = max(0, whole(memory) - whole(memory_used))
    return UnusedPart(gpus=gpus, cpus=_idle(by_state), memory_mb=memory_mb, unclear=unclear)


def _idle(cpus_by_state: str) -> int:
    """Return the idle processors of allocated/idle/other/total."""
    counts = cpus_by_state.split("/")
    if len(counts) != 4:
        raise ParseError(f"not processors by state: {cpus_by_state[:40]!r}")
    return whole(counts[1])


def _left(cpus_by_state: str, memory: str, memory_used: str, gpus: int) -> NodeLeft | None:
    """Return the free part of a node; ``cpus_by_state``: allocated/idle/other/total."""
    idle = _idle(cpus_by_state)
    memory_mb = max(0, whole(memory) - whole(memory_used))
    if not idle:
        return None
    return NodeLeft(cpus=idle, memory_mb=memory_mb, gpus=gpus)


@lru_cache(maxsize=1024)  # repeated for every node
def _partition(name: str, state: str, limit: str, size: str, tier: str, sharing: str) -> Partition:
    _, _, most_nodes = size.rpartition("-")
    return Partition(
        name=name,
        can_start=state in ("up", "drain"),  # sinfo(1): "drain" only takes no new jobs
        accepts=state in ("up", "down"),
        time_limit_s=None if limit == "infinite" else duration_s(limit),
        n_nodes_max=None if most_nodes == "infinite" else whole(most_nodes),
        tier=whole(tier),
        is_exclusive=sharing == "EXCLUSIVE",
    )


def jobs(
    text: str,
    read_time: ReadTime | None = None,
    known: RowCache[Job] | None = None,
    printed: PrintedLists | None = None,
) -> tuple[Job, ...]:
    """Parse ``squeue`` in ``JOB_FORMAT``: one job per row; an array is one job (``arrays``).

    ``read_time``: parses points in time, default ``time_s``; ``known``: rows of the last poll;
    ``printed``: lists of nodes of earlier polls.
    """
    read = partial(
        _job,
        lists=NodeLists(),
        printed=printed or PrintedLists(),
        read_time=read_time or time_s,
    )
    return tuple((known or RowCache()).read(_rows(text), read, _is_small))


def _is_small(job: Job) -> bool:
    """Return whether it names few nodes; long lists count against a limit per poll."""
    return len(job.required_nodes) + len(job.excluded_nodes) <= FEW_NODES


def _job(row: str, lists: NodeLists, printed: PrintedLists, read_time: ReadTime) -> Job:
    fields = _fields(row, N_JOB_FIELDS)
    (job_id, partition, state, reason, start, limit, planned_nodes, nodes, n_nodes) = fields[:9]
    (submit, user, features, gres, priority, required, excluded, waits_for) = fields[9:]
    doubts = Doubts()
    number = _NUMBER.match(job_id)
    if number is None:
        raise ParseError(f"a job without an id: {row[:80]!r}")
    job_id = doubts.read("tasks", job_id, _checked, number[0])
    leader, is_component, _ = job_id.partition("+")
    array, is_task, _ = leader.partition("_")
    is_first = state == states.EXPEDITING
    gpu_type, several = type_of(gres)
    # In the order in which the doubts are named.
    return Job(
        job_id=job_id,
        family=array if is_task or is_component else "",
        together=leader if is_component else "",
        user=user,
        partitions=doubts.partitions(partition),
        state=states.job_state(state),
        n_nodes=doubts.read("a number of nodes", n_nodes.partition("-")[0], whole, 1),
        time_limit_s=doubts.read("a time limit", limit, duration_s, None),
        reason="" if reason in NOTHING else reason,
        priority=BEFORE_ALL if is_first else doubts.read("a priority", priority, _priority, 0.0),
        submit_s=doubts.read("a time of submission", submit, read_time, None),
        start_s=doubts.read("a begin", start, read_time, None),
        nodes=doubts.read("its nodes", nodes, printed.names, ()),
        planned_nodes=doubts.read("planned nodes", planned_nodes, printed.names, ()),
        required_nodes=doubts.read("nodes", required, lists.names, ()),
        excluded_nodes=doubts.read("nodes to avoid", excluded, lists.names, ()),
        waits_for=doubts.read("dependencies", waits_for, said, ""),
        wants=doubts.read("a constraint", features, ways_of, ()),
        gpus_per_node=doubts.read("GPUs", gres, gpus_needed, 0),
        gpu_type=gpu_type,
        unclear=" and ".join(filter(None, (doubts.words(), several))),
    )


def _checked(job_id: str) -> str:
    tasks_of(job_id)
    return job_id


def pilot_names(text: str) -> dict[str, str]:
    """Parse ``squeue`` in ``NAME_FORMAT``: job id -> job name."""
    return dict(records(text, 2))


def reservations(text: str, read_time: ReadTime | None = None) -> tuple[Reservation, ...]:
    """Parse ``scontrol -o show reservations``; ``read_time`` as for ``jobs``.

    A comment comes last and may contain anything, even line breaks and other settings.
    """
    if text.startswith("No reservations") or not text.strip():
        return ()
    if not text.endswith("\n"):
        raise ParseError(f"a reservation was cut off: {text[-80:]!r}")
    listed: list[Reservation] = []
    may_go_on = False  # a comment
    for line in filter(str.strip, text.split("\n")):
        match = _RESERVATION.match(line)
        if match is None:
            if may_go_on:
                continue
            raise ParseError(f"not a reservation: {line[:80]!r}")
        name, start, end, nodes, flags = match.groups()
        start_s, end_s = map(read_time or time_s, (start, end))
        if start_s is None or end_s is None:
            raise ParseError(f"a reservation without a time: {line[:80]!r}")
        is_maintenance, may_go_on = "MAINT" in flags.split(","), _COMMENT in line
        listed.append(
            Reservation(
                name=name,
                start_s=start_s,
                end_s=end_s,
                nodes=expand(nodes),
                is_maintenance=is_maintenance,
            )
        )
    return tuple(listed)


def backfill_stats(text: str) -> BackfillStats:
    """Parse the backfill part of ``sdiag``.

    "Last cycle when" is the second the cycle began, "Last cycle" its length in microseconds;
    their sum is never later than the true end.
    """
    lines = iter(text.split("\n")[:-1])  # whole ones
    title = next((line for line in lines if line.startswith("Backfilling stats")), None)
    if title is None:
        raise ParseError("no backfill statistics in the output of sdiag")
    inside = itertools.takewhile(lambda line: line[:1] in (" ", "\t"), lines)
    values = _pairs(inside, ":")
    if "Last cycle when" not in values:
        raise ParseError("sdiag does not report the last backfill cycle")
    when = re.search(r"\(([0-9]{1,18})\)", values["Last cycle when"])
    length_us = whole(values.get("Last cycle", "0"))
    began_s: float | None = None
    ended_s: float | None = None
    if when and float(when[1]) > 0:
        began_s = float(when[1])
        ended_s = began_s + length_us / 1e6
    return BackfillStats(
        cycle=SchedulerCycle(
            ended_s=ended_s,
            began_s=began_s,  # rounded down to whole seconds
            depth=whole(values.get("Last depth cycle", "0")),
            queue_length=whole(values.get("Last queue length", "0")),
        ),
        is_in_progress="middle of" in title,
    )


def controller_config(text: str) -> ControllerConfig:
    """Parse ``scontrol show config``."""
    values = settings_in(text)
    if "SLURM_VERSION" not in values:
        raise ParseError("scontrol show config does not report a version")
    number = partial(parameter_in_range, scheduler_parameters(values))
    slurm_user = re.search(r"\(([0-9]{1,10})\)", values.get("SlurmUser", ""))
    return ControllerConfig(
        release=release_of(values["SLURM_VERSION"]),
        bf_interval_s=number("bf_interval", 30.0, 10_800.0),
        bf_resolution_s=number("bf_resolution", 60.0, 3600.0),
        bf_window_s=60.0 * number("bf_window", 1440.0, 43_200.0),
        bf_max_job_array_resv=int(number("bf_max_job_array_resv", 20.0, 1000.0)),
        are_nodes_shared=values.get("SelectType") in ("select/cons_tres", "select/cons_res"),
        is_memory_counted="MEMORY" in values.get("SelectTypeParameters", "").upper(),
        slurm_uid=int(slurm_user[1]) if slurm_user else None,
        has_switches=values.get("TopologyPlugin") == "topology/tree",
        enforces_accounts="associations" in values.get("AccountingStorageEnforce", ""),
    )


def scheduler_parameters(values: Mapping[str, str]) -> dict[str, str]:
    """Return the items of SchedulerParameters; those without a value have ""."""
    items = values.get("SchedulerParameters", "").split(",")
    pairs = (item.strip().partition("=") for item in items)
    return {name: value for name, _, value in pairs if name not in NOTHING}


def parameter_in_range(
    parameters: Mapping[str, str], name: str, default: float, most: float
) -> float:
    """Return a parameter as Slurm reads it: outside 1 to ``most`` the default applies."""
    try:
        value = float(parameters[name])
    except (KeyError, ValueError):
        return default
    if not 1.0 <= value <= most:
        return default
    return value


def settings_in(text: str) -> dict[str, str]:
    """Parse lines of ``Name = value``."""
    return _pairs(text.splitlines(), "=")


def values_in(line: str) -> dict[str, str]:
    """Parse ``Name=value Name=value``."""
    return _pairs(line.split(), "=")


def _pairs(parts: Iterable[str], mark: str) -> dict[str, str]:
    values = {}
    for part in parts:
        name, has_mark, value = part.partition(mark)
        if has_mark:
            values[name.strip()] = value.strip()
    return values


def memory_mb_of(text: str) -> int:
    """Parse an amount of memory, ``500M`` or ``1.50G``; megabytes without a unit."""
    amount = _MEMORY.fullmatch(text)
    if amount is None:
        raise ParseError(f"not an amount of memory: {text[:40]!r}")
    return int(float(amount[1]) * _MEGABYTES[amount[2]])


def duration_s(text: str) -> float | None:
    """Parse a time limit: ``MM:SS``, ``HH:MM:SS`` or ``D-HH[:MM[:SS]]``; ``None`` = no limit."""
    if text in _NO_LIMIT:
        return None
    limit = _LIMIT.fullmatch(text)
    if limit is None:
        raise ParseError(f"not a time limit: {text[:40]!r}")
    days = int(limit[1] or 0)
    parts = [int(part) for part in limit.groups()[1:] if part is not None]
    if limit[1] is not None:  # from the left: hours, minutes, seconds
        parts += [0] * (3 - len(parts))
    else:  # from the right; squeue never prints a lone number, read as seconds here
        parts = [0] * (3 - len(parts)) + parts
    hours, minutes, seconds = parts
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def time_s(text: str) -> float | None:
    """Parse a time: epoch seconds, or ISO in UTC from releases that print only that."""
    if text in NOTHING:
        return None
    if len(text) > LONGEST:
        raise ParseError(f"not a time: {text[:40]!r}")
    if _WHOLE.fullmatch(text):
        # Slurm prints its "no value" or 0 for unknown times.
        value = float(text)
        if not 0 < value < 4_294_967_294:
            return None
        return value
    try:
        moment = dt.datetime.strptime(text, "%Y-%m-%dT%H:%M:%S")  # noqa: DTZ007
    except ValueError as problem:
        raise ParseError(f"not a time: {text[:40]!r}") from problem
    value = moment.replace(tzinfo=dt.UTC).timestamp()
    if not math.isfinite(value) or value <= 0:
        raise ParseError(f"not a time: {text[:40]!r}")
    return value


def _priority(text: str) -> float:
    if not _PRIORITY.fullmatch(text):
        raise ParseError(f"not a priority: {text[:40]!r}")
    return float(text)


def switches(text: str) -> dict[str, str]:
    """Return the switch of each node, on the lowest level (0).

    Raises:
        ParseError: it is something else.
    """
    switch_of: dict[str, str] = {}
    for line in filter(str.strip, text.splitlines()):
        values = values_in(line)
        if not values.get("SwitchName") or not values.get("Level"):
            raise ParseError(f"not a switch: {line[:80]!r}")
        if values["Level"] == "0":
            nodes = expand(values.get("Nodes", ""))
            switch_of.update(dict.fromkeys(nodes, values["SwitchName"]))
    return switch_of


@dataclass(slots=True)
class ControllerClock:
    """The lead of the controller's clock over ours; 0 until something contradicts that."""

    least_s: float = -math.inf
    most_s: float = math.inf

    @property
    def ahead_s(self) -> float:
        """The middle of the possible range, or 0 if possible."""
        if self.least_s <= 0.0 <= self.most_s:
            return 0.0
        return (self.least_s + self.most_s) / 2.0

    def hear(self, text: str, *, sent_s: float, received_s: float) -> None:
        """Process a time printed by the controller between two times of ours."""
        header = _HEADER.search(text)
        if header is None:
            return
        try:
            printed_s = time_s(header[1] or header[2])
        except ParseError:
            return
        if printed_s is None:
            return
        least_s, most_s = printed_s - received_s, printed_s + 1.0 - sent_s
        if least_s <= self.most_s and self.least_s <= most_s:
            least_s, most_s = max(least_s, self.least_s), min(most_s, self.most_s)
        self.least_s, self.most_s = least_s, most_s

    def ours_s(self, theirs_s: float | None) -> float | None:
        """Convert a time of the controller's clock to ours."""
        if theirs_s is None:
            return None
        return theirs_s - self.ahead_s

    def time_s(self, text: str) -> float | None:
        """Parse a printed time; raises ``ParseError``."""
        return self.ours_s(time_s(text))
