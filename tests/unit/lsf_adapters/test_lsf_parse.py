"""What LSF prints, as data: recorded output of a real volclava, documented output of LSF 10.1."""

from __future__ import annotations

import json
import math
from calendar import timegm
from pathlib import Path

import pytest

from bftrainer.model.cluster import JobState, NodeState
from bftrainer.model.hostlist import ParseError
from lsf_adapters import hosts, planned_starts, queue_list, queues, table
from lsf_adapters.commands import Dialect
from lsf_adapters.hosts import reservations
from lsf_adapters.queue_list import LongForm
from lsf_adapters.requests import JobRow, job_of, why_not_nodes

RECORDED = Path(__file__).parents[2] / "fixtures" / "lsf" / "volclava"
NOW_S = float(timegm((2026, 11, 22, 9, 0, 30)))
SLOTS = dict.fromkeys(("n001", "n002", "n003", "n004"), 4)


def recorded(name: str) -> str:
    return (RECORDED / f"{name}.txt").read_text()


def at(hour: int, minute: int, second: float = 0.0) -> float:
    return timegm((2026, 11, 22, hour, minute, 0)) + second


# -- dialect, dates ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "dialect"),
    [
        ("volclava project 2.2, Nov 22 2026", Dialect.VOLCLAVA),
        ("IBM Spectrum LSF Standard 10.1.0.15, May 20 2024", Dialect.IBM),
        ("IBM Spectrum LSF 10.1.0.0, Jul 08 2016", Dialect.IBM),
        ("IBM Platform LSF Standard 9.1.3.0, Jul 04 2014", Dialect.UNKNOWN),
        ("Openlava project 3.3, Dec 2 2016", Dialect.UNKNOWN),
        ("volclava project 3.0, Jan 1 2028", Dialect.UNKNOWN),
    ],
)
def test_the_dialect_is_what_lsid_says(first: str, dialect: Dialect) -> None:
    assert Dialect.of(f"{first}\n\nMy cluster name is lab\nMy master name is lsfm\n") is dialect


def test_what_is_not_lsids_answer_is_no_dialect() -> None:
    for text in ("", "ls_getclustername(): LIM is down; try later\n"):
        with pytest.raises(ParseError):
            Dialect.of(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Sun Nov 22 08:33:00", (2026, 11, 22, 8, 33, 0)),
        ("Nov 22 08:33", (2026, 11, 22, 8, 33, 0)),
        ("Apr  2 18:10:55 2026", (2026, 4, 2, 18, 10, 55)),
        ("Dec 31 23:59", (2026, 12, 31, 23, 59, 0)),
        ("Jan  1 00:01", (2027, 1, 1, 0, 1, 0)),  # the year that is nearest
        ("Jun 30 12:00 L", (2026, 6, 30, 12, 0, 0)),
        ("Feb 29 12:00:00 2028", (2028, 2, 29, 12, 0, 0)),
    ],
)
def test_dates_get_the_year_that_is_nearest(text: str, expected: tuple[int, ...]) -> None:
    assert table.epoch_s(text, NOW_S) == timegm(expected)


@pytest.mark.parametrize("text", ["Nov 32 08:33", "Nov 22 25:00", "Feb 30 12:00", "22. Nov. 08:33"])
def test_what_is_no_date_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        table.epoch_s(text, NOW_S)
    assert table.epoch_s("-", NOW_S) is None


# -- hosts ---------------------------------------------------------------------------------


def states(name: str, load: dict[str, str] | None = None) -> dict[str, NodeState]:
    seen = hosts.hosts(recorded(name), Dialect.VOLCLAVA)
    nodes = [hosts.node_of(h, hosts.Hardware(), (load or {}).get(h.name, "ok"), ()) for h in seen]
    return {node.name: node.state for node in nodes if node is not None}


def test_reserved_slots_are_idle_nodes_that_nobody_can_fill() -> None:
    assert states("bhosts-w-reserved") == {
        "n001": NodeState.ALLOCATED,
        "n002": NodeState.ALLOCATED,
        "n003": NodeState.PLANNED,
        "n004": NodeState.PLANNED,
    }


def test_closed_and_lost_hosts_are_not_idle_and_the_master_is_no_node() -> None:
    assert states("bhosts-w-closed") == {
        "n001": NodeState.ALLOCATED,
        "n002": NodeState.ALLOCATED,
        "n003": NodeState.DRAINED,
        "n004": NodeState.DRAINED,
    }
    assert states("bhosts-w-unavail")["n001"] is NodeState.DOWN
    assert states("bhosts-w-unavail")["n002"] is NodeState.DOWN
    assert states("bhosts-w-unavail")["n003"] is NodeState.IDLE


def test_a_locked_host_gets_no_job_although_bhosts_calls_it_ok() -> None:
    load = hosts.loads(recorded("lsload-lock"))
    assert load["n004"] == "lockU"
    assert states("bhosts-w-unavail", load)["n004"] is NodeState.UNKNOWN


def test_what_is_free_of_a_partly_used_host_is_known() -> None:
    (partly,) = [
        h for h in hosts.hosts(recorded("bhosts-w-mixed"), Dialect.VOLCLAVA) if h.used == 3
    ]
    node = hosts.node_of(partly, hosts.Hardware(), "ok", ("normal",))
    assert node is not None
    assert (node.state, node.cpus) == (NodeState.ALLOCATED, 4)
    assert node.left is not None
    assert node.left.cpus == 1


def test_hosts_of_lsf_10_1() -> None:
    one = {"HOST_NAME": "c1", "STATUS": "closed_Full", "MAX": "42", "NJOBS": "42", "RUN": "0"}
    rest = {"SSUSP": "0", "USUSP": "0", "RSV": "42"}
    said = json.dumps({"COMMAND": "bhosts", "HOSTS": 1, "RECORDS": [{**one, **rest}]}, indent=2)
    for before in ("", "LSF is down. Please wait ...\n"):
        (host,) = hosts.hosts(before + said, Dialect.IBM)
        assert hosts.state_of(host, "ok") is NodeState.PLANNED
    with pytest.raises(ParseError):
        hosts.hosts(said[:-20], Dialect.IBM)


def test_hardware() -> None:
    found = hosts.hardware(recorded("lshosts"))
    assert found["n001"].cpus == 2
    assert found["n001"].memory_mb == 24103
    assert found["n001"].model == "IntelI5"
    listed = "HOST_NAME gpu_id gpu_model\nc1   0 TeslaV100\n     1 TeslaV100\nc2   0 A100\n"
    assert hosts.gpus(listed) == {"c1": (2, "TeslaV100"), "c2": (1, "A100")}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "HOST_NAME          STATUS          JL/U    MAX  NJOBS    RUN  SSUSP  USUSP    RSV",
        "HOTE               ETAT            JL/U    MAX  NJOBS    RUN  SSUSP  USUSP    RSV\n",
        "HOST_NAME STATUS JL/U MAX NJOBS RUN SSUSP USUSP RSV\nn1 ok - 4 0 0 0\n",
        "HOST_NAME STATUS JL/U MAX NJOBS RUN SSUSP USUSP RSV\nn1 ok - vier 0 0 0 0 0\n",
        "\x00\x01garbage",
    ],
)
def test_bad_output_of_bhosts_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        hosts.hosts(text, Dialect.VOLCLAVA)
    with pytest.raises(ParseError):
        hosts.hosts(text, Dialect.IBM)


@pytest.mark.parametrize(
    "line",
    [
        "x9   ok   -   8.0   0   0   0   0   0",  # a value that is no count
        "x9   ok   -   4   10000000   0   0   0",  # columns without a blank between
        "x9   ok",
        "x9   ok   -   4   0   0   0   0   0   new",
    ],
)
def test_an_odd_host_hides_no_other(line: str) -> None:
    text = recorded("bhosts-w-reserved")
    names = [host.name for host in hosts.hosts(text, Dialect.VOLCLAVA)]
    odd: list[str] = []
    found = hosts.hosts(f"{text}{line}\n", Dialect.VOLCLAVA, odd)
    assert ([host.name for host in found], odd) == ([*names, "x9"], ["x9"])
    node = hosts.node_of(found[-1], hosts.Hardware(cpus=4), "ok", ())
    assert node is not None
    assert node.state is NodeState.UNKNOWN


def test_an_odd_host_of_lsf_10_1_hides_no_other() -> None:
    well = dict.fromkeys((name.upper() for name in hosts.FIELDS), "0") | {"STATUS": "ok"}
    some: list[dict[str, object]] = [{**well, "HOST_NAME": "c1", "MAX": "4"}]
    some += [{**well, "HOST_NAME": "c2", "MAX": None}, {**well, "HOST_NAME": "c3", "RUN": "-1"}]
    odd: list[str] = []
    said = json.dumps({"COMMAND": "bhosts", "HOSTS": 3, "RECORDS": some})
    found = hosts.hosts(said, Dialect.IBM, odd)
    assert [host.status for host in found] == ["ok", hosts.UNREAD, hosts.UNREAD]
    assert odd == ["c2", "c3"]


def test_names_with_blanks_and_petabytes_in_lshosts_and_a_line_that_is_neither() -> None:
    head = "HOST_NAME type model cpuf ncpus maxmem maxswp server RESOURCES\n"
    text = (
        f"{head}c1 X86_64 AMD EPYC 7763 60.0 128 1.5P 3.9G Yes (mg big)\n"
        "c2 X86_64 Intel_EM64T 60.0 64 503.7G - Yes ()\n"
        "c3 X86_64 Intel_EM64T 60.0 64 much - Yes ()\n"
        "c4 UNKNOWN UNKNOWN 1.0 - - - Yes ()\n"
    )
    odd: list[str] = []
    found = hosts.hardware(text, odd)
    assert (found["c1"].model, found["c1"].cpus) == ("AMD EPYC 7763", 128)
    assert (found["c1"].memory_mb, found["c1"].features) == (int(1.5 * 1024**3), ("mg", "big"))
    assert (found["c2"].memory_mb, found["c2"].model) == (int(503.7 * 1024), "Intel_EM64T")
    assert (found["c3"].model, odd) == (hosts.LOST, ["c3"])
    idle = hosts.Host(name="c3", status="ok", slots=4, used=0, running=0, suspended=0, reserved=0)
    node = hosts.node_of(idle, found["c3"], "ok", ())
    assert node is not None
    assert node.state is NodeState.UNKNOWN
    assert found["c4"] == hosts.Hardware(model=hosts.LOST)


# -- jobs ------------------------------------------------------------------------------------


def test_an_odd_job_hides_no_other() -> None:
    text, ok = recorded("bjobs-w"), queue_list.wide_rows(recorded("bjobs-w"), NOW_S)
    for line in (
        "77 ann MIGRATED q h n1 x Nov 22 08:33",
        "77[3] ann",
        "77 ann RUN q h n1 x Nov 99",
    ):
        odd: list[str] = []
        found = queue_list.wide_rows(f"{text}{line}\n", NOW_S, odd)
        assert (found[:-1], odd) == (ok, [line.split()[0]])
        job = job_of(found[-1], SLOTS)
        assert (job.state, job.nodes) == (JobState.OTHER, ())
        with pytest.raises(ParseError):  # of jobs by id each must be read
            queue_list.wide_rows(f"{text}{line}\n", NOW_S)
    for lines in (f"{text}what is this\n", f"{text.splitlines()[0]}\n77 ann MIGRATED q h n1 x\n"):
        with pytest.raises(ParseError):
            queue_list.wide_rows(lines, NOW_S, [])
    fields = dict.fromkeys((name.upper() for name in queue_list.NEEDED), "")
    well = {**fields, "JOBID": "7", "STAT": "RUN", "SUBMIT_TIME": "Nov 22 08:59"}
    some = [well, {**well, "STAT": "MIGRATED", "JOBINDEX": "2"}, {"JOBID": "9"}]
    said, odd = json.dumps({"COMMAND": "bjobs", "JOBS": 3, "RECORDS": some}), []
    assert [row.job_id for row in queue_list.json_rows(said, NOW_S, odd)] == ["7", "7[2]", "9"]
    assert odd == ["7[2]", "9"]


def test_jobs_of_volclava() -> None:
    rows = {row.job_id: row for row in queue_list.wide_rows(recorded("bjobs-w"), NOW_S)}
    assert rows["21"].hosts == ("n002",) * 3 + ("n001",) * 3
    assert rows["21"].user == "alice"
    assert rows["31[2]"].name == "arr[2]"
    assert rows["30"].state == "PEND"
    assert rows["28"].hosts == ()
    assert rows["23"].queue == "bf"
    names = {r.name for r in queue_list.wide_rows(recorded("bjobs-w-ended"), NOW_S)}
    assert {"three words here", "none sleep 1"} <= names


def test_requests_of_volclava() -> None:
    long = LongForm(recorded("bjobs-UF-21"), NOW_S)
    asked = long.asked("21")
    assert asked is not None
    assert (asked.slots, asked.resources, asked.limit_s) == (6, "span[ptile=3]", 2700.0)
    assert long.start_s("21") == at(8, 33)
    several = LongForm(recorded("bjobs-l-several"), NOW_S)
    exclusive, held, waits, big = (several.asked(i) for i in ("22", "28", "29", "30"))
    assert exclusive is not None
    assert held is not None
    assert waits is not None
    assert big is not None
    assert exclusive.is_exclusive
    assert held.is_held
    assert waits.dependency == "ended(20)"
    assert big.slots == 16
    assert big.reasons[2] == "Job slot limit reached"


def test_reserved_slots_and_the_start_that_lsf_estimates() -> None:
    asked = LongForm(recorded("bjobs-l-reserved"), NOW_S).asked("3")
    assert asked is not None
    assert asked.reserved == ("n004",) * 3 + ("n003",) * 3
    assert asked.start_s == at(9, 2, 28)


def row(text: str, job_id: str) -> JobRow:
    long = LongForm(text, NOW_S)
    plain = JobRow(job_id=job_id, user="alice", state="PEND", queue="normal", name="x")
    return queue_list.with_requests([plain], long)[0]


def test_a_pending_job_as_data() -> None:
    big = job_of(row(recorded("bjobs-l-several"), "30"), SLOTS)
    assert (big.n_nodes, big.cpus, big.can_share, big.is_entitled) == (4, 16, False, True)
    waits = job_of(row(recorded("bjobs-l-several"), "29"), SLOTS)
    assert not waits.is_entitled
    assert waits.reason == "Job dependency condition not satisfied"
    reserved = job_of(row(recorded("bjobs-l-reserved"), "3"), SLOTS)
    assert (reserved.n_nodes, reserved.cpus_per_node, reserved.can_share) == (4, 4, False)
    assert reserved.planned_nodes == ("n004", "n003")
    unread = JobRow(job_id="9", user="bob", state="PEND", queue="normal", name="x")
    assert job_of(unread, SLOTS).unclear == "its request was not read"


def test_what_a_user_writes_changes_his_own_job_alone() -> None:
    name = "x>, User <root>, Project <p>, Status <RUN>, Queue <bf>, Command <y"
    block = recorded("bjobs-UF-21").replace("<par>", f"<{name}>")
    spoofed = block.replace("<sleep 300>", "<z\nJob <30>, Job Name <evil>, User <root>>")
    rows = queue_list.wide_rows(
        "JOBID   USER    STAT  QUEUE      FROM_HOST   EXEC_HOST   JOB_NAME   SUBMIT_TIME\n"
        f"21      alice   RUN   normal     lsfm        n002:n001   {name} Nov 22 08:33\n",
        NOW_S,
    )
    assert [(r.user, r.state, r.queue) for r in rows] == [("alice", "RUN", "normal")]
    twice = LongForm(spoofed + "-" * 78 + "\n" + recorded("bjobs-l-several"), NOW_S)
    assert twice.asked("30") is None, "two blocks of one job: neither is believed"


def record_of_10_1() -> dict[str, str]:
    return {
        **{name.upper(): "" for name in (*queue_list.NEEDED, *queue_list.WANTED)},
        "JOBID": "31",
        "JOBINDEX": "2",
        "USER": "bob",
        "STAT": "RUN",
        "QUEUE": "normal",
        "JOB_NAME": 'a"b\n',
        "EXEC_HOST": "2*n001:n002",
        "SUBMIT_TIME": "Nov 22 08:59",
        "START_TIME": "Nov 22 09:00",
        "RUN_TIME": "12 second(s)",
        "RUNTIMELIMIT": "5.0/n001",
        "NREQ_SLOT": "3",
        "PEND_REASON": "Job slot limit reached: 3 hosts;",
    }


def test_jobs_of_lsf_10_1() -> None:
    one = record_of_10_1()
    said = json.dumps({"COMMAND": "bjobs", "JOBS": 1, "RECORDS": [one]}, indent=2)
    (found,) = queue_list.json_rows("LSF is down. Please wait ...\n" + said, NOW_S)
    assert (found.job_id, found.hosts) == ("31[2]", ("n001", "n001", "n002"))
    assert found.start_s == at(9, 0, 18)
    job = job_of(found, SLOTS)
    assert (job.state, job.nodes, job.family) == (JobState.RUNNING, ("n001", "n002"), "31")
    assert job.time_limit_s == 300.0
    for spoiled in (said[:-9], "", "{}", '{"COMMAND": "bjobs", "RECORDS": [{"JOBID": "1"}]}'):
        with pytest.raises(ParseError):
            queue_list.json_rows(spoiled, NOW_S)


@pytest.mark.parametrize(
    ("now", "run_time", "start"),
    [
        (at(9, 1, 5.0), 5, at(9, 1, 0)),  # started at 9:00:59.8, printed as 9:00 and 5.2 s
        (at(9, 1, 6.5), 5, at(9, 1, 0)),  # and the answer took its time
        (at(9, 0, 4.9), 6, at(9, 0, 0)),  # a clock that is a little behind
        (at(9, 0, 30.0), 12, at(9, 0, 18)),
        (at(9, 30, 0.0), 60, at(9, 0, 0)),  # suspended for half an hour
    ],
)
def test_a_start_is_exact_to_seconds_in_the_last_moment_of_a_minute_too(
    now: float, run_time: int, start: float
) -> None:
    record = {**record_of_10_1(), "RUN_TIME": f"{run_time} second(s)"}
    said = json.dumps({"COMMAND": "bjobs", "JOBS": 1, "RECORDS": [record]})
    (row_of_it,) = queue_list.json_rows(said, now)
    assert row_of_it.start_s == pytest.approx(start, abs=0.01)


@pytest.mark.parametrize(
    ("reasons", "is_about_nodes"),
    [
        (("Job slot limit reached",), True),
        (("New job is waiting for scheduling",), True),
        (("Not enough slots or resources for whole duration of the job",), True),
        (("Job dependency condition not satisfied",), False),
        (("The user has reached his/her job slot limit", "Job slot limit reached"), False),
        (("The queue is inactivated by the administrator",), False),
        ((), True),
    ],
)
def test_only_who_waits_for_nodes_is_entitled(
    reasons: tuple[str, ...], *, is_about_nodes: bool
) -> None:
    assert (not why_not_nodes(reasons)) == is_about_nodes


# -- queues, plans, reservations ----------------------------------------------------------------


def test_queues() -> None:
    found = queues.queues(recorded("bqueues-l"))
    assert set(found) == {"normal", "bf"}
    assert found["normal"].is_default
    assert found["normal"].priority == 30
    assert found["bf"].limit_max_s == 14400.0
    assert "BACKFILL" in found["bf"].policies
    assert found["bf"].includes("n001", SLOTS)
    parameters = queues.parameters(recorded("bparams-l"))
    assert queues.number_of(parameters["MBD_SLEEP_TIME"]) == 2.0
    with pytest.raises(ParseError):
        queues.queues(recorded("bqueues-l")[:-3])


# A window of Durham's COSMA (http://star-www.dur.ac.uk/~pdraper/cosma/backfill.html).
BSLOTS = """\
SLOTS:    70
RUNTIME:  6 hours 37 minutes 0 seconds
HOSTS:    12*m4140 12*m4168 11*m4071 11*m4153 12*m4061 12*m4084
"""


def test_windows_and_their_hosts() -> None:
    text = f"LSF is down. Please wait ...\n{BSLOTS}\nSLOTS: 8\nRUNTIME: UNLIMITED\n"
    first, second = planned_starts.windows(f"{text}HOSTS: 4*a01n01\n 4*a01n02\n")
    assert first.for_s == 6 * 3600 + 37 * 60
    assert first.hosts == ("m4140", "m4168", "m4071", "m4153", "m4061", "m4084")
    assert second == planned_starts.Window(for_s=math.inf, hosts=("a01n01", "a01n02"))


@pytest.mark.parametrize(
    "text",
    [
        "No backfill window exists at this time\n",
        "No backfill window meets these requirements at this time\n",
    ],
)
def test_no_window_is_an_answer(text: str) -> None:
    assert planned_starts.windows(text) == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        BSLOTS[:-20] + "\n",  # hosts that do not add up
        BSLOTS.rpartition("HOSTS")[0],
        BSLOTS.replace("37 minutes 0 seconds", "and more"),
        BSLOTS.replace("6 hours 37 minutes 0 seconds", "a while"),
        BSLOTS.replace("12*m4140", "x*m4140"),
        "CRENEAUX DUREE\n42 1 heure\n",
        "SLOTS          RUNTIME\n42             1 hours 11 minutes 50 seconds\n",  # without -l
        "RUNTIME: UNLIMITED\n",
        "SLOTS: 4\nSLOTS: 4\nRUNTIME: UNLIMITED\nHOSTS: 4*n1\n",
    ],
)
def test_other_windows_are_refused(text: str) -> None:
    with pytest.raises(ParseError):
        planned_starts.windows(text)


def test_windows_and_plans() -> None:
    said = "SLOTS: 4\nRUNTIME: 1 hour 38 minutes 12 seconds\nHOSTS: 2*n001 2*n002\n\n"
    said += "SLOTS: 2\nRUNTIME: UNLIMITED\nHOSTS: 2*n001\n"
    until_s = planned_starts.unfillable_until_s(planned_starts.windows(said), NOW_S)
    assert until_s == {"n001": math.inf, "n002": NOW_S + 5892.0}
    plan = {"JOB_ID": "lab@7", "START_TIME": "1795338531", "ALLOC": [{"HOST": "n001"}]}
    assert planned_starts.plans(json.dumps({"PLANS": [plan]})) == {
        "7": planned_starts.PlannedStart(start_s=1795338531.0, nodes=("n001",))
    }
    for spoiled in ("", "[]", '{"PLANS": [{}]}', '{"PLANS": 3}'):
        with pytest.raises(ParseError):
            planned_starts.plans(spoiled)


def test_advance_reservations() -> None:
    said = """\
RSVID       TYPE      USER   NCPUS  RSV_HOSTS    TIME_WINDOW
alice#0     user      alice  0/8    n001:0/4     11/22/10/0-11/22/12/30
                                    n002:0/4
system#1    system    root   0/4    n003:0/4     weekly
"""
    first, second = reservations(said, NOW_S)
    assert first.nodes == ("n001", "n002")
    assert (first.start_s, first.end_s) == (at(10, 0), at(12, 30))
    assert second.is_maintenance
    assert second.start_s <= NOW_S
    assert second.end_s == math.inf
    assert reservations("No reservation found\n", NOW_S) == ()
