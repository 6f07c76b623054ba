"""systemd's readiness protocol: one datagram on ``$NOTIFY_SOCKET`` (sd_notify(3))."""

from __future__ import annotations

import os
import socket


def notify(state: str) -> bool:
    """Send a state such as ``READY=1``; False: no one listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    if address.startswith("@"):  # Linux abstract namespace
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        try:
            sock.sendto(state.encode(), address)
        except OSError:
            return False
    return True
