"""``doctor`` and ``site init`` on the stand-in of LSF: what they ask it for, and what follows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bftrainer.batch.batch_system import PilotRequest
from bftrainer.cli.main import main
from bftrainer.model.errors import BatchSystemError, ExitCode
from lsf_adapters.testcluster import LsfTestCluster
from lsf_adapters.testcluster.config import Parameters, Queue
from tests.integration.lsf_fixtures import lsf_adapter, running_lsf
from tests.integration.volclava_fixtures import needs_volclava, volclava_config
from tests.support.assignments import values_in
from tests.support.volclava import RealVolclava
from tests.support.waiting import wait_for

USER = "nobody"  # volclava refuses root, as whom tests may run
ORDINARY = Queue(name="normal", priority=30, is_default=True, backfills=True, is_preemptive=True)
GOOD = Parameters(
    preempt_jobtype=("BACKFILL", "EXCLUSIVE"), sequential_signal=True, disable_limlock_excl=True
)
Cluster = LsfTestCluster | RealVolclava
Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def bare() -> Iterator[LsfTestCluster]:
    """IBM's dialect, before anything was done for pilots."""
    with running_lsf(dialect="ibm", n_nodes=2, queues=(ORDINARY,), parameters=Parameters()) as one:
        yield one


def arguments(cluster: Cluster, **options: str) -> list[str]:
    given = {**cluster.config.batch_options(), "command_timeout_s": "3", "user": USER, **options}
    pairs = [word for key, value in given.items() for word in ("--batch-option", f"{key}={value}")]
    return ["--batch-system", "lsf", "--json", *pairs]


def doctor(cluster: Cluster, capsys: Output, **options: str) -> tuple[int, dict[str, str]]:
    """Exit status; weights by code."""
    status = main(["doctor", *arguments(cluster, **options)])
    said = json.loads(capsys.readouterr().out)
    return status, {found["code"]: found["weight"] for found in said["findings"]}


def site_init(cluster: Cluster, directory: Path, capsys: Output, **options: str) -> dict[str, str]:
    """Write the files; return their texts."""
    more = ["--write", "--directory", str(directory)]
    assert main(["site", "init", *arguments(cluster, **options), *more]) == ExitCode.OK
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return {Path(path).name: Path(path).read_text() for path in said["written"]}


def values(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if "=" in line]
    return values_in(line for line in lines if not line.startswith("#"))


def as_installed(texts: dict[str, str]) -> dict[str, Any]:
    """What a cluster is when the administrator has installed these files."""
    queue = values(texts["lsb.queues.bftrainer"])
    params = values(texts.get("lsb.params.bftrainer", ""))
    conf = values(texts.get("lsf.conf.bftrainer", ""))
    default, longest = (60.0 * float(minutes) for minutes in queue["RUNLIMIT"].split())
    pilots = Queue(
        name=queue["QUEUE_NAME"],
        priority=int(queue["PRIORITY"]),
        backfills=queue["BACKFILL"] == "Y",
        is_rerunnable=queue["RERUNNABLE"] != "NO",
        is_preemptable=queue.get("PREEMPTION") == "PREEMPTABLE",
        terminates_preempted=queue.get("TERMINATE_WHEN") == "PREEMPT",
        default_limit_s=default,
        max_limit_s=longest,
        users=tuple(queue["USERS"].split()),
        hosts=() if queue["HOSTS"] == "all" else tuple(queue["HOSTS"].split()),
    )
    parameters = Parameters(
        preempt_jobtype=tuple(params.get("PREEMPT_JOBTYPE", "BACKFILL").split()),
        sequential_signal=conf.get("LSB_USE_SEQUENTIAL_SIGNAL") == "Y",
        disable_limlock_excl=conf.get("LSB_DISABLE_LIMLOCK_EXCL") == "Y",
    )
    return {"queues": (ORDINARY, pilots), "parameters": parameters, "pilot_queue": pilots.name}


def test_what_site_init_writes_is_a_site_without_a_finding(
    bare: LsfTestCluster, tmp_path: Path, capsys: Output
) -> None:
    """Before: no queue, parameters that keep pilots from being preempted. After: nothing."""
    assert doctor(bare, capsys) == (
        ExitCode.VALIDATION_FAILED,
        {"BFT-1291": "stop", "BFT-1235": "harm", "BFT-1237": "loss"},
    )
    texts = site_init(bare, tmp_path / "site", capsys, pilot_queue="idle")
    assert (
        str(bare.config.conf / "lsbatch" / "lab" / "configdir" / "lsb.queues")
        in (texts["CHECKLIST.md"])
    )
    policy = tmp_path / "site" / "policy.yaml"
    assert main(["policy", "check", "--batch-system", "lsf", str(policy)]) == ExitCode.OK
    assert f'events_file: "{bare.config.events_file}"' in policy.read_text()
    capsys.readouterr()
    with running_lsf(dialect="ibm", n_nodes=2, **as_installed(texts)) as installed:
        assert doctor(installed, capsys) == (ExitCode.OK, {})
        assert values(site_init(installed, tmp_path / "again", capsys)["lsb.queues.bftrainer"]) == (
            values(texts["lsb.queues.bftrainer"])
        )


@pytest.mark.parametrize("dialect", ["ibm", "volclava"])
def test_the_standard_site_of_the_stand_in(dialect: str, capsys: Output) -> None:
    with running_lsf(dialect=dialect, n_nodes=2, parameters=GOOD) as cluster:
        expected = (
            (ExitCode.OK, {})
            if dialect == "ibm"
            else (ExitCode.VALIDATION_FAILED, {"BFT-1292": "harm"})
        )
        assert doctor(cluster, capsys) == expected
        cluster.command("badmin", "qclose", "bf")
        status, found = doctor(cluster, capsys)
        assert found == {**expected[1], "BFT-1240": "stop"}
        assert status == ExitCode.VALIDATION_FAILED  # no pilot starts


def test_a_site_where_everything_about_preemption_is_wrong(capsys: Output) -> None:
    pilots = Queue(name="bf", priority=30, is_preemptable=True, max_limit_s=600, users=("carol",))
    urgent = Queue(name="urgent", priority=50, is_preemptive=True)
    wrong = Parameters(preempt_delay_s=30, max_job_preempt=3, preempt_jobtype=())
    with running_lsf(
        dialect="ibm", n_nodes=2, queues=(ORDINARY, urgent, pilots), parameters=wrong
    ) as cluster:
        status, found = doctor(cluster, capsys)
    assert status == ExitCode.VALIDATION_FAILED
    assert list(found) == [
        *("BFT-1235", "BFT-1293", "BFT-1294", "BFT-1295", "BFT-1297"),
        *("BFT-1237", "BFT-1240", "BFT-1298", "BFT-1299"),
    ]


def test_a_run_limit_that_the_doctor_names_is_one_that_bsub_refuses(
    tmp_path: Path, capsys: Output
) -> None:
    """BFT-1299 tells the truth: a longer pilot is refused."""
    short = Queue(name="bf", priority=1, backfills=True, max_limit_s=1800)
    with running_lsf(dialect="volclava", n_nodes=1, queues=(ORDINARY, short)) as cluster:
        assert doctor(cluster, capsys)[1] == {"BFT-1292": "harm", "BFT-1299": "loss"}
        system = lsf_adapter(cluster)
        request = PilotRequest(
            pilot_id="p1",
            node="n1",
            time_limit_s=14_400,
            agent_argv=("/bin/true",),
            log_path=tmp_path / "log",
        )
        with pytest.raises(BatchSystemError, match=r"BFT-1204: .*Cannot exceed queue's hard limit"):
            system.launch_pilot(request)


def test_a_cluster_that_does_not_answer(
    bare: LsfTestCluster, tmp_path: Path, capsys: Output
) -> None:
    bare.kill_controller()
    try:
        soon = {"command_timeout_s": "0.5"}
        expected = (ExitCode.VALIDATION_FAILED, {"BFT-1238": "unknown"})
        assert doctor(bare, capsys, **soon) == expected
        more = ["--write", "--directory", str(tmp_path / "site")]
        status = main(["site", "init", *arguments(bare, **soon), *more])
        assert status == ExitCode.DAEMON_UNREACHABLE
        assert capsys.readouterr().err.startswith("error BFT-1247: LSF's settings cannot be read")
        assert not (tmp_path / "site").exists()
    finally:
        bare.start_controller()


@pytest.mark.parametrize("name", [pytest.param("idle", marks=needs_volclava)])
def test_a_real_volclava_takes_what_site_init_writes(
    name: str, tmp_path: Path, capsys: Output
) -> None:
    """The queue, its check by badmin, and the paths of LSF's own files."""
    with RealVolclava(volclava_config(tmp_path / "lab", n_nodes=1)) as cluster:
        options = {"command_timeout_s": "30", "pilot_queue": name, "user": "bft"}
        _, found = doctor(cluster, capsys, **options)
        assert found == {"BFT-1291": "stop"}
        texts = site_init(cluster, tmp_path / "site", capsys, **options)
        queues = cluster.config.lsf_envdir / "lsb.queues"
        assert f"append it to {queues}." in texts["CHECKLIST.md"]
        queues.write_text(queues.read_text() + texts["lsb.queues.bftrainer"])
        checked = cluster.command("badmin", "ckconfig", "-v")
        assert "\nNo errors found.\n" in checked.stderr  # as the checklist says
        cluster.command("badmin", "reconfig")
        # That of every volclava; and the lab's own queue of pilots is not above the new one.
        expected = {"BFT-1292": "harm", "BFT-1297": "harm"}
        wait_for(
            lambda: doctor(cluster, capsys, **options)[1] == expected,
            timeout_s=60,
            what="the queue, as it should be",
        )
