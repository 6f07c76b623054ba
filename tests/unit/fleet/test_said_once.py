"""A trouble is logged once, and again after all was well."""

from __future__ import annotations

from bftrainer.fleet.logs import MOST, SaidOnce


def test_each_sentence_is_new_once_until_the_trouble_is_over() -> None:
    said = SaidOnce()
    assert not said.is_over()
    assert said.new(["away", "away"]) == ("away",)
    assert said.new(["slow", "away"]) == ("slow",)
    assert said.new(["away"]) == ()
    assert said.is_over()
    assert said.new(["away"]) == ("away",)


def test_a_trouble_that_changes_its_words_for_ever_does_not_fill_the_log() -> None:
    said = SaidOnce()
    assert len(said.new(str(n) for n in range(10 * MOST))) == MOST
    assert said.new(["one more"]) == ()
