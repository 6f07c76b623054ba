"""A user's view of the trainers of others.

The owner, root and the daemon's own user see everything. Others see names, users, sizes and
progress, but nothing that may contain secrets: environment, paths, arguments, reasons of failures.
Where the policy says ``visibility: own`` they see how many trainers there are. Pure.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from bftrainer.api.service import Peer
from bftrainer.model.errors import ExitCode, UsageError
from bftrainer.model.timeline import TimelineView
from bftrainer.model.trainer import TrainerRecord
from bftrainer.model.views import Explanation, NodeView, StatusView, TrainerView

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
    spec = replace(
        spec,
        script=HIDDEN,
        args=(HIDDEN,) if spec.args else (),
        cwd=HIDDEN,
        interpreter=HIDDEN,
        checkpoint_dir=HIDDEN,
        environment=tuple((name, HIDDEN) for name, _ in spec.environment),
        preamble=spec.preamble and HIDDEN,
        notify=spec.notify and HIDDEN,
        trial=None,
    )
    failing = replace(view.record.failing, cause="", place="", log_path="")
    progress = replace(view.record.progress, loss=None, has_finite_loss=True)
    record = replace(
        view.record, spec=spec, reason="", failing=failing, reports=(), progress=progress
    )
    return replace(view, record=record, trouble="")


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
    others: frozenset[str] = frozenset()  # trainers that are not shown
    foreign: frozenset[str] = frozenset()  # trainers whose failures are not

    @classmethod
    def of(cls, peer: Peer, views: Iterable[TrainerView], *, is_own: bool) -> Sight:
        """Return what a user sees of these trainers; ``is_own``: of the policy."""
        foreign = frozenset(
            view.record.trainer_id for view in views if not is_trusted(peer, view.record.spec.user)
        )
        others = foreign if is_own else frozenset[str]()
        return cls(peer=peer, is_own=is_own, others=others, foreign=foreign)

    def trainers(self, views: Iterable[TrainerView]) -> list[TrainerView]:
        """Return the trainers that are shown."""
        shown = (view for view in views if view.record.trainer_id not in self.others)
        return [for_peer(replace(v, waits=self.text(v.waits)), self.peer) for v in shown]

    def status(self, view: StatusView) -> StatusView:
        """Return the daemon's state."""
        return replace(
            view,
            trainers=tuple(self.trainers(view.trainers)),
            other_trainers=len(self.others),
            slow_nodes=self._texts(view.slow_nodes),
            cooling_nodes=self._texts(view.cooling_nodes),
            cuts=self._texts(view.cuts),
            late_agents=self._texts(view.late_agents),
            left_out=self._texts(view.left_out),
            failures=self._texts(view.failures),
            # Values of a file that may be the administrator's alone.
            policy_notes=view.policy_notes if is_trusted(self.peer, "") else (),
        )

    def nodes(self, views: Iterable[NodeView]) -> list[NodeView]:
        """Return the nodes, without the trainers that are not shown."""
        return [
            replace(
                view,
                reason=self.text(view.reason),
                trainer_id="" if view.trainer_id in self.others else view.trainer_id,
            )
            for view in views
        ]

    def timeline(self, found: TimelineView) -> TimelineView:
        """Return the uses of nodes; of the trainers of others what ``for_peer`` tells of them."""
        if not self.foreign:
            return found

        def seen(trainer_id: str) -> str:
            return "" if trainer_id in self.others else trainer_id

        curves = []
        for curve in found.curves:
            if curve.trainer_id in self.others:
                continue
            is_foreign = curve.trainer_id in self.foreign
            curves.append(replace(curve, losses=()) if is_foreign else curve)
        return replace(
            found,
            curves=tuple(curves),
            base=tuple((use, seen(who)) for use, who in found.base),
            changes=tuple((at_s, node, use, seen(who)) for at_s, node, use, who in found.changes),
            planned=tuple(
                replace(one, trainer_id=HIDDEN) if one.trainer_id in self.others else one
                for one in found.planned
            ),
        )

    def explanation(self, told: Explanation) -> Explanation:
        """Return an explanation of a trainer of this user's."""
        return replace(told, sentences=self._texts(told.sentences))

    def text(self, sentence: str) -> str:
        """Return a sentence without what another's script said, or trainers that are not shown."""
        if self.foreign:
            sentence = _LAST_FAILURE.sub(
                lambda found: found[1] if found[2] in self.foreign else found[0], sentence
            )
        if not self.others:
            return sentence
        return _TRAINER_ID.sub(
            lambda found: "another user's trainer" if found[0] in self.others else found[0],
            sentence,
        )

    def _texts(self, sentences: Iterable[str]) -> tuple[str, ...]:
        return tuple(map(self.text, sentences))
