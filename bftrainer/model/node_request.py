"""The nodes, or GPUs of nodes, that a trainer requests, and which ones satisfy that. Pure.

Parses ``sbatch --gres`` and ``--constraint`` as the user wrote them. Every node of a trainer must
satisfy them by itself; requests that count nodes are refused, because a trainer's size changes.
Where a size counts GPUs (``TrainerSpec.gpus_per_unit``), every part of a node must.
Called by ``api.admission`` and ``decide.eligible``. Source: sbatch manual page, release 22.05.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from bftrainer.model.cluster import LentGpus, Node, Rule, meets, rule_of
from bftrainer.model.parts import NodePart
from bftrainer.model.trainer import TrainerSpec

_GPU = re.compile(r"gpu(?::(?P<type>[A-Za-z0-9_][\w.+-]*?))?(?::(?P<count>[0-9]{1,9}))?")
_COUNT = re.compile(r"[0-9]{1,9}")
_OPERATORS = frozenset("&|")
NOTHING = ("-",)  # a feature that no node has


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRequest:
    """Requirements on every node."""

    gpus: tuple[tuple[str, int], ...] = ()  # type ("": any) and minimum count
    features: Rule = ()
    n_workers: int = 1  # a node that has GPUs at all has one for each
    gpus_per_unit: int = 0  # of one type, lent together; 0: whole nodes are requested

    def __str__(self) -> str:
        """Return it as one line of text."""
        words = [":".join(filter(None, ("gpu", kind, str(count)))) for kind, count in self.gpus]
        if self.features:
            words.append("".join(self.features))
        if self.n_workers > 1:
            words.append(f"a GPU for each of {self.n_workers} workers or none")
        if self.gpus_per_unit == 1:
            words.append("single GPUs")
        elif self.gpus_per_unit:
            words.append(f"{self.gpus_per_unit} GPUs of a node together")
        return "&".join(words)

    @property
    def n_gpus(self) -> int:
        """GPUs that workers of a node, or of a part of one, share; of all types."""
        if self.gpus_per_unit:
            return self.gpus_per_unit
        return sum(count for _, count in self.gpus)

    @property
    def gpu_type(self) -> str:
        """The type of a unit's GPUs; "": any."""
        if len(self.gpus) != 1:
            return ""
        kind, _ = self.gpus[0]
        return kind

    def is_met_by_part(self, part: NodePart, node: Node) -> bool:
        """Return whether a part of a node satisfies all requirements.

        Who requests nodes gets whole ones, who requests GPUs gets less than a node.
        """
        is_whole = part.name == node.name
        if not self.gpus_per_unit or is_whole:
            return is_whole and not self.gpus_per_unit and self.is_met_by(node)
        is_of_type = not self.gpu_type or part.gpu_type == f"gpu:{self.gpu_type}"
        return is_of_type and part.gpus >= self.gpus_per_unit and self.is_met_by(node)

    def is_met_by(self, node: Node) -> bool:
        """Return whether the node satisfies all requirements."""
        if node.gpus and node.gpus < self.n_workers:
            return False
        if self.gpus_per_unit and not any(map(self._is_unit_of, node.lends)):
            return False
        return meets(node.features, self.features) and all(
            (gpus_of_type(node.node_type, gpu_type) if gpu_type else node.gpus) >= count
            for gpu_type, count in self.gpus
        )

    def _is_unit_of(self, lent: LentGpus) -> bool:
        return self.gpu_type in ("", lent.gpu_type) and lent.n_gpus >= self.gpus_per_unit


@lru_cache(maxsize=1024)
def request_of(
    gres: str, constraint: str, n_workers: int = 1, gpus_per_unit: int = 0
) -> NodeRequest:
    """Parse both options; "" requests nothing.

    Args:
        gres: as sbatch has it.
        constraint: likewise.
        n_workers: per node; without ``gres`` each gets one GPU where there are any.
        gpus_per_unit: GPUs of one node that are requested together; 0: whole nodes.

    Raises:
        ValueError: what cannot be requested, in one sentence.
    """
    gpus = _gpus(gres)
    if gpus_per_unit:
        if len(gpus) > 1:
            raise ValueError("GPUs of several types are requested of one unit")
        return NodeRequest(
            gpus=gpus or (("", gpus_per_unit),),
            features=_features(constraint),
            gpus_per_unit=gpus_per_unit,
        )
    if gpus:  # each of the GPUs has a worker
        n_workers = 1
    return NodeRequest(gpus=gpus, features=_features(constraint), n_workers=n_workers)


def asked(spec: TrainerSpec) -> NodeRequest:
    """Return the trainer's requirements on its nodes."""
    try:
        return request_of(spec.gres, spec.constraint, spec.workers_per_node, spec.gpus_per_unit)
    except ValueError:  # another release may have accepted more
        return NodeRequest(features=NOTHING)


def _gpus(gres: str) -> tuple[tuple[str, int], ...]:
    count_of = _by_type(gres)
    if "" in count_of and len(count_of) > 1:
        raise ValueError("GPUs are requested both with and without a type")
    return tuple(sorted((gpu_type, count) for gpu_type, count in count_of.items() if count))


def _by_type(gres: str) -> dict[str, int]:
    """Return the GPUs of each type, "" for those without; raises ``ValueError``: it is not that."""
    count_of: dict[str, int] = {}
    if not gres or gres.lower() == "none":
        return count_of
    for item in gres.split(","):
        match = _GPU.fullmatch(item)
        if match is None:
            raise ValueError(f"{item!r} is not gpu, gpu:COUNT, gpu:TYPE or gpu:TYPE:COUNT")
        gpu_type, count = match["type"] or "", match["count"]
        if count is None and _COUNT.fullmatch(gpu_type):  # digits alone are a count
            gpu_type, count = "", gpu_type
        count_of[gpu_type] = count_of.get(gpu_type, 0) + int(count or 1)
    return count_of


def _features(constraint: str) -> Rule:
    if "[" in constraint or "*" in constraint:
        raise ValueError("a constraint with brackets or * applies to several nodes together")
    if not constraint.strip():
        return ()
    rule = rule_of(constraint)
    if rule is None:
        raise ValueError("the constraint is not features joined by & and |, with parentheses")
    if _is_ambiguous(rule):
        raise ValueError("the constraint mixes & and | without parentheses")
    return rule


def _is_ambiguous(rule: Rule) -> bool:
    """Return whether & and | are mixed without parentheses."""
    operators_by_depth: list[set[str]] = [set()]
    for word in rule:
        if word == "(":
            operators_by_depth.append(set())
        elif word == ")":
            operators_by_depth.pop()
        elif word in _OPERATORS:
            operators_by_depth[-1].add(word)
            if len(operators_by_depth[-1]) > 1:
                return True
    return False


@lru_cache(maxsize=1024)
def gpus_of_type(node_type: str, gpu_type: str = "") -> int:
    """Count the GPUs, of one type or all, of a node type like ``gpu:a100:4,gpu:v100:2``."""
    try:
        count_of = _by_type(node_type)
    except ValueError:  # not a type with GPUs
        return 0
    if not gpu_type:
        return sum(count_of.values())
    return count_of.get(gpu_type, 0)
