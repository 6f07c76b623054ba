"""When a number counts as met: values by hand, and one verdict for one printed number."""

from __future__ import annotations

import copy
import json
from collections import Counter
from typing import Any

import pytest

from bftrainer.lab.papers.findings import Finding, ValueLine
from bftrainer.lab.papers.paper import Paper, Result, load, names
from bftrainer.lab.papers.tolerances import Inputs, Printed, half_unit, tolerance
from bftrainer.lab.papers.verdicts import FullRun, verdict_of

PAPERS = [load(name) for name in names()]
COUNTED, PUBLISHED, TRAINERS, ASSUMED = Inputs


@pytest.mark.parametrize(
    ("text", "half"),
    [("14.70", 0.005), ("2.9", 0.05), ("1.03e6", 5000.0), ("16.0", 0.05), ("-44.1", 0.05)],
)
def test_the_last_printed_digit_is_that_of_the_text(text: str, half: float) -> None:
    number = json.loads(f"[{text}]", parse_float=Printed)[0]
    assert number == float(text)
    assert half_unit(number) == pytest.approx(half)
    copied = copy.deepcopy(number)  # as a pickle does
    assert (copied, type(copied)) == (float(text), float)


def test_whole_numbers_clocks_and_computed_numbers() -> None:
    assert half_unit(json.loads("3", parse_float=Printed)) == 0.5
    assert half_unit(1.0 - 14.68 / 14.99) == half_unit(None) == 0.0
    assert (Printed.clock("19:24"), half_unit(Printed.clock("19:24"))) == (19.4, 0.5 / 60)


@pytest.mark.parametrize(
    ("printed", "ours", "inputs", "is_about", "is_met"),
    [
        ("3", 2.69, COUNTED, False, True),  # it rounds to the printed one
        ("3", 2.49, COUNTED, False, False),
        ("22883", 22883.0, COUNTED, False, True),
        ("22883", 22884.0, COUNTED, False, False),
        ("407", 407.25, COUNTED, False, True),
        ("400", 407.25, COUNTED, False, False),
        ("400", 407.25, COUNTED, True, True),  # 0.5 and 5% of 400: up to 420.5
        ("10", 8.6, COUNTED, True, False),  # from 9.0 on
        ("1.8", 1.94, TRAINERS, False, True),  # 0.05 and 5% of 1.8: up to 1.94
        ("1.8", 1.95, TRAINERS, False, False),
        ("75", 76.2, PUBLISHED, False, True),  # 1.25 points
        ("75", 76.3, PUBLISHED, False, False),
        ("-28", -28.7, PUBLISHED, False, True),  # 0.5 and 0.28
        ("-28", -28.8, PUBLISHED, False, False),
        ("-28", -30.0, PUBLISHED, True, False),  # about gives no more than 5%: 1.9
        ("1.23", 1.36, ASSUMED, False, False),  # 0.005 and 0.123: up to 1.358
        ("1.23", 1.35, ASSUMED, True, True),
    ],
)
def test_a_number_is_met_within_its_digits_and_a_share_by_its_inputs(
    printed: str, ours: float, inputs: Inputs, *, is_about: bool, is_met: bool
) -> None:
    value = json.loads(printed, parse_float=Printed)
    known = {"x": {"what": "x", "value": value, "is_about": is_about}}
    line = Finding(known=known, drawn={}).line("x", ours)
    verdict = verdict_of(line, Result(result_id="x", shows="", inputs=inputs))
    assert verdict == ("reproduced" if is_met else "not reproduced")


def test_a_result_may_say_what_its_inputs_are() -> None:
    inputs = {one.result_id: one.inputs for one in load("bftrainer").results}
    assert (inputs["two-weeks"], inputs["table3"]) == (COUNTED, TRAINERS)
    assert {one.inputs for paper in PAPERS[1:] for one in paper.results} == {ASSUMED}
    assert tolerance(-100.0, 0.5, ASSUMED) == pytest.approx(10.5)


def test_numbers_of_a_table_keep_their_digits_in_a_stored_run() -> None:
    """0.5 h in Table 3 is met by 0.54, and no verdict of a stored run forgets that."""
    paper = load("bftrainer")
    result = next(one for one in paper.results if one.result_id == "table3")
    kept = {"key": "cell", "what": "AlexNet", "ours": 0.57, "paper": 0.5, "holds": None}
    assert result.inputs == TRAINERS
    for half, expected in ((0.05, "fitted"), (0.0, "not reproduced")):
        full = FullRun(recorded={}, ours={"table3": [{**kept, "half_unit": half}]})
        [line] = full._lines(result)
        assert verdict_of(line, result) == expected


# ---- one verdict for one printed number --------------------------------------------------------


@pytest.mark.parametrize("paper", PAPERS, ids=names())
def test_a_reading_is_of_a_line_that_has_a_verdict(paper: Paper) -> None:
    lines = {one.result_id: one.lines for one in paper.results}
    for result in paper.results:
        for line in result.lines.values():
            if of := line.get("reading_of"):
                name, _, key = of.rpartition(": ")
                printed = lines[name or result.result_id][key]
                assert not printed.get("is_ours")
                assert not printed.get("reading_of")
                assert not (line.get("fitted") and line["fitted"] not in paper.fits)


def test_dl2_prints_four_numbers_of_what_is_played() -> None:
    """44.1, 17.5 and 37.9% in section 6.3, 28% in 6.4; of Optimus against DRF it prints none."""
    paper = load("dl2")
    full = FullRun.read(paper.package)
    assert full is not None
    judged = [(line, verdict) for of, line, verdict in full.judged(paper) if not of.missing]
    numbers = Counter(line.paper for line, _ in judged if line.paper is not None)
    assert numbers == Counter([-44.1, -17.5, -37.9, -28.0])
    assert {verdict for line, verdict in judged if line.paper == -28.0} == {"not reproduced"}


def test_what_is_missing_says_so_and_is_not_attempted() -> None:
    known: dict[str, dict[str, Any]] = {
        "a": {"what": "a", "value": 1},
        "b": {"what": "b", "says": "more"},
    }
    finding = Finding(known=known, drawn={})
    finding.skip("no file")
    result = Result(result_id="x", shows="")
    assert [verdict_of(line, result) for line in finding.lines] == ["not attempted"] * 2
    finding.skip("no file", "b")
    assert [line.key for line in finding.lines] == ["a", "b", "b"]
    assert {line.missing for line in finding.lines} == {"no file"}
    assert isinstance(finding.lines[0], ValueLine)
