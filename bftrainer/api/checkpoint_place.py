"""Checks the checkpoint directory of a trainer: usable, and not used by another trainer.

``check_place`` judges paths only. ``resolve_directory`` and ``check_real`` access the file system
and may hang, so they are called outside the event loop. Nothing is created here: ``bftrainer
submit`` or the first worker creates the directory, with the user's rights.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence

from bftrainer.model.errors import UsageError
from bftrainer.model.trainer import TrainerSpec
from bftrainer.model.views import TrainerView

_MAX_COMPONENT_BYTES = 255  # NAME_MAX of Linux
_NOT_FOR_FILES = ("proc", "sys")


def normal(path: str) -> str:
    """Return one spelling of an absolute path: no ``//``, ``/./``, ``..`` or final ``/``."""
    return "/" + os.path.normpath(path).lstrip("/")


def check_place(spec: TrainerSpec, trainers: Sequence[TrainerView]) -> dict[str, str]:
    """Refuse what the paths alone show to be unusable (BFT-1014).

    Returns:
        The directories of the same user's other unfinished trainers, by trainer, for
        ``check_real`` to compare.
    """
    if not spec.checkpoint_dir:
        return {}
    path = normal(spec.checkpoint_dir)
    components = path.split("/")[1:]
    if any(len(os.fsencode(name)) > _MAX_COMPONENT_BYTES for name in components):
        raise _unusable(spec, f"a name in it is above {_MAX_COMPONENT_BYTES} bytes")
    if components[0] in _NOT_FOR_FILES:
        raise _unusable(spec, f"/{components[0]} cannot hold files")
    directories = _own(spec.user, trainers)
    for trainer_id, directory in directories.items():
        if normal(directory) == path:
            raise TakenError(spec, trainer_id)
    return directories


def check_places(specs: Sequence[TrainerSpec], trainers: Sequence[TrainerView]) -> dict[str, str]:
    """Do so with trials of one user, whose directories are siblings (else BFT-1604)."""
    places = {normal(spec.checkpoint_dir): spec for spec in specs}
    if len(places) < len(specs) or len({os.path.dirname(path) for path in places}) > 1:  # noqa: PTH120
        raise UsageError(
            "BFT-1604",
            "The trials' checkpoint directories are not different ones in one directory.",
            "Submit trials with 'bftrainer study run STUDY.yaml SCRIPT'.",
        )
    check_place(specs[0], ())
    directories = _own(specs[0].user, trainers)
    for trainer_id, directory in directories.items():
        if (spec := places.get(normal(directory))) is not None:
            raise TakenError(spec, trainer_id)
    return directories


def _own(user: str, trainers: Sequence[TrainerView]) -> dict[str, str]:
    """Return the directories of a user's unfinished trainers, by trainer."""
    # Permissions protect the directories of others; who names one must not keep it from them.
    return {
        view.record.trainer_id: view.record.spec.checkpoint_dir
        for view in trainers
        if view.record.spec.user == user
        and view.record.spec.checkpoint_dir
        and not view.record.state.is_final
    }


def resolve_directory(spec: TrainerSpec) -> str:
    """Return the real path of the directory; refuse it if a parent is not a directory.

    What this machine or the daemon's user cannot access is left for the node to check.
    """
    try:
        _check_above(spec, _above(spec.checkpoint_dir))
    except PermissionError:
        pass
    except OSError as problem:
        raise _unusable(spec, problem.strerror or str(problem)) from problem
    return os.path.realpath(spec.checkpoint_dir)


def check_real(spec: TrainerSpec, real: str, others: Mapping[str, str]) -> None:
    """Refuse a directory that resolves to one that ``others`` write to (BFT-1014).

    Only directories of the same user are compared: no user waits for another's file systems,
    and permissions protect the directories of others.
    """
    for trainer_id, directory in others.items():
        if os.path.realpath(directory) == real:
            raise TakenError(spec, trainer_id)


def check_reals(specs: Sequence[TrainerSpec], real: str, others: Mapping[str, str]) -> None:
    """Do so with siblings; ``real`` is what the first one's directory resolves to."""
    parent = os.path.dirname(real)  # noqa: PTH120
    reals = {os.path.join(parent, os.path.basename(s.checkpoint_dir)): s for s in specs}  # noqa: PTH118, PTH119
    for trainer_id, directory in others.items():
        if (spec := reals.get(os.path.realpath(directory))) is not None:
            raise TakenError(spec, trainer_id)


def _above(path: str) -> Iterable[str]:
    """Yield the path and its parents up to the root."""
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


class TakenError(UsageError):
    """Another trainer that has not ended writes its checkpoints there."""

    def __init__(self, spec: TrainerSpec, trainer_id: str) -> None:
        super().__init__(
            "BFT-1014",
            f"Trainer {trainer_id} writes its checkpoints to {spec.checkpoint_dir}.",
            f"Name another --checkpoint-dir or -J NAME, or cancel {trainer_id}.",
        )
        self.trainer_id, self.place = trainer_id, spec.checkpoint_dir

    def of_requeue(self, trainer_id: str) -> UsageError:
        """Return what to say of this to who requeues a trainer: it cannot name another place."""
        return UsageError(
            "BFT-1464",
            f"Trainer {trainer_id} goes on as {self.trainer_id}, from the same checkpoints"
            f" ({self.place}).",
            f"See 'bftrainer status {self.trainer_id}'; to start that one again: bftrainer requeue"
            f" {self.trainer_id}",
        )
