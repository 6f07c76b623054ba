"""What does writing down cost a daemon of a large site?

Real decisions of a drawn site (``_bench.site_stream``) are written into a real journal on this
machine's disk: bytes of each, processor time before the requests of a decision go out and
after, and how long a daemon takes to start on what is left of a year.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from _bench.site_stream import SiteStream
from _bench.targets import Target, exit_code, print_targets, write_json

from bftrainer.actuate.pilots import PilotBook
from bftrainer.actuate.remembered import remembered
from bftrainer.decide.decision import decide
from bftrainer.decide.policies.base import load_policy
from bftrainer.deciding import Decider
from bftrainer.harm.monitor import HarmMonitor
from bftrainer.journal import Journal, PilotRecord, PilotState, retention
from bftrainer.journal.background_writer import BATCH
from bftrainer.journal.differences import LONGEST_CHAIN
from bftrainer.model.decision import Settings
from bftrainer.observability.decision_failures import DecisionFailures
from bftrainer.policy.model import SitePolicy

BETWEEN_S = 3.0  # two journalled decisions, in the mean
SIZES = (1_000, 5_000)
QUEUES = (0, 1_000, 10_000)
DECISION_BYTES = 20_000.0
BEFORE_S = 0.005
YEAR_GB = 20.0
RESTART_S = 5.0
SHORT_BYTES = 1_000.0  # what is written of trainers and pilots, per decision


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


def main() -> int:
    """Measure; return 0 when every target is met."""
    asked = _arguments()
    steps, entries = (
        (6, 500) if asked.quick else (LONGEST_CHAIN, int(0.85 * retention.ENTRIES_BETWEEN))
    )
    sizes, queues = (SIZES[:1], QUEUES[:2]) if asked.quick else (SIZES, QUEUES)
    found = []
    with tempfile.TemporaryDirectory(prefix="bft-journal-") as place:
        for n_nodes in sizes:
            for n_pending in queues:
                path = Path(place) / f"{n_nodes}-{n_pending}" / "journal.db"
                found.append(_written(path, n_nodes, n_pending, steps))
                print(found[-1], file=sys.stderr, flush=True)
        size = int(max(w.ordinary_bytes for w in found))
        starts = [_restarted(path, entries, size) for _ in range(2)]
    targets = [target for written in found for target in _targets(written)]
    targets += [_year(max(found, key=_each_bytes)), *map(_start, starts)]
    print_targets("What writing down costs", targets)
    if asked.json:
        results = {"written": [asdict(w) for w in found], "starts": [asdict(s) for s in starts]}
        write_json(asked.json, "journal", results, targets)
    return exit_code(targets)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="1,000 nodes, few decisions")
    parser.add_argument("--json", type=Path, help="write samples and verdicts here")
    return parser.parse_args()


def _targets(found: Written) -> list[Target]:
    where = f"{found.n_nodes} nodes, {found.n_pending} pending"
    return [
        Target(
            name=f"a decision, {where}",
            measured=found.ordinary_bytes,
            limit=DECISION_BYTES,
            relation="<=",
            unit="bytes",
            note=f"whole {found.whole_bytes / 1e3:.0f} kB",
        ),
        Target(
            name=f"before its requests, {where}",
            measured=found.before_s,
            limit=BEFORE_S,
            relation="<=",
            note=f"look {1e3 * found.look_s:.0f} ms, after {1e3 * found.after_s:.0f} ms, "
            f"decide {1e3 * found.decide_s:.0f} ms",
        ),
    ]


def _year(found: Written) -> Target:
    """What lies on disk in the end, if the site with the longest entries never rests."""
    each = _each_bytes(found)
    kept = 86_400.0 / BETWEEN_S * SitePolicy().journal_days + retention.ENTRIES_BETWEEN
    return Target(
        name=f"after a year, {found.n_nodes} nodes, {found.n_pending} pending",
        measured=each * kept / 1e9,
        limit=YEAR_GB,
        relation="<=",
        unit="GB",
        note=f"a decision every {BETWEEN_S:g} s, {SitePolicy().journal_days} days kept",
    )


def _each_bytes(found: Written) -> float:
    """What a decision adds in the long run, with its share of those that are written whole."""
    return found.ordinary_bytes + found.whole_bytes / LONGEST_CHAIN + SHORT_BYTES


def _start(found: Start) -> Target:
    return Target(
        name=f"start, {found.entries} entries there",
        measured=found.seconds,
        limit=RESTART_S,
        relation="<=",
        note=f"{found.read} read of {found.file_bytes / 1e6:.0f} MB; "
        f"{found.processor_s:.1f} s of processor time",
    )


def _written(path: Path, n_nodes: int, n_pending: int, steps: int) -> Written:
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
            decider.note(journal, given, plan, event=None, took_ms=1.0)
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


def _restarted(path: Path, entries: int, size: int) -> Start:
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


if __name__ == "__main__":
    sys.exit(main())
