"""Nodes of three types on a real Slurm: each trainer gets only what it asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.errors import BftError
from slurm_plugins.adapter import create
from slurm_plugins.testcluster import SlurmTestCluster
from tests.integration.daemon_scripts import SLOW, trainer_spec
from tests.integration.slurm_fixtures import (
    daemon_under,
    fast_cluster_with,
    whole_look,
)
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm

A100, V100, CPU = ("n1", "n4", "n7"), ("n2", "n5"), ("n3", "n6", "n8")
NVLINK = "n4"  # the only A100 that has it
HAS = {
    **dict.fromkeys(A100, ("gpu:a100:4", "a100,amd")),
    **dict.fromkeys(V100, ("gpu:v100:2", "v100,intel")),
    **dict.fromkeys(CPU, ("", "intel")),
    NVLINK: ("gpu:a100:4", "a100,amd,nvlink"),
}
POLICY = "poll_interval_s: 0.2\nreserve_nodes_per_type: 0\nrequests_per_minute: 1000\n"
SEES = 'print("sees", os.environ.get("CUDA_VISIBLE_DEVICES", "none"), flush=True)'
TEXT = SLOW.replace('print("worker", os.getpid(), flush=True)', SEES)


cluster = fast_cluster_with(
    n_nodes=8,
    node_types=tuple(HAS[f"n{number}"] for number in range(1, 9)),
    nodes_per_switch=4,
    message_timeout_s=5,
)
sidecar = daemon_under(POLICY)


def test_a_look_shows_types_features_and_switches(cluster: SlurmTestCluster) -> None:
    system = create({**cluster.config.batch_options(), "partition": "batch"})
    nodes = {node.name: node for node in whole_look(system).nodes or ()}
    assert {name: (node.node_type, ",".join(node.features)) for name, node in nodes.items()} == {
        name: (gres or "cpu", features) for name, (gres, features) in HAS.items()
    }
    assert [nodes[f"n{k}"].switch for k in range(1, 9)] == ["s1"] * 4 + ["s2"] * 4


@pytest.mark.long
def test_each_trainer_gets_only_nodes_that_are_what_it_asks_for(
    cluster: SlurmTestCluster, sidecar: DaemonProcess, tmp_path: Path
) -> None:
    def submit(name: str, **asks: object) -> str:
        spec = trainer_spec(tmp_path / name, TEXT, name=name, n_max=8, **asks)
        return sidecar.client.submit(spec).record.trainer_id

    linked = submit("linked", gres="gpu:a100:2", constraint="a100&nvlink")
    volta = submit("volta", gres="gpu:v100:2", workers_per_node=2)
    anything = submit("anything")
    nowhere = submit("nowhere", gres="gpu:h100:1")
    wanted = {linked: {NVLINK}, volta: set(V100)}

    def settled() -> set[str] | None:
        views = {view.record.trainer_id: view for view in sidecar.client.trainers()}
        observed = {trainer: set(view.observed_nodes) for trainer, view in views.items()}
        assert observed[linked] <= {NVLINK}
        assert observed[volta] <= set(V100)
        assert not observed[nowhere]
        assert any(observed[anything] <= set(kind) for kind in (A100, V100, CPU)), observed
        mine = observed[anything]
        has_all = all(observed[trainer] == nodes for trainer, nodes in wanted.items())
        # Three CPU nodes, or two A100 ones: the larger class.
        return mine if has_all and mine == set(CPU) else None

    wait_for(settled, what="each trainer has all there is for it")
    said = sidecar.client.explain(nowhere).sentences
    assert said[0] == "No node of this cluster meets its request (gpu:h100:1)."
    assert sidecar.client.trainer(nowhere).trouble == said[0]
    # One worker with two of the node's four GPUs; two workers with one each.
    assert _seen(sidecar, linked) == {"0,1"}
    assert _seen(sidecar, volta) == {"0", "1"}
    assert _seen(sidecar, anything) == {"none"}
    for trainer in (linked, volta, anything, nowhere):
        sidecar.client.cancel(trainer, now=True)


def test_what_no_node_can_be_asked_for_is_refused(sidecar: DaemonProcess, tmp_path: Path) -> None:
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"gres": "shard:1"}, "BFT-1040"),
        ({"constraint": "[a|b]"}, "BFT-1040"),
        ({"gres": "gpu:3", "workers_per_node": 2}, "BFT-1041"),
    )
    for number, (asks, code) in enumerate(refused):
        with pytest.raises(BftError) as caught:
            sidecar.client.submit(trainer_spec(tmp_path / f"bad{number}", TEXT, **asks))
        assert caught.value.code == code
    assert sidecar.client.trainers() == ()


def _seen(sidecar: DaemonProcess, trainer: str) -> set[str]:
    """Devices that its workers see."""
    texts = [Path(log.path).read_text() for log in sidecar.client.logs(trainer)]
    return {
        line.removeprefix("sees ")
        for text in texts
        for line in text.splitlines()
        if line.startswith("sees ")
    }
