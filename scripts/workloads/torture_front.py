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
REQUEST = b"GET /token:0/rank_and_size/x HTTP/1.1\r\n\r\n"

front = Front(SingleStore(), prefix="p", token="token", place="0,1")  # noqa: S106 - nobody's
host, port = front.address.partition("/")[0].split(":")


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
