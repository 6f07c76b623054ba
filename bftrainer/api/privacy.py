"""Hides the values of a trainer's environment, and its preamble, from other users.

They may contain tokens and passwords. The owner, root and the daemon's own user see them; other
users see the names only. Pure.
"""

from __future__ import annotations

import os
from dataclasses import replace

from bftrainer.api.service import Peer
from bftrainer.model.views import StatusView, TrainerView

HIDDEN = "(hidden)"


def for_peer(view: TrainerView, peer: Peer) -> TrainerView:
    """Return the view as this user may see it."""
    spec = view.record.spec
    if (
        not (spec.environment or spec.preamble)
        or peer.uid in (0, os.geteuid())
        or peer.user == spec.user
    ):
        return view
    shown = tuple((name, HIDDEN) for name, _ in spec.environment)
    preamble = HIDDEN if spec.preamble else ""
    spec = replace(spec, environment=shown, preamble=preamble)
    return replace(view, record=replace(view.record, spec=spec))


def status_for_peer(view: StatusView, peer: Peer) -> StatusView:
    """Return the daemon's state as this user may see it."""
    return replace(view, trainers=tuple(for_peer(each, peer) for each in view.trainers))
