"""Numbers that are none, of a batch system of another package or of a defect: the daemon lives."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bftrainer.batch.local.adapter import LocalBatchSystem
from bftrainer.batch.local.client import start_server
from bftrainer.daemon.daemon import Daemon
from bftrainer.daemon.journal_replay import KIND, take_again
from bftrainer.daemon.options import DaemonOptions
from bftrainer.daemon.service import DaemonService
from bftrainer.journal.journal import Journal
from bftrainer.model.cluster import Job, Snapshot
from bftrainer.model.decision import DecisionRecord
from bftrainer.model.trainer import MeasuredCosts
from bftrainer.site.policy.model import SitePolicy
from tests.integration.daemon_scripts import SLOW, trainer_spec

POLICY = SitePolicy(poll_interval_s=0.2, min_gap_s=2.0, gap_margin_s=1.0, reserve_nodes_per_type=0)
TIMEOUT_S = 60.0


class OddSystem(LocalBatchSystem):
    """Looks at none of the numbers it passes on."""

    def snapshot(self, *, wants_cycle: bool = True) -> Snapshot:
        seen = super().snapshot(wants_cycle=wants_cycle)
        return replace(seen, jobs=seen.jobs and tuple(map(_odd, seen.jobs)))


def _odd(job: Job) -> Job:
    return replace(job, priority=math.nan) if job.is_ordinary else replace(job, time_limit_s=1e999)


def test_whoever_brings_a_number_that_is_none_is_left_out_by_name(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    with start_server(tmp_path / "local", n_nodes=2, cycle_s=0.5) as server:
        job = server.client.submit(n_nodes=1, limit_s=600, duration_s=600)
        daemon = Daemon(
            DaemonOptions(state_dir=tmp_path / "state", agent_address="127.0.0.1"),
            POLICY,
            OddSystem(server.client),
            serve=DaemonService,
        )
        asyncio.run(_live(daemon, tmp_path))
    with Journal.open(tmp_path / "state" / "journal.db", clock=lambda: 0.0) as journal:
        entries = list(journal.entries(KIND))
    last = entries[-1].payload_as(DecisionRecord)
    assert set(last.plan.memory.left_out) == {"trainer t2", f"request {job}"}
    assert set(last.plan.assignment.values()) == {"t1"}
    why = last.plan.memory.left_out["trainer t2"].reason
    assert "rescale_up_s: must be a finite number, not nan" in why
    assert all(one.is_equal for one in take_again(entries))


async def _live(daemon: Daemon, base: Path) -> None:
    """Run until an innocent trainer has a node, beside one with a number that is none."""
    ready = asyncio.Event()
    running = asyncio.create_task(daemon.run(on_ready=ready.set))

    async def until(condition: Callable[[], object], what: str) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():
                assert not running.done(), f"{what}: {running.exception()}"
                await asyncio.sleep(0.02)

    await until(ready.is_set, "it starts")
    book = daemon.state.plane.trainers
    for name in ("innocent", "odd"):
        book.submit(trainer_spec(base / name, SLOW))
    odd = book.trainers["t2"]
    odd.record = replace(odd.record, costs=MeasuredCosts(rescale_up_s=math.nan))
    book.records["t2"] = odd.record
    await until(lambda: daemon.state.plane.agents.connected, "a pilot comes")
    await until(lambda: book.nodes_of("t1") != ((), ()), "t1 has a worker")
    await until(
        lambda: any(p.start_s for p in daemon.state.pilots.pilots.values()), "a look shows it"
    )
    daemon.stop()
    await running
