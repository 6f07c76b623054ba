"""The notification of a trainer's end, of ``--notify``, ``--mail-type`` and ``--mail-user``."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from typing import Any, Final

from bftrainer.api.admission import MAIL, MAILERS
from bftrainer.api.service import user_name
from bftrainer.cli.output import print_lines
from bftrainer.daemon.notifier import mailer
from bftrainer.model.errors import UsageError
from bftrainer.model.trainer_spec import NOTIFIED

_MAIL: Final = "mail"


def notification(values: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Return what is sent: an address, or a command with its absolute path; "": nothing.

    ``--mail-type`` and ``--mail-user`` say the same as ``--notify mail:ADDRESS``.

    Raises:
        UsageError: BFT-1064, this host sends no mail; BFT-1066, two options say where it goes, or
            the command cannot be run here.
    """
    text, types, address = values["notify"] or "", values["mail_type"], values["mail_user"]
    if types is not None and types.untold:
        print_lines(
            f"note: no mail is sent of {', '.join(types.untold)}: it is sent of a trainer's end"
            " and of its time limit",
            err=True,
        )
    if types is not None and not types.told:  # NONE, as for sbatch
        address = None
    elif types is not None or address is not None:
        if address is not None and text not in ("", _MAIL, f"{MAIL}{address}"):
            raise UsageError(
                "BFT-1066",
                "--notify and --mail-user say two different things.",
                "Give one of them: --notify COMMAND, or --mail-type END --mail-user ADDRESS.",
            )
        text = text or _MAIL
    if address is not None:
        text = f"{MAIL}{address}"
    if text == _MAIL or text.startswith(MAIL):
        return _mail(text)
    if not text.strip():
        return ""
    return _command(text.strip(), environ)


def told_events(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the events of which the notification tells; (): of all."""
    types = values["mail_type"]
    if types is None or types.told == NOTIFIED:
        return ()
    return tuple(types.told)


def _mail(text: str) -> str:
    if not mailer():
        raise UsageError(
            "BFT-1064",
            f"This host cannot send mail: it has none of {', '.join(MAILERS)}.",
            "Name a command: --notify '/path/to/script ARGS'.",
        )
    address = text.removeprefix(_MAIL).removeprefix(":")
    return f"{MAIL}{address or user_name(os.geteuid())}"


def _command(text: str, environ: Mapping[str, str]) -> str:
    program, blank, arguments = text.partition(" ")
    path = shutil.which(program, path=environ.get("PATH"))
    if path is None:
        raise UsageError(
            "BFT-1066",
            f"--notify: {program[:200]} cannot be run here.",
            "Name an executable file, or mail[:ADDRESS].",
        )
    return f"{shlex.quote(os.path.abspath(path))}{blank}{arguments}"  # noqa: PTH100 - not resolved
