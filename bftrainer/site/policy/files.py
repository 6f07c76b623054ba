"""Reads the files of a policy, and those that its options name."""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bftrainer.batch.batch_system import OptionError, OptionProblem
from bftrainer.elastic.regular_file import open_file, read_file
from bftrainer.model.plugins import CONTENT, content_of
from bftrainer.site.policy.document import MAX_BYTES, MAX_PROBLEMS, PolicyErrors, PolicyProblem

SUFFIXES = (".yaml", ".yml")
_STEP_UNREADABLE = "Give the path of a readable file."
_STEP_EMPTY = "Name a file, or another directory."
_STEP_NAME = (
    "{0} is the name of a policy, and a file is wanted, with the line 'policy: {0}'; its page: "
    "bftrainer help {0}"
)


def policy_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files in the order in which they count: those of a directory by name.

    Raises:
        PolicyErrors: BFT-2101, -2103, a directory cannot be read or everyone may change it;
            BFT-2102, there is no file in it.
    """
    found: list[Path] = []
    for path in paths:
        if not path.is_dir() or path.is_symlink():
            found.append(path)
            continue
        try:
            inside = sorted(each for each in path.iterdir() if each.suffix in SUFFIXES)
            mode = path.stat().st_mode
        except OSError as problem:
            raise _unreadable(path, problem) from problem
        if mode & stat.S_IWOTH:
            raise _refuse(
                path, "BFT-2103", "Everyone may change this directory.", f"Run: chmod o-w {path}"
            )
        found += inside
    if paths and not found:
        raise _refuse(
            paths[0],
            "BFT-2102",
            "This directory has no .yaml file.",
            _STEP_NAME.format(paths[0]) if _is_policy_name(paths[0]) else _STEP_EMPTY,
        )
    return found


def _unreadable(path: Path, problem: OSError) -> PolicyErrors:
    cause, next_step = f"The policy cannot be read: {problem.strerror}.", _STEP_UNREADABLE
    if isinstance(problem, FileNotFoundError) and _is_policy_name(path):
        next_step = _STEP_NAME.format(path)
    return _refuse(path, "BFT-2101", cause, next_step)


def _is_policy_name(path: Path) -> bool:
    """Return whether the name of a policy was given where a file is wanted."""
    from bftrainer.decide.policies.base import policy_names  # noqa: PLC0415 - of a mistake only

    return str(path) in policy_names()


def _refuse(path: Path, code: str, cause: str, next_step: str) -> PolicyErrors:
    problem = PolicyProblem(code=code, line=0, column=0, cause=cause, next_step=next_step)
    return PolicyErrors(path, [problem])


def read_text(path: Path) -> str:
    """Return the text of a file that only its owner and group can have written."""
    try:
        handle = open_file(path, is_any_owner=True)
    except OSError as problem:
        told = {errno.ELOOP: "This is a symbolic link.", errno.EINVAL: "This is no regular file."}
        if problem.errno in told:
            raise _refuse(
                path, "BFT-2102", told[problem.errno], "Name the file itself."
            ) from problem
        raise _unreadable(path, problem) from problem
    try:
        if os.fstat(handle).st_mode & stat.S_IWOTH:
            raise _refuse(
                path, "BFT-2103", "Everyone may change this file.", f"Run: chmod o-w {path}"
            )
        data = _bytes(handle)
    except OSError as problem:
        raise _refuse(
            path,
            "BFT-2101",
            f"The policy cannot be read: {problem.strerror}.",
            "Look into the kernel log (dmesg).",
        ) from problem
    finally:
        os.close(handle)
    if len(data) > MAX_BYTES:
        raise _refuse(
            path,
            "BFT-2104",
            f"The file is larger than {MAX_BYTES // 1024} KiB.",
            "A policy needs a few kilobytes; name the right file.",
        )
    return _text(path, data)


def _bytes(handle: int) -> bytes:
    """Return the content, or the first byte too many with all before it."""
    data = b""
    while len(data) <= MAX_BYTES and (chunk := os.read(handle, MAX_BYTES + 1 - len(data))):
        data += chunk
    return data


def _text(path: Path, data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        before = problem.object[: problem.start]
        raise PolicyErrors(
            path,
            [
                PolicyProblem(
                    code="BFT-2105",
                    line=before.count(b"\n") + 1,
                    column=len(before) - before.rfind(b"\n"),
                    cause=f"Byte 0x{problem.object[problem.start]:02x} is not UTF-8.",
                    next_step="Save the file as UTF-8.",
                )
            ],
        ) from problem
    text = text.replace("\r\n", "\n")
    problems = (
        PolicyProblem(
            code="BFT-2105",
            line=number,
            column=column,
            cause=f"Character U+{ord(char):04X} is not allowed.",
            next_step="Delete it.",
        )
        for number, line in enumerate(text.split("\n"), 1)
        for column, char in enumerate(line, 1)
        if not (char.isprintable() or char in "\t\u00a0\u3000")
    )
    if told := list(itertools.islice(problems, MAX_PROBLEMS + 1)):
        raise PolicyErrors(path, told)
    return text


MOST_BYTES = 1_000_000


def with_files(names: tuple[str, ...], given: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return options in which files are replaced by what they hold.

    Args:
        names: of the options that name files.
        given: the options; a content that is there already stays.
        folder: of the policy file, which relative paths begin from.

    Raises:
        OptionError: BFT-3053, a file cannot be read.
    """
    found = dict(given)
    for name in names:
        value = given.get(name)
        if isinstance(value, str) and value and not value.startswith(CONTENT):
            found[name] = content_of(_read(name, folder / value))
    return found


def _read(name: str, path: Path) -> bytes:
    try:
        return read_file(path, MOST_BYTES, is_typed=True)
    except (OSError, ValueError) as error:
        raise _unreadable_option(
            name, path, getattr(error, "strerror", None) or str(error)
        ) from error


def _unreadable_option(name: str, path: Path, why: str) -> OptionError:
    cause = f"Option {name!r} names the file {path}, which cannot be read: {why}."
    problem = OptionProblem(path=(name,), cause=cause, next_step="Name a file that exists.")
    return OptionError("BFT-3053", [problem])
