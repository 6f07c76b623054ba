"""Tells the GPUs of a node that pilots may have one by one, with their CPUs and memory. Pure.

Called by ``snapshot`` with what ``sinfo`` prints of a node (``parse.UnusedPart``) and with settings
that change rarely: of the cluster, of partitions and of nodes, as ``scontrol show`` prints them. A
node lends no part where one of them could not be read, and none where Slurm would put no pilot
beside ordinary jobs, or no ordinary job beside pilots.

Sources: slurm.conf(5), 22.05 to 26.05; job_test.c of select/cons_tres (``_verify_node_state``,
``_is_node_busy``: a partition with OverSubscribe=YES or FORCE shares no node with others);
node_scheduler.c (``filter_by_node_owner``: ExclusiveUser, preemption does not help there).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from bftrainer.model.cluster import LentGpus, Node, NodeState
from bftrainer.model.hostlist import ParseError
from slurm_plugins.doctor import is_of_one_user, partitions_in
from slurm_plugins.fields import NOTHING, TAKING_NODES, whole
from slurm_plugins.gres_conf import UntoldGpus
from slurm_plugins.parse import UnusedPart, settings_in

SMALLEST_SHARE = 0.25  # of the CPUs in proportion; a GPU for which fewer are left is not lent
_LENDING = (
    NodeState.IDLE,
    NodeState.PLANNED,
    NodeState.ALLOCATED,
    NodeState.COMPLETING,
)
_WHOLE_SOCKETS = ("CR_SOCKET", "CR_BOARD")
_NO_LIMIT = frozenset({"UNLIMITED", *NOTHING})

UNTOLD = "Slurm does not tell how many of its GPUs are in use ({why})."
UNREAD = "Its cores or limits could not be read from 'scontrol show node'."
PARTITION_UNREAD = "The sharing limits of partition {name} could not be read."
CLUSTER_UNREAD = "The settings of sharing could not be read from 'scontrol show config'."
NO_SHARING = "SelectType={select} gives whole nodes to jobs."
SOCKETS = "SelectTypeParameters={parameters} gives whole sockets to jobs."
PILOTS_EXCLUSIVE = "Partition {name} of the pilots gives whole nodes to jobs."
OVER_SUBSCRIBED = (
    "Partition {name} has OverSubscribe={word}: Slurm puts no pilot beside its jobs, nor them "
    "beside pilots."
)
ONE_USER = (
    "Partition {name} is ExclusiveUser: no pilot can be beside the jobs of its users, nor they "
    "beside pilots."
)
NO_GPU_ENV = (
    "gres.conf has Flags=no_gpu_env for its GPUs and ConstrainDevices is off: Slurm does not tell "
    "jobs which of them they have, so two pilots would use the same one."
)
NO_CPU = "Partition {name} of the pilots allows too few CPUs or too little memory per node."
OWN_ALLOCATION = "It is of your own allocation."


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultMemory:
    """What a job has that says nothing of memory; both 0: all of its nodes'."""

    memory_mb: int = 0  # on each node
    memory_per_cpu_mb: int = 0


NO_DEFAULT = DefaultMemory()


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultPerGpu:
    """What a job has for each of its GPUs that says nothing of it; 0: no default."""

    cpus: int = 0
    memory_mb: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLimits:
    """What a partition says of the sharing of its nodes."""

    is_exclusive: bool = False  # its jobs have whole nodes
    is_user_exclusive: bool = False  # a node has jobs of one user
    over_subscribe: str = ""  # YES or FORCE with a number, if its jobs may share CPUs; else ""
    cpus_per_node: int | None = None  # most of all its jobs on a node; None: no limit
    cpus_per_socket: int | None = None  # likewise
    memory_mb: int | None = None  # most of a job on a node; None: no limit
    memory_per_cpu_mb: int | None = None  # likewise; for more a job gets more CPUs
    cpus_per_gpu: int | None = None  # of a job that says nothing of it; None: no default
    memory_per_gpu_mb: int | None = None  # likewise
    takes_sockets: bool = False  # SelectTypeParameters of its own
    is_default: bool = False  # of jobs that name no partition
    default_memory: DefaultMemory = NO_DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLimits:
    """What of a node jobs can have."""

    cpus: int
    usable_cpus: int  # without those for the system
    cpus_per_core: int  # a core is given to one job
    sockets: int
    memory_mb: int  # kept for the system
    restricted_cpus_per_gpu: int = 0  # that only jobs of this GPU can have


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLimits:
    """What the configuration says of sharing."""

    why_whole: str  # why no node lends parts; "": nodes may
    is_memory_counted: bool
    hides_devices: bool = False  # a job can use no GPUs but its own
    is_binding_enforced: bool = False  # a GPU is given with the cores next to it, or not at all
    cpus_per_gpu: int | None = None  # as of partitions that say nothing of it
    memory_per_gpu_mb: int | None = None
    memory_mb: int | None = None
    memory_per_cpu_mb: int | None = None
    default_memory: DefaultMemory = NO_DEFAULT  # in partitions without one


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SharingLimits:
    """All of them, read at one time; nothing compares them by value, as they are many."""

    cluster: ClusterLimits | None = None  # None: it could not be read
    partitions: Mapping[str, PartitionLimits] = field(default_factory=dict)
    nodes: Mapping[str, NodeLimits] = field(default_factory=dict)
    untold_gpus: UntoldGpus = field(default_factory=UntoldGpus)

    def says_the_same(self, other: SharingLimits) -> bool:
        """Compare all of them by value."""
        return (
            self.cluster == other.cluster
            and self.partitions == other.partitions
            and self.nodes == other.nodes
            and self.untold_gpus == other.untold_gpus
        )

    def partition_of(self, names: Sequence[str]) -> PartitionLimits | None:
        """Return the one partition of these names, or the default one; None: it is not known."""
        if len(names) == 1:
            return self.partitions.get(names[0])
        if names:
            return None
        return next((limits for limits in self.partitions.values() if limits.is_default), None)

    def default_memory_in(self, names: Sequence[str]) -> DefaultMemory:
        """Return what a job of these partitions (none: the default one) has without asking.

        Of several partitions all must say the same: which it is for is not known before it starts.
        """
        defaults = set(map(self._default_memory, self._each_of(names)))
        if len(defaults) != 1:
            return NO_DEFAULT
        return defaults.pop()

    def default_per_gpu_in(self, names: Sequence[str]) -> DefaultPerGpu:
        """Return what a job of these partitions has for each GPU; see ``default_memory_in``."""
        defaults = set(map(self._default_per_gpu, self._each_of(names)))
        if len(defaults) != 1:
            return DefaultPerGpu()
        return defaults.pop()

    def _each_of(self, names: Sequence[str]) -> list[PartitionLimits | None]:
        """Return what is known of each of these partitions; without names, of the default one."""
        if not names:
            return [self.partition_of(names)]
        return list(map(self.partitions.get, names))

    def _default_per_gpu(self, partition: PartitionLimits | None) -> DefaultPerGpu:
        if partition is None or self.cluster is None:
            return DefaultPerGpu()
        cpus, memory_mb = partition.cpus_per_gpu, partition.memory_per_gpu_mb
        if cpus is None:
            cpus = self.cluster.cpus_per_gpu
        if memory_mb is None:
            memory_mb = self.cluster.memory_per_gpu_mb
        return DefaultPerGpu(cpus=cpus or 0, memory_mb=memory_mb or 0)

    def _default_memory(self, partition: PartitionLimits | None) -> DefaultMemory:
        if partition is None or self.cluster is None:
            return NO_DEFAULT
        if partition.default_memory != NO_DEFAULT:
            return partition.default_memory
        return self.cluster.default_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """What a GPU of a node is lent with."""

    cpus: int  # in proportion, or by default
    least_cpus: int  # fewer are not lent
    memory_mb: int  # 0: not counted
    most_gpus: int  # of all pilots of the node together


# ---- settings ------------------------------------------------------------------------


def cluster_limits(text: str) -> ClusterLimits:
    """Parse ``scontrol show config``; raises ``ParseError``."""
    values = settings_in(text)
    if "SelectType" not in values:
        raise ParseError("scontrol show config does not report SelectType")
    select, parameters = values["SelectType"], values.get("SelectTypeParameters", "").upper()
    why_whole = ""
    if select not in ("select/cons_tres", "select/cons_res"):
        why_whole = NO_SHARING.format(select=select)
    elif any(word in parameters for word in _WHOLE_SOCKETS):
        why_whole = SOCKETS.format(parameters=parameters)
    cpus, memory_mb = _defaults(values.get("JobDefaults", ""))
    return ClusterLimits(
        why_whole=why_whole,
        is_memory_counted="MEMORY" in parameters,
        hides_devices=values.get("ConstrainDevices", "").lower() == "yes"
        and "task/cgroup" in values.get("TaskPlugin", ""),
        is_binding_enforced="ENFORCE_BINDING_GRES" in parameters,
        cpus_per_gpu=cpus,
        memory_per_gpu_mb=memory_mb,
        memory_mb=_limit(values.get("MaxMemPerNode", "")),
        memory_per_cpu_mb=_limit(values.get("MaxMemPerCPU", "")),
        default_memory=_default_memory(values),
    )


def partition_limits(text: str) -> dict[str, PartitionLimits]:
    """Parse ``scontrol -o show partition``; a partition that cannot be read is left out."""
    limits = {}
    for name, values in partitions_in(text).items():
        with suppress(KeyError, ParseError):
            limits[name] = _partition(values)
    return limits


def _partition(values: Mapping[str, str]) -> PartitionLimits:
    exclusive = values.get("Exclusive", "NO")  # of 26.05, where OverSubscribe is NO then
    sharing, takes_block = values["OverSubscribe"], values.get("ExclusiveTopo") == "YES"
    cpus, memory_mb = _defaults(values.get("JobDefaults", ""))
    parameters = values.get("SelectTypeParameters", "").upper()
    return PartitionLimits(
        is_exclusive=sharing == "EXCLUSIVE" or exclusive in TAKING_NODES or takes_block,
        is_user_exclusive=is_of_one_user(values),
        over_subscribe=sharing if sharing.startswith(("YES", "FORCE")) else "",
        cpus_per_node=_limit(values["MaxCPUsPerNode"]),
        cpus_per_socket=_limit(values.get("MaxCPUsPerSocket", "")),
        memory_mb=_limit(values.get("MaxMemPerNode", "")),
        memory_per_cpu_mb=_limit(values.get("MaxMemPerCPU", "")),
        cpus_per_gpu=cpus,
        memory_per_gpu_mb=memory_mb,
        takes_sockets=any(word in parameters for word in _WHOLE_SOCKETS),
        is_default=values.get("Default") == "YES",
        default_memory=_default_memory(values),
    )


def _default_memory(values: Mapping[str, str]) -> DefaultMemory:
    return DefaultMemory(
        memory_mb=_limit(values.get("DefMemPerNode", "")) or 0,
        memory_per_cpu_mb=_limit(values.get("DefMemPerCPU", "")) or 0,
    )


def _limit(text: str) -> int | None:
    """Parse a limit; 0 is none, too."""
    if text in _NO_LIMIT:
        return None
    return whole(text) or None


def _defaults(text: str) -> tuple[int | None, int | None]:
    """Return DefCpuPerGPU and DefMemPerGPU in ``JobDefaults``."""
    values = {}
    for word in text.split(","):
        name, _, value = word.partition("=")
        values[name] = value
    return _limit(values.get("DefCpuPerGPU", "")), _limit(values.get("DefMemPerGPU", ""))


def node_limits(text: str) -> dict[str, NodeLimits]:
    """Parse ``commands.NODES``'s output; a node that cannot be read is left out."""
    limits = {}
    for line in text.splitlines():
        values: dict[str, str] = {}
        for word in line.split():
            key, _, value = word.partition("=")
            # What users and administrators write comes last; the first of each name counts.
            values.setdefault(key, value)
        if name := values.get("NodeName", ""):
            with suppress(KeyError, ParseError):
                limits[name] = _node(values)
    return limits


def _node(values: Mapping[str, str]) -> NodeLimits:
    cpus, sockets = whole(values["CPUTot"]), max(1, whole(values["Sockets"]))
    cores = sockets * max(1, whole(values["CoresPerSocket"]))
    # CPUs= of slurm.conf may count cores although each has two threads.
    per_core = max(1, min(whole(values["ThreadsPerCore"]), cpus // cores))
    system_cpus = per_core * whole(values.get("CoreSpecCount", "0"))
    usable = cpus - system_cpus
    if "CPUEfctv" in values:
        usable = whole(values["CPUEfctv"])
    restricted_text, _, _ = values.get("RestrictedCoresPerGPU", "0").partition("(")
    restricted = whole(restricted_text)
    return NodeLimits(
        cpus=cpus,
        usable_cpus=usable,
        cpus_per_core=per_core,
        sockets=sockets,
        memory_mb=whole(values.get("MemSpecLimit", "0")),
        restricted_cpus_per_gpu=per_core * restricted,
    )


# ---- nodes ---------------------------------------------------------------------------


def is_shared(node: Node, pilot_partition: str, limits: SharingLimits) -> bool:
    """Return whether ordinary jobs of any of a node's other partitions may share it."""
    if limits.cluster is None or limits.cluster.why_whole:
        return False
    for name in node.partitions:
        partition = limits.partitions.get(name)
        if name != pilot_partition and partition is not None and not partition.is_exclusive:
            return True
    return False


def why_whole(node: Node, room: UnusedPart, pilot_partition: str, limits: SharingLimits) -> str:
    """Say in a sentence why a node's GPUs are not lent one by one; "": they are."""
    if limits.cluster is None:
        return CLUSTER_UNREAD
    if limits.cluster.why_whole:
        return limits.cluster.why_whole
    if room.unclear:
        return UNTOLD.format(why=room.unclear)
    if node.name not in limits.nodes:
        return UNREAD
    if limits.untold_gpus.has(node.name) and not limits.cluster.hides_devices:
        return NO_GPU_ENV
    return _why_not_there(node, pilot_partition, limits)


def _why_not_there(node: Node, pilot_partition: str, limits: SharingLimits) -> str:
    """Say which partition of a node is in the way; "": none is."""
    for name in dict.fromkeys((pilot_partition, *node.partitions)):
        if reason := _why_not_in(name, pilot_partition, limits):
            return reason
    return ""


def _why_not_in(name: str, pilot_partition: str, limits: SharingLimits) -> str:
    partition = limits.partitions.get(name)
    if partition is None:
        return PARTITION_UNREAD.format(name=name)
    if partition.over_subscribe:
        return OVER_SUBSCRIBED.format(name=name, word=partition.over_subscribe)
    if partition.is_user_exclusive:
        return ONE_USER.format(name=name)
    if name == pilot_partition and partition.is_exclusive:
        return PILOTS_EXCLUSIVE.format(name=name)
    if name == pilot_partition and partition.takes_sockets:
        return SOCKETS.format(parameters=f"CR_Socket of partition {name}")
    return ""


def with_parts(
    node: Node, room: UnusedPart, pilot_partition: str, limits: SharingLimits, pilots_gpus: int = 0
) -> Node:
    """Return a node with its GPUs as pilots may have them.

    Args:
        node: as sinfo shows it.
        room: what of it no job uses.
        pilot_partition: of the pilots.
        limits: all settings.
        pilots_gpus: of it, that jobs of the pilots' partition have.
    """
    shared = is_shared(node, pilot_partition, limits)
    why = why_whole(node, room, pilot_partition, limits)
    if why or limits.cluster is None:
        return replace(node, lends=(), is_shared=shared, why_whole=why)
    pilots, its = limits.partitions[pilot_partition], limits.nodes[node.name]
    share = _share(node, room, limits.cluster, pilots, its)
    if share is None:
        no_cpu = NO_CPU.format(name=pilot_partition)
        return replace(node, lends=(), is_shared=shared, why_whole=no_cpu)
    n_pilots_may = 0
    # A node is full although its room shows something where a job has started since it was read
    # (``not_idle_where_jobs_run``): what that job has is not told before the next look.
    if node.state in _LENDING and not node.is_full:
        n_pilots_may = max(0, share.most_gpus - pilots_gpus)  # all, where nothing bounds them
    lends = _lends(room, share, its, n_pilots_may)
    return replace(node, lends=lends, is_shared=shared, why_whole="")


def bounds_cpus(pilot_partition: str, limits: SharingLimits) -> bool:
    """Return whether the CPUs of all pilots of a node together are limited (``pilots_gpus``)."""
    pilots = limits.partitions.get(pilot_partition)
    if pilots is None:
        return False
    return pilots.cpus_per_node is not None or pilots.cpus_per_socket is not None


def _most_cpus(pilots: PartitionLimits, its: NodeLimits) -> int | None:
    """Return how many CPUs all pilots of a node may have together; None: all."""
    bounds = []
    if pilots.cpus_per_node is not None:
        bounds.append(pilots.cpus_per_node)
    if pilots.cpus_per_socket is not None:
        bounds.append(pilots.cpus_per_socket * its.sockets)
    return min(bounds, default=None)


def _share(
    node: Node, room: UnusedPart, cluster: ClusterLimits, pilots: PartitionLimits, its: NodeLimits
) -> _Share | None:
    """Return what a GPU is lent with; None: a pilot could not have as much as it needs."""
    n_gpus, core = room.n_gpus, its.cpus_per_core
    usable, most_gpus, most_cpus = its.usable_cpus, n_gpus, _most_cpus(pilots, its)
    if most_cpus is not None:
        usable = min(usable, most_cpus)
        most_gpus = min(n_gpus, most_cpus // core)
    # More than in proportion would take the last core from a GPU that stays free.
    cpus = max(core, _whole_cores(usable // n_gpus, core))
    by_default = pilots.cpus_per_gpu or cluster.cpus_per_gpu
    if by_default is not None:
        cpus = max(core, min(cpus, _whole_cores(by_default, core)))
    memory_mb = 0
    if cluster.is_memory_counted:
        memory_mb = _memory_mb(node, n_gpus, cpus, pilots, cluster, its)
    if most_gpus < 1 or (cluster.is_memory_counted and memory_mb < 1):
        return None
    least_cpus = max(core, core * math.ceil(SMALLEST_SHARE * cpus / core))
    return _Share(cpus=cpus, least_cpus=least_cpus, memory_mb=memory_mb, most_gpus=most_gpus)


def _memory_mb(
    node: Node,
    n_gpus: int,
    cpus: int,
    pilots: PartitionLimits,
    cluster: ClusterLimits,
    its: NodeLimits,
) -> int:
    usable_mb = max(0, node.memory_mb - its.memory_mb)
    if most_mb := pilots.memory_mb or cluster.memory_mb:
        usable_mb = min(usable_mb, most_mb)
    bounds = [usable_mb // n_gpus]
    if by_default := pilots.memory_per_gpu_mb or cluster.memory_per_gpu_mb:
        bounds.append(by_default)
    if per_cpu_mb := pilots.memory_per_cpu_mb or cluster.memory_per_cpu_mb:
        bounds.append(per_cpu_mb * cpus)
    return min(bounds)


def _lends(room: UnusedPart, share: _Share, its: NodeLimits, n_may: int) -> tuple[LentGpus, ...]:
    """Return the GPUs by type; those free are as many as CPUs and memory are left for."""
    n_gpus = room.n_gpus
    n_free = sum(gpus.free for gpus in room.gpus)
    cpus_left = _cpus_left(room, its, n_gpus, n_free)
    cpus = share.cpus
    if n_free:
        # Jobs with more than their part of the CPUs leave less for each of the other GPUs.
        cpus = min(cpus, _whole_cores(cpus_left // n_free, its.cpus_per_core))
        cpus = max(cpus, share.least_cpus)
    n_fit = min(n_may, cpus_left // cpus)
    if share.memory_mb:
        n_fit = min(n_fit, max(0, room.memory_mb - its.memory_mb) // share.memory_mb)
    lends = []
    for gpus in room.gpus:
        n_lent = min(gpus.free, n_fit)
        n_fit -= n_lent
        lends.append(
            LentGpus(
                gpu_type=gpus.gpu_type,
                n_gpus=gpus.count,
                n_free=n_lent,
                cpus=cpus,
                memory_mb=share.memory_mb,
            )
        )
    return tuple(lends)


def _cpus_left(room: UnusedPart, its: NodeLimits, n_gpus: int, n_free: int) -> int:
    """Return the CPUs that pilots with the free GPUs can have, all of them together."""
    idle_cpus = max(0, room.cpus - (its.cpus - its.usable_cpus))
    if not its.restricted_cpus_per_gpu:
        return idle_cpus
    # Of the restricted ones that are idle some may be of GPUs in use: only their jobs get them.
    open_to_all = max(0, idle_cpus - its.restricted_cpus_per_gpu * n_gpus)
    return min(idle_cpus, its.restricted_cpus_per_gpu * n_free + open_to_all)


def _whole_cores(cpus: int, cpus_per_core: int) -> int:
    return cpus - cpus % cpus_per_core
