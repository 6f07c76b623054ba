"""What Slurm says that jobs ask for, from its recorded output; arrays written out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bftrainer.batch.process import Completed
from bftrainer.model.cluster import Job, JobState, Node, NodeLeft, NodeState, Way
from bftrainer.model.hostlist import ParseError
from slurm_plugins import commands, job_requests, parse
from slurm_plugins.arrays import MOST_TASKS, Room, tasks_of, written_out
from slurm_plugins.commands import SlurmCommands
from slurm_plugins.snapshot import SnapshotReader

RECORDED = Path(__file__).parents[2] / "fixtures" / "slurm"
VERSIONS = sorted(path.name for path in RECORDED.iterdir() if path.name[0].isdigit())


def text(name: str, version: str = "22.05") -> str:
    return (RECORDED / version / f"{name}.txt").read_text()


@pytest.fixture(scope="module", params=VERSIONS)
def jobs(request: pytest.FixtureRequest) -> dict[str, Job]:
    """All of the recorded queue, complete, by the words they were submitted with."""
    version = str(request.param)
    seen = parse.jobs(text("asks.squeue", version))
    known = job_requests.AskedFor()
    assert known.lacks(seen)
    known.learn(seen, job_requests.rows(text("asks.asked", version), version))
    assert not known.lacks(seen)
    config = parse.controller_config(text("config", version))
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
        # Whose nodes nobody counted: 26.05 prints the number of tasks as the most.
        assert max(per_cpu.n_nodes or 0, per_cpu.n_nodes_max or 0) == 2
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

    def test_what_is_preferred_to_what_is_required(self, jobs: dict[str, Job]) -> None:
        job = only(jobs, prefers=(Way(everywhere=("fast", "|", "near")),))
        assert job.wants == (Way(everywhere=("slow",)),)
        assert (job.n_nodes, job.unclear) == (2, "")

    def test_dependencies_that_are_not_fulfilled(self, jobs: dict[str, Job]) -> None:
        waiting = [job.waits_for for job in jobs.values() if job.waits_for]
        assert sum(words.startswith("afterany:") for words in waiting) == 2
        assert "singleton(unfulfilled)" in waiting

    def test_an_array_is_one_row(self, jobs: dict[str, Job]) -> None:
        [array] = [job_id for job_id in jobs if "[" in job_id]
        tasks = tasks_of(array)
        assert tasks is not None
        assert (list(*tasks.ranges), tasks.at_once) == (list(range(0, 100, 3)), 2)

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
                    job_requests.rows(whole[:length])


def test_a_partition_that_starts_nothing() -> None:
    for word, can_start in (("up", True), ("drain", True), ("down", False), ("inact", False)):
        idle = text("idle.sinfo").replace(f"{parse.FIELD}up{parse.FIELD}", f"\x1f{word}\x1f")
        assert {row.allows.can_start for row in parse.node_rows(idle)} == {can_start}


def test_jobs_are_asked_about_once_and_again_when_their_limit_changes() -> None:
    seen = parse.jobs(text("busy.squeue"))
    known = job_requests.AskedFor()
    known.learn(seen, job_requests.rows(text("busy.asked")))
    assert not known.lacks(seen)
    [array] = [job for job in seen if job.job_id.startswith("4_")]
    assert not known.lacks([replace(array, job_id="4_1")])  # its tasks ask for the same
    parts = parse.jobs(text("busy.squeue").replace("5:00", "6:00"))
    assert known.lacks(parts)


def test_a_job_that_squeue_does_not_show_is_asked_about_once() -> None:
    seen = parse.jobs(text("busy.squeue"))
    known = job_requests.AskedFor()
    known.learn(seen, {})
    assert known.pop_departed(seen), "they may have begun in between: the queue is read again"
    assert not known.pop_departed(seen), "Slurm does not show them"
    assert not known.lacks(seen)
    assert known.complete(seen, None) == seen


@pytest.mark.parametrize("is_gone", [False, True], ids=["it runs", "all have left"])
def test_a_job_that_starts_while_the_queue_is_read_is_not_shown_as_one_that_waits(
    *, is_gone: bool
) -> None:
    """Without its request it would seem to want all of its node, which was given back for it."""
    queue = text("busy.squeue")
    begun = queue.replace(f"PENDING{parse.FIELD}Resources", f"RUNNING{parse.FIELD}None")
    assert begun != queue
    answers = {
        commands.SINFO: [text("busy.sinfo")],
        commands.SQUEUE: [queue, "" if is_gone else begun],
        commands.CONFIG: [text("config")],
        commands.VERSION: [text("version")],
        commands.SDIAG: [text("busy.sdiag")],
    }
    slurm, n_asked = SlurmCommands(), Counter[tuple[str, ...]]()

    def query(argv: Sequence[str]) -> Completed:
        n_asked[tuple(argv)] += 1
        texts = answers.get(tuple(argv), [""])
        return Completed(
            argv=tuple(argv),
            returncode=0,
            stdout=texts[min(n_asked[tuple(argv)], len(texts)) - 1],
            stderr="",
            wall_s=0.0,
            timed_out=False,
        )

    slurm.query = query  # type: ignore[method-assign]
    reader = SnapshotReader(
        commands=slurm,
        user="nobody here",
        pilot_partition="bf",
        partition=None,
        reservations_interval_s=60.0,
    )
    jobs = reader.read().jobs
    assert jobs is not None
    states = {job.job_id: job.state for job in jobs}
    assert states.get("3") is (None if is_gone else JobState.RUNNING)
    assert n_asked[commands.SQUEUE] == 2
    reader.read()
    assert n_asked[commands.SQUEUE] == 3, "once is enough"


class TestArrays:
    def job(self, job_id: str, state: JobState = JobState.PENDING, **changes: Any) -> Job:
        job = Job(
            job_id=job_id,
            user="alice",
            partitions=("batch",),
            state=state,
            n_nodes=1,
            time_limit_s=60.0,
            reason="Priority",
        )
        return replace(job, **changes)

    def room(self, **changes: Any) -> Room:
        """Of six nodes three are free or ours, and half of two others is left."""
        states = {NodeState.IDLE: 2, NodeState.ALLOCATED: 3, NodeState.DOWN: 1}
        nodes = [
            Node(name=f"n{k}", state=state, cpus=8, gpus=4, partitions=("batch", "bf"))
            for k, state in enumerate([s for s, count in states.items() for _ in range(count)])
        ]
        for k in (3, 4):
            nodes[k] = replace(nodes[k], left=NodeLeft(cpus=4, gpus=2))
        ours = self.job("9", JobState.RUNNING, nodes=("n2",), pilot_id="p1")
        return Room.of([replace(node, **changes) for node in nodes], [ours])

    def written(self, *jobs: Job, n_planned: int = 2) -> list[Job]:
        return list(written_out(jobs, self.room(), n_planned))

    @pytest.mark.parametrize(
        ("tasks", "numbers"),
        [("[7]", [7]), ("[1-3]", [1, 2, 3]), ("[1,4-6]", [1, 4, 5, 6]), ("[0-9:4]", [0, 4, 8])],
    )
    def test_tasks(self, tasks: str, numbers: list[int]) -> None:
        found = self.written(self.job(f"12_{tasks}"))
        assert [job.job_id for job in found] == [f"12_{number}" for number in numbers]
        assert {job.reason for job in found} == {"Priority"}
        assert {job.n_more_tasks for job in found} == {0}

    @pytest.mark.parametrize(
        ("changes", "n_places"),
        [
            ({}, 3),
            ({"n_nodes": 2}, 1),
            ({"partitions": ("debug",)}, 0),
            ({"partitions": ("debug", "batch")}, 3),
            ({"can_share": True, "cpus": 2}, 3 * 4 + 2 * 2),
            ({"can_share": True, "cpus": 2, "gpus": 2}, 3 * 2 + 2 * 1),
            ({"can_share": True, "cpus": 6, "n_nodes": 2}, (3 * 2 + 2 * 1) // 2),
            ({"is_entitled": False}, -1),
        ],
        ids=str,
    )
    def test_so_many_as_could_start_and_as_backfill_plans(
        self, changes: dict[str, Any], n_places: int
    ) -> None:
        found = self.written(self.job("12_[0-99]", **changes))
        assert len(found) == n_places + 2
        assert [job.n_more_tasks for job in found] == [0] * (n_places + 1) + [98 - n_places]

    def test_tasks_that_run_count_against_what_may(self) -> None:
        runs = [self.job(f"12_{k}", JobState.RUNNING) for k in (1, 2)]
        other = self.job("13_1", JobState.RUNNING)
        for at_once, expected, is_entitled in ((3, ["12_3"], True), (2, ["12_3"], False)):
            found = self.written(self.job(f"12_[3-9%{at_once}]"), *runs, other)
            assert [job.job_id for job in found[:-3]] == expected
            assert found[0].n_more_tasks == 6
            assert found[0].is_entitled is is_entitled
            assert (found[0].reason == "JobArrayTaskLimit") is not is_entitled
            assert found[-3:] == [*runs, other]

    def test_a_huge_array_costs_no_more_than_a_small_one(self) -> None:
        job = self.job("12_[0-999999999]", can_share=True, cpus=1)
        found = written_out([job], self.room(cpus=1_000_000), 2)
        assert len(found) == MOST_TASKS
        assert found[-1].n_more_tasks == 1_000_000_000 - MOST_TASKS

    @pytest.mark.parametrize("job_id", ["12_[]", "12_[a]", "12_[1", "[1]", "12_[1-2-3]", "x_[1]"])
    def test_garbage_is_refused(self, job_id: str) -> None:
        with pytest.raises(ParseError):
            tasks_of(job_id)
        seen = text("busy.squeue").replace("4_[1-5%2]", job_id)
        if not job_id[0].isdigit():
            with pytest.raises(ParseError):
                parse.jobs(seen)
            return
        (odd,) = [job for job in parse.jobs(seen) if "tasks" in job.unclear]
        assert odd.job_id == "12"  # as a job of its own


@pytest.mark.parametrize(
    ("said", "megabytes"), [("0", 0), ("500M", 500), ("1.50G", 1536), ("2T", 2_097_152), ("7", 7)]
)
def test_amounts_of_memory(said: str, megabytes: int) -> None:
    assert parse.memory_mb_of(said) == megabytes


@pytest.mark.parametrize("said", ["", "M", "1.M", "-1", "1X", "1 G"])
def test_no_amounts_of_memory(said: str) -> None:
    with pytest.raises(ParseError):
        parse.memory_mb_of(said)
