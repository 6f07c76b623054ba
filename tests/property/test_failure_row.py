"""Any schedule of progress, failures, losses and restarts of the daemon: who is given up, and when.

A trainer on one node, with a machine of generations; its truth (where its checkpoint is, how
far it ever was) is kept here. Losses and progress cost nothing, but for agents that die again
and again; a row of failures without either kind of net progress never gets longer than the
budget, and two of the same words before the first step are enough.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from bftrainer.fleet.generations.failures import given_up
from bftrainer.fleet.generations.members import WorkerFailed
from bftrainer.model.canonical import decode, encode
from bftrainer.model.trainer import FailureRow
from bftrainer.site.policy.model import SitePolicy
from tests.support.examples import examples
from tests.support.generations import Driver
from tests.support.snapshots import record

BUDGET = 3
POLICY = SitePolicy(failure_budget=BUDGET)


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One start of the trainer and its end."""

    steps: int  # that it does before it ends
    kept: int  # of them, what the checkpoint has
    is_lost: bool  # the node is taken: nobody's failure
    is_killed: bool = False  # ... it is not, the agent has died: the first in a row is none
    state_lost: bool = False  # the checkpoint is gone before it starts
    daemon_restarts: bool = False


TRIES = st.lists(
    st.builds(
        Try,
        steps=st.integers(0, 4),
        kept=st.integers(0, 4),
        is_lost=st.booleans(),
        is_killed=st.booleans(),
        state_lost=st.sampled_from([False] * 9 + [True]),
        daemon_restarts=st.booleans(),
    ),
    max_size=40,
)


def _run(d: Driver, one: Try, checkpoint: int) -> list[WorkerFailed]:
    """Start once, train, end; return what failed."""
    d.target("n1")
    while not any(w.is_alive for w in d.machine.crew.workers.values()):
        d.wait(0.5)
    d.warm("n1")
    d.ready()
    d.enter(step=checkpoint)
    for step in range(checkpoint + 1, checkpoint + one.steps + 1):
        d.progress("n1", step)
    if one.is_lost:
        d.lose_agent("n1")
        return d.wanted(WorkerFailed, d.agent_failed("n1") if one.is_killed else [])
    return d.wanted(WorkerFailed, d.exit(d.on("n1"), 1))


@given(TRIES)
@settings(max_examples=examples(300), deadline=None)
def test_net_progress_forgives_and_nothing_else_does(tries: list[Try]) -> None:
    d = Driver()
    checkpoint = best = row = losses = 0
    was_lost = False  # at the last failure
    start: int | None = None  # the first of the row
    trainer = replace(record(), started_s=1.0)
    for one in tries:
        if one.daemon_restarts:
            d, before = Driver(incarnation=d.machine.identity.incarnation + 1), d
            d.now_s = before.now_s
            d.machine.failures.row = decode(encode(before.machine.failures.row), FailureRow)
        checkpoint = 0 if one.state_lost else checkpoint
        if start is not None and checkpoint > start:
            row = losses = 0
        start = checkpoint if start is None or not (row or losses) else start
        before_count = d.machine.failures.row.count
        failed = _run(d, one, checkpoint)
        if checkpoint + one.steps > best:
            best, row, losses, start = checkpoint + one.steps, 0, 0, None
        checkpoint = max(checkpoint, min(checkpoint + one.steps, checkpoint + one.kept))
        losses += one.is_lost and one.is_killed
        if one.is_lost and (losses < 2 or not one.is_killed):
            assert not failed
            assert d.machine.failures.row.count <= before_count
            continue
        assert [f.counts for f in failed] == [True]
        row += 1
        trainer = replace(trainer, failures=trainer.failures + 1)
        is_same, was_lost = row > 1 and not (one.is_lost or was_lost), one.is_lost
        is_over = row >= BUDGET or (is_same and not best)  # the same words before any step
        assert (given_up(d.machine.failures, trainer, POLICY) is not None) == is_over
        if is_over:
            return
