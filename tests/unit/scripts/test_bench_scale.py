"""The site of ``bench_scale`` whose GPUs are lent: all that is printed of it fits together."""

from __future__ import annotations

from _bench.scale_gpus import HOST_GPUS, GpuSize, PrintedGpus
from bench_scale import LENT_SETTINGS, reader

from bftrainer.decide.decision import decide
from bftrainer.decide.policies.base import load_policy
from bftrainer.model.cluster import JobState, Snapshot
from bftrainer.model.decision import DecisionInput, Memory
from bftrainer.model.parts import as_lent

NOW_S = 1_790_000_000.0
SIZE = GpuSize(n_nodes=30, n_trainers=6, n_pending=3, widths="mixed widths")


def look(site: PrintedGpus) -> Snapshot:
    return as_lent(reader(site).read(), LENT_SETTINGS.lend)


def test_each_gpu_is_a_jobs_or_a_pilots_or_free() -> None:
    site = PrintedGpus(SIZE, NOW_S)
    shown = look(site)
    assert shown.is_complete
    held = {node.name: 0 for node in shown.nodes or ()}
    for pilot in site.views():
        assert pilot.part is not None
        held[pilot.part.node] += pilot.part.gpus
    assert sum(held.values()) > len(held)
    has_job = {name for job in shown.jobs or () if job.is_ordinary for name in job.nodes}
    for node in shown.nodes or ():
        (lent,) = node.lends
        assert lent.n_free + held[node.name] <= HOST_GPUS
        assert (lent.n_free + held[node.name] < HOST_GPUS) == (node.name in has_job)


def test_the_pilots_jobs_are_shown_and_a_decision_keeps_the_trainers_that_train() -> None:
    site = PrintedGpus(SIZE, NOW_S)
    shown, training = look(site), site.training(SIZE.n_trainers)
    running = {job.pilot_id for job in shown.jobs or () if job.state is JobState.RUNNING}
    assert {pilot.pilot_id for pilot in site.views()} <= running
    given = DecisionInput(
        now_s=NOW_S,
        snapshot=shown,
        is_new_snapshot=True,
        pilots=site.views(),
        trainers=site.trainers(),
        settings=LENT_SETTINGS,
        memory=Memory(assignment=training),
        training=training,
    )
    plan = decide(given, load_policy(LENT_SETTINGS.policy))
    assert len(plan.pool) > len(site.views())
    assert training.keys() <= plan.assignment.keys()
