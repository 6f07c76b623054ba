"""Chooses the back end of a generation from its members' offers. Pure.

All members read the same offers and so make the same choice; ``group`` makes this worker's
offer and exchanges the offers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bftrainer.elastic.errors import ElasticError

AUTO, GLOO, NCCL = "auto", "gloo", "nccl"
BACKENDS = (AUTO, GLOO, NCCL)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOffer:
    """The back ends that one member can use in a generation."""

    wanted: str = AUTO  # one of BACKENDS, the same for all workers of a trainer
    device: str = ""  # unique name of its GPU; "": none for NCCL
    place: str = ""  # torch's name of it in this process
    why_not: str = ""
    version: str = ""  # of NCCL: members of different ones cannot connect


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendChoice:
    """The back end of a generation, and why it is not NCCL."""

    backend: str = GLOO
    reason: str = ""

    def __str__(self) -> str:
        """Return it in words, for logs and ``sizes``."""
        return f"{self.backend} ({self.reason})" if self.reason else self.backend


def choose(offers: Sequence[BackendOffer]) -> BackendChoice:
    """Return the back end of a generation from its ranks' offers.

    Raises:
        ElasticError: BFT-1414 when NCCL is demanded and cannot be used.
    """
    if any(offer.wanted == GLOO for offer in offers):
        return BackendChoice()
    reason = _obstacle(offers)
    if not reason:
        return BackendChoice(backend=NCCL)
    if any(offer.wanted == NCCL for offer in offers):
        raise refused(reason)
    return BackendChoice(reason=reason)


def _obstacle(offers: Sequence[BackendOffer]) -> str:
    for rank, offer in enumerate(offers):
        if not offer.device:
            return f"rank {rank}: {offer.why_not or 'no GPU'}"
    owners: dict[str, int] = {}
    for rank, offer in enumerate(offers):
        if offer.device in owners:
            return f"ranks {owners[offer.device]} and {rank} share a GPU"
        owners[offer.device] = rank
        if offer.version != offers[0].version:
            return f"ranks 0 and {rank} have NCCL {offers[0].version} and {offer.version}"
    return ""


def refused(reason: str) -> ElasticError:
    """Return the error of a trainer that demands NCCL but cannot use it."""
    return ElasticError(
        "BFT-1414",
        f"NCCL was asked for and cannot be used: {reason}.",
        "Submit with --backend auto, or give each worker a GPU and a torch with NCCL.",
    )
