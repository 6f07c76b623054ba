"""Says in a user's words why the batch system refuses a pilot, or does not start it. Pure.

Slurm's words are those of slurm_errno.c and of squeue's manual page ("JOB REASON CODES"), 22.05 to
25.05; LSF's those of bsub and bjobs. Words that are not known here are passed on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_LIMIT = re.compile(r"\b(QOS|Assoc)(?:iation)?([A-Z][A-Za-z]*)")
_OF_WHAT = (
    ("Submit", "submitted jobs"),
    ("Wall", "run time"),
    ("Jobs", "running jobs"),
    ("JobLimit", "running jobs"),
    ("Node", "nodes"),
    ("Cpu", "CPUs"),
    ("CPU", "CPUs"),
    ("Mem", "memory"),
    ("GRES", "GPUs"),
    ("Gres", "GPUs"),
)
_PER = (
    ("PerUser", " of one user"),
    ("PerAccount", " of one account"),
    ("PerJob", " of one job"),
    ("Grp", " of all its users together"),
)
_RAISE = "Ask an administrator to raise it, or wait until jobs of yours have ended."


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why pilots are refused."""

    why: str  # a sentence, and what to do, for the trainer's user
    is_for_all: bool  # whoever's pilots they are


# What the batch system says, what it means, what to do, whether that holds for everybody.
_REFUSED = (
    (
        r"BFT-1528",
        "{user} may have no pilots here",
        "Ask an administrator (submit-helper.json).",
        False,
    ),
    (
        r"BFT-1529",
        "the folder of pilots in the home of {user} cannot be used",
        "See that ~/.bftrainer is a directory of yours, and that only you can write to it.",
        False,
    ),
    (
        r"BFT-1527",
        "the submit helper does not accept the request for {user} with {account}",
        "Correct --account, or ask an administrator (journalctl -t bftrainer-submit-helper).",
        False,
    ),
    (
        r"submit helper",
        "they cannot be submitted as their users",
        "Ask an administrator (systemctl status bftrainer-submit.socket).",
        True,
    ),
    (
        r"partition not available|[Qq]ueue has been closed|[Qq]ueue is closed",
        "the partition of pilots takes no jobs now (inactive, drained or closed)",
        "It goes on by itself when an administrator opens the partition.",
        True,
    ),
    (
        r"Invalid account",
        "{account} may not be used by {user} in the partition of pilots",
        "Name another one with --account, or ask an administrator for an association (sacctmgr).",
        False,
    ),
    (
        r"Invalid qos|InvalidQOS|QOSNotAllowed",
        "the QOS of pilots may not be used by {user} with {account}",
        "Ask an administrator to allow it (sacctmgr modify user ... set qos+=...).",
        False,
    ),
    (
        r"group not permitted|[Pp]ermission denied|cannot use the queue",
        "{user} may not submit jobs to the partition of pilots",
        "Ask an administrator (AllowGroups and AllowAccounts of the partition).",
        False,
    ),
    (
        r"time limit is invalid",
        "their time limit is longer than the partition, the account or the QOS allows",
        "Ask an administrator to lower pilot_time_limit_s in the policy.",
        False,
    ),
    (
        r"temporarily unable to accept job|[Pp]ending job threshold|MaxJobCount",
        "the queue of the whole cluster is full",
        "It goes on by itself when jobs have ended.",
        True,
    ),
    (
        r"Invalid partition|No such queue",
        "there is no such partition or queue for pilots",
        "Ask an administrator to correct the policy (bftrainer doctor).",
        True,
    ),
    (
        r"accounting/QOS policy",
        "a limit of {account} or of the QOS of pilots is reached",
        _RAISE,
        False,
    ),
)
_WAITS = (
    (r"PartitionDown|PartitionInactive", "its partition is closed until an administrator opens it"),
    (r"PartitionTimeLimit", "its time limit is longer than the partition allows"),
    (r"Priority", "other jobs come first"),
    (r"Resources", "its node is not free yet"),
    (r"JobHeldAdmin", "an administrator holds it"),
    (r"JobHeldUser", "it is held"),
    (r"ReqNodeNotAvail|DOWN, DRAINED|ReservedMaintenance", "its node is down, drained or reserved"),
    (r"Reservation", "it waits for a reservation"),
    (r"Licenses", "licenses are lacking"),
    (r"BeginTime", "it was put off for a while after a failed start"),
    (r"InvalidAccount|AccountNotAllowed", "its account may not be used"),
    (r"InvalidQOS|QOSNotAllowed", "its QOS may not be used"),
)  # fmt: skip


def refusal(words: str, *, user: str, account: str) -> Refusal:
    """Explain a refused submission.

    Args:
        words: of the batch system.
        user: whose job it was to be.
        account: that was named; "": the user's default.
    """
    of_whom = {"user": user, "account": f"account {account}" if account else "the default account"}
    begin = "The batch system refuses its pilots: "
    if limit := _limit(words):
        return Refusal(why=f"{begin}{limit}. {_RAISE}", is_for_all=False)
    for pattern, meaning, next_step, is_for_all in _REFUSED:
        if re.search(pattern, words):
            meant = meaning.format_map(of_whom)
            return Refusal(why=f"{begin}{meant}. {next_step}", is_for_all=is_for_all)
    return Refusal(why=f"{begin}{words.rstrip('.')}.", is_for_all=False)


def waiting(reason: str) -> str:
    """Say why a pilot is pending, with the batch system's word for it."""
    if not reason or reason == "None":
        return "the scheduler has not looked at it yet"
    if limit := _limit(reason):
        return limit
    known = next((said for pattern, said in _WAITS if re.search(pattern, reason)), "")
    return f"{known} ({reason})" if known else reason


def waiting_sentences(reasons: Iterable[str]) -> tuple[str, ...]:
    """Say it of all pilots of a trainer that are pending, by their reasons."""
    counts: dict[str, int] = {}
    for reason in reasons:
        counts[reason] = counts.get(reason, 0) + 1
    return tuple(
        f"{count} of its pilots {'waits' if count == 1 else 'wait'} in the queue: "
        f"{waiting(reason)}."
        for reason, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    )


def _limit(words: str) -> str:
    """Name the limit of an account or QOS in the batch system's words; "": there is none."""
    found = _LIMIT.search(words)
    if found is None or "Not" in found[2]:
        return ""
    whose = "the QOS" if found[1] == "QOS" else "the account"
    of_what = next((what for word, what in _OF_WHAT if word in found[2]), "use")
    per = next((whom for word, whom in _PER if word in found[2]), "")
    return f"the limit of {whose} on {of_what}{per} is reached ({found[0]})"
