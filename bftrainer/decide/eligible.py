"""Nodes that each trainer may have: classes, and nodes that its others can reach. Pure.

Nodes that the trainer's other nodes cannot reach (``DecisionInput.apart``) count as neither planned
for it nor training for it (``parted``, called by ``decision``), and only others get them.

A trainer has nodes of one *type* at a time (GPUs by type and count), because the slowest node
sets the pace of a step, and only nodes that meet its request (``node_request``). Nodes of one
type that are alike to all requests form a class of the allocation problem. A trainer that has
nodes, or may use only one type, mixes the classes of its type; any other chooses one class.
``suited``, called by ``allocation``, adds them to the problem; ``daemon.explain.sizes`` explains
them to users.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from bftrainer.model.assignments import nodes_by_trainer
from bftrainer.model.census import census_of
from bftrainer.model.cluster import PART_MARK, Node
from bftrainer.model.decision import DecisionInput
from bftrainer.model.node_request import NOTHING, NodeRequest, asked
from bftrainer.model.parts import NodePart, host_of, n_gpus_of_host
from milp.problem import Problem, ProblemNode, ProblemTrainer, names_of

HOLD_S: Final = 120.0  # an unused one keeps its pilot, so that it is back soon after a short cut
ANYTHING: Final = NodeRequest()


def parted(given: DecisionInput) -> DecisionInput:
    """Return the input without what such nodes were for the trainers that must not get them."""
    if not given.apart:
        return given
    memory = replace(given.memory, assignment=_allowed(given.memory.assignment, given))
    return replace(given, training=_allowed(given.training, given), memory=memory)


def barred_from(given: DecisionInput) -> dict[str, frozenset[str]]:
    """Return the trainers that must not get a node, by node."""
    trainers: dict[str, set[str]] = {}
    for trainer_id, nodes in given.apart.items():
        for node in nodes:
            trainers.setdefault(node, set()).add(trainer_id)
    return {node: frozenset(trainer_ids) for node, trainer_ids in sorted(trainers.items())}


def is_awaited(given: DecisionInput, node: str) -> bool:
    """Return whether a trainer has been barred from the node for less than ``HOLD_S``."""
    newest_s = -math.inf
    for since_s in given.apart.values():
        newest_s = max(newest_s, since_s.get(node, -math.inf))
    return given.now_s - newest_s < HOLD_S


def why_unused(given: DecisionInput, node: str) -> str:
    """Say which trainers cannot use the node; "": none."""
    names = sorted([t for t, barred in given.apart.items() if node in barred])
    if names:
        return f"Other nodes of {', '.join(names)} cannot reach it (BFT-1340)."
    return ""


def _allowed(nodes: Mapping[str, str], given: DecisionInput) -> dict[str, str]:
    return {n: t for n, t in nodes.items() if n not in given.apart.get(t, ())}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClass:
    """Nodes of one type that meet the same requests."""

    node_type: str
    meets: frozenset[NodeRequest]
    bars: frozenset[str] = frozenset()  # trainers that must not get them (``apart``)
    host_gpus: int = 0  # of hosts whose GPUs are lent one by one; 0: whole nodes

    @property
    def name(self) -> str:
        """Its name in the allocation problem."""
        request_texts = sorted(map(str, self.meets - {ANYTHING}))
        if self.host_gpus:
            request_texts.append(f"of {self.host_gpus}")
        bar_texts = [f"not:{trainer_id}" for trainer_id in sorted(self.bars)]
        return " ".join([self.node_type, *request_texts, *bar_texts])


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedNodes:
    """The nodes that a trainer may have."""

    classes: tuple[NodeClass, ...]
    mixes: bool  # classes at once; else it uses one of them
    max_nodes: int  # that it could have if it were alone


def _is_met_by(request: NodeRequest, node: Node) -> bool:
    """Return whether a trainer may have a node; of a part, whether it may have what it is part of.

    How many GPUs of a host are one unit for it, the allocation problem knows (``width``).
    """
    if PART_MARK not in node.name:
        return request.is_met_by(node)
    host = host_of(node)
    if not request.gpus_per_unit:
        return request.is_met_by(host)
    unit = NodePart(
        name=node.name,
        node=host.name,
        gpu_type=node.node_type,
        gpus=request.gpus_per_unit,
        cores=node.cpus,
        memory_mb=node.memory_mb,
    )
    return request.is_met_by_part(unit, host)


class Classes:
    """Nodes by class."""

    def __init__(
        self,
        names: Iterable[str],
        seen: Mapping[str, Node],
        requests: Iterable[NodeRequest],
        barred: Mapping[str, frozenset[str]] = MappingProxyType({}),
    ) -> None:
        distinct_requests = frozenset(requests)
        kinds: dict[tuple[str, int, tuple[str, ...], frozenset[str]], NodeClass] = {}
        self.class_of: dict[str, NodeClass] = {}
        self._counts = Counter[NodeClass]()  # nodes, or GPUs; in order of first appearance
        for name in names:
            node = seen[name]
            bars = barred.get(name, frozenset())
            host_gpus = 0
            if PART_MARK in name:
                host_gpus = n_gpus_of_host(node)
            kind = (node.node_type, host_gpus or node.gpus, node.features, bars)
            node_class = kinds.get(kind)
            if node_class is None:
                meets = frozenset([r for r in distinct_requests if _is_met_by(r, node)])
                node_class = kinds[kind] = NodeClass(
                    node_type=node.node_type, meets=meets, bars=bars, host_gpus=host_gpus
                )
            self.class_of[name] = node_class
            self._counts[node_class] += node.gpus if host_gpus else 1

    @property
    def is_one(self) -> bool:
        """Return whether there is at most one class."""
        return len(self._counts) <= 1

    def choice(
        self, request: NodeRequest, n_min: int, held: Iterable[str] = (), trainer_id: str = ""
    ) -> AllowedNodes:
        """Return what a trainer with these nodes may have.

        If it may use several types and needs more nodes than any one class has, but not more than
        a type has, it gets the largest type.
        """
        classes, of_type, largest = list[NodeClass](), Counter[str](), 0
        for node_class, n_members in self._counts.items():
            if request in node_class.meets and trainer_id not in node_class.bars:
                count = n_members
                if node_class.host_gpus:
                    count //= request.gpus_per_unit or node_class.host_gpus
                classes.append(node_class)
                of_type[node_class.node_type] += count
                largest = max(largest, count)
        held_of_type = Counter[str]()
        for name in held:
            held_of_type[self.class_of[name].node_type] += 1
        of_choice = held_of_type or of_type
        best_type = max(of_choice, key=of_choice.__getitem__, default="")
        max_nodes = of_type[best_type]
        is_split = max_nodes >= n_min > largest
        if held_of_type or is_split or len(of_type) == 1:
            classes = [node_class for node_class in classes if node_class.node_type == best_type]
            return AllowedNodes(classes=tuple(classes), mixes=len(classes) > 1, max_nodes=max_nodes)
        return AllowedNodes(classes=tuple(classes), mixes=False, max_nodes=max_nodes)


def suited(problem: Problem, given: DecisionInput, warm_up_s: float = 0.0) -> Problem | None:
    """Return the problem restricted to the nodes that suit each trainer.

    Trainers that cannot start are left out, so that they do not count for P_jmax, unless
    ``skip_unstartable`` is off. None: no trainer is left.

    Args:
        problem: with every node open to every trainer.
        given: what it was made of.
        warm_up_s: of a joining node.
    """
    specs = {record.trainer_id: record.spec for record in given.trainers}
    requests: list[NodeRequest] = []
    for trainer in problem.trainers:
        spec = specs[trainer.trainer_id]
        requests.append(asked(spec))
    node_by_name = census_of(given.snapshot).by_name
    barred = barred_from(given)
    classes = Classes(names_of(problem.nodes), node_by_name, requests, barred)
    # A trainer of which no node trains yet has the type of its joining nodes.
    held_nodes = set[str]()
    for pilot in given.pilots:
        if pilot.is_held:
            held_nodes.add(pilot.node)
    joins = nodes_by_trainer(given.memory.assignment, held_nodes)
    trainers: list[ProblemTrainer] = []
    choices: dict[tuple[NodeRequest, int], AllowedNodes] = {}  # of those without nodes
    for trainer, request in zip(problem.trainers, requests, strict=True):
        has = trainer.current or joins.get(trainer.trainer_id, ())
        its_nodes = [name for name in has if name in classes.class_of]
        wants = request, trainer.n_min
        is_usual = not its_nodes and trainer.trainer_id not in given.apart
        if not is_usual:
            choice = classes.choice(*wants, its_nodes, trainer.trainer_id)
        elif wants in choices:
            choice = choices[wants]
        else:
            choice = choices[wants] = classes.choice(*wants)
        if choice.max_nodes < trainer.n_min and given.settings.skip_unstartable:
            continue
        if warm_up_s:
            trainer = replace(trainer, warm_up_s=warm_up_s)  # noqa: PLW2901
        if not (classes.is_one and choice.classes):
            accepted = tuple([node_class.name for node_class in choice.classes]) or NOTHING
            trainer = replace(trainer, eligible=accepted, mixes_classes=choice.mixes)  # noqa: PLW2901
        trainers.append(trainer)
    if not trainers:
        return None
    return replace(
        problem, nodes=_known(problem.nodes, classes, node_by_name), trainers=tuple(trainers)
    )


def _known(
    nodes: tuple[ProblemNode, ...], classes: Classes, node_by_name: Mapping[str, Node]
) -> tuple[ProblemNode, ...]:
    """The nodes with their switches and, if there are several, their classes."""
    if classes.is_one and not any(node_by_name[node.name].switch for node in nodes):
        return nodes
    titles: dict[NodeClass, str] = {}
    if not classes.is_one:
        titles = {node_class: node_class.name for node_class in set(classes.class_of.values())}
    described: list[ProblemNode] = []
    for node in nodes:
        title = titles.get(classes.class_of[node.name], node.eligibility)
        described.append(_with(node, title, node_by_name[node.name].switch))
    return tuple(described)


def _with(node: ProblemNode, eligibility: str, switch: str) -> ProblemNode:
    return ProblemNode(  # replace() would cost a decision on 800 nodes 2 ms of 16
        name=node.name,
        eligibility=eligibility,
        gpus=node.gpus,
        switch=switch,
        has_pilot=node.has_pilot,
        expected_remaining_s=node.expected_remaining_s,
        host=node.host,
        width=node.width,
        host_width=node.host_width,
    )
