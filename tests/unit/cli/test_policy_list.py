"""``bftrainer policy list``: what there is to choose, where from, and on whose paper."""

from __future__ import annotations

import json
import re
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bftrainer.cli.main import main
from bftrainer.decide.policies import base
from bftrainer.model import plugins

Output = pytest.CaptureFixture[str]
PAGES = Path(__file__).parents[3] / "docs" / "policies"
SOURCE = re.compile(r"^\*\*Source\*\*: (.*?)\n\n", re.MULTILINE | re.DOTALL)
# The kind of a policy that its package says nothing of, and one whose module is missing.
PLUGIN = """\
from bftrainer.decide.policies.base import Decided, Policy, Traits
POLICY = Policy("theirs", Traits(), lambda problem, context: Decided(allocation=None))
"""


def listed(capsys: Output) -> dict[str, dict[str, object]]:
    assert main(["policy", "list", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["schema"] == "bftrainer/policy-list/1"
    return {row["name"]: row for row in said["policies"]}


def test_each_policy_has_a_line_that_its_page_agrees_with(capsys: Output) -> None:
    rows = listed(capsys)
    pages = {path.stem for path in PAGES.glob("*.md")} - {"README", "compare"}
    assert set(rows) == pages
    assert [row["name"] for row in rows.values() if row["is_default"]] == ["milp"] == [*rows][:1]
    for name, row in rows.items():
        page = (PAGES / f"{name}.md").read_text("utf-8")
        assert page.splitlines()[0] == f"# {name}: {row['does']}"
        assert row["optimises"]
        assert (row["package"], row["is_plugin"], row["problem"]) == ("bftrainer", False, None)
        found = SOURCE.search(page)
        assert (found is None) == (row["source"] == ""), name
        if found is not None:
            source = str(row["source"])
            year = re.search(r"20(\d\d)", source)
            assert year is not None
            assert source.split(maxsplit=1)[0].strip(",") in found[1], name
            # As in NSDI'19, MLSys 2019 or arXiv 1909.
            assert re.search(rf"'{year[1]}|20{year[1]}|arXiv {year[1]}\d\d\.", found[1]), name


def test_the_list_says_it_in_sentences(capsys: Output) -> None:
    assert main(["policy", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "milp (the default): the most throughput, counting what rescales cost"
    place = lines.index("las: least attained service first")
    assert lines[place + 1] == (
        "    It optimises equality of service. Source: Gu et al., Tiresias, 2019."
    )
    fifo = lines.index("fifo: first in, first out")
    assert " ".join(" ".join(lines[fifo + 1 : fifo + 3]).split()).startswith(
        "In the order of submission, each trainer gets all nodes that it requests, or none."
    )
    assert not [line for line in lines if "optimises nothing" in line]
    assert "'bftrainer help NAME' opens a policy's page" in lines[-1]


def plug_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install two policies of another package, one of which cannot be loaded."""
    (tmp_path / "theirs_policy.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    package = SimpleNamespace(name="their-package")
    entries = []
    for name, value in (("theirs", "theirs_policy:POLICY"), ("gone", "no_such_module:POLICY")):
        entry = EntryPoint(name=name, value=value, group=base.ENTRY_POINT_GROUP)
        vars(entry)["dist"] = package
        entries.append(entry)

    def entry_points(**wanted: Any) -> EntryPoints:
        return EntryPoints(entries).select(**wanted)

    monkeypatch.setattr(plugins, "entry_points", entry_points)


def test_a_plug_in_is_named_with_its_package_and_with_what_is_wrong_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    plug_ins(tmp_path, monkeypatch)
    rows = listed(capsys)
    assert {name: (row["package"], row["is_plugin"]) for name, row in rows.items()} == {
        "theirs": ("their-package", True),
        "gone": ("their-package", True),
    }
    assert rows["theirs"]["problem"] is None
    assert "No module named 'no_such_module'" in str(rows["gone"]["problem"])
    assert main(["policy", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "gone: it cannot be used",
        f"    {rows['gone']['problem']}",
    ]
    assert lines[2:5] == [
        "    A plug-in of the package their-package.",
        "theirs: its package does not say what it does",
        "    A plug-in of the package their-package.",
    ]


def test_the_help_of_a_plug_in_is_what_the_list_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    assert main(["help", "theirs"]) == 4
    assert "BFT-1454" in capsys.readouterr().err
    plug_ins(tmp_path, monkeypatch)
    assert main(["help", "theirs"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "theirs: its package does not say what it does",
        "    A plug-in of the package their-package.",
    ]


def test_a_wrong_name_leads_to_the_list(capsys: Output) -> None:
    assert main(["simulate", "--policy", "tirresias", "--hours", "1"]) == 8
    assert "'bftrainer policy list' says what each does." in capsys.readouterr().err
