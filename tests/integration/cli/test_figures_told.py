"""What people see of a training: its loss and its GPUs, from real workers and agents.

The driver's tool is a script that prints what the real one is documented to print.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bftrainer.cli.main import main
from bftrainer.daemon.journal_page import JournalSource
from bftrainer.model.trainer import GpuLoad, TrainerState
from bftrainer.model.views import TrainerView
from tests.integration.cli_fixtures import Output, output
from tests.integration.daemon_scripts import trainer_spec
from tests.support.site import Site
from tests.support.waiting import wait_for

__all__ = ["output"]

POLICY = """\
poll_interval_s: 0.2
min_gap_s: 2
gap_margin_s: 1
reserve_nodes_per_type: 0
join_window_s: 0.5
heartbeat_s: 0.2
"""
# Sample k has the loss k, whatever is trained: of 0 to 8 the mean is 4.
SCRIPT = """\
import os, time
import torch
from torch.utils.data import DataLoader, TensorDataset
from bftrainer import elastic

net = torch.nn.Linear(1, 1)
sgd = torch.optim.SGD(net.parameters(), lr=0.0)
loader = DataLoader(TensorDataset(torch.arange(9.0)[:, None]), batch_size=9)
run = elastic.Run(net, sgd, loader, epochs=1_000_000)
for _ in run.epochs():
    for (k,) in run.batches():
        time.sleep(0.02)
        sgd.zero_grad()
        (0.0 * net(k) + k).mean().backward()
        run.step()
    if os.path.exists("end"):
        break
"""
TOOL = """\
#!/bin/sh
echo "0, GPU-8932f937-d72c-4106-c12f-20bd9faed9f6, 99, 70000, 81920"
echo "1, GPU-1dd1a0a5-93c4-4a4c-a86c-d3c0e2f1b7aa, 25, 20480, 81920"
"""


def test_loss_and_gpus_of_a_training_are_told_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: Output
) -> None:
    """Two workers have 5 and 4 of the samples, and GPU 1 of each node."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(TOOL)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    with Site.open(tmp_path, n_nodes=2, policy=POLICY) as site:
        own = (("CUDA_VISIBLE_DEVICES", "1"),)
        spec = trainer_spec(tmp_path / "one", SCRIPT, n_max=2, environment=own)
        trainer = site.client.submit(spec).record.trainer_id
        site.trains_at(trainer, 2)

        def told() -> TrainerView | None:
            view = site.view(trainer)
            return view if len(view.gpus) == 2 and view.record.progress.loss == 4.0 else None

        view = wait_for(told, what="both nodes' GPUs, and the mean of all samples")
        assert view.record.progress.gpu_use == GpuLoad(
            gpus=2, use_percent=25.0, memory_used_mib=40960.0, memory_total_mib=163840.0
        )
        each = GpuLoad(gpus=1, use_percent=25.0, memory_used_mib=20480.0, memory_total_mib=81920.0)
        assert {told.node: told.use for told in view.gpus} == dict.fromkeys(
            view.observed_nodes, each
        )
        by_name = {node.name: node.gpu_use for node in site.client.nodes()}
        assert {by_name[name] for name in view.observed_nodes} == {each}
        socket = str(site.sidecar.state_dir / "daemon.sock")
        assert main(["status", trainer, "--socket", socket]) == 0
        shown = " ".join(output.readouterr().out.split())
        assert "GPUs GPU use 25%, memory 40 of 160 GiB on 2 GPUs" in shown
        assert "training loss 4" in shown

        def drawn() -> bool:
            for curve in site.client.timeline(None).curves:  # none before its first point
                if (4.0, 25.0) in zip(curve.losses, curve.gpu_uses, strict=False):
                    return True
            return False

        wait_for(drawn, what="a point with both in the curve")
        (tmp_path / "one" / "end").touch()
        site.in_state(trainer, TrainerState.FINISHED)
        journal = site.sidecar.state_dir / "journal.db"
    [again] = JournalSource(journal).timeline(None).curves
    assert (4.0, 25.0) in zip(again.losses, again.gpu_uses, strict=True)
    assert again.points[-1][2] == 0, "it has ended"
    ended = JournalSource(journal).status().trainers[0].record.progress
    # Where shares have changed, the members' last means may be of other updates.
    assert ended.loss == pytest.approx(4.0, abs=0.2)
    assert ended.gpu_use is None
