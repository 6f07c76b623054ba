#!/usr/bin/env python3
"""How long a rescale stops a training, beside other systems; and what a step costs.

Real processes, loopback; on CPUs with gloo, on GPUs (``--device cuda``) with what
``--backend`` says. Agents, server, books and journal are the daemon's own; only the plan comes
from here. *Pause*: from a survivor's last step before a change to its first one after, less the
usual step; of SIGKILL from the kill; the worst survivor counts. *Silent node* and so on: from
SIGSTOP, or the loss of the cable, to the others' next step. ``--hosts``: the same pauses, and
torchrun's, where each node has a network of its own, plain, at 10 and at 1 Gbit/s, beside loopback.
``--sharded``: models sharded over the workers of a node, beside whole ones and torch's HSDP.
*Step*: both arms in turns, the ratio of medians with a bootstrap interval. Other systems are set
up to favour them: rendezvous in a process of its own, shortest time-outs, snapshots on tmpfs,
steps done again not counted.
Prints every target with ``met`` or ``missed``; exits 1 when one is missed.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the tests' control plane

from _bench import sharded_parts, torchft, torchrun
from _bench.benchmark import Benchmark, Measured
from _bench.rescale_found import Found, print_found, results_of, targets_of
from _bench.rescale_hosts import measure_hosts
from _bench.rescale_parts import (
    FULL,
    MODELS,
    PARTS,
    QUICK,
    RIVALS,
    SIZES,
    Amount,
    measure_model,
)
from _bench.rival import SNAPSHOT_STEPS, TIMEOUT_S

from bftrainer.ground.backend_choice import BACKENDS


def measure(options: argparse.Namespace, measured: Measured) -> None:
    """Measure every model; what there is counts also when it is stopped."""
    amount, models = amount_of(options), options.models.split(",")
    # Agents hand on to workers what they were started with.
    os.environ.update(BENCH_DEVICE=options.device, BENCH_BACKEND=options.backend)
    logging.getLogger("bftrainer").setLevel(logging.ERROR)  # we kill workers on purpose
    memory = Path("/dev/shm")  # noqa: S108 - tmpfs is the point; a private directory in it
    results: dict[str, Found] = {}
    with tempfile.TemporaryDirectory(
        prefix="bft-bench-", dir=memory if memory.is_dir() else None
    ) as scratch:
        os.environ.update(BENCH_LOCKS=scratch, BENCH_DDP_BACKEND=ddp_backend(options))
        if options.hosts:
            measured.results["benchmark"] = "rescale_hosts"  # a result of its own
            measured.tables.append(settings(amount))
            measure_hosts(models[0], amount, Path(scratch), measured)
            return
        if options.sharded:
            measured.results["benchmark"] = "rescale_sharded"
            amount_of_sharded = sharded_parts.QUICK if options.quick else sharded_parts.FULL
            parts = options.sharded.split(",")
            sharded_parts.measure_sharded(parts, amount_of_sharded, Path(scratch), measured)
            return
        try:
            for model in models:
                results[model] = Found()
                parts, only = options.parts.split(","), len(models) == 1
                measure_model(model, parts, amount, Path(scratch), results[model], only=only)
        finally:
            measured.tables.append(settings(amount))
            for model, result in results.items():
                print_found(model, result)
                measured.targets += targets_of(model, result)
            measured.results |= {
                "device": options.device,
                "backend": options.backend,
                "torchrun_settings": [*torchrun.ARGUMENTS, torchrun.ENVIRONMENT],
                "torchft_settings": torchft.LIGHTHOUSE,
                "models": {model: results_of(result) for model, result in results.items()},
            }


def settings(amount: Amount) -> str:
    """Say what the others were given."""
    environment = " ".join(f"{k}={v}" for k, v in torchrun.ENVIRONMENT.items())
    return (
        f"torchrun settings: {' '.join(torchrun.ARGUMENTS)}; environment {environment};"
        f" snapshot to tmpfs every {SNAPSHOT_STEPS} steps; rendezvous store in a process"
        f" of its own; no recovery within {TIMEOUT_S:g} s counts as that\n"
        f"torchft settings: torchft_lighthouse {' '.join(torchft.LIGHTHOUSE)}\n"
        "control plane: the daemon's own AgentServer, TrainerBook, GenerationMachine and journal,"
        f" one real agent per node; {amount.cycles} cycles"
    )


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse unknown models and parts."""
    if options.device != "cpu":  # what is measured beside us is set up for CPUs
        options.parts = ",".join(p for p in options.parts.split(",") if p not in RIVALS)
    sharded = (options.sharded or sharded_parts.PARTS[0], sharded_parts.PARTS)
    for names, choices in ((options.models, MODELS), (options.parts, PARTS), sharded):
        if unknown := set(names.split(",")) - set(choices):
            parser.error(f"not known: {', '.join(sorted(unknown))}")


def amount_of(options: argparse.Namespace) -> Amount:
    """Return how much to measure."""
    amount = QUICK if options.quick else FULL
    counts = {"cycles": options.cycles, "rival_cycles": options.rival_cycles}
    counts = {name: count for name, count in counts.items() if count}
    return replace(amount, **counts) if counts else amount


def ddp_backend(options: argparse.Namespace) -> str:
    """Return what DistributedDataParallel is given: the best the machine has for it."""
    if options.device == "cpu" or options.backend == "gloo":
        return "gloo"
    import torch  # noqa: PLC0415 - only where there are GPUs

    return "nccl" if torch.cuda.device_count() >= max(SIZES) else "gloo"


BENCHMARK = Benchmark(
    name="rescale",
    title="Targets",
    about=__doc__,
    quick="4 of each instead of 20",
    options={
        "--models": {"default": ",".join(MODELS), "help": "of: %(default)s"},
        "--parts": {"default": ",".join(PARTS), "help": "of: %(default)s"},
        "--cycles": {"type": int, "default": 0, "help": "of our rescales"},
        "--rival-cycles": {"type": int, "default": 0, "help": "of each other system"},
        "--hosts": {"action": "store_true", "help": "rescales between hosts, and nothing else"},
        "--sharded": {
            "nargs": "?",
            "const": ",".join(sharded_parts.PARTS),
            "help": "sharded models, and nothing else; parts of: %(const)s",
        },
        "--device": {"choices": ("cpu", "cuda"), "default": "cpu", "help": "to train on"},
        "--backend": {
            "choices": BACKENDS,
            "default": "auto",
            "help": "of our generations: %(choices)s",
        },
    },
    check=check,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main(measure))
