"""Messages from the daemon to systemd: ready, status, watchdog (sd_notify(3), 252).

One datagram each on ``$NOTIFY_SOCKET``; without that variable nothing is sent. The watchdog is fed
by completed cycles alone: a poll whose outcome was handled, answered or not, and a turn of the
decision loop after it. So an outage of the batch system feeds it, and a poll or decision that
hangs does not.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import MutableMapping, Sequence
from contextlib import suppress

from bftrainer.batch.rate_limit import LATENCY_FACTOR
from bftrainer.daemon.poller import longest_rest_s
from bftrainer.model.columns import counted
from bftrainer.site.policy.model import SitePolicy

CYCLE_S = 120.0  # for a poll whose commands run into their time limit, and a decision
LONGEST_STATUS = 200  # characters
# How long a change of state waits for room in the manager's queue (net.unix.max_dgram_qlen
# datagrams). A STATUS that finds none is sent again after the next poll; STOPPING would be lost.
ROOM_S = 2.0


class ServiceManager:
    """Speaks to whoever started the daemon."""

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        """Take systemd's variables out of the environment: no child may speak for us."""
        address = environ.pop("NOTIFY_SOCKET", "")
        # The Linux abstract namespace begins with a null character.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._watchdog_s = _watchdog_s(environ)
        self._is_polled = False

    def ready(self, policy: SitePolicy) -> None:
        """Say that requests are answered, under this policy."""
        patience = self._patience(longest_rest_s(policy) + CYCLE_S)
        self._send("READY=1", *patience, wait_s=ROOM_S)

    def reloading(self) -> None:
        """Say that the policy is read again; ``ready`` ends this."""
        # Type=notify-reload (systemd 253) wants the time, too.
        now = f"MONOTONIC_USEC={time.monotonic_ns() // 1000}"
        self._send("RELOADING=1", now, wait_s=ROOM_S)

    def stopping(self) -> None:
        """Say that the daemon ends."""
        self._send("STOPPING=1", "STATUS=stops; pilots and trainers go on", wait_s=ROOM_S)

    def polled(self, took_s: float, n_held: int, failures: Sequence[str]) -> None:
        """Note that a poll's outcome was handled.

        Args:
            took_s: the poll and its handling.
            n_held: nodes with an agent of ours.
            failures: what the batch system did not answer.
        """
        self._is_polled = True
        trouble = ""
        if failures:
            trouble = f"; incomplete poll: {'; '.join(failures)}"
        status = f"STATUS=holds {counted(n_held, 'node')}{trouble}"[:LONGEST_STATUS].replace(
            "\n", " "
        )
        # The next poll comes later, the longer this one took, and may take as long.
        self._send(status, *self._patience((LATENCY_FACTOR + 1.0) * took_s + CYCLE_S))

    def turned(self) -> None:
        """Note that the decision loop has completed a turn; with a poll this is a cycle."""
        if self._is_polled:
            self._is_polled = False
            self._send("WATCHDOG=1")

    def _patience(self, needed_s: float) -> tuple[str, ...]:
        """Return the request for a longer watchdog, if ours is too short for the next cycle."""
        if not 0 < self._watchdog_s < needed_s:
            return ()
        self._watchdog_s = needed_s
        return (f"WATCHDOG_USEC={needed_s * 1e6:.0f}",)

    def _send(self, *assignments: str, wait_s: float = 0.0) -> None:
        """Send one datagram; if nobody reads, it is dropped after ``wait_s``."""
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock, suppress(OSError):
            sock.settimeout(wait_s)
            sock.sendto("\n".join(assignments).encode(), self._address)


def _watchdog_s(environ: MutableMapping[str, str]) -> float:
    """Return how long we may be silent; 0: as long as we like (sd_watchdog_enabled(3))."""
    usec, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
    is_ours = pid in {"", str(os.getpid())}
    if not is_ours or not usec.isdecimal():
        return 0.0
    return int(usec) / 1e6
