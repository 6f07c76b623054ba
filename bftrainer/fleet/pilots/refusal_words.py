"""The batch system's words for refused and waiting pilots, in plain words.

Slurm's words are those of slurm_errno.c and of squeue's manual page ("JOB REASON CODES"), 22.05 to
25.05; LSF's those of bsub and bjobs. Words that are not known here are passed on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_LIMIT = re.compile(r"\b(?P<holder>QOS|Assoc)(?:iation)?(?P<name>[A-Z][A-Za-z]*)")
_HOLDERS = {"QOS": "the QOS", "Assoc": "the account"}
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
# What the batch system says, what it means, what to do, whether that holds for everybody.
_REFUSALS = (
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
    (  # sbatch tries again until we end it, so that the next row applies, too
        r"temporarily unable to accept job|[Pp]ending job threshold|MaxJobCount",
        "the queue of the whole cluster is full",
        "It goes on by itself when jobs have ended.",
        True,
    ),
    (
        r"It is not known whether",
        "it does not say in time whether it takes them",
        "A pilot that appears in the queue within a minute is used; else it is tried again.",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The reason for which pilots are refused."""

    why: str  # a sentence, and what to do, for the trainer's user
    is_for_all: bool  # whoever's pilots they are


def refusal(words: str, *, user: str, account: str) -> Refusal:
    """Explain, by the batch system's words, why a job is refused; no ``account``: the default."""
    account_name = f"account {account}" if account else "the default account"
    begin = "The batch system refuses its pilots: "
    if limit := _limit(words):
        return Refusal(why=f"{begin}{limit}. {_RAISE}", is_for_all=False)
    for pattern, meaning, next_step, is_for_all in _REFUSALS:
        if re.search(pattern, words):
            why = meaning.format(user=user, account=account_name)
            return Refusal(why=f"{begin}{why}. {next_step}", is_for_all=is_for_all)
    return Refusal(why=f"{begin}{words.rstrip('.')}.", is_for_all=False)


def waiting(reason: str) -> str:
    """Say why a pilot is pending, with the batch system's word for it."""
    if not reason or reason == "None":
        return "the scheduler has not looked at it yet"
    if limit := _limit(reason):
        return limit
    for pattern, meaning in _WAITS:
        if re.search(pattern, reason):
            return f"{meaning} ({reason})"
    return reason


def waiting_sentences(reasons: Iterable[str]) -> tuple[str, ...]:
    """Say it of all pilots of a trainer that are pending, by their reasons."""
    sentences, counts = [], Counter(reasons)
    for reason in sorted(counts, key=lambda reason: (-counts[reason], reason)):
        count = counts[reason]
        subject = f"{count} of its pilots wait"
        if count == 1:
            subject = "1 of its pilots waits"
        sentences.append(f"{subject} in the queue: {waiting(reason)}.")
    return tuple(sentences)


def _limit(words: str) -> str:
    """Name the limit of an account or QOS in the batch system's words; "": there is none."""
    match = _LIMIT.search(words)
    if match is None:
        return ""
    name = match["name"]
    if "Not" in name:
        return ""
    holder = _HOLDERS[match["holder"]]
    resource, scope = _meaning_in(_OF_WHAT, name, "use"), _meaning_in(_PER, name, "")
    return f"the limit of {holder} on {resource}{scope} is reached ({match.group()})"


def _meaning_in(meanings: Sequence[tuple[str, str]], name: str, otherwise: str) -> str:
    """Return the meaning of the first word that a name has."""
    for word, meaning in meanings:
        if word in name:
            return meaning
    return otherwise
