"""Nodes that cannot reach each other: for how long that counts, and who does without whom."""

from __future__ import annotations

from dataclasses import replace

from bftrainer.fleet.generations.breakage import HOLD_S, SILENT_S, Apart, of_agents_there
from bftrainer.ground.protocol import Unreachable


def _named(apart: Apart, now_s: float) -> list[tuple[str, str]]:
    return [pair.nodes for pair in apart.present(now_s)]


def test_a_report_lasts_until_the_next_one_and_not_for_ever() -> None:
    apart = Apart().heard("n3", ["n1"], 10.0)
    assert _named(apart, 10.0) == [("n1", "n3")]
    apart = apart.heard("n3", ["n1"], 13.0)
    assert _named(apart, 13.0 + SILENT_S - 1.0) == [("n1", "n3")]
    assert _named(apart, 13.0 + SILENT_S) == [], "its agent is gone: it is tried again"


def test_the_other_node_may_be_the_one_that_is_heard_again() -> None:
    apart = Apart().heard("n3", ["n1"], 10.0).heard("n1", ["n3"], 10.5)
    assert len(apart.pairs) == 1
    assert _named(apart.heard("n2", [], 11.0), 11.0) == [("n1", "n3")], "that says nothing of them"
    assert _named(apart.heard("n1", [], 12.0), 12.0) == []


def test_a_pair_that_comes_again_and_again_is_kept_for_longer_each_time() -> None:
    apart, now_s, kept_s = Apart(), 10.0, []
    for _ in range(5):
        apart = apart.heard("n1", ["n3"], now_s).heard("n1", [], now_s + 1.0)
        [pair] = apart.pairs
        kept_s.append(pair.until_s - now_s - 1.0)
        now_s = pair.until_s + 1.0
    assert kept_s == [0.0, HOLD_S, 2 * HOLD_S, 4 * HOLD_S, 8 * HOLD_S]


def test_it_counts_when_it_is_as_old_as_the_patience() -> None:
    apart = Apart(patience_s=30.0).heard("n1", ["n3"], 10.0)
    assert _named(apart, 12.0) == []
    for at_s in range(13, 44, 3):
        apart = apart.heard("n1", ["n3"], float(at_s))
    assert _named(apart, 43.0) == [("n1", "n3")]


def test_the_second_report_tells_which_of_the_two_it_is() -> None:
    apart = Apart(patience_s=0.5).heard("n1", ["n2"], 10.0).heard("n3", ["n2"], 10.1)
    order = ("n2", "n1", "n3")  # it would keep n2
    assert apart.left_out(10.4, order) == set()
    assert apart.left_out(10.5, order) == {"n2"}, "not n1 first, and n2 0.1 s later"


def test_who_does_without_whom() -> None:
    apart = Apart().heard("n1", ["n3"], 10.0)
    assert apart.left_out(10.0, ("n1", "n2", "n3")) == {"n3"}
    assert apart.left_out(10.0, ("n3", "n2", "n1")) == {"n1"}
    assert apart.left_out(10.0, ("n1", "n2")) == set()
    assert apart.barred(11.0, ["n1", "n2"]) == {"n3": 10.0}
    assert apart.barred(11.0, ["n3"]) == {"n1": 10.0}
    assert apart.barred(11.0, ["n2"]) == {"n3": 10.0}, "it has neither: it must not get both"
    assert apart.barred(11.0, ()) == {"n3": 10.0}
    assert "n1 and n3 cannot reach each other" in apart.sentence(11.0)
    assert apart.sentence(11.0 + SILENT_S) == ""


def test_a_report_says_nothing_of_a_node_that_has_another_agent_by_now() -> None:
    """A node that comes back at another address would be barred for as long as it is named."""
    said = Unreachable(nodes=("n1", "n2"), agents=("tcp://a:1", "tcp://b:1"))
    there = {"n1": "tcp://c:1", "n2": "tcp://b:1"}
    assert of_agents_there(said, there.__getitem__).nodes == ("n2",)
    assert of_agents_there(said, lambda _node: "") == said, "their pilots have not ended"
    assert of_agents_there(replace(said, agents=()), there.__getitem__).nodes == said.nodes
