"""The one function that starts processes, with real processes."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from bftrainer.batch import process
from tests.support.processes import is_running
from tests.support.waiting import wait_for

PYTHON = sys.executable


def _python(code: str, **more: object) -> process.Completed:
    return process.run([PYTHON, "-c", code], timeout_s=60, **more)  # type: ignore[arg-type]  # passed on


def test_output_status_and_time_come_back() -> None:
    done = _python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (done.stdout, done.stderr, done.returncode) == ("out\n", "err\n", 3)
    assert not done.is_ok
    assert done.wall_s > 0.0
    assert done.argv[0] == PYTHON
    assert _python("pass").is_ok


def test_nothing_is_read_by_a_shell(tmp_path: Path) -> None:
    hostile = f"$(touch {tmp_path}/made); `id`; *"
    done = process.run([PYTHON, "-c", "import sys; print(sys.argv[1])", hostile], timeout_s=60)
    assert done.stdout == hostile + "\n"
    assert not (tmp_path / "made").exists()


def test_environment_directory_and_input_are_handed_over(tmp_path: Path) -> None:
    done = _python(
        "import os, sys; print(sorted(os.environ) == ['A'] or 'A' in os.environ, os.getcwd(),"
        " sys.stdin.read())",
        env={"A": "1"},
        cwd=tmp_path,
        stdin="hello",
    )
    assert done.stdout == f"True {tmp_path} hello\n"
    assert "PATH" not in _python("import os; print(*os.environ)", env={"A": "1"}).stdout.split()


def test_a_command_that_does_not_read_its_input_is_no_error() -> None:
    done = _python("import os; os.close(0); print('done')", stdin="x" * 10_000)
    assert (done.returncode, done.stdout) == (0, "done\n")


@pytest.mark.parametrize("argv", [["/no/such/program"], ["/etc/passwd"], ["/"]])
def test_a_program_that_cannot_be_started_is_127(argv: list[str]) -> None:
    done = process.run(argv, timeout_s=5.0)
    assert (done.returncode, done.is_ok) == (127, False)
    assert done.stderr


def test_a_missing_directory_is_127(tmp_path: Path) -> None:
    done = process.run([PYTHON, "-c", "pass"], timeout_s=5.0, cwd=tmp_path / "gone")
    assert done.returncode == 127
    assert "gone" in done.stderr


def test_at_the_time_limit_the_whole_group_is_killed() -> None:
    done = process.run(["/bin/sh", "-c", "sleep 600 & echo $!; wait"], timeout_s=5.0)
    assert done.timed_out
    assert not done.is_ok
    assert done.returncode == -signal.SIGKILL
    assert done.wall_s < 120.0
    grandchild = int(done.stdout)
    wait_for(lambda: not is_running(grandchild), what="the grandchild is gone")


def test_a_command_that_closes_its_output_is_still_bounded() -> None:
    done = process.run(
        [PYTHON, "-c", "import os, time; os.close(1); os.close(2); time.sleep(600)"],
        timeout_s=1.0,
    )
    assert (done.timed_out, done.returncode) == (True, -signal.SIGKILL)


def test_too_much_output_ends_the_command() -> None:
    done = process.run(
        [PYTHON, "-c", "while True: print('x' * 1000)"], timeout_s=60, output_cap_bytes=5000
    )
    assert done.truncated
    assert not done.timed_out
    assert not done.is_ok
    assert len(done.stdout) <= 5000


def test_bytes_that_are_no_text_come_back_replaced() -> None:
    done = _python("import os; os.write(1, b'a\\xffb')")
    assert done.stdout == "a\ufffdb"


def test_much_output_on_both_streams_does_not_block() -> None:
    done = _python("import sys; sys.stderr.write('e' * 300000); sys.stdout.write('o' * 300000)")
    assert (len(done.stdout), len(done.stderr), done.is_ok) == (300_000, 300_000, True)


def test_spawned_children_have_their_own_session_and_given_descriptors(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    log = tmp_path / "log"
    try:
        with log.open("wb") as out:
            child = process.spawn(
                [
                    PYTHON,
                    "-c",
                    f"import os; os.write({writer}, b'%d' % os.getsid(0)); print(os.getcwd())",
                ],
                cwd=tmp_path,
                stdout=out,
                pass_fds=[writer],
            )
        assert child.wait(30) == 0
        assert int(os.read(reader, 100)) == child.pid
        assert log.read_text() == f"{tmp_path}\n"
    finally:
        os.close(reader)
        os.close(writer)


def test_a_group_that_is_gone_can_be_killed_again() -> None:
    child = process.spawn([PYTHON, "-c", "import time; time.sleep(600)"])
    process.kill_group(child.pid, signal.SIGTERM)
    assert child.wait(30) == -signal.SIGTERM
    process.kill_group(child.pid)


def test_a_command_that_never_reads_its_input_is_killed_in_time() -> None:
    """More than a pipe holds: handing it over must not wait for the reader."""
    argv = [PYTHON, "-c", "import time; time.sleep(600)"]
    done = process.run(argv, timeout_s=1.0, stdin="x" * 4_000_000)
    assert done.timed_out
    assert done.wall_s < 60


def test_a_large_input_arrives_whole() -> None:
    code = "import sys; text = sys.stdin.read(); print(len(text)); sys.stdout.write(text)"
    done = _python(code, stdin="y" * 4_000_000)
    assert done.is_ok
    assert len(done.stdout) == len("4000000\n") + 4_000_000
