"""Bad input of every verb and of every key: a code, a cause, the next step, no traceback."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest

from bftrainer.api.privacy import Sight
from bftrainer.api.service import Peer
from bftrainer.cli.main import cli, main
from bftrainer.daemon.daemon import Daemon
from bftrainer.daemon.metrics import MetricsRegistry
from bftrainer.daemon.service import DaemonService
from bftrainer.model.errors import BftError, ExitCode
from bftrainer.site.policy import PolicyErrors, SitePolicy, load_policy_file
from bftrainer.site.policy.render import json_schema
from tests.support.memory_service import MemoryService

Capture = pytest.CaptureFixture[str]
ERROR = re.compile(r"error BFT-\d{4}: \S.*[.?!]\nnext: \S.*\n\Z")


def verbs(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Return every command that does something, as it is called."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from verbs(command, (*path, name))
        else:
            yield (*path, name)


VERBS = list(verbs())


def command_of(verb: tuple[str, ...]) -> click.Command:
    found: click.Command = cli
    for name in verb:
        assert isinstance(found, click.Group)
        found = cast("click.Command", found.get_command(click.Context(found), name))
    return found


def parameters(kind: type[click.Parameter]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for verb in VERBS:
        yield from ((verb, p) for p in command_of(verb).params if isinstance(p, kind))


def refused(argv: tuple[str, ...], capsys: Capture) -> tuple[int, str]:
    """Call a verb; it says code, cause and next step, and nothing else."""
    status = main([word for word in argv if word != "SCRIPT"])  # it stands for a file's name
    said = capsys.readouterr()
    assert ERROR.match(said.err), said.err
    assert "Traceback" not in said.out
    return status, said.err


def test_there_are_the_verbs_that_there_are() -> None:
    assert {("status",), ("drain",), ("policy", "reload"), ("trace", "info")} <= set(VERBS)
    assert len(VERBS) > 40


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_an_option_that_there_is_not(verb: tuple[str, ...], capsys: Capture) -> None:
    status, said = refused((*verb, "--no-such-option"), capsys)
    assert status == ExitCode.USAGE
    assert "--no-such-option" in said
    assert f"bftrainer {' '.join(verb)} -h" in said


def typed() -> list[tuple[tuple[str, ...], click.Option]]:
    """Return the options that take numbers or one of several words."""
    kinds = (click.types.IntParamType, click.types.FloatParamType, click.Choice)
    return [(v, o) for v, o in parameters(click.Option) if isinstance(o.type, kinds)]


@pytest.mark.parametrize(
    ("verb", "option"), typed(), ids=lambda v: " ".join(v) if isinstance(v, tuple) else v.opts[0]
)
def test_a_value_of_the_wrong_type(
    verb: tuple[str, ...], option: click.Option, capsys: Capture
) -> None:
    name = option.opts[0]  # "=": the value of --continue may be left out
    words = (f"{name}=no-such-value",) if name.startswith("--") else (name, "no-such-value")
    status, said = refused((*verb, *words), capsys)
    assert status == ExitCode.USAGE
    assert "no-such-value" in said
    assert option.opts[0] in said


def of_daemons() -> list[tuple[str, ...]]:
    """Return the verbs that ask a daemon which has to be there.

    Those of studies first need a study (test_study.py).
    """
    found = [v for v, p in parameters(click.Option) if p.name == "socket_name"]
    return [v for v in found if v not in {("daemon",), ("doctor",)} and v[0] != "study"]


@pytest.mark.parametrize("verb", of_daemons(), ids=" ".join)
def test_a_daemon_that_is_not_there(
    verb: tuple[str, ...], capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program = ["--runtime", "command", "/bin/true"]
    needed = {
        "submit": program,
        "drain": ["--all"],
        "resume": [],  # with a trainer it is a mistake of its own
        "update": ["t1", "--weight", "2"],
    }
    args = needed.get(verb[0])
    if args is None:
        args = ["t1" for p in command_of(verb).params if isinstance(p, click.Argument)]
    status, said = refused((*verb, "--socket", str(tmp_path / "no.sock"), *args), capsys)
    assert status == ExitCode.DAEMON_UNREACHABLE
    assert "BFT-1101" in said


def not_permitted(what: str) -> None:
    """Ask as a user who does not administer the daemon."""
    state = SimpleNamespace(
        metrics=MetricsRegistry(), plane=SimpleNamespace(agents={}, trainers={})
    )
    service = DaemonService(cast("Daemon", SimpleNamespace(state=state)))
    stranger = Peer(uid=54_321, user="stranger", pid=1)
    if what == "reload":
        asyncio.run(service.reload(stranger))
    elif what == "drain":
        service.drain(stranger, 60.0)
    else:
        getattr(service, what)(stranger)


@pytest.mark.parametrize("what", ["shutdown", "drain", "resume", "reload"])
def test_what_only_an_administrator_may_do(what: str) -> None:
    with pytest.raises(BftError) as caught:
        not_permitted(what)
    assert caught.value.code == "BFT-1005"
    assert caught.value.exit_code == ExitCode.NOT_PERMITTED


@pytest.mark.parametrize(("uid", "is_told"), [(0, True), (os.geteuid(), True), (54_321, False)])
def test_mistakes_of_a_policy_are_told_to_administrators_only(
    uid: int, tmp_path: Path, *, is_told: bool
) -> None:
    view = replace(MemoryService(tmp_path).status(), policy_notes=("max_nodes is many.",))
    sight = Sight.of(Peer(uid=uid, user="someone", pid=1), (), is_own=False)
    assert bool(sight.status(view).policy_notes) is is_told


# ---- the policy ------------------------------------------------------------------------------

KEYS = sorted(SitePolicy.model_fields)


def problem_with(tmp_path: Path, text: str) -> Any:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(PolicyErrors) as caught:
        load_policy_file(path)
    [problem] = caught.value.problems
    assert problem.line == 1
    assert problem.cause.rstrip().endswith((".", "?"))
    assert problem.next_step
    return problem


@pytest.mark.parametrize("key", KEYS)
def test_a_key_of_the_wrong_type(key: str, tmp_path: Path) -> None:
    wrong = "{a: {b: c}}" if _takes_text(key) else "no such value"
    problem = problem_with(tmp_path, f"{key}: {wrong}\n")
    assert problem.code in {"BFT-2111", "BFT-2112"}
    assert problem.cause.startswith(f"{key} is ")
    assert "must be" in problem.cause


@pytest.mark.parametrize("key", KEYS)
def test_a_key_that_is_misspelt(key: str, tmp_path: Path) -> None:
    problem = problem_with(tmp_path, f"{key}x: 1\n")
    assert problem.code == "BFT-2110"
    assert problem.next_step == f"Did you mean {key}?"


SETTINGS = json_schema()["properties"]


def _options(key: str) -> list[dict[str, Any]]:
    setting = SETTINGS[key]
    return [{**setting, **option} for option in setting.get("anyOf", [setting])]


def _takes_text(key: str) -> bool:
    return any(option.get("type") == "string" and "enum" not in option for option in _options(key))


def bounded() -> list[tuple[str, float]]:
    """Return the keys with bounds, each with a value beyond one of them."""
    found = []
    for key in KEYS:
        for option in _options(key):
            found += [(key, option["minimum"] - 1)] if "minimum" in option else []
            found += [(key, option["maximum"] + 1)] if "maximum" in option else []
    return found


@pytest.mark.parametrize(("key", "value"), bounded())
def test_a_key_out_of_bounds(key: str, value: float, tmp_path: Path) -> None:
    problem = problem_with(tmp_path, f"{key}: {value:.12g}\n")
    assert problem.code == "BFT-2112"
    assert " to " in problem.cause
    assert problem.next_step.startswith("The default is ")
