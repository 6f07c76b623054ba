"""A daemon with another package's policy: it waits for its hour, remembers and drops."""

from __future__ import annotations

from pathlib import Path

import pytest

from bftrainer.daemon.journal_replay import KIND, take_again
from bftrainer.model.decision import DecisionRecord
from bftrainer.model.trainer import TrainerState
from tests.integration.daemon_scripts import SLOW, trainer_spec
from tests.support.installed import installed, write_package
from tests.support.site import Site
from tests.support.waiting import wait_for

POLICY = """\
poll_interval_s: 600
idle_confirmations: 1
reserve_nodes_per_type: 0
policy: late
policy_options: {wait_s: 2}
"""
SOURCE = '''
from dataclasses import dataclass, replace

from bftrainer.decide.policies.base import Decided, Traits
from milp.solve import solve


@dataclass(frozen=True, kw_only=True)
class Options:
    wait_s: float


class Late:
    """Nobody has nodes until so long after the first is seen; who comes with it is dropped."""

    name = "late"
    traits = Traits(options=Options)

    def allocate(self, problem, context, /):
        begin_s = context.now_s if context.state is None else context.state
        if context.now_s >= begin_s + context.options.wait_s:
            return Decided(allocation=solve(problem), state=begin_s)
        found = solve(replace(problem, p_jmax=0))
        return Decided(
            allocation=found,
            state=begin_s,
            wake_at_s=begin_s + context.options.wait_s,
            dropped={t.trainer_id: "One is enough." for t in problem.trainers[1:]},
        )


POLICY = Late()
'''


@pytest.mark.long
def test_a_daemon_asks_again_in_time_keeps_the_state_and_ends_who_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "packages").mkdir()
    write_package(tmp_path / "packages", "late", SOURCE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))  # of the daemon
    with Site.open(tmp_path, n_nodes=1, policy=POLICY) as site:
        first = site.client.submit(trainer_spec(tmp_path / "a", SLOW, n_max=1)).record.trainer_id
        second = site.client.submit(trainer_spec(tmp_path / "b", SLOW, n_max=1)).record.trainer_id
        site.observed(first, 1)  # no look calls for that decision, nor anybody who comes
        wait_for(lambda: site.view(second).record.state.is_final, what="it is dropped")
        record = site.view(second).record
        assert record.state is TrainerState.CANCELLED
        assert record.reason == "The policy dropped it: One is enough."
        entries = site.sidecar.entries(KIND)
        site.clear()
    with installed(tmp_path / "packages", "late"):
        again = list(take_again(entries))
    assert len(again) > 2
    assert all(one.is_equal for one in again)
    taken = [entry.payload_as(DecisionRecord) for entry in entries]
    states = [one.plan.memory.policy_state for one in taken if one.plan.allocation]
    assert len(set(states)) == 1
    started = next(one for one in taken if one.plan.assignment)
    assert 0.0 <= started.input.now_s - (states[0] + 2.0) < 1.0
