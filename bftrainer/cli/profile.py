"""``bftrainer profile allreduce`` and ``bftrainer profile SCRIPT``: predict how a trainer scales.

Measures the cost of an all-reduce (once per cluster) and the time of a step of one node (per
script), and predicts the throughput at each size, as a file for ``submit --curve``. The file also
says from how many nodes on a worker's memory is enough, if not on one.

Processes in the user's interpreter measure (``trainers.profiler``); all have ended on return.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from bftrainer.batch import process
from bftrainer.cli.module_script import AS_MODULE, file_of
from bftrainer.cli.options import JSON, VerbGroup, argument, option, shown_example, verb
from bftrainer.cli.output import print_json, print_lines, print_table
from bftrainer.cli.step_probes import PROGRAMS, NodeProfile, measure_steps, too_large
from bftrainer.decide.throughput.analyzer import (
    AllreduceTable,
    predict,
    table_document,
    table_from,
)
from bftrainer.ground.main_module import described
from bftrainer.ground.regular_file import read_file
from bftrainer.model.columns import counted
from bftrainer.model.errors import BftError, UsageError
from bftrainer.model.quantities import quantity

ALLREDUCE_TIMEOUT_S = 180.0
_MOST_BYTES = 1 << 20  # of a table
GIB = 1 << 30
SPARE = 0.05  # of a GPU's memory, for communicators between nodes and fragments: assumed
_Cells = dict[str, Any]  # to measure: weights, workers and the time for each of them, cell_s
_OUT = option("--out FILE", "Write it to FILE.", click.Path(dir_okay=False))
_INTERPRETER = option("--interpreter PATH", "Python that has torch.")


def measure_allreduce(interpreter: str, cells: _Cells) -> AllreduceTable:
    """Measure on this machine, one process per worker.

    Raises:
        BftError: BFT-4201, a worker failed.
    """
    size = max(cells["workers"])
    if shutil.which(interpreter) is None:  # where a child that starts would have to say so
        raise _failed(f"{interpreter} is not a program")
    # Several workers share the machine: one interface that is always there.
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="bft-allreduce-") as directory, ExitStack() as cleanup:
        meet = str(Path(directory) / "meet")
        for rank in range(1, size):
            child = process.spawn(_argv(interpreter, cells, rank, size, meet), env=env)
            cleanup.callback(child.wait)
            cleanup.callback(process.kill_group, child.pid)
        argv = _argv(interpreter, cells, 0, size, meet)
        completed = process.run(argv, timeout_s=ALLREDUCE_TIMEOUT_S, env=env)
    return _table(completed, cells)


def join_allreduce(
    interpreter: str, cells: _Cells, *, rank: int, size: int, meet: str
) -> AllreduceTable | None:
    """Be one of ``size`` workers on several machines; the table comes back on rank 0.

    Raises:
        BftError: BFT-4201, a worker failed.
    """
    cells = {**cells, "workers": [count for count in powers_of_two(size) if count > 1]}
    argv = _argv(interpreter, cells, rank, size, meet)
    completed = process.run(argv, timeout_s=ALLREDUCE_TIMEOUT_S)
    if rank != 0 and completed.is_ok:
        return None
    return _table(completed, cells)


def powers_of_two(limit: int) -> list[int]:
    """1, 2, 4 ... and the limit itself."""
    return sorted({2**exponent for exponent in range(limit.bit_length())} | {limit})


def interpreter_or_ours(chosen: str | None) -> str:
    """Return the interpreter to use: as for ``submit``, the environment that is active.

    Raises:
        UsageError: BFT-1006, its Python or torch is too old.
    """
    from bftrainer.cli.submit_checks import require_release  # noqa: PLC0415 - heavy; -h needs none

    prefix = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    usual = sys.executable
    if prefix:
        usual = str(Path(prefix) / "bin" / "python")
    interpreter = chosen or usual
    require_release(interpreter)
    return interpreter


def _argv(interpreter: str, cells: _Cells, rank: int, size: int, meet: str) -> list[str]:
    config = json.dumps({**cells, "rank": rank, "size": size, "meet": meet})
    return [interpreter, str(PROGRAMS / "allreduce.py"), config]


def _table(completed: process.Completed, cells: _Cells) -> AllreduceTable:
    seconds = None
    with suppress(ValueError, IndexError, KeyError, TypeError):
        seconds = json.loads(completed.stdout.strip().splitlines()[-1])["seconds"]
    if seconds is None or not completed.is_ok:
        why = _last_line(completed)
        if completed.timed_out:
            why = "it took too long"
        raise _failed(why or "a worker printed nothing")
    return AllreduceTable(
        weights=tuple(cells["weights"]),
        workers=tuple(cells["workers"]),
        seconds=tuple(tuple(map(float, row)) for row in seconds),
    )


def _failed(why: str) -> BftError:
    return BftError(
        "BFT-4201",
        f"The all-reduces could not be measured: {why}.",
        "Name an interpreter that has torch with --interpreter; fewer --workers need less.",
    )


def _last_line(completed: process.Completed) -> str:
    lines = completed.stderr.strip().splitlines()
    return lines[-1].strip() if lines else ""


def _numbers(least: int) -> Callable[[Any, Any, str], list[int]]:
    def parse(_context: Any, parameter: Any, text: str) -> list[int]:
        try:
            numbers = sorted({int(float(part)) for part in text.split(",")})
        except (ValueError, OverflowError):
            numbers = []
        if not numbers or numbers[0] < least or numbers[-1] > 10**10:
            raise UsageError(
                "BFT-4200",
                f"--{parameter.name} {text[:60]!r} is not a list of numbers from {least} on.",
                f"Write --{parameter.name} {least},{2 * least},{4 * least}.",
            )
        return numbers

    return parse


class _ScriptOrVerb(VerbGroup):
    """A group in which whatever is not ``allreduce`` is a script."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the script, too, for its help."""
        return ["SCRIPT", *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Take anything that is no other command for a script."""
        return super().get_command(ctx, cmd_name) or script_command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the other command, or else files."""
        items = super().shell_complete(ctx, incomplete)
        verbs = [item for item in items if item.value != "SCRIPT"]
        return verbs or [CompletionItem(incomplete, type="file")]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Hand everything to ``script`` that names no other command."""
        if args[0] in self.commands:
            return super().resolve_command(ctx, args)
        return "SCRIPT", script_command, args


@click.group(
    cls=_ScriptOrVerb,
    subcommand_metavar="allreduce | SCRIPT [OPTIONS] [ARGS]...",
    context_settings={"ignore_unknown_options": True},
    epilog=shown_example("bftrainer profile --nodes 32 --table table.json train.py"),
)
def profile() -> None:
    """Predict how a script scales before it runs on many nodes.

    allreduce measures, once per cluster, what exchanging gradients costs. With a SCRIPT its
    steps are timed on one node; both together give a curve for submit --curve.
    """


@verb(
    option("--weights N,...", "Numbers of 4-byte weights.", default="1e4,1e5,1e6,1e7",
           callback=_numbers(1)),
    option("--workers K,...", "Numbers of workers on this machine.", default="2,4",
           callback=_numbers(2)),
    option("--seconds", "Time for each number of weights and workers.",
           click.FloatRange(0.01, 60.0), 0.4, name="cell_s"),
    option("--join HOST:PORT", "Measure between machines: run this on each of them (under srun, "
           "say); rank 0 is on HOST and prints the table.", name="meet"),
    option("--rank", "With --join.  [default: $SLURM_PROCID]", click.IntRange(0),
           envvar="SLURM_PROCID"),
    option("--of", "Workers, with --join.  [default: $SLURM_NTASKS]", click.IntRange(2),
           name="size", envvar="SLURM_NTASKS"),
    _INTERPRETER, _OUT, JSON, group=profile,
    example="bftrainer profile allreduce --workers 2,4 --out table.json",
)  # fmt: skip
def allreduce(
    weights: list[int],
    workers: list[int],
    cell_s: float,
    meet: str | None,
    rank: int | None,
    size: int | None,
    interpreter: str | None,
    out: str | None,
    *,
    as_json: bool,
) -> None:
    """Measure all-reduces with real gloo processes and print the table."""
    python = interpreter_or_ours(interpreter)
    cells = {"weights": weights, "workers": workers, "cell_s": cell_s}
    if meet is None:
        table: AllreduceTable | None = measure_allreduce(python, cells)
    elif rank is None or size is None or ":" not in meet or rank >= size:
        raise UsageError(
            "BFT-4204",
            "--join needs HOST:PORT, a rank and the number of workers.",
            "Write --join HOST:PORT --rank R --of N with R below N, or run it under srun.",
        )
    else:
        table = join_allreduce(python, cells, rank=rank, size=size, meet=meet)
    if table is None:
        return
    about = {"host": os.uname().nodename, "one_machine": meet is None}
    document = table_document(table, about)
    _write(out, document)
    if as_json:
        print_json(document)
        return
    headers = [">workers", *(f">{quantity(count)} weights, ms" for count in table.weights)]
    rows = []
    for n_workers, times_s in zip(table.workers, table.seconds, strict=True):
        rows.append([str(n_workers), *(f"{1e3 * time_s:.3f}" for time_s in times_s)])
    print_table(headers, rows)


@verb(
    option("--steps", "Steps to time at each size.", click.IntRange(1, 10_000), 10),
    option("--nodes MAX", "Largest size of the curve.", click.IntRange(1, 1_000_000), 16,
           name="n_max"),
    option("--workers-per-node", "Workers that share this node, as for submit.",
           click.IntRange(1, 1024), 1, name="per_node"),
    option("--memory-per-worker GIB", "Say from how many nodes on a worker needs no more.  "
           "[default: what its GPU has]", click.FloatRange(0.001), name="memory_gib"),
    option("--table FILE", "What profile allreduce --out FILE wrote."),
    option("--limit", "Seconds after which the script is ended.", click.FloatRange(1.0), 300.0,
           name="limit_s"),
    _INTERPRETER, _OUT, JSON,
    AS_MODULE,
    argument("script"),
    argument("args", click.UNPROCESSED, nargs=-1),
    name="SCRIPT",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    example="bftrainer profile --nodes 32 --table table.json train.py",
)  # fmt: skip
def script_command(
    script: str,
    args: tuple[str, ...],
    steps: int,
    n_max: int,
    per_node: int,
    memory_gib: float | None,
    table: str | None,
    limit_s: float,
    interpreter: str | None,
    out: str | None,
    *,
    is_module: bool,
    as_json: bool,
) -> None:
    """Time the steps of SCRIPT on one node; with --table, predict its curve."""
    allreduce_table = _table_of(table)
    if out is not None and allreduce_table is None:
        raise UsageError(
            "BFT-4205",
            "--out writes the predicted curve, which needs --table.",
            "Measure one first: bftrainer profile allreduce --out TABLE.",
        )
    sizes = powers_of_two(n_max)
    python = interpreter_or_ours(interpreter)
    environment: tuple[tuple[str, str], ...] = ()
    if is_module:
        module = script
        values = {} if interpreter is None else {"interpreter": interpreter}
        script = file_of(module, values, os.environ)
        environment = (described(module, script),)
    else:
        click.Path(exists=True, dir_okay=False)(script)
    node = measure_steps(
        *(python, script, args, environment),
        sizes=sizes, steps=steps, limit_s=limit_s, per_node=per_node,
    )  # fmt: skip
    fits_from = _least_nodes(node, n_max, memory_gib)
    curve: dict[str, Any] | None = None
    if allreduce_table is not None:
        smallest = fits_from or 1
        fitting = sorted({smallest, *(size for size in sizes if size >= smallest)})
        prediction = predict(node.steps, allreduce_table, fitting)
        curve = {"sizes": list(prediction.sizes), "samples_per_s": list(prediction.samples_per_s)}
        if smallest > 1:  # releases before know nothing of it
            curve |= {"fits_from": smallest, "workers_per_node": per_node}
        _write(out, curve)
    if as_json:
        print_json(_document(node, fits_from, curve))
    else:
        _print(node, fits_from, curve)


def _document(
    node: NodeProfile, fits_from: int | None, curve: dict[str, Any] | None
) -> dict[str, Any]:
    return {
        "weights": node.steps.weights,
        "global_batch": node.steps.global_batch,
        "batches": node.steps.batches,
        "seconds": node.steps.seconds,
        "nodes": node.nodes,
        "fits_from": fits_from,
        "memory_bytes": [round(node.memory.at_bytes(size)) for size in node.nodes],
        "curve": curve,
    }


def _table_of(path: str | None) -> AllreduceTable | None:
    if path is None:
        return None
    try:
        return table_from(json.loads(read_file(path, _MOST_BYTES, is_typed=True)), path)
    except (OSError, ValueError) as problem:
        raise UsageError(
            "BFT-4202",
            f"{path} cannot be read: {problem}.",
            "Make one with: bftrainer profile allreduce --out FILE",
        ) from problem


def _least_nodes(node: NodeProfile, n_max: int, memory_gib: float | None) -> int | None:
    """Return the smallest number of nodes that fits; None: a worker's memory is not known.

    Raises:
        BftError: BFT-4206, ``n_max`` do not fit either.
    """
    limit = (memory_gib or 0.0) * GIB or node.gpu_bytes * (1.0 - SPARE)
    if not limit and not node.memory.failed:
        return None
    fits_from = node.memory.fits_from(limit)
    if fits_from is None:
        needs = node.memory.at_bytes(n_max)
        raise too_large(n_max, f": it needs {needs / GIB:.2f} of {limit / GIB:.2f} GiB")
    return fits_from


def _print(node: NodeProfile, fits_from: int | None, curve: dict[str, Any] | None) -> None:
    steps = node.steps
    print_lines(f"{steps.weights} weights, {steps.global_batch} samples per update")
    rows = []
    for size in node.nodes:
        share = -(-steps.batch_at(size) // size)  # rounded up
        step_ms = 1e3 * steps.time_s(share)
        memory_gib = node.memory.at_bytes(size) / GIB
        rows.append([str(size), str(share), f"{step_ms:.3f}", f"{memory_gib:.3f}"])
    headers = [">nodes", ">samples of a node's step", ">ms", ">GiB of a worker"]
    print_table(headers, rows)
    if fits_from is not None:
        print_lines(f"it fits on {counted(fits_from, 'node')} and more")
    if curve is not None:
        rates = zip(curve["sizes"], curve["samples_per_s"], strict=True)
        rows = [[str(size), quantity(samples_per_s, 4)] for size, samples_per_s in rates]
        print_table([">nodes", ">samples/s, predicted"], rows)


def _write(out: str | None, body: dict[str, Any]) -> None:
    if out is not None:
        Path(out).write_text(json.dumps(body, indent=1) + "\n")
