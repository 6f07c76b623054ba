"""The stand-in prints what a real volclava printed: its record is replayed and compared."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from lsf_adapters.testcluster import LsfConfig, verbs
from lsf_adapters.testcluster.batch import Batch
from lsf_adapters.testcluster.config import Profile, Queue
from lsf_adapters.testcluster.request import Request
from lsf_adapters.testcluster.state import Job

RECORD = Path(__file__).parents[2] / "fixtures" / "lsf" / "volclava" / "jobs-of-every-kind.txt"
_BLOCK = re.compile(r"^\[(\w+)@lsfm\]\$ (.*?)\n(.*?)^=> (\d+)$", re.MULTILINE | re.DOTALL)
BLOCKS = _BLOCK.findall(RECORD.read_text())


class Recorded(LsfConfig):
    """The cluster of the record: its hosts have longer names."""

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"n00{number}" for number in range(1, self.n_nodes + 1))


def moment(text: str) -> float:
    return time.mktime(time.strptime(f"2026-11-22 {text}", "%Y-%m-%d %H:%M:%S"))


def job(number: int, name: str, user: str, state: str, hosts: str = "", **more: Any) -> Job:
    """A job of the record; ``hosts``: one word per slot."""
    given = {
        "is_named": True,
        "queue": "normal",
        "command": "sleep 300",
        "output": "/dev/null",
        "submit_s": moment("08:33:00"),
        "start_s": moment("08:33:00") if hosts else None,
        "home": f"CLUSTER/home/{user}",
        "cwd": f"CLUSTER/home/{user}",
        "hosts": hosts.split(),
        "min_slots": max(1, len(hosts.split())),
        "max_slots": max(1, len(hosts.split())),
        "pid": 443 if hosts else 0,
        **more,
    }
    return Job(id=number, name=name, user=user, state=state, **given)


def jobs() -> list[Job]:
    late: dict[str, Any] = {"submit_s": moment("08:33:01")}
    later: dict[str, Any] = {**late, "start_s": moment("08:33:05")}
    held = [["The job was suspended by the user while pending", "lsfm"]]
    return [
        job(20, "run1", "alice", "RUN", "n002", limit_s=1800.0),
        job(
            *(21, "par", "alice", "RUN", "n002 n002 n002 n001 n001 n001"),
            ptile=3,
            res_req="span[ptile=3]",
            limit_s=2700.0,
        ),
        job(22, "excl", "bob", "RUN", "n003", is_exclusive=True, limit_s=1200.0),
        job(23, "pilot", "bft", "PEND", queue="bf", is_exclusive=True, limit_s=900.0),
        job(27, "susp", "alice", "USUSP", "n004", **later),
        job(28, "held", "alice", "PSUSP", is_held=True, pending_reasons=held, **late),
        job(29, "dep", "alice", "PEND", dependency="ended(20)", **late),
        job(30, "pend", "bob", "PEND", is_exclusive=True, min_slots=16, max_slots=16, **late),
        *(
            job(31, f"arr[{k}]", "alice", "RUN", host, index=k, array_spec="arr[1-3]", **later)
            for k, host in ((1, "n004"), (2, "n004"), (3, "n001"))
        ),
    ]


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> Batch:
    directory = tmp_path_factory.mktemp("standin")
    config = Recorded(
        directory=directory,
        dialect="volclava",
        n_nodes=4,
        profile=Profile.LAB2,
        queues=(
            Queue(name="normal", priority=30, is_default=True, backfills=True),
            Queue(name="bf", priority=1, backfills=True),
        ),
    )
    config.logdir.mkdir(parents=True)
    made = Batch(config)
    for one in jobs():
        made.jobs[one.key] = made.live[one.key] = one
    made._run_pass(moment("08:33:10"))  # nothing fits; it says why
    assert {one.state for one in made.live.values() if one.is_pending} == {"PEND", "PSUSP"}
    return made


def masked(text: str) -> str:
    """The text without what differs from run to run: digits, use of memory, when it was seen."""
    text = re.sub(r"^.*(?:\bMEM\b|Resource usage|PGID).*\n", "<usage>\n", text, flags=re.MULTILINE)
    text = re.sub(r"\b\d+ +\d+ +[\d,]+ (?=\d\d/)", "<usage> ", text)  # MEM SWAP PIDS
    return re.sub(r"\d", "9", text)


@pytest.mark.parametrize(
    ("user", "command", "text", "status"), BLOCKS, ids=[block[1] for block in BLOCKS]
)
def test_as_recorded(batch: Batch, user: str, command: str, text: str, status: str) -> None:
    before, quote, rest = command.partition(" '")
    quoted, _, after = rest.rpartition("'")
    argv = [*before.split(), *([quoted] if quote else []), *after.split()]
    ids: dict[str, Any] = {"uid": 65534, "gid": 65534, "user": user}
    request = Request(argv=argv, cwd="/", umask=18, extra=[], environment={}, stdin=b"", **ids)
    answer = verbs.answer(batch, request)
    said = "".join(f"! {line}\n" for line in answer.err.splitlines())
    assert masked(answer.out + said) == masked(text)
    assert answer.status == int(status)


def test_record_has_all_forms() -> None:
    commands = " ".join(block[1] for block in BLOCKS)
    for form in ("-w", "-l", "-UF", "-o", "-p", "-s", "-r", "-A", "bhosts", "bqueues", "busers"):
        assert form in commands
