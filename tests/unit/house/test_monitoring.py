"""packaging/prometheus and packaging/grafana, as Prometheus and Grafana read them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.support.monitoring import BOARDS, RULES, alerts, panels, promtool, queries

TESTS = RULES.with_name("bftrainer.rules.test.yml")
# Of those that slurmctld exports from 25.11 on (MetricsType=metrics/openmetrics).
SLURMS = {
    *("slurm_nodes_idle", "slurm_nodes_alloc", "slurm_nodes_drain", "slurm_bf_cycle_cnt"),
    *("slurm_jobs_running", "slurm_jobs_pending"),
    *("slurm_user_jobs_running", "slurm_user_jobs_pending"),
}


def test_alerts_fire_when_they_should_and_only_then() -> None:
    promtool("check", "rules", RULES)
    promtool("test", "rules", TESTS)


def test_every_alert_is_tested_and_says_what_to_do() -> None:
    tests = TESTS.read_text()
    for one in alerts():
        assert f'alertname="{one["alert"]}"' in tests
        assert set(one["annotations"]) == {"summary", "description"}
        assert "bftrainer" in one["annotations"]["description"]


def test_prometheus_understands_every_query_of_the_dashboards(tmp_path: Path) -> None:
    rules = [{"record": f"q:{n}", "expr": text} for n, text in enumerate(queries())]
    assert len(rules) > 50
    file = tmp_path / "queries.yml"
    with file.open("w") as written:
        YAML().dump({"groups": [{"name": "queries", "rules": rules}]}, written)
    promtool("check", "rules", file)


def test_slurms_own_metrics_are_named_as_slurm_names_them() -> None:
    named = [name for text in queries() for name in re.findall(r"\bslurm_[a-z_]+", text)]
    assert set(named) == SLURMS


@pytest.mark.parametrize("board", BOARDS, ids=lambda path: path.stem)
def test_dashboards_can_be_read_by_those_who_did_not_make_them(board: Path) -> None:
    whole = json.loads(board.read_text())
    assert whole["uid"] == board.stem
    source = {"type": "prometheus", "uid": "${source}"}
    names = {one["name"]: one["type"] for one in whole["templating"]["list"]}
    assert names["source"] == "datasource"
    ids = [one["id"] for one in whole["panels"]]
    assert len(ids) == len(set(ids))
    for panel in panels(board):
        assert panel["datasource"] == source, panel["title"]
        assert all((panel["title"], panel["description"], panel["fieldConfig"]["defaults"]["unit"]))
        refs = [target["refId"] for target in panel["targets"]]
        assert len(refs) == len(set(refs)) > 0
        legends = {target["legendFormat"] for target in panel["targets"]}
        dashed = {one["matcher"]["options"] for one in panel["fieldConfig"]["overrides"]}
        assert dashed <= legends
        spot = panel["gridPos"]
        assert spot["x"] + spot["w"] <= 24
