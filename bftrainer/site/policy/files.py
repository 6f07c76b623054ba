"""Reads the files of a policy, and those that its options name."""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bftrainer.batch.batch_system import OptionError, OptionProblem
from bftrainer.ground.regular_file import open_file, read_file
from bftrainer.model.plugins import CONTENT, content_of
from bftrainer.site.policy.document import MAX_BYTES, MAX_PROBLEMS, PolicyErrors, PolicyProblem

SUFFIXES = (".yaml", ".yml")
_NO_FILE = {errno.ELOOP: "This is a symbolic link.", errno.EINVAL: "This is no regular file."}
_STEP_UNREADABLE = "Give the path of a readable file."
_STEP_EMPTY = "Name a file, or another directory."
_STEP_NAME = (
    "{0} is the name of a policy, and a file is wanted, with the line 'policy: {0}'; its page: "
    "bftrainer help {0}"
)
MOST_BYTES = 1_000_000


def policy_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files in the order in which they count: those of a directory by name.

    Raises:
        PolicyErrors: BFT-2101, -2103, a directory cannot be read or everyone may change it;
            BFT-2102, there is no file in it.
    """
    files: list[Path] = []
    for path in paths:
        if not path.is_dir() or path.is_symlink():
            files.append(path)
            continue
        try:
            inside = sorted(entry for entry in path.iterdir() if entry.suffix in SUFFIXES)
            mode = path.stat().st_mode
        except OSError as problem:
            raise _unreadable(path, problem) from problem
        if mode & stat.S_IWOTH:
            raise _refuse(
                path, "BFT-2103", "Everyone may change this directory.", f"Run: chmod o-w {path}"
            )
        files += inside
    if paths and not files:
        next_step = _STEP_EMPTY
        if _is_policy_name(paths[0]):
            next_step = _STEP_NAME.format(paths[0])
        raise _refuse(paths[0], "BFT-2102", "This directory has no .yaml file.", next_step)
    return files


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
        if problem.errno in _NO_FILE:
            cause = _NO_FILE[problem.errno]
            raise _refuse(path, "BFT-2102", cause, "Name the file itself.") from problem
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
    while len(data) <= MAX_BYTES:
        chunk = os.read(handle, MAX_BYTES + 1 - len(data))
        if not chunk:
            break
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
    # One more than are reported, so that it can be said that there are more.
    problems = list(itertools.islice(_unprintable(text), MAX_PROBLEMS + 1))
    if problems:
        raise PolicyErrors(path, problems)
    return text


def _unprintable(text: str) -> Iterator[PolicyProblem]:
    """Yield a problem for each control character and the like."""
    for number, line in enumerate(text.split("\n"), 1):
        for column, character in enumerate(line, 1):
            if not (character.isprintable() or character in "\t\u00a0\u3000"):
                yield PolicyProblem(
                    code="BFT-2105",
                    line=number,
                    column=column,
                    cause=f"Character U+{ord(character):04X} is not allowed.",
                    next_step="Delete it.",
                )


def with_files(names: tuple[str, ...], options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return options in which files are replaced by what they hold.

    Args:
        names: of the options that name files.
        options: of the policy; a content that is there already stays.
        folder: of the policy file, which relative paths begin from.

    Raises:
        OptionError: BFT-3053, a file cannot be read.
    """
    contents = dict(options)
    for name in names:
        value = options.get(name)
        if isinstance(value, str) and value and not value.startswith(CONTENT):
            contents[name] = content_of(_read(name, folder / value))
    return contents


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
