"""A worker's offer of a back end, and the members' agreement on one, through their store.

The members publish their offers. If all can use NCCL, each connects and probes it, and the
generation uses it only if all succeeded; otherwise it trains with gloo. No member decides
alone. ``group`` calls ``choice_of`` and ``attempt_all`` in the thread that forms a group.

An offer depends on the model's parameters and on the trainer's ``backend``; ``run`` makes it by
``offer_of`` when the model is known.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from bftrainer.elastic import backend_choice
from bftrainer.elastic.backend_choice import GLOO, NCCL, BackendChoice, BackendOffer
from bftrainer.elastic.collective import GROUP_TIMEOUT_S
from bftrainer.elastic.device import DeviceCollective
from bftrainer.elastic.store import StoreClient

log = logging.getLogger("bftrainer.elastic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """The generation's store, and this member's place in the generation."""

    host: str
    port: int
    token: str
    prefix: str  # of this generation and attempt
    rank: int
    size: int

    def connect(self) -> StoreClient:
        """Return a new connection, which a blocking wait on another one cannot delay."""
        return StoreClient(self.host, self.port, self.token, GROUP_TIMEOUT_S)

    def key(self, what: str, rank: int) -> str:
        """Return the key of a value that a member publishes."""
        return f"{self.prefix}/{what}/{rank}"


class Attempt:
    """This member's attempt to connect a back end; its one outcome is published to all."""

    def __init__(
        self,
        meeting: Meeting,
        make: Callable[[], DeviceCollective],
        limit_s: float,
    ) -> None:
        self._meeting = meeting
        self._make = make
        self._lock = threading.Lock()
        self._is_decided = False
        self.collective: DeviceCollective | None = None
        self._timer = threading.Timer(
            limit_s, partial(self._decide, f"not connected within {limit_s:g} s")
        )
        self._timer.daemon = True
        self._timer.start()
        threading.Thread(target=self._run, name="bft-device", daemon=True).start()

    def _run(self) -> None:
        try:
            made = self._make()
        except Exception as problem:  # noqa: BLE001 - whatever failed, gloo is used
            self._decide(str(problem).partition("\n")[0][:200] or type(problem).__name__)
            return
        if not self._decide("", made):
            made.close()  # too late

    def _decide(self, reason: str | None, made: DeviceCollective | None = None) -> bool:
        with self._lock:
            if self._is_decided:
                return False
            self._is_decided = True
            self.collective = made
        self._timer.cancel()
        if reason is not None:
            self._tell(reason)
        return True

    def _tell(self, reason: str) -> None:
        meeting = self._meeting
        try:
            store = meeting.connect()
            # A failure is published for every rank, so that no member waits for the others.
            others = range(meeting.size) if reason else ()
            for rank in (*others, meeting.rank):
                text = f"rank {meeting.rank}: {reason}" if reason else ""
                store.set(meeting.key("outcome", rank), text)
            store.close()
        except RuntimeError as problem:  # members that wait for us fail at the store, too
            log.warning("cannot report to the other members: %s", problem)

    def give_up(self) -> None:
        """Close the connection, now or when it is made."""
        self._decide(None)  # the member that failed has published the reason
        made, self.collective = self.collective, None
        if made is not None:
            made.close()


def choice_of(meeting: Meeting, store: StoreClient, offer: BackendOffer) -> BackendChoice:
    """Publish this member's offer and return the choice that follows from all offers.

    Raises:
        ElasticError: BFT-1414, see ``backend_choice``.
        RuntimeError: the store is gone, or a member never came.
    """
    if offer.wanted == backend_choice.GLOO:
        return BackendChoice()  # all members have the same setting
    store.set(meeting.key("offer", meeting.rank), backend_choice.encode(offer))
    if not offer.device and offer.wanted != NCCL:
        return BackendChoice()  # one member without a GPU decides it
    ranks = range(meeting.size)
    return backend_choice.choose(
        [backend_choice.decode(store.get(meeting.key("offer", r))) for r in ranks]
    )


def attempt_all(attempt: Attempt, meeting: Meeting, choice: BackendChoice) -> BackendChoice:
    """Wait for the outcome of all members' attempts; return what the generation uses.

    Raises:
        RuntimeError: the store is gone, or a member never reported its outcome.
    """
    store = meeting.connect()
    try:
        for rank in range(meeting.size):
            reason = store.get(meeting.key("outcome", rank)).decode()
            if reason:
                attempt.give_up()
                log.warning("this generation trains with gloo: NCCL failed: %s", reason)
                return replace(choice, backend=backend_choice.GLOO, reason=f"NCCL failed: {reason}")
    except BaseException:
        attempt.give_up()
        raise
    finally:
        store.close()
    return choice


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
