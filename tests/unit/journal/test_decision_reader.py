"""Decisions of a journal are read in their order; what two have in common is decoded once."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from bftrainer.journal import differences
from bftrainer.journal.decisions import DecisionReader
from bftrainer.journal.journal import Journal
from bftrainer.model.decision import DecisionRecord
from tests.support.snapshots import T0
from tests.support.timelines import PLAN, trained

NODES, DECISIONS = 50, 40


def decisions() -> list[DecisionRecord]:
    chance = random.Random(1)  # noqa: S311 - no secret
    who = {f"n{k}": "" for k in range(NODES)}
    made = []
    for turn in range(DECISIONS):
        who[f"n{chance.randrange(NODES)}"] = chance.choice(["", "t1", "t2"])
        given = trained(T0 + turn, **who)
        one = DecisionRecord(event=None, input=given, policy_hash="x", plan=PLAN, took_ms=1.0)
        made.append(one)
    return made


def test_they_come_back_and_share_what_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(differences, "LONGEST_CHAIN", 15)  # some are written as a whole
    made, reader = decisions(), DecisionReader()
    with Journal.open(tmp_path / "journal.db", clock=lambda: T0) as journal:
        for one in made:
            journal.note_large("decision", one)
        journal.note("decision", {"input": {"snapshot": {"nodes": [{}], "jobs": 7}}})
        *entries, odd = journal.entries()
        found = [reader.read(entry) for entry in entries]
    assert found == made
    nodes = [one.input.snapshot.nodes or () for one in found]
    anew = [len({*map(id, b)} - {*map(id, a)}) for a, b in itertools.pairwise(nodes)]
    wholes = DECISIONS // 15
    assert sum(n > 1 for n in anew) <= wholes, "only a node that changed is decoded"
    assert reader.read_if(odd) is None
    assert reader.read(entries[-1]) == made[-1]
