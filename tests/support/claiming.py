"""A ``Claiming`` of pilots that run as the users who submit, without a daemon around it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bftrainer.fleet.pilots.agents import AgentBook
from bftrainer.fleet.pilots.pilots import PilotBook
from bftrainer.fleet.pilots.refusals import PilotRefusals
from bftrainer.fleet.pilots.requests import Claiming
from bftrainer.fleet.wire.keys import generate_pair
from bftrainer.site.policy.model import SitePolicy


def claiming_of(
    pilots: PilotBook,
    pilots_dir: Path,
    *,
    refusals: PilotRefusals | None = None,
    on_gone: Callable[[str], None] = lambda _pilot_id: None,
) -> Claiming:
    """Return one that asks for pilots of ``pilots``; agents would find nobody at its endpoint."""
    agents = AgentBook(
        pilots_dir=pilots_dir, policy=SitePolicy(), incarnation=1, keys=generate_pair()
    )
    agents.endpoint = "tcp://127.0.0.1:4000"
    return Claiming(
        pilots=pilots,
        agents=agents,
        refusals=refusals or PilotRefusals(as_submitter=True),
        address="",
        register=lambda *_: None,
        on_gone=on_gone,
        cancel=lambda _: None,
    )
