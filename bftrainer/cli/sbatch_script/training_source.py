"""The look at a training script: which framework it uses, and what it still lacks. Pure.

No check of ``submit`` asks whether a script is elastic: that shows when it runs. Here lines that
import are looked at, which tells most scripts apart.
"""

from __future__ import annotations

import re
from typing import Final

_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+([\w ,*(]*)|import[ \t]+([\w., \t]+))",
    re.MULTILINE,
)
_SHARDED = re.compile(r"\bFullyShardedDataParallel\b|\bFSDP\b")
_GROUP = re.compile(r"\binit_process_group\b|\bDistributedDataParallel\b")
# Frameworks whose trainings have no runtime of bftrainer.
FOREIGN: Final = {"tensorflow": "TensorFlow", "keras": "Keras", "jax": "JAX", "flax": "JAX"}
_PYTORCH: Final = "'bftrainer help train-pytorch'"
_TRAINERS: Final = "'bftrainer help train-huggingface-lightning'"
_SHARDING: Final = "'bftrainer help train-sharded'"
_WITH_TRAINERS: Final = frozenset({"lightning", "pytorch_lightning", "transformers", "trl"})
_OF_RUNTIMES: Final = {
    "horovod": "must be an elastic Horovod script, with a TorchState and @hvd.elastic.run:"
    " 'bftrainer help train-horovod'",
    "mpi": "must hand its state to elastic.mpi.Run: 'bftrainer help train-mpi'",
}


def imports_of(text: str) -> frozenset[str]:
    """Return the top packages that a script imports, and ``package.name`` of what it takes."""
    names: set[str] = set()
    for module, imported, modules in _IMPORT.findall(text):
        for name in (module, *modules.split(",")):
            path = name.split(" as ")[0].strip()
            if path:
                names |= {path.partition(".")[0], path}
        if module:
            for word in re.findall(r"\w+", imported):
                names.add(f"{module}.{word}")
    return frozenset(names)


def foreign_framework(text: str | None) -> str:
    """Return the framework of a script that no runtime trains; ""."""
    if text is None:
        return ""
    imports = imports_of(text)
    if imports & {"torch", "bftrainer", "horovod", "mpi4py"}:
        return ""
    return next((name for package, name in FOREIGN.items() if package in imports), "")


def runtime_of(text: str | None, launchers: tuple[str, ...]) -> str:
    """Return the runtime of a script, by what it imports and how the job starts it.

    Args:
        text: of the script; None: it cannot be read here.
        launchers: in front of it.
    """
    imports = imports_of(text or "")
    if "horovodrun" in launchers or "horovod" in imports:
        return "horovod"
    if "bftrainer.elastic.mpi" in imports:
        return "mpi"
    is_mpi = "mpirun" in launchers and (text is None or "mpi4py" in imports)
    if is_mpi or ("mpi4py" in imports and "torch" not in imports):
        return "mpi"
    return "torch"


def steps_left(script: str, text: str | None, runtime: str) -> str:
    """Return what is still to be done in the script, with the page that says how; "": nothing."""
    if text is None:
        return (
            f"{script} cannot be read here, so it is not known whether it is elastic:"
            f" {_PYTORCH} says what it needs."
        )
    imports = imports_of(text)
    if "bftrainer" in imports:
        return ""
    if runtime in _OF_RUNTIMES:
        return f"{script} {_OF_RUNTIMES[runtime]}."
    lines = "five lines make it elastic"
    step = f"{lines}: {_PYTORCH}"
    if imports & _WITH_TRAINERS:
        step = f"two lines make its Trainer elastic: {_TRAINERS}"
    elif _SHARDED.search(text):
        step = f"a model that is sharded over all processes needs fully_shard instead: {_SHARDING}"
    elif "accelerate" in imports:
        step = f"{lines}, in place of Accelerate's prepare(): {_PYTORCH}"
    elif _GROUP.search(text):
        step = (
            f"{lines}, and init_process_group and DistributedDataParallel are left out: {_PYTORCH}"
        )
    return f"{script} does not import bftrainer: {step}."
