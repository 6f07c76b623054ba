"""How trainers end, and how their workers' failures are counted."""

from __future__ import annotations

from bftrainer.fleet.generations import stimuli
from bftrainer.fleet.generations.generation import END_PATIENCE_S
from bftrainer.fleet.generations.members import (
    Ended,
    Parked,
    StartWorkerOn,
    WorkerFailed,
)
from bftrainer.fleet.lifecycle import WorkerPhase
from bftrainer.ground import protocol
from bftrainer.model.trainer import FailureRow
from tests.support.generations import Driver, offer

# ---- the end ------------------------------------------------------------------------------


def test_the_end_of_rank_0_is_the_end() -> None:
    d = Driver()
    d.form("n1", "n2")
    d.finish("n2")
    d.finish("n1")
    first, second = d.on("n1"), d.on("n2")
    assert not d.exit(second)
    assert d.wanted(Ended, d.exit(first)) == [Ended(step=50, epoch=3, samples=500)]
    assert d.machine.course.is_ended
    assert not d.target("n1", "n2", "n3")


def test_others_may_run_on_for_a_while_after_the_end() -> None:
    d = Driver()
    d.form("n1", "n2")
    d.target("n1", "n2", "n3")
    joiner = d.on("n3")
    d.finish("n1")
    d.finish("n2")
    late = d.on("n2")
    d.exit(d.on("n1"))
    assert d.killed() == {joiner: "ended"}
    assert not d.wait(END_PATIENCE_S)
    assert d.killed(d.wait(0.1)) == {late: "ended"}


def test_nothing_forms_and_nobody_starts_while_finishing() -> None:
    d = Driver()
    d.form("n1", "n2")
    d.finish("n1")
    assert not d.target("n1", "n2", "n3")
    assert not d.lose_agent("n2")


def test_rank_0_of_a_generation_just_committed_ends_it_too() -> None:
    d = Driver()
    d.form("n1", "n2", "n3")
    d.target("n2", "n3")
    d.ready()
    d.leave(d.on("n1"), 2)
    d.enter(skip=["n3"])  # the word of n3 is still on its way
    d.finish("n2")
    assert d.wanted(Ended, d.exit(d.on("n2")))


def test_a_first_rank_lost_after_the_loop_is_repeated_from_the_checkpoint() -> None:
    d = Driver()
    d.form("n1", "n2")
    d.finish("n1")
    d.finish("n2")
    d.lose_agent("n1")
    assert not d.wanted(Ended, d.exit(d.on("n2")))
    assert d.wanted(Parked)
    assert d.started() == ["n2"]


def test_an_exit_without_the_end_is_a_failure() -> None:
    d = Driver()
    d.form("n1")
    worker = d.on("n1")
    d.machine.crew.workers[worker].log_path = "/logs/w"
    (failed,) = d.wanted(WorkerFailed, d.exit(worker, 0))
    assert failed.cause == "The worker ended with status 0 before its training was complete."
    assert (failed.log_path, failed.next_step) == ("/logs/w", "Read its log: /logs/w.")


def test_a_crash_after_the_loop_is_a_failure() -> None:
    d = Driver()
    d.form("n1")
    d.finish("n1")
    out = d.exit(d.on("n1"), 1)
    assert d.wanted(WorkerFailed, out)
    assert not d.wanted(Ended, out)


def test_a_closed_machine_wants_nothing_more() -> None:
    d = Driver()
    d.form("n1", "n2")
    worker = d.on("n1")
    d.machine.handle(stimuli.TrainerClosed(), d.now_s)
    assert not d.target("n1", "n2", "n3")
    assert not d.exit(worker, -9)
    assert not d.wait(1e6)


# ---- failures and backoff ------------------------------------------------------------------


def test_a_script_that_fails_is_tried_again_later_and_later() -> None:
    d = Driver()
    d.target("n1")
    waits = []
    for _ in range(9):
        d.say(
            d.on("n1"),
            protocol.Failed(code="BFT-1410", cause="It raised.", next_step="Read the log."),
        )
        (failed,) = d.wanted(WorkerFailed, d.exit(d.on("n1"), 1))
        assert failed.cause == "BFT-1410: It raised. Read the log."
        assert not d.started()
        begin = d.now_s
        while not d.started():
            d.wait(0.25)
        waits.append(d.now_s - begin)
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]
    assert d.machine.failures.row.count == 9


def test_many_failures_overflow_nothing() -> None:
    d = Driver()
    d.machine.failures.row = FailureRow(count=5000)
    d.target("n1")
    assert d.wanted(WorkerFailed, d.exit(d.on("n1"), 1))


def test_progress_forgives() -> None:
    d = Driver()
    d.target("n1")
    d.exit(d.on("n1"), 1)
    d.wait(1.0)
    d.form("n1", step=5)
    assert d.machine.failures.row.count == 1
    d.progress("n1", 6)
    assert d.machine.failures.row.count == 0
    assert (d.machine.mark.step, d.machine.mark.samples) == (6, 60)


def test_workers_that_fail_at_once_are_one_failure() -> None:
    d = Driver()
    d.form("n1", "n2", "n3")
    for node in ("n1", "n2", "n3"):
        d.exit(d.on(node), 1)
    assert len(d.wanted(WorkerFailed, d.log)) == 3
    assert d.machine.failures.row.count == 1


def test_a_bad_node_is_tried_ever_more_seldom_while_the_others_train() -> None:
    d = Driver()
    d.form("n1")
    d.target("n1", "n2")
    waits = []
    for step in range(1, 8):
        d.exit(d.on("n2"), 1)
        d.progress("n1", step)
        begin = d.now_s
        while not d.started():
            d.wait(0.25)
        waits.append(d.now_s - begin)
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    assert d.machine.failures.row.count == 0  # no reason to give the trainer up
    d.target("n1", "n3")
    assert d.started() == ["n3"]  # other nodes are not made to wait
    d.target("n1", "n2")
    d.warm("n2")
    d.ready()
    d.enter()
    d.progress("n1", 8)
    d.exit(d.on("n2"), 1)
    assert not d.wait(0.4) or not d.started()
    d.wait(0.1)
    assert d.started() == ["n2"]  # it worked in between: the count starts anew


def test_old_progress_does_not_turn_the_clock_back() -> None:
    d = Driver()
    d.form("n1", "n2", step=5)
    d.progress("n1", 9)
    d.progress("n2", 8)
    assert d.machine.mark.step == 9


def test_the_batch_system_taking_the_node_is_no_failure() -> None:
    d = Driver()
    d.form("n1", "n2")
    assert not d.wanted(WorkerFailed, d.exit(d.on("n2"), -15))
    assert d.machine.failures.row.count == 0
    assert d.machine.crew.workers[d.machine.crew.members[1]].phase is WorkerPhase.GONE


def test_a_signal_is_named() -> None:
    d = Driver()
    d.form("n1")
    (failed,) = d.wanted(WorkerFailed, d.exit(d.on("n1"), -11))
    assert failed.cause == "The worker was killed by signal 11 (SIGSEGV)."


def test_strangers_and_ghosts_are_ignored() -> None:
    d = Driver()
    d.form("n1")
    gone = d.on("n1")
    d.lose_agent("n1")
    for worker_id in ("t9-1-1", gone):
        assert not d.say(worker_id, protocol.Warm(warm_up_s=1.0))
        assert not d.exit(worker_id, 1)
    assert not d.say(gone, protocol.Prepare(generation=1, attempt=1))


def test_a_node_that_returns_with_another_pilot_gets_a_new_worker() -> None:
    d = Driver()
    d.form("n1")
    d.lose_agent("n1")
    out = d.machine.handle(stimuli.TargetsSet(offers=(offer("n1", "p-new"),)), d.now_s)
    assert [(s.pilot_id, s.worker_id) for s in d.wanted(StartWorkerOn, out)] == [
        ("p-new", "t1-1-2")
    ]
