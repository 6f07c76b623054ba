"""The options of sbatch, and what ``bftrainer submit`` has for each: one table.

Two readers have it: who types an option to ``submit``, ``try`` or ``profile`` (``sbatch_habits``)
and who has a job script translated (``sbatch_script``). In a script an option with a ``flag`` is
handed on to the option of ``submit`` of that name if ``submit`` has it and takes the value;
otherwise, as without a flag, it is left out for its ``reason``. Who types it is told the reason and
what to do ``instead``. Options that say how much a job gets (``is_size``) are read together by
``sbatch_script.resources``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from bftrainer.model.lookups import by_name


class OptionValue(enum.Enum):
    """What an option of sbatch takes."""

    REQUIRED = enum.auto()
    OPTIONAL = enum.auto()  # only behind "=", or behind the letter itself
    NONE = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class SbatchOption:
    """An option of sbatch, with what takes its place."""

    name: str  # the long one
    short: str = ""  # its letter
    value: OptionValue = OptionValue.REQUIRED
    flag: str = ""  # the option of ``submit`` that takes the same value
    reason: str = ""  # why it is left out where no option takes its place, one sentence
    instead: str = ""  # what to type, one sentence
    is_size: bool = False


@dataclass(frozen=True, slots=True)
class _Why:
    """A reason, and what to type."""

    reason: str
    instead: str = "Omit it."


_SIZES = "Say its sizes by --nodes MIN:MAX or --gpus MIN:MAX"
_TIME = _Why(
    "It limits one job. A trainer runs on many until it is done; --time LIMIT parks it before.",
    "Write --time for a limit from the first step on, or --weight for more nodes.",
)
_PILOTS = _Why(
    "It belongs to the jobs that hold nodes: 'bftrainer up' or the site's policy chooses it."
)
_CLUSTER = _Why(
    "A daemon serves one cluster.",
    "Submit on a login node of the other cluster, or name its daemon by --socket PATH.",
)
_SHARE = _Why(
    "A trainer has the cores and the memory that belong to its nodes or GPUs.", f"{_SIZES}."
)
_PLACE = _Why(
    "The daemon chooses the nodes; --constraint names what they must have.",
    "Write --constraint FEATURES for what nodes must have.",
)
_LOGS = _Why("'bftrainer logs ID' prints what the workers write.")
_APPENDED = _Why(_LOGS.reason, "--output is appended to: name another file, or remove it first.")
_NO_INPUT = _Why(
    "Workers read nothing from standard input.", "Name the file among the script's arguments."
)
_WAITS = _Why("It names jobs of Slurm; --after ID waits for trainers.", "Write --after ID.")
_AGAIN = _Why(
    "A trainer goes on from its checkpoint whenever it gets nodes again.",
    "Omit it; --max-failures N gives it up after N failures.",
)
_SIGNAL = _Why(
    "The daemon asks for a checkpoint itself before it takes nodes.",
    "Omit it; --checkpoint-signal NAME chooses the signal for --runtime command.",
)
_STEPS = _Why("The workers are started without job steps.")
_SBATCH = _Why("It concerns sbatch itself.", "Write --parsable for the id alone.")
_ROOT = _Why("It belongs to administrators.")
_WEIGHT = _Why(
    "The site's policy decides the order; --weight counts where it goes by weights.",
    "Write --weight.",
)
_MPI = _Why(
    "There is one worker for each GPU, or as many on a node as --workers-per-node says.",
    f"{_SIZES}; --workers-per-node says how many workers a node has.",
)
_GPUS = _Why(
    "The workers of a node share its GPUs evenly.",
    "Write --gpus MIN:MAX, --gpus-per-node K or --gres gpu:COUNT.",
)
_ALONE = _Why(
    "A trainer has whole nodes with --nodes, and GPUs with --gpus.",
    "Omit it: no other job's processes share what a trainer has.",
)
_CONTAINER = _Why(
    "Slurm's own plug-in enters the container; --container IMAGE has the workers in it.",
    "Write --container IMAGE, and --container-mounts FROM:TO.",
)
_PROFILE = _Why("Measure a trainer with 'bftrainer profile' or a profiler in the script.")
_CLOCKS = _Why("Clocks and power stay as they are.")
_LIMITS = _Why("Workers have the limits of the pilot's job.", "A --preamble may say ulimit.")
_VARIABLES = _Why(
    "Write its variables as --export KEY=VALUE.",
    "Write --export ALL or KEY=VALUE, or --preamble FILE for modules.",
)
_PREAMBLE = _Why("A preamble prepares the environment.", _VARIABLES.instead)
_ONE_KIND = _Why("A trainer has nodes of one kind.")
_COMMAND = _Why(
    "It stands on sbatch's command line only.",
    "Write 'bftrainer submit --runtime command PROGRAM ARGS'.",
)
_TEST = _Why(
    "--dry-run checks a trainer without submitting it.", "Write 'bftrainer submit --dry-run'."
)
_NONE, _OPTIONAL = OptionValue.NONE, OptionValue.OPTIONAL


def _by_up(name: str) -> _Why:
    """Return what is said of an option of pilots that ``bftrainer up`` takes."""
    return _Why(_PILOTS.reason, f"'bftrainer up --{name} NAME' sets it for your own daemon.")


def _option(names: str, why: _Why | str = "", **more: object) -> SbatchOption:
    """Return a row of the table; names: the letter, if there is one, then the long name."""
    short, _, name = names.rpartition(" ")
    if isinstance(why, str):
        why = _Why(why)
    return SbatchOption(
        name=name,
        short=short,
        reason=why.reason,
        instead=why.instead,
        **more,  # type: ignore[arg-type]
    )


def _options(why: _Why, *names: str, **more: object) -> list[SbatchOption]:
    """Return rows of the table for which the same is said."""
    return [_option(name, why, **more) for name in names]


_ROWS: Final[Iterable[SbatchOption]] = (
    # What a trainer has, too. The reason is told where ``submit`` does not take the value.
    _option("A account", "It cannot be the name of an account.", flag="--account"),
    _option("a array", "These indices cannot be read.", flag="--array"),
    _option("b begin", "This time cannot be read.", flag="--begin"),
    _option("C constraint", "This expression cannot be read.", flag="--constraint"),
    _option("D chdir", flag="--chdir"),
    _option("export", flag="--export"),
    _option("H hold", value=_NONE, flag="--hold"),
    _option("J job-name", flag="--job-name"),
    _option("mail-type", "It asks for no mail at the end.", flag="--mail-type"),
    _option("mail-user", "Without --mail-type no mail is sent.", flag="--mail-user"),
    _option("parsable", value=_NONE, flag="--parsable"),
    _option("W wait", value=_NONE, flag="--wait"),
    # How much the job gets.
    _option("N nodes", is_size=True),
    _option("n ntasks", _MPI, is_size=True),
    _option("ntasks-per-node", _MPI, is_size=True),
    _option("ntasks-per-gpu", _MPI, is_size=True),
    _option("c cpus-per-task", _SHARE, is_size=True),
    _option("G gpus", is_size=True),
    _option("gpus-per-node", is_size=True),
    _option("gpus-per-task", _GPUS, is_size=True),
    _option("gres", "Only GPUs count: nothing else is lent by number.", is_size=True),
    _option("exclusive", _ALONE, value=_OPTIONAL, is_size=True),
    # What belongs to Slurm's jobs. A flag here is taken as soon as ``submit`` has it.
    _option("t time", _TIME),
    _option("time-min", _TIME),
    _option("deadline", _TIME),
    _option("p partition", _by_up("partition")),
    _option("q qos", _by_up("qos")),
    _option("reservation", _by_up("reservation")),
    _option("M clusters", _CLUSTER),
    _option("cluster-constraint", _PILOTS),
    _option("comment", _PILOTS, flag="--comment"),
    _option("L licenses", _PILOTS),
    _option("wckey", _PILOTS),
    _option("mcs-label", _PILOTS),
    _option("bb", _PILOTS),
    _option("bbf", _PILOTS),
    _option("o output", _LOGS, flag="--output"),
    _option("e error", _LOGS, flag="--error"),
    _option("open-mode", _APPENDED),
    _option("i input", _NO_INPUT),
    _option("d dependency", _WAITS),
    _option("kill-on-invalid-dep", _WAITS),
    _option("requeue", _AGAIN, value=_NONE),
    _option("no-requeue", _AGAIN, value=_NONE),
    _option("signal", _SIGNAL),
    _option("k no-kill", _AGAIN, value=_OPTIONAL),
    *_options(
        _SHARE, "mem", "mem-per-cpu", "mem-per-gpu", "cpus-per-gpu", "mincpus", "tmp",
        "S core-spec", "thread-spec",
    ),
    *_options(_PLACE, "w nodelist", "F nodefile", "x exclude", "prefer", "switches", "batch"),
    _option("contiguous", _PLACE, value=_NONE),
    _option("spread-job", _PLACE, value=_NONE),
    _option("use-min-nodes", _PLACE, value=_NONE),
    _option("s oversubscribe", _ALONE, value=_NONE),
    *_options(
        _MPI, "B extra-node-info", "cores-per-socket", "sockets-per-node", "threads-per-core",
        "hint", "m distribution", "ntasks-per-core", "ntasks-per-socket", "mem-bind", "network",
    ),
    *_options(_GPUS, "gpus-per-socket", "gres-flags", "gpu-bind"),
    _option("O overcommit", _MPI, value=_NONE),
    *_options(_CLOCKS, "cpu-freq", "gpu-freq", "power"),
    _option("container", _CONTAINER),
    _option("container-id", _CONTAINER),
    *_options(
        _CONTAINER, "container-image", "container-mounts", "container-name", "container-workdir",
        "container-env", "container-save",
    ),
    *_options(
        _CONTAINER, "container-mount-home", "no-container-mount-home", "container-writable",
        "container-readonly", "container-remap-root", "no-container-remap-root",
        "container-entrypoint", "no-container-entrypoint", value=_NONE,
    ),
    _option("priority", _WEIGHT),
    _option("nice", _WEIGHT, value=_OPTIONAL),
    _option("profile", _PROFILE),
    _option("acctg-freq", _PROFILE),
    _option("propagate", _LIMITS, value=_OPTIONAL),
    _option("export-file", _VARIABLES),
    _option("get-user-env", _PREAMBLE, value=_OPTIONAL),
    _option("delay-boot", _STEPS),
    _option("wait-all-nodes", _STEPS),
    _option("reboot", _STEPS, value=_NONE),
    _option("stepmgr", _STEPS, value=_NONE),
    _option("resv-ports", _STEPS, value=_OPTIONAL),
    _option("het-group", _ONE_KIND),
    _option("wrap", _COMMAND),
    _option("uid", _ROOT),
    _option("gid", _ROOT),
    _option("ignore-pbs", _SBATCH, value=_NONE),
    _option("Q quiet", _SBATCH, value=_NONE),
    _option("v verbose", _SBATCH, value=_NONE),
    _option("test-only", _TEST, value=_NONE),
    _option("h help", _SBATCH, value=_NONE),
    _option("usage", _SBATCH, value=_NONE),
    _option("V version", _SBATCH, value=_NONE),
)  # fmt: skip
OPTIONS: Final = by_name(_ROWS)
BY_SHORT: Final = {option.short: option for option in _ROWS if option.short}
