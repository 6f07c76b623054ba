"""``submit --batch`` on a real site: the daemon decides on each generation's batch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bftrainer.elastic.loop.try_record import RECORD as VARIABLE
from bftrainer.fleet.generations.members import Rescaled
from bftrainer.lab.try_records import Records, epochs
from bftrainer.model.trainer import BatchRange, TrainerState
from tests.integration.daemon_scripts import SLOW, trainer_spec
from tests.support.site import Site, opened_site
from tests.support.waiting import wait_for

POLICY = """\
poll_interval_s: 0.2
min_gap_s: 2
gap_margin_s: 1
reserve_nodes_per_type: 0
join_window_s: 0.5
hold_idle_s: 20
"""


site = opened_site(scope="function", n_nodes=3, policy=POLICY)


def _submit(site: Site, directory: Path, batch: BatchRange, **changes: object) -> str:
    noted = directory / "noted"
    noted.mkdir(parents=True)
    environment = (("OMP_NUM_THREADS", "1"), (VARIABLE, str(noted)))
    spec = trainer_spec(directory, SLOW, batch=batch, environment=environment, **changes)
    return site.client.submit(spec).record.trainer_id


def _batches(site: Site, trainer: str) -> list[tuple[int, int]]:
    return [(done.size, done.batch) for done in site.rescales(trainer)]


def _each_sample_once(directory: Path) -> bool:
    noted = Records(directory / "noted")
    noted.look()
    *whole, _ = epochs(noted.processes) or (None,)  # the last one goes on
    return len(whole) > 2 and all(use.is_once for use in whole)


@pytest.mark.long
def test_the_batch_follows_the_size_and_every_sample_is_used_once(
    site: Site, tmp_path: Path
) -> None:
    bounds = BatchRange(least=10, most=50, per_worker=16, lr_rule="linear")
    trainer = _submit(site, tmp_path / "t", bounds, n_max=3)
    site.trains_at(trainer, 3)
    job = site.server.client.submit(n_nodes=2, limit_s=60, duration_s=30, user="alice")
    site.trains_at(trainer, 1)
    wait_for(lambda: site.view(trainer).record.progress.batch == 16, what="one worker takes 16")
    text = " ".join(site.client.explain(trainer).sentences)
    assert "Its global batch is 16 of 10:50" in text
    site.trains_on(trainer)
    site.server.client.cancel(job)
    site.trains_at(trainer, 3)
    sizes = dict(_batches(site, trainer))
    assert sizes[1] == 16
    assert sizes[3] == 48  # of 3 workers' 50 the last 2 would cost all of them a sample
    log = site.log_text(trainer)
    assert "1 worker, global batch 16 = 16, learning rate x 0.6667" in log  # of the loader's 24
    assert "3 workers, global batch 48 = 3 x 16, learning rate x 2" in log
    wait_for(lambda: _each_sample_once(tmp_path / "t"), what="whole epochs, every sample once")
    assert site.view(trainer).record.failures == 0


@pytest.mark.long
def test_the_batch_grows_with_the_noise_on_the_same_nodes(site: Site, tmp_path: Path) -> None:
    bounds = BatchRange(least=24, most=96, per_worker=64)
    trainer = _submit(site, tmp_path / "t", bounds, n_min=2, n_max=2)

    def rescales() -> list[Rescaled]:
        return site.rescales(trainer)

    wait_for(lambda: len(rescales()) > 1, what="another batch")
    first, second = rescales()[:2]
    assert (first.size, first.batch) == (2, 24)
    assert second.size == 2
    assert second.batch > 24
    assert set(second.nodes) == set(first.nodes)
    assert site.view(trainer).record.costs.noise_scale > 0.0

    def measured() -> set[int]:
        rates = site.view(trainer).record.costs.samples_per_s_by_batch
        return {batch for size, batch, _ in rates if size == 2}

    wait_for(lambda: max(measured(), default=0) > 24, what="the new batch is measured")
    assert len(rescales()) < 6  # it settles
    wait_for(lambda: _each_sample_once(tmp_path / "t"), what="whole epochs, every sample once")


COUNTS = """\
import time
import numpy as np
from bftrainer.elastic import mpi

counted, total = np.zeros(1), np.zeros(1)

def step(run):
    time.sleep(0.02)
    share = run.batch // run.size + (run.rank < run.batch % run.size)
    run.comm.Allreduce(np.array([float(share)]), total)
    counted[:] += total

run = mpi.Run(replicated={"counted": counted}, batch=24)
if run.loop(step, steps=1_000_000):
    print("counted", int(counted[0]), run.samples, flush=True)
"""


@pytest.mark.long
def test_an_mpi_program_is_told_its_batch(site: Site, tmp_path: Path) -> None:
    bounds = BatchRange(least=10, most=50, per_worker=16, lr_rule="none")
    spec = trainer_spec(
        tmp_path / "t", COUNTS, runtime="mpi", n_max=3, batch=bounds, epochs=None, samples=20_000
    )
    trainer = site.client.submit(spec).record.trainer_id
    site.trains_at(trainer, 3)
    site.server.client.submit(n_nodes=2, limit_s=60, duration_s=4, user="alice")
    site.trains_at(trainer, 1)
    site.in_state(trainer, TrainerState.FINISHED)
    assert {(1, 16), (3, 48)} <= set(_batches(site, trainer))
    ((counted, samples),) = re.findall(r"counted (\d+) (\d+)", site.log_text(trainer))
    assert counted == samples
    assert 20_000 <= int(samples) < 20_050
    assert site.view(trainer).record.progress.samples == int(samples)
