"""``bftrainer profile allreduce`` and ``bftrainer profile SCRIPT``: predict scaling.

Measures the cost of an all-reduce (once per cluster) and the time of a step of one worker (per
script), and predicts the throughput at each size, as a file for ``submit --curve``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from bftrainer.cli.common import json_option, print_json, print_table
from bftrainer.cli.profile_runs import (
    interpreter_or_ours,
    join_allreduce,
    measure_allreduce,
    measure_steps,
    powers_of_two,
    read_table,
)
from bftrainer.decide.throughput.analyzer import AllreduceTable, predict, table_document
from bftrainer.model.errors import UsageError

_OUT = click.option(
    "--out", type=click.Path(dir_okay=False), metavar="FILE", help="Write it to FILE."
)
_INTERPRETER = click.option("--interpreter", metavar="PATH", help="Python that has torch.")


def _numbers(least: int) -> Callable[[Any, Any, str], list[int]]:
    def parse(_context: Any, parameter: Any, text: str) -> list[int]:
        try:
            found = sorted({int(float(part)) for part in text.split(",")})
        except (ValueError, OverflowError):
            found = []
        if not found or found[0] < least or found[-1] > 10**10:
            raise UsageError(
                "BFT-4200",
                f"--{parameter.name} {text[:60]!r} is not a list of numbers from {least} on.",
                f"Write --{parameter.name} {least},{2 * least},{4 * least}.",
            )
        return found

    return parse


class _ScriptOrVerb(click.Group):
    """A group in which whatever is not ``allreduce`` is a script."""

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
)
def profile() -> None:
    """Predict how a script scales before it runs on many nodes.

    allreduce measures, once per cluster, what exchanging gradients costs. With a SCRIPT its
    steps are timed on one worker; both together give a curve for submit --curve.
    """


@profile.command()
@click.option("--weights", callback=_numbers(1), default="1e4,1e5,1e6,1e7", show_default=True,
              metavar="N,...", help="Numbers of 4-byte weights.")  # fmt: skip
@click.option("--workers", callback=_numbers(2), default="2,4", show_default=True, metavar="K,...",
              help="Numbers of workers on this machine.")  # fmt: skip
@click.option("--seconds", "cell_s", type=click.FloatRange(0.01, 60.0), default=0.4,
              show_default=True, help="Time for each number of weights and workers.")  # fmt: skip
@click.option("--join", "meet", metavar="HOST:PORT",
              help="Measure between machines: run this on each of them (under srun, say); rank 0 "
              "is on HOST and prints the table.")  # fmt: skip
@click.option("--rank", type=click.IntRange(0), envvar="SLURM_PROCID",
              help="With --join.  [default: $SLURM_PROCID]")  # fmt: skip
@click.option("--of", "size", type=click.IntRange(2), envvar="SLURM_NTASKS",
              help="Workers, with --join.  [default: $SLURM_NTASKS]")  # fmt: skip
@_INTERPRETER
@_OUT
@json_option
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
    if meet is None:
        found: AllreduceTable | None = measure_allreduce(python, weights, workers, cell_s)
    elif rank is None or size is None or ":" not in meet or rank >= size:
        raise UsageError(
            "BFT-4204",
            "--join needs HOST:PORT, a rank and the number of workers.",
            "Write --join HOST:PORT --rank R --of N with R below N, or run it under srun.",
        )
    else:
        found = join_allreduce(python, weights, cell_s, rank=rank, size=size, meet=meet)
    if found is None:
        return
    about = {"host": os.uname().nodename, "one_machine": meet is None}
    written = table_document(found, about)
    _write(out, written)
    if as_json:
        print_json(written)
        return
    headers = [">workers", *(f">{n:.3g} weights, ms" for n in found.weights)]
    rows = [
        [str(k), *(f"{1e3 * t:.3f}" for t in row)]
        for k, row in zip(found.workers, found.seconds, strict=True)
    ]
    print_table(headers, rows)


@click.command(name="SCRIPT", context_settings={"ignore_unknown_options": False,
                                                "allow_interspersed_args": False})  # fmt: skip
@click.option("--steps", type=click.IntRange(1, 10_000), default=10, show_default=True,
              help="Steps to time at each size.")  # fmt: skip
@click.option("--nodes", "n_max", type=click.IntRange(1, 1_000_000), default=16, show_default=True,
              metavar="MAX", help="Largest size of the curve.")  # fmt: skip
@click.option("--table", metavar="FILE", help="What profile allreduce --out FILE wrote.")
@click.option("--limit", "limit_s", type=click.FloatRange(1.0), default=300.0, show_default=True,
              help="Seconds after which the script is ended.")  # fmt: skip
@_INTERPRETER
@_OUT
@json_option
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def script_command(
    script: str,
    args: tuple[str, ...],
    steps: int,
    n_max: int,
    table: str | None,
    limit_s: float,
    interpreter: str | None,
    out: str | None,
    *,
    as_json: bool,
) -> None:
    """Time the steps of SCRIPT on one worker; with --table, predict its curve."""
    known = None if table is None else read_table(table)
    if out is not None and known is None:
        raise UsageError(
            "BFT-4205",
            "--out writes the predicted curve, which needs --table.",
            "Measure one first: bftrainer profile allreduce --out TABLE.",
        )
    sizes = powers_of_two(n_max)
    found = measure_steps(interpreter_or_ours(interpreter), script, args, sizes, steps, limit_s)
    curve = None if known is None else predict(found, known, sizes)
    written = None
    if curve is not None:
        written = {"sizes": list(curve.sizes), "samples_per_s": list(curve.samples_per_s)}
        _write(out, written)
    if as_json:
        print_json(
            {
                "weights": found.weights,
                "global_batch": found.global_batch,
                "batches": list(found.batches),
                "seconds": list(found.seconds),
                "curve": written,
            }
        )
        return
    click.echo(f"{found.weights} weights, {found.global_batch} samples per update")
    rows = [[str(b), f"{1e3 * t:.3f}"] for b, t in zip(found.batches, found.seconds, strict=True)]
    print_table([">samples in a step", ">ms on one worker"], rows)
    if curve is not None:
        rates = zip(curve.sizes, curve.samples_per_s, strict=True)
        print_table([">nodes", ">samples/s, predicted"], [[str(n), f"{r:.4g}"] for n, r in rates])


def _write(out: str | None, body: dict[str, Any]) -> None:
    if out is not None:
        Path(out).write_text(json.dumps(body, indent=1) + "\n")
