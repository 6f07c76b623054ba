"""Records of lsb.events: recorded ones, IBM's order, what users write in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftrainer.batch.announcer import Announcement, UnseenAnnouncements
from bftrainer.model.cluster import Job
from bftrainer.model.hostlist import ParseError
from lsf_adapters.notifications import records
from lsf_adapters.notifications.records import EarlierRecords, announcement, announcements
from tests.support.lsf_events import PILOTS, QUEUE, job_new, job_start, job_status, record
from tests.support.snapshots import T0, node, snapshot

RECORDED = Path(__file__).parents[2] / "fixtures" / "lsf" / "lsb.events.volclava-2.2"
SLOTS = {f"n{i:03}": 4 for i in range(1, 5)}
A_LOOK = Announcement(at_s=T0, partition="")


@pytest.fixture
def earlier() -> EarlierRecords:
    return EarlierRecords(pilot_queue=PILOTS)


def job(line: str) -> Job:
    said = announcement(line, EarlierRecords(pilot_queue=PILOTS), SLOTS)
    assert said is not None
    assert said.job is not None
    return said.job


def all_of(lines: Iterable[str], earlier: EarlierRecords) -> list[Announcement]:
    """Each in a read of its own."""
    return [said for line in lines for said in announcements([line], earlier, SLOTS)]


class TestRecorded:
    def test_each_record_says_what_it_said_on_a_real_cluster(self, earlier: EarlierRecords) -> None:
        said = all_of(RECORDED.read_text(encoding="utf-8").splitlines(), earlier)
        jobs = [one.job.job_id for one in said if one.job]
        ends = [(one.at_s, one.nodes) for one in said if one.nodes]
        looks = [one.at_s for one in said if not (one.job or one.nodes)]
        assert jobs == ["announced-22", "announced-23"]
        assert ends == [(1795338543.0, ("n004", "n003")), (1795338560.0, ("n003",))]
        # Ends of jobs that started before, and hosts and queues opened and closed.
        began = [1795338532.0, 1795338536.0, 1795338542.0, 1795338542.0, 1795338559.0]
        assert looks == began + 4 * [1795338565.0]

    def test_a_recorded_job(self) -> None:
        (line,) = (one for one in RECORDED.read_text().splitlines() if '"ev job"' in one)
        found = job(line)
        assert (found.user, found.partitions) == ("alice", ("normal",))
        assert (found.n_nodes, found.cpus, found.cpus_per_node) == (2, 2, 1)
        assert found.time_limit_s == 180.0, "written as 18000 of a host of factor 100"
        assert found.submit_s == 1795338531.0
        assert found.is_entitled

    def test_a_recorded_exclusive_job_with_a_host(self) -> None:
        (line,) = (one for one in RECORDED.read_text().splitlines() if '"sleep 300"' in one)
        found = job(line)
        assert (found.required_nodes, found.can_share) == (("n003",), False)
        assert found.time_limit_s is None


class TestSubmitted:
    def test_the_default_of_everything(self) -> None:
        found = job(job_new())
        assert (found.job_id, found.user, found.partitions) == ("announced-7", "ada", (QUEUE,))
        assert (found.n_nodes, found.cpus, found.submit_s) == (1, 1, T0)
        assert found.is_entitled

    @pytest.mark.parametrize(
        ("slots", "resources", "n_nodes"),
        [
            (8, "", 2),
            (9, "", 3),
            (8, "select[mem>1] span[ptile=2]", 4),
            (8, "span[hosts=1]", 1),
        ],
    )
    def test_slots_become_nodes(self, slots: int, resources: str, n_nodes: int) -> None:
        assert job(job_new(slots=slots, resources=resources)).n_nodes == n_nodes

    @pytest.mark.parametrize(
        ("hosts", "required"),
        [
            (("n001", "n002"), ("n001", "n002")),
            (("n001+2", "n002!"), ("n001", "n002")),
            (("n001", "n002", "n003"), ()),
            (("group",), ()),
        ],
    )
    def test_asked_hosts(self, hosts: tuple[str, ...], required: tuple[str, ...]) -> None:
        assert job(job_new(slots=8, hosts=hosts)).required_nodes == required

    def test_a_limit_is_in_seconds_of_any_host(self) -> None:
        assert job(job_new(run_limit=6000, factor=60.0)).time_limit_s == 100.0
        assert job(job_new(run_limit=300, factor=0.0)).time_limit_s == 300.0

    @pytest.mark.parametrize(
        "line",
        [
            job_new(options2=0x1411),
            job_new(dependency='ended("a ""b""")'),
            job_new(begin_s=int(T0) + 60),
        ],
        ids=["held", "dependency", "begin"],
    )
    def test_a_job_that_cannot_start_yet_is_not_entitled(self, line: str) -> None:
        found = job(line)
        assert not found.is_entitled
        assert found.reason

    def test_a_begin_in_the_past_is_none(self) -> None:
        found = job(job_new(begin_s=int(T0) - 60))
        assert (found.is_entitled, found.begin_s) == (True, None)

    def test_optional_fields_do_not_shift_the_others(self) -> None:
        """Held is said by a field behind all of them."""
        line = job_new(
            before=('pre "x"', "post"),
            copies=[("a", "b c", 1), ('"', "", 2)],
            nios_port=4711,
            name='x" 1 2 "',
            options2=1,
        )
        assert not job(line).is_entitled
        assert job(line.replace(" 1 0 ", " 0 0 ")).is_entitled

    def test_of_an_array_one_job_is_announced(self, earlier: EarlierRecords) -> None:
        lines = [job_new(7, name="many[1-100]"), job_start(7, ["n001"], index=1)]
        assert [said.job is not None for said in all_of(lines, earlier)] == [True]
        end = job_status(7, 0x40, index=1)
        assert all_of([end], earlier) == [dataclasses.replace(A_LOOK, nodes=("n001",))]

    def test_our_own_jobs_are_no_news(self, earlier: EarlierRecords) -> None:
        lines = [
            job_new(8, queue=PILOTS),
            job_start(8, ["n001"]),
            job_status(8, 0x20),
            job_status(8, 0x120),
        ]
        assert all_of(lines, earlier) == []

    def test_what_a_new_file_repeats_is_no_news(self, earlier: EarlierRecords) -> None:
        assert len(all_of([job_new(7), job_new(8, at_s=T0 + 100.0)], earlier)) == 2
        assert all_of([job_new(7), job_new(8, at_s=T0 + 100.0), job_new(3)], earlier) == []
        assert len(all_of([job_new(7, at_s=T0 + 200.0)], earlier)) == 1, "ids are used again"

    def test_a_poll_replaces_it(self) -> None:
        said = announcement(job_new(7), EarlierRecords(pilot_queue=PILOTS), SLOTS)
        assert said is not None
        unseen = UnseenAnnouncements(lambda: 10.0)
        unseen.hear((said,))
        known = unseen.add_to(snapshot([node("n001")], []))
        assert [one.job_id for one in known.jobs or ()] == ["announced-7"]
        assert said.job is not None
        shown = dataclasses.replace(said.job, job_id="7", family="")
        assert said.job.counts_as == shown.counts_as
        unseen.add_to(snapshot([node("n001")], [shown]), 9.99)
        assert not unseen.is_unshown


class TestEnded:
    def test_an_end_names_the_nodes_once(self, earlier: EarlierRecords) -> None:
        lines = [job_start(7, ["2*n001", "n002", "n002"]), job_status(7, 0x40, at_s=T0 + 9.0)]
        (said,) = all_of(lines, earlier)
        assert (said.at_s, said.nodes) == (T0 + 9.0, ("n001", "n002"))
        assert all_of([job_status(7, 0x140)], earlier) == [], "its post-processing ended"

    def test_an_end_of_who_started_before_is_a_look(self, earlier: EarlierRecords) -> None:
        assert all_of([job_status(7, 0x20)], earlier) == [A_LOOK]

    def test_a_job_that_waits_again_is_a_look(self, earlier: EarlierRecords) -> None:
        assert all_of([job_start(7, ["n001"]), job_status(7, 0x1)], earlier) == [A_LOOK]
        assert all_of([job_status(7, 0x40)], earlier) == [A_LOOK], "it runs nowhere any more"

    @pytest.mark.parametrize("status", [0x4, 0x8, 0x10, 0x10000])
    def test_running_and_suspended_jobs_are_no_news(
        self, earlier: EarlierRecords, status: int
    ) -> None:
        assert all_of([job_start(7, ["n001"]), job_status(7, status)], earlier) == []
        assert earlier.ended((7, 0)) == ("n001",)

    def test_what_is_remembered_is_bounded(
        self, earlier: EarlierRecords, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(records, "MOST_JOBS", 5)
        monkeypatch.setattr(records, "MOST_NAMES", 6)
        for job_id in range(1, 21):
            hosts = ["n001", "n002"]
            all_of([job_new(job_id), job_new(job_id + 100, queue=PILOTS)], earlier)
            all_of([job_start(job_id, hosts)], earlier)
        assert (len(earlier.new), len(earlier.pilots)) == (5, 5)
        assert (len(earlier.started), earlier.n_names) == (3, 6)
        assert [one.nodes for one in all_of([job_status(20, 0x40)], earlier)] == [("n001", "n002")]
        assert earlier.n_names == 4


class TestMisfits:
    @pytest.mark.parametrize("kind", ["JOB_MODIFY2", "JOB_SWITCH", "HOST_CTRL", "QUEUE_CTRL"])
    def test_a_change_is_a_look(self, earlier: EarlierRecords, kind: str) -> None:
        assert all_of([record(kind, T0, 1, "x")], earlier) == [A_LOOK]

    @pytest.mark.parametrize(
        "line",
        [
            "",
            "# 4711",
            '"JOB_NEW"',
            "JOB_NEW 10.1 1 7",
            '"JOB_NEW" "10.1" x 7',
            record("JOB_EXECUTE", T0, 7, 1000),
            record("LOAD_INDEX", T0, 2, "r15s", "ut"),
            "x" + job_new(),
        ],
    )
    def test_other_lines_are_no_news(self, earlier: EarlierRecords, line: str) -> None:
        assert announcements([line], earlier, SLOTS) == ()

    @pytest.mark.parametrize("cut", range(30, 275, 7))
    def test_a_torn_record_is_never_a_job(self, earlier: EarlierRecords, cut: int) -> None:
        line = job_new(slots=2, hosts=("n001",))
        assert cut < line.index(" 5136 0") + 6
        with pytest.raises(ParseError):
            announcement(line[:cut], earlier, SLOTS)

    @pytest.mark.parametrize("number", ["9" * 400, "-1", "1e9", "NaN", '"1"', "", "1.5", "٣"])
    def test_odd_numbers_of_slots(self, earlier: EarlierRecords, number: str) -> None:
        line = job_new(slots=7, slots_max=8).replace(" 7 1", f" {number} 1", 1)
        assert number in line
        with pytest.raises(ParseError):
            announcement(line, earlier, SLOTS)

    def test_a_user_who_ends_his_record_early_forges_none(self, earlier: EarlierRecords) -> None:
        """Names of files to copy are written without doubling their quotes (volclava 2.2)."""
        forged = job_new(9, user="eve's victim")
        torn = job_new(8, copies=[("FILE", "x", 1)]).split("FILE")[0]
        said = announcements([job_new(7), torn, forged], earlier, SLOTS)
        assert said == (dataclasses.replace(A_LOOK, at_s=0.0),)

    def test_of_many_changes_one_look_is_wanted(self, earlier: EarlierRecords) -> None:
        lines = [record("HOST_CTRL", T0, 1, "n001")] * 50 + [job_new(7)]
        said = announcements(lines, earlier, SLOTS)
        assert [one.job is not None for one in said] == [True, False]


TEXT = st.text(st.characters(blacklist_characters="\n", blacklist_categories=["Cs"]), max_size=30)


@settings(max_examples=60)
@given(
    user=TEXT, queue=TEXT, name=TEXT, cwd=TEXT, hosts=st.lists(TEXT, max_size=3), held=st.booleans()
)
def test_whatever_is_written_is_read(
    *, user: str, queue: str, name: str, cwd: str, hosts: list[str], held: bool
) -> None:
    line = job_new(
        *(11,), user=user, queue=queue, name=name, cwd=cwd, hosts=hosts, options2=0x10 | held
    )
    said = announcement(line, EarlierRecords(pilot_queue="pilots of nobody's queue......."), SLOTS)
    assert said is not None
    assert said.job is not None
    assert (said.job.user, said.job.partitions, said.job.is_entitled) == (user, (queue,), not held)
