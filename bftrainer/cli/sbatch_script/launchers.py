"""The program that a command line of a job script starts, under the launchers in front of it. Pure.

``srun torchrun --nnodes 2 train.py --lr 0.1`` starts ``train.py`` with ``--lr 0.1``; ``srun`` and
``torchrun`` with their options fall away, because bftrainer starts the workers. What they say of
the number of processes is kept.
"""

from __future__ import annotations

import enum
import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import PurePosixPath
from typing import Final

from bftrainer.cli.sbatch_script.container_image import (
    PYXIS,
    EnteredImage,
    entered_by_apptainer,
    entered_by_pyxis,
    pyxis_options_taken,
)
from bftrainer.cli.sbatch_script.shell_values import ASSIGNMENT, OPEN, as_written, words_of

MOST_LAUNCHERS: Final = 20  # in front of one program
_PYTHON = re.compile(r"(?:python|pypy)(?:\d(?:\.\d+)?)?\Z")
TORCHRUN_MODULES: Final = frozenset({"torch.distributed.run", "torch.distributed.launch"})
_OF_PROGRAMS = frozenset({"-m", "-c"})  # options of Python behind which its program stands
_PYTHON_VALUES = frozenset({"-W", "-X", "--check-hash-based-pycs"})
# Options without a value; all others of the launcher take one, as a word of its own or behind "=".
_SRUN_FLAGS = words_of(
    "-l --label -u --unbuffered -v --verbose -Q --quiet -O --overcommit -s --oversubscribe"
    " --exclusive --exact --overlap --contiguous --pty --multi-prog --no-kill -k --reboot -H --hold"
    " -X --disable-status -E --preserve-env --quit-on-interrupt --spread-job --use-min-nodes"
    " --test-only --no-container-mount-home --container-mount-home --container-writable"
    " --kill-on-bad-exit --propagate --resv-ports --send-libs --compress --bcast --nice -I -K"
    " --immediate -Z --no-allocate"
)
_TORCHRUN_FLAGS = words_of(
    "--standalone -m --module --no-python --no_python --run-path --run_path --use-env --use_env"
    " --virtual-local-rank --virtual_local_rank"
)
_ACCELERATE_FLAGS = words_of(
    "--cpu --multi_gpu --multi-gpu --tpu --ipex --use_deepspeed --use-deepspeed --use_fsdp"
    " --use-fsdp --use_megatron_lm -m --module --no_python --no-python -q --quiet --same_network"
    " --debug --enable_cpu_affinity --use_mps_device --standalone --tpu_use_cluster --use_xpu"
    " --use_parallelism_config"
)
_MPI_FLAGS = words_of(
    "-v --verbose -q --quiet --oversubscribe -oversubscribe --allow-run-as-root --bind-to-none"
    " --tag-output -tag-output --report-bindings -report-bindings -l -prepend-rank"
    " --nooversubscribe"
    " --display-map -display-map --use-hwthread-cpus --nolocal -nolocal --pernode -pernode"
)
_MPI_PAIRS = frozenset({"--mca", "-mca", "--gmca", "-gmca", "-genv", "--genv", "-env"})
_HOROVOD_FLAGS = words_of(
    "--gloo --use-gloo --mpi --use-mpi --jsrun --use-jsrun --verbose --disable-cache"
    " --autotune --no-autotune --mpi-threads-disable --elastic-state"
)
_CONTAINER_FLAGS = words_of(
    "--nv --rocm --nvccli -c --contain -C --containall -e --cleanenv -i --ipc -p --pid -f"
    " --fakeroot -w --writable --writable-tmpfs --no-home --no-init --no-privs --keep-privs"
    " --disable-cache --no-umask --no-eval --compat -u --userns --unsquash --underlay --bind-paths"
    " -q --quiet -s --silent -d --debug -v --verbose"
)
_UV_FLAGS = words_of(
    "--frozen --locked --no-sync --offline -q --quiet --exact --no-dev --active --no-progress"
    " --inexact -n --no-cache -v --verbose --all-extras --dev"
)
_UV_OTHERS = ("--with", "--python", "-p", "--isolated", "--no-project", "-s", "--script")
_MANY: Final = frozenset(("srun", "torchrun", "accelerate", "deepspeed", "mpirun", "horovodrun"))
_WITHOUT_NOTE: Final = frozenset({"conda run", "uv run"})  # their options count, none is dropped


class ProgramKind(enum.Enum):
    """What a launched program is."""

    SCRIPT = enum.auto()  # a file for Python
    MODULE = enum.auto()  # python -m
    CODE = enum.auto()  # python -c, or standard input
    PROGRAM = enum.auto()  # anything else


@dataclass(slots=True, kw_only=True)
class LaunchLine:
    """What one command line starts, collected from the outermost launcher inwards."""

    kind: ProgramKind = ProgramKind.PROGRAM
    program: str = ""  # the script's path, the module, or the program
    args: tuple[str, ...] = ()
    interpreter: str = ""  # "": the first python in PATH
    launchers: list[str] = field(default_factory=list)  # by name, the outermost first
    n_per_node: str = ""  # processes on a node, as the launcher was told; "": it was not
    n_total: str = ""  # processes in all
    image: EnteredImage | None = None  # a container that ``submit`` can name
    container: tuple[str, ...] = ()  # else the words that enter it, for a preamble
    activation: str = ""  # a conda environment
    venv: str = ""
    chdir: str = ""
    environment: list[tuple[str, str]] = field(default_factory=list)
    omissions: list[str] = field(default_factory=list)  # options that fall away, as written
    fault: str = ""  # why it cannot be translated; "": nothing hinders it
    fault_code: str = ""
    next_step: str = ""  # what to do about that
    inner_text: str = ""  # of bash -c: commands of their own

    @property
    def is_distributed(self) -> bool:
        """Return whether a launcher starts several processes."""
        return bool(_MANY.intersection(self.launchers))

    def refuse(self, code: str, cause: str, next_step: str) -> None:
        """Note the first thing that hinders a translation."""
        if not self.fault:
            self.fault_code, self.fault, self.next_step = code, cause, next_step

    def enter(self, outer: LaunchLine) -> None:
        """Take over what stands before ``bash -c``, among whose commands this is."""
        self.launchers[:0] = outer.launchers
        self.environment[:0] = outer.environment
        self.omissions[:0] = outer.omissions
        self.image = self.image or outer.image
        self.container = self.container or outer.container
        self.activation = self.activation or outer.activation
        self.chdir = self.chdir or outer.chdir
        if outer.fault:
            self.fault_code, self.fault = outer.fault_code, outer.fault
            self.next_step = outer.next_step
        if "torchrun" not in self.launchers:
            self.n_per_node = self.n_per_node or outer.n_per_node
            self.n_total = self.n_total or outer.n_total


Words = list[str]
Peeler = Callable[[LaunchLine, Words], Words]  # takes a launcher off; returns the words behind it


def read_launch(words: tuple[str, ...]) -> LaunchLine:
    """Return what a command line starts; ``words``: their values."""
    launch = LaunchLine()
    inner_words = list(words)  # what is left when the launchers in front are taken off
    for _ in range(MOST_LAUNCHERS):
        while inner_words and ASSIGNMENT.match(inner_words[0]):
            name, _, value = inner_words[0].partition("=")
            if OPEN in name:
                break
            launch.environment.append((name, value))
            inner_words = inner_words[1:]
        if not inner_words:
            return launch
        name = PurePosixPath(inner_words[0]).name
        if _PYTHON.match(name):
            return _python(launch, inner_words)
        peel = _peelers().get(name)
        if peel is None:
            return _program(launch, inner_words)
        outer_words, inner_words = inner_words, peel(launch, inner_words)
        if launch.kind is not ProgramKind.PROGRAM or launch.program or inner_words == outer_words:
            return launch
    return launch


def _program(launch: LaunchLine, words: Words) -> LaunchLine:
    program, *arguments = words
    if OPEN in program and arguments and arguments[0].endswith(".py"):
        launch.refuse(
            "BFT-1072",
            f"Which Python {as_written(program)} is shows on a node only.",
            "Write its path into the job script.",
        )
        program, *arguments = arguments
    launch.program, launch.args = program, tuple(arguments)
    if launch.program.endswith(".py"):
        launch.kind = ProgramKind.SCRIPT
    return launch


def _python(launch: LaunchLine, words: Words) -> LaunchLine:
    """Read a command line of Python."""
    if "/" in words[0]:
        launch.interpreter = words[0]
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        word = words[at]
        at += 1
        if word[:2] in _OF_PROGRAMS:
            value, arguments = word[2:], words[at:]
            if not value and arguments:
                value, *arguments = arguments
            if word.startswith("-m"):
                return _module(launch, value, arguments)
            return _code(launch, value)
        launch.omissions.append(f"python {as_written(word)}")
        at += word in _PYTHON_VALUES
    if at >= len(words) or words[at] in ("-", "/dev/stdin"):
        return _code(launch, "")
    launch.kind, launch.program = ProgramKind.SCRIPT, words[at]
    launch.args = tuple(words[at + 1 :])
    return launch


def _module(launch: LaunchLine, module: str, words: Words) -> LaunchLine:
    if module in TORCHRUN_MODULES:
        return _launched(launch, _torchrun(launch, ["torchrun", *words]))
    if module == "accelerate":  # whose first argument is "launch"
        return _launched(launch, _accelerate(launch, ["accelerate", "launch", *words[1:]]))
    if module == "accelerate.commands.launch":
        return _launched(launch, _accelerate(launch, ["accelerate", "launch", *words]))
    if module == "deepspeed.launcher.runner":
        return _launched(launch, _deepspeed(launch, ["deepspeed", *words]))
    launch.kind, launch.program, launch.args = ProgramKind.MODULE, module, tuple(words)
    return launch


def _launched(launch: LaunchLine, words: Words) -> LaunchLine:
    """Finish a launcher's line that names a script for Python unless it was read already."""
    if launch.program or not words:
        return launch
    if _PYTHON.match(PurePosixPath(words[0]).name):
        return _python(launch, words)
    launch.kind, launch.program = ProgramKind.SCRIPT, words[0]
    launch.args = tuple(words[1:])
    return launch


def _code(launch: LaunchLine, code: str) -> LaunchLine:
    launch.kind, launch.program = ProgramKind.CODE, code
    return launch


def _options(
    launch: LaunchLine,
    name: str,
    words: Words,
    flags: frozenset[str],
    *,
    pairs: frozenset[str] = frozenset(),
    has_long_words: bool = False,
) -> tuple[dict[str, str], Words]:
    """Take the options in front; return their values by name, and what follows them.

    Args:
        launch: gets what is taken.
        name: of the launcher.
        words: behind its name.
        flags: its options without a value; all others take the next word, or one behind "=".
        pairs: those that take two words.
        has_long_words: ``-np 4`` is one option; else ``-n4`` is a letter with its value.
    """
    values: dict[str, str] = {}
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        word = words[at]
        at += 1
        if word == "--":
            break
        option, has_value, value = word.partition("=")
        is_letter = not option.startswith("--") and not has_long_words and option not in flags
        is_joined = is_letter and len(option) > 2
        if option in pairs:
            at += 2
        elif is_joined:
            option, value = word[:2], word[2:]
        elif not has_value and option not in flags:
            value = "".join(words[at : at + 1])
            at += 1
        values[option] = value
        if name not in _WITHOUT_NOTE:
            launch.omissions.append(f"{name} {as_written(option)}")
    return values, words[at:]


def _first(values: Mapping[str, str], *names: str) -> str:
    for name in names:
        if values.get(name):
            return values[name]
    return ""


def _srun(launch: LaunchLine, words: Words) -> Words:
    launch.launchers.append("srun")
    if "--multi-prog" in words:
        launch.refuse(
            "BFT-1072",
            "srun --multi-prog runs different programs side by side.",
            "Submit the training program by itself.",
        )
    values, inner_words = _options(launch, "srun", words[1:], _SRUN_FLAGS)
    if any(name.startswith(PYXIS) for name in values):
        launch.image = entered_by_pyxis(values)
        noted = {f"srun {name}" for name in pyxis_options_taken(values)}
        launch.omissions = [text for text in launch.omissions if text not in noted]
        if launch.image is None:
            launch.refuse(
                "BFT-1072",
                "srun enters a container, and the job script does not say of which image and"
                " mounts.",
                "Submit the training script with --container IMAGE: 'bftrainer help containers'.",
            )
    launch.n_per_node = _first(values, "--ntasks-per-node")
    launch.n_total = _first(values, "-n", "--ntasks")
    launch.chdir = _first(values, "-D", "--chdir")
    for setting in _first(values, "--export").split(","):
        name, has_value, value = setting.partition("=")
        if has_value:
            launch.environment.append((name, value))
    return inner_words


def _torchrun(launch: LaunchLine, words: Words) -> Words:
    launch.launchers.append("torchrun")
    launch.n_total = ""  # of srun, which starts one torchrun on each node
    values, inner_words = _options(launch, "torchrun", words[1:], _TORCHRUN_FLAGS)
    launch.n_per_node = _first(
        values, "--nproc-per-node", "--nproc_per_node", "--nproc-per_node", "--nproc_per-node"
    )
    if {"--no-python", "--no_python"} & values.keys():
        return inner_words
    return _script_or_module(launch, values, inner_words)


def _accelerate(launch: LaunchLine, words: Words) -> Words:
    if words[1:2] != ["launch"]:
        return words
    launch.launchers.append("accelerate")
    values, inner_words = _options(launch, "accelerate", words[2:], _ACCELERATE_FLAGS)
    launch.n_total = _first(values, "--num_processes", "--num-processes")
    for flag in ("--use_deepspeed", "--use-deepspeed", "--use_fsdp", "--use-fsdp"):
        if flag in values:
            launch.refuse(
                "BFT-1075",
                f"accelerate launch {flag} cuts the model up among a fixed number of processes.",
                "Shard the model in the script: 'bftrainer help train-sharded'.",
            )
    return _script_or_module(launch, values, inner_words)


def _deepspeed(launch: LaunchLine, words: Words) -> Words:
    launch.launchers.append("deepspeed")
    values, inner_words = _options(
        launch, "deepspeed", words[1:], frozenset({"--module", "--no_python", "--no_local_rank"}),
    )  # fmt: skip
    launch.n_per_node = _first(values, "--num_gpus")
    launch.refuse(
        "BFT-1075",
        "DeepSpeed cuts the training up among a fixed number of processes.",
        "Shard the model in the script ('bftrainer help train-sharded'), or start the program with"
        " --runtime command ('bftrainer help train-command').",
    )
    return _script_or_module(launch, values, inner_words)


def _script_or_module(launch: LaunchLine, values: Mapping[str, str], words: Words) -> Words:
    if not words:
        return words
    launch.kind, launch.program = ProgramKind.SCRIPT, words[0]
    if {"-m", "--module"} & values.keys():
        launch.kind = ProgramKind.MODULE
    launch.args = tuple(words[1:])
    return []


def _mpirun(launch: LaunchLine, words: Words) -> Words:
    launch.launchers.append("mpirun")
    values, inner_words = _options(
        launch, "mpirun", words[1:], _MPI_FLAGS, pairs=_MPI_PAIRS, has_long_words=True
    )
    for word, following in itertools.pairwise(words[: len(words) - len(inner_words)]):
        if word == "-x" and "=" in following:
            name, _, value = following.partition("=")
            launch.environment.append((name, value))
    launch.n_total = _first(values, "-n", "-np", "--np", "-c", "--n")
    launch.n_per_node = _first(values, "-ppn", "-npernode", "--npernode", "-N", "--ppn")
    return inner_words


def _horovodrun(launch: LaunchLine, words: Words) -> Words:
    launch.launchers.append("horovodrun")
    values, inner_words = _options(
        launch, "horovodrun", words[1:], _HOROVOD_FLAGS, has_long_words=True
    )
    launch.n_total = _first(values, "-np", "--num-proc")
    return inner_words


def _container(launch: LaunchLine, words: Words) -> Words:
    at = 1
    verb = ""
    while at < len(words):
        word = words[at]
        at += 1
        if word.startswith("-"):
            at += "=" not in word and word not in _CONTAINER_FLAGS
        elif not verb:
            verb = word
            if verb not in ("exec", "run"):
                return words
        else:
            break
    if not verb or at >= len(words):
        return words
    entrance = (*words[: words.index(verb)], "exec", *words[words.index(verb) + 1 : at])
    launch.image = entered_by_apptainer(entrance)
    if launch.image is None:
        launch.container = entrance
    return words[at:]


def _other_container(launch: LaunchLine, words: Words) -> Words:
    """Read the command line of another runtime of containers, up to the Python in it."""
    peelers = _peelers()
    starts = [place for place, word in enumerate(words) if _PYTHON.match(word.rpartition("/")[2])]
    starts += [place for place, word in enumerate(words) if word in peelers and place]
    if not starts:
        return words
    entrance = " ".join(map(as_written, words[: min(starts)]))
    launch.refuse(
        "BFT-1072",
        f"A container is entered by {words[0]}, which is not translated.",
        "Submit the training script with --container IMAGE ('bftrainer help containers'), or"
        f' enter it in a preamble, whose last line is: exec {entrance} "$@"',
    )
    return words[min(starts) :]


def _uv(launch: LaunchLine, words: Words) -> Words:
    """Read ``uv run``, whose environment is that of the project's directory."""
    if words[1:2] != ["run"]:
        return words
    values, inner_words = _options(launch, "uv run", words[2:], _UV_FLAGS)
    for option in _UV_OTHERS:
        if option in values:
            launch.refuse(
                "BFT-1072",
                f"uv run {option} makes an environment of its own for this run.",
                "Make one with 'uv venv' and 'uv pip install', and name it by --venv.",
            )
    project = _first(values, "--project", "--directory") or "."
    launch.venv = str(PurePosixPath(project) / ".venv")
    if "--directory" in values:
        launch.chdir = project
    if {"-m", "--module"} & values.keys():
        launch.kind, launch.program = ProgramKind.MODULE, _first(values, "-m", "--module")
        launch.args = tuple(inner_words)
        return []
    return inner_words


def _conda(launch: LaunchLine, words: Words) -> Words:
    """Read ``conda run``; other commands of conda start nothing."""
    if words[1:2] != ["run"]:
        return words
    flags = frozenset({"--no-capture-output", "--live-stream", "-v", "--debug-wrapper-scripts"})
    values, inner_words = _options(launch, "conda run", words[2:], flags)
    launch.activation = _first(values, "-n", "--name", "-p", "--prefix") or "base"
    return inner_words


def _shell(launch: LaunchLine, words: Words) -> Words:
    """Read ``bash -c TEXT``, whose text has commands of its own."""
    letters = [word for word in words[1:3] if word.startswith("-")]
    if letters and letters[-1].endswith("c") and len(words) > len(letters) + 1:
        launch.inner_text = words[len(letters) + 1]
    launch.program, launch.args = words[0], tuple(words[1:])
    return words


def _plain(name: str, flags: frozenset[str], n_words: int = 0) -> Peeler:
    """Return the reading of a command with options and ``n_words`` before the program."""

    def peel(launch: LaunchLine, words: Words) -> Words:
        _, inner_words = _options(launch, name, words[1:], flags)
        if not any(text.startswith(name) for text in launch.omissions):
            launch.omissions.append(" ".join([name, *map(as_written, inner_words[:n_words])]))
        return inner_words[n_words:]

    return peel


def _profiler(launch: LaunchLine, words: Words) -> Words:
    launcher, *options = words
    if options[:1] == ["profile"]:
        options = options[1:]
    _, inner_words = _options(launch, PurePosixPath(launcher).name, options, frozenset())
    return inner_words


@cache
def _peelers() -> Mapping[str, Peeler]:
    """Return what reads each launcher, by the name of its program."""
    return {
        "srun": _srun,
        "torchrun": _torchrun,
        "accelerate": _accelerate,
        "deepspeed": _deepspeed,
        **dict.fromkeys(
            ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "ibrun", "jsrun", "aprun"), _mpirun
        ),
        "horovodrun": _horovodrun,
        **dict.fromkeys(("apptainer", "singularity"), _container),
        **dict.fromkeys(
            ("shifter", "podman", "podman-hpc", "docker", "enroot", "ch-run", "sarus"),
            _other_container,
        ),
        "uv": _uv,
        **dict.fromkeys(("conda", "mamba", "micromamba"), _conda),
        **dict.fromkeys(("bash", "sh", "dash", "zsh"), _shell),
        "env": _plain("env", frozenset({"-i", "-"})),
        "time": _plain("time", frozenset({"-p", "-v"})),
        "nohup": _plain("nohup", frozenset()),
        "exec": _plain("exec", frozenset()),
        "command": _plain("command", frozenset()),
        "nice": _plain("nice", frozenset()),
        "stdbuf": _plain("stdbuf", frozenset({"-oL", "-eL", "-o0", "-e0", "-iL", "-i0"})),
        "unbuffer": _plain("unbuffer", frozenset()),
        "numactl": _plain("numactl", frozenset({"--localalloc", "-l", "--all", "-a"})),
        "taskset": _plain("taskset", frozenset({"-c"}), 1),
        "timeout": _plain("timeout", frozenset({"--foreground"}), 1),
        **dict.fromkeys(("nsys", "ncu", "rocprof"), _profiler),
    }
