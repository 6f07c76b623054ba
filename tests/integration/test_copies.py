"""A trainer's only node is lost, with a real daemon, real agents and the local batch system."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.elastic.replica_sender import AGE_S
from bftrainer.model.trainer import TrainerState
from tests.integration.daemon_scripts import SLOW
from tests.integration.test_daemon import POLICY, DaemonSite
from tests.support.waiting import wait_for

STEP_S = 0.02  # what a step of SLOW sleeps


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonSite]:
    policy = POLICY.replace("reserve_nodes_per_type: 1", "reserve_nodes_per_type: 0")
    with DaemonSite.open(tmp_path_factory.mktemp("copies"), n_nodes=3, policy=policy) as site:
        yield site


def lone_trainer(site: DaemonSite, name: str) -> str:
    """A trainer of one node that writes no checkpoint by itself."""
    trainer = site.submit(name, SLOW, n_max=1, checkpoint_interval_s=3600.0)
    site.observed(trainer, 1)
    return trainer


def holder_of(site: DaemonSite, trainer: str) -> str:
    """The node whose agent has a copy."""

    def node() -> str | None:
        said = [s for s in site.client.explain(trainer).sentences if "A copy of its state" in s]
        return said[0].split("memory of ")[1].split(",")[0] if said else None

    return wait_for(node, timeout_s=60, what="a copy")


def resumed(site: DaemonSite, trainer: str, *, after: int) -> dict[str, object]:
    """The rescale by which a trainer came back, the one after so many."""

    def found() -> dict[str, object] | None:
        all_ = [e.plain() for e in site.sidecar.entries("rescaled")]
        mine = [e["what"] for e in all_ if e["trainer_id"] == trainer]
        return mine[after] if len(mine) > after else None

    return wait_for(found, timeout_s=90, what="it is back")


def test_the_loss_of_the_only_node_costs_seconds_and_the_copy_survives_its_holder(
    site: DaemonSite,
) -> None:
    trainer = lone_trainer(site, "alone")
    other = lone_trainer(site, "other")
    [node] = site.client.trainer(trainer).observed_nodes
    holder = holder_of(site, trainer)
    assert holder != node
    wait_for(lambda: site.steps(trainer) > 1.0 / STEP_S, timeout_s=60, what="steps")
    before = site.steps(trainer)
    site.server.client.set_node(node, is_up=False)
    back = resumed(site, trainer, after=1)
    # From the holder's memory, or from the disk, where the holder has put it meanwhile.
    source = str(back["resumed_from"])
    assert source.startswith(f"copy on {holder}, step ") or "generation-00000001.bft" in source
    # ``before`` is half a second old at most; AGE_S of training is what may be lost.
    assert int(str(back["step"])) >= before - AGE_S / STEP_S
    site.trains_on(trainer)

    # The heir of a killed daemon learns where the copy is, and the worker where to send it.
    site.sidecar.kill()
    site.sidecar.start()
    site.trains_on(trainer)
    holder_of(site, trainer)

    # Lost again: the copy gets to disk at once, for its holder may have to go, too.
    directory = Path(site.client.trainer(trainer).record.spec.checkpoint_dir)
    known = set(directory.glob("*.bft"))
    site.server.client.set_node(site.client.trainer(trainer).observed_nodes[0], is_up=False)
    wait_for(lambda: set(directory.glob("*.bft")) - known, timeout_s=60, what="it is on disk")
    for name in (trainer, other):
        site.client.cancel(name, now=True)
    for each in site.client.nodes():
        site.server.client.set_node(each.name, is_up=True)


def test_without_another_agent_it_says_so(site: DaemonSite) -> None:
    for node in site.client.nodes()[1:]:
        site.server.client.set_node(node.name, is_up=False)
    try:
        trainer = lone_trainer(site, "single")
        wait_for(
            lambda: any(
                "no other node has an agent of bftrainer" in s
                for s in site.client.explain(trainer).sentences
            ),
            timeout_s=60,
            what="the reason",
        )
        site.client.cancel(trainer, now=True)
        assert site.client.trainer(trainer).record.state is TrainerState.CANCELLED
    finally:
        for node in site.client.nodes():
            site.server.client.set_node(node.name, is_up=True)
