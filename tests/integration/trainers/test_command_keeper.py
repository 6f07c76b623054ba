"""The keeper of runtime ``command`` with real programs: every clause of the contract."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import trainers.examples
from bftrainer.batch import process
from bftrainer.ground import protocol
from tests.support.keeper import KeeperProcess
from tests.support.processes import is_running
from tests.support.waiting import wait_for

# Says where it is, then waits; what it does with requests is for each test to add.
HEAD = """\
import os, signal, subprocess, sys, time
from pathlib import Path
here = Path(os.environ["BFT_CHECKPOINT_DIR"])
"""
TAIL = """
print("BFT step=3 samples=30")
while True:
    time.sleep(0.01)
"""
SAVES = """
def save(number, frame):
    (here / "state").write_text("saved")
    sys.exit(85)
signal.signal(signal.SIGUSR1, save)
"""

# Prints as much as the pipe takes, until it is asked to save.
FLOOD = """
print("BFT step=3 samples=30", flush=True)
while True:
    os.write(1, {block} * 4096)
"""


def test_a_checkpoint_is_asked_for_measured_and_found_again(tmp_path: Path) -> None:
    with KeeperProcess(tmp_path, HEAD + SAVES + TAIL) as keeper:
        keeper.wait(protocol.Warm)
        keeper.start(4)
        entered = keeper.wait(protocol.Entered)
        assert (entered.generation, entered.step, entered.samples) == (4, 3, 30)
        assert entered.resumed_from == ""
        keeper.stop()
        assert keeper.ended() == 0
        (saved,) = keeper.said(protocol.Saved)
        assert saved.step == 3
        assert saved.wall_s > 0.0
        assert isinstance(keeper.heard[-1], protocol.Left)
        assert (tmp_path / "checkpoints" / "latest" / "state").read_text() == "saved"
    with KeeperProcess(tmp_path, HEAD + SAVES + TAIL) as second:
        second.start(7)
        assert second.wait(protocol.Entered).resumed_from.endswith("generation-7")
        assert (tmp_path / "checkpoints" / "generation-7" / "state").exists()
        assert not (tmp_path / "checkpoints" / "generation-4").exists()


def test_what_a_program_is_told(tmp_path: Path) -> None:
    text = HEAD + "print('env', dict(os.environ))" + TAIL
    with KeeperProcess(tmp_path, text) as keeper:
        ready = keeper.start(5, "t1-1-2", "t1-1-3")
        keeper.wait(protocol.Entered)
        told = keeper.log_has("env {")
        for words in (
            "'BFT_SIZE': '3'", "'BFT_RANK': '0'", "'BFT_GENERATION': '5'", "'WORLD_SIZE': '3'",
            "'BFT_NODES': 'node-of-t1-1-1,node-of-t1-1-2,node-of-t1-1-3'",
            "'MASTER_ADDR': '127.0.0.1'", f"'MASTER_PORT': '{ready.store_port}'",
            "'BFT_CHECKPOINT_INTERVAL_S': '600'",
        ):  # fmt: skip
            assert words in told


def test_its_metrics_are_reported_and_what_is_none_is_said_in_its_log(tmp_path: Path) -> None:
    text = HEAD + (
        'print("BFT step=1 value=0.5")\n'
        'print("BFT step=2 samples=20 value=nan")\n'
        'print("BFT value=-2e-3")'
    )
    with KeeperProcess(tmp_path, text + TAIL) as keeper:
        keeper.start(5)
        wait_for(lambda: len(keeper.said(protocol.Reported)) == 2, what="two reports")
        assert [m.reports for m in keeper.said(protocol.Reported)] == [
            (first := (protocol.Report(value=0.5, step=1),)),
            (*first, protocol.Report(value=-0.002, step=2, samples=20)),
        ]
        kinds = [type(m) for m in keeper.heard]
        assert kinds.index(protocol.Entered) < kinds.index(protocol.Reported)
        assert "bftrainer: BFT-1611: The reported metric is not a finite" in keeper.log()
    with KeeperProcess(tmp_path, text + TAIL, worker_id="t1-1-2") as other:
        other.start(5, "t1-1-1", rank=1)
        other.log_has("BFT step=3")
        assert not other.said(protocol.Reported)


@pytest.mark.parametrize(
    "block",
    [b"x" * 79 + b"\n", bytes(n for n in range(256) if n != 10), b"BFT step=3 value=0.5\n"],
    ids=["lines", "bytes", "reports"],
)
def test_one_that_prints_without_end_is_heard_and_asked_to_leave(
    tmp_path: Path, block: bytes
) -> None:
    text = HEAD + SAVES + FLOOD.format(block=block)
    with KeeperProcess(tmp_path, text, has_log=False) as keeper:
        keeper.start(4)
        keeper.wait(protocol.Entered)
        keeper.stop()
        keeper.wait(protocol.Left)
        assert keeper.said(protocol.Saved)


def test_one_whose_budget_grows_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """Runs the example in rungs and at once."""
    example = Path(trainers.examples.__file__).parent / "command_sgd.py"

    def train(directory: Path, *budgets: int) -> tuple[protocol.Reported, str]:
        directory.mkdir()
        for generation, samples in enumerate(budgets, start=1):
            with KeeperProcess(directory, example.read_text(), samples=samples) as keeper:
                keeper.start(generation)
                assert keeper.wait(protocol.Finished).samples == samples
                assert keeper.ended() == 0
                reported = keeper.wait(protocol.Reported)
        return reported, (directory / "checkpoints" / "latest" / "sgd.json").read_text()

    at_once = train(tmp_path / "at-once", 24 * 90)
    assert train(tmp_path / "rungs", 24 * 10, 24 * 30, 24 * 90) == (
        protocol.Reported(generation=3, reports=at_once[0].reports),
        at_once[1],
    )


def test_its_end_is_the_trainers(tmp_path: Path) -> None:
    with KeeperProcess(tmp_path, "print('BFT step=9 samples=90')") as keeper:
        keeper.start(1, "t1-1-2")
        assert keeper.ended() == 0
        (finished,) = keeper.said(protocol.Finished)
        assert (finished.step, finished.samples) == (9, 90)
        assert keeper.said(protocol.Entered)


def test_another_ranks_end_is_not_but_can_be_left(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "generation-1").mkdir(parents=True)
    with KeeperProcess(tmp_path, "print('done')") as keeper:
        keeper.start(1, "t1-1-2", rank=1)
        keeper.log_has("ended with status 0")
        keeper.wait(protocol.Entered)
        assert keeper.child.poll() is None
        keeper.stop()
        assert keeper.ended() == 0
        assert not keeper.said(protocol.Finished)


def test_a_program_that_does_not_save_in_time_is_killed_with_its_children(tmp_path: Path) -> None:
    text = (
        HEAD
        + "signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
        + "child = subprocess.Popen(['sleep', '600'])\nprint('child', child.pid)"
        + TAIL
    )
    with KeeperProcess(tmp_path, text, grace_s=0.3) as keeper:
        keeper.start(1)
        keeper.wait(protocol.Entered)
        child = int(keeper.log_has("child ").split("child ")[1].split()[0])
        keeper.stop()
        assert keeper.ended() == 0
        (interrupted,) = keeper.said(protocol.Interrupted)
        assert "status -9" in interrupted.reason
        assert not keeper.said(protocol.Saved)
        wait_for(lambda: not is_running(child), what="its child is gone")


def test_the_control_file_says_it_too(tmp_path: Path) -> None:
    text = HEAD + (
        "control = Path(os.environ['BFT_CONTROL_FILE'])\n"
        "print('BFT ready')\n"
        "while 'save' not in control.read_text(): time.sleep(0.01)\n"
        "print('saved and goes on')\n"
        "while 'stop' not in control.read_text(): time.sleep(0.01)\n"
        "sys.exit(7)\n"
    )
    with KeeperProcess(
        tmp_path, text, interval_s=0.2, stop_signal="none", saved_status=7
    ) as keeper:
        keeper.start(1)
        keeper.log_has("saved and goes on")
        keeper.stop()
        assert keeper.ended() == 0
        assert keeper.said(protocol.Saved)


def test_a_signal_of_its_own_asks_to_save_and_go_on(tmp_path: Path) -> None:
    text = HEAD + "signal.signal(signal.SIGUSR2, lambda *_: print('saved'))" + SAVES + TAIL
    with KeeperProcess(tmp_path, text, interval_s=0.3, save_signal="USR2") as keeper:
        keeper.start(1)
        wait_for(lambda: keeper.log().count("saved") >= 2, what="two periodic checkpoints")
        keeper.stop()
        assert keeper.ended() == 0
        assert keeper.said(protocol.Saved)


def test_one_that_asks_to_be_started_again_is(tmp_path: Path) -> None:
    text = HEAD + (
        "again = (here / 'again').exists()\n"
        "(here / 'again').touch()\n"
        "print('run', 2 if again else 1)\n"
        "time.sleep(0 if again else 1.1)\n"
        "sys.exit(0 if again else 85)\n"
    )
    with KeeperProcess(tmp_path, text) as keeper:
        keeper.start(1)
        assert keeper.ended() == 0
        assert "run 2" in keeper.log()
        assert keeper.said(protocol.Finished)


def test_one_that_others_told_before_we_did_has_saved_all_the_same(tmp_path: Path) -> None:
    with KeeperProcess(tmp_path, HEAD + "print('BFT ready'); sys.exit(85)") as keeper:
        keeper.start(1, "t1-1-2")
        keeper.log_has("ended with status 85")
        keeper.stop()
        assert keeper.ended() == 0
        assert keeper.said(protocol.Saved)
        assert "started again" not in keeper.log()


def test_a_failure_is_said_and_one_after_a_loss_is_none(tmp_path: Path) -> None:
    text = HEAD + "print('BFT ready'); time.sleep(0.1); sys.exit(3)"
    with KeeperProcess(tmp_path, text) as alone:
        alone.start(1)
        assert alone.ended() != 0
        (failed,) = alone.said(protocol.Failed)
        assert failed.code == "BFT-1418"
        assert "status 3" in failed.cause
    with KeeperProcess(tmp_path, text) as one_of_two:
        one_of_two.start(2, "t1-1-2")
        one_of_two.log_has("ended with status 3")
        one_of_two.stop(abandon=True)
        assert one_of_two.ended() == 0
        assert not one_of_two.said(protocol.Failed)


def test_what_cannot_be_started_is_explained(tmp_path: Path) -> None:
    with KeeperProcess(tmp_path, "") as keeper:
        keeper.checkpoints.rmdir()
        keeper.start(1)
        assert keeper.ended() != 0
        assert keeper.said(protocol.Failed)[0].code == "BFT-1415"


def test_an_older_generation_is_refused(tmp_path: Path) -> None:
    with KeeperProcess(tmp_path, HEAD + SAVES + TAIL) as newer:
        newer.start(8)
        newer.wait(protocol.Entered)
        with KeeperProcess(tmp_path, HEAD + SAVES + TAIL, worker_id="t1-1-2") as older:
            older.start(7)
            assert older.ended() != 0
            assert older.said(protocol.Failed)[0].code == "BFT-1416"


@pytest.mark.parametrize("rank", [0, 1])
def test_launched_on_the_first_node_only(tmp_path: Path, rank: int) -> None:
    with KeeperProcess(tmp_path, HEAD + SAVES + TAIL, launch="first") as keeper:
        keeper.start(1, "t1-1-2", rank=rank)
        keeper.wait(protocol.Entered)
        assert keeper.log().count("BFT step=3") == (1 if rank == 0 else 0)
        keeper.stop()
        assert keeper.ended() == 0
        assert bool(keeper.said(protocol.Saved)) is (rank == 0)


def test_a_broken_generation_is_killed_at_once(tmp_path: Path) -> None:
    with KeeperProcess(tmp_path, HEAD + SAVES + TAIL) as keeper:
        keeper.start(1, "t1-1-2")
        keeper.wait(protocol.Entered)
        keeper.stop(abandon=True)
        assert keeper.ended() == 0
        assert not keeper.said(protocol.Saved)
        assert not (tmp_path / "checkpoints" / "generation-1" / "state").exists()


def test_nothing_outlives_an_agent_or_a_keeper(tmp_path: Path) -> None:
    text = HEAD + "print('pid', os.getpid())" + TAIL
    with KeeperProcess(tmp_path, text) as keeper:
        keeper.start(1)
        program = int(keeper.log_has("pid ").split("pid ")[1].split()[0])
        assert os.getpgid(program) == keeper.child.pid
        keeper.socket.close()  # what the agent's death looks like
        assert keeper.child.wait(20) == -signal.SIGKILL
        wait_for(lambda: not is_running(program), what="the program is gone")
    with KeeperProcess(tmp_path, text, worker_id="t1-1-2") as second:
        second.start(2)
        program = int(second.log_has("pid ").split("pid ")[1].split()[0])
        process.kill_group(second.child.pid)  # KillWorker
        second.child.wait()
        wait_for(lambda: not is_running(program), what="the program is gone")


@pytest.mark.long
def test_a_program_that_says_nothing_counts_as_started_after_a_while(tmp_path: Path) -> None:
    with KeeperProcess(tmp_path, HEAD + "time.sleep(60)") as keeper:
        keeper.start(1)
        keeper.log_has("rank 0 of 1")
        assert not keeper.said(protocol.Entered)
        assert keeper.wait(protocol.Entered).step == 0
        assert keeper.child.poll() is None
