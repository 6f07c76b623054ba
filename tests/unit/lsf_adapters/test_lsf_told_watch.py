"""lsb.events: who may write it, what is read of it, and how a switch is survived."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.batch import directory_watch
from bftrainer.batch.announcer import Announcement
from bftrainer.batch.directory_watch import FileChanged, Inotify, Looking, is_local, notice_for
from bftrainer.batch.tail import MOST_BYTES
from lsf_adapters.notifications.watch import EventsFile, news_begin
from tests.support.lsf_events import PILOTS, job_new, job_start, job_status
from tests.support.waiting import wait_for

ME = os.getuid()
NOBODY = 65534
needs_root = pytest.mark.skipif(ME != 0, reason="only root can give a file away")
A_LOOK_IS_WANTED = Announcement(at_s=0.0, partition="")
HEADER = "#                                     \n"


def looking(path: Path) -> Looking:
    """As on a remote file system."""
    return Looking(FileChanged(path), every_s=0.01)


def told(path: Path, *records: str) -> None:
    with path.open("a") as file:
        file.writelines(f"{record}\n" for record in records)


def switch(path: Path, *living: str) -> None:
    """Put a new file in its place, as mbatchd does (volclava 2.2): old ones are kept."""
    fresh = path.with_name("lsb.events.tmp")
    history = "".join(f"{record}\n" for record in living)
    position = f"#{len(HEADER) + len(history.encode())}".encode()
    fresh.write_bytes(position + HEADER.encode()[len(position) :] + history.encode())
    fresh.chmod(0o644)
    path.with_name("lsb.events.1").unlink(missing_ok=True)
    path.with_name("lsb.events.1").hardlink_to(path)
    fresh.rename(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """What mbatchd has made."""
    directory = tmp_path / "logdir"
    directory.mkdir(mode=0o755)
    file = directory / "lsb.events"
    file.write_text(HEADER + job_new(1) + "\n")
    file.chmod(0o644)
    return file


@pytest.fixture(params=[Inotify, looking], ids=["inotify", "remote"])
def file(path: Path, request: pytest.FixtureRequest) -> Iterator[EventsFile]:
    make = request.param
    opened = EventsFile(
        path,
        PILOTS,
        owner_uid=ME,
        slots_of=lambda: {"n1": 4},
        notice=(lambda path: make(path.parent)) if make is Inotify else make,
    )
    yield opened
    opened.close()


def read(file: EventsFile, timeout_s: float = 20.0) -> list[str]:
    """Wait until somebody is woken for something; return ids and nodes."""
    found: list[str] = []

    def is_there() -> bool:
        ready, _, _ = select.select([file], [], [], timeout_s)
        assert ready, "nobody was woken"
        found.extend(said.job.job_id if said.job else " ".join(said.nodes) for said in file.read())
        return bool(found)

    wait_for(is_there, timeout_s=timeout_s, interval_s=0.0)
    return found


class TestRead:
    def test_records_come_out_once_they_are_whole(self, path: Path, file: EventsFile) -> None:
        half, rest = job_new(3)[:99], job_new(3)[99:]
        with path.open("a") as stream:
            stream.write(f"{job_new(2)}\n{half}")
        assert read(file) == ["announced-2"]
        told(path, rest)
        assert read(file) == ["announced-3"]
        assert file.read() == ()

    def test_what_another_process_appends(self, path: Path, file: EventsFile) -> None:
        writer = "import sys; open(sys.argv[1], 'a').write(sys.argv[2] + '\\n')"
        for record in (job_new(2, slots=8), job_start(2, ["n1"]), job_status(2, 0x40)):
            argv = [sys.executable, "-S", "-c", writer, str(path), record]
            subprocess.run(argv, check=True, timeout=60)
        found = read(file)
        if len(found) == 1:
            found += read(file)
        assert found == ["announced-2", "n1"]

    def test_slots_per_node_are_those_of_now(self, path: Path, file: EventsFile) -> None:
        told(path, job_new(2, slots=8))
        (said,) = wait_for(file.read)
        assert said.job is not None
        assert said.job.n_nodes == 2

    def test_a_switch_loses_nothing_and_repeats_nothing(self, path: Path, file: EventsFile) -> None:
        found: list[str] = []
        for number in range(10, 40, 3):
            with path.open("a") as late:
                told(path, job_new(number))
                switch(path, job_new(1), job_new(number))
                late.write(job_new(number + 1) + "\n")
            told(path, job_new(number + 2))
            while len(found) < number - 10 + 3:
                found += read(file)
        assert found == [f"announced-{number}" for number in range(10, 40)]

    @pytest.mark.parametrize("position", [4, 80, 10**9])
    def test_a_new_file_whose_header_is_wrong_is_read_from_its_begin(
        self, path: Path, file: EventsFile, position: int
    ) -> None:
        fresh = path.with_name("lsb.events.tmp")
        fresh.write_text(f"#{position}\n{job_new(2)}\n{'x' * (position == 10**9)}")
        fresh.chmod(0o644)
        fresh.rename(path)
        assert read(file) == ["announced-2"]

    def test_a_file_that_was_cut_is_read_from_its_begin(self, path: Path, file: EventsFile) -> None:
        told(path, job_new(2))
        assert read(file) == ["announced-2"]
        os.truncate(path, 0)
        told(path, job_new(3))
        assert read(file) == ["announced-3"]

    def test_of_more_than_can_be_read_at_once_a_look_is_wanted(
        self, path: Path, file: EventsFile
    ) -> None:
        half, rest = job_new(3)[:150], job_new(3)[150:]
        with path.open("a") as stream:
            stream.write(f"{job_new(2)}\n" * (MOST_BYTES // 200) + half)
        assert file.read() == (A_LOOK_IS_WANTED,)
        told(path, rest, job_new(4))
        job, look = file.read()
        assert (job.job and job.job.job_id, look) == ("announced-4", A_LOOK_IS_WANTED)

    def test_a_quote_without_end_costs_announcements_not_polls(
        self, path: Path, file: EventsFile
    ) -> None:
        """bsub -f 'a"b > c', as volclava writes it."""
        told(path, job_new(2, copies=[("a'b", "c", 2)]).replace("'", '"'), job_new(3))
        assert file.read() == (A_LOOK_IS_WANTED,)
        told(path, job_new(4))
        assert file.read() == (A_LOOK_IS_WANTED,)

    def test_any_bytes_are_survived(self, path: Path, file: EventsFile) -> None:
        with path.open("ab") as stream:
            stream.write(bytes(range(256)).replace(b'"', b"") * 20 + b"\n\xff\xfe\0\n")
        told(path, job_new(2))
        assert read(file) == ["announced-2"]

    def test_our_own_jobs_are_no_news(self, path: Path, file: EventsFile) -> None:
        told(path, job_new(2, queue=PILOTS), job_new(3))
        assert read(file) == ["announced-3"]

    @pytest.mark.parametrize(
        ("head", "at"),
        [(b"#4711   \n", 4711), (b"# 4711\n", 4711), (b"#\n", 0), (b'"JOB_NEW"', 0), (b"", 0)],
    )
    def test_where_news_begin(self, head: bytes, at: int) -> None:
        assert news_begin(head) == at

    def test_nothing_is_left_after_closing(self, path: Path) -> None:
        def used() -> tuple[int, int]:
            return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

        before = used()
        for notice in (looking, notice_for):
            file = EventsFile(path, PILOTS, notice=notice)
            assert used() > before
            file.close()
            file.close()
        assert used() == before


class TestNotice:
    def test_a_remote_directory_is_looked_at(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(directory_watch, "_LOCAL", frozenset())
        assert not is_local(path.parent)
        notice = notice_for(path)
        assert isinstance(notice, Looking)
        notice.close()

    def test_a_local_one_is_watched(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(directory_watch, "is_local", lambda _path: True)
        notice = notice_for(path)
        assert isinstance(notice, Inotify)
        notice.close()

    def test_proc_is_not_taken_for_a_local_disk(self) -> None:
        assert not is_local(Path("/proc"))
        with pytest.raises(FileNotFoundError):
            is_local(Path("/none"))

    def test_a_look_that_fails_is_the_readers_problem(self) -> None:
        def fails() -> bool:
            raise PermissionError("no")

        notice = Looking(fails, every_s=0.01)
        for _ in range(2):
            ready, _, _ = select.select([notice], [], [], 20.0)
            assert ready
            with pytest.raises(PermissionError, match="no"):
                notice.clear()
        notice.close()

    def test_a_file_server_that_does_not_answer_delays_nobody(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(directory_watch, "_JOIN_S", 0.01)
        answers, has_asked = threading.Event(), threading.Event()

        def hangs() -> bool:
            has_asked.set()
            return answers.wait(60.0)

        notice = Looking(hangs, every_s=0.01)
        assert has_asked.wait(20.0)
        notice.close()
        fd = os.open("/dev/null", os.O_RDONLY)  # perhaps under the number of the closed one
        answers.set()
        wait_for(lambda: not notice._thread.is_alive())
        os.close(fd)
