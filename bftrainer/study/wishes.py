"""What the user wants of a running study: a small file in its directory.

Verbs change it, the loop obeys; it survives both.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from bftrainer.api.documents import CodecError, decode, encode, parse
from bftrainer.elastic.fence import write_whole
from bftrainer.model.errors import BftError
from bftrainer.study.directory import unwritable

_FILE, _LOCK = "wishes.json", "wishes.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What is wanted now."""

    is_paused: bool = False  # no trial has nodes
    is_stopped: bool = False  # all trials end; final
    more: int = 0  # trials beyond those of the document


def read_wishes(directory: Path) -> Wishes:
    """Return the wishes; BFT-1636 if the file is damaged."""
    try:
        return decode(Wishes, parse((directory / _FILE).read_bytes()), is_strict=False)
    except FileNotFoundError:
        return Wishes()
    except (OSError, CodecError) as problem:
        raise BftError(
            "BFT-1636",
            f"{directory / _FILE} cannot be read: {problem}.",
            "Remove it: the study then goes on as its document says.",
        ) from problem


def change_wishes(directory: Path, change: Callable[[Wishes], Wishes]) -> Wishes:
    """Change the wishes durably, one verb at a time; return the new ones."""
    try:
        with (directory / _LOCK).open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            wishes = change(read_wishes(directory))
            write_whole(directory / _FILE, [json.dumps(encode(wishes)).encode()])
    except OSError as problem:
        raise unwritable(directory / _FILE, problem) from problem
    return wishes


def paused(wishes: Wishes) -> Wishes:
    """Return the wish to pause."""
    return replace(wishes, is_paused=True)


def resumed(wishes: Wishes) -> Wishes:
    """Return the wish to go on."""
    return replace(wishes, is_paused=False)


def stopped(wishes: Wishes) -> Wishes:
    """Return the wish to end all trials."""
    return replace(wishes, is_stopped=True)
