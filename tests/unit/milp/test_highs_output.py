"""HiGHS says nothing on standard output, from its first moment."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import highspy
import pytest

from milp.highs import new_highs

ROOT = Path(__file__).parents[3]
INSTANCE = re.compile(r"highspy\.Highs\b")


def test_output_is_off_before_callbacks_are_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """highspy 1.16 prints its header then; the one that is installed here may be older."""
    seen: list[bool] = []
    usual: Any = highspy.Highs
    register = usual.enableCallbacks

    def watched(highs: Any) -> None:
        seen.append(highs.getOptionValue("output_flag")[1])
        register(highs)

    monkeypatch.setattr(highspy.Highs, "enableCallbacks", watched)
    usual()
    assert seen == [True]
    new_highs()
    assert seen == [True, False]


def test_a_problem_is_solved_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    highs = new_highs()
    highs.addCol(1.0, 2.0, 5.0, 0, [], [])
    highs.run()
    assert highs.getObjectiveValue() == 2.0
    assert capfd.readouterr() == ("", "")


def test_the_product_makes_no_other() -> None:
    packages = ("bftrainer", "milp", "slurm_plugins", "lsf_adapters", "trainers")
    paths = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    makers = [path for path in paths if INSTANCE.search(path.read_text())]
    assert [str(path.relative_to(ROOT)) for path in makers] == ["milp/highs.py"]
