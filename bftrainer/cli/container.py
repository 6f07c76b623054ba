"""Containers of trainers, tried where they are submitted: the image, its Python and PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from bftrainer.batch.containers.entry import OF_THE_HOST
from bftrainer.batch.containers.place import PACKAGE, command_of
from bftrainer.cli.preamble import TIMEOUT_S, python_under, run_under
from bftrainer.model.container import (
    AUTO,
    MARK,
    NOT_STARTED,
    BindMount,
    ContainerOrder,
    line_of,
    mounts_of,
    text_of,
)
from bftrainer.model.errors import UsageError
from bftrainer.model.preamble import why_not_started
from bftrainer.model.trainer import TrainerSpec

NEXT: Final = "'bftrainer help containers' has examples for each runtime."
_NOTHING: Final = ("/bin/sh", "-c", ":")
_PATH: Final = "PATH"
_VERSIONS: Final = (
    "import sys, torch;"
    "print('Python', sys.version.split()[0], 'torch', torch.__version__,"
    " 'GPUs', torch.cuda.device_count() if torch.cuda.is_available() else 0)"
)


def text_with(
    preamble: str,
    values: Mapping[str, Any],
    *,
    script: str,
    cwd: str,
    environment: Iterable[tuple[str, str]],
) -> str:
    """Return the shell file under which programs of a trainer start here: its preamble, the image.

    ``values`` has the fields of a trainer that begin with ``container``.
    """
    if not values["container"]:
        return preamble
    order = ContainerOrder(
        image=values["container"],
        runtime=values["container_runtime"],
        mounts=values["container_mounts"],
        directories=(str(PACKAGE), str(Path(script).parent), cwd),
        variables=tuple(sorted({name for name, _ in environment})),
        workdir=cwd,
    )
    return f"{preamble}\n{line_of(order, command_of())}"


def text_of_spec(spec: TrainerSpec) -> str:
    """Return that file for a trainer."""
    values = {
        "container": spec.container,
        "container_mounts": spec.container_mounts,
        "container_runtime": spec.container_runtime,
    }
    return text_with(
        spec.preamble, values, script=spec.script, cwd=spec.cwd, environment=spec.environment
    )


def mounts_with(mounts: str, venv: str | None) -> str:
    """Return the mounts with a virtual environment of the host, which the image has to see."""
    if not venv:
        return mounts
    place = str(Path(venv).absolute())
    return text_of([BindMount(source=place, target=place), *mounts_of(mounts)])


def fitting(
    environment: Iterable[tuple[str, str]], named: Iterable[tuple[str, str]]
) -> tuple[tuple[str, str], ...]:
    """Return variables without those of ``--export ALL`` that are wrong in an image.

    PATH and the like are those of this machine. Who names one with ``--export`` has it.
    """
    explicit = {name for name, _ in named}
    return tuple(
        (name, value)
        for name, value in environment
        if name in explicit or (name != _PATH and name not in OF_THE_HOST)
    )


def python_in(
    text: str, values: Mapping[str, Any], environment: Iterable[tuple[str, str]], cwd: str
) -> str:
    """Return the Python that is the first in the PATH of an image.

    Raises:
        UsageError: BFT-1082, BFT-1084, BFT-1085, it cannot be found out.
    """
    image, pairs = values["container"], tuple(environment)
    if fault := why_untried(text, image, pairs, cwd):
        raise UsageError(
            "BFT-1085",
            f"Which Python the image {image} has cannot be found out here: {fault}",
            "Name it as the image has it: --interpreter /usr/bin/python3.",
        )
    try:
        return python_under(text, pairs, cwd)
    except UsageError as problem:
        if problem.code != "BFT-1006":
            raise
        raise UsageError(
            "BFT-1084",
            f"The image {image} has no python in its PATH.",
            "Take an image with Python and PyTorch, or name its Python with --interpreter.",
        ) from problem


def why_untried(text: str, image: str, environment: Iterable[tuple[str, str]], cwd: str) -> str:
    """Start the image once; return why this machine cannot, "" if it has.

    Raises:
        UsageError: BFT-1082, there is a runtime, and the image did not start; BFT-1061.
    """
    try:
        completed = run_under(text, _NOTHING, environment=environment, cwd=cwd)
    except UsageError as problem:
        if problem.code == NOT_STARTED:
            return problem.cause
        raise
    if completed.timed_out:
        raise UsageError(
            "BFT-1082",
            f"The image {image} did not start within {TIMEOUT_S:g} s.",
            "Have it as a file or directory that all nodes see, not in a registry, from which each"
            f" would fetch it; {NEXT}",
        )
    if not completed.is_ok:
        why = why_not_started(completed.stderr, completed.returncode, "")
        raise UsageError("BFT-1082", f"{why.partition(': ')[2].rstrip('.')}.", NEXT)
    return ""


def report_of(image: str, runtime: str = AUTO, mounts: str = "") -> tuple[str, ...]:
    """Start an image here, and its Python, and import torch there; return what was found.

    Raises:
        UsageError: BFT-1081, BFT-1082, BFT-1084.
    """
    values = {"container": image, "container_runtime": runtime, "container_mounts": mounts}
    text = text_with("", values, script="/", cwd="/", environment=())
    if fault := why_untried(text, image, (), "/"):
        raise UsageError("BFT-1081", fault, f"Ask on a node, in a job; {NEXT}")
    python = python_in(text, values, (), "/")
    completed = run_under(text, (python, "-I", "-c", _VERSIONS), cwd="/")
    if not completed.is_ok:
        last = (completed.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise UsageError(
            "BFT-1084",
            f"{python} in the image {image} cannot import torch: {last[:300]}",
            "Take an image that has PyTorch; with another Python there, name it to submit.",
        )
    marks = [line for line in completed.stderr.splitlines() if line.startswith(MARK)]
    return (
        *(line.removeprefix("bftrainer: ") for line in marks),
        f"python {python} of the image: {' '.join(completed.stdout.split())[:200]}",
    )
