"""Options of the site for the pilots' sbatch, and which nodes they leave to pilots.

Some sites take only jobs with a comment, a feature, a reservation, a licence or a wckey. Such
options come from the policy (``sbatch_options``) or ``bftrainer up``, word by word as for sbatch
(1), 22.05, and are passed on. Refused is what pilots rely on: they come last, alone, on one node,
once. sbatch takes the beginning of an option's name for the option, so that is refused, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from bftrainer.model.cluster import Node, NodeState, Reservation
from bftrainer.model.node_request import NodeRequest, request_of

MOST_OPTIONS = 16
_WORD = re.compile(r"--([a-z][a-z-]{1,30})(?:=[^\x00-\x1f\x7f-\x9f]{1,256})?")
# What to use instead ("": nothing), and options that are set, or ruled out, for every pilot.
_RULED_OUT = (
    ("--partition of up, pilot_partition of the policy", "partition"),
    ("the option of that name of up, or of the policy", "account qos"),
    ("--time of up, pilot_time_limit_s of the policy", "time time-min"),
    (
        "--lend of up, lend of the policy",
        (
            "gres gpus gpus-per-node gpus-per-socket gpus-per-task cpus-per-gpu cpus-per-task mem"
            " mem-per-cpu mem-per-gpu exclusive oversubscribe share overcommit"
        ),
    ),
    (
        "",
        (
            "parsable job-name nodes nodelist nodefile exclude ntasks ntasks-per-core ntasks-"
            " per-gpu ntasks-per-node ntasks-per-socket deadline requeue no-requeue export"
            " export-file chdir workdir input output error open-mode propagate array"
            " dependency begin hold clusters signal priority wrap wait test-only uid gid get-"
            " user-env help usage version reboot container container-id external jobid"
        ),
    ),
)
_OWN = {name: instead for instead, names in _RULED_OUT for name in names.split()}


def checked(words: Sequence[str]) -> tuple[str, ...]:
    """Return the options.

    Args:
        words: one option each, as sbatch takes it: ``--comment=preempt``.

    Raises:
        ValueError: the first that cannot be passed on, in a sentence.
    """
    if len(words) > MOST_OPTIONS:
        raise ValueError(f"there are {len(words)} options for sbatch, {MOST_OPTIONS} at most")
    seen = set[str]()
    for word in words:
        if (found := _WORD.fullmatch(word)) is None:
            raise ValueError(f"{word[:80]!r} is not --name or --name=VALUE in one line")
        name = found[1]
        if taken := next((option for option in sorted(_OWN) if option.startswith(name)), ""):
            instead = f"; use {_OWN[taken]}" if _OWN[taken] else ""
            raise ValueError(f"bftrainer itself decides about --{taken} of its pilots{instead}")
        if name in seen:
            raise ValueError(f"--{name} is given twice")
        seen.add(name)
    return tuple(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotNodes:
    """Which nodes pilots with these options can have: by features, and by a reservation."""

    request: NodeRequest = field(default_factory=NodeRequest)
    reservation: str = ""

    @classmethod
    def of(cls, words: Sequence[str]) -> PilotNodes:
        """Read options that are checked; a constraint on several nodes is left to Slurm."""
        given = {name: value for name, _, value in (word.partition("=") for word in words)}
        try:
            request = request_of("", given.get("--constraint", ""))
        except ValueError:
            request = NodeRequest()
        return cls(request=request, reservation=given.get("--reservation", ""))

    def within(
        self, nodes: Sequence[Node], reservations: Sequence[Reservation] | None, now_s: float
    ) -> tuple[tuple[Node, ...], tuple[Reservation, ...] | None]:
        """Show nodes of the own reservation as free until it ends, and all others as reserved.

        Without the reservations, or before it begins, there are none.
        """
        if not self.reservation:
            return tuple(nodes), None if reservations is None else tuple(reservations)
        own = next((r for r in reservations or () if r.name == self.reservation), None)
        names = frozenset(own.nodes) if own and own.start_s <= now_s < own.end_s else frozenset()
        why = f"not in reservation {self.reservation}, or that is not open"

        def seen(node: Node) -> Node:
            if node.name in names:
                is_free = node.state is NodeState.RESERVED
                return replace(node, state=NodeState.IDLE) if is_free else node
            return replace(node, state=NodeState.RESERVED, reason=why, left=None)

        if own is None or reservations is None:
            return tuple(map(seen, nodes)), None if reservations is None else tuple(reservations)
        end = replace(own, name=f"the end of {own.name}", start_s=own.end_s, end_s=FOREVER_S)
        rest = [r for r in reservations if r is not own]
        return tuple(map(seen, nodes)), (*rest, end)


FOREVER_S = 1e11  # an end that no plan reaches
