"""The page of a journal: what its daemons noted of nodes, added to the same fold.

Journals of earlier releases have no such notes, and no decision that changed nothing: there
decisions are folded, and entries of trainers and pilots say what each node did until the next one.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bftrainer.api.documents import document
from bftrainer.api.page.source import Slow, log_document
from bftrainer.daemon.account_report import make_report
from bftrainer.daemon.accounts import read
from bftrainer.daemon.decider import DECISION
from bftrainer.daemon.explain.sizes import explain_trainer
from bftrainer.daemon.explain.trainers import planned_speed
from bftrainer.daemon.harm import monitor
from bftrainer.daemon.harm.book import rule_of
from bftrainer.daemon.uses import CURVES
from bftrainer.daemon.uses import KIND as USES
from bftrainer.journal.decisions import DecisionReader
from bftrainer.journal.journal import Journal
from bftrainer.journal.projection import JournalEntry, PilotState
from bftrainer.model.cluster import node_of
from bftrainer.model.decision import DecisionRecord, PilotView
from bftrainer.model.errors import ExitCode, UsageError
from bftrainer.model.lookups import by_pilot
from bftrainer.model.progress import CurvesNote
from bftrainer.model.reports import Asked
from bftrainer.model.study import Seen
from bftrainer.model.timeline import NodeUses, TimelineView, UsesNote
from bftrainer.model.trainer import TrainerRecord
from bftrainer.model.views import (
    Explanation,
    StatusView,
    TrainerView,
    idle_nodes,
    lent_totals,
    nodes_of,
)
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
        with Journal.open(path, clock=time.time) as journal:
            curved = frozenset(entry.incarnation for entry in journal.entries(CURVES))
            history = _History(_noted_from_the_first(journal), curved)
            for entry in journal.entries():
                history.add(entry)
            if history.last is None:
                raise UsageError(
                    "BFT-1112",
                    f"The journal {path} has no decision that this release can read.",
                    "Name the journal.db of a daemon that has run.",
                )
            self._fold, self._incarnation = history.fold, journal.incarnation
            self._last = history.last
            self._status = _status(history, history.last, journal.trainers())
            self._slow = _reports(journal, self._fold.now_s)

    def timeline(self, seen: Seen | None) -> TimelineView:
        """Return the uses of all nodes; nothing is ever new."""
        if seen is not None:
            time.sleep(_NOTHING_NEW_S)
        return self._fold.timeline(self._incarnation, None if seen is None else seen.change)

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
        cause = f"There is no trainer {trainer_id}."
        raise UsageError("BFT-1004", cause, "Choose another.", exit_code=ExitCode.NOT_FOUND)

    def study(self, name: str) -> Any:
        """Refuse: a journal's page has no studies."""
        cause = f"There is no study {name} here."
        raise UsageError("BFT-1004", cause, "Ask its daemon.", exit_code=ExitCode.NOT_FOUND)

    def log(self, trainer_id: str) -> Any:
        """Return none: a journal says only where logs were."""
        return log_document([f"'bftrainer logs {trainer_id}' shows it, if its daemon runs."])


def _noted_from_the_first(journal: Journal) -> frozenset[int]:
    """Return the incarnations whose first note is in the journal; older entries are removed.

    What such a daemon wrote before it is of no use: entries bear the time at which they came to the
    disk, which may be after that of the first decision.
    """
    firsts: dict[int, bool] = {}
    for entry in journal.entries(USES):
        if entry.incarnation not in firsts:
            note = entry.payload_if(UsesNote)
            firsts[entry.incarnation] = note is not None and note.is_whole
    return frozenset(number for number, is_whole in firsts.items() if is_whole)


class LossCounts(NamedTuple):
    """How often a daemon gave a node back, and lost one to the batch system."""

    give_backs: int
    preemptions: int


class _History:
    """The entries of a journal, one after the other."""

    def __init__(self, noted: Collection[int], curved: Collection[int]) -> None:
        """``noted``: incarnations of which notes tell all uses; ``curved``: and all curves."""
        self._noted, self._curved = noted, curved
        self.fold = NodeUses(keep_s=math.inf, most=10_000_000)
        self.last: DecisionRecord | None = None
        self.n_decisions = 0
        self._reader = DecisionReader()
        self._incarnation: int | None = None
        self._is_noted = False  # this daemon notes what nodes are used for
        self._states: dict[str, PilotState] = {}  # of pilots, as last written
        self._counts: dict[int, LossCounts] = {}  # by incarnation

    @property
    def counts(self) -> LossCounts:
        """Those of all daemons."""
        counts = self._counts.values()
        return LossCounts(
            give_backs=sum(count.give_backs for count in counts),
            preemptions=sum(count.preemptions for count in counts),
        )

    def add(self, entry: JournalEntry) -> None:
        """Fold one entry."""
        has_curves = entry.incarnation in self._curved
        if entry.trainers and not has_curves:
            self.fold.touch(entry.at_s, entry.trainers)
        if entry.kind == CURVES and (points := entry.payload_if(CurvesNote)) is not None:
            self.fold.add_curves(points)
        if entry.incarnation != self._incarnation:
            self._incarnation = entry.incarnation
            self._is_noted = entry.incarnation in self._noted
            self.fold.is_away()
        if entry.kind == USES and (note := entry.payload_if(UsesNote)) is not None:
            with contextlib.suppress(ValueError):  # of a later release
                self.fold.add(note)
                self._is_noted = True
                self._counts[entry.incarnation] = LossCounts(note.give_backs, note.preemptions)
        elif entry.kind == DECISION and (decision := self._reader.read_if(entry)) is not None:
            self.last, self.n_decisions = decision, self.n_decisions + 1
            if not has_curves:
                self.fold.touch(decision.input.now_s, decision.input.trainers)
            if self._is_noted:
                self.fold.passes(decision.input.now_s)
                self.fold.plans(decision.input, decision.plan)
            else:
                self.fold.saw(decision.input, decision.plan)
        elif self.last is not None and not self._is_noted:
            self._follow(self.last, entry)

    def _follow(self, last: DecisionRecord, entry: JournalEntry) -> None:
        """Tell from an entry of trainers or pilots what the next decision would have seen."""
        if entry.pilots:
            self._count(entry)
            last = _with_pilots(last, entry)
        elif entry.kind in _MEMBERS:
            last = _with_members(last, entry)
        else:
            return
        self.last = last
        self.fold.saw(last.input, last.plan)

    def _count(self, entry: JournalEntry) -> None:
        """Count what no note has: pilots asked to leave for a job, and those that were taken.

        Taken: one that ran, ended before its time limit, and was not asked to.
        """
        give_backs, preemptions = self._counts.get(entry.incarnation, (0, 0))
        for_jobs = set[str]()
        if self.last is not None:
            for release in self.last.plan.releases:
                if release.for_job:
                    for_jobs.add(release.pilot_id)
        for pilot in entry.pilots:
            before = self._states.get(pilot.pilot_id)
            self._states[pilot.pilot_id] = pilot.state
            if pilot.state is PilotState.CANCELLED and before is not PilotState.CANCELLED:
                give_backs += pilot.pilot_id in for_jobs
            limit_s = pilot.requested_s + pilot.time_limit_s
            if pilot.state is PilotState.ENDED and before is PilotState.RUNNING:
                preemptions += pilot.ended_s is not None and pilot.ended_s < limit_s
        self._counts[entry.incarnation] = LossCounts(give_backs, preemptions)


def _with_pilots(last: DecisionRecord, entry: JournalEntry) -> DecisionRecord:
    """Return a decision as it would have been with the pilots of an entry."""
    records = by_pilot(entry.pilots)
    pilots = by_pilot(last.input.pilots)
    training = dict(last.input.training)
    for pilot_id, record in records.items():
        if record.state is PilotState.ENDED:
            pilots.pop(pilot_id, None)
            training.pop(record.node, None)
            continue
        view = pilots.get(pilot_id) or PilotView(
            pilot_id=pilot_id,
            node=record.node,
            requested_s=record.requested_s,
            is_held=False,
            part=record.part,
        )
        pilots[pilot_id] = replace(
            view,
            is_held=view.is_held or record.state is PilotState.RUNNING,
            is_leaving=view.is_leaving or record.state is PilotState.CANCELLED,
        )
    now_s = max(entry.at_s, last.input.now_s)
    facts = replace(
        last.input, now_s=now_s, training=training, pilots=tuple(pilots[i] for i in sorted(pilots))
    )
    return replace(last, input=facts)


def _with_members(last: DecisionRecord, entry: JournalEntry) -> DecisionRecord:
    """Return a decision as it would have been with the members that an entry tells of."""
    payload = entry.payload
    trainer_id, nodes = payload["trainer_id"], payload["what"].get("nodes", ())
    training = {n: trainer for n, trainer in last.input.training.items() if trainer != trainer_id}
    training |= dict.fromkeys(nodes, trainer_id)
    now_s = max(entry.at_s, last.input.now_s)
    return replace(last, input=replace(last.input, now_s=now_s, training=training))


def _status(
    history: _History, last: DecisionRecord, trainers: tuple[TrainerRecord, ...]
) -> StatusView:
    facts, nodes = last.input, last.input.snapshot.nodes or ()
    give_backs, preemptions = history.counts
    n_pilots, _ = nodes_of(pilot.node for pilot in facts.pilots)
    n_held, _ = nodes_of(pilot.node for pilot in facts.pilots if pilot.is_held)
    held_nodes = {node_of(pilot.node) for pilot in facts.pilots if pilot.is_held}
    held_gpus = requested_gpus = 0
    for pilot in facts.pilots:
        if pilot.part is not None and pilot.is_held:
            held_gpus += pilot.part.gpus
        elif pilot.part is not None:
            requested_gpus += pilot.part.gpus
    return StatusView(
        incarnation=0,
        pid=0,
        started_s=0.0,
        batch_system="journal",
        observed="present",
        failures=facts.snapshot.failures,
        policy_hash=last.policy_hash,
        nodes_total=len(nodes),
        nodes_idle=idle_nodes(nodes, held_nodes),
        nodes_held=n_held,
        nodes_requested=n_pilots - n_held,
        decisions=history.n_decisions,
        last_decision_ms=last.took_ms,
        last_decision_s=facts.now_s,
        rescales=sum(record.rescales for record in trainers),
        give_backs=give_backs,
        preemptions=preemptions,
        trainers=tuple(_view(record, last) for record in trainers),
        lent_gpus=lent_totals(nodes, held_gpus, requested_gpus),
    )


def _view(record: TrainerRecord, last: DecisionRecord) -> TrainerView:
    def nodes_in(mapping: Any) -> tuple[str, ...]:
        return tuple(sorted(n for n, trainer in mapping.items() if trainer == record.trainer_id))

    observed_nodes: tuple[str, ...] = ()
    planned_nodes: tuple[str, ...] = ()
    if not record.state.is_final:
        observed_nodes = nodes_in(last.input.training)
        planned_nodes = nodes_in(last.plan.assignment)
    return TrainerView(
        record=record,
        planned_nodes=planned_nodes,
        planned_samples_per_s=planned_speed(record, last.input.settings, len(planned_nodes)),
        requested_nodes=(),
        observed_nodes=observed_nodes,
    )


def _explained(view: TrainerView, last: DecisionRecord) -> Explanation:
    facts, n_observed = last.input, len(view.observed_nodes)
    return Explanation(
        trainer_id=view.record.trainer_id,
        state=view.record.state.value,
        planned_size=len(view.planned_nodes),
        observed_size=n_observed,
        sentences=explain_trainer(
            view.record,
            last.plan,
            facts.settings,
            facts.trainers,
            facts.snapshot.nodes or (),
            n_observed,
            facts.now_s,
        ),
        decision_id=None,
        node_price=0.0,
        gain_of_one_more=None,
        loss_of_one_fewer=None,
    )


def _reports(journal: Journal, until_s: float) -> dict[str, Callable[[], Any]]:
    records, state = monitor.read_records(journal), monitor.read_state(journal)
    rule = rule_of(SitePolicy())
    harm = monitor.report_of(records, state, rule, since_s=None, until_s=until_s)
    accounts = read(journal, until_s)
    spans = {"since_s": accounts.since_s, "until_s": accounts.until_s}

    def harvest(grouping: str) -> Any:
        question = Asked(by=(grouping,))
        return document(
            "account", make_report(accounts.sums.items(), question, SitePolicy(), **spans)
        )

    reports: dict[str, Callable[[], Any]] = {"harm": lambda: document("harm", harm)}
    for grouping in ("day", "user", "account", "trainer"):
        reports[f"harvest by {grouping}"] = partial(harvest, grouping)
    return reports
