"""U and "harvested" mean one thing each: the glossary says it, and every surface says the same."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click

from bftrainer.cli.main import cli
from bftrainer.lab import report
from bftrainer.lab.demo.watch import NodeSeconds, Summary, report_of
from bftrainer.lab.simulator.metrics import MEANING_OF_U, WHICH_FIGURE

ROOT = Path(__file__).parents[3]
HARVESTED = "node time that pilots hold, from the start of a pilot's job to its end"


def words_of(text: str) -> str:
    """Return a text in one line, without marks."""
    return " ".join(re.sub(r"[*`]|&nbsp;", "", text).split())


def read(name: str) -> str:
    return words_of((ROOT / name).read_text(encoding="utf-8"))


def test_what_is_harvested_is_the_same_everywhere() -> None:
    command = cli.get_command(click.Context(cli), "account")
    assert command is not None
    assert HARVESTED in words_of(command.help or "")
    for name in (
        "docs/reference/glossary.md",
        "docs/howto/operate.md",
        "docs/reference/json.md",
        "bftrainer/api/page/assets/page.html",
    ):
        assert HARVESTED in read(name), name


def test_what_is_u_is_the_same_everywhere() -> None:
    assert MEANING_OF_U in read("docs/reference/glossary.md")
    (caption,) = (one.caption for one in report.FIGURES if one.key == "utilization")
    assert MEANING_OF_U in caption([])
    assert MEANING_OF_U in WHICH_FIGURE


def test_the_demonstration_tells_a_share_and_no_u() -> None:
    """Its share of the nodes' time is not U, which counts samples against static nodes."""
    split = NodeSeconds(
        ordinary=50.0,
        offered=100.0,
        harvested=75.0,
        starting=10.0,
        pausing=1.0,
        held=4.0,
        unused=10.0,
    )
    summary = Summary(
        nodes=5, live_s=30.0, node_seconds=split, utilisation=0.75, rescales=4, pauses_s=(0.1,),
        give_backs=1, preemptions=0, job_delays_s=(0.1,), worker_failures=(), trainers=(),
    )  # fmt: skip
    page = report_of(summary)
    said = " ".join((*page.answers, *page.more))
    assert "left 100 node-seconds of 5 nodes idle" in said
    assert "trained in 75 of them (75%)" in said
    assert not re.search(r"\bU\b|harvest", said)


def texts(path: Path) -> Iterator[str]:
    """Yield what a module says to people: strings of several words that are no docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def test_only_what_pilots_hold_is_called_harvested() -> None:
    """``whatif``, ``policy test`` and ``demo`` tell in what time trainers trained."""
    told = [
        f"{path.relative_to(ROOT)}: {text}"
        for path in sorted((ROOT / "bftrainer").rglob("*.py"))
        for text in texts(path)
        if re.search(r"\bharvest", text) and " " in text.strip()
    ]
    rest = [line for line in told if not re.search(r"harvest by |harvested hours", line)]
    assert rest == []
