"""This worker's ``BackendOffer``: a GPU of its own and NCCL, or why not.

Depends on the model's parameters and on the trainer's ``backend``. Called by ``run`` when the
model is known.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from bftrainer.elastic import backend_choice
from bftrainer.elastic.backend_choice import GLOO, NCCL, BackendOffer


def offer_of(
    wanted: str, parameters: Sequence[torch.Tensor], *, is_bitwise: bool = False
) -> BackendOffer:
    """Return the offer of a worker with this model.

    Raises:
        ElasticError: BFT-1414 when NCCL is demanded and this worker cannot use it.
    """
    if wanted == GLOO:
        return BackendOffer(wanted=wanted)
    why_not = _obstacle(parameters, is_bitwise=is_bitwise)
    if why_not:
        if wanted == NCCL:
            raise backend_choice.refused(why_not)
        return BackendOffer(wanted=wanted, why_not=why_not)
    device = parameters[0].device
    return BackendOffer(
        wanted=wanted,
        device=_name_of(device),
        place=str(device),
        version=".".join(map(str, torch.cuda.nccl.version())),
    )


def _obstacle(parameters: Sequence[torch.Tensor], *, is_bitwise: bool) -> str:
    devices = {p.device for p in parameters}
    kinds = {d.type for d in devices}
    if kinds == {"cpu"}:
        return "the model is not on a GPU"
    if kinds != {"cuda"} or len(devices) > 1:
        return f"the model is on {' and '.join(sorted(map(str, devices)))}"
    if is_bitwise:
        return "the bitwise mode adds gradients in host memory"
    if not torch.distributed.is_nccl_available():
        return "this torch has no NCCL"
    return ""


def _name_of(device: torch.device) -> str:
    """Return a unique name of a GPU."""
    found = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if found:  # to NCCL, one GPU under two host names is two; this variable sets the host's name
        return f"{found} {os.environ.get('NCCL_HOSTID', '')}".rstrip()
    # Workers of one node may each see one GPU only, always with index 0.
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return f"{os.uname().nodename}:{seen}:{device.index}"
