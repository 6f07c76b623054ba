"""What ``scripts/readability.py`` counts, and that the house keeps its limits."""

from __future__ import annotations

from pathlib import Path

import pytest
from readability import MOST_IN_A_ROOM, MOST_IN_ALL, Count, excesses, rooms

PLAIN = '''\
"""A module."""

# Why it is so.
LIMIT = 3


def free_nodes(nodes: list[str]) -> list[str]:
    """Return them.

    Every line of this is no code.
    """
    return [node for node in nodes if node]  # not on a line of its own
'''


def counted(text: str) -> Count:
    count = Count()
    count.add(text)
    return count


def test_docstrings_comments_and_blank_lines_are_no_code() -> None:
    count = counted(PLAIN)
    assert count.lines == 3
    assert (count.comments, count.comprehensions, count.nested) == (1, 1, 0)
    assert count.fillers.total() == count.conditionals == count.scattered == 0


@pytest.mark.parametrize(
    ("line", "figure"),
    [
        ("found = 1", "names"),
        ("for one in (): pass", "names"),
        ("x = [given for given in ()]", "names"),
        ("(told := 1)", "names"),
        ("x = [y for y in ()]", "comprehensions"),
        ("x = [sum(z for z in y) for y in ()]", "nested"),
        ("x = 1 if y else 2", "conditionals"),
        ("def f(): pass\nLATE = 1", "scattered"),
        ("def f(): pass\nLATE: int = 1", "scattered"),
    ],
)
def test_each_line_that_slows_a_reader_is_counted(line: str, figure: str) -> None:
    assert counted("x = 1").rates()[figure] == 0.0
    assert counted(line).rates()[figure] > 0.0


def test_every_room_is_gauged(tmp_path: Path) -> None:
    for name in ("bftrainer/cli", "milp", "trainers", "slurm_plugins", "lsf_adapters"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "__init__.py").write_text(PLAIN)
    assert set(rooms(tmp_path)) == {"cli", "milp", "trainers", "slurm_plugins", "lsf_adapters"}
    assert any("product: comprehensions" in line for line in excesses(tmp_path))
    (tmp_path / "milp" / "late.py").write_text("found = given = 1\n" * 9)
    assert any(line.startswith("milp: names") for line in excesses(tmp_path))
    assert set(MOST_IN_ALL) == set(MOST_IN_A_ROOM)
