"""A user's view of the trainers of others.

The owner, root and the daemon's own user see everything. Others see names, users, sizes and
progress, but nothing that may contain secrets: environment, paths, arguments, reasons of failures,
remarks of workers. Where the policy says ``visibility: own`` they see how many trainers there are.
Pure.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from bftrainer.api.service import Peer
from bftrainer.model.declaration import Disclosure, declarations, defaults
from bftrainer.model.errors import ExitCode, UsageError
from bftrainer.model.gpu_shares import shares_text
from bftrainer.model.timeline import TimelineView, parted
from bftrainer.model.trainer import TrainerRecord, TrainerSpec
from bftrainer.model.views import Explanation, NodeView, PartView, StatusView, TrainerView

HIDDEN = "(hidden)"
# As ``Cooling.sentence`` says why a worker failed, at its end: text of that trainer's script.
_LAST_FAILURE = re.compile(r"\b(the last of (t[1-9][0-9]{0,14})) \(.*\)", re.DOTALL)
_TRAINER_ID = re.compile(r"\bt[1-9][0-9]{0,14}\b")


def is_trusted(peer: Peer, owner: str) -> bool:
    """Return whether this user may see everything of the owner's trainers."""
    return peer.uid in (0, os.geteuid()) or peer.user == owner


def for_peer(view: TrainerView, peer: Peer) -> TrainerView:
    """Return the view as this user may see it."""
    spec = view.record.spec
    if is_trusted(peer, spec.user):
        return view
    spec = replace(spec, **_disclosed(spec))
    failing = replace(view.record.failing, cause="", place="", log_path="")
    progress = replace(view.record.progress, loss=None, has_finite_loss=True)
    costs = view.record.costs
    if costs.restart is not None:
        costs = replace(costs, restart=replace(costs.restart, unsaved_reason=""))
    record = replace(
        view.record,
        spec=spec,
        reason="",
        failing=failing,
        reports=(),
        progress=progress,
        costs=costs,
        diverged=None,
        remarks=(),
    )
    return replace(view, record=record, trouble="")


def _disclosed(spec: TrainerSpec) -> dict[str, Any]:
    """Return the fields of which others see less than there is, as they see them."""
    fields: dict[str, Any] = {}
    for name, declaration in declarations(TrainerSpec).items():
        value = getattr(spec, name)
        match declaration.disclosure:
            case Disclosure.NAMES:
                fields[name] = tuple((key, HIDDEN) for key, _ in value)
            case Disclosure.PRESENCE if isinstance(value, tuple) and value:
                fields[name] = (HIDDEN,)
            case Disclosure.PRESENCE if value:
                fields[name] = HIDDEN
            case Disclosure.NOTHING:
                fields[name] = HIDDEN
            case Disclosure.UNUSED:
                fields[name] = defaults(TrainerSpec)[name]
    return fields


def check_submitter(user: str, peer: Peer) -> None:
    """Refuse a trainer that is another user's (BFT-1005), before anything is said of it."""
    if user != peer.user:
        raise UsageError(
            "BFT-1005",
            f"A trainer of {user} cannot be submitted by {peer.user}.",
            "Submit it as the user it is to run as.",
            exit_code=ExitCode.NOT_PERMITTED,
        )


def check_own(record: TrainerRecord, peer: Peer, *, is_secret: bool) -> None:
    """Refuse a look into another user's trainer.

    Args:
        record: of the trainer.
        peer: who asks.
        is_secret: others are not even told that it is there.

    Raises:
        UsageError: BFT-1004, BFT-1005.
    """
    if is_trusted(peer, record.spec.user):
        return
    if is_secret:
        raise no_trainer(record.trainer_id)
    raise UsageError(
        "BFT-1005",
        f"Trainer {record.trainer_id} belongs to {record.spec.user}.",
        "Ask its owner or an administrator.",
        exit_code=ExitCode.NOT_PERMITTED,
    )


def no_trainer(trainer_id: str) -> UsageError:
    """Return BFT-1004."""
    return UsageError(
        "BFT-1004",
        f"There is no trainer {trainer_id}.",
        "List them with: bftrainer status",
        exit_code=ExitCode.NOT_FOUND,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """The trainers, and their details, that one user sees."""

    peer: Peer
    is_own: bool  # only of their own trainers
    hidden: frozenset[str] = frozenset()  # trainers that are not shown
    foreign: frozenset[str] = frozenset()  # trainers whose failures are not

    @classmethod
    def of(cls, peer: Peer, views: Iterable[TrainerView], *, is_own: bool) -> Sight:
        """Return what a user sees of these trainers; ``is_own``: of the policy."""
        foreign = frozenset(
            view.record.trainer_id for view in views if not is_trusted(peer, view.record.spec.user)
        )
        hidden = frozenset[str]()
        if is_own:
            hidden = foreign
        return cls(peer=peer, is_own=is_own, hidden=hidden, foreign=foreign)

    def trainers(self, views: Iterable[TrainerView]) -> list[TrainerView]:
        """Return the trainers that are shown."""
        return [self._trainer(view) for view in views if view.record.trainer_id not in self.hidden]

    def _trainer(self, view: TrainerView) -> TrainerView:
        return for_peer(replace(view, waits=self.text(view.waits)), self.peer)

    def status(self, view: StatusView) -> StatusView:
        """Return the daemon's state."""
        policy_notes = view.policy_notes
        if not is_trusted(self.peer, ""):
            policy_notes = ()  # values of a file that may be the administrator's alone
        return replace(
            view,
            trainers=tuple(self.trainers(view.trainers)),
            other_trainers=len(self.hidden),
            slow_nodes=self._texts(view.slow_nodes),
            cooling_nodes=self._texts(view.cooling_nodes),
            cuts=self._texts(view.cuts),
            late_agents=self._texts(view.late_agents),
            left_out=self._texts(view.left_out),
            failures=self._texts(view.failures),
            policy_notes=policy_notes,
        )

    def nodes(self, views: Iterable[NodeView]) -> list[NodeView]:
        """Return the nodes, without the trainers that are not shown."""
        if not self.foreign:
            return list(views)
        nodes = []
        for view in views:
            trainer_id, reason = self._name(view.trainer_id), self.text(view.reason)
            parts = tuple(map(self._part, view.parts))
            nodes.append(replace(view, reason=reason, trainer_id=trainer_id, parts=parts))
        return nodes

    def _part(self, view: PartView) -> PartView:
        trainer_id, reason = self._name(view.trainer_id), self.text(view.reason)
        return replace(view, reason=reason, trainer_id=trainer_id)

    def timeline(self, view: TimelineView) -> TimelineView:
        """Return the uses of nodes; of the trainers of others what ``for_peer`` tells of them."""
        if not self.foreign:
            return view
        curves = []
        for curve in view.curves:
            if curve.trainer_id in self.hidden:
                continue
            if curve.trainer_id in self.foreign:
                curves.append(replace(curve, losses=()))
            else:
                curves.append(curve)
        base = list(map(self._state, view.base))
        changes = []
        for at_s, node, use, trainer_id in view.changes:
            changes.append((at_s, node, *self._state((use, trainer_id))))
        bars = []
        for bar in view.planned:
            if bar.trainer_id in self.hidden:
                bars.append(replace(bar, trainer_id=HIDDEN))
            else:
                bars.append(bar)
        return replace(
            view,
            curves=tuple(curves),
            base=tuple(base),
            changes=tuple(changes),
            planned=tuple(bars),
        )

    def _state(self, state: tuple[int, str]) -> tuple[int, str]:
        """Return the use of a node without the trainers that are not shown."""
        use, trainer_id = state
        shares: dict[tuple[str, str], int] = {}
        for share in parted(state):
            alike = share.use, self._name(share.trainer_id)
            shares[alike] = shares.get(alike, 0) + share.gpus
        if shares:
            return use, shares_text(shares)
        return use, self._name(trainer_id)

    def _name(self, trainer_id: str) -> str:
        """Return the trainer that is shown on a node; "": it is not."""
        if trainer_id in self.hidden:
            return ""
        return trainer_id

    def explanation(self, view: Explanation) -> Explanation:
        """Return an explanation of a trainer of this user's."""
        return replace(view, sentences=self._texts(view.sentences))

    def text(self, sentence: str) -> str:
        """Return a sentence without what another's script said, or trainers that are not shown."""
        if self.foreign:
            sentence = _LAST_FAILURE.sub(self._failure, sentence)
        if not self.hidden:
            return sentence
        return _TRAINER_ID.sub(self._mention, sentence)

    def _failure(self, match: re.Match[str]) -> str:
        """Return the mention of a last failure, without its cause if it is of a foreign script."""
        if match[2] in self.foreign:
            return match[1]
        return match[0]

    def _mention(self, match: re.Match[str]) -> str:
        if match[0] in self.hidden:
            return "another user's trainer"
        return match[0]

    def _texts(self, sentences: Iterable[str]) -> tuple[str, ...]:
        return tuple(map(self.text, sentences))
