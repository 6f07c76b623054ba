"""An ordinary training script whose batches carry their sample ids.

Settings come as one JSON argument. Each worker appends what it did to its own file:
the ids it worked on, the steps committed, a hash of the parameters at every end of a
generation. The tests put these together.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import itertools
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset, WeightedRandomSampler

from bftrainer import elastic
from bftrainer.elastic.network import group
from bftrainer.elastic.network.group import Broken

settings: dict[str, Any] = {
    "samples": 203,
    "batch": 16,
    "epochs": 2,
    "width": 16,
    "dropout": 0.0,
    "norm": False,
    "optimizer": "adam",
    "lr": 0.05,
    "delay_s": 0.0,
    "loader_workers": 0,
    "persistent": False,  # the loader's workers stay
    "shards": 0,  # the samples come as a stream in so many shards
    "weighted": False,  # the script draws its own order, with replacement
    "shift": 0,  # by so many places it differs from the second epoch on
    "noisy": False,  # the dataset draws at random
    "logical": 0,  # bitwise mode
    "max_per_worker": None,
    "rule": None,  # the batch is each worker's, with this rule
    "amp": False,  # mixed precision with a scaled loss
    "overflow_at": None,  # in this step the gradients of rank 0 are infinite
    "passes": 1,  # backward passes over each batch, all but the last under no_sync
    "guarded": False,  # the average is updated after a committed update only
    "breakable": False,  # SIGUSR1: the script raises; SIGUSR2: it has no memory left;
    # SIGRTMIN: a collective fails here where others' succeed; SIGRTMIN + 1: it hangs
    "fail_at": None,  # [step, rank]: that rank's collective fails where others' succeed
    "holds": [],  # [step, generation]: that step not before this generation can be entered
    "per_epoch": False,  # the schedule steps after each epoch, not after each batch
    "report": "",  # a metric after each epoch: "all" workers, or the "first"
    "device": "",  # have a GPU, see pretended: "gloo", "missing" (no NCCL), "staged", "cuda"
    **json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}"),
}
directory = Path(os.environ["BFT_TEST_DIR"])
journal = (directory / f"journal-{os.getpid()}.jsonl").open("a", buffering=1)


def note(kind: str, **what: object) -> None:
    said = {"kind": kind, "pid": os.getpid(), "at_s": time.monotonic(), **what}
    journal.write(json.dumps(said) + "\n")


def digest(module: torch.nn.Module) -> str:
    whole = hashlib.sha256()
    for p in module.parameters():
        whole.update(bytes(p.detach().reshape(-1).view(torch.uint8).tolist()))
    return whole.hexdigest()


class Average:
    """A running average of the parameters, as users keep one beside the model."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.tensors = [p.detach().clone() for p in module.parameters()]
        self.updates = 0

    def update(self, module: torch.nn.Module) -> None:
        self.updates += 1
        for mean, p in zip(self.tensors, module.parameters(), strict=True):
            mean.lerp_(p.detach(), 0.1)

    def digest(self) -> str:
        return hashlib.sha256(str([t.tolist() for t in self.tensors]).encode()).hexdigest()

    def state_dict(self) -> dict[str, Any]:
        return {"tensors": self.tensors, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tensors = [t.clone() for t in state["tensors"]]
        self.updates = state["updates"]


place = "cuda" if settings["device"] == "cuda" else "cpu"
if settings["device"]:
    importlib.import_module("pretended").pretend(settings["device"])

torch.manual_seed(3)
ids = torch.arange(settings["samples"])
features = torch.randn(settings["samples"], 8)
targets = features @ torch.randn(8, 1) + 0.1 * torch.randn(settings["samples"], 1)


class Noisy(Dataset[Any]):
    """Samples with noise from all the random streams a script may use."""

    def __len__(self) -> int:
        return len(ids)

    def __getitem__(self, i: int) -> Any:
        noise = torch.randn(8) * random.random()  # noqa: S311 - no secret
        return ids[i], features[i] + 0.1 * noise, targets[i]


class Stream:
    """The samples in shards of different lengths."""

    def shard_lengths(self) -> list[int]:
        count, total = settings["shards"], len(ids)
        cuts = [total * i * (i + 1) // (count * (count + 1)) for i in range(count + 1)]
        return [b - a for a, b in itertools.pairwise(cuts)]

    def read_shard(self, shard: int, skip: int, epoch: int) -> Any:
        start = sum(self.shard_lengths()[:shard])
        order = list(range(start, start + self.shard_lengths()[shard]))
        random.Random(epoch).shuffle(order)  # noqa: S311 - no secret
        for i in order[skip:]:
            yield ids[i], features[i], targets[i]


dataset: Dataset[Any] = TensorDataset(ids, features, targets)
if settings["noisy"]:
    dataset = Noisy()
if settings["shards"]:
    dataset = elastic.Sharded(Stream(), drop=2)
loader = DataLoader(
    dataset,
    batch_size=settings["batch"],
    shuffle=True,
    num_workers=settings["loader_workers"],
    persistent_workers=settings["persistent"],
)
width = settings["width"]
layers: list[torch.nn.Module] = [torch.nn.Linear(8, width)]
if settings["norm"]:
    layers.append(torch.nn.BatchNorm1d(width))
layers += [torch.nn.Tanh(), torch.nn.Dropout(settings["dropout"]), torch.nn.Linear(width, 1)]
model = torch.nn.Sequential(*layers).to(place)
optimizer: torch.optim.Optimizer
if settings["optimizer"] == "adam":
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=settings["lr"], momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(
    optimizer, step_size=1 if settings["per_epoch"] else 7, gamma=0.97
)
average = Average(model)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=5, enabled=settings["amp"])
batch: Any = elastic.GlobalBatch(max_per_worker=settings["max_per_worker"])
if settings["rule"]:
    batch = elastic.PerWorkerBatch(rule=settings["rule"])


def own_order(epoch: int) -> list[int]:
    weights = [1.0 + i % 3 for i in range(settings["samples"])]
    drawn = list(WeightedRandomSampler(weights, 150 + 7 * epoch))
    cut = settings["shift"] * bool(epoch)
    return drawn[cut:] + drawn[:cut]


run = elastic.Run(
    model,
    optimizer,
    loader,
    scheduler=scheduler,
    extra={"average": average, "scaler": scaler},
    epochs=settings["epochs"],
    batch=batch,
    bitwise=elastic.LogicalWorkers(settings["logical"]) if settings["logical"] else None,
    indices=own_order if settings["weighted"] else None,
)


injected = [False]  # the next collective fails here and succeeds elsewhere

if settings["fail_at"] is not None or settings["breakable"]:
    real_settle = group.settle
    failures = [0]

    def settle(work: Any, abandoned: Callable[[], bool]) -> Broken | None:
        outcome = real_settle(work, abandoned)
        if not failures[0] and [run.step_count + 1, run.rank] == settings["fail_at"]:
            failures[0], injected[0] = 1, True
        if injected[0] and outcome is None:
            injected[0] = False
            return Broken(reason="injected")
        return outcome

    group.settle = settle

if settings["breakable"]:

    def raise_now(_number: int, _frame: object) -> None:
        raise RuntimeError("asked to")

    def eat_memory(_number: int, _frame: object) -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 28), resource.RLIM_INFINITY))
        torch.zeros(1 << 30)  # fails as the allocator does when the node is full

    def fall_behind(_number: int, _frame: object) -> None:
        injected[0] = True

    def hang(_number: int, _frame: object) -> None:
        while True:
            time.sleep(1.0)

    signal.signal(signal.SIGUSR1, raise_now)
    signal.signal(signal.SIGUSR2, eat_memory)
    signal.signal(signal.SIGRTMIN, fall_behind)
    signal.signal(signal.SIGRTMIN + 1, hang)

attempt, token = 0, ""  # the token is of one generation only; an heir may use a number again


@run.on_entered
def entered(info: elastic.GenerationInfo) -> None:
    global attempt, token
    commit = run._membership.commit
    attempt, token = info.attempt, commit.token if commit is not None else ""
    note(
        "entered",
        generation=info.generation,
        attempt=attempt,
        token=token,
        step=info.step,
        hash=digest(model),
        rank=info.rank,
        size=info.size,
        batch=info.terms.batch,
        shares=info.terms.shares,
        lr_factor=info.terms.lr_factor,
    )


@run.on_generation_end
def generation_end(info: elastic.GenerationInfo) -> None:
    note(
        "end",
        generation=info.generation,
        attempt=info.attempt,
        token=token,
        step=info.step,
        size=info.size,
        hash=digest(model),
        lr=optimizer.param_groups[0]["lr"],
        updates=average.updates,
        moments=len(optimizer.state),
        average=average.digest(),
        scale=scaler.get_scale(),
        buffers=[b.flatten().tolist() for b in model.buffers()],
    )


for epoch in run.epochs():
    for number, x, y in run.batches():
        if not run.rehearsing:
            if settings["holds"]:
                importlib.import_module("holding").hold(run, settings["holds"])
            note(
                "try",
                generation=run.generation,
                attempt=attempt,
                token=token,
                step=run.step_count + 1,
                epoch=run.epoch,
                ids=number.tolist(),
            )
        optimizer.zero_grad()
        for last in [False] * (settings["passes"] - 1) + [True]:
            with torch.autocast("cpu", torch.bfloat16, enabled=settings["amp"]):
                loss = torch.nn.functional.mse_loss(model(x.to(place)).float(), y.to(place))
                loss = loss / settings["passes"]
            if run.rank == 0 and run.step_count + 1 == settings["overflow_at"]:
                loss = loss * float("inf")
            with contextlib.nullcontext() if last else run.no_sync():
                scaler.scale(loss).backward()
        if settings["amp"]:
            scaler.unscale_(optimizer)
        is_committed = run.step()
        if is_committed:
            note(
                "commit",
                generation=run.generation,
                attempt=attempt,
                token=token,
                step=run.step_count,
                hash=digest(model),
                scale=scaler.get_scale(),
            )
        if is_committed or not settings["guarded"]:
            if not settings["per_epoch"]:
                scheduler.step()
            average.update(model)
        if settings["delay_s"]:
            time.sleep(settings["delay_s"])
    if settings["per_epoch"]:
        scheduler.step()
    if settings["report"] == "all" or (settings["report"] and run.is_first):
        run.report(-next(model.parameters()).abs().sum())
    note("epoch", epoch=run.epoch, loop=epoch, rank=run.rank)

if run.is_first:
    result = {
        "hash": digest(model),
        "parameters": [p.detach().flatten().tolist() for p in model.parameters()],
        "lr": optimizer.param_groups[0]["lr"],
        "updates": average.updates,
        "average": [t.flatten().tolist() for t in average.tensors],
        "steps": run.step_count,
        "samples": run.samples,
        "buffers": [b.flatten().tolist() for b in model.buffers()],
    }
    (directory / "result.json").write_text(json.dumps(result))
