"""The sizes of a trainer in place of the nodes, tasks and GPUs that a job asks for. Pure.

A job has a fixed size, a trainer a range: up to what the job asks for, and from one unit on. The
unit is a node where the job asks for nodes alone, a single GPU where one process has one GPU, and
the GPUs of a node where one process has several.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from bftrainer.cli.sbatch_script.directives import SbatchDirective
from bftrainer.cli.sbatch_script.launchers import LaunchLine

_NUMBER = re.compile(r"[0-9]{1,7}\Z")
_NODES = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?\Z")
_GPUS = re.compile(r"(?:gres[:/])?gpu(?::([A-Za-z_][\w.+-]*))?(?:[:=]([0-9]{1,7}))?(?:\(.*\))?\Z")
_TYPED = re.compile(r"(?:([A-Za-z_][\w.+-]*)[:=])?([0-9]{1,7})\Z")
# Options that are one number, and the field that has it; those of GPUs may name their type.
_COUNTS: Final = {
    "ntasks": "n_tasks",
    "ntasks-per-node": "tasks_per_node",
    "cpus-per-task": "cpus_per_task",
}
_GPU_COUNTS: Final = {
    "gpus": "gpus_in_all",
    "gpus-per-node": "gpus_per_node",
    "gpus-per-task": "gpus_per_task",
}
_OF_ONE: Final = frozenset({"torchrun", "srun"})  # they start one process on a node by default
_OF_SLURM: Final = frozenset({"srun", "mpirun"})  # they ask Slurm for the number of tasks
TOO_MUCH: Final = "This is no number that sbatch takes here."


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSize:
    """What the directives of a job ask for; 0: they do not say."""

    nodes_min: int = 0
    nodes_max: int = 0
    n_tasks: int = 0
    tasks_per_node: int = 0
    cpus_per_task: int = 0
    gpu_type: str = ""
    gpus_per_node: int = 0
    gpus_in_all: int = 0
    gpus_per_task: int = 0
    is_exclusive: bool = False
    faults: Mapping[int, str] | None = None  # directive's place -> why it is left out

    @property
    def n_nodes(self) -> int:
        """The largest number of nodes; 1 if nothing is said."""
        return max(1, self.nodes_max)

    @property
    def processes_per_node(self) -> int:
        """What ``srun`` starts on a node by itself; 0: the directives do not say."""
        if self.tasks_per_node:
            return self.tasks_per_node
        if self.n_tasks:
            return max(1, self.n_tasks // self.n_nodes)
        return 0

    @property
    def gpus_of_node(self) -> int:
        """The GPUs that the job has on each node; 0: none."""
        if self.gpus_per_node:
            return self.gpus_per_node
        if self.gpus_per_task:
            return self.gpus_per_task * max(1, self.processes_per_node)
        return -(-self.gpus_in_all // self.n_nodes)

    @property
    def n_gpus(self) -> int:
        """The GPUs of the whole job."""
        if self.gpus_in_all:
            return self.gpus_in_all
        if self.gpus_per_task and not self.nodes_max:
            return self.gpus_per_task * max(1, self.n_tasks, self.tasks_per_node)
        return self.gpus_of_node * self.n_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeChoice:
    """The options of ``submit`` that say the sizes, and why these."""

    options: tuple[str, ...]  # option, value, ...
    reason: str
    otherwise: tuple[str, ...] = ()  # what to write where the site lends whole nodes only
    uses_tasks: bool = False  # the number of tasks is in it


def job_size(directives: Iterable[SbatchDirective]) -> JobSize:
    """Return what directives ask for; the last of equal ones counts, as for sbatch."""
    values: dict[str, int | str | bool] = {}
    faults: dict[int, str] = {}
    for place, directive in enumerate(directives):
        if directive.option is None or not directive.option.is_size or directive.fault:
            continue
        fields = _read(directive.option.name, directive.value)
        if fields is None:
            faults[place] = TOO_MUCH
        else:
            values |= fields
    return JobSize(**values, faults=faults)  # type: ignore[arg-type]


_Fields = dict[str, int | str | bool]


def _nodes(text: str) -> _Fields | None:
    match = _NODES.match(text)
    if match is None:
        return None
    n_min, n_max = int(match[1]), int(match[2] or match[1])
    if not 1 <= n_min <= n_max:
        return None
    if not match[2]:
        n_min = 0
    return {"nodes_min": n_min, "nodes_max": n_max}


def _count(field: str, text: str) -> _Fields | None:
    return {field: int(text)} if _is_count(text) else None


def _gpus(field: str, text: str) -> _Fields | None:
    match = _TYPED.match(text)
    if match is None or int(match[2]) < 1:
        return None
    return {field: int(match[2]), **_gpu_type(match[1])}


def _gpu_type(name: str | None) -> _Fields:
    """Return the type, if there is one: an earlier directive may have named it."""
    return {"gpu_type": name} if name else {}


class GresGpus(NamedTuple):
    """GPUs in a list of generic resources."""

    gpu_type: str  # "": any
    n_gpus: int


def gpus_of_gres(text: str) -> GresGpus:
    """Return the GPUs in a list of generic resources."""
    gpu_type, count = "", 0
    for part in text.split(","):
        match = _GPUS.match(part.strip())
        if match is not None:
            gpu_type, count = match[1] or gpu_type, count + int(match[2] or 1)
    return GresGpus(gpu_type, count)


def _gres(text: str) -> _Fields | None:
    gpu_type, count = gpus_of_gres(text)
    if not count:
        return {}
    return {"gpus_per_node": count, **_gpu_type(gpu_type)}


def _read(name: str, text: str) -> _Fields | None:
    """Return what an option says with this value; None: it is no value of the option."""
    fields: _Fields | None = {}
    if name in _COUNTS:
        fields = _count(_COUNTS[name], text)
    elif name in _GPU_COUNTS:
        fields = _gpus(_GPU_COUNTS[name], text)
    elif name == "nodes":
        fields = _nodes(text)
    elif name == "gres":
        fields = _gres(text)
    elif name == "exclusive":
        fields = {"is_exclusive": True}
    elif not _is_count(text):  # --ntasks-per-gpu, which counts nothing here
        fields = None
    return fields


def size_choice(size: JobSize, launch: LaunchLine, runtime: str) -> SizeChoice:
    """Return the sizes of the trainer that takes the job's place."""
    if size.n_gpus:
        return _of_gpus(size, launch, runtime)
    options: tuple[str, ...] = ("--nodes", _range(size))
    reason = "The job asks for nodes without GPUs, so sizes count nodes."
    if not size.nodes_max:
        reason = "The job asks for one node, so the trainer has one; --nodes 1:N lets it grow."
    per_node = processes_per_node(size, launch)
    if per_node > 1 and runtime == "torch":
        options = (*options, "--workers-per-node", str(per_node))
        reason += f" The launcher starts {per_node} processes on each."
    return SizeChoice(options=options, reason=reason, uses_tasks=per_node > 1)


def _of_gpus(size: JobSize, launch: LaunchLine, runtime: str) -> SizeChoice:
    prefix = f"{size.gpu_type}:" if size.gpu_type else ""
    per_node, processes = size.gpus_of_node, processes_per_node(size, launch)
    of_node = ("--nodes", _range(size), "--gres", f"gpu:{prefix}{max(1, per_node)}")
    if per_node > 1 and processes < per_node and per_node % processes == 0 and runtime == "torch":
        unit = ("--nodes", _range(size), "--gpus-per-node", f"{prefix}{per_node}")
        users = "One process has" if processes == 1 else f"{processes} processes share"
        return SizeChoice(
            options=(*unit, "--workers-per-node", str(processes)),
            reason=f"{users} the {per_node} GPUs of a node, so they come and go together.",
            otherwise=(*of_node, "--workers-per-node", str(processes)),
            uses_tasks=processes > 1,
        )
    if size.is_exclusive:
        return SizeChoice(
            options=of_node,
            reason="The job asks for whole nodes (--exclusive), with a worker on each GPU.",
        )
    is_placed = (size.nodes_max or size.gpus_per_node) and (runtime == "torch" or per_node == 1)
    n_min, n_max = 1, size.n_gpus
    if size.nodes_min:
        n_min = size.nodes_min * per_node
    reason = "Each process has one GPU, so single GPUs of any nodes will do."
    if n_max == 1:
        reason = f"The job has one GPU; --gpus {prefix}1:N lets the trainer grow."
    return SizeChoice(
        options=("--gpus", f"{prefix}{_sizes(n_min, n_max)}"),
        reason=reason,
        otherwise=of_node if is_placed else (),
    )


def _range(size: JobSize) -> str:
    """Return the sizes in nodes: from those that a range of the job begins with, else from one."""
    return _sizes(size.nodes_min or 1, size.n_nodes)


def _sizes(n_min: int, n_max: int) -> str:
    return str(n_min) if n_min == n_max else f"{n_min}:{n_max}"


def processes_per_node(size: JobSize, launch: LaunchLine) -> int:
    """Return how many processes the job starts on a node, at least 1.

    Where a launcher that starts several does not say, it is one for each GPU.
    """
    gpus = max(1, size.gpus_of_node)
    if not launch.is_distributed:
        return 1
    innermost = launch.launchers[-1]
    if _is_count(launch.n_per_node):
        return int(launch.n_per_node)
    if launch.n_per_node:  # what is not known here is usually the number of GPUs
        return gpus
    if _is_count(launch.n_total):
        return max(1, int(launch.n_total) // size.n_nodes)
    if innermost in _OF_SLURM and size.processes_per_node:
        return size.processes_per_node
    return 1 if innermost in _OF_ONE else gpus


def _is_count(text: str) -> bool:
    return _NUMBER.match(text) is not None and int(text) > 0
