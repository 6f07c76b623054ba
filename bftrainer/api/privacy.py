"""Hides the values of a trainer's environment, its preamble and notification from other users.

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
    if peer.uid in (0, os.geteuid()) or peer.user == spec.user:
        return view
    spec = replace(
        spec,
        environment=tuple((name, HIDDEN) for name, _ in spec.environment),
        preamble=spec.preamble and HIDDEN,
        notify=spec.notify and HIDDEN,
    )
    return replace(view, record=replace(view.record, spec=spec))


def status_for_peer(view: StatusView, peer: Peer) -> StatusView:
    """Return the daemon's state as this user may see it."""
    return replace(view, trainers=tuple(for_peer(each, peer) for each in view.trainers))
