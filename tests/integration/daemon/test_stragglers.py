"""A slow node under a real daemon, real agents and real workers: found, replaced, remembered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.daemon.journal_replay import KIND, take_again
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.views import TrainerView
from milp.problem import Curve
from tests.integration.daemon_scripts import trainer_spec
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
"""
SCRIPT = Path(__file__).parents[2] / "elastic" / "scripts" / "uneven.py"
CURVE = Curve(sizes=(1, 2, 3), samples_per_s=(100.0, 200.0, 300.0))


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[DaemonProcess]:
    with Site.open(tmp_path, n_nodes=4, policy=POLICY) as site:
        yield site.sidecar
        site.clear()


def _on(sidecar: DaemonProcess, trainer: str, size: int) -> TrainerView | None:
    view = sidecar.client.trainer(trainer)
    trains = view.record.progress.step > 0
    return view if trains and len(view.observed_nodes) == size else None


@pytest.mark.long
def test_a_slow_node_is_replaced_while_it_still_trains(
    sidecar: DaemonProcess, tmp_path: Path
) -> None:
    slow = tmp_path / "slow.json"
    slow.write_text("{}")
    spec = trainer_spec(
        tmp_path / "uneven",
        SCRIPT.read_text(),
        args=("20", "100000000", str(slow)),
        epochs=None,
        n_min=2,
        n_max=3,
        curve=CURVE,
        environment=(("OMP_NUM_THREADS", "1"),),
    )
    trainer = sidecar.client.submit(spec).record.trainer_id
    view = wait_for(lambda: _on(sidecar, trainer, 3), what="three nodes train")
    straggler = view.observed_nodes[1]
    slow.write_text(json.dumps({straggler: 4.0}))

    def replaced() -> TrainerView | None:
        now = _on(sidecar, trainer, 3)
        return now if now and straggler not in now.observed_nodes else None

    after = wait_for(replaced, what=f"{straggler} is replaced")
    assert after.record.failures == 0
    (found,) = [e.payload["what"] for e in sidecar.entries("straggler")]
    assert (found["node"], found["is_slow"]) == (straggler, True)
    (done,) = [e.payload["what"] for e in sidecar.entries("straggler-replaced")]
    assert done["node"] == straggler
    assert done["replacement"] in after.observed_nodes
    # It left when the other one joined, not before: no generation in between was smaller.
    sizes = [e.payload["what"]["size"] for e in sidecar.entries("rescaled") if e.seq > 0]
    assert sizes[-2:] == [3, 3]

    # Remembered: it is given back, nobody takes it again, users can see why.
    wait_for(lambda: _use(sidecar, straggler) == "free", what="given back")
    wait_for(
        lambda: any(straggler in one for one in sidecar.client.status().slow_nodes),
        timeout_s=20.0,
        what="users see why",
    )
    assert "bftrainer_stragglers_replaced_total 1.0" in sidecar.client.metrics()
    again = list(take_again(sidecar.entries(KIND)))
    assert again
    assert all(one.is_equal for one in again)


def _use(sidecar: DaemonProcess, node: str) -> str:
    return next(n.use for n in sidecar.client.nodes() if n.name == node)
