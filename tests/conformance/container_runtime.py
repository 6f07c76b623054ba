"""What every container runtime must do: one test class, subclassed for each of them.

A subclass gives the fixture ``kit``: the image, the order for the entry, and the environment in
which the entry finds the runtime. It starts programs through the entry, as agents do.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from bftrainer.batch.containers.place import PACKAGE, command_of
from bftrainer.model.container import ContainerOrder
from tests.support.processes import is_running
from tests.support.waiting import wait_for

SECRET = "kept-off-command-lines"  # noqa: S105 - of a test
TELLING = """\
import json, os, sys
print(json.dumps({"pid": os.getpid(), "cwd": os.getcwd(), "uid": os.getuid(),
                  "environ": dict(os.environ)}))
"""
# Says that it runs, and then ends by what it is told.
WAITING = """\
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: os._exit(85))
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(600)
"""
ANSWERING = """\
import socket, sys
channel = socket.socket(fileno=int(sys.argv[1]))
channel.sendall(channel.recv(100).upper())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerKit:
    """A runtime of this machine, or what stands for it, and an image with a Python."""

    order: ContainerOrder
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    python: str = sys.executable
    is_real: bool = True  # else the program runs beside, and what is mounted does not show
    mounts_read_only: bool = True
    ends_with_group: bool = True  # else a helper of its own has to be ended, as agents do

    def argv(self, *program: str, **changes: object) -> list[str]:
        """Return the command line of the entry for a program of the image's Python."""
        order = replace(self.order, **changes)  # type: ignore[arg-type]
        return [*command_of(), order.encoded(), self.python, *program]


def ran(
    kit: ContainerKit,
    *program: str,
    environ: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    **changes: object,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return subprocess.run(
        kit.argv(*program, **changes),
        env={**kit.environ, **(environ or {})},
        pass_fds=pass_fds,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@contextmanager
def waiting(
    kit: ContainerKit, directory: Path, **given: str
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Give the entry of a program that waits, and the program's own pid."""
    script, told = directory / "wait.py", directory / "pid"
    script.write_text(WAITING)
    entry = subprocess.Popen(
        kit.argv(str(script), str(told), variables=tuple(given)),
        env={**kit.environ, **given},
        start_new_session=True,
    )
    try:
        wait_for(
            lambda: entry.poll() is not None or (told.exists() and bool(told.read_text())),
            what="the program runs",
        )
        assert entry.poll() is None
        yield entry, int(told.read_text())
    finally:
        if entry.poll() is None:
            os.killpg(entry.pid, signal.SIGKILL)
            entry.wait()
        if told.exists() and not kit.ends_with_group:
            with suppress(ProcessLookupError):
                os.kill(int(told.read_text()), signal.SIGKILL)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # it has ended
        return b""


class ContainerConformance:
    """The tests themselves; subclasses start with ``Test``."""

    def test_a_program_is_a_process_of_this_machine_and_user(
        self, kit: ContainerKit, tmp_path: Path
    ) -> None:
        done = ran(kit, "-c", TELLING)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert (told["cwd"], told["uid"]) == (kit.order.workdir, os.getuid())
        with waiting(kit, tmp_path) as (entry, pid):
            assert is_running(pid)
            assert kit.python.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
            assert entry.poll() is None

    @pytest.mark.parametrize("status", [85, 255])
    def test_its_exit_status_is_passed_on(self, kit: ContainerKit, status: int) -> None:
        assert ran(kit, "-c", f"raise SystemExit({status})").returncode == status

    def test_the_signal_that_ended_it_is_passed_on(self, kit: ContainerKit) -> None:
        done = ran(kit, "-c", "import os; os.kill(os.getpid(), 15)")
        assert done.returncode == -signal.SIGTERM

    def test_a_signal_to_the_entry_reaches_it(self, kit: ContainerKit, tmp_path: Path) -> None:
        with waiting(kit, tmp_path) as (entry, pid):
            entry.send_signal(signal.SIGUSR1)
            assert entry.wait(60) == 85
            assert not is_running(pid)

    def test_it_ends_with_the_process_group(self, kit: ContainerKit, tmp_path: Path) -> None:
        if not kit.ends_with_group:
            pytest.skip("agents adopt what starts its programs (tests/integration)")
        with waiting(kit, tmp_path) as (entry, pid):
            os.killpg(entry.pid, signal.SIGKILL)
            entry.wait(60)
            wait_for(lambda: not is_running(pid), what="the program ended")

    def test_variables_reach_it_and_no_command_line(
        self, kit: ContainerKit, tmp_path: Path
    ) -> None:
        given = {"TOKEN": SECRET, "BFT_RANK": "3", "PYTHONPATH": "/nowhere", "TMPDIR": "/tmp"}
        done = ran(kit, "-c", TELLING, environ=given, variables=("TOKEN",))
        environ = json.loads(done.stdout)["environ"]
        assert (environ["TOKEN"], environ["BFT_RANK"]) == (SECRET, "3")
        assert environ["TMPDIR"] == "/tmp"
        assert "PYTHONPATH" not in environ  # the host's
        with waiting(kit, tmp_path, TOKEN=SECRET) as (_, pid):
            assert SECRET.encode() in Path(f"/proc/{pid}/environ").read_bytes()
            lines = [_read(file) for file in Path("/proc").glob("[0-9]*/cmdline")]
            assert not any(SECRET.encode() in line for line in lines)

    def test_descriptors_are_inherited(self, kit: ContainerKit, tmp_path: Path) -> None:
        script = tmp_path / "answer.py"
        script.write_text(ANSWERING)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.sendall(b"heard")
            ours.settimeout(60)
            done = ran(kit, str(script), str(theirs.fileno()), pass_fds=(theirs.fileno(),))
            assert done.returncode == 0, done.stderr
            assert ours.recv(100) == b"HEARD"

    def test_nothing_of_ours_has_to_be_mounted(self, kit: ContainerKit, tmp_path: Path) -> None:
        """The script's directory and that of the order are seen, at the same place."""
        script, checkpoints = tmp_path / "save.py", tmp_path / "made" / "later"
        script.write_text(
            "import sys, pathlib; pathlib.Path(sys.argv[1], 'saved').write_text('x');"
            f"assert pathlib.Path({str(PACKAGE)!r}, 'elastic', 'template.py').is_file()"
        )
        done = ran(kit, str(script), str(checkpoints), made=(str(checkpoints),))
        assert done.returncode == 0, done.stderr
        assert (checkpoints / "saved").read_text() == "x"

    def test_a_mount_is_where_it_was_asked_for(self, kit: ContainerKit, tmp_path: Path) -> None:
        if not kit.is_real:
            pytest.skip("what stands for it mounts nothing")
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "file").write_text("there")
        code = "print(open('/data/here/file').read()); open('/data/here/file', 'a').write('!')"
        for option, status in (("", 0), (":ro", 1)):
            mounts = f"{kit.order.mounts},{tmp_path}/data:/data/here{option}"
            done = ran(kit, "-c", code, mounts=mounts)
            if option and not kit.mounts_read_only:
                assert done.returncode == 126
                assert "read-only" in done.stderr
            else:
                assert (done.returncode, done.stdout[:5]) == (status, "there"), done.stderr

    def test_an_image_that_is_not_there_is_told(self, kit: ContainerKit, tmp_path: Path) -> None:
        done = ran(kit, "-c", "", image=str(tmp_path / "no.sif"))
        assert done.returncode == 126
        assert "bftrainer: BFT-1082: The image" in done.stderr
