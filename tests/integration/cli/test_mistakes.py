"""Mistakes of a script, with real workers: few tries, and the user is told what and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from bftrainer.model.trainer import TrainerRecord, TrainerState
from tests.integration.daemon.test_daemon import DaemonSite
from tests.support.site import opened_site

POLICY = """\
poll_interval_s: 0.2
reserve_nodes_per_type: 0
min_gap_s: 2
gap_margin_s: 1
join_window_s: 0.5
hold_idle_s: 20
explore_budget: 0
failure_budget: 5
quarantine_s: 5
"""
HEAD = """\
import os
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from bftrainer import elastic

torch.manual_seed(0)
model = nn.Linear(8, 1)
data = TensorDataset(torch.randn(200, 8))
"""
LOOP = """\
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
run = elastic.Run(model, optimizer, DataLoader(data, batch_size=20{more}), epochs=5)
for epoch in run.epochs():
    for (x,) in run.batches():
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        {step}
"""
TRAIN = LOOP.format(more="", step="run.step()")
SHARD = "from torch.distributed.fsdp import fully_shard\nfully_shard(model)\n"
GROUP = """\
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""
# The process id: other words each time.
NAMED = "raise ValueError(f'worker {os.getpid()}: no file /tmp/{os.getpid():x}/part-{os.getpid()}')"
SPAWNS = HEAD + LOOP.format(
    more=", num_workers=2, multiprocessing_context='spawn'", step="run.step()"
)
TWICE = "model(x).pow(2).mean().backward()\n        run.step()"
LENGTHS = HEAD.replace("randn(200", "randn(200 + os.getpid() % 97") + TRAIN


shared_site = opened_site(DaemonSite, n_nodes=2, policy=POLICY)


def _ended(site: DaemonSite, text: str, **changes: object) -> tuple[TrainerRecord, int]:
    """Submit a script that fails; return its record and how many workers were started."""
    trainer = site.submit("mistaken", text, **{"n_max": 1, **changes})
    record = site.in_state(trainer, TrainerState.FAILED).record
    return record, int(Path(record.failing.log_path).stem.rpartition("-")[2])


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        pytest.param(
            SPAWNS,
            "train.py:13",
            ("BFT-1428: ", "spawn", 'if __name__ == "__main__"'),
            marks=pytest.mark.long,
        ),
        pytest.param(
            HEAD + SHARD + TRAIN,
            "train.py:11",
            ("BFT-1401: ", "FSDP", "--runtime command"),
            marks=pytest.mark.long,
        ),
        (HEAD + GROUP + SHARD + TRAIN, "train.py:15", ("BFT-1401: ", "FSDP", "--runtime command")),
        (
            HEAD + LOOP.format(more="", step=TWICE),
            "train.py:16",
            ("BFT-1404: ", "no_sync", "Several models"),
        ),
    ],
    ids=["spawn without a main guard", "FSDP2", "FSDP2 in a group of one", "second backward"],
)
def test_what_no_node_can_change_is_tried_once(
    site: DaemonSite, text: str, place: str, said: tuple[str, ...]
) -> None:
    record, starts = _ended(site, text)
    assert (record.failures, starts) == (1, 1), record.reason
    assert record.failing.place == place
    for words in (*said, f"Raised at {place}.", "This fails on every node"):
        assert words in record.reason
    [explained] = site.client.explain(record.trainer_id).sentences
    assert record.reason in explained
    assert explained.endswith("Failures in all: 1.")


@pytest.mark.long
def test_other_numbers_and_paths_are_no_other_failure(site: DaemonSite) -> None:
    record, starts = _ended(site, HEAD + LOOP.format(more="", step=NAMED))
    assert (record.failures, starts) == (2, 2), record.reason
    assert "It failed the same way" in record.reason
    assert "Raised at train.py:16." in record.reason


@pytest.mark.long
def test_lengths_that_differ_at_each_start_are_no_other_failure(site: DaemonSite) -> None:
    record, starts = _ended(site, LENGTHS, n_min=2, n_max=2)
    assert record.failures == 2, record.reason
    assert starts <= 4
    assert record.reason.startswith("BFT-1421: ")
    assert "It failed the same way" in record.reason


@pytest.mark.long
def test_a_schedule_that_was_taken_from_rank_0_stands_in_the_status_to_the_end(
    site: DaemonSite,
) -> None:
    optimizer = "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
    scheduler = f"{optimizer}sched = torch.optim.lr_scheduler.StepLR(optimizer, 50)\n"
    step = "if run.step() and not run.is_first and run.step_count > 3: sched.step()"
    text = HEAD + LOOP.format(more="", step=step).replace(optimizer, scheduler).replace(
        "epochs=5", "scheduler=sched, equal='adopt', epochs=10"
    )
    trainer = site.submit("adopting", text, n_min=2, n_max=2, epochs=10)
    view = site.in_state(trainer, TrainerState.FINISHED)
    assert view.trouble.startswith("BFT-1438: The workers differ before update 5: ")
    assert "Rank 0's values are taken, now and in further updates" in view.trouble
    assert view.trouble in site.client.explain(trainer).sentences
    [remark] = view.record.remarks
    assert (remark.kind, remark.step) == ("adopted", 4)
