"""What benchmarks on a real Slurm read and start: sdiag, and an interpreter without torch."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from _bench import sdiag
from _bench.real_slurm.light import LIGHT

import bftrainer.elastic
from bftrainer.batch import process
from bftrainer.ground import protocol

# ---- slurmctld's load ----------------------------------------------------------------

SDIAG = """\
Main schedule statistics (microseconds):
\tLast cycle:   278
\tMax cycle:    4006
\tTotal cycles: 3
\tMean cycle:   1768
\tMean depth cycle:  1

Backfilling stats
\tTotal backfilled jobs (since last slurm start): 7
\tTotal cycles: 2
\tLast cycle: 90
\tMax cycle:  110
\tMean cycle: 100
\tDepth Mean: 34
\tDepth Mean (try depth): 12

Remote Procedure Call statistics by message type
\tREQUEST_PARTITION_INFO                  ( 2009) count:15     ave_time:185    total_time:2776
\tREQUEST_SUBMIT_BATCH_JOB                ( 4003) count:1      ave_time:873    total_time:873

Remote Procedure Call statistics by user
\troot            (       0) count:38     ave_time:430    total_time:16346
"""


def test_sdiag_in_numbers() -> None:
    load = sdiag.parse(SDIAG)
    main, backfill = asdict(load.main), asdict(load.backfill)
    assert main == {"count": 3, "mean_us": 1768, "max_us": 4006, "mean_jobs": 1}
    assert backfill == {"count": 2, "mean_us": 100, "max_us": 110, "mean_jobs": 34}
    assert load.rpcs == {"REQUEST_PARTITION_INFO": 15, "REQUEST_SUBMIT_BATCH_JOB": 1}
    assert load.rpc_us == 3649
    assert sdiag.parse("").backfill.count == 0


# ---- the stand-in for an interpreter ---------------------------------------------------


@pytest.fixture
def template() -> Iterator[socket.socket]:
    """The agent's end of a template without torch."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program = Path(bftrainer.elastic.__file__).with_name("template.py")
    fd = theirs.fileno()
    argv = (sys.executable, "-I", "-S", str(LIGHT), str(program), str(fd))
    child = process.spawn(argv, pass_fds=(fd,))
    theirs.close()
    ours.settimeout(20)
    yield ours
    ours.close()
    child.wait(20)


def packet(channel: socket.socket) -> tuple[str, dict[str, Any]]:
    [(kind, body)] = json.loads(channel.recv(1 << 16)).items()
    return kind, body


def said(end: socket.socket) -> Iterator[protocol.Message]:
    """What a worker says."""
    unread = b""
    while chunk := end.recv(1 << 16):
        *whole, unread = (unread + chunk).split(b"\n")
        yield from (protocol.decode(line) for line in whole)


def test_a_light_worker_joins_enters_and_parks(template: socket.socket) -> None:
    assert packet(template)[0] == "ready"
    end, worker_end = socket.socketpair()
    end.settimeout(20)
    config = protocol.WorkerConfig(trainer_id="t1", worker_id="w1", node="n1", script="/dev/null")
    body = protocol.to_body(config)
    del body["type"]
    with worker_end:
        socket.send_fds(template, [json.dumps({"fork": body}).encode()], [worker_end.fileno()])
        kind, _ = packet(template)
    assert kind == "forked"
    answers = said(end)
    assert next(answers) == protocol.Warm(warm_up_s=0.0)
    end.sendall(protocol.encode(protocol.Prepare(generation=1, attempt=1, open_store=True)))
    assert next(answers) == protocol.Ready(generation=1, attempt=1, store_port=1)
    me = protocol.Member(worker_id="w1", rank=0, node="n1", address="127.0.0.1")
    commit = protocol.Commit(generation=1, attempt=1, token=config.worker_id, members=(me,))
    end.sendall(protocol.encode(commit))
    entered = next(answers)
    assert isinstance(entered, protocol.Entered)
    assert (entered.generation, entered.rank, entered.size) == (1, 0, 1)
    park = replace(commit, generation=2, members=())
    end.sendall(protocol.encode(park))
    kinds = [type(m).__name__ for m in answers if not isinstance(m, protocol.Progress)]
    assert kinds == ["Saved", "Left"]
    assert packet(template)[1]["returncode"] == 0
    end.close()
