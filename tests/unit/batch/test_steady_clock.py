"""Somebody sets the wall clock: the daemon's clock counts on, across restarts on the same boot."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from bftrainer.batch.clock import CLOCK_NAME, FAR_S, FOLLOWS, SteadyClock
from bftrainer.model.cluster import Job, JobState, Reservation, SchedulerCycle, Snapshot
from bftrainer.site.policy.calendar import next_blackout
from tests.support.snapshots import T0

HOUR_S, DAY_S, YEAR_S = 3600.0, 86_400.0, 365 * 86_400.0
JUMPS = [sign * by_s for by_s in (HOUR_S, DAY_S + 1, YEAR_S) for sign in (1, -1)]


class Host:
    """A host with a wall clock, which somebody sets, and a boot clock."""

    def __init__(self) -> None:
        self.wall_s, self.boot_s, self.boot_name = T0, 500.0, "boot-1"

    def pass_time(self, seconds: float) -> None:
        self.wall_s += seconds
        self.boot_s += seconds

    def clock(self) -> SteadyClock:
        return SteadyClock(lambda: self.wall_s, lambda: self.boot_s, self.boot_name)


@pytest.mark.parametrize("jump_s", JUMPS)
@pytest.mark.parametrize("restarts", ["none", "after", "during"])
def test_durations_go_on(tmp_path: Path, jump_s: float, restarts: str) -> None:
    host = Host()
    clock = host.clock()
    clock.keep_in(tmp_path / CLOCK_NAME)
    begun_s = clock()
    if restarts != "during":
        host.wall_s += jump_s
        host.pass_time(1.0)
        clock.look()
    if restarts != "none":
        host.wall_s += jump_s if restarts == "during" else 0.0  # while no daemon ran
        clock = host.clock()
        clock.keep_in(tmp_path / CLOCK_NAME)
    host.pass_time(100.0)
    passed_s = 100.0 if restarts == "during" else 101.0
    assert clock() - begun_s == pytest.approx(passed_s, rel=FOLLOWS, abs=1.0)


def test_a_wall_clock_that_is_corrected_is_followed_in_the_end() -> None:
    host = Host()
    clock = host.clock()
    host.wall_s -= HOUR_S
    host.pass_time(HOUR_S)
    assert clock.wall_ahead_s() == pytest.approx(-HOUR_S * (1 - FOLLOWS))
    host.pass_time(HOUR_S / FOLLOWS)
    assert clock() == pytest.approx(host.wall_s)
    assert clock.wall_ahead_s() == 0.0


def test_one_that_is_far_off_is_not_followed() -> None:
    host = Host()
    clock = host.clock()
    host.wall_s += YEAR_S
    host.pass_time(YEAR_S)
    assert clock() == pytest.approx(T0 + YEAR_S)
    assert clock.wall_ahead_s() == pytest.approx(YEAR_S)
    assert clock.calendar_ahead_s() == 0.0  # dates are not taken from such a clock


def test_after_a_reboot_wall_time_is_all_there_is(tmp_path: Path) -> None:
    host = Host()
    host.clock().keep_in(tmp_path / CLOCK_NAME)
    host.wall_s, host.boot_s, host.boot_name = T0 + YEAR_S, 10.0, "boot-2"
    clock = host.clock()
    clock.keep_in(tmp_path / CLOCK_NAME)
    assert clock() == T0 + YEAR_S
    assert clock.sentence() == ""


@pytest.mark.parametrize("jump_s", [YEAR_S, -YEAR_S, FAR_S + 1, -FAR_S - 1])
def test_a_jump_of_more_than_a_day_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, jump_s: float
) -> None:
    host = Host()
    clock = host.clock()
    clock.keep_in(tmp_path / CLOCK_NAME)
    host.wall_s += jump_s
    with caplog.at_level(logging.INFO, "bftrainer.daemon"):
        for _ in range(3):
            clock.look()
        assert [r.message[:9] for r in caplog.records] == ["BFT-1317:"]
        assert ("ahead of" if jump_s > 0 else "behind") in clock.sentence()
        host.wall_s -= jump_s
        clock.look()
        clock.look()
    assert [r.levelname for r in caplog.records] == ["WARNING", "INFO"]
    assert clock.sentence() == ""


def test_a_jump_of_an_hour_is_not_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    host = Host()
    clock = host.clock()
    clock.keep_in(tmp_path / CLOCK_NAME)
    host.wall_s += HOUR_S
    clock.look()
    assert not caplog.records


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b'{"boot_id": "boot-1"}',
        b'{"boot_id": "boot-1", "ahead_s": "soon"}',
        b'{"boot_id": "boot-1", "ahead_s": NaN}',
        b'{"boot_id": "boot-1", "ahead_s": 1e400}',
        b'{"boot_id": "boot-1", "ahead_s": ' + b"9" * 400 + b"}",
        b"[" * 500,
    ],
)
def test_a_damaged_file_is_as_none(tmp_path: Path, text: bytes) -> None:
    host, file = Host(), tmp_path / CLOCK_NAME
    file.write_bytes(text)
    clock = host.clock()
    clock.keep_in(file)
    assert clock() == T0
    again = host.clock()
    again.keep_in(file)  # it was replaced
    assert again() == T0


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    host, file, other = Host(), tmp_path / CLOCK_NAME, tmp_path / "other"
    other.write_text('{"boot_id": "boot-1", "ahead_s": 7.0}')
    file.symlink_to(other)
    clock = host.clock()
    clock.keep_in(file)
    assert clock() == T0
    assert other.read_text().endswith("7.0}")


# ---- other hosts' clocks ---------------------------------------------------------------


def _seen(at_s: float) -> Snapshot:
    job = Job(
        job_id="7",
        user="ada",
        partitions=("p",),
        state=JobState.RUNNING,
        n_nodes=1,
        time_limit_s=60.0,
        submit_s=at_s - 9,
        start_s=at_s - 5,
    )
    plan = Reservation(name="r", start_s=at_s + 60, end_s=at_s + 90, nodes=("n1",))
    cycle = SchedulerCycle(ended_s=at_s - 1, began_s=None)
    return Snapshot(taken_at_s=at_s, nodes=(), jobs=(job,), reservations=(plan,), cycle=cycle)


@pytest.mark.parametrize("off_s", [*JUMPS, 7.0, -7.0])
def test_times_of_a_batch_system_with_another_clock_are_read_by_ours(off_s: float) -> None:
    assert _seen(T0 + off_s).taken_between(T0, T0 + 2.0) == _seen(T0)


@pytest.mark.parametrize("off_s", [0.0, -0.9, 2.9])
def test_a_snapshot_of_our_clock_stays_the_same(off_s: float) -> None:
    seen = _seen(T0 + off_s)
    assert seen.taken_between(T0, T0 + 2.0) is seen


def test_what_was_not_read_stays_unread() -> None:
    lost = Snapshot(taken_at_s=T0 + YEAR_S, nodes=None, jobs=None, reservations=None)
    moved = lost.taken_between(T0, T0)
    assert (moved.taken_at_s, moved.jobs, moved.reservations, moved.cycle) == (T0, None, None, None)


def test_a_blackout_is_by_the_calendar_and_told_by_our_clock() -> None:
    windows, zone = ("daily 12:00-13:00",), "UTC"
    right = next_blackout(windows, zone, T0 + HOUR_S)
    ours = next_blackout(windows, zone, T0, HOUR_S)  # our clock is an hour behind the calendar
    assert right is not None
    assert ours is not None
    assert ours.begin_s - T0 == right.begin_s - (T0 + HOUR_S)
    assert ours.end_s - ours.begin_s == HOUR_S
