"""Values of options of ``submit`` that are written as for sbatch: dependencies, mail, limits.

``option_values.converter`` hands them out by the names that declarations of fields use.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from bftrainer.api.admission import check_after
from bftrainer.model.errors import UsageError
from bftrainer.model.trainer_spec import NOTIFIED

_END, _FAIL, _TIME = NOTIFIED
# Type of mail of sbatch -> what is told; None: nothing of it happens to a trainer, or is told.
_MAIL_TYPES: Final = {
    "NONE": None,
    "BEGIN": None,
    "REQUEUE": None,
    "INVALID_DEPEND": None,
    "STAGE_OUT": None,
    "TIME_LIMIT_50": None,
    "TIME_LIMIT_80": None,
    "TIME_LIMIT_90": None,
    "ARRAY_TASKS": None,
    "END": (_END, _FAIL),
    "FAIL": (_FAIL,),
    "TIME_LIMIT": (_TIME,),
    "ALL": NOTIFIED,
}
_SILENT: Final = frozenset({"NONE", "ARRAY_TASKS"})  # nobody expects a mail for them
_NEXT_AFTER: Final = "Write --dependency afterok:t1:t2,afterany:t3; 'bftrainer status' lists ids."
_JOB: Final = re.compile(r"\d+(?:_\d+)?(?:\+\d+)?\Z", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """Value of ``--dependency``."""

    after: tuple[str, ...] = ()  # ids of trainers that must have finished
    after_any: tuple[str, ...] = ()  # that must have ended


@dataclass(frozen=True, slots=True, kw_only=True)
class MailTypes:
    """Value of ``--mail-type``."""

    told: tuple[str, ...]  # some of NOTIFIED; (): no mail
    untold: tuple[str, ...] = ()  # types that were asked for and of which no mail is sent


def parse_dependency(text: str) -> Dependency:
    """Return the trainers of ``afterok:t1:t2,afterany:t3``.

    Raises:
        UsageError: BFT-1044, it is of another form, or names jobs of the batch system.
    """
    ids: dict[str, list[str]] = {"afterok": [], "afterany": []}
    for part in text.split(","):
        kind, *names = part.strip().split(":")
        if kind not in ids or not names:
            raise UsageError(
                "BFT-1044",
                f"{part[:40]!r} is no dependency of a trainer, which can wait with afterok for"
                " trainers that finish, or with afterany for their ends.",
                _NEXT_AFTER,
            )
        jobs = [name for name in names if _JOB.match(name)]
        if jobs:
            raise UsageError(
                "BFT-1044",
                f"{jobs[0][:40]} is the id of a batch job; a trainer waits for trainers, whose"
                " ids begin with t.",
                f"{_NEXT_AFTER} To wait for a job, submit from its last line.",
            )
        check_after(names)
        ids[kind] += names
    return Dependency(
        after=tuple(dict.fromkeys(ids["afterok"])), after_any=tuple(dict.fromkeys(ids["afterany"]))
    )


def parse_mail_types(text: str) -> MailTypes:
    """Return what ``END,FAIL`` and the like have mailed.

    Raises:
        UsageError: BFT-1066, sbatch has no such type.
    """
    events, untold = set[str](), []
    for part in text.split(","):
        name = part.strip().upper()
        if name not in _MAIL_TYPES:
            raise UsageError(
                "BFT-1066",
                f"--mail-type: {part[:40]!r} is no type of mail.",
                "Write --mail-type END, FAIL, TIME_LIMIT, ALL or NONE, or several with commas.",
            )
        events_of_type = _MAIL_TYPES[name]
        if events_of_type is not None:
            events.update(events_of_type)
        elif name not in _SILENT:
            untold.append(name)
    return MailTypes(told=tuple(filter(events.__contains__, NOTIFIED)), untold=tuple(untold))
