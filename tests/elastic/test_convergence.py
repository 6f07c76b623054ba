"""The arithmetic of ``bench_convergence``: what counts as equal, and its table."""

from __future__ import annotations

import random
from pathlib import Path

import bench_convergence
import pytest
from _bench import marks
from _bench.convergence import Outcome, _other_nodes


def outcome(fixed: tuple[float, ...], rescaled: tuple[float, ...]) -> Outcome:
    return Outcome(
        model="mlp",
        epochs=3,
        seeds=tuple(range(len(fixed))),
        fixed=fixed,
        rescaled=rescaled,
        rescales=(31,) * len(fixed),
    )


@pytest.mark.parametrize(
    ("fixed", "rescaled", "is_met"),
    [
        ((0.96, 0.97, 0.98), (0.95, 0.96, 0.97), True),
        ((0.96, 0.97, 0.98), (0.93, 0.94, 0.96), False),
        ((0.96, 0.97, 0.98), (0.99, 1.0, 1.0), False),  # better is not the same either
        ((0.97, 0.97), (0.97, 0.965), True),  # no spread: two test samples
        ((0.97, 0.97), (0.96, 0.96), False),
    ],
)
def test_the_verdict_is_about_the_means_and_the_spread(
    fixed: tuple[float, ...], rescaled: tuple[float, ...], is_met: bool
) -> None:
    accuracy, rescales = bench_convergence.targets_of([outcome(fixed, rescaled)], 30)
    assert accuracy.is_met is is_met
    assert rescales.is_met
    assert not bench_convergence.targets_of([outcome(fixed, rescaled)], 32)[1].is_met


def test_the_table_replaces_what_stands_between_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"a\n<!-- numbers: bench_convergence -->\nold\n{marks.END}\nb\n")
    one = outcome((0.96, 0.98), (0.95, 0.99))
    bench_convergence.write_docs(page, [one], bench_convergence.targets_of([one], 30))
    text = page.read_text()
    assert text.startswith("a\n")
    assert text.endswith("\nb\n")
    assert "old" not in text
    assert "| mlp | 2 | 31 | 97.00 % | 96.00 to 98.00 | 97.00 % |" in text
    bench_convergence.write_docs(page, [one], [])
    assert page.read_text().count("numbers: bench_convergence") == 1


def test_the_next_nodes_differ_and_one_stays() -> None:
    chance = random.Random(1)  # noqa: S311 - a test's schedule
    held = ["n0"]
    for _ in range(200):
        chosen = _other_nodes(held, ["n0", "n1", "n2"], chance)
        assert set(chosen) != set(held)
        assert set(chosen) & set(held)
        held = chosen
