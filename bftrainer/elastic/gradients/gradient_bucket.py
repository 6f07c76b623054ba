"""Flat tensors that hold the gradients of several parameters. Used by ``buckets``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

FIRST_BUCKET_BYTES: Final = 1 << 20  # small, so that the first reduction starts early
BUCKET_BYTES: Final = 25 << 20


class GradientBucket:
    """A flat tensor that holds the gradients of consecutive parameters."""

    def __init__(
        self,
        members: list[int],
        params: Sequence[torch.Tensor],
        flags: int,
        *,
        of_node: bool = False,
    ) -> None:
        first = torch.empty(0)
        if members:
            first = params[members[0]]
        count = sum(params[i].numel() for i in members)
        self.members = members
        # Zeros, not empty: page faults happen now, off the critical path.
        self.flat = torch.zeros(count + flags, dtype=first.dtype, device=first.device)
        self.flags = self.flat[count:]
        self.views: dict[int, torch.Tensor] = {}
        offset = 0
        for i in members:
            self.views[i] = self.flat[offset : offset + params[i].numel()].view(params[i].shape)
            offset += params[i].numel()
        self.count = count
        self.carry: torch.Tensor | None = None  # sum of the step's earlier passes
        self.missing = len(members)
        self.work: Any = None
        self.is_haunted = False  # an abandoned collective may still write into it
        self.of_node = of_node  # parameters that are whole beside sharded ones


def layout(params: Sequence[torch.Tensor], whole: Sequence[bool] = ()) -> list[list[int]]:
    """Return which parameters share a bucket: last ones first, one type per bucket.

    ``whole``: for each parameter, whether it is so beside sharded ones; never in one bucket.
    """
    whole = whole or [False] * len(params)
    buckets: list[list[int]] = []
    size_bytes = 0
    limit = FIRST_BUCKET_BYTES
    for i in reversed(range(len(params))):
        p = params[i]
        fits = False
        if buckets:
            first = buckets[-1][0]
            has_type = (params[first].dtype, params[first].device) == (p.dtype, p.device)
            fits = has_type and whole[first] == whole[i]
        if not fits or size_bytes >= limit:
            if buckets:
                limit = BUCKET_BYTES
            buckets.append([])
            size_bytes = 0
        buckets[-1].append(i)
        size_bytes += p.numel() * p.element_size()
    return buckets
