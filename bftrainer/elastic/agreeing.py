"""The members of a generation agree, through its store, on the back end they all use.

First on what they offer; if all can use NCCL, each connects and probes it, and all use it
only if all succeeded: otherwise this generation trains with gloo. No member ever decides
that for itself. Called by ``group``, in the thread in which a group forms.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from bftrainer.elastic import choosing
from bftrainer.elastic.abandonable import GROUP_TIMEOUT_S
from bftrainer.elastic.choosing import NCCL, BackendChoice, BackendOffer
from bftrainer.elastic.device import DeviceCollective
from bftrainer.elastic.store import StoreClient

log = logging.getLogger("bftrainer.elastic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where and as whom this member meets the others of its generation."""

    host: str
    port: int
    token: str
    prefix: str  # of this generation and attempt
    rank: int
    size: int

    def connect(self) -> StoreClient:
        """Return a connection of one's own: a wait in another one must not stop it."""
        return StoreClient(self.host, self.port, self.token, GROUP_TIMEOUT_S)

    def key(self, what: str, rank: int) -> str:
        """Return the name of what a member says."""
        return f"{self.prefix}/{what}/{rank}"


class Attempt:
    """This member's try at a back end; its outcome is settled once, and told to all."""

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
        except Exception as problem:  # noqa: BLE001 - whatever it is, gloo does the work then
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
            # A failure stands in everybody's place, so that nobody waits for the others'.
            others = range(meeting.size) if reason else ()
            for rank in (*others, meeting.rank):
                text = f"rank {meeting.rank}: {reason}" if reason else ""
                store.set(meeting.key("outcome", rank), text)
            store.close()
        except RuntimeError as problem:  # whoever waits for us learns it from the store, too
            log.warning("cannot tell the other members: %s", problem)

    def give_up(self) -> None:
        """Let go of what came out, or still comes out."""
        self._decide(None)  # the others know why better than we
        made, self.collective = self.collective, None
        if made is not None:
            made.close()


def choice_of(meeting: Meeting, store: StoreClient, offer: BackendOffer) -> BackendChoice:
    """Tell what this member offers and return what all the offers come to.

    Raises:
        ElasticError: BFT-1414, see ``choosing``.
        RuntimeError: the store is gone, or a member never came.
    """
    if offer.wanted == choosing.GLOO:
        return BackendChoice()  # all were told the same
    store.set(meeting.key("offer", meeting.rank), choosing.encode(offer))
    if not offer.device and offer.wanted != NCCL:
        return BackendChoice()  # whatever the others have
    ranks = range(meeting.size)
    return choosing.choose([choosing.decode(store.get(meeting.key("offer", r))) for r in ranks])


def attempt_all(attempt: Attempt, meeting: Meeting, choice: BackendChoice) -> BackendChoice:
    """Wait for the outcome of all members' attempts; return what the generation uses.

    Raises:
        RuntimeError: the store is gone, or a member never said how it went.
    """
    store = meeting.connect()
    try:
        for rank in range(meeting.size):
            reason = store.get(meeting.key("outcome", rank)).decode()
            if reason:
                attempt.give_up()
                log.warning("this generation trains with gloo: NCCL failed: %s", reason)
                return replace(choice, backend=choosing.GLOO, reason=f"NCCL failed: {reason}")
    except BaseException:
        attempt.give_up()
        raise
    finally:
        store.close()
    return choice
