"""The daemon's source of announcements: the hook's file on its own host, or relays on others.

The adapter owns one and opens its announcer. The socket for relays lives as long as the daemon,
because relays also connect while no announcer is open.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bftrainer.batch.announcer import Announcer
from bftrainer.fleet.wire.keys import load_or_create_pair
from bftrainer.model.errors import BatchSystemError, BftError
from slurm_plugins.hook.relay_receiver import RelayedHook, Relays
from slurm_plugins.hook.squeue_row import ClusterFacts
from slurm_plugins.hook.watch import Heard, HookFile

_ENDPOINT = re.compile(r"tcp://(\*|\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """The address on which relays are received, and the keys of both sides."""

    endpoint: str  # tcp://HOST:PORT
    allowed: frozenset[str]  # public keys
    key_file: Path  # our own pair; written if it is missing


def address_of(endpoint: str) -> tuple[str, int]:
    """Return host and port of ``tcp://HOST:PORT``; ``*`` is every address.

    Raises:
        ValueError: it is none.
    """
    match = _ENDPOINT.fullmatch(endpoint)
    if match is None or not 0 < int(match[2]) < 1 << 16:
        raise ValueError("write tcp://HOST:PORT, or tcp://*:PORT for every address of this host")
    host, port = match[1].strip("[]"), int(match[2])
    if host == "*":
        host = "0.0.0.0"  # noqa: S104 - as asked for
    return host, port


class HookSource:
    """The source that the policy names, if any."""

    def __init__(self, file: Path | None, relays: RelaySettings | None) -> None:
        self._file, self._settings = file, relays
        self.is_given = file is not None or relays is not None
        self._relays: Relays | None = None

    def why_unusable(self, owner_uid: Callable[[], int | None]) -> str:
        """Say why the hook cannot be used; "": it can, or there is none.

        Of relays only the running daemon knows.
        """
        if self._file is None:
            return ""
        try:
            self._followed(self._file, "", owner_uid(), ClusterFacts).close()
        except BatchSystemError as problem:
            return problem.cause.rstrip(".")
        return ""

    def open(
        self,
        pilot_partition: str,
        *,
        owner_uid: Callable[[], int | None],
        cluster: Callable[[], ClusterFacts],
    ) -> Announcer | None:
        """Return the announcer.

        Raises:
            BatchSystemError: BFT-1231, -1233, the file cannot be used; BFT-1511, no relay tells;
                BFT-1512, relays cannot be heard.
        """
        if self._settings is not None:
            relays = self._heard_relays(self._settings)
            return RelayedHook(relays, Heard(pilot_partition, cluster))
        if self._file is None:
            return None
        return self._followed(self._file, pilot_partition, owner_uid(), cluster)

    def counts(self) -> Mapping[str, int]:
        """Return what relays told so far, by kind."""
        if self._relays is None:
            return {}
        return self._relays.counts()

    def close(self) -> None:
        """Hear no relay any more."""
        if self._relays is not None:
            self._relays.close()
            self._relays = None

    def _heard_relays(self, settings: RelaySettings) -> Relays:
        if self._relays is None:
            try:
                keys = load_or_create_pair(settings.key_file)
            except BftError as problem:
                why = f"The relays of the hook cannot be heard: {problem.cause}"
                raise BatchSystemError("BFT-1512", why, problem.next_step) from problem
            host, port = address_of(settings.endpoint)
            self._relays = Relays(host=host, port=port, keys=keys, allowed=settings.allowed)
        return self._relays

    @staticmethod
    def _followed(
        file: Path, pilot_partition: str, owner_uid: int | None, cluster: Callable[[], ClusterFacts]
    ) -> HookFile:
        if owner_uid is None:
            raise BatchSystemError(
                "BFT-1231",
                "Slurm does not report SlurmUser, the owner of the hook's file.",
                "The next poll tries again; see 'scontrol show config'.",
            )
        return HookFile(file, pilot_partition, owner_uid=owner_uid, cluster=cluster)
