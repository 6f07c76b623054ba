"""What the daemon keeps of workers' reports: verdicts for the journal, speeds for decisions."""

from __future__ import annotations

from bftrainer.fleet.generations.members import Rescaled
from bftrainer.fleet.trainers.speeds import Replaced, SpeedBook, Straggler
from bftrainer.ground.protocol import Progress


def _report(own_s: float, generation: int = 1) -> Progress:
    return Progress(
        generation=generation,
        step=1,
        epoch=0,
        samples=8,
        step_s=0.4,
        samples_per_s=20.0,
        own_s=own_s,
        share=2,
    )


def _rescaled(generation: int, *nodes: str) -> Rescaled:
    return Rescaled(
        generation=generation,
        attempt=1,
        size_before=3,
        size=len(nodes),
        reason="planned",
        pause_s=0.1,
        formation_s=0.2,
        step=10,
        epoch=0,
        samples=80,
        nodes=nodes,
        resumed_from="",
    )


class Book:
    """A book and everything it has written down."""

    def __init__(self, threshold: float = 0.8) -> None:
        self.written: list[tuple[str, str, Straggler | Replaced]] = []
        self.book = SpeedBook(threshold, lambda *entry: self.written.append(entry))

    def rounds(self, count: int, generation: int = 1, **own_s: float) -> int:
        """Every node reports so many times; how often decisions had something new to hear."""
        return sum(
            self.book.on_progress("t1", node, _report(seconds, generation))
            for _ in range(count)
            for node, seconds in own_s.items()
        )


def test_a_verdict_is_written_once_and_told_to_decisions() -> None:
    site = Book()
    assert site.rounds(40, n1=0.1, n2=0.1, n3=0.4) > 0
    ((trainer, kind, what),) = site.written
    assert (trainer, kind) == ("t1", "straggler")
    assert isinstance(what, Straggler)
    assert (what.node, what.is_slow) == ("n3", True)
    assert site.book.speeds(()).keys() == {"n3"}
    assert site.book.is_uneven("t1")
    assert site.rounds(20, n1=0.1, n2=0.1, n3=0.4) == 0
    assert site.rounds(40, n1=0.1, n2=0.1, n3=0.1) > 0
    assert [w.is_slow for _, _, w in site.written if isinstance(w, Straggler)] == [True, False]
    assert site.book.speeds(()) == {}
    assert site.book.speeds(("n3", "n9")) == {"n3": 1.0}  # remembered, and measured since
    assert not site.book.is_uneven("t1")


def test_the_change_in_which_it_leaves_is_written_down() -> None:
    site = Book()
    site.rounds(40, n1=0.1, n2=0.1, n3=0.4)
    site.book.staying("t1", {"n3": "n4"})
    site.book.on_rescaled("t1", _rescaled(2, "n1", "n2", "n3"))  # somebody else's change
    assert site.book.replaced == 0
    site.book.on_rescaled("t1", _rescaled(3, "n1", "n2", "n4"))
    _, kind, what = site.written[-1]
    assert kind == "straggler-replaced"
    assert isinstance(what, Replaced)
    assert (what.node, what.replacement, what.pause_s) == ("n3", "n4", 0.1)
    assert (site.book.found, site.book.replaced) == (1, 1)
    assert site.book.speeds(()) == {}
    assert not site.book.is_uneven("t1")


def test_a_threshold_of_zero_watches_nobody() -> None:
    site = Book(threshold=0.0)
    assert site.rounds(40, n1=0.1, n2=0.1, n3=0.9) == 0
    assert site.book.speeds(("n3",)) == {}
    assert not site.written


def test_a_trainer_that_is_over_is_forgotten() -> None:
    site = Book()
    site.rounds(40, n1=0.1, n2=0.1, n3=0.4)
    site.book.forget("t1")
    assert site.book.speeds(()) == {}
