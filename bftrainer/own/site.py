"""How a batch system tells what a user's own daemon may do: a plug-in of one function.

Implemented by ``slurm_plugins.own_site``; called by ``bftrainer up``.
"""

from __future__ import annotations

from collections.abc import Callable

from bftrainer.model.own_site import OwnSite, Wish
from bftrainer.plugins import load_plugin

ENTRY_POINT_GROUP = "bftrainer.own_sites"


def examine(batch_system: str, wish: Wish) -> OwnSite:
    """Read the site for this user.

    Raises:
        BftError: BFT-1201, no such batch system; BFT-128x, it can not work here, and why.
    """
    found: Callable[[Wish], OwnSite] = load_plugin(
        ENTRY_POINT_GROUP, batch_system, what="batch system", code="BFT-1201"
    )
    return found(wish)
