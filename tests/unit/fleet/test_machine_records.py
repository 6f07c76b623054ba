"""Generation machines as the journal has them: what it holds of them stays as it was.

The steps in ``machine_steps_before_parts.json`` were written by the release (commit edce2513) whose
machine had forty fields of its own: a machine, its next step, and the digest of the machine after.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bftrainer.fleet.generations.generation import GenerationMachine
from bftrainer.fleet.generations.rescale_log import RescaleStep, answer_of, copied
from bftrainer.fleet.generations.restart import RestartMachine
from bftrainer.fleet.generations.state import Course, CoursePhase
from bftrainer.model.canonical import digest, from_plain, to_plain

RECORDED = Path(__file__).parents[2] / "fixtures/journal/machine_steps_before_parts.json"
STEPS: list[dict[str, Any]] = json.loads(RECORDED.read_text())
KINDS: dict[str, type[GenerationMachine]] = {
    "GenerationMachine": GenerationMachine,
    "RestartMachine": RestartMachine,
}


def machine_of(plain: dict[str, Any]) -> GenerationMachine:
    return from_plain(plain, KINDS[plain["type"]])


def test_a_machine_of_the_release_before_is_written_as_it_was_read() -> None:
    for recorded in STEPS:
        assert to_plain(machine_of(recorded["machine"])) == recorded["machine"]


def test_a_machine_of_the_release_before_goes_on_as_it_did() -> None:
    for recorded in STEPS:
        machine, step = machine_of(recorded["machine"]), from_plain(recorded["step"], RescaleStep)
        try:
            answer = answer_of(machine.handle(step.stimulus, step.at_s))
        except KeyError as problem:
            answer = f"raised {type(problem).__name__}"
        assert answer == step.answer
        assert digest(machine) == recorded["after"]


def test_a_copy_shares_nothing_that_can_be_changed() -> None:
    """Failed when a part of the copy was that of the machine: the record changed while it grew."""
    for recorded in STEPS:
        machine = machine_of(recorded["machine"])
        shared = {id(part) for part in changeable(machine)} & {
            id(part) for part in changeable(copied(machine))
        }
        assert not shared


def changeable(value: Any) -> Iterator[Any]:
    """All that can be changed in place in a value, however deep."""
    inner: list[Any] = []
    if dataclasses.is_dataclass(value):
        if not type(value).__dataclass_params__.frozen:  # type: ignore[union-attr]  # an instance
            yield value
        inner = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif isinstance(value, Mapping):
        yield value
        inner = list(value.values())
    elif isinstance(value, set | list):
        yield value
    elif isinstance(value, tuple):
        inner = list(value)
    for item in inner:
        yield from changeable(item)


@pytest.mark.parametrize(
    ("phase", "is_parking", "is_ended", "next_phases"),
    [
        (CoursePhase.OPEN, False, False, {CoursePhase.PARKING, CoursePhase.ENDED}),
        (CoursePhase.PARKING, True, False, {CoursePhase.OPEN, CoursePhase.ENDED_PARKING}),
        (CoursePhase.ENDED, False, True, set()),
        (CoursePhase.ENDED_PARKING, True, True, set()),
    ],
)
def test_a_course_changes_by_its_table_alone(
    phase: CoursePhase, *, is_parking: bool, is_ended: bool, next_phases: set[CoursePhase]
) -> None:
    course = Course(phase=phase)
    assert (course.is_parking, course.is_ended) == (is_parking, is_ended)
    plain = to_plain(course)
    assert (plain["is_parking"], plain["is_ended"]) == (is_parking, is_ended)
    assert from_plain(plain, Course) == course
    for other in CoursePhase:
        course = Course(phase=phase)
        assert course.becomes(other) == (other in next_phases)
        assert course.phase is (other if other in next_phases else phase)
    course = Course(phase=phase)
    assert course.end() == (not is_ended)
    assert course.is_ended
    assert course.is_parking == is_parking
