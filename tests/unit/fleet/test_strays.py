"""Pilots that the journal has forgotten."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bftrainer.fleet.pilots.strays import StrayPilots
from bftrainer.model.cluster import JobState
from tests.support.snapshots import pending, running, snapshot


def left_behind(pilots: Path, *names: str) -> None:
    for name in names:
        (pilots / name).mkdir(parents=True)
        (pilots / name / "agent.key").write_text("secret")
        (pilots / name / "agent.log").write_text("words")


def test_numbers_begin_above_every_directory_and_every_job_of_that_form(tmp_path: Path) -> None:
    left_behind(tmp_path, "p000007", "p1000001", "p00001", "pilot", "p٣٣٣٣٣٣")
    (tmp_path / "p1000002").write_text("a file")
    strays = StrayPilots(tmp_path, active=())
    assert strays.greatest == 1_000_002
    queue = snapshot([], [replace(pending("5", 1), pilot_id="p2000000")])
    assert strays.to_cancel(queue, pilot_ids=()) == []
    assert strays.greatest == 2_000_000


def test_no_directory_is_no_pilot(tmp_path: Path) -> None:
    assert StrayPilots(tmp_path / "pilots", active=()).greatest == 0


def test_secrets_of_all_but_the_active_pilots_are_dropped(tmp_path: Path) -> None:
    left_behind(tmp_path, "p000001", "p000002")
    StrayPilots(tmp_path, active={"p000002"})
    assert not (tmp_path / "p000001" / "agent.key").exists()
    assert (tmp_path / "p000001" / "agent.log").exists()
    assert (tmp_path / "p000002" / "agent.key").exists()


def test_only_what_has_a_directory_here_is_cancelled(tmp_path: Path) -> None:
    left_behind(tmp_path, "p000003", "p000004", "p000005")
    strays = StrayPilots(tmp_path, active={"p000003"})
    jobs = [
        replace(running("3", "n1"), pilot_id="p000003"),  # known
        replace(running("4", "n2"), pilot_id="p000004"),
        replace(running("5", "n3"), pilot_id="p000005", state=JobState.COMPLETING),
        replace(running("6", "n4"), pilot_id="p000006"),  # of another daemon, perhaps
        replace(running("7", "n5"), pilot_id="7"),  # ended while its name was asked for
        running("8", "n6"),
    ]
    look = snapshot([], jobs)
    assert strays.to_cancel(look, pilot_ids={"p000003"}) == ["4"]
    assert strays.to_cancel(look, pilot_ids={"p000003"}) == ["4"]  # until it is gone
