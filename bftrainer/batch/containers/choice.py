"""The choice of a container runtime, by what a machine has and by the image's form.

Called on the node by ``entry``, and where a trainer is submitted by the checks of ``submit``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bftrainer.batch.containers.apptainer import Apptainer
from bftrainer.batch.containers.bubblewrap import Bubblewrap
from bftrainer.batch.containers.charliecloud import Charliecloud
from bftrainer.batch.containers.enroot import Enroot
from bftrainer.batch.containers.podman import Podman
from bftrainer.batch.containers.runtime import ContainerRuntime, Find, ImageForm
from bftrainer.model.container import AUTO, REGISTRY, RUNTIMES, SCHEMES
from bftrainer.model.errors import UsageError
from bftrainer.model.lookups import by_name

APPTAINER: Final = Apptainer("apptainer", "APPTAINERENV_")
SINGULARITY: Final = Apptainer("singularity", "SINGULARITYENV_")
PODMAN: Final = Podman()
CHARLIECLOUD: Final = Charliecloud()
ENROOT: Final = Enroot()
BUBBLEWRAP: Final = Bubblewrap()
EACH: Final[tuple[ContainerRuntime, ...]] = (
    *(APPTAINER, SINGULARITY, PODMAN, CHARLIECLOUD, ENROOT, BUBBLEWRAP),
)
BY_NAME: Final[Mapping[str, ContainerRuntime]] = by_name(EACH)
# For each form of an image, the runtimes that take it, the one to prefer first.
PREFERENCES: Final[Mapping[ImageForm, tuple[ContainerRuntime, ...]]] = {
    ImageForm.SIF: (APPTAINER, SINGULARITY),
    ImageForm.LIBRARY: (APPTAINER, SINGULARITY),
    ImageForm.REGISTRY: (APPTAINER, SINGULARITY, PODMAN),
    ImageForm.SQUASHFS: (ENROOT, CHARLIECLOUD, APPTAINER, SINGULARITY),
    ImageForm.DIRECTORY: (APPTAINER, SINGULARITY, CHARLIECLOUD, BUBBLEWRAP, PODMAN),
}
_SQUASHFS: Final = (".sqsh", ".sqfs", ".squashfs")
_WORDS: Final = {
    ImageForm.SIF: "a SIF file",
    ImageForm.LIBRARY: "an image of Apptainer's library",
    ImageForm.REGISTRY: "an image of a registry",
    ImageForm.SQUASHFS: "a squashfs file",
    ImageForm.DIRECTORY: "a directory",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRuntime:
    """A runtime that this machine has."""

    runtime: ContainerRuntime
    program: str  # path


def form_of(image: str, *, is_directory: bool) -> ImageForm:
    """Return what an image is, by its name and by whether a directory is there."""
    if image.startswith(REGISTRY):
        return ImageForm.REGISTRY
    if image.startswith(SCHEMES):
        return ImageForm.LIBRARY
    if is_directory:
        return ImageForm.DIRECTORY
    if image.endswith(_SQUASHFS):
        return ImageForm.SQUASHFS
    return ImageForm.SIF


def choose(wish: str, form: ImageForm, find: Find, machine: str) -> ChosenRuntime:
    """Return the runtime for an image of this form.

    Args:
        wish: the name of a runtime, or ``auto``.
        form: of the image.
        find: the path of a program in PATH, as shutil.which.
        machine: its name, for the error.

    Raises:
        UsageError: BFT-1081, this machine lacks it, or it does not take such an image.
    """
    candidates = PREFERENCES[form]
    if wish != AUTO:
        candidates = (BY_NAME[wish],)
        if form not in candidates[0].forms:
            takers = ", ".join(runtime.name for runtime in PREFERENCES[form])
            raise UsageError(
                "BFT-1081",
                f"{wish} does not start {_WORDS[form]}.",
                f"Name a runtime that does with --container-runtime: {takers}.",
            )
    for runtime in candidates:
        if program := runtime.detect(find):
            return ChosenRuntime(runtime=runtime, program=program)
    names = " nor ".join(runtime.name for runtime in candidates)
    raise UsageError(
        "BFT-1081",
        f"{machine} has no {names} in its PATH, to start {_WORDS[form]}.",
        "Load it in a --preamble (module load apptainer), or convert the image for a runtime that"
        f" nodes have ({', '.join(RUNTIMES)}).",
    )
