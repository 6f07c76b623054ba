"""What a line of Slurm's scripts says; and jobs no look has shown yet."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftrainer.batch.announcer import UNSEEN_S, Announcement, UnseenAnnouncements
from bftrainer.batch.process import Completed, run
from bftrainer.model.cluster import Job, JobState, Node, NodeState, Snapshot
from slurm_plugins.fields import ways_of
from slurm_plugins.hook import scripts
from slurm_plugins.hook.lines import announcement
from slurm_plugins.hook.squeue_row import ClusterFacts
from tests.support.snapshots import T0, running


def submit(**changes: str) -> str:
    fields = {
        "kind": "submit", "at": "1000", "uid": "0", "partition": "batch", "nodes": "4",
        "tasks": "", "cpus_per_task": "", "cpus": "", "minutes": "10", "features": "",
        "required": "", "gres": "", "immediate": "0", "begin": "", "dependency": "",
        "priority": "",
    }  # fmt: skip
    return "\t".join({**fields, **changes}.values())


FORGED = f"n1\n{submit()}"


@pytest.mark.parametrize("shell", [("/bin/sh",), ("/bin/bash", "--posix")])
@pytest.mark.parametrize("name", ["SLURM_JOB_NODELIST", "SLURM_JOB_PARTITION", "SLURM_JOB_ID"])
@pytest.mark.parametrize("value", [FORGED, "batch\tn1", "a\rb", "a\x7fb"])
def test_no_variable_of_a_job_writes_another_line(
    tmp_path: Path, shell: tuple[str, ...], name: str, value: str
) -> None:
    """Seen failing before: a second line, of a job that root submitted."""
    done = _epilog(tmp_path, shell, **{name: value})
    assert (done.returncode, done.stderr) == (0, "")
    first, line = (tmp_path / "told").read_text().splitlines()
    said = announcement(line, 1)
    assert (first, said and said.job, said and said.nodes) == (scripts.FIRST_LINE, None, ())


@pytest.mark.parametrize("shell", [("/bin/sh",), ("/bin/bash", "--posix")])
def test_the_epilog_runs_nothing_that_the_environment_names(
    tmp_path: Path, shell: tuple[str, ...]
) -> None:
    """PATH was seen failing before.

    The rest passes: a shell called sh, or of mode posix, reads neither BASH_ENV nor ENV, and dates
    are digits in every locale.
    """
    ran, programs = tmp_path / "ran", tmp_path / "programs"
    programs.mkdir()
    for called in ("date", "wc", "mv", "dd", "profile"):
        program = programs / called
        program.write_text(f"#!/bin/sh\necho {called} >>{ran}\n")
        program.chmod(0o755)
    profile = str(programs / "profile")
    hostile = {
        "PATH": str(programs),
        "BASH_ENV": profile,
        "ENV": profile,
        "IFS": "\t0",
        "CDPATH": "/",
        "LC_ALL": "tr_TR.UTF-8",
        "LANG": "ar_EG",
        "POSIXLY_CORRECT": "1",
        "TZ": profile,
    }
    done = _epilog(tmp_path, shell, **hostile)
    assert done.is_ok
    assert not ran.exists()
    said = announcement((tmp_path / "told").read_text().splitlines()[1], 1)
    assert said is not None
    assert (said.partition, said.nodes) == ("batch", ("n1", "n2"))


def _epilog(base: Path, shell: tuple[str, ...], **changed: str) -> Completed:
    """Run the epilog as slurmctld would for a job of two nodes."""
    told, script = base / "told", base / "epilog"
    told.write_text(f"{scripts.FIRST_LINE}\n")
    script.write_text(scripts.epilog(told))
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_PARTITION": "batch", "SLURM_JOB_NODELIST": "n[1-2]"}
    return run((*shell, str(script)), timeout_s=30, env={**job, **changed})


class TestLines:
    def test_a_submitted_job(self) -> None:
        line = submit(features="a&b", required="n[1-2]", gres="gres:gpu:2")
        said = announcement(line, 7)
        assert said is not None
        assert said.job == Job(
            job_id="announced-7",
            user="root",
            partitions=("batch",),
            state=JobState.PENDING,
            n_nodes=4,
            time_limit_s=600.0,
            submit_s=1000.0,
            required_nodes=("n1", "n2"),
            wants=ways_of("a&b"),
            gpus_per_node=2,
        )

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"nodes": "", "tasks": "8"}, 2),
            ({"nodes": "", "tasks": "3", "cpus_per_task": "3"}, 3),
            ({"nodes": "", "cpus": "5"}, 2),
            ({"nodes": ""}, 1),
            ({"nodes": "3", "tasks": "1000"}, 3),
        ],
    )
    def test_processors_asked_for_become_nodes(
        self, changes: dict[str, str], expected: int
    ) -> None:
        said = announcement(submit(**changes), 1, ClusterFacts(cpus_per_node=4))
        assert said is not None
        assert said.job is not None
        assert said.job.n_nodes == expected

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"priority": "0"}, "JobHeldUser"),
            ({"dependency": "afterok:5"}, "Dependency"),
            ({"begin": "1001"}, "BeginTime"),
            ({"begin": "1000"}, ""),
        ],
    )
    def test_why_it_cannot_start_yet(self, changes: dict[str, str], reason: str) -> None:
        said = announcement(submit(**changes), 1)
        assert said is not None
        assert said.job is not None
        assert (said.job.reason, said.job.is_entitled) == (reason, not reason)

    def test_a_line_of_a_script_installed_before_counts(self) -> None:
        assert announcement(submit() + "\tinteractive", 1) == announcement(submit(), 1)

    def test_a_job_that_ended(self) -> None:
        said = announcement("end\t1000\t17\tbatch\tn[1-3]", 1)
        nodes = ("n1", "n2", "n3")
        assert said == Announcement(at_s=1000.0, partition="batch", nodes=nodes, job_id="17")

    def test_a_job_that_was_changed_is_no_new_job(self) -> None:
        said = announcement("modify\t1000\t17\tbatch\t", 1)
        assert said == Announcement(at_s=1000.0, partition="batch")

    @given(st.one_of(st.text(), st.lists(st.text(), min_size=15, max_size=16).map("\t".join)))
    def test_nonsense_is_nothing(self, text: str) -> None:
        for line in (text, f"submit\t{text}", f"end\t{text}", f"modify\t{text}"):
            announcement(line, 1)  # whatever comes, nothing is raised


class TestAnnounced:
    now_s = 50.0

    def looked(self, *jobs: Job) -> Snapshot:
        return Snapshot(taken_at_s=1000.0, nodes=(), jobs=jobs)

    def heard(self) -> tuple[UnseenAnnouncements, Job]:
        said = announcement(submit(), 1)
        assert said is not None
        assert said.job is not None
        announced = UnseenAnnouncements(lambda: self.now_s)
        assert announced.hear((said,))
        return announced, said.job

    def test_it_counts_until_a_look_can_have_shown_it(self) -> None:
        announced, job = self.heard()
        assert announced.add_to(self.looked()).jobs == (job,)
        assert announced.add_to(announced.add_to(self.looked())).jobs == (job,), "once"
        assert announced.add_to(self.looked(), self.now_s).jobs == (job,)
        assert announced.add_to(self.looked(), self.now_s + UNSEEN_S).jobs == ()
        assert announced.add_to(self.looked()).jobs == ()

    def test_the_job_itself_takes_its_place(self) -> None:
        announced, job = self.heard()
        real = replace(job, job_id="17", submit_s=1001.0)
        assert announced.add_to(self.looked(real), self.now_s).jobs == (real,)

    @pytest.mark.parametrize(
        "changes", [{"user": "x"}, {"partitions": ("p",)}, {"submit_s": 900.0}]
    )
    def test_another_job_does_not(self, changes: dict[str, object]) -> None:
        announced, job = self.heard()
        other = replace(job, job_id="17", **changes)  # type: ignore[arg-type]  # by name
        assert announced.add_to(self.looked(other), self.now_s).jobs == (other, job)

    def test_two_alike_are_two(self) -> None:
        announced, job = self.heard()
        again = Announcement(at_s=1000.0, partition="batch", job=replace(job, job_id="announced-2"))
        announced.hear((again,))
        real = replace(job, job_id="17")
        found = announced.add_to(self.looked(real), self.now_s).jobs or ()
        assert [j.job_id for j in found] == ["17", "announced-2"]

    def test_a_job_of_an_earlier_look_is_not_what_was_announced_later(self) -> None:
        announced, job = self.heard()
        first = replace(job, job_id="17")
        assert announced.add_to(self.looked(first), self.now_s).jobs == (first,)
        large = replace(job, job_id="announced-2", n_nodes=8)
        announced.hear((Announcement(at_s=1000.0, partition="batch", job=large),))
        assert announced.add_to(self.looked(first)).jobs == (first, large)
        assert announced.add_to(self.looked(first), self.now_s).jobs == (first, large)
        real = replace(large, job_id="18")
        assert announced.add_to(self.looked(first, real), self.now_s).jobs == (first, real)

    def test_the_one_of_that_size_takes_its_place(self) -> None:
        announced, job = self.heard()
        large = replace(job, job_id="announced-2", n_nodes=8)
        announced.hear((Announcement(at_s=1000.0, partition="batch", job=large),))
        real = replace(large, job_id="18")
        assert announced.add_to(self.looked(real), self.now_s).jobs == (real, job)

    def test_a_change_is_no_job(self) -> None:
        announced = UnseenAnnouncements()
        assert not announced.hear((Announcement(at_s=1.0, partition="p"),))


ENDED_S = T0 + 100.0


class TestAnnouncedEnd:
    now_s = 50.0

    def after_end(self, *jobs: Job, nodes: tuple[str, ...], looked_s: float = -math.inf) -> str:
        """Return the ids of what still runs, and the nodes that are idle."""
        announced = UnseenAnnouncements(lambda: self.now_s)
        assert announced.hear((Announcement(at_s=ENDED_S, partition="p", nodes=nodes),))
        in_use = tuple(Node(name=f"n{n}", state=NodeState.ALLOCATED) for n in range(1, 4))
        look = Snapshot(taken_at_s=ENDED_S, nodes=in_use, jobs=jobs)
        shown = announced.add_to(announced.add_to(look, looked_s))
        idle = [n.name for n in shown.nodes or () if n.state is NodeState.IDLE]
        return " ".join([*(j.job_id for j in shown.jobs or ()), "|", *idle])

    def test_its_nodes_are_idle_until_a_look_can_have_shown_it(self) -> None:
        jobs = running("1", "n1", "n2"), running("2", "n3")
        assert self.after_end(*jobs, nodes=("n2", "n1")) == "2 | n1 n2"
        # In a look that began before the end was heard as well.
        assert self.after_end(*jobs, nodes=("n1", "n2"), looked_s=self.now_s - 1) == "2 | n1 n2"
        assert self.after_end(*jobs, nodes=("n1", "n2"), looked_s=self.now_s) == "1 2 |"

    def test_other_jobs_go_on(self) -> None:
        assert self.after_end(running("1", "n1"), nodes=("n1", "n2")) == "1 |"
        later = running("1", "n1", start_s=ENDED_S)
        assert self.after_end(later, nodes=("n1",)) == "1 |", "it began there after the other"
        pilot = replace(running("1", "n1"), pilot_id="p1")
        assert self.after_end(pilot, nodes=("n1",)) == "1 |"

    def test_a_node_that_another_job_has_in_part_stays_in_use(self) -> None:
        jobs = running("1", "n1", "n2"), running("2", "n2")
        assert self.after_end(*jobs, nodes=("n1", "n2")) == "2 | n1"

    @pytest.mark.parametrize(
        ("shown", "ended", "left"),
        [
            (("1", "2"), "2", "1"),
            (("1", "2"), "", "1 2"),  # which of them is not said
            (("1", "2"), "7", "1 2"),  # one that the look did not show
            (("1", "72_1"), "72", "1"),  # a task has another number
            (("72_1", "72_2"), "73", "72_1 72_2"),
            (("1",), "", ""),
        ],
    )
    def test_of_jobs_that_share_a_node_one_ended(
        self, shown: tuple[str, ...], ended: str, left: str
    ) -> None:
        """The node is free only if nobody else is on it."""
        announced = UnseenAnnouncements(lambda: self.now_s)
        said = Announcement(at_s=ENDED_S, partition="p", nodes=("n1",), job_id=ended)
        announced.hear((said,))
        in_use = Node(name="n1", state=NodeState.ALLOCATED)
        jobs = tuple(running(job_id, "n1") for job_id in shown)
        look = announced.add_to(Snapshot(taken_at_s=ENDED_S, nodes=(in_use,), jobs=jobs))
        assert " ".join(job.job_id for job in look.jobs or ()) == left
        (node,) = look.nodes or ()
        assert (node.state is NodeState.IDLE) is (not left)

    def test_the_end_of_a_pilot_leaves_the_look_as_it_is(self) -> None:
        announced = UnseenAnnouncements(lambda: self.now_s)
        announced.hear((Announcement(at_s=ENDED_S, partition="p", nodes=("n1",)),))
        pilot = replace(running("1", "n1"), pilot_id="p1")
        look = Snapshot(taken_at_s=ENDED_S, nodes=(), jobs=(pilot,))
        assert announced.add_to(look) is look
