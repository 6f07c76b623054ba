"""The options that describe a trainer, for the command line and #BFT lines.

``submit`` merges both sources and ``spec`` makes a ``TrainerSpec`` of them.
"""

from __future__ import annotations

import re

import click

from bftrainer.api.admission import check_sizes, read_request
from bftrainer.cli.batch_options import batch_options
from bftrainer.cli.export import parse_variable
from bftrainer.cli.when_options import when_options
from bftrainer.elastic.backend_choice import BACKENDS
from bftrainer.model.errors import UsageError
from bftrainer.model.trainer import Launch

_SIZES = re.compile(r"(\d{1,9})(?:(?:[:-]|\.\.)(\d{1,9}))?\Z", re.ASCII)


def parse_sizes(text: str) -> tuple[int, int]:
    """Return n_min and n_max of ``4`` or ``1:8`` (``1-8`` as in sbatch).

    Raises:
        UsageError: BFT-1002 when this is not a range.
    """
    match = _SIZES.match(text)
    if match is None:
        raise UsageError(
            "BFT-1002",
            f"{text[:60]!r} is not a number of nodes.",
            "Write --nodes N or --nodes MIN:MAX.",
        )
    n_min = int(match[1])
    n_max = int(match[2] or match[1])
    check_sizes(n_min, n_max)
    return n_min, n_max


def parse_gres(text: str) -> str:
    """Return the GPU request; raise BFT-1040 if it is invalid."""
    read_request(text, "")
    return text


def parse_constraint(text: str) -> str:
    """Return the constraint; raise BFT-1040 if it is invalid."""
    read_request("", text)
    return text


def spec_options() -> list[click.Option]:
    """Return all options that are also allowed in #BFT lines."""
    return [
        click.Option(
            ["-J", "--job-name", "--name", "name"], metavar="NAME", help="Name of the trainer."
        ),
        *_size_options(),
        click.Option(
            ["--curve"],
            default="auto",
            metavar="FILE|auto",
            help="Throughput by size as JSON, or auto: a guess until it is measured.",
        ),
        click.Option(["-D", "--chdir", "cwd"], metavar="DIR", help="Working directory."),
        click.Option(["--interpreter"], metavar="PATH", help="Python that runs the script."),
        click.Option(["--venv"], metavar="DIR", help="Virtual environment that runs it."),
        click.Option(
            ["--checkpoint-dir"],
            metavar="DIR",
            help="Where its state is kept, on a file system all nodes see.  "
            "[default: bft-NAME in the working directory]",
        ),
        click.Option(
            ["--checkpoint-interval", "checkpoint_interval_s"],
            type=float,
            default=60.0,
            show_default=True,
            metavar="SECONDS",
            help="At most this much work is lost when a node is taken.",
        ),
        click.Option(
            ["--export", "environment"],
            type=parse_variable,
            multiple=True,
            metavar="KEY=VALUE|KEY|ALL|NONE",
            help="Environment of its workers: a variable, or ALL of yours; repeat for more.  "
            "[default: NONE]",
        ),
        click.Option(
            ["--preamble"],
            metavar="FILE",
            help="Shell file that runs on every node before the trainer: module load, activate.",
        ),
        *batch_options(),
        *_standing_options(),
        *when_options(),
        *_runtime_options(),
        *_contract_options(),
    ]


def _standing_options() -> list[click.Option]:
    """Return the options on account, priority and the limit of failures."""
    return [
        click.Option(
            ["-A", "--account"],
            default="",
            metavar="NAME",
            help="Account its nodes are charged to, as for sbatch.  [default: yours]",
        ),
        click.Option(
            ["--weight"],
            type=float,
            default=1.0,
            show_default=True,
            metavar="W",
            help="Priority under the weighted objective.",
        ),
        click.Option(
            ["--max-failures"],
            type=int,
            metavar="N",
            help="Give up at the N-th failure; lost nodes do not count.  "
            "[default: only consecutive failures count]",
        ),
        click.Option(
            ["--notify"],
            metavar="mail[:ADDRESS]|COMMAND",
            help="Run by the daemon once when the trainer has ended.",
        ),
    ]


def _runtime_options() -> list[click.Option]:
    """Return the options on runtime and back end."""
    return [
        click.Option(
            ["--runtime"],
            default="torch",
            show_default=True,
            metavar="NAME",
            help="How workers are launched: torch, horovod, mpi, or command for any program.",
        ),
        click.Option(
            ["--backend"],
            type=click.Choice(BACKENDS),
            default="auto",
            show_default=True,
            help="Averages gradients: nccl where every worker has a GPU, gloo otherwise.",
        ),
    ]


def _size_options() -> list[click.Option]:
    """Return the options on nodes, workers and amount of work."""
    return [
        click.Option(
            ["-N", "--nodes", "sizes"],
            type=parse_sizes,
            default="1",
            metavar="MIN:MAX",
            help="Sizes it may have, in nodes: 1:8, or 4 for exactly four.  [default: 1]",
        ),
        click.Option(
            ["--workers-per-node"],
            type=int,
            metavar="N",
            help="Workers on every node, which share its GPUs evenly.  "
            "[default: with --runtime torch one for each GPU in --gres, else 1]",
        ),
        click.Option(
            ["--gres"],
            type=parse_gres,
            default="",
            metavar="gpu[:TYPE][:COUNT]",
            help="GPUs required on every node, as for sbatch: gpu:a100:4.",
        ),
        click.Option(
            ["-C", "--constraint"],
            type=parse_constraint,
            default="",
            metavar="FEATURES",
            help="Features required on every node, as for sbatch: 'a100&nvlink'.",
        ),
        click.Option(["--epochs"], type=int, metavar="N", help="Passes over the data."),
        click.Option(["--samples"], type=int, metavar="N", help="Samples to train on."),
    ]


def _contract_options() -> list[click.Option]:
    """Return the options on the checkpoint contract of runtime command."""
    return [
        click.Option(
            ["--launch"],
            type=click.Choice([str(launch) for launch in Launch]),
            help="Start the command on every node or on the first only.  [default: every]",
        ),
        click.Option(
            ["--checkpoint-signal", "stop_signal"],
            metavar="NAME|none",
            help="Asks a command to write its checkpoint and end.  [default: USR1]",
        ),
        click.Option(
            ["--save-signal"],
            metavar="NAME|none",
            help="Asks it to write a checkpoint and go on.  [default: none]",
        ),
        click.Option(
            ["--checkpoint-status", "saved_status"],
            type=int,
            metavar="N",
            help="Its exit status when the checkpoint is written.  [default: 85]",
        ),
        click.Option(
            ["--checkpoint-grace", "grace_s"],
            type=float,
            metavar="SECONDS",
            help="Limit for writing it and ending; then SIGKILL.  [default: 60]",
        ),
    ]
