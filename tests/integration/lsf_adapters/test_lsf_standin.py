"""The stand-in of LSF itself: jobs, states, signals and limits are those of the record."""

from __future__ import annotations

import json
import os
import pwd
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lsf_adapters.testcluster import LsfTestCluster
from tests.integration.lsf_fixtures import DIALECTS, running_lsf
from tests.support.waiting import wait_for

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="jobs of other users need root")
ALICE, BOB = "nobody", "games"  # ordinary accounts that every system has


@pytest.fixture(scope="module", params=DIALECTS)
def shared(request: pytest.FixtureRequest) -> Iterator[LsfTestCluster]:
    with running_lsf(dialect=request.param, n_nodes=3) as cluster:
        yield cluster


@pytest.fixture
def lsf(shared: LsfTestCluster) -> Iterator[LsfTestCluster]:
    """A cluster without jobs."""
    yield shared
    shared.command("bkill", "-r", "-u", "all", "0")
    wait_for(lambda: states(shared) == {}, what="no jobs")


def states(cluster: LsfTestCluster, *options: str) -> dict[str, str]:
    """Return the states of all unfinished jobs by id, or of those that the options select."""
    done = cluster.command("bjobs", *(options or ("-u", "all")), "-o", "jobid stat", "-json")
    records = json.loads(done.stdout)["RECORDS"]
    return {one["JOBID"]: one.get("STAT", "") for one in records}


def bsub(cluster: LsfTestCluster, *argv: str, user: str | None = None, stdin: str = "") -> str:
    done = cluster.command("bsub", *argv, user=user, stdin=stdin)
    assert done.is_ok, done.stderr
    return done.stdout.partition("<")[2].partition(">")[0]


def wait_state(cluster: LsfTestCluster, job_id: str, state: str) -> None:
    wait_for(
        lambda: states(cluster, "-a", job_id) == {job_id: state},
        timeout_s=20,
        what=f"job {job_id} in state {state}",
    )


def signals_job(cluster: LsfTestCluster, name: str) -> tuple[str, Path]:
    """A script that notes the signals it gets, and dies of none but KILL; where it notes them."""
    noted = cluster.directory / "ev" / name
    names = ("INT", "TERM", "USR1", "USR2", "CONT")
    traps = "\n".join(f"trap 'echo {one} >>{noted}' {one}" for one in names)
    return f"{traps}\necho ready >>{noted}\nwhile :; do sleep 0.02; done\n", noted


def noted(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def hosts(cluster: LsfTestCluster) -> dict[str, list[str]]:
    lines = cluster.command("bhosts", "-w").stdout.splitlines()[1:]
    return {line.split()[0]: [line.split()[1], *line.split()[3:]] for line in lines}


def test_script_on_standard_input_is_taken_verbatim(lsf: LsfTestCluster) -> None:
    out = lsf.directory / "ev" / "out"
    script = f"#!/bin/sh\nprintf '%s|' \"two  blanks\" 'semi;colon' '$HOME' `echo x` >{out}.new\n"
    script += f"env >>{out}.new; mv {out}.new {out}\n"
    job_id = bsub(lsf, "-J", 'a\'b "c"', stdin=script)
    wait_for(out.exists, what="the job's output")
    text = out.read_text()
    assert text.startswith("two  blanks|semi;colon|$HOME|x|")
    lines = text.split("|")[-1].splitlines()
    for line in (
        *(f"LSB_JOBID={job_id}", 'LSB_JOBNAME=a\'b "c"', "LSB_HOSTS=n1", "LSB_QUEUE=normal"),
        *("LSB_MCPU_HOSTS=n1 1 ", "LSB_SUB_HOST=lsfm", "LSB_JOBINDEX=0"),
    ):
        assert line in lines
    wait_state(lsf, job_id, "DONE")
    out.unlink()


@needs_root
def test_jobs_run_as_their_user_and_only_he_and_the_administrator_kill_them(
    lsf: LsfTestCluster,
) -> None:
    who = lsf.directory / "ev" / "who"
    job_id = bsub(lsf, stdin=f"id -u >{who}\nsleep 60\n", user=ALICE)
    wait_for(lambda: noted(who), what="the job")
    assert noted(who) == [str(pwd.getpwnam(ALICE).pw_uid)]
    refused = lsf.command("bkill", job_id, user=BOB)
    assert (refused.returncode, refused.stdout) == (255, "")
    assert refused.stderr == f"Job <{job_id}>: User permission denied\n"
    assert lsf.command("bjobs", user=BOB).returncode == 254
    assert lsf.command("bjobs", job_id, user=BOB).returncode == 0
    assert lsf.command("bkill", job_id).stdout == f"Job <{job_id}> is being terminated\n"
    wait_state(lsf, job_id, "EXIT")
    assert not lsf.command("badmin", "hclose", "n1", user=ALICE).is_ok
    who.unlink()


def test_whole_nodes_note_when_they_ran(lsf: LsfTestCluster) -> None:
    before_s = time.time()
    job_id = lsf.submit(n_nodes=2, duration_s=0.5)
    wait_for(lambda: lsf.ended_s(job_id), what="the end of the job")
    started_s, ended_s = lsf.started_s(job_id), lsf.ended_s(job_id)
    assert started_s is not None
    assert ended_s is not None
    assert before_s <= started_s <= ended_s - 0.5 <= time.time()
    wait_state(lsf, job_id, "DONE")


def test_states_of_a_job(lsf: LsfTestCluster) -> None:
    running = bsub(lsf, "sleep 60")
    held = bsub(lsf, "-H", "sleep 60")
    after = bsub(lsf, "-w", f"ended({running})", "true")
    array = bsub(lsf, "-J", "arr[1-3]", "sleep 60")
    wait_state(lsf, running, "RUN")
    wait_for(lambda: states(lsf)[array] == "RUN", what="the array")
    assert states(lsf) == {running: "RUN", held: "PSUSP", after: "PEND", array: "RUN"}
    assert lsf.command("bstop", running).stdout == f"Job <{running}> is being stopped\n"
    assert states(lsf)[running] == "USUSP"
    assert lsf.command("bresume", running, held).is_ok
    assert states(lsf)[running] in ("SSUSP", "RUN")  # it goes on with the next pass
    wait_for(lambda: {states(lsf)[i] for i in (running, held)} == {"RUN"}, what="both resumed")
    second = lsf.command("bkill", f"{array}[2]")
    assert second.stdout == f"Job <{array}[2]> is being terminated\n"
    wait_for(lambda: "<EXIT>" in lsf.command("bjobs", "-l", f"{array}[2]").stdout, what="its end")
    killed = lsf.command("bkill", "-J", "arr", "0")
    assert killed.stdout.splitlines() == [
        f"Job <{array}[{index}]> is being terminated" for index in (1, 3)
    ]
    assert killed.stderr == f"Job <{array}[2]>: Job has already finished\n"
    assert killed.returncode == 255
    lsf.command("bkill", running)
    wait_state(lsf, after, "DONE")


def test_exit_status_and_report(lsf: LsfTestCluster) -> None:
    out = lsf.directory / "ev" / "report"
    job_id = bsub(lsf, "-o", str(out), "echo hello; exit 3")
    wait_state(lsf, job_id, "EXIT")
    assert "Exited with exit code 3." in lsf.command("bjobs", "-l", job_id).stdout
    wait_for(lambda: out.exists() and out.read_text(), what="the report")
    text = out.read_text()
    assert text.startswith("Sender: LSF System <lsfadm@n1>\n")
    assert text.endswith("The output (if any) follows:\n\nhello\n")


def test_refusals_are_on_standard_error(lsf: LsfTestCluster) -> None:
    for argv, said in (
        (("-q", "nosuch", "x"), "nosuch: No such queue"),
        (("-q", "bf", "-W", "300", "x"), "RUNLIMIT: Cannot exceed queue's hard limit(s)"),
        (("-m", "nosuch", "x"), "nosuch: Bad host name, host group name or cluster name"),
        (("-n", "999", "x"), "Too many processors requested"),
        (("-w", "done(99999)", "x"), "99999: No matching job found"),
        ((), "No command is specified"),
    ):
        done = lsf.command("bsub", *argv)
        assert (done.returncode, done.stdout) == (255, "")
        assert done.stderr == f"{said}. Job not submitted.\n"
    first, usage = lsf.command("bsub", "-H5", "x").stderr.splitlines()
    assert first == "bsub: option cannot have an argument -- H"
    assert usage.startswith("Usage: bsub ")


def test_signals_of_bkill(lsf: LsfTestCluster) -> None:
    script, path = signals_job(lsf, "serial")
    job_id = bsub(lsf, stdin=script)
    wait_for(lambda: noted(path) == ["ready"], what="the job")
    signaled = lsf.command("bkill", "-s", "USR1", job_id)
    assert signaled.stdout == f"Job <{job_id}> is being signaled\n"
    wait_for(lambda: noted(path) == ["ready", "USR1"], what="USR1")
    assert lsf.command("bkill", job_id).is_ok
    wait_state(lsf, job_id, "EXIT")
    assert sorted(noted(path)[2:4]) == ["CONT", "INT"]
    assert noted(path)[4:] == ["TERM"]
    path.unlink()


def test_parallel_jobs_are_killed_at_once_by_ibm_alone(lsf: LsfTestCluster) -> None:
    script, path = signals_job(lsf, "parallel")
    job_id = bsub(lsf, "-n", "4", stdin=script)
    wait_for(lambda: noted(path) == ["ready"], what="the job")
    assert lsf.command("bkill", job_id).is_ok
    wait_state(lsf, job_id, "EXIT")
    is_ibm = lsf.config.is_ibm
    assert noted(path)[1:] == [] if is_ibm else {"INT", "TERM"} <= set(noted(path))
    path.unlink()


def test_exclusive_job_locks_its_host_until_lim_speaks(lsf: LsfTestCluster) -> None:
    job_id = bsub(lsf, "-x", "sleep 60")
    wait_state(lsf, job_id, "RUN")
    assert hosts(lsf)["n1"] == ["closed_Excl", "4", "1", "1", "0", "0", "0"]
    assert "lockU" in lsf.command("lsload", "n1").stdout
    lsf.command("bkill", job_id)
    wait_for(lambda: hosts(lsf)["n1"][0] == "ok", what="host ok")
    wait_for(lambda: "lockU" not in lsf.command("lsload", "n1").stdout, what="lock gone")


def test_reservation_and_backfill(lsf: LsfTestCluster) -> None:
    runs = lsf.submit(n_nodes=2, duration_s=60, limit_s=600)
    wait_state(lsf, runs, "RUN")
    big = lsf.submit(n_nodes=3, duration_s=1, limit_s=120)
    wait_for(lambda: hosts(lsf)["n3"][0] == "closed_Full", what="the reservation")
    assert hosts(lsf)["n3"] == ["closed_Full", "4", "4", "0", "0", "0", "4"]
    text = lsf.command("bjobs", "-l", big).stdout.replace("\n" + " " * 21, "")
    assert "Reserved <4> job slots on host(s) <n3> <n3> <n3> <n3>;" in text
    assert "Will be started;" in text
    four = ("-n", "4", "-R", "span[ptile=4]", "-m", "n3", "-q", "bf")
    too_long = bsub(lsf, *four, "-W", "20", "sleep 60")
    fits = bsub(lsf, *four, "-W", "1", "sleep 60")
    wait_state(lsf, fits, "RUN")
    assert states(lsf)[too_long] == "PEND"
    assert states(lsf)[big] == "PEND"


def test_deadline_removes_a_pending_job(lsf: LsfTestCluster) -> None:
    soon = time.strftime("%m:%d:%H:%M", time.localtime(time.time() + 90))
    job_id = bsub(lsf, "-W", "10", "-t", soon, "sleep 60")
    assert states(lsf, job_id) == {job_id: "EXIT"}
    assert "Exited;" in lsf.command("bjobs", "-l", job_id).stdout


def test_host_and_queue_are_closed_and_opened(lsf: LsfTestCluster) -> None:
    lsf.set_host("n2", "close")
    assert hosts(lsf)["n2"][0] == "closed_Adm"
    lsf.set_host("n2", "open")
    assert hosts(lsf)["n2"][0] == "ok"
    assert lsf.command("badmin", "qclose", "bf").stdout == "Queue <bf> is closed\n"
    assert lsf.command("bsub", "-q", "bf", "x").stderr.startswith("bf: Queue has been closed.")
    assert "Closed:Active" in lsf.command("bqueues").stdout
    lsf.command("badmin", "qopen", "bf")


def test_nothing_to_show_and_unknown_ids(lsf: LsfTestCluster) -> None:
    nothing = lsf.command("bjobs", "-u", "all")
    assert (nothing.returncode, nothing.stdout) == (254, "")
    assert nothing.stderr == "No unfinished job found\n"
    unknown = lsf.command("bjobs", "424242")
    assert (unknown.returncode, unknown.stderr) == (255, "Job <424242> is not found\n")
    shown = json.loads(lsf.command("bjobs", "-o", "jobid", "-json", "424242").stdout)
    assert shown["RECORDS"] == [{"JOBID": "424242", "ERROR": "Job <424242> is not found"}]
    assert lsf.command("bjobs", "abc").stderr == "abc: Illegal job ID.\n"
    assert lsf.command("bjobs", "-o", "nosuchfield").returncode == 99


def test_thousand_jobs_are_listed_quickly(lsf: LsfTestCluster) -> None:
    first = bsub(lsf, "-J", "many[1-1000]", "-H", "true")
    fields = "jobid jobindex stat exec_host" if lsf.config.is_ibm else "jobid stat exec_host"
    for argv in (("-w",), ("-UF",), ("-o", fields, "-json")):
        # Of this array: on a busy machine bsub asks again, as LSF's does, and there are several.
        listed = lsf.command("bjobs", "-u", "all", *argv, first)
        assert listed.is_ok
    records: list[dict[str, Any]] = json.loads(listed.stdout)["RECORDS"]
    assert len(records) == 1000
    assert {one["JOBID"] for one in records} == {first}
