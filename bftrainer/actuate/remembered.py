"""What an earlier daemon had learnt, from its last decision in the journal.

``Memory`` is kept with every decision that is written down. A new daemon begins with what
runs, and takes over what only time can teach: how long ends and starts of pilots take, which
nodes are slow, and the state of the policy, if it is the same with the same options. Called
once, when the agents have been adopted. What is left out: counts of looks and hold-offs, which
are of the moment, and what was under way, because how long the daemon was away is no fault of
theirs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from bftrainer.canonical import CanonicalError
from bftrainer.journal.journal import Journal
from bftrainer.model.decision import DecisionRecord, Ends, Memory, Settings

LOG = logging.getLogger("bftrainer.remembered")


def remembered(journal: Journal, settings: Settings, assignment: Mapping[str, str]) -> Memory:
    """Return the memory with which decisions begin.

    Args:
        journal: of this state directory.
        settings: of this daemon.
        assignment: node -> trainer, as observed.
    """
    memory = Memory(assignment=assignment)
    try:
        entry = journal.latest("decision")
        last = entry.payload_as(DecisionRecord) if entry else None
    except CanonicalError as problem:  # of a release that wrote it otherwise
        LOG.warning("what was learnt before is not read: %s", problem)
        return memory
    if last is None:
        return memory
    known, then = last.plan.memory, last.input.settings
    is_same = (then.policy, then.policy_options) == (settings.policy, settings.policy_options)
    return replace(
        memory,
        ends=Ends(took_s=known.ends.took_s, joined_s=known.ends.joined_s),
        slow_nodes=known.slow_nodes if settings.straggler_threshold else {},
        policy_state=known.policy_state if is_same else None,
    )
