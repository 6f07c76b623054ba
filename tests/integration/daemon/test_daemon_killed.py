"""A daemon killed between a give-back and its entry in the journal: the next one goes on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from bftrainer.batch.local.client import LocalServer
from bftrainer.daemon.journal_replay import take_again
from bftrainer.journal import Journal
from bftrainer.lab.demo.sidecar import DaemonProcess
from tests.integration.daemon_scripts import SLOW, trainer_spec
from tests.support.site import Site, start_warm_server
from tests.support.waiting import wait_for

POLICY = """\
poll_interval_s: 0.2
min_gap_s: 2
gap_margin_s: 1
reserve_nodes_per_type: 0
join_window_s: 0.5
agent_timeout_s: 4
hold_idle_s: 20
"""
# A daemon that kills itself when it comes to PLACE with a give-back under way.
DAEMON = """
import os, signal, sys
from bftrainer.fleet.pilots.pilots import PilotBook
from bftrainer.cli.main import main
from bftrainer.journal import tables
place, gives_back = sys.argv.pop(1), False

def die_at(name):
    if gives_back and name == place:
        os.kill(os.getpid(), signal.SIGKILL)

def released(book, releases, told=()):
    global gives_back
    gives_back = gives_back or any(release.for_job for release in releases)
    die_at("agents-told")
    found = release(book, releases, told)
    die_at("pilots-released")
    return found

def written(connection, draft, *rest):
    die_at("before-" + draft.kind)
    found = write(connection, draft, *rest)
    die_at("inside-" + draft.kind)
    return found

release, write = PilotBook.release, tables.write
PilotBook.release, tables.write = released, written
sys.exit(main(sys.argv[1:]))
"""


class Dying(DaemonProcess):
    """One that dies at a place, if one is named."""

    place = ""

    def argv(self) -> tuple[str, ...]:
        argv = super().argv()
        at = argv.index("-m")
        return (*argv[:at], "-c", DAEMON, self.place, *argv[at + 2 :])


def _given_back(server: LocalServer, sidecar: Dying) -> str:
    """Submit a job for which nodes are given back; of one that came just before a cycle none are.

    Returns its id, when the daemon has died of it.
    """
    died = sidecar._process
    assert died is not None
    jobs: list[str] = []

    def has_died() -> bool:
        over = {one["job_id"] for one in server.client.history() if one["end_s"]}
        if died.poll() is None and over.issuperset(jobs):
            jobs.append(server.client.submit(n_nodes=2, limit_s=60, duration_s=2, user="alice"))
        return died.poll() is not None

    wait_for(has_died, what="the daemon died in a give-back")
    assert died.returncode == -signal.SIGKILL
    return jobs[-1]


@pytest.mark.long
@pytest.mark.parametrize(
    "place",
    [
        "inside-decision",
        *(
            pytest.param(place, marks=pytest.mark.long)
            for place in ("agents-told", "pilots-released", "before-decision")
        ),
    ],
)
def test_a_give_back_that_is_not_written_down_is_no_harm(tmp_path: Path, place: str) -> None:
    with start_warm_server(tmp_path / "local", n_nodes=3, cycle_s=4.0) as server:
        sidecar = Dying(
            tmp_path / "state",
            batch_system="local",
            batch_options={"socket": str(server.socket_path)},
            policy=POLICY,
        )
        site = Site(tmp_path, server, sidecar)
        try:
            sidecar.place = place
            # Behind a job that has to wait, only the next cycle starts one: there is time, mostly.
            server.client.submit(n_nodes=1, limit_s=900, duration_s=900, user="alice")
            server.client.submit(n_nodes=3, limit_s=900, duration_s=900, user="alice")
            sidecar.start()
            trainer = site.client.submit(trainer_spec(tmp_path / "one", SLOW)).record.trainer_id
            site.trains_at(trainer, 2)
            job = _given_back(server, sidecar)
            sidecar.place = ""
            sidecar.start()
            wait_for(
                lambda: any(h["job_id"] == job and h["end_s"] for h in server.client.history()),
                what="the ordinary job ran on the nodes of the trainer",
            )
            site.trains_at(trainer, 2)
            site.trains_on(trainer)
        finally:
            sidecar.stop()
    with Journal.open(tmp_path / "state" / "journal.db", clock=lambda: 0.0) as journal:
        assert journal.verify() > 0
        assert [a for a in take_again(journal.entries()) if not a.is_equal] == []
