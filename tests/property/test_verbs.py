"""Whenever the daemon is restarted, the journal gives back what users have asked for."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from bftrainer.fleet.trainers.trainers import TrainerBook
from bftrainer.fleet.wire.router import RefusedMessages
from bftrainer.journal.journal import Journal
from bftrainer.model.trainer import TrainerChange, TrainerRecord, TrainerSpec, TrainerState
from bftrainer.site.policy.model import SitePolicy
from tests.support.examples import examples

_number = st.integers(1, 6)  # of a trainer, if it is there
_changes = st.builds(
    TrainerChange,
    is_held=st.none() | st.booleans(),
    n_min=st.none() | st.integers(1, 2),
    n_max=st.none() | st.integers(2, 4),
    weight=st.none() | st.just(2.0),
    name=st.none() | st.just("new"),
)
_after = st.lists(_number, max_size=3)
_operations = st.one_of(
    st.tuples(st.just("submit"), _after, _after, st.booleans()),
    st.tuples(st.just("change"), _number, _changes),
    st.tuples(st.just("end"), _number, st.sampled_from([s for s in TrainerState if s.is_final])),
    st.tuples(st.just("cancel"), _number),
    st.tuples(st.just("requeue"), _number),
    st.tuples(st.just("restart")),
)


class Life:
    """Books of one journal, one after another."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "journal.db"
        self.now_s = 0.0
        self._open()

    def _open(self) -> None:
        self.journal = Journal.open(self._path, clock=lambda: self.now_s)
        self.book = TrainerBook(
            journal=self.journal,
            policy=SitePolicy(),
            incarnation=self.journal.begin_incarnation(),
            send=lambda _pilot_id, _message: True,
            clock=lambda: self.now_s,
            on_change=lambda: None,
            refusals=RefusedMessages(logging.getLogger("test.verbs")),
        )

    def does(self, operation: tuple[Any, ...]) -> None:
        self.now_s += 1.0
        match operation:
            case ("submit", after, after_any, hold):
                self.book.submit(
                    TrainerSpec(
                        name="n", user="u", script="/s", n_min=1, n_max=2, hold=hold,
                        after=self._known(after), after_any=self._known(after_any),
                    )
                )  # fmt: skip
            case ("change", number, change) if self._is_open(number):
                self.book.change(f"t{number}", change)
            case ("end", number, state) if self._is_open(number):
                self.book._finish(f"t{number}", state, "It ended.")
            case ("cancel", number) if self._known([number]):
                self.book.cancel(f"t{number}")
            case ("requeue", number) if self._known([number]):
                self.book.requeue(f"t{number}")
            case _:
                pass

    def _known(self, numbers: list[int]) -> tuple[str, ...]:
        return tuple(f"t{n}" for n in numbers if f"t{n}" in self.book.records)

    def _is_open(self, number: int) -> bool:
        record = self.book.records.get(f"t{number}")
        return record is not None and not record.state.is_final

    def restart(self) -> None:
        self.journal.close()
        self._open()

    def state(self) -> tuple[dict[str, TrainerRecord], dict[str, str], list[str]]:
        waiting = self.book.waiting
        return (
            dict(self.book.records),
            waiting.withheld(),
            [record.trainer_id for record in waiting.eligible()],
        )


def lived(operations: list[tuple[Any, ...]], *, restarts: bool) -> Any:
    with TemporaryDirectory() as directory:
        life = Life(Path(directory))
        for operation in operations:
            if operation[0] == "restart" and restarts:
                life.restart()
            life.does(operation)
            check(life.book)
        with closing(life.journal):
            return life.state()


def check(book: TrainerBook) -> None:
    withheld, eligible = book.waiting.withheld(), set[str]()
    for record in book.waiting.eligible():
        eligible.add(record.trainer_id)
        assert record.held_s is None
        for trainer_id in (*record.spec.after, *record.spec.after_any):
            assert book.records[trainer_id].state.is_final
        for trainer_id in record.spec.after:
            assert book.records[trainer_id].state is TrainerState.FINISHED
    open_ones = {r.trainer_id: r for r in book.waiting_and_running()}
    assert open_ones.keys() == eligible | withheld.keys()
    assert not eligible & withheld.keys()
    for trainer_id, record in open_ones.items():
        machine = book.trainers[trainer_id].machine
        assert (machine.size_range.n_min, machine.size_range.n_max) == (
            record.spec.n_min,
            record.spec.n_max,
        )


HOLD, RELEASE = TrainerChange(is_held=True), TrainerChange(is_held=False, n_max=4)
PLAIN: tuple[Any, ...] = ("submit", [], [], False)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(_operations, max_size=14))
@example([PLAIN, ("change", 1, HOLD), ("restart",), ("change", 1, RELEASE), ("cancel", 1)])
@example([PLAIN, ("submit", [1], [], True), ("end", 1, TrainerState.FINISHED), ("restart",)])
@example([PLAIN, ("submit", [1], [1], False), ("cancel", 1), ("requeue", 1), ("restart",)])
def test_restarts_of_the_daemon_change_nothing_of_what_users_asked_for(
    operations: list[tuple[Any, ...]],
) -> None:
    assert lived([*operations, ("restart",)], restarts=True) == lived(
        [*operations, ("restart",)], restarts=False
    )
