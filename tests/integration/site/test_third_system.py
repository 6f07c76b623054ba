"""The batch system of docs/howto/add-batch-system.md passes the tests that all have to pass.

Its OpenPBS is a stand-in; where BFTRAINER_PBS names the pbs.conf of an installed one, it is tried
with that, too.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pwd
import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bftrainer.batch.batch_system import BatchSystem, load_batch_system
from bftrainer.model.cluster import JobState, NodeState, Presence
from bftrainer.model.errors import BatchSystemError
from bftrainer.site.policy import PolicyErrors, load_policy_file
from tests.conformance.batch_system import BatchSystemConformance, ClusterDriver
from tests.conformance.words import (
    block_the_queue,
    launch_and_wait,
    make_empty,
    node_states,
    pilot,
)
from tests.support.installed import installed
from tests.support.pbs.driver import PbsDriver, stand_in

ROOT = Path(__file__).parents[3]
HOWTO = ROOT / "docs" / "howto"
PAGE = HOWTO / "add-batch-system.md"
EXAMPLE = HOWTO / "examples" / "pbs" / "pbs_batch_system.py"
RECORDED = ROOT / "tests" / "fixtures" / "pbs"
# Of the recorded pilots: "preempted" by a job, "limited" by its time limit.
PILOTS = {"preempted": 119, "failed": 129, "left": 130, "limited": 131, "cancelled": 132}
PILOTS |= {"never-started": 133, "waits": 128}
VARIABLE = "BFTRAINER_PBS"


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PBS = load(EXAMPLE)


def system_on(driver: PbsDriver) -> BatchSystem:
    options = {"environment": driver.environment, "scheduler_iteration_s": driver.cycle_s}
    system: BatchSystem = PBS.create({**options, "command_timeout_s": 2.0})
    return system


@pytest.fixture(scope="module")
def standing_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PbsDriver]:
    with stand_in(tmp_path_factory.mktemp("pbs")) as driver:
        yield driver


@pytest.fixture(params=["stand-in", *(["installed"] if VARIABLE in os.environ else [])])
def pbs(request: pytest.FixtureRequest, tmp_path: Path) -> PbsDriver:
    if request.param == "installed":
        return PbsDriver(Path(os.environ[VARIABLE]), tmp_path, cycle_s=2.0)
    driver: PbsDriver = request.getfixturevalue("standing_in")
    return driver


@pytest.mark.long
class TestExample(BatchSystemConformance):
    @pytest.fixture
    def cluster(self, pbs: PbsDriver) -> ClusterDriver:
        return pbs

    @pytest.fixture
    def system(self, pbs: PbsDriver) -> BatchSystem:
        return system_on(pbs)


# -- what OpenPBS 23.06.06 printed (tests/fixtures/pbs) --------------------------------------


@pytest.fixture
def recorded(tmp_path: Path) -> BatchSystem:
    """The example, with commands that print what was recorded; its pilots are this user's."""
    outputs = {"pbsnodes": "pbsnodes.json", "pbs_rstat": "pbs_rstat.txt", "qstat": "qstat.json"}
    me = pwd.getpwuid(os.geteuid()).pw_name
    for name, source in outputs.items():
        text = (RECORDED / source).read_text().replace("root@", f"{me}@")
        (tmp_path / source).write_text(text)
        is_of_pilots = f'[ "$1" = -x ] && cat {RECORDED}/pilots.txt && exit 153'
        (tmp_path / name).write_text(f"#!/bin/sh\n{is_of_pilots}\nexec cat {tmp_path}/{source}\n")
        (tmp_path / name).chmod(0o755)
    system: BatchSystem = PBS.create({"environment": {"PATH": f"{tmp_path}:{os.environ['PATH']}"}})
    return system


def test_recorded_nodes_and_reservations_are_read(recorded: BatchSystem) -> None:
    seen = recorded.snapshot()
    assert seen.failures == ()
    assert node_states(seen) == {  # not pbslab, which has no processors
        "n1": NodeState.ALLOCATED,  # job-busy
        "n2": NodeState.ALLOCATED,  # free, but shared
        "n3": NodeState.DRAINED,
        "n4": NodeState.ALLOCATED,
    }
    (reservation,) = seen.reservations or ()
    assert (reservation.name, reservation.nodes) == ("R121", ("n4",))
    assert reservation.end_s - reservation.start_s == 600


def test_recorded_jobs_are_read(recorded: BatchSystem) -> None:
    seen = recorded.snapshot()
    shares, blocked, held, after, later, array, pilot = seen.jobs or ()
    assert (shares.state, shares.nodes, shares.time_limit_s) == (JobState.RUNNING, ("n2",), 3600)
    assert (shares.user, shares.partitions) == ("alice", ("workq",))
    assert (blocked.state, blocked.n_nodes, blocked.time_limit_s) == (JobState.PENDING, 3, 120)
    assert blocked.planned_nodes == ("n1", "n2", "n4")
    assert shares.start_s is not None
    # One second after the shared node's job has ended by its limit.
    assert blocked.start_s == shares.start_s + 3600
    assert not held.is_entitled
    assert not after.is_entitled
    assert later.begin_s is not None
    assert later.submit_s is not None
    assert 7000 < later.begin_s - later.submit_s <= 7200
    assert (array.state, array.n_nodes) == (JobState.PENDING, 1)  # three tasks still wait
    assert (pilot.pilot_id, pilot.required_nodes) == ("p000002", ("n2",))
    assert [job.job_id for job in seen.jobs or () if not job.is_ordinary] == [pilot.job_id]


def test_recorded_ends_tell_who_failed(recorded: BatchSystem) -> None:
    ids = {name: f"{number}.pbslab" for name, number in PILOTS.items()}
    seen = recorded.pilot_states([*ids.values(), "999999"])
    assert {name for name, job_id in ids.items() if seen[job_id].has_failed} == {"failed"}
    assert {name for name, job_id in ids.items() if seen[job_id].phase} == {"waits"}
    assert seen[ids["waits"]].phase == "pending"
    assert seen["999999"].presence is Presence.ABSENT


def test_stand_in_prints_nothing_that_openpbs_does_not(
    standing_in: PbsDriver, request: pytest.FixtureRequest
) -> None:
    pbs, system = standing_in, system_on(standing_in)
    make_empty(system, pbs)
    request.addfinalizer(lambda: make_empty(system, pbs))
    job_id = launch_and_wait(system, pilot(pbs, pbs.node_names()[0]))
    block_the_queue(system, pbs)
    for command, kind, source in (
        ("pbsnodes -a -v -F json", "nodes", "pbsnodes.json"),
        ("qstat -f -F json", "Jobs", "qstat.json"),
    ):
        ours = json.loads(pbs.run(*command.split()).stdout)
        theirs = json.loads((RECORDED / source).read_text())
        assert ours.keys() == theirs.keys()
        assert attributes(ours[kind]) <= attributes(theirs[kind]) | {"resources_available.ngpus"}
    line = re.compile(r"^(Job Id:|    [\w.]+ =) ", re.MULTILINE)
    printed = pbs.run("qstat", "-x", "-f", "-w", job_id).stdout
    assert set(line.findall(printed)) <= set(line.findall((RECORDED / "pilots.txt").read_text()))


def attributes(rows: dict[str, dict[str, object]]) -> set[str]:
    """Names of all attributes, with their types where these matter to a parser."""
    found = set()
    for row in rows.values():
        for name, value in row.items():
            inner = value if isinstance(value, dict) else {}
            found |= {f"{name}.{one}" for one in inner} or {f"{name}: {type(value).__name__}"}
    return found


def test_controller_that_is_gone_is_unknown(tmp_path: Path) -> None:
    with stand_in(tmp_path) as driver:
        system = system_on(driver)
        assert system.snapshot().is_complete
    seen = system.snapshot()
    assert (seen.nodes, seen.jobs, seen.reservations) == (None, None, None)
    assert "cannot connect to server" in seen.failures[0]


# -- the page --------------------------------------------------------------------------------


def test_example_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 200


def declared() -> dict[str, Any]:
    return tomllib.loads((EXAMPLE.parent / "pyproject.toml").read_text())


@pytest.fixture
def package(tmp_path: Path) -> Iterator[None]:
    """The example's package, as if it were installed."""
    site, project = tmp_path / "site", declared()["project"]
    info = site / f"{EXAMPLE.stem}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (site / EXAMPLE.name).write_text(EXAMPLE.read_text())
    about = {"Metadata-Version": "2.1", "Name": project["name"], "Version": project["version"]}
    (info / "METADATA").write_text("".join(f"{key}: {value}\n" for key, value in about.items()))
    [(group, entries)] = project["entry-points"].items()
    lines = (f"{name} = {place}\n" for name, place in entries.items())
    (info / "entry_points.txt").write_text(f"[{group}]\n{''.join(lines)}")
    with installed(site, EXAMPLE.stem):
        yield


def shown(kind: str) -> str:
    """The page's one block of that kind."""
    (found,) = re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(found)


def test_page_shows_the_package_and_the_test_as_they_are() -> None:
    assert f"({EXAMPLE.relative_to(HOWTO)})" in PAGE.read_text()
    assert tomllib.loads(shown("toml"))["project"] == declared()["project"]
    assert shown("python") in Path(__file__).read_text()


@pytest.mark.usefixtures("package")
def test_package_is_found_by_name_and_takes_the_options_of_the_page(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(shown("yaml"))
    path.chmod(0o644)
    options = load_policy_file(path, batch_system="pbs").policy.batch_options
    system = load_batch_system("pbs", options)
    assert (system.name, system.cycle_s) == ("pbs", 60)
    system.close()
    path.write_text(shown("yaml").replace("pilot_queue", "pilots_queue"))
    with pytest.raises(PolicyErrors, match=r"^BFT-1373: .*yaml:3:.*'pilots_queue'.* pilot_queue"):
        load_policy_file(path, batch_system="pbs")


def test_what_cannot_be_passed_on_is_refused_before_it_is_submitted(standing_in: PbsDriver) -> None:
    pbs, system = standing_in, system_on(standing_in)
    system.snapshot()
    request = pilot(pbs, pbs.node_names()[0])
    before = system.request_counts()
    for wrong in (
        replace(request, environment={"A B": "c"}),
        replace(request, agent_argv=(*request.agent_argv, "null\0")),
        replace(request, node="no-such-node"),
    ):
        with pytest.raises(BatchSystemError, match="BFT-1370"):
            system.launch_pilot(wrong)
    assert system.request_counts() == before
