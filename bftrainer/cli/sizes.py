"""The sizes of a trainer and what they count, of ``--nodes``, ``--gpus`` and ``--gpus-per-node``.

A size counts nodes, single GPUs (``--gpus``) or units of K GPUs of one node each
(``--gpus-per-node K``); the field ``gpus_per_unit`` of a trainer says which. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bftrainer.api.admission import read_request
from bftrainer.cli.option_values import GpuSizes, NodeSizes, UnitOption
from bftrainer.model.errors import UsageError
from bftrainer.model.trainer import TrainerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedSizes:
    """NodeSizes of a trainer, what they count, and the GPUs that it requests."""

    sizes: NodeSizes  # in units
    gpus_per_unit: int  # 0: a unit is a node
    gres: str  # with the type that the options name


def asked_sizes(values: Mapping[str, Any], *, has_nodes: bool) -> AskedSizes:
    """Return what options of ``submit`` say of sizes; ``has_nodes``: ``--nodes`` was given.

    Raises:
        UsageError: BFT-1002, two options say the sizes; BFT-1037, GPUs are not a multiple of those
            of a node; BFT-1040, two options name different types.
    """
    gpus, unit = values.get("gpus"), values.get("gpus_per_node")
    if gpus is None and unit is None:
        return AskedSizes(sizes=NodeSizes(*values["sizes"]), gpus_per_unit=0, gres=values["gres"])
    per_unit, types = 1, [option.gpu_type for option in (gpus, unit) if option is not None]
    if unit is not None:
        per_unit = unit.gpus
    if gpus is None:
        sizes = NodeSizes(*values["sizes"])
    elif has_nodes:
        raise _two_sizes_error(gpus, NodeSizes(*values["sizes"]), unit)
    else:
        sizes = in_units(gpus.sizes, per_unit)
    return AskedSizes(
        sizes=sizes, gpus_per_unit=per_unit, gres=_typed(values["gres"], types, per_unit)
    )


def in_units(gpus: NodeSizes, per_unit: int) -> NodeSizes:
    """Return sizes in units of sizes in GPUs.

    Raises:
        UsageError: BFT-1037, one of them is no multiple of the GPUs of a unit.
    """
    for count in (gpus.n_min, gpus.n_max, *gpus.only):
        if count % per_unit:
            below = count // per_unit * per_unit
            nearest = " or ".join(str(size) for size in (below, below + per_unit) if size)
            raise UsageError(
                "BFT-1037",
                f"{count} GPUs cannot be had {per_unit} of a node together (--gpus-per-node).",
                f"Ask for multiples of {per_unit}: {nearest} instead of {count}.",
            )
    only = tuple([size // per_unit for size in gpus.only])
    return NodeSizes(gpus.n_min // per_unit, gpus.n_max // per_unit, only)


def changed_sizes(
    spec: TrainerSpec, nodes: NodeSizes | None, gpus: GpuSizes | None
) -> NodeSizes | None:
    """Return the sizes, in units, of a change by ``--nodes`` or ``--gpus``; None: neither is given.

    Raises:
        UsageError: BFT-1002, the trainer's sizes are not counted so, or both are given; BFT-1037.
    """
    if nodes is not None and gpus is not None:
        raise _two_sizes_error(gpus, nodes, None)
    per_unit = spec.gpus_per_unit
    if gpus is not None and per_unit and not gpus.gpu_type:
        return in_units(gpus.sizes, per_unit)
    if gpus is None and (nodes is None or per_unit != 1):
        return nodes
    counts = "nodes"
    if per_unit:
        counts = f"{spec.gpus_per_unit} GPUs of a node each"
    if per_unit == 1:
        counts = "GPUs"
    raise UsageError(
        "BFT-1002",
        f"The sizes of {spec.name} count {counts}, which stays so.",
        f"Write {spec.size_option} MIN:MAX, or submit it again with --resume-from.",
    )


def _two_sizes_error(gpus: GpuSizes, nodes: NodeSizes, unit: UnitOption | None) -> UsageError:
    """Return the refusal of ``--nodes`` with ``--gpus``, with what was probably meant."""
    step = "Leave out --nodes, or write --nodes MIN:MAX --gpus-per-node K."
    n_gpus, n_nodes = gpus.sizes.n_max, nodes.n_max
    is_exact = gpus.sizes.n_min == n_gpus and nodes.n_min == n_nodes
    if is_exact and unit is None and n_gpus % n_nodes == 0:
        gpus_of_node = str(n_gpus // n_nodes)
        if gpus.gpu_type:
            gpus_of_node = f"{gpus.gpu_type}:{gpus_of_node}"
        step = f"Write --nodes {n_nodes} --gpus-per-node {gpus_of_node}, or leave out --nodes."
    return UsageError("BFT-1002", "--nodes and --gpus both say the sizes.", step)


def _typed(gres: str, types: list[str], per_unit: int) -> str:
    """Return the request for GPUs with the type that options name; BFT-1040 if there are two."""
    requests = read_request(gres, "").gpus
    names = sorted({*types, *(gpu_type for gpu_type, _ in requests)} - {""})
    if len(names) > 1:
        raise UsageError(
            "BFT-1040",
            f"GPUs of several types are requested: {', '.join(names)}.",
            "Name one type, or --constraint with a feature that several kinds of nodes have.",
        )
    if not names:
        return gres
    (name,) = names
    count = max([n_gpus for _, n_gpus in requests], default=0)
    if count > per_unit:
        return f"gpu:{name}:{count}"
    return f"gpu:{name}"
