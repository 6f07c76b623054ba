"""A PostgreSQL server of a test: on a Unix socket in a directory of its own, ended with it."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.waiting import wait_for

_PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
ACCOUNT = "postgres"  # the server refuses to run as root


class Postgres:
    """The server; it may be killed and started again."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._data = directory, directory / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._user = ACCOUNT if os.getuid() == 0 else None
        self.run("initdb", "-D", str(self._data), "-U", ACCOUNT, "-A", "trust", "-N")

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://{ACCOUNT}@/{database}?host={self._directory}"

    def create(self, database: str) -> str:
        """A new database; returns its URL."""
        self.run("createdb", "-h", str(self._directory), "-U", ACCOUNT, database)
        return self.url(database)

    def run(self, program: str, *argv: str, said: str = "") -> str:
        done = subprocess.run(
            [str(_PROGRAMS[-1] / program), *argv], input=said,
            user=self._user, cwd="/", capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def dump(self, database: str) -> str:
        """The SQL of a database, as ``pg_dump`` writes it."""
        return self.run("pg_dump", "-h", str(self._directory), "-U", ACCOUNT, database)

    def restored(self, database: str, dumped: str) -> str:
        """A new database from that; returns its URL."""
        url = self.create(database)
        where = ("-h", str(self._directory), "-U", ACCOUNT, "-d", database)
        self.run("psql", *where, "-q", "-v", "ON_ERROR_STOP=1", said=dumped)
        return url

    def start(self) -> None:
        argv = [str(_PROGRAMS[-1] / "postgres"), "-D", str(self._data), "-k", str(self._directory)]
        # The machine does not crash, only the server; its checkpoints would wait for the disk.
        settings = ("listen_addresses=", "fsync=off", "shared_buffers=8MB", "max_connections=20")
        argv += [word for one in settings for word in ("-c", one)]
        with (self._directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(argv, user=self._user, cwd="/", stdout=log, stderr=log)
        wait_for(self._answers, what="PostgreSQL answers")

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT: fast shutdown; SIGQUIT: as after a crash."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(60)

    def _answers(self) -> bool:
        done = subprocess.run(
            [str(_PROGRAMS[-1] / "pg_isready"), "-q", "-h", str(self._directory)],
            check=False, timeout=60,
        )  # fmt: skip
        return done.returncode == 0


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Start a server; skips where PostgreSQL or its driver is not installed."""
    pytest.importorskip("psycopg", reason="pip install 'bftrainer[postgresql]'")
    if not _PROGRAMS:
        pytest.skip("PostgreSQL is not installed")
    directory = Path(tempfile.mkdtemp(prefix="bft-pg-", dir="/tmp"))  # its socket's name is short
    if os.getuid() == 0:
        account = pwd.getpwnam(ACCOUNT)
        os.chown(directory, account.pw_uid, account.pw_gid)
    try:
        server = Postgres(directory)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory)
