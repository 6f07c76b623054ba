"""The ordinary commands of job scripts, and what becomes of each: one table.

What prepares the environment of the shell goes into the preamble as it is. All others are left out
for a reason, because on elastic nodes a line before the training would run at every start of every
worker.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from bftrainer.cli.sbatch_script.shell_values import words_of

PRINTS: Final = "It only prints; 'bftrainer status' and 'bftrainer logs ID' tell more."
ONCE: Final = "It is done once, not on every node: run it by hand before you submit."
COMPUTED: Final = "A program computes it; write its value into the job script if workers need it."
AFTERWARDS: Final = (
    "It follows the training: do it in the script after its loops, or by --notify 'COMMAND'."
)
OF_SLURM: Final = "It is about the job and its nodes, which the daemon looks after."
OTHER: Final = "It does not belong to the training: run it by hand before you submit."
IN_SHELL: Final = "It only directs the shell, which has nothing to decide or to wait for here."
TRAP: Final = (
    "The daemon asks for a checkpoint itself before it takes nodes, and starts again later."
)
LOG: Final = "'bftrainer logs ID' prints what the workers write."
DEVICES: Final = "Each worker gets its GPUs without it."
RENDEZVOUS: Final = "Workers learn of each other without it, at every size anew."
_REASONS: Final = {
    PRINTS: "echo printf date hostname pwd env printenv which whereis whoami id uname type lscpu"
    " lsblk free df du ls cat head tail wc nvidia-smi rocm-smi rocminfo nvcc gcc uptime cal"
    " ldd file nproc lspci quota locale top ps seff sstat sacct squeue sinfo sprio clear"
    " getent stat tree numastat hwloc-ls lstopo ibstat ifconfig ip grep sort uniq",
    ONCE: "mkdir cp mv rm ln rsync scp sftp tar unzip zip gzip gunzip zstd pigz wget curl git make"
    " cmake pip pip3 chmod chown touch sed awk mktemp install dvc gdown kaggle aws gsutil rclone"
    " huggingface-cli hf wandb mlflow sbcast lfs squashfuse mount umount find xargs tee split"
    " pixi poetry virtualenv tensorboard jupyter uv conda mamba micromamba",
    OF_SLURM: "scontrol scancel srun-wait squeue-wait nodeset",
    TRAP: "trap kill",
    IN_SHELL: "wait exit sleep true false : return break continue shift read local test [ [[ ((",
}
REASON_OF: Final = dict[str, str]()
for _reason, _names in _REASONS.items():
    REASON_OF.update(dict.fromkeys(_names.split(), _reason))
# They change the shell that the program is then started from.
PREPARES: Final = frozenset(
    (
        *("module", "ml", "source", ".", "ulimit", "umask", "shopt", "unset", "alias", "spack"),
        *("use", "pyenv", "workon", "setpkgs", "reset-modules", "enable", "hash", "export"),
    )
)
_CONDA: Final = frozenset({"conda", "mamba", "micromamba"})
_ACTIVATION: Final = frozenset({"activate", "deactivate"})
_HOOK = re.compile(r"conda\.sh|mamba\.sh|shell[ .]+(?:hook|bash)|bin/activate|conda init")
_EVALUATED = re.compile(
    r"[$`]\(?(?:\S*/)?\"?(?:conda|mamba|micromamba|spack|pyenv|direnv|modulecmd|lmod|register)\b"
    r"|\$(?:\{?\w*(?:CONDA|MAMBA|SPACK|LMOD)\w*)|shell[ .]+(?:hook|bash|posix)"
)
_RUNS: Final = re.compile(
    r"(?:\$\(|`|[|;&])\s*(?:\S*/)?(?:srun|mpirun|mpiexec|sbatch|salloc|scancel|scontrol|torchrun|"
    r"python\S*|rm|mv|cp|ssh|curl|wget)\b"
)
_IS_CONDA_MODULE = re.compile(r"conda|mamba|forge", re.IGNORECASE)
# Modules of Python that prepare or look, and train nothing.
UTILITIES: Final = words_of(
    "pip venv virtualenv ensurepip pytest http.server ipykernel json.tool site sysconfig zipfile"
    " timeit compileall torch.utils.collect_env tensorboard.main jupyter notebook wandb"
)
# Set by bftrainer for every worker, at every size anew.
OF_WORKERS: Final = words_of(
    "MASTER_ADDR MASTER_PORT WORLD_SIZE RANK LOCAL_RANK NODE_RANK GROUP_RANK LOCAL_WORLD_SIZE"
    " PYTHONHASHSEED"
)
OF_DEVICES: Final = words_of(
    "CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ZE_AFFINITY_MASK"
    " CUDA_DEVICE_ORDER GPU_DEVICE_ORDINAL"
)
OF_STEPS: Final = ("SLURM_", "SRUN_", "SBATCH_", "OMPI_COMM", "PMI_", "PMIX_", "TORCHELASTIC_")
# What Slurm tells a job of itself and stays true for a pilot; all else of SLURM_* changes.
OF_PILOT: Final = frozenset(
    ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_TMPDIR", "SLURM_JOB_USER", "SLURM_CLUSTER_NAME")
)


def is_preparation(words: Sequence[str]) -> bool:
    """Return whether a command prepares the shell's environment; ``words``: with their values."""
    name = words[0].rpartition("/")[2]
    if name in _CONDA:
        return not _ACTIVATION.isdisjoint(words[1:2])
    return name in PREPARES


def is_hook(text: str) -> bool:
    """Return whether ``eval`` prepares the shell by what a program prints for that."""
    return _EVALUATED.search(text) is not None


def activates_conda(words: Sequence[str]) -> bool:
    """Return whether the command needs conda's function in the shell."""
    return not _CONDA.isdisjoint(words[:1]) and not _ACTIVATION.isdisjoint(words[1:2])


def brings_conda(text: str) -> bool:
    """Return whether a line of a preamble may define conda's function."""
    command, _, arguments = text.partition(" ")
    if command in ("module", "ml"):
        return bool(_IS_CONDA_MODULE.search(arguments))
    return bool(_HOOK.search(text))


def runs_a_program(text: str) -> bool:
    """Return whether a value is computed by a program that a preamble must not run."""
    return _RUNS.search(text) is not None


def reason_of(name: str) -> str:
    """Return why a command that starts no training is left out."""
    return REASON_OF.get(name.rpartition("/")[2], OTHER)
