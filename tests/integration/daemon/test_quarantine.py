"""A node on which workers fail, under a real daemon: left alone, named, replayed the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.daemon.journal_replay import KIND, take_again
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.views import TrainerView
from milp.problem import Curve
from tests.integration.daemon_scripts import SLOW, trainer_spec
from tests.support.site import Site
from tests.support.waiting import wait_for

POLICY = """\
poll_interval_s: 0.2
reserve_nodes_per_type: 0
min_gap_s: 2
gap_margin_s: 1
join_window_s: 0.5
hold_idle_s: 1
explore_budget: 0
quarantine_s: 300
"""
# Fails on a node while a file of its name is there.
PICKY = (
    """\
import pathlib
from bftrainer.elastic.process import control
if pathlib.Path("bad-" + control.current().config.node).exists():
    raise RuntimeError("the disk of this node is full")
"""
    + SLOW
)
CURVE = Curve(sizes=(1, 2, 3), samples_per_s=(100.0, 200.0, 300.0))


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[DaemonProcess]:
    with Site.open(tmp_path, n_nodes=3, policy=POLICY) as site:
        yield site.sidecar
        site.clear()


@pytest.mark.long
def test_a_node_that_fails_workers_is_left_alone_and_another_takes_its_place(
    sidecar: DaemonProcess, tmp_path: Path
) -> None:
    directory = tmp_path / "picky"
    spec = trainer_spec(directory, PICKY, n_max=3, curve=CURVE)
    nodes = sorted(n.name for n in sidecar.client.nodes()) or wait_for(
        lambda: sorted(n.name for n in sidecar.client.nodes()), timeout_s=30, what="nodes"
    )
    bad = nodes[0]
    (directory / f"bad-{bad}").touch()
    trainer = sidecar.client.submit(spec).record.trainer_id

    def elsewhere() -> TrainerView | None:
        view = sidecar.client.trainer(trainer)
        is_there = set(view.observed_nodes) == set(nodes[1:]) and view.record.failures >= 2
        return view if is_there and sidecar.client.status().cooling_nodes else None

    wait_for(elsewhere, what="it trains on the other two")
    status = sidecar.client.status()
    (sentence,) = status.cooling_nodes
    assert sentence.startswith(f"{bad}: It cools down for")
    assert any(said.startswith(f"{bad}: ") for said in sidecar.client.explain(trainer).sentences)
    wait_for(
        lambda: any(
            n.name == bad and not n.pilot_id and "cools down" in n.reason
            for n in sidecar.client.nodes()
        ),
        what="its pilot goes",
    )
    assert "bftrainer_nodes_cooling 1.0" in sidecar.client.metrics()
    again = list(take_again(sidecar.entries(KIND)))
    assert again
    assert all(one.is_equal for one in again)
