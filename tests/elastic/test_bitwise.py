"""Bitwise mode: the same bits whatever the rescales, and whoever is killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess

TRAIN = SCRIPTS / "train_ids.py"
SETTINGS = {
    "samples": 101,  # the last batch of 5 has fewer samples than there are logical workers
    "batch": 16,
    "epochs": 4,
    "dropout": 0.3,
    "noisy": True,
    "logical": 4,
}


def fixed(directory: Path, template: TemplateProcess, size: int, **more: Any) -> journal.Entry:
    directory.mkdir()
    with Controller(directory, template) as c:
        c.begin(TRAIN, [json.dumps({**SETTINGS, **more})], count=size)
        c.finished()
    return journal.result(directory)


def rescaled(directory: Path, template: TemplateProcess, **more: Any) -> journal.Entry:
    """1 -> 3 -> 2 without the first -> a kill -> 1 -> 2 with a joiner."""
    directory.mkdir()
    holds = [[4, 2], [8, 3], [12, 4], [16, 5]]  # of 28 steps
    settings = json.dumps({**SETTINGS, "holds": holds, **more})
    with Controller(directory, template) as c:
        a, b, d, e = c.start(TRAIN, [settings], count=4)
        c.form([a], new=[a, b, d, e])
        c.trained_to(3)
        c.form([a, b, d])
        c.trained_to(7)
        c.form([b, d])
        c.trained_to(11)
        c.kill(b)
        c.until(lambda: c.workers[b].returncode is not None, "death noticed")
        c.form([d], abandon=True)
        c.trained_to(15)
        c.form([d, e])
        c.finished()
    assert {x["size"] for x in journal.entries(directory, "entered")} == {1, 2, 3}
    return journal.result(directory)


@pytest.mark.parametrize(
    "norm", [False, pytest.param(True, marks=pytest.mark.long)], ids=["plain", "norm"]
)
def test_parameters_are_those_of_a_fixed_size_bit_for_bit(
    tmp_path: Path, template: TemplateProcess, norm: bool
) -> None:
    one = fixed(tmp_path / "one", template, 1, norm=norm)
    two = fixed(tmp_path / "two", template, 2, norm=norm, loader_workers=1)
    assert two == one
    assert rescaled(tmp_path / "rescaled", template, norm=norm) == one
    counts = journal.committed_ids(tmp_path / "rescaled")
    assert all(sorted(c.elements()) == list(range(101)) for c in counts.values())
    assert journal.disagreements(tmp_path / "rescaled", "hash", "average", "lr") == []
    if norm:
        assert any(any(b) for b in one["buffers"])


def test_more_workers_than_logical_ones(tmp_path: Path, template: TemplateProcess) -> None:
    few = {"logical": 2, "samples": 40, "epochs": 2, "norm": True}
    assert fixed(tmp_path / "three", template, 3, **few) == fixed(
        tmp_path / "one", template, 1, **few
    )


def test_without_it_sizes_differ_in_the_last_bits(
    tmp_path: Path, template: TemplateProcess
) -> None:
    """What the mode is for: this would also fail if the tests above compared nothing."""
    few = {"logical": 0, "noisy": False, "dropout": 0.0, "epochs": 2}
    one = fixed(tmp_path / "one", template, 1, **few)
    assert fixed(tmp_path / "three", template, 3, **few)["hash"] != one["hash"]
