"""Paths that users give, at a real daemon: none stops it, and it makes nothing there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.api.client import Client
from bftrainer.lab.demo.local_site import LocalSite
from bftrainer.model.errors import BftError, ExitCode
from bftrainer.model.trainer import TrainerSpec, TrainerState
from tests.integration.cli_fixtures import home, service
from tests.integration.daemon_scripts import trainer_spec
from tests.support.hanging import hanging
from tests.support.memory_service import MemoryService, socket_of
from tests.support.waiting import wait_for

__all__ = ["home", "service"]

POLICY = "poll_interval_s: 0.5\nmax_trainers_per_user: 12\nsubmissions_per_minute_per_user: 1000\n"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSite]:
    """A daemon with one node: trainers of two or more stay in the queue."""
    with LocalSite.open(tmp_path_factory.mktemp("site"), n_nodes=1, policy=POLICY) as opened:
        yield opened
        assert "Traceback" not in opened.sidecar.log.read_text()
        assert "Traceback" not in opened.sidecar.out.read_text()


@pytest.fixture(autouse=True)
def nothing_left(site: LocalSite) -> Iterator[None]:
    """Each test begins and ends without unfinished trainers."""
    yield
    site.clear()


def spec_at(tmp_path: Path, checkpoint_dir: Path | str, **changes: object) -> TrainerSpec:
    fields = {"n_min": 2, "n_max": 2, "checkpoint_dir": str(checkpoint_dir), **changes}
    return trainer_spec(tmp_path / "script", "pass\n", **fields)


def refused(client: Client, spec: TrainerSpec) -> BftError:
    with pytest.raises(BftError) as caught:
        client.submit(spec)
    assert caught.value.next_step
    return caught.value


@pytest.mark.parametrize(
    "place", ["/proc/none", "/sys/none", "{tmp}/script/train.py/below", "{tmp}/" + "n" * 256]
)
def test_a_directory_that_cannot_be_is_refused_with_a_code(
    site: LocalSite, tmp_path: Path, place: str
) -> None:
    spec = spec_at(tmp_path, place.replace("{tmp}", str(tmp_path)))
    error = refused(site.client, spec)
    assert (error.code, error.exit_code) == ("BFT-1014", ExitCode.USAGE)


def test_the_daemon_makes_no_directory_for_a_user(site: LocalSite, tmp_path: Path) -> None:
    trainer = site.client.submit(spec_at(tmp_path, tmp_path / "new" / "deeper"))
    assert not (tmp_path / "new").exists()
    assert site.client.logs(trainer.record.trainer_id) == ()


def test_a_file_system_that_hangs_keeps_nobody_else_waiting(
    site: LocalSite, tmp_path: Path
) -> None:
    with hanging(tmp_path / "hung") as hung:
        error = refused(site.client, spec_at(tmp_path, hung / "here"))
        assert (error.code, error.exit_code) == ("BFT-1033", ExitCode.TIMEOUT)
        for number in range(8):  # more than may be looked at for one user at once
            assert refused(site.client, spec_at(tmp_path, hung / f"n{number}")).code == "BFT-1033"
        assert site.client.status().incarnation
    wait_for(
        lambda: _is_taken(site.client, spec_at(tmp_path, tmp_path / "well")),
        what="what hung has come back",
    )


def _is_taken(client: Client, spec: TrainerSpec) -> bool:
    with contextlib.suppress(BftError):
        return client.submit(spec).record.state is TrainerState.QUEUED
    return False


def test_one_hanging_submission_is_no_matter_to_the_same_users_others(
    site: LocalSite, tmp_path: Path
) -> None:
    with hanging(tmp_path / "hung") as hung:
        refused(site.client, spec_at(tmp_path, hung / "here"))
        assert site.client.submit(spec_at(tmp_path, tmp_path / "well")).record.trainer_id


def test_logs_in_a_directory_that_hangs_are_a_coded_error(site: LocalSite, tmp_path: Path) -> None:
    place = tmp_path / "place"
    trainer_id = site.client.submit(spec_at(tmp_path, place)).record.trainer_id
    with hanging(place):
        with pytest.raises(BftError) as caught:
            site.client.logs(trainer_id)
        assert caught.value.code == "BFT-1033"
        assert site.client.trainer(trainer_id).record.state is TrainerState.QUEUED


def test_foreign_files_among_the_logs_are_passed_over(site: LocalSite, tmp_path: Path) -> None:
    place = tmp_path / "place"
    trainer_id = site.client.submit(spec_at(tmp_path, place)).record.trainer_id
    logs = place / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    names = ("1-2", "1-10", "1-2-1", "x-1", "", "1-²", "9" * 200, "1-2-3-4-5")
    for name in names:
        (logs / f"{trainer_id}-{name}.log").touch()
    Path(os.fsdecode(os.fsencode(logs) + b"/" + trainer_id.encode() + b"-\xff.log")).touch()
    found = [Path(log.path).name for log in site.client.logs(trainer_id)]
    assert found == [f"{trainer_id}-{name}.log" for name in ("1-2", "1-2-1", "1-10")]


def test_an_environment_is_in_no_decision(site: LocalSite, tmp_path: Path) -> None:
    secret = (("TOKEN", "hunter2"),)
    before = site.client.status().decisions
    site.client.submit(spec_at(tmp_path, tmp_path / "c", environment=secret, args=("--key=abc",)))
    wait_for(lambda: site.client.status().decisions > before, what="a decision")
    entries = site.sidecar.entries()
    decisions = [e.payload for e in entries if e.kind == "decision"]
    assert decisions
    assert not any(word in str(told) for told in decisions for word in ("hunter2", "--key=abc"))
    assert any("hunter2" in str(e.trainers) for e in entries)  # its workers will need it


def test_a_user_has_a_limited_number_of_unfinished_trainers(
    site: LocalSite, tmp_path: Path
) -> None:
    first = [site.client.submit(spec_at(tmp_path, tmp_path / str(n))) for n in range(12)]
    error = refused(site.client, spec_at(tmp_path, tmp_path / "one-more"))
    assert (error.code, error.exit_code) == ("BFT-1030", ExitCode.REFUSED_BY_POLICY)
    site.client.cancel(first[0].record.trainer_id)
    site.client.submit(spec_at(tmp_path, tmp_path / "one-more"))


# ---- two names of one directory ---------------------------------------------------------


@pytest.mark.parametrize("way", ["/./", "//", "/", "/x/../", "link"])
def test_another_way_to_a_directory_in_use_is_found(
    service: MemoryService, home: Path, way: str
) -> None:
    (home / "a" / "c").mkdir(parents=True)
    (home / "link").symlink_to(home / "a")
    name = {"/": f"{home}/a/c/", "link": f"{home}/link/c"}.get(way, f"{home}/a{way}c")
    me = trainer_spec(home / "script", "pass\n").user
    specs = [
        TrainerSpec(name="n", user=me, script="/s.py", checkpoint_dir=place)
        for place in (str(home / "a" / "c"), name)
    ]
    client = Client(socket_of())
    client.submit(specs[0])
    error = refused(client, specs[1])
    assert error.code == "BFT-1014"
    assert "t1" in error.cause
    service.set_state("t1", TrainerState.FINISHED)
    client.submit(specs[1])
