"""Two real trainers of which nothing is known, on the local batch system of this machine.

The daemon, agents, workers and process groups are real; the workers sleep for the time that
their share of a batch takes on a node of a cluster, and for what a cluster's network would
add, because the nodes here share two cores. So the true curves are known. Nodes go down and
up; every decision the daemon wrote into its journal is held against the best one by the
true curves. Called by ``bench_profiler.py``.
"""

from __future__ import annotations

import getpass
import math
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from _bench.waiting import wait_until
from bftrainer.api.client import Client
from bftrainer.batch.local.client import LocalServer
from bftrainer.decide.decision import decide
from bftrainer.decide.policies.base import Context
from bftrainer.decide.policies.base import Decided as Answer
from bftrainer.decide.policies.milp import POLICY
from bftrainer.lab.demo.local_site import LocalSite
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.decision import DecisionRecord
from bftrainer.model.trainer import TrainerSpec
from milp.problem import Curve, Problem
from milp.solve import solve
from milp.worth import allocation_value

N_NODES, BATCH = 6, 48
STAY_S = 10.0  # at each number of nodes
DOWN = (3, 0, 2, 0)  # nodes that are down, one stay each
PATIENCE_S = 60.0
SITE_POLICY = """\
objective: throughput
reserve_nodes_per_type: 0
poll_interval_s: 0.5
min_gap_s: 2
gap_margin_s: 1
join_window_s: 0.5
hold_idle_s: 30
"""
SCRIPT = """\
import math, sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset
from bftrainer import elastic

sample_s, hop_s = float(sys.argv[1]), float(sys.argv[2])
torch.manual_seed(0)
model = torch.nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(4800, 64), torch.randn(4800, 8))
run = elastic.Run(model, optimizer, DataLoader(data, batch_size=48, shuffle=True), epochs=10000)
for epoch in run.epochs():
    for x, y in run.batches():
        time.sleep(sample_s * len(x) + hop_s * math.log2(run.size))
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        run.step()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paced:
    """A trainer whose true curve is known."""

    name: str
    sample_s: float
    hop_s: float  # what each doubling adds to a step

    def curve(self) -> Curve:
        """Samples per second, but for what real steps add (some milliseconds)."""
        sizes = tuple(range(1, N_NODES + 1))
        rates = [
            BATCH / (self.sample_s * math.ceil(BATCH / n) + self.hop_s * math.log2(n))
            for n in sizes
        ]
        return Curve(sizes=sizes, samples_per_s=tuple(rates))


PACED = (
    Paced(name="wide", sample_s=0.006, hop_s=0.002),
    Paced(name="narrow", sample_s=0.004, hop_s=0.080),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """One decision of the daemon."""

    at_s: float  # since the first one
    loss: float
    rescales: int  # until then, of the trainer that had most


@dataclass(frozen=True, slots=True, kw_only=True)
class Real:
    """What came of it."""

    decisions: tuple[Decided, ...]
    rescales: dict[str, int]
    measured: dict[str, dict[int, float]]  # relative to the true curve, by size
    sizes: dict[str, int]  # planned at the end
    best: dict[str, int]  # the best ones by the true curves

    def rescales_until(self, limit: float) -> float:
        """Return the rescales after which the loss stays below a limit."""
        late = [d for d in self.decisions if d.loss >= limit]
        after = [d for d in self.decisions if not late or d.at_s > late[-1].at_s]
        return float(after[0].rescales) if after else float("inf")


def learn_here(directory: Path) -> Real:
    """Run it; everything it started has ended on return."""
    with LocalSite.open(directory, n_nodes=N_NODES, policy=SITE_POLICY) as site:
        try:
            names = {_submit(site.client, directory, p): p for p in PACED}
            wait_until(
                lambda: all(_size(site.client, t) for t in names),
                "both trainers train",
                patience_s=PATIENCE_S,
            )
            _come_and_go(site.server)
            rescales = {p.name: site.client.trainer(t).record.rescales for t, p in names.items()}
            return _judge(site.sidecar, names, rescales)
        finally:
            if site.sidecar.is_running():
                site.clear()


def _submit(client: Client, directory: Path, paced: Paced) -> str:
    own = directory / paced.name
    own.mkdir(parents=True)
    script = own / "train.py"
    script.write_text(SCRIPT)
    spec = TrainerSpec(
        name=paced.name,
        user=getpass.getuser(),
        script=str(script),
        args=(str(paced.sample_s), str(paced.hop_s)),
        cwd=str(own),
        interpreter=sys.executable,
        n_min=1,
        n_max=N_NODES,
        checkpoint_dir=str(own / "checkpoints"),
        environment=(("OMP_NUM_THREADS", "1"),),
    )
    return client.submit(spec).record.trainer_id


def _come_and_go(server: LocalServer) -> None:
    """Take the last nodes away and bring them back, stay by stay."""
    names = sorted(server.client.info()["nodes"])
    for down in DOWN:
        time.sleep(STAY_S)
        for k, name in enumerate(names):
            server.client.set_node(name, is_up=k < N_NODES - down)
    time.sleep(2.0 * STAY_S)


def _size(client: Client, trainer_id: str) -> int:
    return len(client.trainer(trainer_id).observed_nodes)


class _Keeps:
    """The exact policy, which remembers the first problem it was given."""

    name, traits = POLICY.name, POLICY.traits

    def __init__(self) -> None:
        self.problem: Problem | None = None

    def allocate(self, problem: Problem, context: Context, /) -> Answer:
        self.problem = self.problem or problem
        return POLICY.allocate(problem, context)


def _judge(sidecar: DaemonProcess, names: dict[str, Paced], rescales: dict[str, int]) -> Real:
    records = [e.payload_as(DecisionRecord) for e in sidecar.entries("decision")]
    decisions: list[Decided] = []
    sizes: dict[str, int] = {}
    best_sizes: dict[str, int] = {}
    for record in records:
        keeps = _Keeps()
        decide(record.input, keeps)
        if keeps.problem is None or len(keeps.problem.trainers) < len(names):
            continue
        true = replace(
            keeps.problem,
            trainers=tuple(
                replace(t, curve=names[t.trainer_id].curve()) for t in keeps.problem.trainers
            ),
        )
        best = solve(true)
        worth = allocation_value(true, record.plan.assignment)
        decisions.append(
            Decided(
                at_s=record.input.now_s - records[0].input.now_s,
                loss=1.0 - worth / best.objective,
                rescales=max(r.rescales for r in record.input.trainers),
            )
        )
        planned = list(record.plan.assignment.values())
        sizes = {t: planned.count(t) for t in names}
        best_sizes = best.sizes()
    views = {t: sidecar.client.trainer(t) for t in names}
    measured = {
        p.name: {
            n: rate / p.curve().samples_per_s[n - 1]
            for n, rate in views[t].record.costs.samples_per_s_by_size
        }
        for t, p in names.items()
    }
    return Real(
        decisions=tuple(decisions),
        rescales=rescales,
        measured=measured,
        sizes={names[t].name: n for t, n in sizes.items()},
        best={names[t].name: n for t, n in best_sizes.items()},
    )
