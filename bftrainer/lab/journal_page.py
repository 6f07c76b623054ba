"""The page of a journal: its decisions, folded as the daemon folded them.

A journal has no decision that changed nothing, so rescales and ends of trainers say who trains
until the next one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bftrainer.api.documents import document
from bftrainer.api.page.source import Slow
from bftrainer.daemon.accounts import make_report, read
from bftrainer.daemon.decider import DECISION
from bftrainer.daemon.explain.sizes import explain_trainer
from bftrainer.daemon.harm import monitor
from bftrainer.journal.decisions import DecisionReader
from bftrainer.journal.journal import Journal
from bftrainer.journal.projection import JournalEntry
from bftrainer.model.decision import DecisionRecord
from bftrainer.model.errors import UsageError
from bftrainer.model.reports import Asked
from bftrainer.model.study import Seen
from bftrainer.model.timeline import NodeUses, TimelineView
from bftrainer.model.trainer import TrainerRecord
from bftrainer.model.views import Explanation, StatusView, TrainerView, idle_nodes
from bftrainer.site.policy.model import SitePolicy

_NOTHING_NEW_S = 10.0
_MEMBERS = ("rescaled", "parked", "finished", "failed", "cancelled")  # kinds of entries


class JournalSource:
    """A journal as it was when it was opened."""

    is_live = False

    def __init__(self, path: Path) -> None:
        """Read all; about 6 ms for each decision on a thousand nodes.

        Raises:
            BftError: BFT-1112, there is no decision in it; BFT-22xx.
        """
        self.title = f"bftrainer, journal {path.name}"
        fold, n_decisions = NodeUses(keep_s=math.inf, most=10_000_000), 0
        last: DecisionRecord | None = None
        reader = DecisionReader()
        with Journal.open(path, clock=time.time, is_verified=False) as journal:
            for entry in journal.entries():
                if entry.kind == DECISION and (new := reader.read_if(entry)) is not None:
                    last, n_decisions = new, n_decisions + 1
                elif last is not None and entry.kind in _MEMBERS:
                    last = _with_members(last, entry)
                else:
                    continue
                fold.saw(last.input, last.plan)
            if last is None:
                raise UsageError(
                    "BFT-1112",
                    f"The journal {path} has no decision that this release can read.",
                    "Name the journal.db of a daemon that has run.",
                )
            self._fold, self._incarnation, self._last = fold, journal.incarnation, last
            self._status = _status(last, journal.trainers(), n_decisions)
            self._slow = _reports(journal, fold.now_s)

    def timeline(self, seen: Seen | None) -> TimelineView:
        """Return the uses of all nodes; nothing is ever new."""
        if seen is not None:
            time.sleep(_NOTHING_NEW_S)
        return self._fold.timeline(self._incarnation, seen.change if seen else None)

    def status(self) -> StatusView:
        """Return the state at the end of the journal."""
        return self._status

    def slow(self) -> dict[str, Slow]:
        """Return harm and harvest."""
        return {name: Slow(every_s=math.inf, ask=part) for name, part in self._slow.items()}

    def explain(self, trainer_id: str) -> Any:
        """Return why a trainer had its size at the last decision, as a document."""
        for view in self._status.trainers:
            if view.record.trainer_id == trainer_id:
                return document("explain", _explained(view, self._last))
        raise UsageError("BFT-1004", f"There is no trainer {trainer_id}.", "Choose another.")

    def study(self, name: str) -> Any:
        """Refuse: a journal's page has no studies."""
        raise UsageError("BFT-1004", f"There is no study {name} here.", "Ask its daemon.")


def _with_members(last: DecisionRecord, entry: JournalEntry) -> DecisionRecord:
    """Return a decision as it would have been with the members that an entry tells of."""
    told = entry.payload
    trainer_id, nodes = told["trainer_id"], told["what"].get("nodes", ())
    training = {n: who for n, who in last.input.training.items() if who != trainer_id}
    training |= dict.fromkeys(nodes, trainer_id)
    now_s = max(entry.at_s, last.input.now_s)
    return replace(last, input=replace(last.input, now_s=now_s, training=training))


def _status(
    last: DecisionRecord, trainers: tuple[TrainerRecord, ...], n_decisions: int
) -> StatusView:
    given, nodes = last.input, last.input.snapshot.nodes or ()
    held_nodes = [pilot.node for pilot in given.pilots if pilot.is_held]
    return StatusView(
        incarnation=0,
        pid=0,
        started_s=0.0,
        batch_system="journal",
        observed="present",
        failures=given.snapshot.failures,
        policy_hash=last.policy_hash,
        nodes_total=len(nodes),
        nodes_idle=idle_nodes(nodes, held_nodes),
        nodes_held=len(held_nodes),
        nodes_requested=len(given.pilots) - len(held_nodes),
        decisions=n_decisions,
        last_decision_ms=last.took_ms,
        last_decision_s=given.now_s,
        rescales=sum(record.rescales for record in trainers),
        give_backs=0,
        preemptions=0,
        trainers=tuple(_view(record, last) for record in trainers),
    )


def _view(record: TrainerRecord, last: DecisionRecord) -> TrainerView:
    def nodes_in(mapping: Any) -> tuple[str, ...]:
        return tuple(sorted(n for n, who in mapping.items() if who == record.trainer_id))

    observed = () if record.state.is_final else nodes_in(last.input.training)
    return TrainerView(
        record=record,
        planned_nodes=() if record.state.is_final else nodes_in(last.plan.assignment),
        requested_nodes=(),
        observed_nodes=observed,
    )


def _explained(view: TrainerView, last: DecisionRecord) -> Explanation:
    given, n_observed = last.input, len(view.observed_nodes)
    return Explanation(
        trainer_id=view.record.trainer_id,
        state=view.record.state.value,
        planned_size=len(view.planned_nodes),
        observed_size=n_observed,
        sentences=explain_trainer(
            view.record,
            last.plan,
            given.settings,
            given.trainers,
            given.snapshot.nodes or (),
            n_observed,
            given.now_s,
        ),
        decision_id=None,
        node_price=0.0,
        gain_of_one_more=None,
        loss_of_one_fewer=None,
    )


def _reports(journal: Journal, until_s: float) -> dict[str, Callable[[], Any]]:
    records, state = monitor.read_records(journal), monitor.read_state(journal)
    rule = monitor.rule_of(SitePolicy())
    harm = monitor.report_of(records, state, rule, since_s=None, until_s=until_s)
    kept = read(journal, until_s)
    spans = {"since_s": kept.since_s, "until_s": kept.until_s}

    def harvest(by: str) -> Any:
        asked = Asked(by=(by,))
        return document("account", make_report(kept.sums.items(), asked, SitePolicy(), **spans))

    return {
        "harm": lambda: document("harm", harm),
        **{f"harvest by {by}": partial(harvest, by) for by in ("day", "user", "account")},
    }
