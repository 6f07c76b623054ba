"""Finds slow nodes from workers' reports, and journals the verdicts.

One ``SpeedBook`` per daemon. ``trainers`` feeds it and asks whether a trainer's current throughput
may be learnt; decisions get ``speeds``. The decision itself remembers nodes and chooses
replacements (``decide.slow_nodes``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from bftrainer.decide.throughput.stragglers import Field, NodeSlowness, entered, record_report
from bftrainer.fleet.generations.members import Rescaled
from bftrainer.ground.protocol import Progress

LOG = logging.getLogger("bftrainer.speeds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A verdict as the journal keeps it."""

    node: str
    generation: int
    fraction: float  # of the others' throughput, average
    is_slow: bool  # False: it is as fast as the others again


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """A straggler has left; another node trains in its place."""

    node: str
    replacement: str
    generation: int
    fraction: float  # of the straggler, as last published
    pause_s: float


Write = Callable[[str, str, Straggler | Replaced], None]


class SpeedBook:
    """Relative speeds of the workers of each trainer."""

    def __init__(self, threshold: float, write: Write) -> None:
        """Watch for nodes below the threshold, a fraction of the others' throughput; 0: do not."""
        self.threshold, self._write = threshold, write
        self._fields: dict[str, Field] = {}
        self._staying: dict[str, Mapping[str, str]] = {}  # trainer -> straggler -> replacement
        self.found = self.replaced = 0  # since the daemon started

    def on_progress(self, trainer_id: str, node: str, said: Progress) -> bool:
        """Process a report; return whether there is news for decisions."""
        if not self.threshold:
            return False
        before = self._fields.get(trainer_id) or Field(generation=said.generation)
        after = self._fields[trainer_id] = record_report(
            before,
            node,
            generation=said.generation,
            own_s=said.own_s,
            share=said.share,
            threshold=self.threshold,
        )
        if after.standings is before.standings:
            return False  # no comparison: most reports
        is_news = False
        for name, now in after.standings.items():
            was = before.standings.get(name, NodeSlowness())
            if now.is_slow != was.is_slow:
                self._verdict(trainer_id, name, now, said.generation)
            is_news = is_news or now.told != was.told
        return is_news

    def _verdict(self, trainer_id: str, node: str, now: NodeSlowness, generation: int) -> None:
        self.found += now.is_slow
        LOG.info("%s: %s trains at %.2f of the others", trainer_id, node, now.fraction)
        fraction = round(now.fraction, 4)
        verdict = Straggler(
            node=node, generation=generation, fraction=fraction, is_slow=now.is_slow
        )
        self._write(trainer_id, "straggler", verdict)

    def is_uneven(self, trainer_id: str) -> bool:
        """True if a straggler slows the trainer, so its throughput is not typical of its size."""
        field = self._fields.get(trainer_id)
        return field is not None and field.is_uneven(self.threshold)

    def staying(self, trainer_id: str, pairs: Mapping[str, str]) -> None:
        """Set the stragglers of a trainer that stay until their replacement trains."""
        if pairs:
            self._staying[trainer_id] = dict(pairs)
        else:
            self._staying.pop(trainer_id, None)

    def on_rescaled(self, trainer_id: str, done: Rescaled) -> None:
        """Begin a generation."""
        before = self._fields.get(trainer_id) or Field()
        for node, replacement in self._staying.get(trainer_id, {}).items():
            if node in before.standings and node not in done.nodes and replacement in done.nodes:
                self.replaced += 1
                replaced = Replaced(
                    node=node,
                    replacement=replacement,
                    generation=done.generation,
                    fraction=before.standings[node].told,
                    pause_s=done.pause_s,
                )
                self._write(trainer_id, "straggler-replaced", replaced)
        self._fields[trainer_id] = entered(before, done.generation, done.nodes)

    def forget(self, trainer_id: str) -> None:
        """Drop a trainer that is parked or final."""
        self._fields.pop(trainer_id, None)
        self._staying.pop(trainer_id, None)

    def speeds(self, remembered: Collection[str]) -> dict[str, float]:
        """Return the fractions of slow nodes; 1.0 for remembered ones that are no longer slow."""
        fractions: dict[str, float] = {}
        for field in self._fields.values():
            quick = field.quick(self.threshold) & set(remembered)
            fractions |= dict.fromkeys(sorted(quick), 1.0)
            fractions |= field.slow()
        return fractions
