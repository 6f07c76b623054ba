"""A worker without a GPU of its own that takes its memory for one, so that the code for GPUs runs.

What travels then is real, and so are processes and deaths; only the copies between host
and device are copies within the host, and another back end does NCCL's work. With kind "cuda"
GPU and NCCL are real, but members share the GPU: each has a host name of its own for NCCL.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from bftrainer.elastic.network import device, group
from bftrainer.elastic.network.device import DeviceCollective
from bftrainer.ground.backend_choice import BackendOffer

NO_GPU = BackendOffer(why_not="the model is not on a GPU")


def offer(name: str, wanted: str = "auto") -> BackendOffer:
    """Return the offer of a member that says it has a GPU of this name."""
    return BackendOffer(wanted=wanted, device=name, place="cpu", version="1.0")


def is_pretended(tensor: torch.Tensor) -> bool:
    """Whether a tensor counts as one on a GPU: what a training step works on does."""
    return tensor.is_floating_point() and tensor.dim() > 0


def over_gloo(store: Any, rank: int, size: int, device: torch.device) -> DeviceCollective:
    """Return what ``device.new_nccl`` would, with gloo doing the work."""
    pg = group.new_process_group(store, rank, size, "127.0.0.1")
    return DeviceCollective(pg, device, name="nccl", limit_s=20.0)


def offer_of(
    wanted: str, parameters: Sequence[torch.Tensor], *, is_bitwise: bool = False
) -> BackendOffer:
    """Return what ``group.offer_of`` would."""
    del parameters
    return BackendOffer(wanted=wanted) if is_bitwise else offer(f"GPU {os.getpid()}", wanted)


def pretend(kind: str) -> None:
    """Have a GPU from now on; ``kind`` "gloo": with something that works as NCCL."""
    if kind == "cuda":
        os.environ.update(NCCL_HOSTID=str(os.getpid()), NCCL_SOCKET_IFNAME="lo")
        return
    device.is_on_device = is_pretended
    device.is_used = lambda: True
    if kind == "gloo":
        device.new_nccl = over_gloo
    if kind in ("gloo", "missing"):
        group.offer_of = offer_of
