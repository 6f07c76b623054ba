"""What an earlier daemon had learnt, from its last decision in the journal.

``Memory`` is kept with every decision that is written down. A new daemon begins with what
runs, and takes over what only time can teach: the small jobs of the last days, what claims
cost and which nodes are slow. Called once, when the agents have been adopted. What is left
out: counts of looks and hold-offs, which are of the moment; claims and replacements that
were under way, because how long the daemon was away is no fault of theirs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from bftrainer.canonical import CanonicalError
from bftrainer.decide.claims import ClaimCosts
from bftrainer.decide.types import DecisionRecord, Memory, Settings
from bftrainer.journal.journal import Journal

LOG = logging.getLogger("bftrainer.remembered")


def remembered(journal: Journal, settings: Settings, assignment: Mapping[str, str]) -> Memory:
    """Return the memory with which decisions begin.

    Args:
        journal: of this state directory.
        settings: only where something is to be learnt is the journal asked.
        assignment: node -> trainer, as observed.
    """
    memory = Memory(assignment=assignment)
    if not (settings.learns_reserve or settings.learns_min_gap or settings.straggler_threshold):
        return memory
    try:
        entry = journal.latest("decision")
        known = entry.payload_as(DecisionRecord).plan.memory if entry else memory
    except CanonicalError as problem:  # of a release that wrote it otherwise
        LOG.warning("what was learnt before is not read: %s", problem)
        return memory
    return replace(
        memory,
        claim_costs=ClaimCosts(claim=known.claim_costs.claim, warm_up=known.claim_costs.warm_up),
        small_jobs=known.small_jobs,
        slow_nodes=known.slow_nodes,
    )
