"""A small transformer, sharded over the workers of each node; its batches carry their ids.

Settings come as one JSON argument. Writes the same journal as ``train_ids``.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic

settings: dict[str, Any] = {
    "samples": 83,
    "batch": 8,
    "epochs": 2,
    "delay_s": 0.0,
    "sharded": True,
    "tensor": 1,  # workers that compute each sample together
    "extra": False,  # a parameter is whole on every worker
    "logical": 0,
    "max_per_worker": None,
    "optimizer": "adam",
    "clip": 0.5,
    "iterator": False,  # parameters are given to clip_grad_norm_ as an iterator
    "accumulate": 1,
    "weights": False,  # losses are means over something else than samples
    "wrapped": "",  # "compile", "checkpoint" or both
    "precision": "",  # of FSDP2's policy
    "evaluate": False,  # a forward pass between two steps
    "width": 16,
    "accelerate": False,  # goes backward and clips
    "scaler": 0.0,  # the scale of losses at the beginning; 0: they are not scaled
    "ema": "",  # an average of the weights: "sharded" as the model is, or "copied" from it
    "states": False,  # all workers of the last node gather the optimizer's state at the end
    **json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}"),
}
directory = Path(os.environ["BFT_TEST_DIR"])
journal = (directory / f"journal-{os.getpid()}.jsonl").open("a", buffering=1)


accelerator: Any = None
if settings["accelerate"]:
    from accelerate import Accelerator  # type: ignore[import-untyped]

    accelerator = Accelerator(cpu=True)


def note(kind: str, **what: object) -> None:
    journal.write(
        json.dumps({"kind": kind, "pid": os.getpid(), "at_s": time.monotonic(), **what}) + "\n"
    )


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.attend = nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        h = self.norm(x)
        x = x + torch.softmax(h @ h.transpose(1, 2) / 4.0, -1) @ self.attend(h)
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(3, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.out = nn.Linear(width, 1)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Any) -> Any:
        x = self.inner(x)
        for block in self.blocks:
            x = block(x)
        return self.out(x.mean(1)).squeeze(-1) * self.scale


def built() -> Any:
    torch.manual_seed(4)
    net: Any = Net(settings["width"])
    if "checkpoint" in settings["wrapped"]:
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        for i, block in enumerate(net.blocks):
            net.blocks[i] = checkpoint_wrapper(block)
    if "compile" in settings["wrapped"]:
        for i, block in enumerate(net.blocks):
            net.blocks[i] = torch.compile(block, backend="eager")
    return net


def averaged(net: Any) -> Any:
    """Return an average of a model's weights."""
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    average: Any = get_ema_multi_avg_fn(0.9)
    return AveragedModel(net, multi_avg_fn=average)


def prepared() -> tuple[Any, Any]:
    """Return the model and, if there is to be one, its average; both sharded."""
    net = built()
    ema = averaged(net) if settings["ema"] == "sharded" else None
    if settings["sharded"]:
        shard(net)
        if ema is not None:
            shard(ema.module)
    net = net if accelerator is None else accelerator.prepare(net)
    return net, averaged(net) if settings["ema"] == "copied" else ema


def shard(net: Any) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = elastic.node_mesh(settings["tensor"])
    if settings["tensor"] > 1:
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        for block in net.blocks:
            parallelize_module(block, mesh["tensor"], plan)
        mesh = mesh["shard"]
    policy: dict[str, Any] = {}
    if settings["precision"]:
        lower = getattr(torch, settings["precision"])
        policy = {"mp_policy": MixedPrecisionPolicy(param_dtype=lower, reduce_dtype=torch.float32)}
    extra: dict[str, Any] = {"ignored_params": {net.scale}} if settings["extra"] else {}
    for block in net.blocks:
        fully_shard(block, mesh=mesh, **policy)
    fully_shard(net, mesh=mesh, **policy, **extra)


def whole(tensor: Any) -> Any:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def digest(model: nn.Module) -> str:
    """Of this worker's shards alone: no collective where others may not be."""
    found = hashlib.sha256()
    for p in model.parameters():
        own = p.detach()
        own = own.to_local() if hasattr(own, "to_local") else own
        found.update(bytes(own.contiguous().reshape(-1).view(torch.uint8).tolist()))
    return found.hexdigest()


def gathered(net: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return what torch's own functions make of the end; a collective of the node."""
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_model_state_dict,
        get_optimizer_state_dict,
    )

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    model: Any = get_model_state_dict(net, options=options)
    told: Any = get_optimizer_state_dict(net, optimizer, options=options)
    own = optimizer.state_dict()["state"]
    return {
        "model": {name: value.tolist() for name, value in model.items()},
        "moments": {name: one["exp_avg"].tolist() for name, one in told.get("state", {}).items()},
        "own": {number: whole(one["exp_avg"]).tolist() for number, one in own.items()},
    }


def learn(run: elastic.Run, net: Any, scaler: Any, ids: Any, x: Any, y: Any) -> None:
    if accelerator is not None:
        accelerator.backward(nn.functional.mse_loss(net(x), y))
    elif scaler is not None:
        scaler.scale(nn.functional.mse_loss(net(x), y)).backward()
    elif settings["weights"]:
        rows = 1 + ids % 3
        losses = (net(x) - y).square()
        run.weight(float(rows.sum()))
        ((losses * rows).sum() / rows.sum()).backward()
    else:
        parts = settings["accumulate"]
        for _ in range(parts - 1):
            with run.no_sync():
                (nn.functional.mse_loss(net(x), y) / parts).backward()
        (nn.functional.mse_loss(net(x), y) / parts).backward()


def clip(run: elastic.Run, params: Iterable[Any]) -> None:
    clipping = nn.utils if accelerator is None else accelerator
    norm = whole(clipping.clip_grad_norm_(params, settings["clip"]))
    if not run.rehearsing and run.rank == 0:
        note("norm", value=float(norm), step=run.step_count + 1)


def main() -> None:
    net, ema = prepared()
    scale = settings["scaler"]
    scaler = torch.amp.GradScaler("cpu", init_scale=scale) if scale else None
    params = list(net.parameters())
    optimizer: torch.optim.Optimizer
    if settings["optimizer"] == "adam":
        optimizer = torch.optim.AdamW(params, lr=0.01)
    else:
        optimizer = torch.optim.SGD(params, lr=0.05, momentum=0.9)
    count = settings["samples"]
    g = torch.Generator().manual_seed(3)
    data = TensorDataset(
        torch.arange(count), torch.randn(count, 4, 3, generator=g), torch.randn(count, generator=g)
    )
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    run = elastic.Run(
        net,
        optimizer,
        DataLoader(data, batch_size=settings["batch"], shuffle=True),
        scheduler=schedule,
        extra={k: v for k, v in {"ema": ema, "scaler": scaler}.items() if v is not None},
        epochs=settings["epochs"],
        batch=elastic.GlobalBatch(max_per_worker=settings["max_per_worker"]),
        bitwise=elastic.LogicalWorkers(settings["logical"]) if settings["logical"] else None,
    )

    def where(info: elastic.GenerationInfo) -> dict[str, int]:
        names = ("generation", "attempt", "step", "rank")
        return {name: getattr(info, name) for name in names}

    run.on_committed(lambda info: note("commit", **where(info)))
    run.on_generation_end(
        lambda info: note("end", shard=run.local_rank, hash=digest(net), **where(info))
    )
    for _ in run.epochs():
        for ids, x, y in run.batches():
            if not run.rehearsing:
                info = run._membership.info()
                note(
                    "try",
                    ids=ids.tolist(),
                    epoch=run.epoch,
                    **{**where(info), "step": info.step + 1},
                )
            optimizer.zero_grad()
            learn(run, net, scaler, ids, x, y)
            if scaler is not None:
                scaler.unscale_(optimizer)
            if settings["clip"]:
                clip(run, net.parameters() if settings["iterator"] else params)
            if run.step():
                schedule.step()
                if ema is not None:
                    ema.update_parameters(net)
            if settings["evaluate"]:
                with torch.no_grad():
                    net(x)
            time.sleep(settings["delay_s"])
    final = [whole(p.detach()).tolist() for p in params]
    more = gathered(net, optimizer) if settings["states"] else {}
    average = () if ema is None else ema.module.parameters()
    more["ema"] = [whole(p.detach()).tolist() for p in average]
    if run.rank == 0:
        (directory / "result.json").write_text(
            json.dumps({"params": final, "steps": run.step_count, **more})
        )


if __name__ == "__main__":
    main()
