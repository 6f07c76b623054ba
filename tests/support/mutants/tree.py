"""A private copy of a tree, in which one file is changed at a time and tests run.

Its ``.venv`` sees the packages of the tree's own, but this copy of the project first, in isolated
interpreters, too. Tests run in their own namespace of processes: nothing that they start, or that a
changed line kills, is anybody else's.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

PLUGIN: Final = "tests.support.mutants.telling"
SAME: Final = ("--hypothesis-profile=same", "-p", PLUGIN)
APART: Final = (
    *("unshare", "--fork", "--pid", "--mount-proc", "--kill-child"),
    *(() if os.geteuid() == 0 else ("--user", "--map-root-user")),
    *("sh", "-c", '"$0" "$@"; exit $?'),  # waits for orphans, as tests expect of an init
)
_changes = itertools.count(1_000_000_000)  # times of changed files: compiled ones go by them


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a run of tests came to."""

    status: int  # pytest's; negative: it was killed, for being too slow or by what it tested
    ran: tuple[str, ...]  # test by test
    seconds: Mapping[str, float]
    passed: frozenset[str]
    failed: str  # the first test that failed, or ran when all ended; or nothing
    output: str

    @property
    def noticed(self) -> str:
        """Which test noticed something, or nothing."""
        return self.failed or ("collection" if self.status in {2, 4} else "")


class Tree:
    """The copy."""

    def __init__(self, root: Path) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="bft-mutants-"))
        listed = ["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard"]
        for name in subprocess.run(listed, check=True, capture_output=True).stdout.split(b"\0"):
            if name and (root / name.decode()).is_file():
                to = self.root / name.decode()
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name.decode(), to)
        self._make_venv()

    def _make_venv(self) -> None:
        environment = self.root / ".venv"
        venv.create(environment, symlinks=True)
        own = Path(sys.prefix)
        packages = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
        self._start = environment / packages / "tree.pth"
        self.at_start(f"import site; site.addsitedir({str(own / packages)!r})")
        for path in [*(own / "bin").iterdir(), *(own / "lib").iterdir()]:
            to = environment / path.relative_to(own)
            if path.name.startswith("bftrainer"):
                to.write_text(path.read_text().replace(str(own), str(environment)))
                to.chmod(0o755)
            elif not to.exists():
                to.symlink_to(path)

    def at_start(self, line: str) -> None:
        """Have all interpreters run one more line when they start."""
        before = self._start.read_text() if self._start.exists() else f"{self.root}\n"
        self._start.write_text(f"{before}{line}\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        shutil.rmtree(self.root)

    def read(self, file: str) -> str:
        """Return a file's text; of one that is not there, nothing."""
        path = self.root / file
        return path.read_text("utf-8") if path.exists() else ""

    @contextmanager
    def changed(self, file: str, text: str) -> Iterator[None]:
        """Have another text in a file."""
        before = self.read(file)
        try:
            self._write(file, text)
            yield
        finally:
            self._write(file, before)

    def _write(self, file: str, text: str) -> None:
        (self.root / file).write_text(text, "utf-8")
        time = next(_changes)
        os.utime(self.root / file, (time, time))

    def test(
        self,
        tests: Iterable[str],
        *options: str,
        limit_s: float | None = None,
        **environment: str,
    ) -> Told:
        """Run these tests in this order; of files, all tests."""
        tests = list(tests)
        told, wanted = self.root / ".told", self.root / ".wanted"
        told.write_text("")
        wanted.write_text(json.dumps([t for t in tests if "::" in t]))
        argv = [str(self.root / ".venv/bin/python"), "-m", "pytest", *SAME, *options]
        argv += dict.fromkeys(t.split("::")[0] for t in tests)
        with (self.root / ".output").open("w+") as output:
            child = subprocess.Popen(
                [*APART, *argv],
                cwd=self.root,
                env={
                    **{k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
                    "PYTHONPATH": f"{self.root}:{self.root / 'scripts'}",
                    "MUTANTS_TOLD": str(told),
                    "MUTANTS_WANTED": str(wanted),
                    **environment,
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                status = child.wait(limit_s)
            except subprocess.TimeoutExpired:
                status = -signal.SIGKILL
            finally:
                child.kill()
                child.wait()
            output.seek(0)
            return _read(status, told.read_text().splitlines(), output.read())


def _read(status: int, lines: Sequence[str], output: str) -> Told:
    ran: list[str] = []
    seconds: dict[str, float] = {}
    passed: set[str] = set()
    failed = ""
    for test, took_s, is_bad in map(json.loads, lines):
        if took_s is None:
            ran.append(test)
        else:
            seconds[test] = took_s
            failed = failed or (test if is_bad else "")
            passed |= set() if is_bad else {test}
    running = next((t for t in ran if t not in seconds), "")
    return Told(
        status=status,
        ran=tuple(ran),
        seconds=seconds,
        passed=frozenset(passed),
        failed=failed or running,
        output=output,
    )
