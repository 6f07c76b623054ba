"""The options that describe a trainer, for the command line and #BFT lines.

``spec`` makes a ``TrainerSpec`` of both sources, ``submission`` several of it for an array.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import click

from bftrainer.api.admission import (
    MAX_STRING_BYTES,
    MAX_VARIABLES,
    RANGES,
    check_after,
    check_sizes,
    check_string,
    is_variable,
    read_request,
)
from bftrainer.elastic.backend_choice import BACKENDS
from bftrainer.model.columns import shown
from bftrainer.model.errors import UsageError
from bftrainer.model.trainer import ADASCALE, LR_RULES, BatchRange, Launch

ALL, NONE = "*ALL", "*NONE"  # in place of a name, which they cannot be
MOST_BYTES = 64 * 1024  # of the submitting environment: half of what a submission may have
# What describes the login session, its host or another job: wrong on a node.
_PREFIXES = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "PMI", "BFT", "SSH_", "XDG_", "TMUX", "DBUS_")
_NAMES = frozenset(
    {
        "_", "CUDA_VISIBLE_DEVICES", "DISPLAY", "GPU_DEVICE_ORDINAL", "HOSTNAME", "OLDPWD", "PWD",
        "ROCR_VISIBLE_DEVICES", "SHLVL", "STY", "TMPDIR", "WAYLAND_DISPLAY", "XAUTHORITY",
        "ZE_AFFINITY_MASK",
    }
)  # fmt: skip


def parse_variable(text: str) -> tuple[str, str]:
    """Return name and value of ``KEY=VALUE``, or of ``KEY`` from our environment."""
    key, has_value, value = text.partition("=")
    if has_value and not key.startswith(("ALL,", "NONE,")):
        return key, value
    if text in ("ALL", "NONE"):
        return f"*{text}", ""
    if "," in key:
        raise click.BadParameter(
            f"{text[:60]!r} lists several; repeat it: --export ALL --export KEY=VALUE."
        )
    if key not in os.environ:
        raise click.BadParameter(f"{key[:60]!r} is not set here; write {key[:60]}=VALUE.")
    return key, os.environ[key]


def exported(
    given: Sequence[tuple[str, str]], environ: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """Return the variables; a name given explicitly wins, ``NONE`` forgets what came before it."""
    own: dict[str, str] = {}
    has_all = False
    for name, value in given:
        if name in (ALL, NONE):
            own, has_all = (own, True) if name == ALL else ({}, False)
        else:
            own[name] = value
    if not has_all:
        return tuple(own.items())
    taken, left_out = _submitting(environ, MAX_VARIABLES - len(own))
    if told := [text for name, text in left_out if name not in own]:
        click.echo(f"warning: --export ALL leaves out {', '.join(told)}", err=True)
    return tuple({**taken, **own}.items())


def _submitting(
    environ: Mapping[str, str], most: int
) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Return what is taken of the environment; names and reasons of what else would be."""
    taken: dict[str, str] = {}
    left_out: list[tuple[str, str]] = []
    room = MOST_BYTES
    wanted = {
        name: value
        for name, value in environ.items()
        if is_variable(name) and name not in _NAMES and not name.startswith(_PREFIXES)
    }
    for name, value in sorted(wanted.items(), key=lambda pair: (len(pair[1]), pair[0])):
        length = len(os.fsencode(value))
        try:
            check_string(name, value, limit_bytes=MAX_STRING_BYTES)
        except UsageError:
            why = f"{length} bytes" if length > MAX_STRING_BYTES else "not one line of UTF-8"
        else:
            room -= len(name) + length
            why = "" if room >= 0 and len(taken) < most else f"{length} bytes, too many in all"
        if why:
            left_out.append((name, f"{shown(name)} ({why})"))
        else:
            taken[name] = value
    return dict(sorted(taken.items())), left_out


_RANGE = re.compile(r"(\d{1,9}):(\d{1,9})\Z", re.ASCII)
_NEXT = "Write --batch MIN:MAX --batch-per-worker N, as in --batch 128:1024 --batch-per-worker 64."


def parse_range(text: str) -> tuple[int, int]:
    """Return the least and the greatest batch of ``128:1024``; raise BFT-1067."""
    match = _RANGE.match(text)
    if match is None:
        raise UsageError("BFT-1067", f"{text[:60]!r} is not a range of batches.", _NEXT)
    return int(match[1]), int(match[2])


def batch_options() -> list[click.Option]:
    """Return the options."""
    return [
        click.Option(
            ["--batch"],
            type=parse_range,
            metavar="MIN:MAX",
            help="Let the global batch follow the size, within MIN and MAX samples.  "
            "[default: the script's]",
        ),
        click.Option(
            ["--batch-per-worker"],
            type=int,
            metavar="N",
            help="With --batch: samples that one worker can process at once.",
        ),
        click.Option(
            ["--lr-rule"],
            type=click.Choice(LR_RULES),
            help="With --batch: how the learning rate follows it.  "
            "[default: adascale with --runtime torch, else none]",
        ),
    ]


def batch_range(values: Mapping[str, Any]) -> BatchRange | None:
    """Return the range; None if it was not given.

    Raises:
        UsageError: BFT-1067, an option is missing.
    """
    given, most, rule = (values.get(k) for k in ("batch", "batch_per_worker", "lr_rule"))
    if given is None and most is None and rule is None:
        return None
    if given is None or most is None:
        missing = "--batch" if given is None else "--batch-per-worker"
        raise UsageError("BFT-1067", f"{missing} is missing.", _NEXT)
    if rule is None:
        rule = ADASCALE if values["runtime"] == "torch" else "none"
    return BatchRange(least=given[0], most=given[1], per_worker=most, lr_rule=rule)


MAX_ARRAY = 1000  # trainers of one array
MAX_INDEX = 999_999
_UNITS_S = {"": 1, "s": 1, "second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_FROM_NOW = re.compile(r"now(?:\+(\d{1,9})([a-z]*))?\Z", re.ASCII)
_FORMS = ("%H:%M", "%H:%M:%S", "%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S")
_PART = re.compile(r"(\d{1,6})(?:-(\d{1,6})(?::(\d{1,6}))?)?\Z", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayOption:
    """Value of ``--array``."""

    indices: tuple[int, ...]  # in the order of submission
    limit: int | None = None  # so many have nodes at once


def parse_ids(text: str) -> tuple[str, ...]:
    """Return the trainers of ``t1,t2``; raise BFT-1044 if one of them is no id."""
    ids = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    check_after(ids)
    return ids


def parse_begin(text: str, now_s: float | None = None) -> float:
    """Return the time of ``now+1hour``, ``HH:MM`` or ``YYYY-MM-DDTHH:MM``, as for sbatch.

    Raises:
        UsageError: BFT-1045 if this is none of them.
    """
    now_s = time.time() if now_s is None else now_s
    if match := _FROM_NOW.match(text):
        unit = (match[2] or "").removesuffix("s") or (match[2] or "")
        if unit in _UNITS_S:
            return now_s + int(match[1] or 0) * _UNITS_S[unit]
    for form in _FORMS:
        try:
            at = datetime.strptime(text, form)  # noqa: DTZ007 - local time, as for sbatch
            if form.startswith("%H"):
                now = datetime.fromtimestamp(now_s)  # noqa: DTZ006 - likewise
                at = datetime.combine(now.date(), at.time())
                at += timedelta(days=1 if at <= now else 0)  # the next time it is so late
            if 0 <= (begin_s := at.timestamp()) <= RANGES["--begin"][1]:
                return begin_s
        except (ValueError, OverflowError, OSError):
            continue
    raise UsageError(
        "BFT-1045",
        f"{text[:60]!r} is not a time.",
        "Write --begin now+2hours (seconds, minutes, hours, days, weeks), 22:30 or"
        " 2031-12-24T22:30.",
    )


def parse_array(text: str) -> ArrayOption:
    """Return the indices of ``0-9``, ``1,4-8:2`` or ``0-99%10``, as for sbatch.

    Raises:
        UsageError: BFT-1046 if it is malformed or has too many.
    """
    listed, has_limit, limit = text.partition("%")
    indices: dict[int, None] = {}
    for part in listed.split(","):
        match = _PART.match(part)
        if match is None:
            raise _no_array(f"{text[:60]!r} is not a list of indices.")
        first, last = int(match[1]), int(match[2] or match[1])
        step = int(match[3] or 1)
        if last < first or not step:
            raise _no_array(f"{part!r} is not a range of indices.")
        if (last - first) // step >= MAX_ARRAY:
            raise _no_array(f"{part!r} has more than {MAX_ARRAY} indices.")
        indices |= dict.fromkeys(range(first, last + 1, step))
    if len(indices) > MAX_ARRAY:
        raise _no_array(f"It has {len(indices)} indices; the limit is {MAX_ARRAY}.")
    if has_limit and not re.fullmatch(r"[1-9]\d{0,5}", limit, re.ASCII):
        raise _no_array(f"{limit[:20]!r} is not a number of trainers at once.")
    return ArrayOption(indices=tuple(sorted(indices)), limit=int(limit) if limit else None)


def _no_array(cause: str) -> UsageError:
    return UsageError("BFT-1046", cause, "Write --array 0-9, 1,3,5-7 or 0-99%10 (10 at once).")


def when_options() -> list[click.Option]:
    """Return the options on when it starts."""
    return [
        click.Option(
            ["--after"],
            type=parse_ids,
            metavar="ID[,ID...]",
            help="Start it when those have finished; never, if one fails or is cancelled.",
        ),
        click.Option(
            ["--after-any"],
            type=parse_ids,
            metavar="ID[,ID...]",
            help="Start it when those have ended, in whatever way.",
        ),
        click.Option(
            ["--begin", "begin_s"],
            type=parse_begin,
            metavar="TIME",
            help="Start it at that time at the earliest: now+1hour, 22:30, 2031-12-24T22:30.",
        ),
        click.Option(["--hold"], is_flag=True, help="Submit it held; see 'bftrainer release'."),
        click.Option(
            ["--array"],
            type=parse_array,
            metavar="LIST[%N]",
            help="One trainer for each index: 0-9, or 0-99%10 for ten of them at once.",
        ),
    ]


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
