"""Scripts without a seed, with real workers: what they draw first is the same on all of them."""

from __future__ import annotations

import os
import signal

import pytest

from bftrainer.model.trainer import TrainerState
from milp.problem import Curve
from tests.integration.cli.test_mistakes import POLICY
from tests.integration.daemon.test_daemon import DaemonSite
from tests.support.site import opened_site
from tests.support.waiting import wait_for

# As in public scripts: a split, a vocabulary, a list and weights, all without a seed.
UNSEEDED = """\
import hashlib, os, random, time
import torch
from torch.utils.data import DataLoader, TensorDataset, random_split
from bftrainer import elastic
import numpy as np

inputs = torch.randn(750, 8, generator=torch.Generator().manual_seed(1))
train, held_out = random_split(TensorDataset(inputs, inputs[:, :1]), [600, 150])
words = "the quick brown fox jumps over lazy dog and runs away from a big bad wolf".split()
vocabulary = list(set(words))
names = [f"f{i}" for i in range(20)]
random.shuffle(names)
model = torch.nn.Linear(8, 1)
drawn = (list(train.indices), vocabulary, names, np.random.randint(1 << 30), model.weight.tolist())
digests = [hashlib.sha256(repr(thing).encode()).hexdigest()[:8] for thing in drawn]
print("START", *digests, "of", os.getpid(), flush=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(train, batch_size=24, shuffle=True)
run = elastic.Run(model, optimizer, loader, epochs=1_000_000)
for epoch in run.epochs():
    for x, y in run.batches():
        time.sleep(0.004 * len(x))
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        run.step()
"""
CURVE = Curve(sizes=(1, 2, 3), samples_per_s=(240.0, 470.0, 690.0))


shared_site = opened_site(DaemonSite, n_nodes=3, policy=POLICY, options=())


def _starts(site: DaemonSite, trainer: str, least: int) -> list[tuple[str, ...]]:
    """Wait until so many workers have said what they drew; return the digests of each."""

    def said() -> list[list[str]] | None:
        lines = [line.split() for line in site.log_text(trainer).splitlines()]
        starts = [words for words in lines if words[:1] == ["START"]]
        return starts if len({words[-1] for words in starts}) >= least else None

    return [tuple(words[1:-2]) for words in wait_for(said, what=f"{least} workers began")]


def _equal(one: tuple[str, ...], other: tuple[str, ...]) -> list[str]:
    names = ("split", "vocabulary", "names", "numpy", "weights")
    return [n for n, a, b in zip(names, one, other, strict=True) if a == b]


@pytest.mark.long
def test_workers_of_a_script_without_a_seed_draw_the_same_also_after_a_loss_and_a_restart(
    site: DaemonSite,
) -> None:
    trainer = site.submit("unseeded", UNSEEDED, n_max=3, curve=CURVE)
    _starts(site, trainer, 3)
    site.trains_at(trainer, 3)
    lost = max(
        int(line.split()[-1])
        for line in site.log_text(trainer).splitlines()
        if line.startswith("START")
    )
    os.kill(lost, signal.SIGKILL)
    _starts(site, trainer, 4)
    site.trains_at(trainer, 3)
    site.client.requeue(trainer)
    starts = _starts(site, trainer, 7)
    assert len(set(starts)) == 1, sorted(set(starts))
    other = site.submit("seeded", UNSEEDED, n_max=1, seed=5)
    [of_other] = set(_starts(site, other, 1))
    [ours] = set(starts)
    # The order of a set follows the hash seed, which all trainers share.
    assert _equal(ours, of_other) == ["vocabulary"]
    assert site.view(other).record.spec.seed == 5


@pytest.mark.long
def test_a_script_that_seeds_itself_wins(site: DaemonSite) -> None:
    text = UNSEEDED.replace("import numpy as np\n", "import numpy as np\ntorch.manual_seed(3)\n")
    ours, other = (
        site.submit(name, text, n_max=1, seed=seed) for name, seed in (("a", 0), ("b", 5))
    )
    [first], [second] = _starts(site, ours, 1), _starts(site, other, 1)
    assert _equal(first, second) == ["split", "vocabulary", "weights"]
    assert site.view(ours).record.state is not TrainerState.FAILED


@pytest.mark.long
def test_a_split_from_the_operating_systems_random_numbers_is_refused_by_name(
    site: DaemonSite,
) -> None:
    draw = "torch.Generator().manual_seed(int.from_bytes(os.urandom(4), 'big'))"
    text = UNSEEDED.replace("[600, 150])", f"[600, 150], generator={draw})")
    trainer = site.submit("split", text, n_min=2, n_max=2, curve=CURVE)
    record = site.in_state(trainer, TrainerState.FAILED).record
    assert record.reason.startswith("BFT-1433: The workers of this trainer read different data: ")
    assert "sample 0 is one on rank 0 (" in record.reason
    assert "another on rank 1 (" in record.reason
    assert record.failures == 2, "it fails the same way each time"
