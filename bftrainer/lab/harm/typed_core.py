"""The decision beside a site of several types of nodes: a trainer for each type.

A trainer uses one type of node at a time. So that no type is without one, each type has a trainer
of its own, that asks for a feature that its nodes have in the looks. Nodes of a type that lend
their GPUs one by one have another trainer, which asks for GPUs, than those that are lent whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from bftrainer.lab.harm.replica import NodeType
from bftrainer.lab.site.looks import EPOCH_S
from bftrainer.lab.site.machine import Machine
from bftrainer.lab.site.sidecar import Core
from bftrainer.lab.site.timeline import positions
from bftrainer.model.cluster import Node, Snapshot, node_of
from bftrainer.model.parts import Lend
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState


class TypedCore(Core):
    """The decision, with a trainer on each type of nodes."""

    def __init__(
        self,
        machine: Machine,
        node_types: Sequence[NodeType],
        *,
        start_s: float,
        policy_values: Mapping[str, Any],
        lend: Lend = Lend.NODES,
        lending: Sequence[Node] = (),
    ) -> None:
        """Begin without a memory.

        Args:
            machine: to be beside of.
            node_types: of its nodes.
            start_s: of a worker, until its first step.
            policy_values: of the site's policy, where they are not the defaults.
            lend: the policy's.
            lending: the nodes as they lend GPUs while they are idle.
        """
        super().__init__(
            machine, start_s=start_s, policy_values=policy_values, lend=lend, lending=lending
        )
        parted = {node.name for node in super().look().nodes or () if node.lends}
        self._types: dict[str, int] = {}  # by node: the number of its trainer
        trainers = list[TrainerRecord]()
        for kind in node_types:
            names = [f"n{node:05d}" for node in positions(kind.nodes)]
            of_gpus = [name for name in names if name in parted]
            whole = [name for name in names if name not in parted]
            for members, gpus_per_unit in ((whole, 0), (of_gpus, 1)):
                if members:
                    number = len(trainers)
                    self._types |= dict.fromkeys(members, number)
                    n_max = len(members)
                    if gpus_per_unit:
                        n_max *= kind.gpus
                    trainers.append(_trainer(number, n_max, gpus_per_unit))
        self._trainers = tuple(trainers)
        self._looked: dict[Node, Node] = {}  # a node of a look -> the same with its feature

    def look(self) -> Snapshot:
        """Return what a look shows now, with a feature for each type."""
        snapshot, before = super().look(), self._looked
        self._looked = {}
        for node in snapshot.nodes or ():
            # The same object where nothing has changed: the decision keeps its parts by it.
            self._looked[node] = before.get(node) or self._with_feature(node)
        return dataclasses.replace(snapshot, nodes=tuple(self._looked.values()))

    def _with_feature(self, node: Node) -> Node:
        return dataclasses.replace(node, features=(_feature(self._types[node.name]),))

    def _training(self, held_nodes: AbstractSet[str]) -> Mapping[str, str]:
        """Return the trainer on each node: that of its type."""
        return self._started({name: _name(self._types[node_of(name)]) for name in held_nodes})


def _feature(number: int) -> str:
    return f"type{number}"


def _name(number: int) -> str:
    return f"t{number + 1}"


def _trainer(number: int, n_max: int, gpus_per_unit: int) -> TrainerRecord:
    spec = TrainerSpec(
        name=_name(number),
        user="b",
        script="/dev/null",
        n_min=1,
        n_max=n_max,
        gpus_per_unit=gpus_per_unit,
        constraint=_feature(number),
    )
    return TrainerRecord(
        trainer_id=_name(number), spec=spec, state=TrainerState.RUNNING, submitted_s=EPOCH_S
    )
