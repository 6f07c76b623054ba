"""A daemon that is stopped for longer than its agents wait, and goes on: nobody pays for it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bftrainer.cli.main import main
from tests.integration.cli_fixtures import Output, output
from tests.integration.daemon_scripts import LIGHT, light_spec
from tests.support.processes import is_running
from tests.support.site import Site
from tests.support.waiting import wait_for

__all__ = ["output"]

POLICY = """\
poll_interval_s: 0.2
min_gap_s: 2
gap_margin_s: 1
reserve_nodes_per_type: 0
join_window_s: 0.5
heartbeat_s: 0.2
agent_timeout_s: 3
worker_lease_s: 600
unreachable_s: 600
"""
HAS_LEFT = "connection to the daemon lost"
# It says in a file what it has done, for whoever asks while nobody is told.
TELLS = LIGHT.replace(
    "    time.sleep(0.05)", "    time.sleep(0.05); os.utime('steps.now')"
).replace('print("worker"', 'open("steps.now", "a").close()\nprint("worker"')


def _agent_logs(site: Site) -> list[str]:
    return [log.read_text() for log in (site.sidecar.state_dir / "pilots").glob("*/agent.log")]


@contextmanager
def _asleep(site: Site, count: int) -> Iterator[None]:
    """Stop the daemon until so many agents have given up their connections."""
    before = sum(log.count(HAS_LEFT) for log in _agent_logs(site))
    os.kill(site.sidecar.pid, signal.SIGSTOP)
    try:
        wait_for(
            lambda: sum(log.count(HAS_LEFT) for log in _agent_logs(site)) >= before + count,
            what="agents close their connections",
        )
        yield
    finally:
        os.kill(site.sidecar.pid, signal.SIGCONT)


@pytest.mark.parametrize("n_nodes", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_daemon_that_slept_loses_nobody(tmp_path: Path, output: Output, n_nodes: int) -> None:
    with Site.open(tmp_path, n_nodes=n_nodes, policy=POLICY, options=()) as site:
        spec = light_spec(tmp_path / "one", n_max=n_nodes)
        script = Path(spec.script)
        script.write_text(TELLS)
        trainer = site.client.submit(spec).record.trainer_id
        site.trains_at(trainer, n_nodes)
        before = site.view(trainer).record
        workers = [int(line.split()[1]) for line in site.log_text(trainer).splitlines()
                   if line.startswith("worker ")]  # fmt: skip
        pilots = sorted(path.name for path in (site.sidecar.state_dir / "pilots").glob("p*"))
        with _asleep(site, n_nodes):
            mark = script.with_name("steps.now")
            was_ns = mark.stat().st_mtime_ns
            wait_for(lambda: mark.stat().st_mtime_ns > was_ns, what="it trains on meanwhile")
        wait_for(lambda: site.client.status().slept, what="it says that it slept")
        site.trains_on(trainer)
        after = site.view(trainer).record
        assert (after.last_generation, after.rescales, after.failures) == (
            before.last_generation, before.rescales, before.failures,
        )  # fmt: skip
        assert len(workers) == n_nodes
        assert all(map(is_running, workers))
        assert site.sidecar.entries("parked") == []
        assert sorted(p.name for p in (site.sidecar.state_dir / "pilots").glob("p*")) == pilots
        assert "bftrainer_sleeps_total 1.0" in site.client.metrics()
        assert main(["status", "--socket", str(site.sidecar.state_dir / "daemon.sock")]) == 0
        assert "BFT-1318: The daemon did not run for" in " ".join(output.readouterr().out.split())
        assert "BFT-1318" in site.sidecar.log.read_text()


@pytest.mark.long
def test_an_agent_that_died_meanwhile_is_found_and_the_others_are_not_missed(
    tmp_path: Path,
) -> None:
    with Site.open(tmp_path, n_nodes=3, policy=POLICY, options=()) as site:
        trainer = site.client.submit(light_spec(tmp_path / "one", n_max=3)).record.trainer_id
        site.trains_at(trainer, 3)
        before = site.view(trainer).record
        victim = before.workers[-1][1]
        with _asleep(site, 3):
            (log,) = (site.sidecar.state_dir / "pilots" / victim).glob("agent.log")
            pid = int(log.read_text().partition(", pid ")[2].split()[0])
            os.kill(pid, signal.SIGKILL)
        wait_for(
            lambda: any(r.reason == "a member was lost" for r in site.rescales(trainer)),
            what="the one is missed",
        )
        sizes = [r.size for r in site.rescales(trainer) if r.reason == "a member was lost"]
        assert sizes == [2]
        assert site.sidecar.entries("parked") == []
        site.trains_on(trainer)
