"""What a user asks of a trainer: each field is declared once, with its option and its limits.

Made by ``bftrainer submit`` of the options declared here, checked by ``api.admission``, kept in the
trainer's record. A further option is a further declared field (CONTRIBUTING.md).
"""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass, field
from typing import ClassVar, Final

from bftrainer.ground.backend_choice import BACKENDS
from bftrainer.ground.output_place import OUTPUT
from bftrainer.ground.protocol import MAX_GPUS, SEED
from bftrainer.model.container import AUTO, RUNTIMES
from bftrainer.model.declaration import Disclosure, InStudy, about, added, declared, option
from bftrainer.model.study import TrialTag
from milp.problem import Curve, largest_size

ADASCALE: Final = "adascale"
LR_RULES: Final = (ADASCALE, "linear", "sqrt", "none")
MAX_NAME_BYTES: Final = 255
MAX_STRING_BYTES: Final = 4096  # longest path that Linux opens; also used for arguments
LATEST_BEGIN_S: Final = 10**11  # of the years until 5138
LARGEST_SEED: Final = 2**32 - 1  # what numpy takes
NOTIFIED: Final = ("end", "fail", "time")  # an end other than a failure, a failure, a time limit
# The groups of options in the help of submit, in its order; an option of no group comes last.
HELP_GROUPS: Final = {
    "Sizes and nodes": (
        *("--name", "--nodes", "--gpus", "--gpus-per-node", "--rescale-rest"),
        *("--workers-per-node", "--gres", "--constraint"),
    ),
    "Length": ("--epochs", "--samples", "--seed", "--steps", "--time", "--curve"),
    "Where and with what it runs": (
        *("--chdir", "--interpreter", "--venv", "--checkpoint-dir", "--checkpoint-interval"),
        *("--export", "--allow-nan", "--preamble", "--container", "--container-mounts"),
        *("--container-runtime", "--output", "--error"),
    ),
    "Batch": ("--batch", "--batch-per-worker", "--lr-rule"),
    "Priority, begin and end": (
        *("--account", "--weight", "--max-failures", "--notify", "--after", "--after-any"),
        *("--begin", "--hold", "--array", "--dependency", "--mail-type", "--mail-user"),
        "--comment",
    ),
    "Kind of program": (
        *("--runtime", "--backend", "--launch", "--checkpoint-signal", "--save-signal"),
        *("--checkpoint-status", "--checkpoint-grace"),
    ),
}
IN_HELP: Final = tuple(itertools.chain.from_iterable(HELP_GROUPS.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRange:
    """The global batches that a trainer admits."""

    least: int  # samples per update, of all workers together
    most: int
    # samples that one worker can process at once
    per_worker: int = field(
        metadata=about(
            option(
                "--batch-per-worker N",
                "With --batch: samples that one worker can process at once.",
                parameter="batch_per_worker",
            ),
            disclosure=Disclosure.ALL,
            in_study=InStudy.REWORDED,
            worker="batch_per_worker",
        )
    )
    # one of LR_RULES; of torch trainers
    lr_rule: str = declared(
        option(
            "--lr-rule",
            "With --batch: how the learning rate follows it.  [default: adascale with "
            "--runtime torch, else none]",
            choices=LR_RULES,
        ),
        default=ADASCALE,
        disclosure=Disclosure.ALL,
        in_study=InStudy.REWORDED,
        worker="lr_rule",
    )


class Launch(enum.StrEnum):
    """On which nodes a program of runtime ``command`` is started."""

    EVERY = "every"  # once on every node of the trainer
    FIRST = "first"  # on the first only; it starts its own processes on the others


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointContract:
    """The way in which a restarted program is asked to save (docs/howto/train-command.md)."""

    launch: Launch = declared(
        option(
            "--launch",
            "Start the command on every node or on the first only.  [default: every]",
            choices=tuple(map(str, Launch)),
        ),
        default=Launch.EVERY,
        disclosure=Disclosure.ALL,
    )
    # write a checkpoint and end; "none": only the control file
    stop_signal: str = declared(
        option(
            "--checkpoint-signal NAME|none",
            "Asks a command to write its checkpoint and end.  [default: USR1]",
        ),
        default="USR1",
        disclosure=Disclosure.ALL,
    )
    # write a checkpoint and go on
    save_signal: str = declared(
        option(
            "--save-signal NAME|none", "Asks it to write a checkpoint and go on.  [default: none]"
        ),
        default="none",
        disclosure=Disclosure.ALL,
    )
    # exit status: the checkpoint is written, restart the program
    saved_status: int = declared(
        option(
            "--checkpoint-status N",
            "Its exit status when the checkpoint is written.  [default: 85]",
        ),
        default=85,
        disclosure=Disclosure.ALL,
    )
    # from the request to the end; then SIGKILL
    grace_s: float = declared(
        option(
            "--checkpoint-grace SECONDS",
            "Limit for writing it and ending; then SIGKILL.  [default: 60]",
        ),
        default=60.0,
        disclosure=Disclosure.ALL,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSpec:
    """The user's request; a ``TrainerChange`` replaces some of it."""

    name: str = field(
        metadata=about(
            option("-J, --job-name, --name NAME", "Name of the trainer.", is_value=False),
            words="the name",
            longest_bytes=MAX_NAME_BYTES,
            disclosure=Disclosure.ALL,
            in_study=InStudy.DECIDED,
        )
    )
    user: str = field(
        metadata=about(words="the user", longest_bytes=MAX_NAME_BYTES, disclosure=Disclosure.ALL)
    )
    # absolute path
    script: str = field(
        metadata=about(
            words="the script",
            longest_bytes=MAX_STRING_BYTES,
            is_path=True,
            disclosure=Disclosure.NOTHING,
            worker="script",
        )
    )
    args: tuple[str, ...] = declared(
        default=(), disclosure=Disclosure.PRESENCE, worker="args", is_decided_with=False
    )
    cwd: str = declared(
        option("-D, --chdir DIR", "Working directory.", is_value=False),
        default="/",
        words="the working directory",
        longest_bytes=MAX_STRING_BYTES,
        is_path=True,
        disclosure=Disclosure.NOTHING,
        in_study=InStudy.REWORDED,
        is_tried=True,
        worker="cwd",
    )
    # absolute path of the user's python
    interpreter: str = declared(
        option("--interpreter PATH", "Python that runs the script.", is_value=False),
        option("--venv DIR", "Virtual environment that runs it.", parameter="venv", is_value=False),
        default="",
        words="the interpreter",
        longest_bytes=MAX_STRING_BYTES,
        is_path=True,
        disclosure=Disclosure.NOTHING,
        is_tried=True,
    )
    n_min: int = declared(default=1, disclosure=Disclosure.ALL)
    n_max: int = declared(default=1, disclosure=Disclosure.ALL)
    # sizes and decisions count nodes
    workers_per_node: int = declared(
        option(
            "--workers-per-node N",
            "Workers on every node, which share its GPUs evenly.  [default: with "
            "--runtime torch one for each GPU in --gres, else 1]",
            is_value=False,
        ),
        default=1,
        minimum=1,
        maximum=1024,
        disclosure=Disclosure.ALL,
        in_study=InStudy.REWORDED,
        is_tried=True,
        worker="local_size",
    )
    # required on every node, as sbatch --gres; "": nothing
    gres: str = declared(
        option(
            "--gres gpu[:TYPE][:COUNT]",
            "GPUs required on every node, as for sbatch: gpu:a100:4.",
            takes="gres",
        ),
        default="",
        longest_bytes=MAX_STRING_BYTES,
        disclosure=Disclosure.ALL,
    )
    # features of every node, as sbatch --constraint
    constraint: str = declared(
        option(
            "-C, --constraint FEATURES",
            "Features required on every node, as for sbatch: 'a100&nvlink'.",
            takes="constraint",
        ),
        default="",
        longest_bytes=MAX_STRING_BYTES,
        disclosure=Disclosure.ALL,
    )
    # one of epochs, samples and steps; all None: the script's own
    epochs: int | None = declared(
        option("--epochs N", "Passes over the data."),
        default=None,
        minimum=1,
        maximum=10**9,
        disclosure=Disclosure.ALL,
        in_study=InStudy.DECIDED,
        is_tried=True,
        worker="epochs",
    )
    samples: int | None = declared(
        option("--samples N", "Samples to train on."),
        default=None,
        minimum=1,
        maximum=10**15,
        disclosure=Disclosure.ALL,
        in_study=InStudy.DECIDED,
        is_tried=True,
        worker="samples",
    )
    # absolute, on a file system all nodes see
    checkpoint_dir: str = declared(
        option(
            "--checkpoint-dir DIR",
            "Where its state is kept, on a file system all nodes see.  [default: "
            "bft-NAME in the working directory]",
            is_value=False,
        ),
        default="",
        words="the checkpoint directory",
        longest_bytes=MAX_STRING_BYTES,
        is_path=True,
        disclosure=Disclosure.NOTHING,
        in_study=InStudy.DECIDED,
        worker="checkpoint_dir",
    )
    checkpoint_interval_s: float = declared(
        option(
            "--checkpoint-interval SECONDS", "At most this much work is lost when a node is taken."
        ),
        default=60.0,
        minimum=1e-3,
        maximum=1e7,
        disclosure=Disclosure.ALL,
        worker="checkpoint_interval_s",
    )
    # None: auto (concave guess until measured)
    curve: Curve | None = declared(
        option(
            "--curve FILE|auto",
            "Throughput by size as JSON, or auto: a guess until it is measured.",
            unset="auto",
            is_value=False,
        ),
        default=None,
        disclosure=Disclosure.ALL,
        in_study=InStudy.REWORDED,
    )
    runtime: str = declared(
        option(
            "--runtime NAME",
            "How workers are launched: torch, horovod, mpi, or command for any program.",
        ),
        default="torch",
        words="the runtime",
        longest_bytes=MAX_STRING_BYTES,
        disclosure=Disclosure.ALL,
        in_study=InStudy.REWORDED,
    )
    weight: float = declared(
        option("--weight W", "Priority under the weighted objective."),
        default=1.0,
        minimum=1e-6,
        maximum=1e6,
        disclosure=Disclosure.ALL,
    )
    # what the objective "utility" maximises; the simulator's
    utility: Curve | None = declared(default=None, disclosure=Disclosure.ALL)
    environment: tuple[tuple[str, str], ...] = declared(
        option(
            "--export KEY=VALUE|KEY|ALL|NONE",
            "Environment of its workers: a variable, or ALL of yours; repeat for "
            "more.  [default: NONE]",
            takes="variable",
            repeats=True,
            is_value=False,
        ),
        option(
            "--allow-nan",
            "Do not watch for a loss that is NaN or infinite, update after update.",
            parameter="allow_nan",
            takes="flag",
            is_value=False,
        ),
        default=(),
        disclosure=Disclosure.NAMES,
        in_study=InStudy.REWORDED,
        is_tried=True,
        is_decided_with=False,
    )
    # in total; None: only consecutive ones count
    max_failures: int | None = declared(
        option(
            "--max-failures N",
            "Give up at the N-th failure; lost nodes do not count.  [default: only "
            "consecutive failures count]",
        ),
        default=None,
        minimum=1,
        maximum=10**6,
        disclosure=Disclosure.ALL,
    )
    # of programs that are resized by restart
    contract: CheckpointContract | None = declared(default=None, disclosure=Disclosure.ALL)
    # of the gradient average: auto, gloo or one for devices
    backend: str = declared(
        option(
            "--backend",
            "Averages gradients: nccl where every worker has a GPU, gloo otherwise.",
            choices=BACKENDS,
        ),
        default="auto",
        disclosure=Disclosure.ALL,
        worker="backend",
    )
    # trainers that must have finished before it starts
    after: tuple[str, ...] = declared(
        option(
            "--after ID[,ID...]",
            "Start it when those have finished; never, if one fails or is cancelled.",
            takes="ids",
            is_value=False,
        ),
        option(
            "-d, --dependency afterok:ID[:ID...]",
            "The same, as for sbatch; afterany:ID is --after-any.",
            parameter="dependency",
            takes="dependency",
            is_value=False,
        ),
        default=(),
        disclosure=Disclosure.ALL,
        in_study=InStudy.DROPPED,
        is_decided_with=False,
    )
    # trainers that must have ended, in whatever way
    after_any: tuple[str, ...] = declared(
        option(
            "--after-any ID[,ID...]",
            "Start it when those have ended, in whatever way.",
            takes="ids",
            is_value=False,
        ),
        default=(),
        disclosure=Disclosure.ALL,
        in_study=InStudy.DROPPED,
        is_decided_with=False,
    )
    # it does not start before this time
    begin_s: float | None = declared(
        option(
            "-b, --begin TIME",
            "Start it at that time at the earliest: now+1hour, 22:30, 2031-12-24T22:30.",
            takes="begin",
        ),
        default=None,
        minimum=0,
        maximum=LATEST_BEGIN_S,
        disclosure=Disclosure.ALL,
        in_study=InStudy.DROPPED,
        is_decided_with=False,
    )
    # submitted held
    hold: bool = declared(
        option("-H, --hold", "Submit it held; see 'bftrainer release'."),
        default=False,
        disclosure=Disclosure.ALL,
        in_study=InStudy.DECIDED,
    )
    # shared by the trainers of one ``--array``
    array_id: str = declared(
        default="",
        words="the id of its array",
        longest_bytes=MAX_NAME_BYTES,
        disclosure=Disclosure.ALL,
        in_study=InStudy.DECIDED,
        is_decided_with=False,
    )
    # so many of them have nodes at once
    array_limit: int | None = declared(
        option(
            "-a, --array LIST[%N]",
            "One trainer for each index: 0-9, or 0-99%10 for ten of them at once.",
            parameter="array",
            takes="array",
            is_value=False,
        ),
        default=None,
        words="--array %",
        minimum=1,
        maximum=10**6,
        disclosure=Disclosure.ALL,
        in_study=InStudy.DECIDED,
        is_decided_with=False,
    )
    # shell file that runs before anything of the trainer on a node
    preamble: str = declared(
        option(
            "--preamble FILE",
            "Shell file that runs on every node before the trainer: module load, activate.",
            is_value=False,
        ),
        default="",
        disclosure=Disclosure.PRESENCE,
        in_study=InStudy.REWORDED,
        is_tried=True,
        worker="preamble",
        is_decided_with=False,
    )
    # run when it has ended (``bftrainer.api.admission``)
    notify: str = declared(
        option(
            "--notify mail[:ADDRESS]|COMMAND",
            "Run by the daemon once when the trainer has ended.",
            is_value=False,
        ),
        option(
            "--mail-user ADDRESS",
            "Mail its end to this address, as for sbatch.",
            parameter="mail_user",
            is_value=False,
        ),
        default="",
        longest_bytes=MAX_STRING_BYTES,
        disclosure=Disclosure.PRESENCE,
        is_decided_with=False,
    )
    # None: the script declares its batch
    batch: BatchRange | None = declared(
        option(
            "--batch MIN:MAX",
            "Let the global batch follow the size, within MIN and MAX samples.  "
            "[default: the script's]",
            takes="range",
            is_value=False,
        ),
        default=None,
        disclosure=Disclosure.ALL,
        in_study=InStudy.REWORDED,
    )
    # of the batch system, charged for its pilots; "": the user's default
    account: str = declared(
        option(
            "-A, --account NAME",
            "Account its nodes are charged to, as for sbatch.  [default: yours]",
        ),
        default="",
        words="the account",
        longest_bytes=MAX_NAME_BYTES,
        disclosure=Disclosure.ALL,
        since="0.1.0",
    )
    # it is a trial of a study
    trial: TrialTag | None = declared(
        default=None, disclosure=Disclosure.UNUSED, is_decided_with=False, since="0.1.0"
    )
    # the only ones of n_min to n_max that it may have; (): all
    sizes: tuple[int, ...] = declared(
        option(
            "-N, --nodes MIN:MAX",
            "Sizes it may have, in nodes: 1:8, a set as 1,2,4,8, or 4 for exactly "
            "four.  [default: 1]",
            takes="nodes",
            unset="1",
            is_value=False,
        ),
        option(
            "-G, --gpus [TYPE:]MIN:MAX",
            "Sizes it may have, in GPUs of any nodes: 1:16, or a100:4 for exactly four A100.",
            parameter="gpus",
            takes="gpus",
            is_value=False,
        ),
        default=(),
        disclosure=Disclosure.ALL,
        in_study=InStudy.DECIDED,
        since="0.1.0",
    )
    # after a shrink it does not grow for so long
    rescale_rest_s: float = declared(
        option(
            "--rescale-rest SECONDS", "After a shrink it does not grow for so long.  [default: 0]"
        ),
        default=0.0,
        minimum=0,
        maximum=10**6,
        disclosure=Disclosure.ALL,
        since="0.1.0",
    )
    # of the random streams of all its workers, before the script's first line
    seed: int = declared(
        option(
            "--seed N",
            "Of torch, random and numpy in all workers, until the script sets its "
            "own.  [default: 0]",
        ),
        default=0,
        minimum=0,
        maximum=LARGEST_SEED,
        disclosure=Disclosure.ALL,
        is_tried=True,
        worker="seed",
        variable=SEED,
        is_decided_with=False,
        since="0.1.0",
    )
    # updates
    steps: int | None = declared(
        option("--steps N", "Updates of the parameters."),
        default=None,
        minimum=1,
        maximum=10**12,
        disclosure=Disclosure.ALL,
        in_study=InStudy.DECIDED,
        is_tried=True,
        worker="steps",
        since="0.1.0",
    )
    # What a size counts: nodes if 0, else units of so many GPUs of one node each
    gpus_per_unit: int = declared(
        option(
            "--gpus-per-node [TYPE:]K",
            "Have K GPUs of each node together, as a tensor-parallel or sharded model needs; "
            "--nodes counts these.",
            parameter="gpus_per_node",
            takes="unit",
            is_value=False,
        ),
        default=0,
        minimum=0,
        maximum=MAX_GPUS,
        disclosure=Disclosure.ALL,
        in_study=InStudy.REWORDED,
        since="0.1.0",
    )
    # what its notification tells of: end, fail, time (its time limit); (): all
    notify_at: tuple[str, ...] = declared(
        option(
            "--mail-type TYPE[,TYPE...]",
            "Mail it as for sbatch: END, FAIL, TIME_LIMIT, ALL or NONE.",
            parameter="mail_type",
            takes="mail_type",
            is_value=False,
        ),
        default=(),
        disclosure=Disclosure.PRESENCE,
        in_study=InStudy.DROPPED,
        is_decided_with=False,
        since="0.1.0",
    )
    # wall time from its first step, whether it has nodes or not; then it is parked; None: no limit
    time_limit_s: float | None = declared(
        option(
            "-t, --time LIMIT",
            "Wall time from its first step on, with nodes or without: 90 (minutes), 2:00:00, "
            "1-12. Then it writes a checkpoint and is parked.",
            takes="time_limit",
        ),
        default=None,
        minimum=1,
        maximum=10**9,
        disclosure=Disclosure.ALL,
        in_study=InStudy.DECIDED,
        is_decided_with=False,
        since="0.1.0",
    )
    # file that its workers' output is copied to, with %j for its id; None: none
    output: str | None = declared(
        option(
            "-o, --output FILE",
            "Where its output is found, too: a name with %j (id), %x (name), %a, %A, %u.",
            parameter="output",
            is_value=False,
        ),
        option(
            "-e, --error FILE",
            "As --output, which has standard error as well.",
            parameter="error",
            is_value=False,
        ),
        default=None,
        disclosure=Disclosure.UNUSED,
        in_study=InStudy.DECIDED,
        variable=OUTPUT,
        is_decided_with=False,
        since="0.1.0",
    )
    # words of its user
    comment: str = declared(
        option("--comment TEXT", "Words of yours, which 'bftrainer status ID' shows."),
        default="",
        longest_bytes=MAX_STRING_BYTES,
        disclosure=Disclosure.PRESENCE,
        in_study=InStudy.DROPPED,
        is_decided_with=False,
        since="0.1.0",
    )
    # an absolute path, or docker://NAME and the like; "": none
    container: str = declared(
        option(
            "--container IMAGE",
            "Image that its workers run in: a SIF or squashfs file, a directory, or docker://NAME.",
            takes="image",
        ),
        default="",
        words="the image",
        longest_bytes=MAX_STRING_BYTES,
        disclosure=Disclosure.PRESENCE,
        is_tried=True,
        worker="container",
        is_decided_with=False,
        since="0.1.0",
    )
    # SRC:DST[:ro],... with absolute paths
    container_mounts: str = declared(
        option(
            "--container-mounts SRC[:DST[:ro]][,...]",
            "Further directories that are seen in the container.",
            takes="mounts",
        ),
        default="",
        words="--container-mounts",
        longest_bytes=MAX_STRING_BYTES,
        disclosure=Disclosure.PRESENCE,
        is_tried=True,
        worker="container_mounts",
        is_decided_with=False,
        since="0.1.0",
    )
    # one of model.container.RUNTIMES, or auto: by what the node has and what the image is
    container_runtime: str = declared(
        option(
            "--container-runtime NAME",
            f"What starts the image, by what nodes have: {AUTO}, {', '.join(RUNTIMES)}.",
            takes="container_runtime",
        ),
        default=AUTO,
        disclosure=Disclosure.ALL,
        is_tried=True,
        worker="container_runtime",
        is_decided_with=False,
        since="0.1.0",
    )
    # Not written while unused; CONTRIBUTING.md.
    ADDED: ClassVar = added(vars())

    @property
    def budget(self) -> int | None:
        """The epochs or samples to train; None: the script says."""
        if self.epochs is None:
            return self.samples
        return self.epochs

    @property
    def has_several_lengths(self) -> bool:
        """Return whether more than one of epochs, samples and steps is given."""
        return sum(n is not None for n in (self.epochs, self.samples, self.steps)) > 1

    @property
    def nodes(self) -> str:
        """The sizes it may have, as ``--nodes`` takes them."""
        return ",".join(map(str, self.sizes)) or f"{self.n_min}:{self.n_max}"

    @property
    def size_option(self) -> str:
        """The option of submit that says its sizes."""
        if self.gpus_per_unit == 1:
            return "--gpus"
        return "--nodes"

    @property
    def size_words(self) -> tuple[str, ...]:
        """The options of submit that say its sizes and what they count, with their values."""
        words = (self.size_option, self.nodes)
        if self.gpus_per_unit > 1:
            return (*words, "--gpus-per-node", str(self.gpus_per_unit))
        return words

    def has_size(self, size: int) -> bool:
        """Return whether it may run on so many nodes.

        More than n_max count: a policy or change may have lowered it.
        """
        n_max = max(size, self.n_max)
        return 0 < size == largest_size(size, self.n_min, n_max, self.sizes)
