"""Turns a policy file into a ``SitePolicy``, or into a list of everything wrong with it.

``load_policy`` is for the daemon; ``load_policy_file`` also says where each value
comes from, for ``policy show``.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import os
import stat
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from bftrainer.errors import UsageError
from bftrainer.policy.document import Document, YamlNode, read_document
from bftrainer.policy.model import REMOVED, SitePolicy, conflicts, policy_hash
from bftrainer.policy.option_files import with_files
from bftrainer.policy.problems import PolicyErrors, PolicyProblem
from bftrainer.policy.schema import expectation, yaml_value
from bftrainer.poll.batch_system import OptionError, load_batch_system

MAX_BYTES = 256 * 1024
ENTRY_POINT_GROUP = "bftrainer.policies"
DEFAULT_ORIGIN = "default"
_BOUND_ERRORS = frozenset(
    {
        "greater_than_equal",
        "less_than_equal",
        "finite_number",
        "enum",
        "string_pattern_mismatch",
        "string_too_short",
        "string_too_long",
        "too_short",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPolicy:
    """A policy, where it was read and where each value comes from."""

    policy: SitePolicy
    path: Path | None
    sha256: str
    origins: Mapping[str, str]  # setting -> "default" or "file:line"


def load_policy(path: Path) -> SitePolicy:
    """Return the policy in a file; what the file does not set has its default.

    Raises:
        PolicyErrors: all problems of the file at once (exit code 8).
    """
    return load_policy_file(path).policy


def load_policy_file(
    path: Path | None, *, batch_system: str = "", batch_options: Mapping[str, Any] | None = None
) -> LoadedPolicy:
    """Return the policy in a file (the defaults without one) with its origins.

    Args:
        path: of the file.
        batch_system: whose options they are, to have them checked; "": nobody's.
        batch_options: that come before those of the file.

    Raises:
        PolicyErrors: all problems of the file at once (exit code 8).
        UsageError: BFT-1201, there is no such batch system.
    """
    origins = dict.fromkeys(SitePolicy.model_fields, DEFAULT_ORIGIN)
    if path is None:
        policy = SitePolicy()
    else:
        document = read_document(_read(path))
        values = _validated(document, path.parent, batch_system, batch_options or {})
        if document.problems:
            raise PolicyErrors(path, document.problems)
        policy = SitePolicy.model_validate(values)
        origins |= {str(key.value): f"{path}:{key.line}" for key, _ in document.entries}
    return LoadedPolicy(policy=policy, path=path, sha256=policy_hash(policy), origins=origins)


# ---- the file -----------------------------------------------------------------------


def _refuse(path: Path, code: str, cause: str, next_step: str) -> PolicyErrors:
    problem = PolicyProblem(code=code, line=0, column=0, cause=cause, next_step=next_step)
    return PolicyErrors(path, [problem])


def _read(path: Path) -> str:
    """Return the text of a file that only its owner and group can have written."""
    try:
        # Non-blocking: a pipe must not hold us. No links: they can be turned elsewhere.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        handle = os.open(path, flags)
    except OSError as problem:
        if path.is_symlink():
            raise _refuse(
                path, "BFT-2102", "This is a symbolic link.", "Name the file itself."
            ) from problem
        raise _refuse(
            path,
            "BFT-2101",
            f"The policy cannot be read: {problem.strerror}.",
            "Give the path of a readable file.",
        ) from problem
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise _refuse(path, "BFT-2102", "This is not a regular file.", "Name a regular file.")
        if status.st_mode & stat.S_IWOTH:
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
    problems = [
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
    ]
    if problems:
        raise PolicyErrors(path, problems)
    return text


# ---- the settings -------------------------------------------------------------------


def _validated(
    document: Document, folder: Path, batch_system: str, batch_options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings of a document; add what is wrong with them to its problems."""
    nodes: dict[str, YamlNode] = {}
    for key, value in document.entries:
        name = str(key.value)
        if name in SitePolicy.model_fields:
            nodes[name] = value
        elif name in REMOVED:
            document.complain(
                "BFT-2110",
                key.line,
                key.column,
                f"{name} is no setting any more. {REMOVED[name]}",
                "Delete the line.",
            )
        else:
            document.complain(
                "BFT-2110",
                key.line,
                key.column,
                f"There is no setting {name[:80]!r}.",
                _nearest(
                    name, list(SitePolicy.model_fields), "bftrainer policy show lists them all."
                ),
            )
    values = {name: node.value for name, node in nodes.items()}
    wrong: set[str] = set()
    try:
        SitePolicy.model_validate(values)
    except ValidationError as errors:
        for detail in errors.errors(include_url=False, include_context=False):
            if detail["loc"] and str(detail["loc"][0]) not in wrong:
                wrong.add(str(detail["loc"][0]))
                _explain(detail, nodes, document)
    defaults = {name: field.default for name, field in SitePolicy.model_fields.items()}
    sound = {k: v for k, v in (defaults | values).items() if k not in wrong}
    for conflict in conflicts(sound):
        # One of the two is in the file: the defaults agree with each other.
        node = nodes.get(conflict.setting) or nodes[conflict.other]
        document.complain("BFT-2113", node.line, node.column, conflict.cause, conflict.next_step)
    if "policy" in nodes and "policy" not in wrong:
        _require_plug_in(nodes["policy"], document)
    if not document.problems and nodes.keys() & {"policy", "policy_options"}:
        options = _checked_options(defaults | values, nodes, document, folder)
        values |= {"policy_options": options} if "policy_options" in values else {}
    if batch_system and "batch_options" in nodes.keys() - wrong:
        _check_options(nodes["batch_options"], batch_system, batch_options, document)
    return values


def _explain(detail: ErrorDetails, nodes: dict[str, YamlNode], document: Document) -> None:
    name = str(detail["loc"][0])
    node = nodes[name]
    node = _at(node, detail["loc"][1:])
    if node.is_mapping:
        given = "a mapping"
    else:
        given = "empty" if node.value is None else yaml_value(node.value)[:80]
    default = SitePolicy.model_fields[name].get_default()
    document.complain(
        "BFT-2112" if detail["type"] in _BOUND_ERRORS else "BFT-2111",
        node.line,
        node.column,
        f"{name} is {given}, but must be {expectation(name)}.",
        f"The default is {yaml_value(default)}.",
    )


def _at(node: YamlNode, path: Sequence[str | int]) -> YamlNode:
    """Return what is there, or the last on the way there that is."""
    for step in path:
        if node.is_mapping:
            found = {str(key.value): item for key, item in zip(node.keys, node.items, strict=True)}
            node = found.get(str(step), node)
        elif isinstance(step, int) and step < len(node.items):
            node = node.items[step]
    return node


def _check_options(
    node: YamlNode, batch_system: str, first: Mapping[str, Any], document: Document
) -> None:
    try:
        load_batch_system(batch_system, {**node.value, **first}).close()
    except OptionError as errors:
        _complain_of(errors, node, document, first)


def _checked_options(
    values: Mapping[str, Any], nodes: Mapping[str, YamlNode], document: Document, folder: Path
) -> dict[str, Any]:
    """Load the allocation policy and have it look at its options; return them, files read."""
    from bftrainer.decide.policies.base import (  # noqa: PLC0415 - numpy takes 0.1 s
        load_policy as load_allocation_policy,
    )
    from bftrainer.decide.policies.base import options_of  # noqa: PLC0415

    node = nodes.get("policy_options") or nodes["policy"]
    options: dict[str, Any] = values["policy_options"]
    try:
        policy = load_allocation_policy(values["policy"])
        options = with_files(policy.traits.file_options, options, folder)
        options_of(policy, options)
    except OptionError as errors:
        _complain_of(errors, node, document)
    except UsageError as error:
        document.complain(error.code, node.line, node.column, error.cause, error.next_step)
    return options


def _complain_of(
    errors: OptionError, node: YamlNode, document: Document, first: Container[object] = ()
) -> None:
    """Say what is wrong with options of a plug-in, but for those named on the command line."""
    for problem in errors.problems:
        if not problem.path or problem.path[0] not in first:
            place = _at(node, problem.path)
            document.complain(
                errors.code, place.line, place.column, problem.cause, problem.next_step
            )


def _require_plug_in(node: YamlNode, document: Document) -> None:
    installed = sorted(
        {point.name for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)}
    )
    if node.value not in installed:
        document.complain(
            "BFT-2114",
            node.line,
            node.column,
            f"There is no policy called {node.value!r}.",
            _nearest(node.value, installed, f"Installed: {', '.join(installed) or 'none'}."),
        )


def _nearest(name: str, known: list[str], otherwise: str) -> str:
    spelled = name[:80].lower().replace("-", "_") if "_" in "".join(known) else name[:80].lower()
    close = difflib.get_close_matches(spelled, known, n=1, cutoff=0.6)
    return f"Did you mean {close[0]}?" if close else otherwise
