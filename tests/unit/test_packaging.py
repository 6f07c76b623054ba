"""What packages add for administrators: manual pages, completions, alerts and a dashboard."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from bftrainer.batch.process import run
from bftrainer.cli.main import VERBS
from bftrainer.daemon.metrics import MEANINGS, MetricsRegistry, daemon_figures
from bftrainer.model.views import PollingView, RequestCount
from tests.support.memory_service import MemoryService

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "packaging" / "monitoring"
_NAME = re.compile(r"\bbftrainer_[a-z_]+")


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is written below /usr/share."""
    stage = tmp_path_factory.mktemp("stage")
    argv = (sys.executable, str(ROOT / "packaging" / "write_pages.py"), str(stage), "Ann <a@b.c>")
    done = run(argv, timeout_s=120)
    assert done.is_ok, done.stderr
    return stage / "usr" / "share"


def test_every_verb_has_a_manual_page(share: Path) -> None:
    names = {path.name.removesuffix(".1.gz") for path in (share / "man" / "man1").iterdir()}
    assert {"bftrainer", *(f"bftrainer-{verb}" for verb in VERBS)} <= names
    assert {"bftrainer-policy-check", "bftrainer-study-run"} <= names
    page = share / "man" / "man1" / "bftrainer-status.1.gz"
    text = gzip.decompress(page.read_bytes()).decode()
    assert r"bftrainer\-status \- Show the daemon" in text
    assert r"\-h, \-\-help" in text
    if shutil.which("groff"):
        for one in sorted(page.parent.iterdir()):
            body = gzip.decompress(one.read_bytes()).decode()
            done = run(("groff", "-man", "-Tutf8", "-ww", "-z"), stdin=body, timeout_s=60)
            assert (done.returncode, done.stderr) == (0, ""), one.name


def test_completions_and_changelog(share: Path) -> None:
    bash = share / "bash-completion" / "completions" / "bftrainer"
    assert run(("bash", "-n", str(bash)), timeout_s=60).is_ok
    assert "_BFTRAINER_COMPLETE=bash_complete" in bash.read_text()
    for place in ("zsh/site-functions/_bftrainer", "fish/vendor_completions.d/bftrainer.fish"):
        assert "_BFTRAINER_COMPLETE" in (share / place).read_text()
    log = (share / "doc" / "bftrainer" / "changelog.Debian.gz").read_bytes()
    assert re.search(r"^ -- Ann <a@b.c>  \w{3}, \d\d", gzip.decompress(log).decode(), re.MULTILINE)


def exported(tmp_path: Path) -> set[str]:
    """Every series that a daemon exports."""
    some = (RequestCount(kind="nodes", total=1),)
    polling = PollingView(
        mode="hook", interval_s=1.0, requests_per_minute=1, total_per_minute=1,
        requests_last_minute=1, looks=1, called_looks=1, last_look_s=1.0, requests=some, told=some,
    )  # fmt: skip
    status = replace(MemoryService(tmp_path).status(), polling=polling)
    metrics = MetricsRegistry()
    metrics.add(lambda: daemon_figures(status, dict.fromkeys(MEANINGS, 1.0), {}))
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", metrics.text(), re.MULTILINE))
    parts = {f"{name}_{part}" for name, kind in kinds.items() if kind == "histogram"
             for part in ("bucket", "count", "sum")}  # fmt: skip
    return {*kinds, *parts}


def test_alerts_and_dashboard_use_metrics_that_exist(tmp_path: Path) -> None:
    (group,) = YAML(typ="safe").load(MONITORING / "alerts.yaml")["groups"]
    alerts = [rule["expr"] for rule in group["rules"]]
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    shown = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(alerts) >= 4
    assert len(shown) >= 10
    named = {name for text in (*alerts, *shown) for name in _NAME.findall(text)}
    assert named - exported(tmp_path) == set()


def test_the_guide_names_metrics_that_exist(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "howto" / "operate.md").read_text()
    table = guide.partition("with `bftrainer_` before it")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines() for name in re.findall(r"`([a-z_]+)", row[:160])}
    assert len(named) > 25
    assert {f"bftrainer_{name}" for name in named} - exported(tmp_path) == set()
