"""Where a trainer writes its checkpoints: whether it can, and whether another does so too.

``check_place`` judges the path alone. ``resolve_directory`` and ``check_real`` ask the file
system and may hang, so they are called outside the event loop. Nothing is created here: the
directory is the user's, created with the user's rights by ``bftrainer submit`` or the first worker.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence

from bftrainer.errors import UsageError
from bftrainer.model.trainer import TrainerSpec
from bftrainer.model.views import TrainerView

_MAX_COMPONENT_BYTES = 255  # NAME_MAX of Linux
_NOT_FOR_FILES = ("proc", "sys")


def normal(path: str) -> str:
    """Return one spelling of an absolute path: no ``//``, ``/./``, ``..`` or final ``/``."""
    return "/" + os.path.normpath(path).lstrip("/")


def check_place(spec: TrainerSpec, trainers: Sequence[TrainerView]) -> dict[str, str]:
    """Refuse what can be known from the paths alone (BFT-1014).

    Returns:
        The directories of the same user's other unfinished trainers, by trainer: what
        ``check_real`` is to compare.
    """
    if not spec.checkpoint_dir:
        return {}
    path = normal(spec.checkpoint_dir)
    components = path.split("/")[1:]
    if any(len(os.fsencode(name)) > _MAX_COMPONENT_BYTES for name in components):
        raise _unusable(spec, f"a name in it is above {_MAX_COMPONENT_BYTES} bytes")
    if components[0] in _NOT_FOR_FILES:
        raise _unusable(spec, f"/{components[0]} keeps no files")
    own: dict[str, str] = {}
    for other in (view.record for view in trainers if not view.record.state.is_final):
        if other.spec.checkpoint_dir:
            if normal(other.spec.checkpoint_dir) == path:
                raise _taken(spec, other.trainer_id)
            if other.spec.user == spec.user:
                own[other.trainer_id] = other.spec.checkpoint_dir
    return own


def resolve_directory(spec: TrainerSpec) -> str:
    """Return where the directory really is; refuse what the file system says is none.

    What this machine, or the daemon's user, may not see is for the node to find out.
    """
    try:
        _check_above(spec, _above(spec.checkpoint_dir))
    except PermissionError:
        pass
    except OSError as problem:
        raise _unusable(spec, problem.strerror or str(problem)) from problem
    return os.path.realpath(spec.checkpoint_dir)


def check_real(spec: TrainerSpec, real: str, others: Mapping[str, str]) -> None:
    """Refuse another way to a directory that one of ``others`` writes to (BFT-1014).

    Only directories of the same user are looked at: nobody waits for the file systems of
    others, and the directories of others are kept by their permissions.
    """
    for trainer_id, other in others.items():
        if os.path.realpath(other) == real:
            raise _taken(spec, trainer_id)


def _above(path: str) -> Iterable[str]:
    """Yield the path and what it is in, up to the root."""
    yield path
    while path != os.path.dirname(path):  # noqa: PTH120 - Path would change it
        path = os.path.dirname(path)  # noqa: PTH120
        yield path


def _check_above(spec: TrainerSpec, above: Iterable[str]) -> None:
    for place in above:
        try:
            info = os.stat(place)  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            continue
        if not stat.S_ISDIR(info.st_mode):
            raise _unusable(spec, f"{place} is not a directory")
        return


def _unusable(spec: TrainerSpec, why: str) -> UsageError:
    return UsageError(
        "BFT-1014",
        f"The checkpoint directory {spec.checkpoint_dir} cannot be used: {why}.",
        "Name a directory that you can write to, seen by all nodes, with --checkpoint-dir.",
    )


def _taken(spec: TrainerSpec, trainer_id: str) -> UsageError:
    return UsageError(
        "BFT-1014",
        f"Trainer {trainer_id} writes its checkpoints to {spec.checkpoint_dir}.",
        f"Name another --checkpoint-dir or -J NAME, or cancel {trainer_id}.",
    )
