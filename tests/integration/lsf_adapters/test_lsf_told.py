"""The daemon's readers are told by the stand-in of LSF: events file, its switch, esub and epsub."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import closing

import pytest

from bftrainer.batch.announcer import Announcement, Announcer, UnseenAnnouncements
from bftrainer.model.cluster import Job
from lsf_adapters.notifications.esub import SubmissionFiles
from lsf_adapters.notifications.script import AFTER, BEFORE, install, make_place
from lsf_adapters.notifications.watch import EventsFile
from lsf_adapters.testcluster import LsfTestCluster, Parameters
from tests.integration.lsf_fixtures import DIALECTS, lsf_adapter, running_lsf
from tests.support.waiting import wait_for


def slots_of(cluster: LsfTestCluster) -> dict[str, int]:
    return dict.fromkeys(cluster.node_names, cluster.config.slots_per_node)


@pytest.fixture(scope="module", params=DIALECTS)
def lsf_cluster(request: pytest.FixtureRequest) -> Iterator[LsfTestCluster]:
    """One that shows seconds: an announced job is known again by its user, queue and time."""
    parameters = Parameters(display_year=True, sequential_signal=True)
    with running_lsf(dialect=request.param, n_nodes=5, parameters=parameters) as cluster:
        yield cluster


@pytest.fixture
def events(lsf_cluster: LsfTestCluster) -> Iterator[EventsFile]:
    known = slots_of(lsf_cluster)
    with closing(EventsFile(lsf_cluster.config.events_file, "bf", slots_of=lambda: known)) as file:
        yield file


def next_jobs(announcer: Announcer, count: int = 1) -> list[Job]:
    """Wait for so many submitted jobs."""
    found: list[Job] = []

    def are_there() -> bool:
        found.extend(said.job for said in announcer.read() if said.job)
        return len(found) >= count

    wait_for(are_there, timeout_s=30.0, interval_s=0.01, what="a job is announced")
    assert len(found) == count
    return found


def test_a_job_is_announced_and_a_poll_replaces_it(
    lsf_cluster: LsfTestCluster, events: EventsFile
) -> None:
    unseen = UnseenAnnouncements()
    job_id = lsf_cluster.submit(n_nodes=2, duration_s=600.0, limit_s=660)
    (said,) = next_jobs(events)
    assert said.job_id == f"announced-{job_id}"
    unseen.hear((Announcement(at_s=said.submit_s or 0.0, partition="normal", job=said),))
    began = unseen.look_begins()
    system = lsf_adapter(lsf_cluster)
    snapshot = unseen.add_to(system.snapshot(), began)
    assert not unseen.is_unshown, "the poll shows it"

    def found(jobs: Iterable[Job]) -> Job:
        (one,) = (job for job in jobs if job.job_id == job_id)
        return one

    shown = found(snapshot.jobs or ())
    assert (shown.user, shown.partitions, shown.n_nodes, shown.time_limit_s) == (
        *(said.user, said.partitions),
        *(said.n_nodes, said.time_limit_s),
    )
    wait_for(lambda: found(system.snapshot().jobs or ()).nodes, what="it runs")
    lsf_cluster.cancel(job_id)
    ends = wait_for(lambda: [one.nodes for one in events.read() if one.nodes], timeout_s=60.0)
    assert [len(nodes) for nodes in ends] == [2]
    assert set(ends[0]) <= set(lsf_cluster.node_names)


def test_a_job_that_cannot_start_yet_is_not_entitled(
    lsf_cluster: LsfTestCluster, events: EventsFile
) -> None:
    held = lsf_cluster.submit(n_nodes=1, duration_s=1.0, extra_args=("-H",))
    waiting = lsf_cluster.submit(n_nodes=1, duration_s=1.0, extra_args=("-w", f"ended({held})"))
    said = [(job.job_id, job.is_entitled) for job in next_jobs(events, 2)]
    assert said == [(f"announced-{held}", False), (f"announced-{waiting}", False)]
    for job_id in (waiting, held):
        lsf_cluster.cancel(job_id)


def test_no_job_is_lost_when_the_file_is_switched() -> None:
    parameters = Parameters(max_job_num=2)
    with running_lsf(dialect="volclava", n_nodes=2, parameters=parameters) as cluster:
        path = cluster.config.events_file
        with closing(EventsFile(path, "bf")) as file:
            for _ in range(5):
                job_id = cluster.submit(n_nodes=1, duration_s=0.0)
                (said,) = next_jobs(file)
                assert said.job_id == f"announced-{job_id}"
                wait_for(lambda: any(one.nodes for one in file.read()), timeout_s=60.0)
        assert path.with_name("lsb.events.1").exists(), "it was switched"


@pytest.mark.parametrize(
    ("name", "dialect"), [(BEFORE, "volclava"), (BEFORE, "ibm"), (AFTER, "ibm")]
)
def test_a_script_tells_of_submissions(name: str, dialect: str) -> None:
    with running_lsf(dialect=dialect, n_nodes=2) as cluster:
        place = cluster.directory / "told"
        make_place(place)
        server_dir = cluster.directory / "etc"
        server_dir.mkdir(exist_ok=True)
        script = install(server_dir, place, name)
        script.rename(server_dir / name.partition(".")[0])
        known = slots_of(cluster)
        with closing(SubmissionFiles(place, "bf", slots_of=lambda: known, every_s=0.02)) as files:
            refused = cluster.command("bsub", "-q", "nosuch", "true", user="nobody")
            assert not refused.is_ok
            if name == BEFORE:
                (said,) = next_jobs(files)
                assert said.partitions == ("nosuch",), "esub runs before it is refused"
            cluster.submit(n_nodes=2, duration_s=0.0, limit_s=120)
            (said,) = next_jobs(files)
            assert said.partitions == ("normal",)
            assert (said.n_nodes, said.time_limit_s) == (2, 120.0)
        shutil.rmtree(place)
