"""Chooses the back end of a generation from its members' offers. Pure.

All members read the same offers and so make the same choice; ``group`` makes this worker's
offer and exchanges the offers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bftrainer.ground.errors import ElasticError

AUTO, GLOO, NCCL = "auto", "gloo", "nccl"
# Of each back end for devices the types of these, as torch names them. ``auto`` tries NCCL alone:
# the others have not been run.
DEVICES = {NCCL: ("cuda",), "xccl": ("xpu",), "hccl": ("npu", "hpu"), "ucc": ("cuda",)}
RCCL = "rccl"  # a build of torch for ROCm calls it nccl
BACKENDS = (AUTO, GLOO, *DEVICES, RCCL)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOffer:
    """The back ends that one member can use in a generation."""

    wanted: str = AUTO  # one of BACKENDS, the same for all workers of a trainer
    device: str = ""  # unique name of its GPU; "": none for this back end
    place: str = ""  # torch's name of it in this process
    why_not: str = ""
    version: str = ""  # of the back end: members of different ones cannot connect


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendChoice:
    """The back end of a generation, and why it is gloo."""

    backend: str = GLOO
    reason: str = ""

    def __str__(self) -> str:
        """Return it in words, for logs and ``sizes``."""
        return f"{self.backend} ({self.reason})" if self.reason else self.backend


def for_devices(wanted: str) -> str:
    """Return the name by which torch knows the back end that is tried first."""
    return wanted if wanted in DEVICES else NCCL


def is_demanded(wanted: str) -> bool:
    """Return whether a trainer ends where this back end cannot be used."""
    return wanted not in (AUTO, GLOO)


def choose(offers: Sequence[BackendOffer]) -> BackendChoice:
    """Return the back end of a generation from its ranks' offers.

    Raises:
        ElasticError: BFT-1414 when a back end is demanded that cannot be used.
    """
    if any(offer.wanted == GLOO for offer in offers):
        return BackendChoice()
    reason = _obstacle(offers)
    if not reason:
        return BackendChoice(backend=for_devices(offers[0].wanted))
    if any(is_demanded(offer.wanted) for offer in offers):
        raise refused(offers[0].wanted, reason)
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
            name = for_devices(offer.wanted).upper()
            return f"ranks 0 and {rank} have {name} {offers[0].version} and {offer.version}"
    return ""


def refused(wanted: str, reason: str) -> ElasticError:
    """Return the error of a trainer that demands a back end but cannot use it."""
    name = wanted.upper()
    return ElasticError(
        "BFT-1414",
        f"{name} was asked for and cannot be used: {reason}.",
        f"Submit with --backend auto, or give each worker a GPU and a torch with {name}.",
    )
