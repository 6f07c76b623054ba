"""What Slurm says that jobs ask for, from its recorded output; arrays written out."""

from __future__ import annotations

from pathlib import Path

import pytest

from bftrainer.hostlist import ParseError
from bftrainer.poll.snapshot import Job, JobState, NodeLeft, NodeState
from slurm_plugins import asked, parse
from slurm_plugins.arrays import MOST_TASKS, written_out

RECORDED = Path(__file__).parents[1] / "fixtures" / "slurm" / "22.05"


def text(name: str) -> str:
    return (RECORDED / f"{name}.txt").read_text()


@pytest.fixture(scope="module")
def jobs() -> dict[str, Job]:
    """All of the recorded queue, complete, by the words they were submitted with."""
    seen = parse.jobs(text("asks.squeue"))
    known = asked.AskedFor()
    assert known.lacks(seen)
    known.learn(seen, asked.rows(text("asks.asked")))
    assert not known.lacks(seen)
    config = parse.controller_config(text("config"))
    return {job.job_id: job for job in known.complete(seen, config)}


def only(jobs: dict[str, Job], **wanted: object) -> Job:
    found = [
        job
        for job in jobs.values()
        if job.state is JobState.PENDING
        and all(getattr(job, key) == value for key, value in wanted.items())
    ]
    assert len(found) == 1, [job.job_id for job in found]
    return found[0]


class TestRecorded:
    def test_a_range_of_nodes_and_excluded_ones(self, jobs: dict[str, Job]) -> None:
        job = only(jobs, excluded_nodes=("n2", "n3"))
        assert (job.n_nodes, job.n_nodes_max, job.can_share) == (1, 8, False)

    def test_memory_per_processor_and_per_node(self, jobs: dict[str, Job]) -> None:
        per_cpu = only(jobs, memory_per_cpu_mb=500)
        assert (per_cpu.memory_mb, per_cpu.cpus, per_cpu.can_share) == (0, 8, True)
        per_node = only(jobs, memory_mb=1024)
        assert (per_node.memory_per_cpu_mb, per_node.cpus) == (0, 8)
        several = only(jobs, memory_mb=1500)
        assert (several.n_nodes, several.n_nodes_max, several.cpus) == (3, None, 3)
        assert several.time_limit_min_s == 60.0

    def test_who_names_no_memory_has_all_and_shares_nothing(self, jobs: dict[str, Job]) -> None:
        job = only(jobs, cpus_per_node=3)
        assert (job.memory_mb, job.can_share) == (0, False)

    def test_gpus_however_they_are_asked_for(self, jobs: dict[str, Job]) -> None:
        assert only(jobs, gpus=6).gpus_per_node == 0
        assert only(jobs, gpus=4).cpus == 4  # one for each of four tasks
        assert only(jobs, gpus_per_node=3).n_nodes == 2

    def test_what_is_beyond_us_is_named(self, jobs: dict[str, Job]) -> None:
        assert only(jobs, unclear="contiguous nodes and few switches").n_nodes == 2

    def test_dependencies_that_are_not_fulfilled(self, jobs: dict[str, Job]) -> None:
        waiting = [job.waits_for for job in jobs.values() if job.waits_for]
        assert sum(words.startswith("afterany:") for words in waiting) == 2
        assert "singleton(unfulfilled)" in waiting

    def test_an_array_is_written_out_and_its_rest_waits(self, jobs: dict[str, Job]) -> None:
        tasks = {int(j.partition("_")[2]): job for j, job in jobs.items() if "_" in j}
        assert list(tasks) == list(range(0, 100, 3))
        waits = {k for k, job in tasks.items() if job.reason == "JobArrayTaskLimit"}
        assert set(tasks) - waits == {0, 3}
        assert all(job.n_nodes == 1 for job in tasks.values())

    def test_nodes_in_use_in_part(self) -> None:
        rows = {row.node.name: row.node for row in parse.node_rows(text("asks.sinfo"))}
        assert rows["n1"].state is NodeState.ALLOCATED
        assert rows["n1"].left == NodeLeft(cpus=3, memory_mb=3900, gpus=3)
        assert rows["n2"].left is None
        busy = {row.node.name: row.node for row in parse.node_rows(text("busy.sinfo"))}
        assert busy["n1"].left is None  # wholly in use

    def test_partitions(self) -> None:
        found = {row.partition: row.allows for row in parse.node_rows(text("idle.sinfo"))}
        assert found["batch"].time_limit_s == 86_400
        assert found["bf"].time_limit_s == 43_200
        assert (found["batch"].tier, found["bf"].tier) == (10, 1)
        assert found["batch"].can_start
        assert found["batch"].n_nodes_max is None
        assert not found["batch"].is_exclusive

    def test_how_nodes_are_shared(self) -> None:
        config = parse.controller_config(text("config"))
        assert config.are_nodes_shared
        assert config.is_memory_counted

    def test_a_cut_never_passes_for_less(self) -> None:
        whole = text("asks.asked")
        borders = {i + 1 for i, c in enumerate(whole) if whole[:i].endswith(parse.RECORD)}
        for length in range(1, len(whole)):
            if length not in borders:
                with pytest.raises(ParseError):
                    asked.rows(whole[:length])


def test_a_partition_that_starts_nothing() -> None:
    for word, can_start in (("up", True), ("drain", True), ("down", False), ("inact", False)):
        idle = text("idle.sinfo").replace(f"{parse.FIELD}up{parse.FIELD}", f"\x1f{word}\x1f")
        assert {row.allows.can_start for row in parse.node_rows(idle)} == {can_start}


def test_jobs_are_asked_about_once_and_again_when_their_limit_changes() -> None:
    seen = parse.jobs(text("busy.squeue"))
    known = asked.AskedFor()
    known.learn(seen, asked.rows(text("busy.asked")))
    assert not known.lacks(seen)
    array = [job for job in seen if job.job_id.startswith("4_")]
    assert not known.lacks(array[:1])  # the tasks of an array ask for the same
    parts = parse.jobs(text("busy.squeue").replace("5:00", "6:00"))
    assert known.lacks(parts)


def test_a_job_that_squeue_does_not_show_is_asked_about_once() -> None:
    seen = parse.jobs(text("busy.squeue"))
    known = asked.AskedFor()
    known.learn(seen, {})
    assert not known.lacks(seen)
    assert known.complete(seen, None) == seen


class TestArrays:
    def job(self, job_id: str, state: JobState = JobState.PENDING) -> Job:
        return Job(
            job_id=job_id,
            user="alice",
            partition="batch",
            state=state,
            n_nodes=1,
            time_limit_s=60.0,
            reason="Priority",
        )

    @pytest.mark.parametrize(
        ("tasks", "numbers"),
        [("[7]", [7]), ("[1-3]", [1, 2, 3]), ("[1,4-6]", [1, 4, 5, 6]), ("[0-9:4]", [0, 4, 8])],
    )
    def test_tasks(self, tasks: str, numbers: list[int]) -> None:
        found = written_out([self.job(f"12_{tasks}")])
        assert [job.job_id for job in found] == [f"12_{number}" for number in numbers]
        assert {job.reason for job in found} == {"Priority"}

    def test_tasks_that_run_count_against_what_may(self) -> None:
        runs = [self.job(f"12_{k}", JobState.RUNNING) for k in (1, 2)]
        other = self.job("13_1", JobState.RUNNING)
        found = written_out([self.job("12_[3-9%3]"), *runs, other])
        assert [job.job_id for job in found if job.reason == "JobArrayTaskLimit"] == [
            f"12_{k}" for k in range(4, 10)
        ]
        assert found[-3:] == (*runs, other)

    def test_a_huge_array_is_cut(self) -> None:
        assert len(written_out([self.job("12_[0-99999]")])) == MOST_TASKS

    @pytest.mark.parametrize("job_id", ["12_[]", "12_[a]", "12_[1", "[1]", "12_[1-2-3]", "x_[1]"])
    def test_garbage_is_refused(self, job_id: str) -> None:
        with pytest.raises(ParseError):
            written_out([self.job(job_id)])


@pytest.mark.parametrize(
    ("said", "megabytes"), [("0", 0), ("500M", 500), ("1.50G", 1536), ("2T", 2_097_152), ("7", 7)]
)
def test_amounts_of_memory(said: str, megabytes: int) -> None:
    assert parse.memory_mb_of(said) == megabytes


@pytest.mark.parametrize("said", ["", "M", "1.M", "-1", "1X", "1 G"])
def test_no_amounts_of_memory(said: str) -> None:
    with pytest.raises(ParseError):
        parse.memory_mb_of(said)
