"""Which of several endpoints is the daemon's: the first at which its key answers.

A host may have addresses that others cannot reach, or at which they reach somebody else: a bridge
of containers has the same one everywhere. So what counts is the CURVE handshake, which only the
holder of the secret key can answer. Blocking; used by agents (in a thread) and by verbs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress

import zmq

from bftrainer.fleet.wire.keys import KeyPair

STAGGER_S = 0.25  # until the next endpoint is tried, too (as RFC 8305, section 8, advises)
# "Not let in" is said by the right daemon, too.
_ANSWERS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH


def first_answering(
    endpoints: Sequence[str], *, server_key: str, keys: KeyPair, limit_s: float
) -> str:
    """Return the first endpoint that answers; "": none did within ``limit_s``.

    Earlier endpoints have a start of ``STAGGER_S`` each.
    """
    begin_s = time.monotonic()
    with ExitStack() as opened:
        context = opened.enter_context(zmq.Context())
        poller, waiting = zmq.Poller(), dict[zmq.Socket[bytes], str]()
        untried = list(dict.fromkeys(endpoints))
        while (passed_s := time.monotonic() - begin_s) < limit_s:
            while untried and len(waiting) * STAGGER_S <= passed_s:
                dealer = opened.enter_context(context.socket(zmq.DEALER))
                monitor = opened.enter_context(dealer.get_monitor_socket(_ANSWERS))
                waiting[monitor] = untried.pop(0)
                poller.register(monitor, zmq.POLLIN)
                _connect(dealer, waiting[monitor], server_key, keys)
            next_s = len(waiting) * STAGGER_S if untried else limit_s
            for found, _ in poller.poll(math.ceil(1000 * (min(next_s, limit_s) - passed_s))):
                return waiting[found]
    return ""


def _connect(dealer: zmq.Socket[bytes], endpoint: str, server_key: str, keys: KeyPair) -> None:
    dealer.set(zmq.LINGER, 0)
    dealer.set(zmq.IPV6, 1)
    keys.prove(dealer, server_key)
    with suppress(zmq.ZMQError):  # no endpoint at all
        dealer.connect(endpoint)
