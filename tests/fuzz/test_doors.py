"""No door lets an error of another type through, costs too much work, or grows by 50 MB."""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, settings

from tests.fuzz.door import Door, Drawn, all_doors, knock
from tests.support.examples import examples

CASES = 100
DOORS = [pytest.param(door, id=door.name) for door in all_doors()]


@pytest.mark.parametrize("door", DOORS)
def test_what_once_did_harm_does_none(door: Door) -> None:
    for one in door.corpus():
        knock(door, one)


@pytest.mark.parametrize("door", DOORS)
def test_hostile_input_does_no_harm(door: Door) -> None:
    @settings(max_examples=examples(CASES), phases=(Phase.generate,))
    @given(door.drawn())
    def attack(drawn: Drawn) -> None:
        knock(door, drawn)

    attack()


@pytest.mark.parametrize("text", [b"[" * 2**20, b"[" * 32 + b"]" * 2**20])
def test_a_million_brackets_are_looked_at_at_once(text: bytes) -> None:
    door = next(door for door in all_doors() if door.name == "json-depth")
    knock(door, Drawn(text))  # too long for the corpus
