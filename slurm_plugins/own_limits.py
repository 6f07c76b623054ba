"""Limits of one user: what ``sacctmgr`` prints -> nodes. Pure.

An association limits what its user has at once, a QOS what each of its users and all together
have. A pilot is a job of one whole node, so a limit on jobs is one on nodes, and one on CPUs or
GPUs is divided by what a node has. sacctmgr(1), 22.05.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bftrainer.model.cluster import Node, NodeLeft
from bftrainer.model.site import NodeLimit
from slurm_plugins.parse import duration_s

ASSOCIATION = (
    *("Account", "Partition", "DefaultQOS", "MaxJobs", "MaxSubmit", "GrpJobs", "GrpSubmit"),
    *("GrpTRES", "MaxTRES", "MaxWall"),
)
QOS = (
    *("Name", "MaxJobsPU", "MaxSubmitPU", "GrpJobs", "GrpSubmit", "MaxTRESPU", "GrpTRES"),
    *("MaxTRES", "MaxWall"),
)
_OF_JOBS = ("MaxJobs", "MaxSubmit", "GrpJobs", "GrpSubmit", "MaxJobsPU", "MaxSubmitPU")
_OF_RESOURCES = ("GrpTRES", "MaxTRESPU")
_COUNT = re.compile(r"[0-9]{1,18}")
Row = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a pilot takes: a share of a node, or the most that a node of the partition has."""

    cpus: int
    gpus: int

    @classmethod
    def of(cls, nodes: Sequence[Node], share: NodeLeft | None) -> Taken:
        """Return what a pilot on one of these nodes takes."""
        if share is not None:
            return cls(cpus=share.cpus, gpus=share.gpus)
        return cls(
            cpus=max((node.cpus for node in nodes), default=1),
            gpus=max((node.gpus for node in nodes), default=0),
        )

    def amount(self, resource: str) -> int:
        """Return how much of a trackable resource one pilot uses; 0: not counted here."""
        return {"node": 1, "cpu": self.cpus, "gres/gpu": self.gpus}.get(resource, 0)


def associations_argv(user: str, cluster: str) -> tuple[str, ...]:
    """Query the user's own associations."""
    what = f"format={','.join(ASSOCIATION)}"
    return ("sacctmgr", "-nP", "show", "assoc", f"user={user}", f"cluster={cluster}", what)


def qos_argv(names: Sequence[str]) -> tuple[str, ...]:
    """Query these QOS."""
    what = f"format={','.join(QOS)}"
    return ("sacctmgr", "-nP", "show", "qos", ",".join(sorted(names)), what)


def rows(text: str, fields: Sequence[str]) -> list[Row]:
    """Parse what ``sacctmgr -nP`` prints; lines of another form are left out."""
    split = [line.split("|") for line in text.splitlines()]
    return [dict(zip(fields, cells, strict=True)) for cells in split if len(cells) == len(fields)]


def association_of(found: Sequence[Row], account: str, partition: str) -> Row | None:
    """Return the association that a job of this account ("": the default) has."""
    fitting = [row for row in found if row["Partition"] in ("", partition)]
    fitting = [row for row in fitting if account in ("", row["Account"])]
    return next(iter(sorted(fitting, key=lambda row: row["Partition"], reverse=True)), None)


def node_limits(row: Row, owner: str, node: Taken) -> Iterator[NodeLimit]:
    """Return the limits of an association or QOS that are set."""
    for name in _OF_JOBS:
        if _COUNT.fullmatch(row.get(name, "")):
            yield NodeLimit(n_nodes=int(row[name]), words=f"{name}={row[name]} of {owner}")
    for name in _OF_RESOURCES:
        for resource, count in _resources(row.get(name, "")):
            if each := node.amount(resource):
                words = f"{name}={resource}={count} of {owner}"
                if each > 1:
                    words += f", and a pilot takes {each}"
                yield NodeLimit(n_nodes=count // each, words=words)
    for resource, count in _resources(row.get("MaxTRES", "")):
        if node.amount(resource) > count:  # of one job: no whole node fits
            yield NodeLimit(n_nodes=0, words=f"MaxTRES={resource}={count} of {owner}")


def wall_s(row: Row) -> float | None:
    """Return the longest time limit of a job; None: none is set."""
    text = row.get("MaxWall", "")
    return duration_s(text) if text else None


def _resources(text: str) -> Iterator[tuple[str, int]]:
    for word in text.split(","):
        name, _, count = word.partition("=")
        if _COUNT.fullmatch(count):
            yield name, int(count)
