"""The options of sbatch that have no meaning for a trainer, and what is said of each.

A trainer has no tasks, nodes or memory of its own choice. Of each option it is said why not, and
what to do instead; a few do no harm where they are ignored.
"""

from __future__ import annotations

from typing import Final

import click

from bftrainer.cli.options import option

_SIZE: Final = "A trainer has whole nodes, or GPUs, with their share of cores and memory."
_SIZES: Final = "Say its sizes by --nodes MIN:MAX or --gpus MIN:MAX"
_CHOICE: Final = "The daemon chooses the nodes, and changes them while the trainer runs."
_PILOTS: Final = "It is of pilots, the batch jobs that hold nodes, not of trainers."
_ALONE: Final = "Omit it: no other job's processes share what a trainer has."
_GPUS: Final = "Write --gpus MIN:MAX, --gpus-per-node K or --gres gpu:COUNT."
_OMIT: Final = "Omit it."
# Options of sbatch -> why they have no meaning, what to do instead. Those that submit takes stand
# here for verbs that do not: try, profile.
_INSTEAD: Final = {
    ("-t", "--time"): (
        "This ends with its --epochs, --samples or --steps.",
        "Omit it; 'bftrainer submit' takes --time, 'bftrainer up --time LIMIT' limits pilots.",
    ),
    ("--time-min",): (
        "A trainer is not planned by its time limit.",
        "Omit it; --time limits it from its first step.",
    ),
    ("--deadline",): (
        "A trainer is not planned by its end.",
        "Write --time for a limit, or --weight for more nodes.",
    ),
    ("-p", "--partition", "-q", "--qos"): (
        _PILOTS,
        "Omit it; 'bftrainer up --partition NAME --qos NAME' sets it for your own daemon.",
    ),
    ("--reservation",): (_PILOTS, "'bftrainer up --reservation NAME' sets it for your own daemon."),
    ("-M", "--clusters", "--cluster"): (
        "A daemon serves one cluster.",
        "Submit on a login node of the other cluster, or name its daemon by --socket PATH.",
    ),
    ("-L", "--licenses", "--wckey", "--nice", "--priority", "--gid", "--uid"): (_PILOTS, _OMIT),
    ("--mem", "--mem-per-cpu", "--mem-per-gpu", "--tmp"): (_SIZE, f"{_SIZES}."),
    ("-n", "--ntasks", "--ntasks-per-node", "--ntasks-per-gpu", "--ntasks-per-core"): (
        _SIZE,
        f"{_SIZES}; --workers-per-node says how many workers a node has.",
    ),
    (
        *("-c", "--cpus-per-task", "--cpus-per-gpu", "--mincpus", "--cores-per-socket"),
        *("-B", "--extra-node-info", "--sockets-per-node", "--threads-per-core", "--hint"),
        *("--distribution", "-S", "--core-spec", "--thread-spec"),
    ): (_SIZE, f"{_SIZES}."),
    ("--gpus-per-task", "--gpus-per-socket", "--gpu-bind", "--gpu-freq", "--ntasks-per-socket"): (
        "The workers of a node share its GPUs evenly.",
        _GPUS,
    ),
    ("-w", "--nodelist", "-x", "--exclude", "-F", "--nodefile", "--contiguous", "--switches"): (
        _CHOICE,
        "Write --constraint FEATURES for what nodes must have.",
    ),
    ("--exclusive", "-s", "--oversubscribe", "-O", "--overcommit", "--mcs-label"): (_SIZE, _ALONE),
    ("-k", "--no-kill", "--requeue", "--no-requeue"): (
        "A trainer always goes on when nodes are lost.",
        "Omit it; --max-failures N gives it up after N failures.",
    ),
    ("--signal",): (
        "A trainer is asked for a checkpoint before it loses nodes.",
        "Omit it; --checkpoint-signal NAME chooses the signal for --runtime command.",
    ),
    ("--wrap",): (
        "SCRIPT may be any program, with its arguments.",
        "Write 'bftrainer submit --runtime command PROGRAM ARGS'.",
    ),
    ("-i", "--input"): ("Workers read no input.", "Name the file among the script's arguments."),
    ("-o", "--output", "-e", "--error"): (
        "Workers write into logs of their own.",
        "'bftrainer logs ID' prints them; 'bftrainer submit' takes --output.",
    ),
    ("--open-mode",): ("--output is appended to.", "Name another file, or remove it first."),
    ("-d", "--dependency"): ("This begins at once.", "'bftrainer submit' takes --dependency."),
    ("-a", "--array"): ("This is one training.", "'bftrainer submit' takes --array LIST[%N]."),
    ("-b", "--begin", "-H", "--hold"): ("This begins at once.", "'bftrainer submit' takes it."),
    ("--mail-user", "--mail-type", "--comment"): (
        "This ends while you watch.",
        "'bftrainer submit' takes it.",
    ),
    ("--test-only",): ("This trains here already.", "'bftrainer submit' takes --test-only."),
    ("-W", "--wait"): ("This waits for its end anyway.", _OMIT),
    ("--get-user-env", "--propagate", "--export-file"): (
        "Workers get the variables that --export names.",
        "Write --export ALL, or --preamble FILE for modules.",
    ),
    ("--bb", "--bbf", "--network", "--power", "--profile", "--acctg-freq", "--delay-boot"): (
        _PILOTS,
        _OMIT,
    ),
    ("-Q", "--quiet", "-v", "--verbose"): (
        "submit prints a few lines.",
        "Write --parsable for the id alone.",
    ),
    ("--spread-job", "--use-min-nodes", "--kill-on-invalid-dep", "--ignore-pbs"): (_CHOICE, _OMIT),
    ("--cpus", "--ncpus", "--memory"): (_SIZE, f"{_SIZES}."),
}
INSTEAD: Final = {name: said for names, said in _INSTEAD.items() for name in names}
# Parameter of ``submit`` that is taken and ignored -> why.
IGNORED: Final = {
    "partition": "the daemon chooses the nodes, in the partition that its administrator set "
    "('bftrainer up --partition NAME' for your own daemon)",
    "qos": "the daemon's pilots have the QOS that its administrator set "
    "('bftrainer up --qos NAME' for your own daemon)",
}
IGNORED_OPTIONS: Final = (
    option("-p, --partition NAME", "Taken and ignored: the daemon chooses the nodes."),
    option("-q, --qos NAME", "Taken and ignored: it is of the daemon's pilots."),
)


def ignored(values: dict[str, object]) -> list[str]:
    """Return a sentence for each option among the chosen ones that is ignored."""
    return [
        f"note: --{name} {values[name]} is ignored: {why}."
        for name, why in IGNORED.items()
        if values.get(name) is not None
    ]


def refusal_of(problem: click.UsageError) -> tuple[str, str]:
    """Return why an option that click does not know has no meaning, and what to do; "": unknown."""
    name = problem.option_name if isinstance(problem, click.NoSuchOption) else ""
    why, step = INSTEAD.get(name, ("", ""))
    if not why:
        return "", ""
    return f"Option {name} of sbatch has no meaning here. {why}", step
