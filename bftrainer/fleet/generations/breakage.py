"""Members that cannot reach each other. Bookkeeping without I/O.

Two nodes are *apart* when the agent of one cannot connect to the other (``trainers.agent.reach``),
though both reach the daemon. What agents report and the time come in; the nodes that the trainer
does without go out. Reports are repeated while they hold. One that no longer names a node ends the
pair at once, the first time; from the second time on it is kept for a while, which doubles, so that
a cable with a loose contact does not stop the trainer again and again. So is a pair that nobody
reports on any more.

Only the reporting trainer goes by a report: an agent may run as a user.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from bftrainer.ground.node_cover import cover
from bftrainer.ground.protocol import Unreachable

SILENT_S = 20.0  # a report lasts so long, if no other follows; reports come every 3 s
HOLD_S = 5.0  # after the second end of a pair
MOST_S = 600.0
FADES_S = 120.0  # after its end a pair is forgotten: one cut in two minutes costs little
MOST_PAIRS = 4096
MOST_NAMED = 4  # in a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two nodes that are, or were, apart; times of the machine's clock."""

    nodes: tuple[str, str]  # by name
    since_s: float  # of this time
    until_s: float  # it counts until then
    times: int = 1

    @property
    def both(self) -> frozenset[str]:
        """The two nodes."""
        return frozenset(self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """The pairs of a trainer's nodes that cannot reach each other; each change makes a new one."""

    pairs: tuple[Pair, ...] = ()
    patience_s: float = 0.0  # pairs count when one is so old

    def heard(self, node: str, others: Collection[str], now_s: float) -> Apart:
        """Return it after a report: ``node`` cannot reach ``others``, and reaches all else."""
        reported = {frozenset((node, other)) for other in others if other != node}
        pairs: list[Pair] = []
        for pair in self.pairs:
            if now_s > pair.until_s + FADES_S:
                continue
            if pair.both in reported:
                reported.discard(pair.both)
                pairs.append(_again(pair, now_s))
            elif node in pair.nodes and now_s < pair.until_s:
                pairs.append(_ended(pair, now_s))
            else:
                pairs.append(pair)
        for first, second in sorted(map(sorted, reported)):
            until_s = now_s + SILENT_S
            pairs.append(Pair(nodes=(first, second), since_s=now_s, until_s=until_s))
        return replace(self, pairs=tuple(pairs[-MOST_PAIRS:]))

    def present(self, now_s: float) -> tuple[Pair, ...]:
        """Return the pairs that count now: all, once one is old enough.

        The younger pairs tell which of the oldest pair's two nodes nobody reaches.
        """
        pairs = tuple(pair for pair in self.pairs if now_s < pair.until_s)
        if all(now_s < pair.since_s + self.patience_s for pair in pairs):
            return ()
        return pairs

    def left_out(self, now_s: float, order: Sequence[str]) -> frozenset[str]:
        """Return which of these nodes the trainer does without; the first are kept first."""
        nodes = set(order)
        return cover((pair.both for pair in self.present(now_s) if nodes >= pair.both), order)

    def barred(self, now_s: float, has: Collection[str]) -> dict[str, float]:
        """Return the nodes that it must not get, and since when, the machine's clock.

        Those apart from nodes it ``has``; if it has none, the fewest without which all others
        reach each other.
        """
        present, nodes, cut_nodes = self.present(now_s), set(has), frozenset[str]()
        if nodes.isdisjoint(_nodes(present)):
            cut_nodes = cover((pair.both for pair in present), ())
        since_s: dict[str, float] = {}
        for pair in present:
            barred_nodes = pair.both & cut_nodes
            if pair.both & nodes:
                barred_nodes = pair.both - nodes
            for node in barred_nodes:
                since_s[node] = min(pair.since_s, since_s.get(node, pair.since_s))
        return dict(sorted(since_s.items()))

    def sentence(self, now_s: float, without: Collection[str] = ()) -> str:
        """Name the pairs, and which nodes the trainer goes on without; "": there are none."""
        present = self.present(now_s)
        if not present:
            return ""
        names = ", ".join(" and ".join(pair.nodes) for pair in present[:MOST_NAMED])
        if len(present) > MOST_NAMED:
            names += f" (and {len(present) - MOST_NAMED} more pairs)"
        consequence = ""
        if without:
            consequence = f"; it goes on without {', '.join(sorted(without))}"
        return (
            f"BFT-1340: {names} cannot reach each other{consequence}."
            " Check cables, routes and firewalls between them; a node comes back when it can be"
            " reached."
        )


def of_agents_there(report: Unreachable, agent_on: Callable[[str], str]) -> Unreachable:
    """Return a report without nodes that have another agent by now.

    The one that is meant never answers again if its node has come back at another address.
    """
    if len(report.agents) != len(report.nodes):
        return report
    nodes, agents = list[str](), list[str]()
    for node, agent in zip(report.nodes, report.agents, strict=True):
        if agent_on(node) in ("", agent):
            nodes.append(node)
            agents.append(agent)
    return replace(report, nodes=tuple(nodes), agents=tuple(agents))


def _nodes(pairs: Iterable[Pair]) -> set[str]:
    nodes = set[str]()
    for pair in pairs:
        nodes |= pair.both
    return nodes


def _again(pair: Pair, now_s: float) -> Pair:
    if now_s >= pair.until_s:
        pair = replace(pair, since_s=now_s, times=pair.times + 1)
    lasts_s = min(MOST_S, SILENT_S * 2.0 ** min(16, pair.times - 1))
    return replace(pair, until_s=max(pair.until_s, now_s + lasts_s))


def _ended(pair: Pair, now_s: float) -> Pair:
    hold_s = 0.0 if pair.times == 1 else min(MOST_S, HOLD_S * 2.0 ** min(16, pair.times - 2))
    return replace(pair, until_s=min(pair.until_s, now_s + hold_s))
