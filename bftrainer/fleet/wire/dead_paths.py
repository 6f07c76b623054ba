"""Notices below our messages that a path is dead, and uses the way back soon after it is mended.

A path that loses all packets breaks no TCP connection: what is unacknowledged is sent again after
ever longer times (RFC 6298, 5.5), so a connection that survives a cut is silent for about as long
again. Heartbeats of ZMTP (RFC 37, PING and PONG) are answered by the other process' network thread,
however busy it is; without an answer the connection is closed, and its client makes another.
"""

from __future__ import annotations

import zmq

RECONNECT_MS = 100
RECONNECT_MAX_MS = 1000
# A lost SYN is sent again after 1 s, then after 2, 4, 8, ... more (tcp(7), tcp_syn_retries).
CONNECT_LIMIT_MS = 2000
HANDSHAKE_LIMIT_MS = 5000


def close_when_dead(socket: zmq.Socket[bytes], after_s: float) -> None:
    """Close connections of which nothing was heard for 0.8 to 1 times ``after_s``."""
    after_ms = max(10, round(1000 * after_s))
    socket.set(zmq.HEARTBEAT_IVL, max(1, after_ms // 5))
    socket.set(zmq.HEARTBEAT_TIMEOUT, after_ms * 4 // 5)


def come_back_soon(dealer: zmq.Socket[bytes], after_s: float) -> None:
    """Have a client notice a dead path within ``after_s``, and a mended one within about 2 s."""
    close_when_dead(dealer, after_s)
    dealer.set(zmq.RECONNECT_IVL, RECONNECT_MS)
    dealer.set(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
    dealer.set(zmq.CONNECT_TIMEOUT, CONNECT_LIMIT_MS)
    dealer.set(zmq.HANDSHAKE_IVL, HANDSHAKE_LIMIT_MS)
