"""Memory of decisions that a new daemon takes over from an earlier one.

``Memory`` is journalled with every decision. A new daemon keeps what takes time to learn: the
durations of pilot ends and starts, slow nodes, how often trainers lose nodes, and the policy's
state if policy and options are the same. It drops momentary values (snapshot counts, hold-offs) and
whatever was being measured, because the daemon's absence would distort it. Called once, when the
agents have been adopted.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from bftrainer.journal.journal import Journal
from bftrainer.model.canonical import CanonicalError, from_plain
from bftrainer.model.decision import Ends, Losses, Memory, Settings

LOG = logging.getLogger("bftrainer.trainers")


def remembered(journal: Journal, settings: Settings, assignment: Mapping[str, str]) -> Memory:
    """Return the memory for the first decision; ``assignment``: node -> trainer, as observed."""
    memory = Memory(assignment=assignment)
    try:
        entry = journal.latest("decision")
        if entry is None:
            return memory
        plain = entry.payload  # of hundreds of trainers; two parts are wanted
        earlier = from_plain(plain.get("plan", {}).get("memory"), Memory)
        then = from_plain(plain.get("input", {}).get("settings"), Settings)
    except CanonicalError as problem:  # written by another release
        LOG.warning("what an earlier daemon learnt cannot be read: %s", problem)
        return memory
    ends = Ends(took_s=earlier.ends.took_s, joined_s=earlier.ends.joined_s)
    memory = replace(memory, ends=ends)
    if settings.straggler_threshold:
        memory = replace(memory, slow_nodes=earlier.slow_nodes)
    if settings.expects_losses:
        memory = replace(memory, losses=_without_the_absence(earlier.losses))
    if settings.fair_share_half_life_s is not None:
        memory = replace(memory, usage=earlier.usage)
    if (then.policy, then.policy_options) == (settings.policy, settings.policy_options):
        memory = replace(memory, policy_state=earlier.policy_state)
    return memory


def _without_the_absence(losses: Losses) -> Losses:
    """Return what was learnt; which nodes were lost meanwhile, and when, nobody saw."""
    return replace(losses, training={}, at_s=0.0)
