"""Numbers and lengths of time for people; all expected texts are written by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bftrainer.model.quantities import quantity, time_span

ROOT = Path(__file__).parents[3]
# A format with an exponent for large numbers: 1440.0 is "1.44e+03".
GENERAL = re.compile(r"[.][0-9]+g[\"'}]")
# Digits for programs, of what no reader sees: JSON, files, values that are compared as texts.
FOR_PROGRAMS = {"bftrainer/api/page/parts.py", "bftrainer/site/policy/render.py"}


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.001, 3, "0.001"), (0.0012346, 3, "0.00123"), (0.01, 3, "0.01"), (0.09996, 3, "0.1"),
        (0.5, 3, "0.5"), (0.9996, 3, "1"), (1, 3, "1"), (-1.5, 3, "-1.5"), (9.999, 3, "10"),
        (12.345, 3, "12.3"), (99.96, 3, "100"), (123.4, 3, "123"), (999.6, 3, "1,000"),
        (1440, 3, "1,440"), (1440.4, 3, "1,440"), (12345.6, 3, "12,346"), (1234.56, 6, "1,234.56"),
        (1e5, 3, "100,000"), (1e6, 3, "1,000,000"), (9_876_543, 3, "9,876,543"),
        (1e7, 3, "10 million"), (12_345_678, 4, "12.35 million"), (4.5678e13, 3, "45.7 trillion"),
        (2.5e9, 3, "2.5 billion"), (1.5e-5, 3, "1.5e-5"), (0, 3, "0"), (-0.0, 3, "0"),
        (float("nan"), 3, "nan"), (float("inf"), 3, "inf"),
    ],
)  # fmt: skip
def test_numbers(value: float, digits: int, text: str) -> None:
    assert quantity(value, digits) == text


def test_a_number_to_be_typed_has_neither_commas_nor_words() -> None:
    assert [quantity(value, is_grouped=False) for value in (0.31, 1440, 12_345_678)] == [
        *("0.31", "1440", "12345678"),
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.001, "1 ms"), (0.01, "10 ms"), (0.35, "350 ms"), (1, "1 s"), (10, "10 s"),
        (70, "70 s"), (119.5, "120 s"), (120, "2 min"), (683, "11.4 min"), (3600, "60 min"),
        (7200, "2 h"), (86_400, "24 h"), (100_000, "27.8 h"), (172_800, "2 days"),
        (604_800, "7 days"), (1e7, "116 days"), (0, "0 s"), (-90, "-90 s"),
    ],
)  # fmt: skip
def test_lengths_of_time(seconds: float, text: str) -> None:
    assert time_span(seconds) == text


def test_no_surface_has_an_exponent_for_what_is_large() -> None:
    """Sources of what people see take ``quantity``; processes of users and ``milp`` stand alone."""
    rooms = ("bftrainer/cli", "bftrainer/lab", "bftrainer/study", "bftrainer/daemon",
             "bftrainer/api", "bftrainer/decide", "bftrainer/site", "bftrainer/batch",
             "slurm_plugins", "lsf_adapters")  # fmt: skip
    files = [path for room in rooms for path in sorted((ROOT / room).rglob("*.py"))]
    places = [
        f"{name}:{line}"
        for path in files
        if (name := path.relative_to(ROOT).as_posix()) not in FOR_PROGRAMS
        for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if GENERAL.search(text)
    ]
    assert places == []
