"""The options that describe a trainer, and the ``TrainerSpec`` that is made of them.

Options come from the command line and from #BFT lines: only lines before the first one that is
neither blank nor a comment count; an unknown option is an error. ``--dry-run`` prints the same
object that is sent to the daemon.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from bftrainer.api.admission import (
    MAIL,
    MAILERS,
    MAX_STRING_BYTES,
    MAX_VARIABLES,
    RANGES,
    check_after,
    check_preamble,
    check_sizes,
    check_string,
    is_variable,
    read_request,
)
from bftrainer.api.service import user_name
from bftrainer.batch import process
from bftrainer.cli.curve_file import fitting_curve
from bftrainer.cli.options import argument, option
from bftrainer.cli.output import print_lines
from bftrainer.daemon.notifier import mailer
from bftrainer.elastic.backend_choice import BACKENDS
from bftrainer.elastic.main_module import described
from bftrainer.elastic.protocol import NAN_UPDATES
from bftrainer.elastic.regular_file import ANY_OWNER, open_stream, read_file
from bftrainer.model.columns import shown
from bftrainer.model.errors import UsageError
from bftrainer.model.preamble import MAX_BYTES, NOT_STARTED, under, why_not_started
from bftrainer.model.trainer import (
    ADASCALE,
    LR_RULES,
    BatchRange,
    CheckpointContract,
    Launch,
    TrainerSpec,
)
from trainers.agent.surroundings import is_of_pilot

ALL, NONE = "*ALL", "*NONE"  # in place of a name, which they cannot be
MOST_BYTES = 64 * 1024  # of the submitting environment: half of what a submission may have
# What describes the login session, its host or another job: wrong on a node.
_PREFIXES = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "PMI", "BFT", "SSH_", "XDG_", "TMUX", "DBUS_")
_NAMES = frozenset(
    {
        "_", "CUDA_VISIBLE_DEVICES", "DISPLAY", "GPU_DEVICE_ORDINAL", "HOSTNAME", "OLDPWD", "PWD",
        "PYTHONHASHSEED", "ROCR_VISIBLE_DEVICES", "SHLVL", "STY", "TMPDIR", "WAYLAND_DISPLAY",
        "XAUTHORITY", "ZE_AFFINITY_MASK",
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
        print_lines(f"warning: --export ALL leaves out {', '.join(told)}", err=True)
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
        if is_variable(name)
        and name not in _NAMES
        and not name.startswith(_PREFIXES)
        and not is_of_pilot(name)
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


def batch_range(values: Mapping[str, Any]) -> BatchRange | None:
    """Return the range; None if it was not given.

    Raises:
        UsageError: BFT-1067, an option is missing.
    """
    given, most, rule = (values[k] for k in ("batch", "batch_per_worker", "lr_rule"))
    if given is None and most is None and rule is None:
        return None
    if given is None or most is None:
        missing = "--batch" if given is None else "--batch-per-worker"
        raise UsageError("BFT-1067", f"{missing} is missing.", _NEXT)
    if rule is None:
        rule = ADASCALE if values["runtime"] == "torch" else "none"
    return BatchRange(least=given[0], most=given[1], per_worker=most, lr_rule=rule)


MAX_ARRAY = 1000  # trainers of one array
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


_SIZES = re.compile(r"(\d{1,9})(?:(?:[:-]|\.\.)(\d{1,9}))?\Z", re.ASCII)
MAX_SET_CHARS = 512
_SET = re.compile(r"\d{1,9}(?:,\d{1,9})+\Z", re.ASCII)


def parse_sizes(text: str) -> tuple[int, int, tuple[int, ...]]:
    """Return n_min, n_max and the set of ``4``, ``1:8`` (``1-8`` as in sbatch) or ``1,2,4``.

    Raises:
        UsageError: BFT-1002 when this is not a range.
    """
    sizes: tuple[int, ...] = ()
    if len(text) <= MAX_SET_CHARS and _SET.match(text):
        sizes = tuple(sorted(set(map(int, text.split(",")))))
        n_min, n_max = sizes[0], sizes[-1]
    elif match := _SIZES.match(text):
        n_min, n_max = int(match[1]), int(match[2] or match[1])
    else:
        raise UsageError(
            "BFT-1002",
            f"{text[:60]!r} is not a number of nodes.",
            "Write --nodes N, --nodes MIN:MAX or a set of sizes, --nodes 1,2,4.",
        )
    check_sizes(n_min, n_max, sizes)
    return n_min, n_max, sizes


def parse_gres(text: str) -> str:
    """Return the GPU request; raise BFT-1040 if it is invalid."""
    read_request(text, "")
    return text


def parse_constraint(text: str) -> str:
    """Return the constraint; raise BFT-1040 if it is invalid."""
    read_request("", text)
    return text


SPEC_OPTIONS = [
    option("-J, --job-name, --name NAME", "Name of the trainer.", name="name"),
    option("-N, --nodes MIN:MAX", "Sizes it may have, in nodes: 1:8, a set as 1,2,4,8, or 4 for "
           "exactly four.  [default: 1]", parse_sizes, "1", show_default=False, name="sizes"),
    option("--rescale-rest SECONDS", "After a shrink it does not grow for so long.  [default: 0]",
           float, 0.0, show_default=False, name="rescale_rest_s"),
    option("--workers-per-node N", "Workers on every node, which share its GPUs evenly.  [default: "
           "with --runtime torch one for each GPU in --gres, else 1]", int),
    option("--gres gpu[:TYPE][:COUNT]", "GPUs required on every node, as for sbatch: gpu:a100:4.",
           parse_gres, ""),
    option("-C, --constraint FEATURES", "Features required on every node, as for sbatch: "
           "'a100&nvlink'.", parse_constraint, ""),
    option("--epochs N", "Passes over the data.", int),
    option("--samples N", "Samples to train on.", int),
    option("--seed N", "Of torch, random and numpy in all workers, until the script sets its own.  "
           "[default: 0]", int, 0, show_default=False),
    option("--steps N", "Updates of the parameters.", int),
    option("--curve FILE|auto", "Throughput by size as JSON, or auto: a guess until it is "
           "measured.", default="auto", show_default=False),
    option("-D, --chdir DIR", "Working directory.", name="cwd"),
    option("--interpreter PATH", "Python that runs the script."),
    option("--venv DIR", "Virtual environment that runs it."),
    option("--checkpoint-dir DIR", "Where its state is kept, on a file system all nodes see.  "
           "[default: bft-NAME in the working directory]"),
    option("--checkpoint-interval SECONDS", "At most this much work is lost when a node is taken.",
           float, 60.0, name="checkpoint_interval_s"),
    option("--export KEY=VALUE|KEY|ALL|NONE", "Environment of its workers: a variable, or ALL of "
           "yours; repeat for more.  [default: NONE]", parse_variable, name="environment",
           multiple=True),
    option("--allow-nan", "Do not watch for a loss that is NaN or infinite, update after update."),
    option("--preamble FILE", "Shell file that runs on every node before the trainer: module load, "
           "activate."),
    option("--batch MIN:MAX", "Let the global batch follow the size, within MIN and MAX samples.  "
           "[default: the script's]", parse_range),
    option("--batch-per-worker N", "With --batch: samples that one worker can process at once.",
           int),
    option("--lr-rule", "With --batch: how the learning rate follows it.  [default: adascale with "
           "--runtime torch, else none]", click.Choice(LR_RULES)),
    option("-A, --account NAME", "Account its nodes are charged to, as for sbatch.  [default: "
           "yours]", default=""),
    option("--weight W", "Priority under the weighted objective.", float, 1.0),
    option("--max-failures N", "Give up at the N-th failure; lost nodes do not count.  [default: "
           "only consecutive failures count]", int),
    option("--notify mail[:ADDRESS]|COMMAND", "Run by the daemon once when the trainer has ended."),
    option("--after ID[,ID...]", "Start it when those have finished; never, if one fails or is "
           "cancelled.", parse_ids),
    option("--after-any ID[,ID...]", "Start it when those have ended, in whatever way.", parse_ids),
    option("--begin TIME", "Start it at that time at the earliest: now+1hour, 22:30, "
           "2031-12-24T22:30.", parse_begin, name="begin_s"),
    option("--hold", "Submit it held; see 'bftrainer release'."),
    option("--array LIST[%N]", "One trainer for each index: 0-9, or 0-99%10 for ten of them at "
           "once.", parse_array),
    option("--runtime NAME", "How workers are launched: torch, horovod, mpi, or command for any "
           "program.", default="torch"),
    option("--backend", "Averages gradients: nccl where every worker has a GPU, gloo otherwise.",
           click.Choice(BACKENDS), "auto"),
    option("--launch", "Start the command on every node or on the first only.  [default: every]",
           click.Choice([str(launch) for launch in Launch])),
    option("--checkpoint-signal NAME|none", "Asks a command to write its checkpoint and end.  "
           "[default: USR1]", name="stop_signal"),
    option("--save-signal NAME|none", "Asks it to write a checkpoint and go on.  [default: none]"),
    option("--checkpoint-status N", "Its exit status when the checkpoint is written.  [default: "
           "85]", int, name="saved_status"),
    option("--checkpoint-grace SECONDS", "Limit for writing it and ending; then SIGKILL.  "
           "[default: 60]", float, name="grace_s"),
]  # fmt: skip


SCRIPT = (
    argument("script", metavar="SCRIPT"),
    argument("args", click.UNPROCESSED, metavar="[ARGS]...", nargs=-1),
)


def defaults() -> dict[str, Any]:
    """Return the values of all options that are not given."""
    return click.Command("defaults", params=list(SPEC_OPTIONS)).make_context("", []).params


TIMEOUT_S = 120.0  # torch on a cold parallel file system
OUTPUT_CAP_BYTES = 1024 * 1024
_WHICH = 'command -v python || command -v python3 || { echo "there is no python" >&2; exit 1; }'


def read_preamble(path: str | None) -> str:
    """Return the text of the file; "" without one.

    Raises:
        UsageError: BFT-1060.
    """
    if path is None:
        return ""
    advice = "Give the path of a shell file in UTF-8 of at most 64 KiB."
    try:
        text = read_file(path, MAX_BYTES, is_typed=True).decode()
    except UnicodeDecodeError as problem:
        raise UsageError("BFT-1060", f"The preamble {path} is not UTF-8.", advice) from problem
    except (OSError, ValueError) as problem:  # a NUL in the path
        why = getattr(problem, "strerror", None) or problem
        cause = f"The preamble {path} cannot be read: {why}."
        raise UsageError("BFT-1060", cause, advice) from problem
    check_preamble(text)
    if not text.strip():
        raise UsageError("BFT-1060", f"The preamble {path} is empty.", advice)
    return text


def run_under(
    text: str, argv: Sequence[str], *, environment: Iterable[tuple[str, str]] = (), cwd: str
) -> process.Completed:
    """Run a command as on a node: under this preamble, in ``cwd``; without one, in /.

    Raises:
        UsageError: BFT-1061, the preamble failed.
    """
    with tempfile.NamedTemporaryFile("w", prefix="bft-preamble-", suffix=".sh") as file:
        file.write(text)
        file.flush()
        done = process.run(
            under(file.name, argv) if text else argv,
            timeout_s=TIMEOUT_S,
            env={**os.environ, **dict(environment)},
            # A torch.py in our working directory must not be imported.
            cwd=Path(cwd if text and Path(cwd).is_dir() else "/"),
            output_cap_bytes=OUTPUT_CAP_BYTES,
        )
        if text and done.returncode == NOT_STARTED:
            why = why_not_started(done.stderr, done.returncode, file.name)
            code, _, cause = why.partition(": ")
            advice = "Run the file here with bash and correct it; its last command must succeed."
            raise UsageError(code, f"{cause.rstrip('.')}.", advice)
    return done


def python_under(text: str, environment: Iterable[tuple[str, str]], cwd: str) -> str:
    """Return the Python that a preamble puts first into PATH.

    Raises:
        UsageError: BFT-1006, there is none; BFT-1061.
    """
    argv = ("/bin/sh", "-c", _WHICH)
    done = run_under(text, argv, environment=environment, cwd=cwd)
    found = (done.stdout.split() or [""])[-1]
    if not done.is_ok or not found.startswith("/"):
        raise UsageError(
            "BFT-1006",
            "There is no python in PATH under the preamble.",
            "Activate an environment in it, or name a Python with --interpreter or --venv.",
        )
    return found


COMMAND = "command"  # the runtime whose script is any program
SEVERAL_PER_NODE = "torch"  # the runtime that may have several workers on a node


# Options that the fields of a trainer are named after, and have the values of.
_SAME = (
    *("gres", "constraint", "epochs", "samples", "steps", "checkpoint_interval_s", "runtime"),
    *("weight", "max_failures", "backend", "begin_s", "hold", "account", "rescale_rest_s"),
    "seed",
)


def build_spec(
    script: str, args: Sequence[str], chosen: Mapping[str, Any], environ: Mapping[str, str]
) -> TrainerSpec:
    """Make the spec of the options chosen; paths become absolute, nothing is resolved or created.

    A preamble is run to find its Python if no other is named.
    """
    values = {**defaults(), **chosen}
    path, args = _absolute("the script", script), tuple(args)
    preamble, module = read_preamble(values["preamble"]), values.get("module", "")
    environment = exported(values["environment"], environ)
    if environ.get(ANY_OWNER) == "1":
        environment = (*environment, (ANY_OWNER, "1"))  # workers look for themselves
    if values["allow_nan"]:
        environment = (*environment, (NAN_UPDATES, "0"))
    contract = _contract(values)
    name = values["name"] or module.rpartition(".")[2] or Path(path).stem
    cwd = working_directory(values)
    checkpoint_dir = values["checkpoint_dir"]
    if checkpoint_dir is None:  # named after the trainer, as a safe component of a path
        safe = re.sub(r"[^\w.-]", "_", name)[:64]
        checkpoint_dir = str(Path(cwd) / f"bft-{safe}")
    n_min, n_max, sizes = values["sizes"]
    per_node, curve = _workers_per_node(values), None
    if values["curve"] != "auto":
        curve = fitting_curve(values["curve"], n_min, n_max, sizes, per_node)
    interpreter, is_named = "", bool(values["interpreter"] or values["venv"] or module)
    if is_named or values["runtime"] != COMMAND:
        interpreter = interpreter_of(values, preamble, environment, cwd, environ)
    if values["runtime"] == COMMAND:
        if is_named:
            path, args = interpreter, (*(("-m", module) if module else (path,)), *args)
        interpreter = ""  # the command needs none
    elif module:
        environment = (*environment, described(module, path))
    return TrainerSpec(
        **{field: values[field] for field in _SAME},
        name=name,
        user=user_name(os.geteuid()),
        script=path,
        args=args,
        cwd=cwd,
        interpreter=interpreter,
        n_min=n_min,
        n_max=n_max,
        sizes=sizes,
        workers_per_node=per_node,
        checkpoint_dir=_absolute("the checkpoint directory", checkpoint_dir),
        curve=curve,
        environment=environment,
        contract=contract,
        after=values["after"] or (),
        after_any=values["after_any"] or (),
        preamble=preamble,
        notify=_notification(values["notify"] or "", environ),
        batch=batch_range(values),
    )


def working_directory(values: Mapping[str, Any]) -> str:
    """Return the directory in which the trainer is to run."""
    return _absolute("the working directory", values["cwd"] or ".")


def interpreter_of(
    values: Mapping[str, Any],
    preamble: str,
    environment: Iterable[tuple[str, str]],
    cwd: str,
    environ: Mapping[str, str],
) -> str:
    """Return the Python that runs the script: as named, else under the preamble, else the active.

    Raises:
        UsageError: BFT-1006.
    """
    if values["interpreter"] or values["venv"] or not preamble:
        return _interpreter(values, environ)
    return python_under(preamble, environment, cwd)


def _notification(text: str, environ: Mapping[str, str]) -> str:
    """Return what is sent of --notify: an address, or a command with its absolute path."""
    if text == "mail" or text.startswith(MAIL):
        if not mailer():
            raise UsageError(
                "BFT-1064",
                f"This host cannot send mail: it has none of {', '.join(MAILERS)}.",
                "Name a command: --notify '/path/to/script ARGS'.",
            )
        address = text.removeprefix("mail").removeprefix(":")
        return f"{MAIL}{address or user_name(os.geteuid())}"
    if not text.strip():
        return ""
    program, blank, rest = text.strip().partition(" ")
    found = shutil.which(program, path=environ.get("PATH"))
    if found is None:
        raise UsageError(
            "BFT-1066",
            f"--notify: {program[:200]} cannot be run here.",
            "Name an executable file, or mail[:ADDRESS].",
        )
    return f"{shlex.quote(os.path.abspath(found))}{blank}{rest}"  # noqa: PTH100 - not resolved


def _workers_per_node(values: Mapping[str, Any]) -> int:
    """Return the option's value; by default one per requested GPU if the runtime allows it."""
    if values["workers_per_node"] is not None:
        return int(values["workers_per_node"])
    n_gpus = read_request(values["gres"], values["constraint"]).n_gpus
    return max(1, n_gpus) if values["runtime"] == SEVERAL_PER_NODE else 1


def find_command(name: str, environ: Mapping[str, str]) -> str:
    """Return the path of a command, looked up as in a shell."""
    if os.sep in name or os.path.lexists(name):
        return name
    return shutil.which(name, path=environ.get("PATH")) or name


def _contract(values: Mapping[str, Any]) -> CheckpointContract | None:
    """Return the checkpoint contract; None if no option was given and none is needed."""
    names = [f.name for f in dataclasses.fields(CheckpointContract)]
    said = {name: values[name] for name in names if values[name] is not None}
    if not said and values["runtime"] != COMMAND:
        return None
    if "launch" in said:
        said["launch"] = Launch(said["launch"])
    return CheckpointContract(**said)


def _absolute(what: str, path: str) -> str:
    check_string(what, path)
    # Not resolved: the python link identifies a virtual environment.
    return os.path.abspath(path)  # noqa: PTH100


def _interpreter(values: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    interpreter, venv = values["interpreter"], values["venv"]
    if interpreter and venv:
        raise UsageError(
            "BFT-1006", "Interpreter and virtual environment are both given.", "Give one of them."
        )
    if interpreter:
        return _absolute("the interpreter", interpreter)
    # Default: the active environment, else our own Python.
    prefix = venv or environ.get("VIRTUAL_ENV") or environ.get("CONDA_PREFIX")
    if prefix:
        return _absolute("the interpreter", str(Path(prefix) / "bin" / "python"))
    return sys.executable


PREFIX = "#BFT"
_MAX_LINE_BYTES = 64 * 1024


def read_directives(script: str) -> dict[str, Any]:
    """Return the options that the script's head sets, by parameter name.

    Raises:
        UsageError: BFT-1003 with file and line; a value that is wrong in itself keeps
            its own code.
    """
    parser = click.Command("directives", params=list(SPEC_OPTIONS), add_help_option=False)
    values: dict[str, Any] = {}
    for number, text in _directive_lines(script):
        where = f"{script}:{number}"
        try:
            tokens = shlex.split(text, comments=True)
            with parser.make_context(PREFIX, tokens, allow_interspersed_args=False) as ctx:
                for name, value in given(ctx).items():
                    merge(values, name, value)
        except ValueError as problem:
            raise _refusal(where, f"{problem}.") from problem
        except click.UsageError as problem:
            raise _refusal(where, problem.format_message()) from problem
        except UsageError as problem:
            raise UsageError(
                problem.code, f"{where}: {problem.cause}", problem.next_step
            ) from problem
    return values


def chosen(ctx: click.Context, script: str) -> dict[str, Any]:
    """Return what #BFT lines and the command line set; the last wins."""
    written = read_directives(script)
    for name, value in given(ctx).items():
        merge(written, name, value)
    return written


def given(ctx: click.Context) -> dict[str, Any]:
    """Return the parameters given explicitly, without defaults."""
    return {
        name: value
        for name, value in ctx.params.items()
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }


def merge(values: dict[str, Any], name: str, value: Any) -> None:
    """Add a value: later values win, repeated ``--export`` options accumulate."""
    earlier = values.get(name)
    if name == "environment" and earlier:
        value = (*earlier, *value)
    if name in ("interpreter", "venv"):  # alternatives
        values.pop("interpreter", None)
        values.pop("venv", None)
    values[name] = value


def _directive_lines(script: str) -> Iterator[tuple[int, str]]:
    with open_stream(script, is_typed=True) as stream:
        number = 0
        while line := stream.readline(_MAX_LINE_BYTES):
            number += 1
            if len(line) == _MAX_LINE_BYTES:
                return  # no comment is this long
            text = os.fsdecode(line.removeprefix(b"\xef\xbb\xbf")).rstrip("\r\n")
            if text.strip() and not text.lstrip().startswith("#"):
                return
            if text == PREFIX or text.startswith((f"{PREFIX} ", f"{PREFIX}\t")):
                yield number, text.removeprefix(PREFIX)


def _refusal(where: str, problem: str) -> UsageError:
    return UsageError(
        "BFT-1003",
        f"{where}: {problem}",
        f"Correct this {PREFIX} line; 'bftrainer submit -h' lists the options.",
    )
