"""The parts of ``whatif --harm``: its jobs, its segments and its figures, worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from bftrainer.batch.traces.sacct_jobs import JobLog, read_jobs
from bftrainer.batch.traces.text import ReadOptions, TraceError
from bftrainer.lab.harm.experiment import (
    BlockWaits,
    SegmentOutcome,
    TypeHarvest,
    is_of_backfill,
    leftover_gpu_s,
    play_segment,
    shift_backfill,
    waits_of,
)
from bftrainer.lab.harm.findings import PartitionHarm, WaitChange, change, findings, is_beyond
from bftrainer.lab.harm.replica import PlayedJob, Replica, replica, share_of
from bftrainer.lab.harm.segments import (
    FIRST,
    LEAST_WARM_S,
    LogPart,
    Segment,
    Variant,
    jobs_from,
    segment,
    stretches,
)
from bftrainer.lab.harm.sentences import noticed
from bftrainer.lab.harm.study import HarmChoices, hour_cost_s, parts_of, planned, variants
from bftrainer.lab.site.machine import JobSpec, Machine, SchedulerSettings, SiteJob
from bftrainer.lab.site.scheduler import Backfill, MainScheduler
from bftrainer.lab.site.sharing import Share
from bftrainer.model.errors import UsageError
from bftrainer.model.hostlist import ParseError
from bftrainer.model.parts import Lend
from slurm_plugins.described_site import read_site
from tests.support import whatif_sites as sites

CONF = """\
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
NodeName=n[1-4] CPUs=8 RealMemory=8000
NodeName=g1 CPUs=8 RealMemory=8000 Gres=gpu:a100:4
PartitionName=batch Nodes=n[1-4] OverSubscribe=EXCLUSIVE MaxTime=02:00:00
PartitionName=gpu Nodes=g1 PriorityTier=7 MaxCPUsPerNode=6
PartitionName=bf Nodes=ALL
"""
HEADER = (
    "JobID|Submit|Eligible|Start|End|NNodes|NodeList|State|Partition|Timelimit|User|Priority"
    "|AllocTRES|ReqTRES\n"
)
T = 1_714_521_600
ONE_GPU = "cpu=2,gres/gpu=1,gres/gpu:a100=1,mem=1000M,node=1"
GPUS = "cpu=4,gres/gpu=2,gres/gpu:a100=2,mem=4000M,node=1"


def row(job_id: str, times: tuple[int, int, int], more: str) -> str:
    eligible_s, start_s, end_s = times
    return f"{job_id}|{T + eligible_s}|{T + eligible_s}|{T + start_s}|{T + end_s}|{more}\n"


LOG = HEADER + "".join(
    (
        row("7", (0, 0, 20_000), "2|n[1-2]|COMPLETED|batch|01:00:00|ada|5|cpu=16,node=2|"),
        row("8_1", (10, 600, 1600), f"1|g1|COMPLETED|gpu|01:00:00|ada|9|{GPUS}|"),
        row("8_2", (10, 700, 1700), f"1|g1|COMPLETED|gpu||ada|9|{GPUS}|"),
        row("9", (20, 30, 90), "5|n[1-4],g1|COMPLETED|batch|01:00:00|ada|1||"),
        row("10", (20, 30, 90), "1|x1|COMPLETED|lost|01:00:00|ada|1||"),
        row("11", (20, 30, 90), "1|g1|COMPLETED|gpu|01:00:00|ada|1|cpu=7,node=1|"),
        row("12", (20, 30, 90), "1|g1|COMPLETED|bf|01:00:00|bft|1||"),
        row("13", (20, 30, 90), "1|g1|COMPLETED|gpu|01:00:00|ada|1|cpu=7,node=1|"),
        f"14|{T + 50}|{T + 50}|Unknown|{T + 80}|1|None assigned|CANCELLED|batch|01:00:00||||\n",
    )
)


def log_of(tmp_path: Path, text: str = LOG, *, end_s: float = 30_000.0) -> JobLog:
    path = tmp_path / "jobs.txt"
    path.write_text(text)
    options = ReadOptions(start_s=float(T), end_s=T + end_s, ignored=("bf",))
    return read_jobs(path, options)


def replica_of(tmp_path: Path, conf: str = CONF, *, closer: float = 1.0) -> Replica:
    return replica(read_site(conf), log_of(tmp_path), cycle_s=0.5, closer=closer, ignored=("bf",))


class TestLog:
    def test_jobs_have_their_true_times(self, tmp_path: Path) -> None:
        log = log_of(tmp_path)
        assert [job.job_id for job in log.jobs] == ["7", "8_1", "8_2", "10", "11", "13", "9"]
        first = log.jobs[1]
        assert (first.eligible_s - T, first.start_s - T, first.end_s - T) == (10, 600, 1600)
        assert (first.array, first.user, first.priority, first.tres) == ("8", "ada", 9.0, GPUS)
        assert (log.n_never_ran, log.n_ignored, log.notes) == (1, 1, ())

    def test_each_missing_column_has_a_stated_consequence(self, tmp_path: Path) -> None:
        text = f"JobID|Start|End|NodeList\n1|{T}|{T + 100}|n[1-3]\n"
        log = log_of(tmp_path, text)
        (job,) = log.jobs
        assert (job.n_nodes, job.limit_s, job.priority, job.tres) == (3, None, None, "")
        assert job.eligible_s == job.start_s
        assert len(log.notes) == 6
        assert "Priority is missing" in log.notes[0]

    def test_a_line_that_cannot_be_read_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(TraceError, match=r"jobs.txt:2: .*not a duration"):
            log_of(tmp_path, LOG.replace("batch|01:00:00|ada|5", "batch|long|ada|5"))
        with pytest.raises(TraceError, match=r"jobs.txt:2: Priority is 'nan'"):
            log_of(tmp_path, LOG.replace("|ada|5|", "|ada|nan|"))


class TestReplica:
    def test_sizes_of_jobs_and_site_are_the_true_ones(self, tmp_path: Path) -> None:
        made = replica_of(tmp_path)
        assert made.slurm.n_nodes == 5
        assert [p.name for p in made.slurm.partitions] == ["batch", "gpu"]
        assert [p.nodes for p in made.slurm.partitions] == [0b01111, 0b10000]
        assert [p.tier for p in made.slurm.partitions] == [1, 7]
        whole, first, second = (job.spec for job in made.jobs)
        assert (whole.n_nodes, whole.share, whole.run_s) == (2, None, 20_000.0)
        assert whole.limit_s == 20_000.0  # it ran over its limit of an hour
        assert first.limit_s == 3600.0
        assert first.share == Share(cpus=4, memory_mb=4000, gpus=2, gpu_type="a100")
        assert (first.array, second.array) == (2, 2)
        assert second.limit_s == 30 * 86_400.0  # neither job nor partition has a limit
        assert [kind.name for kind in made.node_types] == ["cpu", "gpu:a100:4"]
        assert made.gpus == (0, 0, 0, 0, 4)

    def test_jobs_that_ask_for_too_much_are_counted_with_the_first(self, tmp_path: Path) -> None:
        told = {some.why: (some.jobs, some.example) for some in replica_of(tmp_path).left_out}
        assert told == {
            "the files describe no partition lost": (1, "10"),
            "too few nodes of partition gpu have what it asks of each": (2, "11"),
            "partition batch has only 4 nodes": (1, "9"),
        }

    def test_submissions_are_drawn_closer_only_where_asked(self, tmp_path: Path) -> None:
        assert [job.spec.submit_s for job in replica_of(tmp_path).jobs] == [0.0, 10.0, 10.0]
        closer = replica_of(tmp_path, closer=2.0)
        assert [job.spec.submit_s for job in closer.jobs] == [0.0, 5.0, 5.0]
        assert [job.start_s for job in closer.jobs] == [0.0, 595.0, 695.0]
        assert closer.span_s == 15_000.0

    def test_jobs_beside_the_time_that_is_played_are_none_of_it(self, tmp_path: Path) -> None:
        log = replace(log_of(tmp_path), begin_s=T + 1650.0, end_s=T + 5000.0)
        made = replica(read_site(CONF), log, cycle_s=0.5, ignored=("bf",))
        assert [(job.start_s, job.end_s) for job in made.jobs] == [
            (-1650.0, 18_350.0),
            (-950.0, 50.0),
        ]
        assert made.left_out == ()

    def test_components_of_heterogeneous_jobs_are_told(self, tmp_path: Path) -> None:
        assert not any("Hetero" in line for line in replica_of(tmp_path).not_modelled)
        log = log_of(tmp_path, LOG.replace("\n7|", "\n7+0|"))
        made = replica(read_site(CONF), log, cycle_s=0.5, ignored=("bf",))
        assert "Heterogeneous jobs" in made.not_modelled[-1]

    @pytest.mark.parametrize(
        ("change", "lent", "why"),
        [
            (("Gres=gpu:a100:4", "Gres=gpu:a100:4"), (4, 2, 2000), ""),
            (("NodeName=g1", "DefCpuPerGPU=1\nDefMemPerGPU=500\nNodeName=g1"), (4, 1, 500), ""),
            (("PartitionName=bf", "PartitionName=bf DefMemPerGPU=100"), (4, 2, 100), ""),
            (("Nodes=ALL", "Nodes=ALL MaxCPUsPerNode=4"), (4, 1, 2000), ""),
            (("Gres=gpu:a100:4", "Gres=gpu:a100:4 CoreSpecCount=4"), (4, 1, 2000), ""),
            (
                ("Nodes=ALL", "Nodes=ALL OverSubscribe=EXCLUSIVE"),
                None,
                "Partition bf of the pilots",
            ),
            (("Nodes=g1", "Nodes=g1 ExclusiveUser=YES"), None, "Partition gpu is ExclusiveUser"),
            (("CR_Core_Memory", "CR_Socket_Memory"), None, "CR_SOCKET_MEMORY gives whole sockets"),
            (("cons_tres", "linear"), None, "SelectType=select/linear gives whole nodes"),
            (
                ("Nodes=ALL", "Nodes=ALL MaxMemPerNode=few"),
                None,
                "limits of partition bf could not",
            ),
            (("PartitionName=bf", "PartitionName=other"), (4, 2, 2000), ""),
        ],
    )
    def test_idle_gpus_are_lent_as_the_daemon_would(
        self,
        tmp_path: Path,
        change: tuple[str, str],
        lent: tuple[int, int, int] | None,
        why: str,
    ) -> None:
        """By the rules of slurm_plugins.lending, from slurm.conf."""
        made = replica_of(tmp_path, CONF.replace(*change))
        *whole, node = made.lending
        assert {(one.lends, one.is_shared) for one in whole} == {((), False)}
        shown = [(g.n_gpus, g.cpus, g.memory_mb) for g in node.lends]
        assert shown == ([lent] if lent else [])
        assert why in node.why_whole
        assert bool(made.shared_lending) is bool(lent)

    def test_like_nodes_that_are_given_whole_have_no_capacities(self, tmp_path: Path) -> None:
        conf = CONF.replace("cons_tres", "linear").replace("Gres=gpu:a100:4", "")
        made = replica_of(tmp_path, conf)
        assert made.slurm.capacities == ()
        assert [job.spec.share for job in made.jobs][:1] == [None]

    def test_a_site_without_partitions_or_jobs_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError) as caught:
            replica(read_site(CONF), log_of(tmp_path), cycle_s=0.5, ignored=("batch", "gpu", "bf"))
        assert caught.value.code == "BFT-4144"
        with pytest.raises(UsageError) as caught:
            replica_of(tmp_path, CONF.replace("=batch", "=b").replace("=gpu Nodes", "=g Nodes"))
        assert caught.value.code == "BFT-4145"
        assert "no partition batch" in str(caught.value)

    def test_resources_in_all_are_divided_by_nodes_and_rounded_up(self) -> None:
        share = share_of("cpu=9,gres/gpu=4,mem=3G,node=2", 2, has_memory=True)
        assert share == Share(cpus=5, memory_mb=1536, gpus=2)
        assert share_of("mem=3G", 2, has_memory=False) == Share(cpus=1)
        with pytest.raises(ParseError):
            share_of("cpu=many", 1, has_memory=False)


def played(number: int, submit_s: float, start_s: float, end_s: float, array: int = 0) -> PlayedJob:
    spec = JobSpec(
        number=number, submit_s=submit_s, n_nodes=1, limit_s=1000.0, run_s=end_s - start_s,
        array=array,
    )  # fmt: skip
    return PlayedJob(spec=spec, start_s=start_s, end_s=end_s)


class TestSegments:
    def test_a_segment_begins_with_the_jobs_that_ran_and_waited(self) -> None:
        jobs = [
            played(1, 0.0, 0.0, 400.0),  # over
            played(2, 0.0, 100.0, 900.0),  # runs for 400 s more; 600 s of its limit are left
            played(3, 50.0, 600.0, 700.0, array=3),
            played(4, 50.0, 300.0, 550.0, array=3),
            played(5, 800.0, 800.0, 900.0, array=3),
            played(6, 1500.0, 1500.0, 1600.0),  # comes later
        ]
        begun, others = jobs_from(jobs, 500.0, 1500.0)
        assert [(job.number, job.run_s, job.limit_s) for job in begun] == [
            (2, 400.0, 600.0),
            (4, 50.0, 800.0),
        ]
        assert all((job.submit_s, job.priority, job.array) == (0.0, FIRST, 0) for job in begun)
        assert [(job.number, job.submit_s, job.array) for job in others] == [
            (3, -450.0, 3),
            (5, 300.0, 3),
        ]

    def test_parts_are_spread_without_overlap_and_by_the_seed(self) -> None:
        slurm = SchedulerSettings(n_nodes=4)
        parts = stretches(168 * 3600.0, slurm, 30.0, seed=1)
        assert len(parts) == 10
        assert {part.n_blocks for part in parts} == {9}
        each_s = 10 * 1200.0
        assert parts[0].from_s >= LEAST_WARM_S
        assert all(b.from_s - a.from_s >= each_s for a, b in pairwise(parts))
        assert parts[-1].from_s + each_s <= 168 * 3600.0
        assert parts == stretches(168 * 3600.0, slurm, 30.0, seed=1)
        assert parts != stretches(168 * 3600.0, slurm, 30.0, seed=2)
        (short,) = stretches(2 * 3600.0, slurm, 30.0, seed=1)
        assert short.n_blocks == 3  # (7200 - 1800) / 1200, less the lead-in

    def test_a_log_that_is_too_short_is_refused(self) -> None:
        with pytest.raises(UsageError) as caught:
            stretches(3600.0, SchedulerSettings(n_nodes=4), 30.0, seed=1)
        assert caught.value.code == "BFT-4146"
        assert "1.5 h are the least" in str(caught.value)

    def test_how_much_is_played_follows_from_site_and_log(self, tmp_path: Path) -> None:
        made = replica_of(tmp_path)
        assert hour_cost_s(made) > 0.0
        one = HarmChoices(hours=0.1)
        tasks = list(planned(made, one, parts_of(made, one)))
        assert len(tasks) == 1 + 1 + 8
        assert {task.variant for task in tasks} == {
            *("", "lend", "reserve_nodes_per_type", "min_gap_s", "poll_interval_with_hook_s"),
            "bf_interval",
        }
        alone = HarmChoices(hours=0.1, has_settings=False)
        assert len(list(planned(made, alone, parts_of(made, alone)))) == 1

    def test_gpus_one_by_one_are_proposed_where_jobs_share_them(self, tmp_path: Path) -> None:
        made = replace(replica_of(tmp_path), span_s=100 * 3600.0)

        def numbers(some: Replica, lend: Lend, hours: float | None = None) -> list[int]:
            choices = HarmChoices(lend=lend, hours=hours)
            tasks = planned(some, choices, parts_of(some, choices))
            return [task.number for task in tasks if task.lend is Lend.AUTO and task.variant]

        auto = numbers(made, Lend.NODES)
        # About as much processor time as PROPOSAL_S: fewer than all parts.
        assert 0 < len(auto) < len(parts_of(made, HarmChoices()))
        asked = HarmChoices(hours=12.0)
        assert numbers(made, Lend.NODES, 12.0) == [*range(len(parts_of(made, asked)))]
        whole = [replace(node, is_shared=False) for node in made.lending]
        assert numbers(replace(made, lending=tuple(whole)), Lend.NODES) == []
        without = HarmChoices(has_settings=False)
        assert {task.lend for task in planned(made, without, parts_of(made, without))} == {
            Lend.NODES
        }
        gpus = HarmChoices(lend=Lend.GPUS)
        assert {task.lend for task in planned(made, gpus, parts_of(made, gpus))} == {Lend.GPUS}

    def test_an_hour_of_single_gpus_costs_more(self, tmp_path: Path) -> None:
        made = replica_of(tmp_path)
        assert hour_cost_s(made) < hour_cost_s(made, Lend.AUTO) == hour_cost_s(made, Lend.GPUS)

    def test_parts_of_a_large_site_are_short(self, tmp_path: Path) -> None:
        """So that each setting can be tried on one."""
        made = replace(replica_of(tmp_path), span_s=100 * 3600.0)
        small = parts_of(made, HarmChoices())
        nodes = replace(made.slurm, n_nodes=2000, capacities=())
        large = parts_of(replace(made, slurm=nodes), HarmChoices())
        assert (small[0].n_blocks, large[0].n_blocks) == (9, 2)
        assert sum(part.n_blocks for part in large) < sum(part.n_blocks for part in small)

    def test_a_setting_in_force_is_not_tried(self) -> None:
        own = Variant(
            slurm=SchedulerSettings(n_nodes=40), policy_values=(("reserve_nodes_per_type", 0),)
        )
        tried = [(one.name, one.value) for one in variants(own)]
        assert ("reserve_nodes_per_type", "0") not in tried
        assert ("reserve_nodes_per_type", "2") in tried  # one for each 20 nodes
        assert [value for name, value in tried if name == "bf_interval"] == ["15", "60"]


class TestNullPair:
    def machine(self) -> Machine:
        machine = Machine(SchedulerSettings(n_nodes=1, bf_interval_s=30.0, bf_duration_s=0.5))
        MainScheduler(machine)
        Backfill(machine)
        machine.run(20.0)  # a cycle from 5 to 5.5 s, the next at 35.5 s
        return machine

    def next_s(self, machine: Machine) -> float:
        return min(at_s for at_s, _, action in machine.events if is_of_backfill(action))

    @pytest.mark.parametrize(("share", "next_s"), [(0.0, 35.5), (0.4, 47.7), (0.6, 23.3)])
    def test_the_next_cycle_comes_within_a_period(self, share: float, next_s: float) -> None:
        machine = self.machine()
        shift_backfill(machine, share)
        assert self.next_s(machine) == pytest.approx(next_s)
        machine.run(200.0)

    def test_nothing_else_is_shifted(self) -> None:
        machine = self.machine()
        before = sorted(e[0] for e in machine.events if not is_of_backfill(e[2]))
        shift_backfill(machine, 0.4)
        assert sorted(e[0] for e in machine.events if not is_of_backfill(e[2])) == before


class TestFigures:
    def test_waits_count_within_the_block_alone(self) -> None:
        def job(submit_s: float, start_s: float | None, partition: str) -> SiteJob:
            spec = JobSpec(
                number=1, submit_s=submit_s, n_nodes=1, limit_s=60.0, run_s=1.0,
                partition=partition,
            )  # fmt: skip
            return SiteJob(spec=spec, start_s=start_s)

        jobs = [job(0.0, 150.0, "a"), job(120.0, None, "a"), job(110.0, 130.0, "b")]
        assert waits_of(jobs, 100.0, 200.0) == {"a": 50.0 + 80.0, "b": 20.0}

    def test_unused_gpus_beside_jobs(self) -> None:
        spec = JobSpec(
            number=1, submit_s=0.0, n_nodes=1, limit_s=60.0, run_s=1.0,
            share=Share(cpus=1, gpus=3),
        )  # fmt: skip
        jobs = [
            SiteJob(spec=spec, start_s=0.0, end_s=60.0, nodes=0b01),
            SiteJob(spec=JobSpec(number=2, submit_s=0.0, n_nodes=1, limit_s=60.0, run_s=1.0),
                    start_s=50.0, nodes=0b10),
        ]  # fmt: skip
        # The first node is idle for 40 of 100 s and has one GPU unused for 60 s.
        assert leftover_gpu_s(jobs, (4, 4), (40.0, 50.0), (0.0, 100.0)) == [60.0, 0.0]

    def test_the_change_of_the_wait_is_a_ratio_with_an_interval(self) -> None:
        alike = change([(10, 20.0)] * 5, seed=1)
        assert alike == WaitChange(mean_s=2.0, low_s=2.0, high_s=2.0)
        mixed = change([(10, 0.0), (10, 40.0), (20, 40.0), (10, -20.0)], seed=1)
        assert mixed.mean_s == pytest.approx(60.0 / 50)
        assert mixed.low_s is not None
        assert mixed.high_s is not None
        assert mixed.low_s < 0.0 < mixed.mean_s < mixed.high_s
        assert change([(10, 20.0)], seed=1) == WaitChange(mean_s=2.0, low_s=None, high_s=None)

    @pytest.mark.parametrize(
        ("added", "chance", "beyond"),
        [
            ((3.0, 1.0, 5.0), (0.0, -2.0, 2.0), True),
            ((3.0, -1.0, 5.0), (0.0, -2.0, 2.0), False),  # it may be none
            ((1.5, 1.0, 2.0), (0.0, -2.0, 2.0), False),  # chance does as much
            ((-3.0, -4.0, -1.0), (0.0, -2.0, 2.0), True),
            ((3.0, None, None), (0.0, -2.0, 2.0), False),
        ],
    )
    def test_beyond_chance(
        self, added: tuple[float, ...], chance: tuple[float, ...], beyond: bool
    ) -> None:
        def of(three: tuple[float, ...]) -> WaitChange:
            mean_s, low_s, high_s = three
            return WaitChange(mean_s=mean_s, low_s=low_s, high_s=high_s)

        assert is_beyond(of(added), of(chance)) is beyond

    @pytest.mark.parametrize(
        ("added", "verdict"),
        [
            ((0.02, -0.1, 0.1), "That is no more than chance does."),
            ((0.4, 0.2, 0.6), "That is more than chance does."),
            ((0.4, -0.5, 2.3), "Zero lies in the interval: it may be none."),
        ],
    )
    def test_a_wide_interval_is_no_acquittal(
        self, added: tuple[float, float, float], verdict: str
    ) -> None:
        mean_s, low_s, high_s = added
        own = WaitChange(mean_s=mean_s, low_s=low_s, high_s=high_s)
        chance = WaitChange(mean_s=0.0, low_s=-0.03, high_s=0.03)
        harm = PartitionHarm(
            partition="gpu",
            node_types=(),
            jobs=9,
            wait_s=1.0,
            logged_wait_s=None,
            added=own,
            by_chance=chance,
            is_beyond_chance=is_beyond(own, chance),
        )
        assert verdict in noticed(harm)

    def test_a_day_is_extrapolated_from_the_time_that_was_counted(self, tmp_path: Path) -> None:
        made = replica_of(tmp_path)
        nothing = TypeHarvest(held_s=0.0, trained_s=0.0, idle_s=0.0, held_gpu_s=0.0,
                              trained_gpu_s=0.0, leftover_gpu_s=0.0)  # fmt: skip
        some = TypeHarvest(held_s=3600.0, trained_s=1800.0, idle_s=7200.0, held_gpu_s=14_400.0,
                           trained_gpu_s=7200.0, leftover_gpu_s=3600.0)  # fmt: skip
        waits = BlockWaits(jobs=2, without_s=10.0, beside_s=14.0, again_s=9.0)
        outcome = SegmentOutcome(
            variant="", value="", number=0, counted_s=7200.0, blocks=({"gpu": waits},) * 3,
            harvest={"cpu": nothing, "gpu:a100:4": some}, pilots=5, preempted=1, cpu_s=1.0,
        )  # fmt: skip
        told = findings(
            made, [outcome], [(600.0, 1000.0)], is_closer=False, watts={"": 500.0}, seed=1
        )
        (_, gpu) = told.node_types
        assert (gpu.idle_node_hours, gpu.held_node_hours) == (24.0, 12.0)
        assert (gpu.trained_node_hours, gpu.trained_gpu_hours) == (6.0, 24.0)
        assert (gpu.leftover_gpu_hours, gpu.energy_kwh) == (12.0, 3.0)
        assert (gpu.idle_gpu_hours, gpu.held_gpu_hours) == (4 * 24.0 + 12.0, 48.0)
        (harm,) = told.partitions
        assert (harm.partition, harm.jobs, harm.wait_s) == ("gpu", 6, 5.0)
        assert (harm.added.mean_s, harm.by_chance.mean_s) == (2.0, -0.5)
        assert harm.is_beyond_chance
        assert harm.node_types == ("gpu:a100:4",)
        assert (told.lend, told.proposal) == ("nodes", None)
        assert harm.logged_wait_s is None  # none was submitted between 600 and 1000 s
        assert (told.pilots_per_day, told.preempted_per_day) == (60.0, 12.0)


def outcome_of(variant: str, number: int, held_s: float, beside_s: float) -> SegmentOutcome:
    waits = BlockWaits(jobs=10, without_s=10.0, beside_s=beside_s, again_s=10.0)
    harvest = TypeHarvest(held_s=held_s, trained_s=held_s, idle_s=7200.0, held_gpu_s=0.0,
                          trained_gpu_s=0.0, leftover_gpu_s=0.0)  # fmt: skip
    return SegmentOutcome(
        variant=variant, value="2" * bool(variant), number=number, counted_s=3600.0,
        blocks=({"batch": waits},) * 2, harvest={"cpu": harvest, "gpu:a100:4": harvest}, pilots=0,
        preempted=0, cpu_s=1.0,
    )  # fmt: skip


def test_a_setting_is_compared_on_the_parts_on_which_it_was_tried(tmp_path: Path) -> None:
    outcomes = [outcome_of("", n, 3600.0 * n, 10.0 + n) for n in range(3)]
    outcomes.append(outcome_of("min_gap_s", 1, 1800.0, 30.0))
    told = findings(replica_of(tmp_path), outcomes, (), is_closer=True, watts={}, seed=1)
    as_is, other = told.settings
    assert (as_is.setting, as_is.held_node_hours, as_is.jobs) == ("", 48.0, 20)  # part 1 alone
    assert as_is.added.mean_s == pytest.approx(0.1)
    assert (as_is.hours, other.hours) == (1.0, 1.0)
    assert (other.setting, other.value, other.held_node_hours) == ("min_gap_s", "2", 24.0)
    assert other.added.mean_s == pytest.approx(2.0)
    assert told.everybody.jobs == 60
    assert told.hours == 3.0


def test_a_proposal_is_held_beside_whole_nodes_on_the_same_parts(tmp_path: Path) -> None:
    outcomes = [outcome_of("", n, 3600.0 * n, 10.0 + n) for n in range(3)]
    auto = outcome_of("lend", 1, 0.0, 30.0)
    lent = replace(auto.harvest["cpu"], held_gpu_s=36_000.0)
    outcomes.append(replace(auto, value="auto", harvest={**auto.harvest, "gpu:a100:4": lent}))
    told = findings(replica_of(tmp_path), outcomes, (), is_closer=True, watts={}, seed=1)
    assert told.settings == ()  # the proposal is none of them
    assert told.everybody.jobs == 60
    assert told.proposal is not None
    assert (told.proposal.nodes, told.proposal.gpus) == (1, 4)
    assert (told.proposal.hours, told.proposal.blocks) == (1.0, 2)
    assert told.proposal.gained_gpu_hours == 240.0
    now, then = told.proposal.now, told.proposal.proposed
    assert (now.lend, then.lend) == ("nodes", "auto")
    assert (now.held_gpu_hours, then.held_gpu_hours) == (0.0, 240.0)
    assert (now.everybody.jobs, then.everybody.jobs) == (20, 20)  # part 1 alone
    assert now.everybody.added.mean_s == pytest.approx(0.1)
    assert then.everybody.added.mean_s == pytest.approx(2.0)


@pytest.mark.parametrize("name", ["whole", "gpus", "mixed"])
def test_drawn_sites_fit_their_logs(name: str, tmp_path: Path) -> None:
    days = 0.25
    site = sites.SITES[name](16, days)
    conf, log = sites.write(site, tmp_path)
    begin_s = sites.EPOCH_S
    options = ReadOptions(start_s=begin_s, end_s=begin_s + site.hours * 3600.0)
    made = replica(read_site(conf.read_text()), read_jobs(log, options), cycle_s=0.5)
    assert made.left_out == ()
    assert (*made.notes, *made.not_modelled) == ()
    assert len(made.jobs) > 10
    assert made.span_s == days * 86_400.0
    shares = {job.spec.share is not None for job in made.jobs}
    assert shares == {"whole": {False}, "gpus": {True}, "mixed": {False, True}}[name]
    assert all(0.0 <= job.spec.submit_s <= job.start_s for job in made.jobs)


def small_segment(tmp_path: Path) -> Segment:
    made = replica_of(tmp_path)
    return segment(
        made,
        Variant(slurm=made.slurm, policy_values=(("reserve_nodes_per_type", 0),)),
        LogPart(from_s=1800.0, n_blocks=1),
        0,
        worker_start_s=5.0,
        seed=1,
    )


def test_a_segment_is_played_alike_each_time_and_counts_whole_nodes(tmp_path: Path) -> None:
    """Job 7 has two of the five nodes; without a reserve bftrainer holds all others."""
    task = small_segment(tmp_path)
    outcome, again = play_segment(task), play_segment(task)
    assert outcome.blocks == again.blocks
    assert outcome.harvest == again.harvest
    assert outcome.counted_s == 1200.0
    cpu = outcome.harvest["cpu"]
    assert cpu.idle_s == pytest.approx(2 * 1200.0)
    assert cpu.held_s == pytest.approx(2 * 1200.0, rel=0.01)
    assert cpu.trained_s == pytest.approx(cpu.held_s, rel=0.01)
    gpu = outcome.harvest["gpu:a100:4"]
    assert gpu.idle_s == 1200.0
    assert gpu.held_s == pytest.approx(1200.0, rel=0.01)
    assert gpu.held_gpu_s == 4 * gpu.held_s
    assert gpu.trained_gpu_s == 4 * gpu.trained_s
    assert math.isfinite(outcome.cpu_s)


def test_a_segment_with_single_gpus_lends_those_that_jobs_leave(tmp_path: Path) -> None:
    """One of the four GPUs of g1 has a job all the time."""
    gpu_job = row("8", (0, 0, 20_000), f"1|g1|COMPLETED|gpu|10:00:00|ada|9|{ONE_GPU}|")
    (tmp_path / "log").mkdir()
    log = log_of(tmp_path / "log", HEADER + gpu_job)
    made = replica(read_site(CONF), log, cycle_s=0.5, ignored=("bf",))

    variant = Variant(
        slurm=made.slurm, policy_values=(("reserve_nodes_per_type", 0),), lend=Lend.AUTO
    )
    part = LogPart(from_s=1800.0, n_blocks=1)
    outcome = play_segment(segment(made, variant, part, 0, worker_start_s=5.0, seed=1))
    # Nodes without GPUs are lent as a whole all the same.
    assert outcome.harvest["cpu"].held_s > 0.0
    lent = outcome.harvest["gpu:a100:4"]
    assert (lent.idle_s, lent.leftover_gpu_s) == (0.0, 3 * 1200.0)
    assert lent.held_gpu_s == pytest.approx(3 * 1200.0, rel=0.01)
    assert lent.held_s == pytest.approx(0.75 * 1200.0, rel=0.01)
    assert lent.trained_gpu_s == pytest.approx(lent.held_gpu_s, rel=0.01)
