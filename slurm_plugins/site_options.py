"""Options of the site for the pilots' sbatch, and which nodes they leave to pilots.

Some sites take only jobs with a comment, a feature, a reservation, a licence or a wckey. Such
options come from the policy (``sbatch_options``) or ``bftrainer up``, word by word as for sbatch
(1), 22.05, and are passed on. Refused is what pilots rely on: they come last, alone, on one node,
once. sbatch takes the beginning of an option's name for the option, so that is refused, too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
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
            "parsable job-name nodes nodelist nodefile exclude ntasks ntasks-per-core"
            " ntasks-per-gpu ntasks-per-node ntasks-per-socket deadline requeue no-requeue export"
            " export-file chdir workdir input output error open-mode propagate array"
            " dependency begin hold clusters signal priority wrap wait test-only uid gid"
            " get-user-env help usage version reboot container container-id external jobid"
        ),
    ),
)
_OWN = {name: instead for instead, names in _RULED_OUT for name in names.split()}
FOREVER_S = 1e11  # an end that no plan reaches


def checked(words: Sequence[str]) -> tuple[str, ...]:
    """Return the options.

    Args:
        words: one option each, as sbatch takes it: ``--comment=preempt``.

    Raises:
        ValueError: the first that cannot be passed on, in a sentence.
    """
    if len(words) > MOST_OPTIONS:
        raise ValueError(f"there are {len(words)} options for sbatch, {MOST_OPTIONS} at most")
    names = set[str]()
    for word in words:
        match = _WORD.fullmatch(word)
        if match is None:
            raise ValueError(f"{word[:80]!r} is not --name or --name=VALUE in one line")
        name = match[1]
        # sbatch takes a name's beginning for the whole one.
        if own_option := next((option for option in sorted(_OWN) if option.startswith(name)), ""):
            sentence = f"bftrainer itself decides about --{own_option} of its pilots"
            if _OWN[own_option]:
                sentence += f"; use {_OWN[own_option]}"
            raise ValueError(sentence)
        if name in names:
            raise ValueError(f"--{name} is given twice")
        names.add(name)
    return tuple(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotNodes:
    """Which nodes pilots with these options can have: by features, and by a reservation."""

    request: NodeRequest = field(default_factory=NodeRequest)
    reservation: str = ""

    @classmethod
    def of(cls, words: Sequence[str]) -> PilotNodes:
        """Read options that are checked; a constraint on several nodes is left to Slurm."""
        value_of = {}
        for word in words:
            name, _, value = word.partition("=")
            value_of[name] = value
        try:
            request = request_of("", value_of.get("--constraint", ""))
        except ValueError:
            request = NodeRequest()
        return cls(request=request, reservation=value_of.get("--reservation", ""))

    def within(
        self, nodes: Sequence[Node], reservations: Sequence[Reservation] | None, now_s: float
    ) -> tuple[tuple[Node, ...], tuple[Reservation, ...] | None]:
        """Show nodes of the own reservation as free until it ends, and all others as reserved.

        Without the reservations, or before it begins, there are none.
        """
        if not self.reservation:
            if reservations is None:
                return tuple(nodes), None
            return tuple(nodes), tuple(reservations)
        pilots_own: Reservation | None = None
        further: list[Reservation] = []
        for reservation in reservations or ():
            if pilots_own is None and reservation.name == self.reservation:
                pilots_own = reservation
            else:
                further.append(reservation)
        open_nodes = frozenset[str]()
        if pilots_own and pilots_own.start_s <= now_s < pilots_own.end_s:
            open_nodes = frozenset(pilots_own.nodes)
        own_nodes = tuple(self._as_reserved(node, open_nodes) for node in nodes)
        if reservations is None:
            return own_nodes, None
        if pilots_own is None:
            return own_nodes, tuple(further)
        end = replace(
            pilots_own,
            name=f"the end of {pilots_own.name}",
            start_s=pilots_own.end_s,
            end_s=FOREVER_S,
        )
        return own_nodes, (*further, end)

    def _as_reserved(self, node: Node, open_nodes: Collection[str]) -> Node:
        if node.name not in open_nodes:
            why = f"not in reservation {self.reservation}, or that is not open"
            return replace(node, state=NodeState.RESERVED, reason=why, left=None)
        if node.state is NodeState.RESERVED:
            return replace(node, state=NodeState.IDLE)
        return node
