"""What LSF's commands print, with what users wrote in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from hypothesis.strategies import SearchStrategy

from bftrainer.batch.pilot_job import pilot_of
from bftrainer.model.cluster import NodeState
from bftrainer.model.hostlist import ParseError
from lsf_adapters import hosts, planned_starts, queue_list, queues, table
from lsf_adapters.commands import Dialect, cluster_of
from lsf_adapters.hosts import reservations
from lsf_adapters.queue_list import LongForm
from lsf_adapters.requests import JobRow, LsfRequest, asked_hosts, hosts_of, job_of
from tests.fuzz.door import Door
from tests.fuzz.hostile import texts

_RECORDED = Path(__file__).parents[2] / "fixtures" / "lsf" / "volclava"
_NOW_S = 1_795_338_565.0
_SLOTS = {f"n{i:03}": 4 for i in range(64)}
_MOST_READ = 20_000  # characters of a user's text that are put beside others
_WIDE = (_RECORDED / "bjobs-w.txt").read_text()
_LONG = (_RECORDED / "bjobs-UF-21.txt").read_text()
_HEAD, _, _ROWS = _WIDE.partition("\n")
_SEEN = queue_list.wide_rows(_WIDE, _NOW_S)
_ASKED = LongForm(_LONG, _NOW_S).asked("21")


def _read(name: str) -> str:
    return (_RECORDED / f"{name}.txt").read_text()


def _json(command: str, count: str, **fields: str) -> str:
    return json.dumps({"COMMAND": command, count: 1, "RECORDS": [fields]}, indent=2) + "\n"


_HOST_JSON = _json(
    "bhosts", "HOSTS", HOST_NAME="n1", STATUS="ok", MAX="4", NJOBS="4", RUN="0", SSUSP="0",
    USUSP="0", RSV="4",
)  # fmt: skip
_JOB_JSON = _json(
    "bjobs", "JOBS", JOBID="31", JOBINDEX="2", USER="ada", STAT="PEND", QUEUE="normal",
    JOB_NAME="x", EXEC_HOST="2*n1:n2", SUBMIT_TIME="Nov 22 08:33", START_TIME="",
    RUN_TIME="34 second(s)", RUNTIMELIMIT="5.0/host", NREQ_SLOT="4", MAX_REQ_PROC="8",
    COMBINED_RESREQ="select[a>1] span[ptile=2]", ASK_HOSTS="n1! n2+3", EXCLUSIVE="Y",
    DEPENDENCY='ended("a")', RSVID="user1#0", JOB_PRIORITY="50",
    ESTIMATED_START_TIME="Nov 22 09:00 L", PEND_REASON="Job slot limit reached: 3 hosts; other;",
)  # fmt: skip
_PLAN = json.dumps(
    {"PLANS": [{"JOB_ID": "lab@7", "START_TIME": "1795338565", "ALLOC": [{"HOST": "n1"}]}]}
)
_RESERVED = (
    "RSVID     TYPE  USER  NCPUS     RSV_HOSTS    TIME_WINDOW\n"
    "user1#0   user  user1 0/4       n1:0/2       11/22/9/0-11/22/12/0\n"
    "                                n2:0/2\n"
)
_GPUS = "HOST_NAME gpu_id gpu_model\nc1   0 TeslaV100\n     1 TeslaV100\nc2   0 A100\n"


def _hosts(dialect: Dialect) -> Callable[[str], object]:
    def read(text: str) -> None:
        for host in hosts.hosts(text, dialect):
            for load in ("ok", "lockU", ""):
                node = hosts.node_of(host, hosts.Hardware(cpus=2), load, ())
                if node is not None and node.state is NodeState.IDLE:
                    assert host.status == "ok"
                    assert host.is_unused

    return read


def _jobs(read: Callable[[str, float], list[JobRow]]) -> Callable[[str], object]:
    def reader(text: str) -> None:
        for row in read(text, _NOW_S):
            job = job_of(row, _SLOTS)
            assert job.n_nodes >= 1
            pilot_of(row.name, {"12345678"})

    return reader


def _long(text: str) -> None:
    found = LongForm(text, _NOW_S)
    for job_id in found.job_ids:
        found.asked(job_id)
        found.submit_s(job_id)
        found.start_s(job_id)
        found.how_ended(job_id)


def _beside_another(text: str) -> None:
    """Have a job with that name and command in the queue: others are seen as ever."""
    name = " ".join(text[:_MOST_READ].split("\n")).replace("\r", " ")
    row = f"7       u       PEND  normal     lsfm        -           {name} Nov 22 08:33\n"
    if queue_list.wide_rows(f"{_HEAD}\n{row}{_ROWS}", _NOW_S)[1:] != _SEEN:
        raise AssertionError("another job was read otherwise")
    block = (
        f"\nJob <7>, Job Name <{name}>, User <u>, Status <PEND>, Command <{name}>\n"
        f"Sun Nov 22 08:33:00: Submitted from host <lsfm>, CWD <{name}>;\n"
    )
    if LongForm(block + _LONG, _NOW_S).asked("21") != _ASKED:
        raise AssertionError("what another job asks for was read otherwise")


def _host_beside_others(text: str) -> None:
    """Have any line in the lists of hosts: others are seen as ever."""
    line = " ".join(text[:_MOST_READ].split("\n"))
    listed = _read("bhosts-w-reserved"), _read("lshosts")
    seen = hosts.hosts(listed[0], Dialect.VOLCLAVA)
    if hosts.hosts(f"{listed[0]}{line}\n", Dialect.VOLCLAVA)[: len(seen)] != seen:
        raise AssertionError("another host was read otherwise")
    known = hosts.hardware(listed[1])
    if not hosts.hardware(f"{listed[1]}x{line}\n").items() >= known.items():
        raise AssertionError("another host's hardware was read otherwise")


def _request(text: str) -> None:
    """Have a job ask for it in every way."""
    asked = LsfRequest(
        slots=8,
        resources=text,
        hosts=asked_hosts(text.split(" ")),
        dependency=text,
        reasons=tuple(text.split(";")),
    )
    row = JobRow(job_id="7", user="u", state="PEND", queue="q", name=text, asked=asked)
    job = job_of(row, _SLOTS)
    assert job.n_nodes >= 1
    assert len(job.unclear) <= 100
    hosts_of(text)


def _queues(text: str) -> None:
    for queue in queues.queues(text).values():
        queue.as_partition()
        queue.includes("n1", _SLOTS)


def _settings(text: str) -> None:
    for value in queues.parameters(text).values():
        queues.number_of(value)


def _hardware(text: str) -> None:
    for one in hosts.hardware(text).values():
        assert one.cpus >= 0
        assert one.memory_mb >= 0


def _lsid(text: str) -> None:
    Dialect.of(text)
    cluster_of(text)


def _door(
    name: str, call: Callable[[str], object], inputs: SearchStrategy[str], *, refuses: bool = True
) -> Door:
    refusals = (ParseError,) if refuses else ()
    return Door(name=f"lsf-{name}", call=call, inputs=inputs, refuses_with=refusals)


_HOSTS = texts(_read("bhosts-w-reserved"), _read("bhosts-w-closed"), _read("bhosts-w-unavail"))
_REQUESTS = texts(
    "select[mem>4 && type==any] span[ptile=2] rusage[mem=10]",
    "span[hosts=1]",
    "n001! n002+3 others",
    "Job slot limit reached: 3 hosts; Job dependency condition not satisfied",
    "2*n001:n002",
)

DOORS = (
    _door("hosts", _hosts(Dialect.VOLCLAVA), _HOSTS),
    _door("host-beside-others", _host_beside_others, _HOSTS, refuses=False),
    _door("hosts-json", _hosts(Dialect.IBM), texts(_HOST_JSON)),
    _door("jobs", _jobs(queue_list.wide_rows), texts(_WIDE, _read("bjobs-w-ended"))),
    _door("jobs-json", _jobs(queue_list.json_rows), texts(_JOB_JSON)),
    _door("unknown-jobs-json", queue_list.unknown_records, texts(_JOB_JSON)),
    _door("jobs-long", _long, texts(_LONG, _read("bjobs-l-reserved"))),
    _door("job-beside-another", _beside_another, _REQUESTS, refuses=False),
    _door("request", _request, _REQUESTS, refuses=False),
    _door("queues", _queues, texts(_read("bqueues-l"))),
    _door("settings", _settings, texts(_read("bparams-l")), refuses=False),
    _door("hardware", _hardware, texts(_read("lshosts"))),
    _door("gpus", hosts.gpus, texts(_GPUS)),
    _door("load", hosts.loads, texts(_read("lsload-lock"))),
    _door("reservations", lambda text: reservations(text, _NOW_S), texts(_RESERVED)),
    _door("plan", planned_starts.plans, texts(_PLAN)),
    _door(
        "windows",
        lambda text: planned_starts.unfillable_until_s(planned_starts.windows(text), _NOW_S),
        texts(
            "SLOTS: 4\nRUNTIME: 25 hours 42 minutes\nHOSTS: 4*n1\n",
            "SLOTS: 8\nRUNTIME: UNLIMITED\nHOSTS: 4*n1 4*n2\n",
        ),
    ),
    _door("lsid", _lsid, texts(_read("lsid"))),
    _door("date", lambda text: table.epoch_s(text, _NOW_S), texts("Sun Nov 22 08:33:00 2026 L")),
)
