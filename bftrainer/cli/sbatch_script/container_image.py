"""Images that a job script enters, as ``bftrainer submit --container`` names them. Pure.

``launchers`` asks for the words of ``apptainer exec``, and for the options of ``srun`` by which
pyxis enters an image. Sources: apptainer-exec(1) of Apptainer 1.3; README of pyxis 0.20.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bftrainer.cli.sbatch_script.shell_values import unknown_parts, words_of
from bftrainer.model.container import REGISTRY, SCHEMES, mounts_of

PYXIS: Final = "--container"  # begins the names of its options of srun
_IMAGE: Final = "--container-image"
_MOUNTS: Final = "--container-mounts"
# Options of Apptainer that change nothing here: drivers are mounted where a node has them.
_WITHOUT_EFFECT: Final = words_of("--nv --rocm --nvccli -q --quiet -s --silent exec")
_BINDS: Final = frozenset({"-B", "--bind"})
_FILES: Final = ("/", "./", "../", "~")  # begin the path of an image
_ENDINGS: Final = (".sqsh", ".sqfs", ".squashfs", ".sif")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnteredImage:
    """An image and what it is to see of the host."""

    image: str
    mounts: str = ""  # SRC[:DST[:ro]],...

    @property
    def options(self) -> tuple[str, ...]:
        """Return the options of ``submit``."""
        if not self.mounts:
            return (PYXIS, self.image)
        return (PYXIS, self.image, _MOUNTS, self.mounts)

    @property
    def is_fetched(self) -> bool:
        """Return whether each node fetches it."""
        return self.image.startswith(SCHEMES)


def entered_by_apptainer(words: Sequence[str]) -> EnteredImage | None:
    """Return the image that ``apptainer [OPTIONS] exec [OPTIONS] IMAGE`` enters.

    None: it has an option to which nothing of ``submit`` corresponds, or a value that is not known.
    """
    binds: list[str] = []
    options = iter(words[1:-1])
    for word in options:
        name, has_value, value = word.partition("=")
        if name in _BINDS:
            if not has_value:  # it is the next word
                value = next(options, "")
            binds.append(value)
        elif word not in _WITHOUT_EFFECT:
            return None
    return _checked(words[-1], ",".join(binds))


def entered_by_pyxis(options: Mapping[str, str]) -> EnteredImage | None:
    """Return the image that ``srun`` enters with these options.

    None: they name none, or a value is not known.
    """
    name = options.get(_IMAGE, "")
    if not name:
        return None
    if not name.startswith(_FILES) and not name.endswith(_ENDINGS):
        # Enroot divides the registry from the image by "#".
        name = REGISTRY + name.removeprefix(REGISTRY).replace("#", "/")
    return _checked(name, options.get(_MOUNTS, ""))


def pyxis_options_taken(options: Mapping[str, str]) -> frozenset[str]:
    """Return those of the options of ``srun`` that ``entered_by_pyxis`` reads."""
    return frozenset({_IMAGE, _MOUNTS}).intersection(options)


def _checked(image: str, mounts: str) -> EnteredImage | None:
    if unknown_parts(image + mounts):
        return None
    try:
        mounts_of(mounts)
    except ValueError:
        return None
    return EnteredImage(image=image, mounts=mounts)
