"""The options of sbatch, and what ``bftrainer submit`` has for each: one table.

An option with a ``flag`` is handed on to the option of ``submit`` of that name if ``submit`` has it
and takes the value; otherwise, as without a flag, it is left out for its ``reason``. Options that
say how much a job gets (``is_size``) are read together by ``resources``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


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
    is_size: bool = False


_TIME = "It limits one job. A trainer runs on many until it is done; --time LIMIT parks it before."
_PILOTS = "It belongs to the jobs that hold nodes: 'bftrainer up' or the site's policy chooses it."
_SHARE = "A trainer has the cores and the memory that belong to its nodes or GPUs."
_PLACE = "The daemon chooses the nodes; --constraint names what they must have."
_LOGS = "'bftrainer logs ID' prints what the workers write."
_WAITS = "It names jobs of Slurm; --after ID waits for trainers."
_AGAIN = "A trainer goes on from its checkpoint whenever it gets nodes again."
_STEPS = "The workers are started without job steps."
_SBATCH = "It concerns sbatch itself."
_ROOT = "It belongs to administrators."
_WEIGHT = "The site's policy decides the order; --weight counts where it goes by weights."
_MPI = "There is one worker for each GPU, or as many on a node as --workers-per-node says."
_CONTAINER = "Slurm's own plug-in enters the container; --container IMAGE has the workers in it."
_PROFILE = "Measure a trainer with 'bftrainer profile' or a profiler in the script."
_NONE, _OPTIONAL = OptionValue.NONE, OptionValue.OPTIONAL


def _option(names: str, reason: str = "", **more: object) -> SbatchOption:
    """Return a row of the table; names: the letter, if there is one, then the long name."""
    *letters, name = names.split()
    short = letters[0] if letters else ""
    return SbatchOption(name=name, short=short, reason=reason, **more)  # type: ignore[arg-type]


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
    _option("gpus-per-task", is_size=True),
    _option("gres", "Only GPUs count: nothing else is lent by number.", is_size=True),
    _option("exclusive", "A trainer has whole nodes with --nodes, and GPUs with --gpus.",
            value=_OPTIONAL, is_size=True),
    # What belongs to Slurm's jobs. A flag here is taken as soon as ``submit`` has it.
    _option("t time", _TIME),
    _option("time-min", _TIME),
    _option("deadline", _TIME),
    _option("p partition", _PILOTS),
    _option("q qos", _PILOTS),
    _option("reservation", _PILOTS),
    _option("M clusters", _PILOTS),
    _option("cluster-constraint", _PILOTS),
    _option("comment", _PILOTS, flag="--comment"),
    _option("L licenses", _PILOTS),
    _option("wckey", _PILOTS),
    _option("mcs-label", _PILOTS),
    _option("bb", _PILOTS),
    _option("bbf", _PILOTS),
    _option("o output", _LOGS, flag="--output"),
    _option("e error", _LOGS, flag="--error"),
    _option("open-mode", _LOGS),
    _option("i input", "Workers read nothing from standard input."),
    _option("d dependency", _WAITS),
    _option("kill-on-invalid-dep", _WAITS),
    _option("requeue", _AGAIN, value=_NONE),
    _option("no-requeue", _AGAIN, value=_NONE),
    _option("signal", "The daemon asks for a checkpoint itself before it takes nodes."),
    _option("k no-kill", "A trainer survives the loss of nodes.", value=_OPTIONAL),
    *(_option(names, _SHARE) for names in (
        "mem", "mem-per-cpu", "mem-per-gpu", "cpus-per-gpu", "mincpus", "tmp", "S core-spec",
        "thread-spec",
    )),
    *(_option(names, _PLACE) for names in (
        "w nodelist", "F nodefile", "x exclude", "prefer", "switches", "batch",
    )),
    _option("contiguous", _PLACE, value=_NONE),
    _option("spread-job", _PLACE, value=_NONE),
    _option("use-min-nodes", _PLACE, value=_NONE),
    _option("s oversubscribe", _PLACE, value=_NONE),
    *(_option(names, _MPI) for names in (
        "B extra-node-info", "cores-per-socket", "sockets-per-node", "threads-per-core", "hint",
        "m distribution", "ntasks-per-core", "ntasks-per-socket", "gpus-per-socket", "gres-flags",
        "gpu-bind", "mem-bind", "network",
    )),
    _option("O overcommit", _MPI, value=_NONE),
    *(_option(names, "Clocks and power stay as they are.") for names in (
        "cpu-freq", "gpu-freq", "power",
    )),
    _option("container", _CONTAINER),
    _option("container-id", _CONTAINER),
    *(_option(names, _CONTAINER) for names in (
        "container-image", "container-mounts", "container-name", "container-workdir",
        "container-env", "container-save",
    )),
    *(_option(names, _CONTAINER, value=_NONE) for names in (
        "container-mount-home", "no-container-mount-home", "container-writable",
        "container-readonly", "container-remap-root", "no-container-remap-root",
        "container-entrypoint", "no-container-entrypoint",
    )),
    _option("priority", _WEIGHT),
    _option("nice", _WEIGHT, value=_OPTIONAL),
    _option("profile", _PROFILE),
    _option("acctg-freq", _PROFILE),
    _option("propagate", "Workers have the limits of the pilot's job.", value=_OPTIONAL),
    _option("export-file", "Write its variables as --export KEY=VALUE."),
    _option("get-user-env", "A preamble prepares the environment.", value=_OPTIONAL),
    _option("delay-boot", _STEPS),
    _option("wait-all-nodes", _STEPS),
    _option("reboot", _STEPS, value=_NONE),
    _option("stepmgr", _STEPS, value=_NONE),
    _option("resv-ports", _STEPS, value=_OPTIONAL),
    _option("het-group", "A trainer has nodes of one kind."),
    _option("wrap", "It stands on sbatch's command line only."),
    _option("uid", _ROOT),
    _option("gid", _ROOT),
    _option("ignore-pbs", _SBATCH, value=_NONE),
    _option("Q quiet", _SBATCH, value=_NONE),
    _option("v verbose", _SBATCH, value=_NONE),
    _option("test-only", "--dry-run checks a trainer without submitting it.", value=_NONE),
    _option("h help", _SBATCH, value=_NONE),
    _option("usage", _SBATCH, value=_NONE),
    _option("V version", _SBATCH, value=_NONE),
)  # fmt: skip
OPTIONS: Final = {option.name: option for option in _ROWS}
BY_SHORT: Final = {option.short: option for option in _ROWS if option.short}
