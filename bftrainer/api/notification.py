"""The notification of ``submit --notify``: a mail, or a command. Pure.

``mail:ADDRESS``, or a command line whose first word is an absolute path; no shell reads it.
"""

from __future__ import annotations

import re
import shlex

from bftrainer.model.trainer import TrainerRecord

MAIL = "mail:"
# In the order of preference, and how each takes an address.
MAILERS = ("/usr/sbin/sendmail", "/usr/lib/sendmail", "/usr/bin/mail", "/usr/bin/mailx")
_ADDRESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(@[A-Za-z0-9][A-Za-z0-9.-]*)?\Z")
_MOST_REASON = 1000  # characters


def fault_of(notify: str) -> str:
    """Say what is wrong with a notification; "": nothing."""
    if not notify:
        return ""
    if notify.startswith(MAIL):
        address = notify.removeprefix(MAIL)
        return "" if _ADDRESS.match(address) else f"has the address {address[:60]!r}"
    try:
        words = shlex.split(notify)
    except ValueError as problem:
        return f"cannot be split into words: {problem}"
    return "" if words and words[0].startswith("/") else "does not begin with an absolute path"


def variables(record: TrainerRecord) -> dict[str, str]:
    """Return what a command is told of a trainer that has ended."""
    return {
        "BFT_TRAINER_ID": record.trainer_id,
        "BFT_TRAINER_NAME": record.spec.name,
        "BFT_TRAINER_STATE": record.state.value,
        "BFT_TRAINER_REASON": record.reason[:_MOST_REASON],
    }


def command_of(record: TrainerRecord, mailer: str) -> tuple[tuple[str, ...], str]:
    """Return the command to run when a trainer has ended, and its standard input."""
    notify = record.spec.notify
    if not notify.startswith(MAIL):
        return tuple(shlex.split(notify)), ""
    address = notify.removeprefix(MAIL)
    subject = f"bftrainer: {record.trainer_id} ({record.spec.name}) {record.state.value}"
    if mailer.endswith("sendmail"):
        text = f"To: {address}\nSubject: {subject}\n\n{record.reason}\n"
        return (mailer, "-i", address), text
    return (mailer, "-s", subject, address), f"{record.reason}\n"
