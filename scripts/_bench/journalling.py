"""What a journal costs on this machine: writing decisions, and starting on what is there.

Called by ``bench_journal``.
"""

from __future__ import annotations

import random
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from _bench.site_stream import SiteStream
from bftrainer.daemon.decider import Decider, DecisionFailures, TakenDecision
from bftrainer.daemon.harm.monitor import HarmMonitor
from bftrainer.decide.decision import decide
from bftrainer.decide.policies.base import load_policy
from bftrainer.fleet.pilots.pilots import PilotBook
from bftrainer.fleet.trainers.takeover import remembered
from bftrainer.journal import Journal, PilotRecord, PilotState
from bftrainer.journal.backlog import BATCH
from bftrainer.model.decision import Settings
from bftrainer.site.policy.model import SitePolicy

BETWEEN_S = 3.0  # two journalled decisions, in the mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What decisions of one site cost."""

    n_nodes: int
    n_pending: int
    decisions: int
    whole_bytes: int  # of the first
    ordinary_bytes: float  # of the others, in the mean
    decide_s: float  # processor time, as are the next three
    look_s: float  # finding out that it can be written: the look itself, beside the loop
    before_s: float  # ... the rest, before its requests go out
    after_s: float  # writing, after them


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How long it took to start on a journal."""

    seconds: float
    processor_s: float
    entries: int
    read: int  # of them, those after the last checkpoint
    file_bytes: int


def written(path: Path, n_nodes: int, n_pending: int, steps: int) -> Written:
    """Write so many decisions of a drawn site into a journal."""
    stream = SiteStream(
        n_nodes=n_nodes,
        n_pending=n_pending,
        between_s=BETWEEN_S,
        chance=random.Random(n_nodes + n_pending),  # noqa: S311 - repeatable on purpose
    )
    policy = load_policy("milp")
    decider = Decider(policy, "0" * 64, DecisionFailures())
    looking, before, deciding, after = [], [], [], []
    with Journal.open(path, clock=time.time) as journal:
        journal.begin_incarnation()
        journal.write_beside()
        for _ in range(steps):
            given = stream.look()
            began = time.process_time()
            decider.look_into(given.snapshot)
            looking.append(time.process_time() - began)
            given = decider.sound(given)
            looked_into = time.process_time()
            plan = decide(given, policy)
            decided = time.process_time()
            decision = TakenDecision(input=given, plan=plan, took_s=0.001)
            decider.note(journal, decision, event=None)
            journal.flush()
            after.append(time.process_time() - decided)
            before.append(looked_into - began - looking[-1])
            deciding.append(decided - looked_into)
            stream.took(plan)
        sizes = [_stored(journal, entry.seq) for entry in journal.entries("decision")]
    return Written(
        n_nodes=n_nodes,
        n_pending=n_pending,
        decisions=steps,
        whole_bytes=sizes[0],
        ordinary_bytes=fmean(sizes[1:]),
        decide_s=fmean(deciding),
        look_s=fmean(looking[1:]),
        before_s=fmean(before[1:]),
        after_s=fmean(after[1:]),
    )


def _stored(journal: Journal, seq: int) -> int:
    return len(journal._payload_of(seq) or "")  # noqa: SLF001 - as it is on disk


def restarted(path: Path, entries: int, size: int) -> Start:
    """Add as much as lies between two checkpoints, and start on it as a daemon does."""
    with Journal.open(path, clock=time.time) as journal:
        journal.checkpoint(0.0)
        at = next(iter(journal.newest("checkpoint", 1))).seq
        journal.write_beside()
        for number in range(entries):
            journal.note("filler", {"text": secrets.token_hex(size // 2)})
            if number % 10 == 0:
                [pilot_id] = journal.next_pilot_ids(1)
                journal.note("pilot", {}, pilots=[_pilot(pilot_id)])
            if number % BATCH == 0:
                journal.flush()
    began, used = time.perf_counter(), time.process_time()
    with Journal.open(path, clock=time.time) as journal:
        _adopt(journal)
        seconds, processor_s = time.perf_counter() - began, time.process_time() - used
        [last] = journal.newest("start", 1)
        return Start(
            seconds=seconds,
            processor_s=processor_s,
            entries=last.seq,
            read=last.seq - at,
            file_bytes=path.stat().st_size,
        )


def _pilot(pilot_id: str) -> PilotRecord:
    return PilotRecord(
        pilot_id=pilot_id,
        node=f"nid{pilot_id[1:]}",
        job_id="1234567",
        public_key="k" * 40,
        requested_s=time.time(),
        time_limit_s=14_400.0,
        owner="bft",
        state=PilotState.RUNNING,
    )


def _adopt(journal: Journal) -> None:
    journal.begin_incarnation()
    PilotBook(journal, None, "bft", time.time)  # type: ignore[arg-type]  # nothing is asked of it
    HarmMonitor(journal, SitePolicy(), time.time)
    journal.trainers()
    remembered(journal, Settings(straggler_threshold=0.8), {})
