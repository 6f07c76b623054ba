"""Trains a model of so many MB and writes down each committed step. Called by ``bench_lives``.

``BENCH_RULE``: when checkpoints are written. ``life``: as the product does; ``quarter``: as before
docs/adr/0032-expected-life.md, four times per interval where they cost little; ``turns``: as the
product does and not at all, in turns of ``TURN_S``, with the time of each step beside it.
"""

from __future__ import annotations

import os
import random
import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic
from bftrainer.elastic.writer import LEAST_SHARE, MARGIN, CheckpointWriter

TURN_S = 20.0
STEP_S = 0.02  # in which a step waits, as one that computes elsewhere does
FLOATS_PER_MB = 125_000  # parameters and momentum

rule = os.environ["BENCH_RULE"]
by_life_s = CheckpointWriter.gap_s


def quarter_s(writer: CheckpointWriter) -> float:
    """Return the time between checkpoints by the rule of docs/adr/0023-lone-state.md."""
    interval_s, cost = writer.interval_s, writer.cost
    cheap_s = max(0.25 * interval_s, cost.hold_s / 0.01, cost.wall_s / 0.1)
    return min(cheap_s, max(LEAST_SHARE * interval_s, interval_s - MARGIN * cost.wall_s))


def is_on() -> bool:
    """Whether checkpoints have their turn."""
    return int(time.monotonic() / TURN_S) % 2 == 0


if rule == "quarter":
    CheckpointWriter.gap_s = quarter_s  # type: ignore[method-assign, assignment]
elif rule == "turns":
    turn = -1

    def in_turns_s(writer: CheckpointWriter) -> float:
        """Return the time by the rule, in its turns; each begins somewhere between two writes."""
        global turn
        if not is_on():
            return float("inf")
        gap_s, now_s = by_life_s(writer), time.monotonic()
        if turn != (turn := int(now_s / TURN_S)):
            writer.last_s = now_s - random.random() * gap_s  # noqa: S311 - no secret
        return gap_s

    CheckpointWriter.gap_s = in_turns_s  # type: ignore[method-assign, assignment]

floats = int(float(sys.argv[1]) * FLOATS_PER_MB)
weight = torch.nn.Embedding(max(1, floats // 1000), 1000)
optimizer = torch.optim.SGD(weight.parameters(), lr=0.01, momentum=0.9)
data = TensorDataset(torch.randint(0, weight.num_embeddings, (1024,)))
run = elastic.Run(weight, optimizer, DataLoader(data, batch_size=16), epochs=1_000_000)
log = os.open(os.environ["BENCH_STEPS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
for _epoch in run.epochs():
    for (rows,) in run.batches():
        optimizer.zero_grad(set_to_none=False)
        weight(rows).square().mean().backward()
        time.sleep(STEP_S)
        if run.step():
            now_s = time.monotonic()
            os.write(log, f"{run.step_count} {now_s} {int(is_on())}\n".encode())
