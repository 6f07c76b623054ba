"""Which nodes each trainer may have: classes of nodes, and who cannot start at all. Pure.

A trainer has nodes of one *type* at a time (GPUs by type and number), because gradient steps
go at the pace of the slowest, and only nodes that meet what it asks for (``node_request``).
Nodes of one type that are alike to all these requests are one class of the allocation
problem. A trainer that has nodes, or may have one type only, mixes the classes of its type;
another one chooses a class. Called by ``allocating``; ``startable`` tells users.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from bftrainer.decide.stating import nodes_by_trainer
from bftrainer.model.cluster import Node
from bftrainer.model.decision import DecisionInput
from bftrainer.model.node_request import NOTHING, NodeRequest, asked
from bftrainer.queue.shown import nodes_by_name
from milp.problem import Problem, ProblemNode, ProblemTrainer

ANYTHING = NodeRequest()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClass:
    """Nodes of one type that meet the same requests."""

    node_type: str
    meets: frozenset[NodeRequest]

    @property
    def name(self) -> str:
        """What the allocation problem calls it."""
        return " ".join([self.node_type, *sorted(str(one) for one in self.meets - {ANYTHING})])


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedNodes:
    """What a trainer may have."""

    classes: tuple[NodeClass, ...]
    mixes: bool  # nodes of all of them at once; else of one
    most: int  # nodes it could have, were it alone


class Classes:
    """Some nodes by class."""

    def __init__(
        self, names: Iterable[str], seen: Mapping[str, Node], requests: Iterable[NodeRequest]
    ) -> None:
        wanted = frozenset(requests)
        kinds: dict[tuple[str, int, tuple[str, ...]], NodeClass] = {}
        self.class_of: dict[str, NodeClass] = {}
        for name in names:
            node = seen[name]
            kind = (node.node_type, node.gpus, node.features)
            found = kinds.get(kind)
            if found is None:
                meets = frozenset(request for request in wanted if request.is_met_by(node))
                found = kinds[kind] = NodeClass(node_type=node.node_type, meets=meets)
            self.class_of[name] = found
        self._counts = Counter(self.class_of.values())  # in order of first appearance

    @property
    def is_one(self) -> bool:
        """Whether there are no two classes."""
        return len(self._counts) <= 1

    def choice(self, request: NodeRequest, n_min: int, held: Iterable[str] = ()) -> AllowedNodes:
        """Return what a trainer may have that has those nodes now.

        One that may have several types and fits into no class by itself, but into a type,
        gets the largest type.
        """
        classes = [one for one in self._counts if request in one.meets]
        of_type = Counter[str]()
        for one in classes:
            of_type[one.node_type] += self._counts[one]
        has = Counter(self.class_of[name].node_type for name in held)
        best = max(has or of_type, key=(has or of_type).__getitem__, default="")
        most = of_type[best]
        is_split = most >= n_min > max([self._counts[one] for one in classes], default=0)
        if has or is_split or len(of_type) == 1:
            classes = [one for one in classes if one.node_type == best]
            return AllowedNodes(classes=tuple(classes), mixes=len(classes) > 1, most=most)
        return AllowedNodes(classes=tuple(classes), mixes=False, most=most)


def suited(problem: Problem, given: DecisionInput, warm_up_s: float = 0.0) -> Problem | None:
    """Return the problem in which everybody may have what suits them.

    Trainers that cannot start are not in it, so that they do not count for P_jmax, unless
    the policy says that they do. None: there are no others.

    Args:
        problem: with every node open to everybody.
        given: what it was made of.
        warm_up_s: what a joining node needs before it trains.
    """
    specs = {record.trainer_id: record.spec for record in given.trainers}
    requests = [asked(specs[trainer.trainer_id]) for trainer in problem.trainers]
    seen = nodes_by_name(given.snapshot.nodes or ())
    classes = Classes([node.name for node in problem.nodes], seen, requests)
    # A trainer's type, if none of its nodes trains yet, is that of those about to.
    joins = nodes_by_trainer(given.memory.assignment, {p.node for p in given.pilots if p.is_held})
    trainers: list[ProblemTrainer] = []
    for trainer, request in zip(problem.trainers, requests, strict=True):
        has = trainer.current or joins.get(trainer.trainer_id, ())
        held = [name for name in has if name in classes.class_of]
        choice = classes.choice(request, trainer.n_min, held)
        if choice.most < trainer.n_min and given.settings.skip_unstartable:
            continue
        trainer = replace(trainer, warm_up_s=warm_up_s) if warm_up_s else trainer  # noqa: PLW2901
        if not (classes.is_one and choice.classes):
            names = tuple([one.name for one in choice.classes])
            trainer = replace(trainer, eligible=names or NOTHING, mixes_classes=choice.mixes)  # noqa: PLW2901
        trainers.append(trainer)
    if not trainers:
        return None
    return replace(problem, nodes=_known(problem.nodes, classes, seen), trainers=tuple(trainers))


def _known(
    nodes: tuple[ProblemNode, ...], classes: Classes, seen: Mapping[str, Node]
) -> tuple[ProblemNode, ...]:
    """The nodes with their classes, where there are several, and their switches."""
    if classes.is_one and not any(seen[node.name].switch for node in nodes):
        return nodes
    titles = {} if classes.is_one else {one: one.name for one in set(classes.class_of.values())}
    return tuple(
        [
            replace(
                node,
                eligibility=titles.get(classes.class_of[node.name], node.eligibility),
                switch=seen[node.name].switch,
            )
            for node in nodes
        ]
    )
