"""What counts as a failure in a row, when a trainer is given up, and in which words."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from bftrainer.cli.status import row_of, trainer_lines
from bftrainer.daemon.explain.trainers import trouble, trouble_sentences
from bftrainer.fleet.generations.failures import MAX_BACKOFF_S, FailureCounts, given_up
from bftrainer.fleet.generations.members import describe_exit
from bftrainer.model.canonical import decode, encode
from bftrainer.model.trainer import FailureRow, Mark, TrainerRecord, TrainerState
from bftrainer.model.views import TrainerView
from bftrainer.site.policy.model import SitePolicy
from tests.support.snapshots import record

RAISED = "BFT-1410: The script raised {}: {}. The traceback is in the worker's log."
POLICY = SitePolicy()


class Tries:
    """One trainer's failures and a clock that lets every back-off pass."""

    def __init__(self, *, trained: bool = True) -> None:
        self.failures, self.now_s = FailureCounts(), 1000.0
        self.record = replace(record(), started_s=1.0 if trained else None)

    def fail(self, cause: str = "It was killed.", node: str = "n1") -> str | None:
        self.now_s += 2 * MAX_BACKOFF_S
        assert self.failures.note(node, cause, "/logs/t1-1-1.log", self.now_s)
        self.record = replace(self.record, failures=self.record.failures + 1)
        return given_up(self.failures, self.record, POLICY)


@pytest.mark.parametrize(
    "code", ["BFT-1401", "BFT-1404", "BFT-1424", "BFT-1428", "BFT-1450", "BFT-1453", "BFT-1611"]
)
def test_what_would_happen_again_anywhere_is_not_tried_again(code: str) -> None:
    why = Tries().fail(f"{code}: The reported metric is not a finite number: nan.")
    assert why == "This fails on every node, so it is not tried again."


def test_steps_that_are_done_again_are_no_progress() -> None:
    tries = Tries()
    tries.failures.started(Mark())
    why = None
    for number in range(1, 6):
        for step in range(1, 6):
            tries.failures.progressed(Mark(step=step, samples=step), ("n1",))
        why = tries.fail()
        assert tries.failures.row.count == number
        tries.failures.started(Mark())
    assert why == (
        "That was failure 5 in a row without getting beyond step 5 (failure_budget),"
        " the last on n1."
    )


@pytest.mark.parametrize("to", [Mark(step=6), Mark(epoch=1), Mark(samples=51)])
def test_any_count_beyond_all_before_is_progress(to: Mark) -> None:
    tries = Tries()
    tries.failures.progressed(Mark(step=5, samples=50), ())
    for _ in range(4):
        assert tries.fail() is None
    tries.failures.progressed(to, ())
    assert tries.failures.row.count == 0


def test_after_a_loss_of_state_what_is_kept_on_the_way_back_is_progress() -> None:
    tries = Tries()
    tries.failures.progressed(Mark(step=100_000), ())
    tries.failures.started(Mark())  # all copies and checkpoints were lost
    for kept in range(0, 90_000, 7_000):
        tries.failures.progressed(Mark(step=kept + 7_000), ())
        assert tries.fail() is None
        tries.failures.started(Mark(step=kept + 7_000))


def test_a_start_from_the_same_checkpoint_is_no_progress() -> None:
    tries = Tries()
    tries.failures.started(Mark(step=4))
    tries.failures.progressed(Mark(step=5), ())
    found = []
    for start in (4, 0, 4, 0, 4):  # of two disks, one of which has no checkpoint
        found.append(tries.fail())
        tries.failures.started(Mark(step=start))
    assert found[:4] == [None] * 4
    assert found[4] is not None


def test_the_back_off_grows_within_a_row() -> None:
    failures, now_s, waits = FailureCounts(), 0.0, []
    for _ in range(8):
        assert failures.note("n1", "It was killed.", "", now_s)
        failures.progressed(Mark(), ("n1",))  # the very same place
        waits.append(failures.row.next_try_s - now_s)
        now_s = failures.row.next_try_s
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_a_clock_that_was_turned_back_delays_nobody() -> None:
    failures = FailureCounts()
    failures.note("n1", "It was killed.", "", 1e9)
    assert not failures.may_start(1e9)
    assert failures.may_start(1e9 - 3600.0)


def test_an_error_in_the_script_itself_is_not_tried_again() -> None:
    for kind in ("SyntaxError", "IndentationError", "TabError"):
        why = Tries(trained=False).fail(RAISED.format(kind, "invalid syntax (train.py, line 3)"))
        assert why == "This fails on every node, so it is not tried again."
        assert Tries().fail(RAISED.format(kind, "in a configuration it reads late")) is None


def test_the_same_words_on_another_node_are_enough_before_any_training() -> None:
    said = RAISED.format("ModuleNotFoundError", "No module named 'there'")
    tries = Tries(trained=False)
    assert tries.fail(said) is None
    assert tries.fail(said, "n2") == "It failed the same way on n1 and n2, before any training."
    tries = Tries(trained=False)
    tries.fail(said)
    assert "no other node was available" in (tries.fail(said) or "")


@pytest.mark.parametrize(
    ("said", "other", "is_same"),
    [
        ("worker (pid(s) 17, 18) exited", "worker (pid(s) 4711, 4712) exited", True),
        ("no file /tmp/tmpab/x-1.pt", "no file /scratch/tmpcd/x-2.pt", True),
        ("<Net object at 0x7f3e10> on gpu-07", "<Net object at 0x55aa> on gpu-11", True),
        ("'alpha' is no column", "'beta' is no column", False),
        ("got status 3", "got status 4", False),
        ("", "something", False),
    ],
)
def test_words_are_compared_without_numbers_addresses_and_paths(
    said: str, other: str, is_same: bool
) -> None:
    tries = Tries(trained=False)
    assert tries.fail(RAISED.format("RuntimeError", said)) is None
    assert (tries.fail(RAISED.format("RuntimeError", other), "n2") is not None) == is_same
    tries = Tries(trained=False)
    tries.fail(RAISED.format("RuntimeError", said))
    assert tries.fail(RAISED.format("OSError", said), "n2") is None
    tries = Tries(trained=False)
    tries.fail("BFT-1410: It broke.")
    assert tries.fail("BFT-1411: It broke.", "n2") is None


def test_members_that_differ_are_the_same_failure_whoever_is_named() -> None:
    tries = Tries(trained=False)
    said = "BFT-1421: The workers of this trainer have datasets of different length: {}."
    assert tries.fail(said.format("4 samples on anna, 5 samples on bert")) is None
    assert "failed the same way" in (tries.fail(said.format("6 samples on bert"), "n2") or "")


def test_a_generation_without_a_step_is_no_training() -> None:
    said = RAISED.format("RuntimeError", "worker exited")
    tries = Tries()  # it has been in a generation
    tries.failures.started(Mark())
    assert tries.fail(said) is None
    tries.failures.started(Mark())
    assert "failed the same way" in (tries.fail(said, "n2") or "")
    tries = Tries()  # a program need not say how far it is
    tries.record = replace(tries.record, spec=replace(tries.record.spec, runtime="command"))
    tries.fail(said)
    assert tries.fail(said, "n2") is None


def test_other_words_signals_and_trainers_that_have_trained_have_the_whole_budget() -> None:
    tries = Tries(trained=False)
    found = [tries.fail(RAISED.format("OSError", what), "n1") for what in ("a", "b", "c", "d")]
    assert found == [None] * 4
    tries = Tries(trained=False)
    assert [tries.fail(describe_exit(-9), f"n{n}") for n in range(4)] == [None] * 4
    tries = Tries()
    tries.failures.progressed(Mark(step=1), ())
    said = RAISED.format("OSError", "no such file")
    assert [tries.fail(said, f"n{n}") for n in range(4)] == [None] * 4
    assert "without getting beyond step 1 (failure_budget)" in (tries.fail(said) or "")


def test_without_quarantine_a_node_alone_condemns_nobody_early() -> None:
    tries = Tries(trained=False)
    said = RAISED.format("OSError", "no such file")
    tries.fail(said)
    tries.fail(said)
    switched_off = SitePolicy(quarantine_s=0.0)
    assert given_up(tries.failures, tries.record, switched_off) is None


@pytest.mark.parametrize(
    ("returncode", "words"),
    [
        (-9, "killed by signal 9 (SIGKILL); an out-of-memory kill looks like this."),
        (-11, "killed by signal 11 (SIGSEGV)."),
        (-9999, "killed by signal 9999."),
        (2, "ended with status 2 before"),
    ],
)
def test_an_exit_is_put_into_words(returncode: int, words: str) -> None:
    assert words in describe_exit(returncode)


def _troubled(**changes: object) -> TrainerRecord:
    row = FailureRow(
        count=3, cause="It was killed.", node="n1", log_path="/logs/a.log", next_try_s=107.0
    )
    base = replace(record(), state=TrainerState.PARKED, failing=row)
    return replace(base, **changes)  # type: ignore[arg-type]  # field names checked by replace


def test_a_trainer_in_a_row_of_failures_says_what_it_waits_for() -> None:
    after = (
        " after failure 3 of 5 without getting any further, on n1: It was killed."
        " Its log: /logs/a.log"
    )
    assert trouble(_troubled(), 5, 100.0) == f"Waits 7 s{after}"
    assert trouble(_troubled(), 5, 106.9) == f"Waits a moment{after}"
    assert trouble(_troubled(), 5, 200.0) == f"Is tried again{after}"
    running = replace(record().progress, size=1)
    at_work = _troubled(state=TrainerState.RUNNING, progress=running)
    assert trouble(at_work, 5, 100.0) == f"Goes on{after}"
    one = _troubled()
    placed = replace(one, failing=replace(one.failing, place="train.py:12"))
    assert "It was killed. Raised at train.py:12. Its log:" in trouble(placed, 5, 100.0)


def test_a_trainer_that_fares_well_or_has_ended_says_nothing_of_the_kind() -> None:
    assert trouble(record(), 5, 100.0) == ""
    assert trouble(_troubled(state=TrainerState.FAILED), 5, 100.0) == ""
    assert trouble_sentences(record(), 5, 100.0) == ()


def test_status_shows_it_in_place_of_the_state_of_being_parked() -> None:
    view = TrainerView(
        record=_troubled(reason="It has no nodes; it resumes from its last checkpoint."),
        planned_nodes=(),
        requested_nodes=(),
        observed_nodes=(),
        trouble="Waits 7 s after failure 3 of 5.",
    )
    assert row_of(view, 100.0)[-1] == view.trouble
    assert ("trouble", view.trouble) in trainer_lines(view)
    quiet = replace(view, trouble="")
    assert row_of(quiet, 100.0)[-1].startswith("It has no nodes")
    assert "trouble" not in dict(trainer_lines(quiet))


def test_the_row_is_in_the_journal() -> None:
    one = _troubled(cancelled_s=3.0)
    assert decode(encode(one), TrainerRecord) == one


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_a_signal_before_any_training_is_no_mistake_of_the_script(number: signal.Signals) -> None:
    tries = Tries(trained=False)
    tries.fail(describe_exit(-number))
    assert tries.fail(describe_exit(-number), "n2") is None
