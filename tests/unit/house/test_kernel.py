"""The kernel and its satellites: every module is one or the other, and verbs of both are found."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import click
import pytest

from bftrainer.cli import verb_plugins
from bftrainer.cli.main import all_verbs, cli, main
from bftrainer.lab.verbs import VERBS as OF_LAB
from bftrainer.model import plugins
from bftrainer.model.errors import UsageError
from bftrainer.study.verbs import VERBS as OF_STUDIES
from tests.support import kernel

Output = pytest.CaptureFixture[str]


@pytest.fixture
def read_anew() -> Iterator[None]:
    verb_plugins._rows.cache_clear()
    yield
    verb_plugins._rows.cache_clear()


def _install(monkeypatch: pytest.MonkeyPatch, **tables: Any) -> None:
    """Let installed packages declare these tables; one that is None cannot be loaded."""
    entries = []
    for name, table in tables.items():

        def load(table: object = table) -> object:
            if table is None:
                raise ModuleNotFoundError("No module named 'gone'")
            return table

        entries.append(SimpleNamespace(name=name, value=f"{name}:VERBS", load=load))

    def entry_points(*, group: str, name: str = "") -> list[SimpleNamespace]:
        assert group == verb_plugins.GROUP
        return [entry for entry in entries if name in ("", entry.name)]

    monkeypatch.setattr(plugins, "entry_points", entry_points)


def test_every_module_is_of_the_kernel_or_of_a_satellite() -> None:
    sides = {name: kernel.side_of(name) for name, _ in kernel.modules()}
    assert {name for name, side in sides.items() if not side} == set()
    for name in (*kernel.satellites(), *kernel.KERNEL):
        assert name in sides  # none has moved away


@pytest.mark.parametrize(
    ("module", "side"),
    [
        ("bftrainer.decide.policies.base", "kernel"),
        ("bftrainer.decide.policies.pollux", "satellite"),
        ("bftrainer.decide.policies.new_one", ""),
        ("bftrainer.new_room", ""),
        ("bftrainer.elastic.mpi.run", "satellite"),
        ("bftrainer.elastic.run", "kernel"),
        ("trainers.examples.text_gpt", "satellite"),
        ("trainers.new_keeper", ""),
    ],
)
def test_the_innermost_package_that_is_named_decides(module: str, side: str) -> None:
    assert kernel.side_of(module) == side


@pytest.mark.parametrize(
    ("file", "is_of_kernel"),
    [
        ("tests/unit/decide/test_decision.py", True),
        ("tests/elastic/test_buckets.py", True),
        ("tests/integration/daemon/test_daemon.py", True),  # with equipment of the lab alone
        ("tests/unit/journal/test_yesterday.py", False),
        ("tests/unit/decide/test_lsf_queue.py", False),
        ("tests/integration/study/test_study.py", False),
    ],
)
def test_the_files_of_the_kernel(file: str, *, is_of_kernel: bool) -> None:
    assert kernel.is_of_kernel(file) is is_of_kernel


def test_tables_name_commands_and_places_that_exist() -> None:
    places = {verb: place for verb, (place, _) in all_verbs().items()}
    for words, row in {**OF_LAB, **OF_STUDIES}.items():
        path, _, verb = words.rpartition(" ")
        group: click.Command = verb_plugins.command_at(places[path]) if path else cli
        assert isinstance(group, click.Group)
        assert group.get_command(click.Context(group), verb) is not None
        names = group.list_commands(click.Context(group))
        precedes = verb_plugins.AddedVerb(*row).precedes
        assert not precedes or names.index(verb) < names.index(precedes)


@pytest.mark.usefixtures("read_anew")
def test_a_verb_of_the_kernel_reads_no_table(
    monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    _install(monkeypatch, broken=None)
    for words in (["status", "-h"], ["policy", "check", "-h"], ["journal", "verify", "-h"]):
        assert main(words) == 0
    assert "Usage: bftrainer status" in capsys.readouterr().out
    with pytest.raises(UsageError, match="cannot be loaded") as caught:
        all_verbs()
    assert caught.value.code == "BFT-1059"


@pytest.mark.usefixtures("read_anew")
def test_an_installation_that_is_older_than_the_code_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    _install(monkeypatch)
    for words in (["simulate"], ["study", "run"], ["policy", "test", "a", "b"]):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert "the installation is older than this code" in error
        assert "pip install -e ." in error
    assert main(["-h"]) == 0
    assert "\n  simulate" not in capsys.readouterr().out


@pytest.mark.usefixtures("read_anew")
def test_a_package_adds_a_verb(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    place = "bftrainer.lab.verbs.solve:solve"
    table = {"decide": (place, "Decide."), "status": (place, "Never.")}
    _install(monkeypatch, theirs=table)
    assert main(["decide", "-h"]) == 0
    assert main(["status", "-h"]) == 0  # ours stays ours
    assert "Usage: bftrainer status" in capsys.readouterr().out
    assert main(["-h"]) == 0
    shown = capsys.readouterr().out
    assert "\nVerbs of other packages:\n  decide" in shown
    assert "Never." not in shown
