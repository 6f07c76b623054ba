"""What monitoring reads of a daemon: its metrics, the dashboards and alerts that name them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from bftrainer.batch.process import run

ROOT = Path(__file__).parents[2]
RULES = ROOT / "packaging" / "prometheus" / "bftrainer.rules.yml"
BOARDS = tuple(sorted((ROOT / "packaging" / "grafana").glob("*.json")))
GUIDE = ROOT / "docs" / "howto" / "operate.md"
_NAME = re.compile(r"\bbftrainer_[a-z_]+")


def alerts() -> list[dict[str, Any]]:
    """Return the rules of the packages."""
    (group,) = YAML(typ="safe").load(RULES)["groups"]
    return list(group["rules"])


def panels(board: Path) -> list[dict[str, Any]]:
    """Return a dashboard's panels, without the headings of its rows."""
    return [one for one in json.loads(board.read_text())["panels"] if one["type"] != "row"]


def queries() -> list[str]:
    """Return the PromQL of all panels and variables, as Prometheus gets it."""
    found = [t["expr"] for board in BOARDS for panel in panels(board) for t in panel["targets"]]
    return [re.sub(r"\$__(rate_interval|range)", "5m", text) for text in found]


def named() -> set[str]:
    """Return the metrics of ours that alerts, dashboards and the guide name."""
    texts = [one["expr"] for one in alerts()] + [board.read_text() for board in BOARDS]
    table = GUIDE.read_text().partition("with `bftrainer_` before it")[2].partition("\n## ")[0]
    told = [f"bftrainer_{name}" for name in re.findall(r"`([a-z_]+)[{`]", table)]
    assert len(told) > 40
    return {*told, *(name for text in texts for name in _NAME.findall(text))}


def exported(text: str) -> set[str]:
    """Return every series of a daemon's metrics, also of those that have no value now."""
    families = list(text_string_to_metric_families(text))
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    return {*kinds, *(one.name for family in families for one in family.samples)}


def promtool(*argv: str | Path, stdin: str = "") -> str:
    """Run Prometheus' own check, which must succeed; its output."""
    if shutil.which("promtool") is None:
        pytest.skip("not installed: promtool (scripts/install_system.sh promtool)")
    done = run(("promtool", *map(str, argv)), stdin=stdin, timeout_s=60)
    assert done.is_ok, done.stdout + done.stderr
    return done.stdout
