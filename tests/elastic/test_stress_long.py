"""Hundreds of random changes of one run: no hang, no lost sample, no disagreement."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess

TRAIN = SCRIPTS / "train_ids.py"
SAMPLES = 203
FOREVER = 1_000_000
CHANGES = 120
MOST = 4


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_changes(seed: int, tmp_path: Path, template: TemplateProcess) -> None:
    settings = json.dumps({"optimizer": "adam", "delay_s": 0.001})
    rng = random.Random(seed)  # noqa: S311 - a test's schedule
    with Controller(tmp_path, template) as c:
        c.form(_join(c, settings, 2))
        for _ in range(CHANGES):
            _change(c, settings, rng)
        c.park()
        epoch = max(e["epoch"] for e in journal.entries(tmp_path, "try"))
        c.begin(TRAIN, [settings], count=2, epochs=epoch + 2)
        assert {f.samples for f in c.finished()} == {SAMPLES * (epoch + 2)}
    counts = journal.committed_ids(tmp_path)
    assert sorted(counts) == list(range(epoch + 2))
    assert all(set(c.values()) == {1} and len(c) == SAMPLES for c in counts.values())
    assert journal.disagreements(tmp_path, "hash") == []


def _change(c: Controller, settings: str, rng: random.Random) -> None:
    kind = rng.choice(["grow", "shrink", "replace first", "kill", "park"])
    if kind == "grow" and len(c.members) < MOST:
        c.form(c.members + _join(c, settings, 1))
    elif kind == "shrink" and len(c.members) > 1:
        keep = c.members[:]
        keep.remove(rng.choice(keep))
        c.form(keep)
    elif kind == "replace first":
        c.form(c.members[1:] + _join(c, settings, 1))
    elif kind == "kill" and len(c.members) > 1:
        victim = rng.choice(c.members)
        c.kill(victim)
        c.until(lambda: c.workers[victim].returncode is not None, "death noticed")
        c.form([m for m in c.members if m != victim], abandon=True)
    elif kind == "park" and rng.random() < 0.2:
        c.park()
        c.form(_join(c, settings, rng.randint(1, 3)))


def _join(c: Controller, settings: str, count: int) -> list[str]:
    ids = c.start(TRAIN, [settings], count=count, epochs=FOREVER)
    c.warm(ids)
    return ids
