"""lsb.events, esub and epsub of the stand-in; names and texts of users that are not plain."""

from __future__ import annotations

import json
import os
import pwd
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lsf_adapters.testcluster import LsfTestCluster, Parameters
from tests.integration.lsf_adapters.test_lsf_standin import bsub, states, wait_state
from tests.integration.lsf_fixtures import DIALECTS, running_lsf

_WORD = re.compile(r'"((?:[^"]|"")*)"|(\S+)')


@pytest.fixture(params=DIALECTS)
def lsf(request: pytest.FixtureRequest) -> Iterator[LsfTestCluster]:
    with running_lsf(
        dialect=request.param, n_nodes=2, parameters=Parameters(max_job_num=4)
    ) as cluster:
        yield cluster


def records(path: Path) -> list[list[str]]:
    """The records of a journal, as words."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return [
        [(quoted or plain).replace('""', '"') for quoted, plain in _WORD.findall(line)]
        for line in lines
    ]


def of_job(cluster: LsfTestCluster, job_id: str) -> list[list[str]]:
    every = [*cluster.config.logdir.glob("lsb.events.*"), cluster.config.events_file]
    return [one for path in every for one in records(path) if one[3] == job_id]


@pytest.mark.long
def test_record_of_a_submission_is_there_when_bsub_returns(lsf: LsfTestCluster) -> None:
    job_id = bsub(
        *(lsf, "-J", 'ev "job"', "-n", "2", "-R", "span[ptile=1]", "-W", "3", "-o", "/dev/null"),
        *("-m", "n1 n2", "-q", "normal", "sleep 60"),
    )
    (new,) = of_job(lsf, job_id)
    assert new[:2] == ["JOB_NEW", "10.1" if lsf.config.is_ibm else "22"]
    assert new[6] == "2"  # slots
    assert new[13] == pwd.getpwuid(os.geteuid()).pw_name
    # As recorded: eleven limits, of which the tenth is the run limit times the host's factor.
    assert new[14:25] == ["-1"] * 9 + ["18000", "-1"]
    assert new[25:27] == ["lsfm", "100.00"]
    assert new[28:31] == ["normal", "span[ptile=1]", "lsfm"]
    assert new[34] == "/dev/null"
    assert new[38:41] == ["2", "n1", "n2"]
    assert new[43:45] == ['ev "job"', "sleep 60"]


@pytest.mark.long
def test_life_of_a_job(lsf: LsfTestCluster) -> None:
    job_id = bsub(lsf, "-n", "4", "exit 5")
    wait_state(lsf, job_id, "EXIT")
    kinds = [one[0] for one in of_job(lsf, job_id)]
    assert kinds == ["JOB_NEW", "JOB_START", "JOB_START_ACCEPT", "JOB_EXECUTE", "JOB_STATUS"]
    start, end = of_job(lsf, job_id)[1], of_job(lsf, job_id)[-1]
    assert start[8:13] == ["4", "n1", "n1", "n1", "n1"]
    assert end[4] == "32"
    done = bsub(lsf, "true")
    wait_state(lsf, done, "DONE")
    assert [one[4] for one in of_job(lsf, done) if one[0] == "JOB_STATUS"] == ["64", "320"]
    killed = bsub(lsf, "-H", "true")
    lsf.command("bkill", killed)
    assert [one[0] for one in of_job(lsf, killed)] == ["JOB_NEW", "JOB_SIGNAL", "JOB_STATUS"]


@pytest.mark.long
def test_hosts_and_queues(lsf: LsfTestCluster) -> None:
    lsf.command("badmin", "hclose", "-C", "why", "n1")
    lsf.command("badmin", "hopen", "n1")
    lsf.command("badmin", "qclose", "bf")
    found = [one for one in records(lsf.config.events_file) if one[0].endswith("_CTRL")]
    assert [(one[0], one[3], one[4], one[7]) for one in found] == [
        ("HOST_CTRL", "2", "n1", "why"),
        ("HOST_CTRL", "1", "n1", ""),
        ("QUEUE_CTRL", "2", "bf", ""),
    ]


@pytest.mark.long
def test_file_is_switched_after_so_many_jobs(lsf: LsfTestCluster) -> None:
    first = lsf.config.events_file.stat().st_ino
    for _ in range(4):
        bsub(lsf, "-H", "true")
    lsf.command("bkill", "0")
    older = lsf.config.logdir / "lsb.events.1"
    assert older.stat().st_ino == first
    assert lsf.config.events_file.stat().st_ino != first
    assert [one[0] for one in records(older)].count("JOB_STATUS") == 4
    assert records(lsf.config.events_file) == []
    for _ in range(4):
        bsub(lsf, "-H", "true")
    lsf.command("bkill", "0")
    assert (lsf.config.logdir / "lsb.events.2").stat().st_ino == first
    lsf.command("bkill", "0")
    assert lsf.config.events_file.stat().st_mode & 0o777 == 0o644


@pytest.mark.long
def test_names_of_users_are_not_plain(lsf: LsfTestCluster) -> None:
    for name in ("a'b", "a b\tc", "umlaut_ä", "per%Jcent", "-dash", 'q"u"o', "back\\slash", "$(x)"):
        job_id = bsub(lsf, "-H", "-J", name, "true")
        fields = ("-o", "jobid job_name", "-json", job_id)
        shown = json.loads(lsf.command("bjobs", *fields).stdout)
        assert shown["RECORDS"][0]["JOB_NAME"] == name
        assert name in of_job(lsf, job_id)[0]
    job_id = bsub(lsf, "-H", "-J", "two\nlines", "true")
    assert "twolines" in lsf.command("bjobs", "-w", job_id).stdout
    missing = lsf.command("bjobs", "-J", "two\nlines")
    assert (missing.returncode, missing.stderr) == (254, "Job <two\nlines> is not found\n")


ESUB = """#!/bin/sh
{{ echo "$LSB_SUB_ABORT_VALUE $(id -u)"; cat "$LSB_SUB_PARM_FILE"; }} >>{noted}
. "$LSB_SUB_PARM_FILE"
case "$LSB_SUB_JOB_NAME" in
  forbidden) echo "this name is forbidden here" >&2; exit $LSB_SUB_ABORT_VALUE;;
  changed) echo 'LSB_SUB_PROJECT_NAME="by_esub"' >"$LSB_SUB_MODIFY_FILE";;
  odd) exit 3;;
esac
"""
EPSUB = '#!/bin/sh\necho "$LSB_SUB_JOB_ID $LSB_SUB_JOB_QUEUE" >>{noted}\n'


def install(cluster: LsfTestCluster, name: str, text: str) -> Path:
    noted = cluster.directory / "ev" / name
    path = cluster.directory / "etc" / name
    path.write_text(text.format(noted=noted))
    path.chmod(0o755)
    return noted


@pytest.mark.long
def test_esub_sees_changes_and_refuses(lsf: LsfTestCluster) -> None:
    noted = install(lsf, "esub", ESUB)
    user = "nobody" if os.geteuid() == 0 else None
    job_id = bsub(
        *(lsf, "-H", "-J", "plain", "-n", "2", "-W", "7", "-x", "-R", "span[ptile=1]"),
        *("-m", "n1 n2", "-q", "normal", "-P", "p1", "sleep 5"),
        user=user,
    )
    first, *lines = noted.read_text().splitlines()
    assert first.split()[0] == "97"
    assert user is None or first.split()[1] != "0"
    assert lines == [
        'LSB_SUB_JOB_NAME="plain"',
        'LSB_SUB_QUEUE="normal"',
        "LSB_SUB_EXCLUSIVE=Y",
        'LSB_SUB_RES_REQ="span[ptile=1]"',
        'LSB_SUB_PROJECT_NAME="p1"',
        'LSB_SUB_HOSTS="n1 n2 "',
        "LSB_SUB_RLIMIT_RUN=420",
        "LSB_SUB_NUM_PROCESSORS=2",
        "LSB_SUB_MAX_NUM_PROCESSORS=2",
    ]
    refused = lsf.command("bsub", "-J", "forbidden", "true", user=user)
    assert refused.returncode == 255
    assert refused.stderr == (
        "this name is forbidden here\nRequest aborted by esub. Job not submitted.\n"
    )
    changed = bsub(lsf, "-H", "-J", "changed", "true", user=user)
    assert "Project <by_esub>" in lsf.command("bjobs", "-UF", changed).stdout
    bsub(lsf, "-H", "-J", "odd", "true", user=user)  # other statuses are ignored
    assert job_id in states(lsf)


@pytest.mark.long
def test_epsub_is_told_the_id(lsf: LsfTestCluster) -> None:
    noted = install(lsf, "epsub", EPSUB)
    job_id = bsub(lsf, "-H", "true")
    lsf.command("bsub", "-q", "nosuch", "true")
    if lsf.config.is_ibm:
        assert noted.read_text().splitlines() == [f"{job_id} normal", "-1 "]
    else:
        assert not noted.exists()  # volclava has none
