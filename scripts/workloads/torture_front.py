"""A rendezvous of Horovod that is asked all the time: ``torture_front.py LOG``.

A line of the log: when it was asked, s since the epoch, and seconds until its answer.
"""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

from bftrainer.elastic.horovod.world import Front, SingleStore

PAUSE_S, PATIENCE_S = 0.25, 60.0

front = Front(SingleStore(), prefix="p", place="0,1")
where, _, token = front.address.partition("/")
host, port = where.split(":")
REQUEST = f"GET /{token}:0/rank_and_size/x HTTP/1.1\r\n\r\n".encode()


def answers() -> bool:
    """Ask it once."""
    try:
        with socket.create_connection((host, int(port)), PATIENCE_S) as asked:
            asked.settimeout(PATIENCE_S)
            asked.sendall(REQUEST)
            return asked.makefile("rb").read().endswith(b"0,1")
    except OSError:
        return False


with Path(sys.argv[1]).open("a", buffering=1) as log:
    while True:
        at_s, began_s = time.time(), time.monotonic()
        if not answers():
            began_s -= PATIENCE_S  # as bad as none in time
        log.write(f"{at_s} {time.monotonic() - began_s}\n")
        time.sleep(PAUSE_S)
