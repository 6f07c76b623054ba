"""Pilots that run as users: whom they serve, and whose jobs are taken for them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.batch.local.adapter import create
from bftrainer.fleet.pilots.agents import AgentBook
from bftrainer.fleet.pilots.pilots import PilotBook
from bftrainer.fleet.pilots.strays import StrayPilots
from bftrainer.fleet.trainers.reported_workers import judge
from bftrainer.fleet.wire.endpoint import AgentConfig, endpoints_in
from bftrainer.fleet.wire.keys import generate_pair, load_pair
from bftrainer.journal.journal import Journal
from bftrainer.model.decision import Claim
from bftrainer.model.errors import BftError
from bftrainer.site.policy.model import SitePolicy
from bftrainer.site.submit.client import check_run_as
from slurm_plugins import adapter as slurm
from tests.support.generations import offer
from tests.support.journals import journal_at
from tests.support.snapshots import T0, running, snapshot
from tests.unit.fleet.test_trainer_book import Site
from tests.unit.fleet.test_who_says import WARM, _left_behind, _report
from trainers.agent.preambles import KEPT, tidy

CLAIM = Claim(node="n1", time_limit_s=3600.0, for_trainer="t1")
OF_ALICE = replace(running("71", "n1"), pilot_id="p000001", user="alice")


journal = journal_at(T0)


@pytest.fixture
def book(tmp_path: Path, journal: Journal) -> PilotBook:
    system = create({"socket": tmp_path / "none"})
    book = PilotBook(journal, system, "bft", lambda: T0, as_submitter=True)
    pilot = book.open("p000001", CLAIM, "key", "alice")
    book.write_down([pilot.record])
    pilot.is_written = True
    book.launched(pilot, "71")
    return book


# ---- whom a node serves --------------------------------------------------------------------


def test_a_node_of_another_users_pilot_is_never_offered(tmp_path: Path, journal: Journal) -> None:
    site = Site(tmp_path, journal)
    user = site.book.records[site.trainer_id].spec.user
    mine, free = replace(offer("n1"), user=user), offer("n2")
    theirs = replace(offer("n3"), user=f"not-{user}")
    site.book.set_targets({site.trainer_id: [mine, free, theirs]})
    machine = site.book.trainers[site.trainer_id].machine
    assert {worker.node for worker in machine.crew.workers.values()} == {"n1", "n2"}


def test_an_agent_of_another_user_has_none_of_our_workers(tmp_path: Path, journal: Journal) -> None:
    site = Site(tmp_path, journal)
    site.target("n1", "n2")
    site.enter()
    _, honest = _left_behind(site)
    record = site.book.records["t1"]
    users = {"p-n1": record.spec.user, "p-n2": "eve"}
    found = judge(honest, {"t1": record}, users)
    assert [one.pilot_id for one in found.believed["t1"]] == ["p-n1"]
    assert [(one.pilot_id, one.why) for one in found.doubted] == [
        ("p-n2", "its agent runs as another user")
    ]


def test_an_agent_of_another_user_makes_no_worker_of_ours_doubtful(
    tmp_path: Path, journal: Journal
) -> None:
    site = Site(tmp_path, journal)
    site.target("n1", "n2")
    site.enter()
    _, honest = _left_behind(site)
    record, starting = site.book.records["t1"], _report("t1-1-9", WARM)
    reports = {**honest, "p-n3": [starting], "p-n4": [starting]}
    users = dict.fromkeys(reports, record.spec.user)
    twice = judge(reports, {"t1": record}, users)
    assert [one.pilot_id for one in twice.doubted] == ["p-n3", "p-n4"]
    found = judge(reports, {"t1": record}, {**users, "p-n4": "eve"})
    assert [one.pilot_id for one in found.doubted] == ["p-n4"]


def test_a_pilot_of_an_earlier_policy_serves_nobody_else(
    book: PilotBook, journal: Journal, tmp_path: Path
) -> None:
    book.open("p000002", replace(CLAIM, node="n2"), "key2")
    assert [book.user_of(p) for p in ("p000001", "p000002", "p000003")] == ["alice", "bft", "bft"]
    assert [view.user for view in book.views(())] == ["alice", "bft"]
    later = PilotBook(journal, create({"socket": tmp_path / "none"}), "bft", lambda: T0)
    assert later.user_of("p000001") == "alice"  # also with run_as: daemon


# ---- whose jobs are pilots -----------------------------------------------------------------


@pytest.mark.parametrize("changed", [{"user": "eve"}, {"job_id": "72"}])
def test_a_job_that_only_has_a_pilots_name_is_not_the_pilot(
    book: PilotBook, changed: dict[str, str]
) -> None:
    forged = replace(OF_ALICE, **changed)  # type: ignore[arg-type]  # test values
    seen = book.recognised(snapshot([], [forged]))
    assert seen.jobs is not None
    assert seen.jobs[0].pilot_id not in (None, "p000001")  # nor is it an ordinary job
    assert book.observe(seen, T0 + 1) == ["p000001"]


def test_the_pilot_itself_is_recognised_beside_it(book: PilotBook) -> None:
    forged = replace(OF_ALICE, job_id="72", user="eve")
    seen = book.recognised(snapshot([], [forged, OF_ALICE, running("8", "n2")]))
    assert seen.jobs is not None
    assert [job.pilot_id for job in seen.jobs] == ["p000001 of 72", "p000001", None]
    assert book.observe(seen, T0 + 1) == []


def test_numbers_follow_no_names_of_users(tmp_path: Path) -> None:
    (tmp_path / "p000005").mkdir()
    strays = StrayPilots(tmp_path, active=(), believes_names=False)
    jobs = [replace(OF_ALICE, job_id=str(n), pilot_id=f"p{n:06}") for n in (5, 999_999_999)]
    assert strays.to_cancel(snapshot([], jobs), pilot_ids=()) == ["5"]
    assert strays.greatest == 5


# ---- the files of such a pilot -------------------------------------------------------------


def test_its_files_are_returned_and_work_wherever_the_user_writes_them(tmp_path: Path) -> None:
    book = AgentBook(
        pilots_dir=tmp_path / "pilots", policy=SitePolicy(), incarnation=1, keys=generate_pair()
    )
    book.endpoint = "tcp://127.0.0.1:4000"
    keys = generate_pair()
    files = book.write_files("p000001", "n1", keys, "", 0, "/usr/bin/python3", "alice")
    assert list(files.directory.iterdir()) == []  # it only keeps the number
    there = tmp_path / "home"
    there.mkdir()
    for name, text in files.contents.items():
        (there / name).write_text(text)
        (there / name).chmod(0o600)
    config = AgentConfig.load(there / "agent.json")
    assert (config.state_dir, config.tidies) == (there, True)
    assert load_pair(config.key_file) == keys


def test_where_a_daemon_of_several_addresses_is(tmp_path: Path) -> None:
    book = AgentBook(
        pilots_dir=tmp_path / "pilots", policy=SitePolicy(), incarnation=1, keys=generate_pair()
    )
    both = ("tcp://10.0.0.1:4000", "tcp://10.1.0.1:4000")
    book.offer_ourselves(both, None)
    own = book.write_files("p000001", "n1", generate_pair(), "", 0)
    # As agents of releases before know it: nothing is in it but what they know.
    assert not {"endpoints", "network", "ports"} & json.loads(own.config.read_text()).keys()
    config = AgentConfig.load(own.config)
    assert config.daemon_endpoint == both[0]
    assert config.endpoint_file is not None
    assert endpoints_in(config.endpoint_file) == both
    users = book.write_files("p000002", "n1", generate_pair(), "", 0, user="alice")
    found = json.loads(users.contents["agent.json"])  # alice sees no file of ours
    assert (found["endpoints"], found["endpoint_file"]) == ([both[1]], None)


def test_an_agent_removes_its_key_and_what_is_old(tmp_path: Path) -> None:
    for number in range(KEPT + 5):
        folder = tmp_path / f"p{number:06}-0123abcd"
        folder.mkdir()
        (folder / "agent.log").touch()
        if number < 3:  # they may still run
            (folder / "agent.json").touch()
        os.utime(folder, (1e9 + number,) * 2)
    running_since = tmp_path / "p000001-0123abcd"
    os.utime(running_since)
    os.utime(tmp_path / "p000002-0123abcd")
    own = tmp_path / "p000100-0123abcd"
    own.mkdir()
    (own / "agent.key").touch()
    (own / "agent.json").touch()
    tidy(own)
    assert list(own.iterdir()) == [own / "agent.json"]
    left = {folder.name[:7] for folder in tmp_path.iterdir()}
    assert {"p000000", "p000003", "p000004"} & left == set()
    assert {"p000001", "p000002", "p000005", "p000100"} <= left
    assert len(left) == KEPT + 3


# ---- who may have it so --------------------------------------------------------------------


def test_a_daemon_without_helper_or_with_too_many_rights_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = SitePolicy.model_validate({"run_as": "submitter"})
    local = create({"socket": tmp_path / "none"})
    ready = slurm.create({"submit_helper": "/run/bftrainer-submit.sock"})
    check_run_as(SitePolicy(), local, is_own=True)
    for system, is_own, uid, code in (
        (local, False, 990, "BFT-1521"),
        (slurm.create({}), False, 990, "BFT-1521"),
        (ready, True, 990, "BFT-1522"),
        (ready, False, 0, "BFT-1522"),
    ):
        monkeypatch.setattr(os, "geteuid", lambda uid=uid: uid)
        with pytest.raises(BftError) as refused:
            check_run_as(policy, system, is_own=is_own)
        assert refused.value.code == code
    monkeypatch.setattr(os, "geteuid", lambda: 990)
    check_run_as(policy, ready, is_own=False)


@pytest.mark.parametrize("option", [{"floor_job": "7"}, {"preamble": "/x"}, {"is_own": True}])
def test_pilots_of_several_users_have_nothing_that_is_of_one(option: dict[str, object]) -> None:
    with pytest.raises(BftError, match="BFT-1522: pilots of several users run as the site"):
        slurm.create({"submit_helper": "/run/s", **option})
