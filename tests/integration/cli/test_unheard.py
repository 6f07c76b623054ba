"""Agents that are suspended, so nobody hears them, while their workers train on."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bftrainer.cli.main import main
from bftrainer.model.trainer import TrainerState
from tests.integration.cli_fixtures import Output, output
from tests.integration.daemon_scripts import SLOW, trainer_spec
from tests.support.site import Site
from tests.support.waiting import wait_for

__all__ = ["output"]

POLICY = """\
poll_interval_s: 0.2
min_gap_s: 2
gap_margin_s: 1
reserve_nodes_per_type: 0
join_window_s: 0.5
agent_timeout_s: 2
worker_lease_s: 600
"""


@contextmanager
def _suspended(site: Site) -> Iterator[None]:
    """Suspend all agents."""
    logs = (log.read_text() for log in (site.sidecar.state_dir / "pilots").glob("*/agent.log"))
    pids = [int(pid) for log in logs for pid in re.findall(r"agent of p\d+ on \S+, pid (\d+)", log)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def _said(site: Site, output: Output, *words: str) -> str:
    assert main([*words, "--socket", str(site.sidecar.state_dir / "daemon.sock")]) == 0
    return " ".join(output.readouterr().out.split())


@pytest.mark.long
def test_a_trainer_whose_only_node_is_not_heard_is_not_said_to_rest(
    tmp_path: Path, output: Output
) -> None:
    with Site.open(tmp_path, n_nodes=1, policy=POLICY) as site:
        trainer = site.client.submit(trainer_spec(tmp_path / "one", SLOW)).record.trainer_id
        site.trains_at(trainer, 1)
        with _suspended(site):
            site.in_state(trainer, TrainerState.PARKED)
            view = wait_for(lambda: site.view(trainer) if site.view(trainer).trouble else None)
            (node,) = view.unheard_nodes
            said = rf"The agent on {node} has been silent for \d+ s\. The worker there may still"
            assert re.match(said + r".* for another \d+ s \(unreachable_s\)", view.trouble)
            for words in (("status",), ("status", trainer), ("explain", trainer)):
                shown = _said(site, output, *words)
                assert "unheard" in shown, words
                assert "parked" not in shown.partition("The agent on")[0], words
            assert re.search(said, _said(site, output, "explain", trainer))
        site.trains_at(trainer, 1)
        site.trains_on(trainer)
        assert site.view(trainer).unheard_nodes == ()
        assert "unheard" not in _said(site, output, "status")


@pytest.mark.long
def test_a_daemon_that_hears_no_agent_when_it_starts_takes_over_later(
    tmp_path: Path, output: Output
) -> None:
    with Site.open(tmp_path, n_nodes=2, policy=POLICY) as site:
        trainer = site.client.submit(trainer_spec(tmp_path / "two", SLOW)).record.trainer_id
        site.trains_at(trainer, 2)
        before = site.view(trainer).record
        with _suspended(site):
            site.sidecar.kill()
            site.sidecar.start()
            wait_for(lambda: "BFT-1330" in site.view(trainer).trouble, what="it says so")
            assert len(site.view(trainer).observed_nodes) == 2
            local = ("--batch-system", "local", "--batch-option")
            found = _said(site, output, "doctor", *local, f"socket={site.server.socket_path}")
            assert re.search("BFT-1330 agents .*The daemon has not heard 2 of its 2 agents", found)
        wait_for(lambda: not site.view(trainer).trouble, what="agents are back")
        site.trains_on(trainer)
        after = site.view(trainer).record
        assert (after.last_generation, after.rescales) == (before.last_generation, before.rescales)
        assert site.sidecar.entries("parked") == []
