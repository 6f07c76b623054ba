"""Slices of time: peace, then an attack and a burning of as much processor time by turns.

What drifts meanwhile meets both. A slice goes on until the innocent trainer is whole again, at
most ``RECOVERY_S``, so that no attack is paid by the slice after it.
"""

from __future__ import annotations

import bisect
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from _bench.benchmark import note
from _bench.torture.eve import Ended
from _bench.torture.people import Done, People
from _bench.torture.probe import Probe, Seen
from _bench.torture.site import Site
from tests.support.hosts.own_daemon import Update, updates

PEACE, ATTACK, LOAD = "peace", "attack", "load"
RECOVERY_S = 60.0
HANG_S = 60.0  # without a step


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One of them, and what was seen in it."""

    kind: str
    seen: Seen
    done: Done
    steps: int = 0
    gap_s: float = 0.0  # longest time without a step
    fronts_s: list[float] = field(default_factory=list)  # until Horovod's rendezvous answered
    eve: dict[str, Ended] = field(default_factory=dict)  # attack -> sum of all hosts

    @property
    def rate(self) -> float:
        """Steps of the innocent per second."""
        return self.steps / self.seen.span_s

    @property
    def cpu(self) -> float:
        """Processors that eve used, in the mean."""
        return sum(ended.cpu_s for ended in self.eve.values()) / self.seen.span_s


def slices(site: Site, pairs: int, length_s: float) -> Iterator[Slice]:
    """Peace, twice as long, and then pairs of an attack and its load."""
    for number, kind in enumerate((PEACE, *(ATTACK, LOAD) * pairs)):
        yield _slice(site, kind, number, 2 * length_s if kind == PEACE else length_s)


def floods(site: Site, names: Sequence[str], length_s: float) -> Iterator[Slice]:
    """Peace, and then each of these attacks alone; a slice's kind is the attack's name."""
    for number, name in enumerate((PEACE, *names)):
        word = PEACE if name == PEACE else f"{ATTACK} {name}"
        yield replace(_slice(site, word, number, length_s), kind=name)


def _slice(site: Site, kind: str, number: int, length_s: float) -> Slice:
    probe = Probe(site.socket, site.innocent)
    _all(site, kind)
    people = People(site, number, time.monotonic() + length_s)
    try:
        sight = probe.watch(
            lambda s, n: people.have_done and s > length_s + RECOVERY_S * (n < site.size)
        )
        doings = people.end()
    finally:
        eve = _all(site, "rest") if kind != PEACE else {}
    steps, gap_s = steps_in(updates(site.ada.records()), sight)
    period = Slice(kind=kind, seen=sight, done=doings, eve=eve, fronts_s=_fronts(site, sight),
                   steps=steps, gap_s=gap_s)  # fmt: skip
    note(f"{kind}: {period.rate:.2f} steps/s on {sight.node_seconds / sight.span_s:.2f} nodes for "
         f"{sight.span_s:.0f} s, {period.cpu:.2f} processors of eve's")  # fmt: skip
    return period


def _all(site: Site, word: str) -> dict[str, Ended]:
    """Tell eve on all hosts; the sum of what she says."""
    if word == PEACE:
        return {}
    for eve in site.eves:
        eve.tell({LOAD: "burn"}.get(word, word))
    cpu_s, answers = defaultdict[str, float](float), dict[str, Counter[str]]()
    for eve in site.eves:
        for name, ended in eve.done().items():
            cpu_s[name] += ended.cpu_s
            answers.setdefault(name, Counter()).update(ended.answers)
    return {name: Ended(cpu_s=cpu_s[name], answers=dict(answers[name])) for name in answers}


def steps_in(found: Sequence[Update], seen: Seen) -> tuple[int, float]:
    """Return steps beyond all earlier ones, and the longest time without one, of a slice."""
    times: list[float] = []
    highest = 0
    for update in found:
        if update.step > highest:
            highest = update.step
            times.append(update.at_s)
    first, last = seen.began_s, seen.began_s + seen.span_s
    begin, end = bisect.bisect_left(times, first), bisect.bisect_right(times, last)
    inside = times[begin:end]
    gaps = [later - earlier for earlier, later in pairwise([first, *inside, last])]
    return len(inside), max(gaps)


def _fronts(site: Site, seen: Seen) -> list[float]:
    lines = (site.ada.directory / "front.log").read_text().splitlines()
    times_s = []
    for line in lines:
        at_s, took_s = map(float, line.split())
        if seen.began_s <= at_s < seen.began_s + seen.span_s:
            times_s.append(took_s)
    return times_s
