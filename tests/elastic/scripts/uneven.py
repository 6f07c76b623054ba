"""A training whose nodes can be made slow while it runs.

``uneven.py STEP_MS SAMPLES SLOW_FILE``: every worker needs STEP_MS for its part of a step,
whatever the size (the batch is per worker), times the factor that SLOW_FILE, a JSON object,
has for its node. It waits instead of computing, so that workers on one machine do not slow
each other down.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic
from bftrainer.elastic.process import control

BATCH = 4


class Factor:
    """What the file says of this node, read again when it has changed."""

    def __init__(self, path: Path, node: str) -> None:
        self._path, self._node = path, node
        self._seen_ns, self._factor = 0, 1.0

    def now(self) -> float:
        """How many times longer than usual the node takes."""
        changed_ns = self._path.stat().st_mtime_ns
        if changed_ns != self._seen_ns:
            self._factor = float(json.loads(self._path.read_text()).get(self._node, 1.0))
            self._seen_ns = changed_ns
        return self._factor


def main() -> None:
    """Train SAMPLES samples."""
    step_s, samples = float(sys.argv[1]) / 1000.0, int(sys.argv[2])
    factor = Factor(Path(sys.argv[3]), control.current().config.node)
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    data = TensorDataset(torch.randn(4096, 8), torch.randn(4096, 1))
    loader = DataLoader(data, batch_size=BATCH, shuffle=True, drop_last=True)
    run = elastic.Run(model, optimizer, loader, samples=samples, batch=elastic.PerWorkerBatch())
    for _ in run.epochs():
        for features, labels in run.batches():
            time.sleep(step_s * factor.now())
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(features), labels).backward()
            run.step()


main()
