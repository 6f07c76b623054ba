"""``bftrainer policy``: name, check, show and compare policies.

All but ``reload``, which has a daemon read its files again, need no daemon. The lab adds ``test``
and ``train``.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bftrainer.cli.common import connect
from bftrainer.cli.daemon import parse_options
from bftrainer.cli.options import (
    JSON,
    PATH,
    SOCKET,
    VerbGroup,
    argument,
    option,
    shown_example,
    verb,
)
from bftrainer.cli.output import (
    answer,
    print_as_it_is,
    print_json,
    print_lines,
    print_table,
)
from bftrainer.cli.verb_plugins import added_verbs, command_at
from bftrainer.model.errors import BftError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bftrainer.model.site import Finding
    from bftrainer.model.views import ReloadView, SettingChange

PATH_OF_VERBS = "policy"  # in the tables of verbs that are added
MOST_CHARS = 40  # of a value in a table
DEFAULT = "milp"  # of the key policy
OURS = "bftrainer"  # the package whose policies are no plug-ins
NEXT = (
    "next: 'bftrainer help NAME' opens a policy's page, 'bftrainer help policies' says which one "
    "to choose."
)
_NO_QUANTITY = "nothing"  # About.optimises, alone or with ": " and the order
_ORDER_ONLY = "It serves the trainers in an order."
_PROBLEM_FIELDS = ("code", "line", "column", "cause", "next_step")  # printed by check --json


class _Policies(VerbGroup):
    """The verbs on policies, and those that other rooms add, by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the verbs."""
        return sorted({*super().list_commands(ctx), *added_verbs(PATH_OF_VERBS)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a verb; only one that is not ours is looked for elsewhere."""
        command = super().get_command(ctx, cmd_name)
        if command is None and (row := added_verbs(PATH_OF_VERBS).get(cmd_name)):
            return command_at(row.place)
        return command


@click.group(
    name="policy", cls=_Policies, epilog=shown_example("bftrainer policy check policy.yaml")
)
def policy() -> None:
    """Name the policies that can be chosen; check, show and compare the files that choose one."""


@verb(
    option("--json", "Print the policies as JSON.", name="as_json"),
    name="list", group=policy, example="bftrainer policy list",
)  # fmt: skip
def name_all(*, as_json: bool) -> None:
    """Name each policy that is installed, what it does, and the paper that it is from.

    A policy says which trainer gets how many nodes. "policy: NAME" in the daemon's policy file
    chooses one, as does --policy NAME of "bftrainer simulate"; "bftrainer help NAME" opens its
    page.
    """
    rows = [_about(name, package) for name, package in _installed().items()]
    if as_json:
        print_json({"schema": "bftrainer/policy-list/1", "policies": rows})
        return
    for row in rows:
        print_lines(*_sentences(row), indent=4)
    print_lines("", NEXT)


def said_of_plug_in(name: str) -> tuple[str, ...]:
    """Return what is said of a policy that another package declares; (): there is none."""
    package = _installed().get(name, OURS)
    if package == OURS:
        return ()
    return tuple(_sentences(_about(name, package)))


def _sentences(row: Mapping[str, object]) -> Iterator[str]:
    """Yield what is said of a policy: its name with a few words, then the rest below it."""
    default = " (the default)" if row["is_default"] else ""
    if row["problem"]:
        yield f"{row['name']}: it cannot be used"
        yield f"    {row['problem']}"
    else:
        yield f"{row['name']}{default}: {row['does'] or 'its package does not say what it does'}"
    details = [_aim(str(row["optimises"]))]
    if row["source"]:
        details.append(f"Source: {row['source']}.")
    if row["is_plugin"]:
        details.append(f"A plug-in of the package {row['package'] or 'not known'}.")
    if line := " ".join(filter(None, details)):
        yield f"    {line}"


def _aim(optimises: str) -> str:
    """Return what a policy is after, as a sentence: a quantity, or an order of the trainers."""
    if not optimises:
        return ""
    kind, _, order = optimises.partition(": ")
    if kind != _NO_QUANTITY:
        return f"It optimises {optimises}."
    if not order:
        return _ORDER_ONLY
    return f"{order[:1].upper()}{order[1:]}."


def _installed() -> dict[str, str]:
    """Return the package of each policy, by name; the default comes first."""
    from bftrainer.decide.policies.base import ENTRY_POINT_GROUP  # noqa: PLC0415
    from bftrainer.model.plugins import distributions  # noqa: PLC0415

    packages = distributions(ENTRY_POINT_GROUP)
    names = sorted(packages, key=lambda name: (name != DEFAULT, name))
    return {name: packages[name] for name in names}


def _about(name: str, package: str) -> dict[str, object]:
    """Return what is said of a policy; what cannot be loaded is a problem of its package."""
    from bftrainer.decide.policies.base import About, load_policy  # noqa: PLC0415

    about, problem = About(), None
    try:
        about = load_policy(name).traits.about
    except BftError as error:
        problem = error.cause
    return {
        "name": name,
        "is_default": name == DEFAULT,
        **asdict(about),
        "package": package,
        "is_plugin": package != OURS,
        "problem": problem,
    }


@verb(
    argument("paths", PATH, metavar="FILE...", nargs=-1, required=True),
    option("--batch-system", "Whose options are in it.", default="slurm"),
    option("--rescale SECONDS", "What the longest rescale costs.  [default: as a running daemon "
           "has measured it, if there is one]", click.FloatRange(min=0), name="rescale_s"),
    option("--json", "Print the result as JSON.", name="as_json"),
    group=policy,
    example="bftrainer policy check /etc/bftrainer/policy.yaml",
)  # fmt: skip
@click.pass_context
def check(
    context: click.Context,
    paths: tuple[Path, ...],
    batch_system: str,
    rescale_s: float | None,
    *,
    as_json: bool,
) -> None:
    """Name everything wrong with FILE, with line and column (exit code 8).

    Several files, or directories of them, are one policy: the last one that sets it decides over
    a setting. A notice names what is allowed and yet costs nodes; it is no mistake.
    """
    from bftrainer.decide import horizon  # noqa: PLC0415
    from bftrainer.site.policy import PolicyErrors, load_policy_files  # noqa: PLC0415 - pydantic is slow

    problems: tuple[Any, ...] = ()
    notices: tuple[Finding, ...] = ()
    sha256 = None
    try:
        loaded = load_policy_files(paths, batch_system=batch_system)
        sha256 = loaded.sha256
        origin, longest_s = "as given", rescale_s
        if rescale_s is None:
            origin, longest_s = "measured", _measured_rescale_s()
        notices = horizon.findings(longest_s, loaded.policy.t_fwd_s, whose=origin)
    except PolicyErrors as errors:
        problems = errors.problems
    if as_json:
        print_json(
            {
                "schema": "bftrainer/policy-check/1",
                "file": " ".join(map(str, paths)),
                "ok": not problems,
                "policy_hash": sha256,
                "problems": [_problem_document(problem, paths[0]) for problem in problems],
                "notices": list(map(asdict, notices)),
            }
        )
    else:
        for notice in notices:
            print_lines(f"notice: {horizon.sentence(notice)}", err=True)
        for problem in problems:
            print_lines(*problem.render(paths[0]).splitlines(), err=True)
        if not problems:
            print_lines(f"{' '.join(map(str, paths))}: ok")
    if problems:
        context.exit(ExitCode.VALIDATION_FAILED)


def _problem_document(problem: Any, path: Path) -> dict[str, object]:
    """Return a problem for programs; it is in the file of ``path`` unless it names another."""
    fields = {name: getattr(problem, name) for name in _PROBLEM_FIELDS}
    return {"file": str(problem.path or path), **fields}


def _measured_rescale_s() -> float | None:
    """Return what a running daemon has measured; None: it has nothing, or there is none."""
    with contextlib.suppress(BftError):
        return connect(None).status().measured.rescale_s
    return None


@verb(
    argument("paths", PATH, metavar="[FILE]...", nargs=-1),
    option("--batch-option KEY=VALUE", "As the daemon gets it.", name="pairs", multiple=True),
    option("--origin", "Name each place that sets a value, the one that counts first.",
           name="with_all"),
    option("--json", "Print the values as JSON.", name="as_json"),
    group=policy,
    example="bftrainer policy show /etc/bftrainer/policy.yaml --origin",
)  # fmt: skip
def show(paths: tuple[Path, ...], pairs: tuple[str, ...], *, with_all: bool, as_json: bool) -> None:
    """Print the values in force with FILE... (or none) and where each comes from."""
    from bftrainer.site.policy import load_policy_files  # noqa: PLC0415 - pydantic is slow
    from bftrainer.site.policy.render import yaml_value  # noqa: PLC0415

    loaded, typed_options = load_policy_files(paths), parse_options(pairs)
    in_force, origins = loaded.policy, dict(loaded.origins)
    if with_all:
        for name, places in loaded.overridden.items():
            origins[name] = ", over ".join((origins[name], *places))
    if typed_options:
        options = {**in_force.batch_options, **typed_options}
        in_force = in_force.model_copy(update={"batch_options": options})
        origins["batch_options"] += f"; {', '.join(typed_options)}: command line"
    if as_json:
        values = in_force.model_dump(mode="json")
        print_json(
            {
                "schema": "bftrainer/policy/1",
                "file": " ".join(map(str, paths)) or None,
                "policy_hash": loaded.sha256,
                "settings": {
                    name: {"value": value, "origin": origins[name]}
                    for name, value in values.items()
                },
            }
        )
        return
    lines = {f"{name}: {yaml_value(value)}": origins[name] for name, value in in_force}
    width = min(max(map(len, lines)), 80)  # the content of a file may be an option
    for line, origin in lines.items():
        print_as_it_is(f"{line:{width}}  # {origin}")


@verb(
    argument("old", PATH),
    argument("new", PATH),
    JSON,
    group=policy,
    example="bftrainer policy diff old.yaml new.yaml",
)
def diff(old: Path, new: Path, *, as_json: bool) -> None:
    """Print what has another value with the policy NEW than with OLD, and when it takes effect."""
    from bftrainer.site.policy import load_policy_file  # noqa: PLC0415 - pydantic is slow
    from bftrainer.site.policy.changes import changes  # noqa: PLC0415

    before, after = load_policy_file(old), load_policy_file(new)
    differences = changes(before.policy, after.policy)
    if as_json:
        print_json(
            {
                "schema": "bftrainer/policy-diff/1",
                "old": {"file": str(old), "policy_hash": before.sha256},
                "new": {"file": str(new), "policy_hash": after.sha256},
                "changes": list(map(asdict, differences)),
            }
        )
        return
    _print_changes(differences)


@verb(JSON, SOCKET, group=policy, example="bftrainer policy reload")
def reload(socket_name: str | None, *, as_json: bool) -> None:
    """Have the daemon read its policy again, as SIGHUP does.

    A policy with a mistake changes nothing (exit code 8).
    """
    view = connect(socket_name).reload_policy()
    answer(view, "reload", _print_reloaded, as_json=as_json)


def _print_reloaded(view: ReloadView) -> None:
    _print_changes(view.changes)
    print_lines(f"policy {view.policy_hash[:12]} is in force with the next decision")


@verb(group=policy, example="bftrainer policy schema")
def schema() -> None:
    """Print the JSON schema of policy files, for editors."""
    from bftrainer.site.policy.render import json_schema  # noqa: PLC0415 - pydantic is slow

    print_json(json_schema())


def _print_changes(changes: Sequence[SettingChange]) -> None:
    if not changes:
        print_lines("no setting has another value")
        return
    rows = []
    for change in changes:
        before, after = change.before[:MOST_CHARS], change.after[:MOST_CHARS]
        effect = f"restart: {change.restart}" if change.restart else "reload"
        rows.append((change.setting, before, after, effect))
    print_table(("SETTING", "BEFORE", "AFTER", "TAKES EFFECT"), rows)
