"""What every trainer runtime must do: one test class, subclassed by each of them.

A subclass gives the fixtures ``kit`` (a training of this runtime that can be told to be
short, and what it left behind) and ``site`` (a daemon with three nodes, of the embedded
batch system or of another one). Sizes change by plan, by loss without notice and by
parking; whatever happened, the training ends with every sample used exactly once.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import pytest

from bftrainer.model.trainer import TrainerSpec, TrainerState
from bftrainer.model.views import TrainerView
from milp.problem import Curve
from tests.support.processes import is_running
from tests.support.site import Site
from tests.support.waiting import wait_for

POLICY = """\
poll_interval_s: 0.2
min_gap_s: 2
gap_margin_s: 1
reserve_nodes_per_type: 0
join_window_s: 0.3
heartbeat_s: 0.3
agent_timeout_s: 2
hold_idle_s: 20
failure_budget: 2
straggler_threshold: 0
"""
FAILURE_BUDGET = 2
N_NODES = 3
CURVE = Curve(sizes=(1, 2, 3), samples_per_s=(100.0, 190.0, 270.0))
LONG = 100_000  # steps: more than any test waits for
N_STEPS = 750  # a minute: longer than what is done to a training takes


class RuntimeKit(Protocol):
    """A training of one runtime, a step of which takes some 120 ms on one node, 40 on three.

    It has to scale: nodes that earn nothing are not given to anybody. Once a file ``hurry``
    is in its directory it takes no pauses any more.
    """

    restarts: bool  # whether a resize is a restart

    def spec(self, directory: Path, n_steps: int) -> TrainerSpec:
        """Write what it needs into an empty directory; sizes 1 to 3."""

    def failing_spec(self, directory: Path) -> TrainerSpec:
        """One of a single node that prints ``no data here`` and fails at once."""

    def assert_exact(self, directory: Path, n_steps: int, view: TrainerView) -> None:
        """After its end: every sample was used once."""


def open_site(base: Path) -> AbstractContextManager[Site]:
    """For a module's fixture: agents stay warm between the tests (hold_idle_s)."""
    return Site.open(base, n_nodes=N_NODES, policy=POLICY)


class RuntimeConformance:
    """The tests themselves; subclasses start with ``Test``."""

    @pytest.fixture(autouse=True)
    def _tidy(self, site: Site) -> Iterator[None]:
        """Each test begins and ends without trainers, with all nodes up."""
        yield
        site.clear()
        wait_for(lambda: not any(n.trainer_id for n in site.client.nodes()), what="free nodes")

    def test_it_shrinks_and_grows_by_plan_and_loses_nothing(
        self, site: Site, kit: RuntimeKit, tmp_path: Path
    ) -> None:
        trainer = site.client.submit(kit.spec(tmp_path, N_STEPS)).record.trainer_id
        site.observed(trainer, N_NODES)
        self._tells_how_it_fares(site, kit, trainer)
        second = kit.spec(tmp_path / "second", LONG)
        rival = site.client.submit(second).record.trainer_id
        site.trains_at(trainer, 1, 2)
        site.trains_at(rival, 1, 2)
        site.client.cancel(rival)
        site.trains_at(trainer, N_NODES)
        (tmp_path / "hurry").touch()
        view = site.in_state(trainer, TrainerState.FINISHED)
        kit.assert_exact(tmp_path, N_STEPS, view)
        done = [r for r in site.rescales(trainer) if r.size_before and r.reason == "planned"]
        assert any(r.size < r.size_before for r in done)
        assert any(r.size > r.size_before for r in done)
        assert all(r.is_restart is kit.restarts and not r.unsaved for r in done)
        assert view.record.failures == 0
        costs = view.record.costs
        assert costs.rescale_up_s is not None
        assert costs.rescale_down_s is not None
        if kit.restarts:
            assert costs.rescale_up_s == costs.rescale_down_s > 0
            assert costs.restart is not None
            assert costs.restart.stop_s is not None
            assert costs.restart.unsaved == 0

    def test_nodes_are_taken_without_notice_one_or_all_and_it_resumes(
        self, site: Site, kit: RuntimeKit, tmp_path: Path
    ) -> None:
        trainer = site.client.submit(kit.spec(tmp_path, LONG)).record.trainer_id
        first = site.observed(trainer, N_NODES).observed_nodes[0]  # the first rank's
        site.trains_on(trainer)
        site.server.client.set_node(first, is_up=False)
        wait_for(
            lambda: (nodes := site.view(trainer).observed_nodes) and first not in nodes,
            what="it goes on elsewhere",
        )
        wait_for(lambda: site.view(trainer).record.progress.step > 30, what="a checkpoint's worth")
        site.server.client.submit(n_nodes=N_NODES - 1, limit_s=60, duration_s=1, user="alice")
        site.was_parked(trainer)
        site.observed(trainer, 1, 2)
        site.trains_on(trainer)
        resumed = [r for r in site.rescales(trainer) if r.resumed_from and not r.size_before]
        assert resumed
        assert resumed[0].step > 0
        assert site.view(trainer).record.failures == 0

    @pytest.mark.long
    def test_neither_a_lost_daemon_nor_a_node_that_was_cut_off_costs_a_sample(
        self, site: Site, kit: RuntimeKit, tmp_path: Path
    ) -> None:
        trainer = site.client.submit(kit.spec(tmp_path, N_STEPS)).record.trainer_id
        node = site.observed(trainer, N_NODES).observed_nodes[0]
        site.trains_on(trainer)
        before = site.view(trainer).record
        site.sidecar.kill()
        site.sidecar.start()
        site.observed(trainer, N_NODES)
        site.trains_on(trainer)
        after = site.view(trainer).record
        assert after.progress.generation == before.progress.generation
        assert after.rescales == before.rescales
        pids = site.pids_on(node)
        assert len(pids) > 1  # an agent and what it started
        signal_all(pids, signal.SIGSTOP)  # as a node that was cut off: silent, not gone
        try:
            wait_for(
                lambda: (nodes := site.view(trainer).observed_nodes) and node not in nodes,
                what="the others go on",
            )
            site.trains_on(trainer)
        finally:
            signal_all(pids, signal.SIGCONT)  # its old processes must not write any more
        (tmp_path / "hurry").touch()
        kit.assert_exact(tmp_path, N_STEPS, site.in_state(trainer, TrainerState.FINISHED))
        assert any(r.reason == "a member was lost" for r in site.rescales(trainer))

    def _tells_how_it_fares(self, site: Site, kit: RuntimeKit, trainer: str) -> None:
        view = wait_for(
            lambda: v if (v := site.view(trainer)).record.progress.samples_per_s > 0 else None,
            what="a throughput",
        )
        assert view.record.progress.step > 0
        wait_for(
            lambda: {log.rank for log in site.client.logs(trainer)} >= set(range(N_NODES)),
            what="a log of every rank",
        )
        wait_for(lambda: "pid" in site.log_text(trainer), what="what it printed")
        sentences = site.client.explain(trainer).sentences
        assert any("restart" in s for s in sentences) is kit.restarts

    def test_one_that_fails_says_why(self, site: Site, kit: RuntimeKit, tmp_path: Path) -> None:
        trainer = site.client.submit(kit.failing_spec(tmp_path)).record.trainer_id
        view = site.in_state(trainer, TrainerState.FAILED)
        assert "log" in view.record.reason
        assert view.record.failures >= FAILURE_BUDGET
        assert "no data here" in site.log_text(trainer)


def signal_all(pids: list[int], number: signal.Signals) -> None:
    """Signal those that are there."""
    for pid in filter(is_running, pids):
        os.kill(pid, number)
