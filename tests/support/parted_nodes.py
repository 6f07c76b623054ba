"""Nodes that lend their GPUs one by one, and pilots that have parts of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bftrainer.model.cluster import Job, JobState, LentGpus, Node, NodeState, Snapshot
from bftrainer.model.decision import DecisionInput, PilotView, Plan
from bftrainer.model.parts import NodePart
from tests.support.snapshots import T0, snapshot
from tests.support.timelines import PLAN, input_of


def lending_node(
    name: str, n_free: int, *, n_gpus: int = 4, state: NodeState = NodeState.ALLOCATED
) -> Node:
    """Return a node with GPUs of one type, of which so many are free."""
    lent = LentGpus(gpu_type="a100", n_gpus=n_gpus, n_free=n_free, cpus=4, memory_mb=0)
    return Node(
        name=name,
        state=state,
        node_type=f"gpu:a100:{n_gpus}",
        gpus=n_gpus,
        lends=(lent,),
        is_shared=True,
    )


def part_of(name: str, gpus: int = 1, gpu_type: str = "gpu:a100") -> NodePart:
    """Return the part with this name, such as n1/0."""
    node = name.partition("/")[0]
    return NodePart(name=name, node=node, gpu_type=gpu_type, gpus=gpus, cores=4, memory_mb=0)


def part_pilot(name: str, gpus: int = 1, *, is_held: bool = True) -> PilotView:
    """Return the pilot of a part."""
    return PilotView(
        pilot_id=f"p-{name}",
        node=name,
        requested_s=T0,
        is_held=is_held,
        part=part_of(name, gpus),
    )


def job_of(pilot: PilotView) -> Job:
    """Return the job of a pilot that has begun."""
    node = pilot.node.partition("/")[0]
    return Job(
        job_id=f"j-{pilot.pilot_id}",
        user="ada",
        state=JobState.RUNNING,
        n_nodes=1,
        time_limit_s=600.0,
        nodes=(node,),
        pilot_id=pilot.pilot_id,
    )


def seen_with(nodes: list[Node], *begun: PilotView) -> Snapshot:
    """Return a snapshot with these nodes and the jobs of these pilots."""
    return replace(snapshot(nodes), jobs=tuple(map(job_of, begun)))


def big_site(n_nodes: int, *, gpus: int = 8) -> tuple[DecisionInput, Plan]:
    """Return a decision on nodes of which every GPU is one pilot's, in turns of 200 trainers."""
    names = [f"n{k:04}" for k in range(n_nodes)]
    training: dict[str, str] = {}
    for index in range(n_nodes * gpus):
        training[f"{names[index // gpus]}/{index % gpus}"] = f"t{index % 200}"
    pilots = [part_pilot(name) for name in training]
    hosts = [lending_node(name, 0, n_gpus=gpus) for name in names]
    return input_of(seen_with(hosts, *pilots), *pilots, training=training), plan_of(training)


def plan_of(assignment: Mapping[str, str], *, reserve: tuple[str, ...] = ()) -> Plan:
    """Return a plan that is otherwise empty."""
    return replace(PLAN, assignment=assignment, reserve=reserve)


def lent_by(node: Node) -> list[tuple[str, int, int, int, int]]:
    """Return type, GPUs, free ones, processors and memory of a GPU, for each type."""
    return [(g.gpu_type, g.n_gpus, g.n_free, g.cpus, g.memory_mb) for g in node.lends]
