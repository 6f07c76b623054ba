"""Turns policy files into a ``SitePolicy``, or into a list of everything wrong with them.

Of several files the later one counts, setting by setting. The result also has the origin of each
value, for ``policy show``.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from bftrainer.batch.batch_system import OptionError, load_batch_system
from bftrainer.model.errors import UsageError
from bftrainer.model.parts import Lend
from bftrainer.site.policy.document import (
    Document,
    PolicyErrors,
    PolicyProblem,
    YamlNode,
    nearest,
    read_document,
)
from bftrainer.site.policy.files import policy_files, read_text, with_files
from bftrainer.site.policy.model import REMOVED, SitePolicy, conflicts, policy_hash
from bftrainer.site.policy.render import expectation, yaml_value

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
    path: Path | None  # of the only file
    sha256: str
    origins: Mapping[str, str]  # setting -> "default" or "file:line"
    overridden: Mapping[str, tuple[str, ...]]  # setting -> where files before set it, last first


@dataclass(frozen=True, slots=True, kw_only=True)
class _Set:
    """A setting that a file sets."""

    key: YamlNode
    node: YamlNode
    path: Path
    document: Document

    @property
    def place(self) -> str:
        return f"{self.path}:{self.key.line}"

    def complain(self, code: str, cause: str, next_step: str, at: YamlNode | None = None) -> None:
        place = at or self.node
        self.document.complain(code, place.line, place.column, cause, next_step)


def load_policy(path: Path) -> SitePolicy:
    """Return the policy in a file; what the file does not set has its default.

    Raises:
        PolicyErrors: all problems of the file at once (exit code 8).
    """
    return load_policy_file(path).policy


def load_policy_file(
    path: Path | None, *, batch_system: str = "", batch_options: Mapping[str, Any] | None = None
) -> LoadedPolicy:
    """Return the policy in a file, the defaults without one, as ``load_policy_files`` does."""
    paths: list[Path] = []
    if path is not None:
        paths.append(path)
    return load_policy_files(paths, batch_system=batch_system, batch_options=batch_options)


def load_policy_files(
    paths: Sequence[Path],
    *,
    batch_system: str = "",
    batch_options: Mapping[str, Any] | None = None,
) -> LoadedPolicy:
    """Return the policy of several files with its origins.

    Args:
        paths: of files, and of directories whose files count; the last one that sets it decides
            over a setting.
        batch_system: whose options they are, to have them checked; "": nobody's.
        batch_options: that come before those of the files.

    Raises:
        PolicyErrors: all problems of the files at once (exit code 8).
        UsageError: BFT-1201, there is no such batch system.
    """
    files = policy_files(paths)
    documents = [read_document(read_text(path)) for path in files]
    settings: dict[str, _Set] = {}
    overridden: dict[str, tuple[str, ...]] = {}
    for path, document in zip(files, documents, strict=True):
        file_settings = _settings(path, document)
        for name in file_settings.keys() & settings.keys():
            overridden[name] = (settings[name].place, *overridden.get(name, ()))
        settings |= file_settings
    values = _validated(settings, batch_system, batch_options or {})
    problems: list[PolicyProblem] = []
    for path, document in zip(files, documents, strict=True):
        problems += [replace(problem, path=path) for problem in document.problems]
    if problems:
        raise PolicyErrors(problems[0].path or paths[0], problems)
    policy = SitePolicy.model_validate(values)
    origins = dict.fromkeys(SitePolicy.model_fields, DEFAULT_ORIGIN)
    for name, setting in settings.items():
        origins[name] = setting.place
    return LoadedPolicy(
        policy=policy,
        path=files[0] if len(files) == 1 else None,
        sha256=policy_hash(policy),
        origins=origins,
        overridden=overridden,
    )


# ---- the settings -------------------------------------------------------------------


def _settings(path: Path, document: Document) -> dict[str, _Set]:
    """Return the settings that a file sets; complain of keys that are none."""
    settings: dict[str, _Set] = {}
    for key, node in document.entries:
        if document.is_told:
            break
        name = str(key.value)
        setting = _Set(key=key, node=node, path=path, document=document)
        if name in SitePolicy.model_fields:
            settings[name] = setting
        elif name in REMOVED:
            cause = f"{name} is no setting any more. {REMOVED[name]}"
            setting.complain("BFT-2110", cause, "Delete the line.", key)
        else:
            names = list(SitePolicy.model_fields)
            next_step = nearest(name, names, "bftrainer policy show lists them all.")
            setting.complain("BFT-2110", f"There is no setting {name[:80]!r}.", next_step, key)
    return settings


def _validated(
    settings: Mapping[str, _Set], batch_system: str, batch_options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values of settings; add what is wrong with them to their documents' problems."""
    values = {name: _value(name, setting.node) for name, setting in settings.items()}
    wrong = _explain_wrong(settings, values)
    effective = {name: field.default for name, field in SitePolicy.model_fields.items()} | values
    sound = {name: value for name, value in effective.items() if name not in wrong}
    for conflict in conflicts(sound):
        # One of the two is in a file: the defaults agree with each other.
        setting = settings.get(conflict.setting) or settings[conflict.other]
        setting.complain("BFT-2113", conflict.cause, conflict.next_step)
    if "policy" in settings and "policy" not in wrong:
        _require_plug_in(settings["policy"])
    is_sound = not any(setting.document.problems for setting in settings.values())
    if is_sound and settings.keys() & {"policy", "policy_options"}:
        options = _checked_options(effective, settings)
        if "policy_options" in values:
            values["policy_options"] = options
    if batch_system and "batch_options" in settings.keys() - wrong:
        _check_options(settings["batch_options"], batch_system, batch_options)
    if batch_system and "lend" in settings.keys() - wrong:
        options = {**(values.get("batch_options") or {}), **batch_options}
        _check_lend(settings["lend"], batch_system, options)
    return values


def _explain_wrong(settings: Mapping[str, _Set], values: Mapping[str, Any]) -> set[str]:
    """Complain once of each setting whose value is wrong by itself; return their names."""
    wrong: set[str] = set()
    try:
        SitePolicy.model_validate(values)
    except ValidationError as errors:
        for detail in errors.errors(include_url=False, include_context=False):
            # A detail without a place is a conflict of two settings, which are looked at later.
            if detail["loc"] and str(detail["loc"][0]) not in wrong:
                wrong.add(str(detail["loc"][0]))
                _explain(detail, settings)
    return wrong


def _value(name: str, node: YamlNode) -> Any:
    """Return what a file sets; nothing below the name of a section is an empty section."""
    default = SitePolicy.model_fields[name].get_default(call_default_factory=True)
    if node.value is None and isinstance(default, dict):
        return {}
    return node.value


def _explain(detail: ErrorDetails, settings: Mapping[str, _Set]) -> None:
    name = str(detail["loc"][0])
    node = settings[name].node.at(detail["loc"][1:])
    if node.is_mapping:
        value = "a mapping"
    elif node.value is None:
        value = "empty"
    else:
        value = yaml_value(node.value)[:80]
    default = SitePolicy.model_fields[name].get_default()
    settings[name].complain(
        "BFT-2112" if detail["type"] in _BOUND_ERRORS else "BFT-2111",
        f"{name} is {value}, but must be {expectation(name)}.",
        f"The default is {yaml_value(default)}.",
        node,
    )


def _check_options(setting: _Set, batch_system: str, first: Mapping[str, Any]) -> None:
    try:
        load_batch_system(batch_system, {**(setting.node.value or {}), **first}).close()
    except OptionError as errors:
        _complain_of(errors, setting, first)


def _check_lend(setting: _Set, batch_system: str, options: Mapping[str, Any]) -> None:
    """Complain where nothing would be lent."""
    if setting.node.value != Lend.GPUS.value:
        return
    try:
        system = load_batch_system(batch_system, options)
    except OptionError:  # said already
        return
    system.close()
    if system.lends_parts:
        return
    cause = f"'lend: gpus' lends nothing: pilots of {batch_system} have whole nodes."
    setting.complain("BFT-1465", cause, "Write 'lend: auto', which lends whole nodes there.")


def _checked_options(values: Mapping[str, Any], settings: Mapping[str, _Set]) -> dict[str, Any]:
    """Load the allocation policy and have it look at its options; return them, files read."""
    from bftrainer.decide.policies.base import (  # noqa: PLC0415 - numpy takes 0.1 s
        load_policy as load_allocation_policy,
    )
    from bftrainer.decide.policies.base import options_of  # noqa: PLC0415

    setting = settings.get("policy_options") or settings["policy"]
    options: dict[str, Any] = values["policy_options"]
    try:
        policy = load_allocation_policy(values["policy"])
        options = with_files(policy.traits.file_options, options, setting.path.parent)
        options_of(policy, options)
    except OptionError as errors:
        _complain_of(errors, setting)
    except UsageError as error:
        setting.complain(error.code, error.cause, error.next_step)
    return options


def _complain_of(errors: OptionError, setting: _Set, first: Container[object] = ()) -> None:
    """Say what is wrong with options of a plug-in, but for those named on the command line."""
    for problem in errors.problems:
        if not problem.path or problem.path[0] not in first:
            place = setting.node.at(problem.path)
            setting.complain(errors.code, problem.cause, problem.next_step, place)


def _require_plug_in(setting: _Set) -> None:
    name = setting.node.value
    entry_points = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
    installed = sorted({point.name for point in entry_points})
    if name not in installed:
        listed = f"Installed ('bftrainer policy list'): {', '.join(installed) or 'none'}."
        next_step = nearest(name, installed, listed)
        setting.complain("BFT-2114", f"There is no policy called {name!r}.", next_step)
