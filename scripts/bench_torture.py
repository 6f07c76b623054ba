"""Does anybody notice when others mean harm?

Several hosts (tests/support/hosts), a real Slurm with hook, a daemon and submit helper for all
users. Eve, an ordinary user with processes on every host, races for the pairs of gloo, holds and
feeds all ports of another user slowly, floods and stops what the helper starts as her, plants
files, pipes and links in a shared directory, lies with an agent's key, submits odd jobs and odd
trainers, and drops connections at the daemon's socket. Meanwhile ada trains, submits and runs
studies, and bob's ordinary jobs take nodes from ada. After each attack its processor time is burnt
on the same hosts by busy loops: kept is the share of ada's steps per second under attack of those
beside the load. ``--floods`` has each flood alone, and measures what requests of another user take
meanwhile. Prints every target with ``met`` or ``missed``; exits 1 when one is missed.
"""

from __future__ import annotations

import argparse
import resource
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the tests' hosts

from _bench.benchmark import Benchmark, Measured
from _bench.choosing import refuse_unknown
from _bench.stats import quantile, ratio_interval
from _bench.torture import people
from _bench.torture.attack import FLOODS, NAMES
from _bench.torture.probe import memory_mb
from _bench.torture.site import Site, site
from _bench.torture.slices import ATTACK, HANG_S, LOAD, PEACE, Slice, floods, slices
from _bench.waiting import BenchError

from tests.support.hosts import HostError
from tests.support.hosts.why_not import why_not

ANSWER_S = 1.0
KEPT = 0.9
ADDED_S = 1.0
CHILD_MB = 512.0  # of the helper; a verb needs a third of it
QUICK = (2, 15.0)
SLICE_S = 30.0
FLOOD_S = 60.0
BENCHMARK = Benchmark(
    name="torture",
    title="While others mean harm",
    about=__doc__,
    quick="two minutes; shows that it works",
    options={
        "--minutes": {"type": float, "default": 10.0, "help": "of attacks (default 10)"},
        "--only": {"action": "append", "help": f"these attacks, of: {', '.join(NAMES)}"},
        "--floods": {"action": "store_true", "help": "each flood alone, and who else must wait"},
        "--keep": {"type": Path, "help": "copy journal and logs here"},
        "--size": {"type": int, "default": 3, "help": "of the innocent, in nodes (default 3)"},
    },
)


def measure(asked: argparse.Namespace, measured: Measured) -> None:
    """Watch the innocent by turns while others mean harm, and while they only use processors."""
    refuse_unknown(asked.only or (), NAMES)
    if why := why_not():
        raise BenchError(why)
    pairs, length_s = QUICK if asked.quick else (round(60 * asked.minutes / SLICE_S), SLICE_S)
    try:
        with site(asked.size, asked.only or (FLOODS if asked.floods else ())) as hosts:
            if asked.floods:
                measured.results["benchmark"] = "torture_floods"  # a result of its own
                people.prepare(hosts)
                _measure_floods(hosts, asked.only or FLOODS, measured)
            else:
                _measure(hosts, pairs, length_s, measured)
            if asked.keep:
                hosts.keep(asked.keep)
    except (AssertionError, HostError) as problem:
        raise BenchError(str(problem)) from problem


def _measure(there: Site, pairs: int, length_s: float, measured: Measured) -> None:
    people.prepare(there)
    (pid,) = there.daemon.pids()
    before_mb = memory_mb(pid)
    periods: list[Slice] = []
    for period in slices(there, pairs, length_s):
        periods.append(period)
        measured.results["slices"] = [asdict(period) for period in periods]
    lives = there.daemon.pids() == [pid]
    measured.at_least("the daemon lives", float(lives), 1, "")
    by_kind: dict[str, list[Slice]] = {PEACE: [], ATTACK: [], LOAD: []}
    for period in periods:
        by_kind[period.kind].append(period)
    _judge_speed(by_kind, measured)
    _judge_answers(by_kind, measured)
    _judge_harm(there, by_kind[ATTACK], measured)
    measured.results |= {
        "daemon_mb": (before_mb, memory_mb(pid)) if lives else None,
        "log_bytes": there.daemon.log.stat().st_size,
    }
    measured.tables += _words(by_kind)


def _measure_floods(there: Site, names: Sequence[str], measured: Measured) -> None:
    """Judge what requests of another user take during each flood alone."""
    (pid,) = there.daemon.pids()
    for flood in floods(there, names, FLOOD_S):
        answers_s = flood.seen.answers_s
        waits_s = flood.done.waits_s
        answered = Counter[str]()
        for ended in flood.eve.values():
            answered.update(ended.answers)
        measured.at_most(
            f"{flood.kind}: answers to another user, p95",
            quantile(answers_s, 0.95),
            ANSWER_S,
            note=f"{len(answers_s)} answers, {flood.seen.unanswered} missing, worst"
            f" {max(answers_s):.2f} s; {flood.rate:.1f} steps/s of the innocent",
        )
        measured.tables += [
            f"{flood.kind}: {flood.cpu:.2f} processors of eve's; ordinary jobs waited"
            f" {', '.join(f'{wait_s:.1f}' for wait_s in waits_s)} s; "
            + ", ".join(f"{count} {what}" for what, count in answered.most_common())
        ]
        measured.results.setdefault("floods", []).append(asdict(flood))
    measured.at_least("the daemon lives", float(there.daemon.pids() == [pid]), 1, "")


def _judge_speed(by_kind: dict[str, list[Slice]], measured: Measured) -> None:
    attack = [[period.rate] for period in by_kind[ATTACK]]
    load = [[period.rate] for period in by_kind[LOAD]]
    share, low, high = ratio_interval(attack, load, of=mean)
    note = f"{low:.3f} to {high:.3f} (95 %), {len(attack)} pairs of slices"
    measured.at_least("steps of the innocent", share, KEPT, "", note)
    measured.results["kept"] = (share, low, high)
    gaps = [period.gap_s for period in by_kind[ATTACK]]
    hangs = sum(gap_s > HANG_S for gap_s in gaps)
    measured.at_most("hangs", hangs, 0, "", f"longest without a step {max(gaps):.1f} s")


def _judge_answers(by_kind: dict[str, list[Slice]], measured: Measured) -> None:
    answers = [s for period in by_kind[ATTACK] for s in period.seen.answers_s]
    missing = sum(period.seen.unanswered for period in by_kind[ATTACK])
    measured.at_most("socket answers, p99", quantile(answers, 0.99), ANSWER_S,
                     note=f"{len(answers)} answers, {missing} missing")  # fmt: skip
    fronts = [s for period in by_kind[ATTACK] for s in period.fronts_s]
    measured.at_most("Horovod's rendezvous answers, p99",
                     quantile(fronts, 0.99) if fronts else HANG_S, ANSWER_S,
                     note=f"{len(fronts)} answers")  # fmt: skip
    waits = {kind: _waits(periods) for kind, periods in by_kind.items()}
    if waits[PEACE] and waits[ATTACK]:
        added_s = median(waits[ATTACK]) - median(waits[PEACE])
        note = f"{len(waits[ATTACK])} jobs, {len(waits[PEACE])} in peace"
        measured.at_most("ordinary job: added wait, median", added_s, ADDED_S, note=note)


def _waits(periods: Sequence[Slice]) -> list[float]:
    return [wait_s for period in periods for wait_s in period.done.waits_s]


def _judge_harm(there: Site, attacks: Sequence[Slice], measured: Measured) -> None:
    doings = [period.done for period in attacks]
    n_sent = sum(len(doing.submitted) for doing in doings)
    n_refused = sum(doing.refused for doing in doings)
    child_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    marks = people.marks(there)
    harm = {
        "wrong sums of the innocent": there.wrong_sums,
        "failures it is charged": there.view().record.failures,
        "submissions lost": sum(len(doing.lost) for doing in doings),
        "submissions refused": n_refused,
        "verbs that hang": sum(len(doing.hanging) for doing in doings),
        "verbs with tracebacks or control characters": sum(len(doing.ugly) for doing in doings),
        "foreign code run, links followed": len(marks),
    }
    measured.results |= {"harm": harm, "marks": marks}
    for name, count in harm.items():
        note = f"of {n_sent + n_refused}" if name.startswith("submissions") else ""
        measured.at_most(name, count, 0, "", note)
    measured.at_most("largest helper", child_mb, CHILD_MB, "MB", "of all processes started here")


def _words(by_kind: dict[str, list[Slice]]) -> Iterator[str]:
    for kind, periods in by_kind.items():
        waits = _waits(periods) or [0.0]
        yield (
            f"{kind}: {sum(period.seen.span_s for period in periods):.0f} s, "
            f"{mean(period.rate for period in periods):.2f} steps/s, "
            f"{mean(period.cpu for period in periods):.2f} processors of eve's, "
            f"jobs waited {median(waits):.2f} s (worst {max(waits):.2f})"
        )
    answers: dict[str, Counter[str]] = {}
    for period in by_kind[ATTACK]:
        for name, ended in period.eve.items():
            answers.setdefault(name, Counter()).update(ended.answers)
    for name, counts in answers.items():
        yield f"{name}: " + ", ".join(f"{n} {what}" for what, n in counts.most_common())
    for period in by_kind[ATTACK]:
        for problem in (*period.done.lost, *period.done.hanging, *period.done.ugly):
            yield f"[yellow]{problem!r}[/]"


if __name__ == "__main__":
    sys.exit(BENCHMARK.main(measure))
