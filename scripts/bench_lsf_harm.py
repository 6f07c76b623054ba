"""What does a pilot cost an ordinary job on LSF? Measured on a real volclava.

An ordinary job of one host is submitted to an idle host, and to a host whose pilot leaves as soon
as lsb.events shows the job; the arms take turns. Then pilots are launched while mbatchd does not
answer: bsub repeats its request, and every repetition becomes a job. BFTRAINER_VOLCLAVA names the
installed volclava (docs/howto/lsf-site.md); needs root.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from _bench.benchmark import Benchmark, Measured, note
from _bench.waiting import BenchError

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the harness of the tests
from _bench.lsf_lab import TIMEOUT_S, Delay, Lane, Repeated

from tests.support.volclava import PREFIX_VARIABLE, why_not

DISPATCH_S = 1.0  # beside one pass of the scheduler
STALLS_S = (15.0, 3 * TIMEOUT_S)  # the launch waits for its answer; its look for jobs fails, too
HEADINGS = ("MBD_SLEEP_TIME, arm", "trials", "min s", "median s", "max s")


def measure(arguments: argparse.Namespace, measured: Measured) -> None:
    """Measure each setting of the scheduler on a cluster of its own."""
    if problem := why_not():
        raise BenchError(problem)
    prefix = Path(os.environ[PREFIX_VARIABLE]).resolve()
    trials = arguments.trials or (4 if arguments.quick else 15)
    rows: list[Sequence[str]] = []
    for mbd_sleep_s in (2,) if arguments.quick else (2, 10):
        with Lane(prefix, mbd_sleep_s, arguments.seed) as lane:
            _harm(lane, trials, measured, rows)
            if mbd_sleep_s == 2:
                _repetitions(lane, 2 if arguments.quick else 5, measured)
    measured.table("From bsub to the start of an ordinary job", HEADINGS, rows)


def _harm(lane: Lane, trials: int, measured: Measured, rows: list[Sequence[str]]) -> None:
    idle: list[Delay] = []
    pilots: list[Delay] = []
    for number in range(trials):
        note(f"MBD_SLEEP_TIME={lane.mbd_sleep_s}: trial {number + 1} of {trials}")
        idle.append(lane.idle_host())
        pilots.append(lane.pilot_leaves())
    kinds = {
        "idle host": [delay.started_s for delay in idle],
        "pilot leaves when told": [delay.started_s for delay in pilots],
        "  told after": [delay.told_s for delay in pilots if delay.told_s is not None],
        "  pilot has left after": [delay.left_s for delay in pilots if delay.left_s is not None],
    }
    for kind, values in kinds.items():
        figures = (f"{value:.2f}" for value in (min(values), median(values), max(values)))
        rows.append((f"{lane.mbd_sleep_s} s, {kind}", str(len(values)), *figures))
    measured.results[f"mbd_{lane.mbd_sleep_s}_s"] = kinds
    measured.at_most(
        f"median added delay, MBD_SLEEP_TIME={lane.mbd_sleep_s}",
        median(kinds["pilot leaves when told"]) - median(kinds["idle host"]),
        lane.mbd_sleep_s + DISPATCH_S,
    )


def _repetitions(lane: Lane, trials: int, measured: Measured) -> None:
    found: list[Repeated] = []
    for number in range(trials):
        note(f"mbatchd is stopped: trial {number + 1} of {trials}")
        found.append(lane.submit_to_nobody(STALLS_S[number % len(STALLS_S)]))
    measured.table(
        f"One launch while mbatchd was stopped for {STALLS_S[0]:g} or {STALLS_S[1]:g} s",
        ("the adapter said", "jobs made", "left after one poll", "agents started"),
        [(one.said, str(one.n_jobs), str(one.n_left), str(one.n_agents)) for one in found],
    )
    measured.results["repeated"] = [
        {"said": one.said, "jobs": one.n_jobs, "left": one.n_left, "agents": one.n_agents}
        for one in found
    ]
    measured.at_least("jobs of one bsub", min(one.n_jobs for one in found), 2, unit="")
    measured.at_most("jobs left after one poll", max(one.n_left for one in found), 1, unit="")
    # The daemon was told that it is not known whether there is a pilot: so there must be no agent.
    unknown = [one.n_agents for one in found if one.said != "accepted"]
    if unknown:
        measured.at_most("agents of an unanswered launch", max(unknown), 0, unit="")


BENCHMARK = Benchmark(
    name="lsf_harm",
    title="Harm on LSF (volclava)",
    about=__doc__,
    quick="MBD_SLEEP_TIME=2 alone, few trials",
    measure=measure,
    options={
        "--trials": {"type": int, "help": "per arm and setting"},
        "--seed": {"type": int, "default": 1, "help": "of the pauses between trials"},
    },
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
