"""The journal in a real PostgreSQL: the same promises as in a file."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bftrainer.batch.local.client import start_server
from bftrainer.cli.main import cli
from bftrainer.journal import Journal
from bftrainer.journal.mark import MARK_NAME
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.errors import BftError
from bftrainer.model.trainer import TrainerState
from tests.integration.daemon_scripts import light_spec
from tests.integration.journal.test_journal_full import POLICY
from tests.support.postgres import Postgres, running_postgres
from tests.support.site import Site
from tests.support.waiting import wait_for
from tests.unit.journal import test_journal as of_a_file

ALIKE = (
    of_a_file.test_what_was_written_is_there_after_a_restart,
    of_a_file.test_every_start_has_a_greater_incarnation,
    of_a_file.test_pilot_ids_and_trainer_ids_are_never_given_twice,
    of_a_file.test_pilots_can_be_read_without_those_that_ended,
    pytest.param(of_a_file.test_entries_can_be_filtered_and_paged, marks=pytest.mark.long),
    of_a_file.test_a_daemon_that_was_replaced_can_write_no_more,
    of_a_file.test_a_reader_beside_the_daemon_never_makes_it_wait,
    of_a_file.test_a_refused_entry_leaves_nothing,
    of_a_file.test_text_that_databases_refuse_survives,
    of_a_file.test_a_closed_journal_is_not_quietly_opened_again,
    of_a_file.test_threads_may_write_at_once,
    of_a_file.test_a_journal_of_an_earlier_schema_is_brought_up_to_date,
)


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with running_postgres() as running:
        yield running


@pytest.fixture
def url(server: Postgres, request: pytest.FixtureRequest) -> str:
    return server.create(f"t{abs(hash(request.node.name))}")


@pytest.mark.parametrize("test", ALIKE, ids=lambda test: test.__name__[5:])
def test_it_is_as_in_a_file(test: Any, url: str) -> None:
    test(url)


class Databases:
    """In place of pytest's directories: each has a database for its journal."""

    def __init__(self, server: Postgres) -> None:
        self._server, self._count = server, 0

    def mktemp(self, name: str) -> Databases:
        self._count += 1
        self._name = f"{name}{self._count}"
        return self

    def __truediv__(self, _file: str) -> Any:
        return self._server.create(self._name)


@pytest.mark.long
def test_the_tables_are_what_the_entries_add_up_to(server: Postgres) -> None:
    test: Any = of_a_file.test_the_tables_are_what_the_entries_add_up_to
    test(Databases(server))


def test_what_was_acknowledged_survives_a_crash_of_the_server_and_a_writer_waits_for_it(
    server: Postgres, url: str, tmp_path: Path
) -> None:
    mark = tmp_path / MARK_NAME
    with Journal.open(url, clock=lambda: 1.0, mark_file=mark) as journal:
        journal.begin_incarnation()
        acknowledged = [journal.append("x", {"n": n}) for n in range(50)]
        server.stop(signal.SIGQUIT)
        try:
            with pytest.raises(BftError) as raised:
                journal.append("x", {"n": "away"})
            assert raised.value.code == "BFT-2211"
            assert journal.trouble is not None
            journal.note("y", {"n": 1})
        finally:
            server.start()

        def is_written() -> bool:
            journal.catch_up()
            return journal.trouble is None

        wait_for(is_written, what="it is written again")
        assert journal.verify() == acknowledged[-1] + 2
        assert [e.kind for e in journal.entries(after_seq=acknowledged[-1])] == ["caught-up", "y"]
    with Journal.open(url, clock=lambda: 1.0, mark_file=mark) as journal:
        assert journal.verify() == acknowledged[-1] + 2


@pytest.mark.long
def test_retention_and_checkpoints_work_beside_a_reader(url: str) -> None:
    over = threading.Event()
    with Journal.open(url, clock=of_a_file.Clock()) as journal:
        journal.begin_incarnation()

        def read() -> None:
            with Journal.open(url, clock=lambda: 1.0) as reader:
                while not over.is_set():
                    reader.verify()

        reading = threading.Thread(target=read)
        reading.start()
        try:
            for number in range(300):
                journal.append("x", {"n": number})
            assert journal.compact(0.0) > 300
        finally:
            over.set()
            reading.join()
        assert journal.verify() == 1


def test_a_daemon_with_nothing_to_write_notices_that_another_took_over(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bftrainer.journal.journal.ASKED_EVERY_S", 0.1)
    with Journal.open(url, clock=lambda: 1.0) as old, Journal.open(url, clock=lambda: 1.0) as new:
        old.begin_incarnation()
        old.write_beside()
        new.begin_incarnation()

        def code() -> str:
            try:
                old.catch_up()
            except BftError as problem:
                return problem.code
            return ""

        assert wait_for(code, what="it is told") == "BFT-2209"


def test_a_dump_lacks_what_came_later_and_that_is_said(
    server: Postgres, url: str, tmp_path: Path
) -> None:
    mark, spec = tmp_path / MARK_NAME, of_a_file.spec()
    with Journal.open(url, clock=lambda: 1.0, mark_file=mark) as journal:
        journal.begin_incarnation()
        journal.submit(spec, 1.0)
        dumped = server.dump(url.partition("@/")[2].partition("?")[0])
        assert journal.submit(spec, 1.0).trainer_id == "t2"
    restored = server.restored("restored", dumped)
    with pytest.raises(BftError, match="missing: trainers t2") as raised:
        Journal.open(restored, clock=lambda: 1.0, mark_file=mark)
    assert raised.value.code == "BFT-2213"
    with Journal.open(restored, clock=lambda: 1.0, mark_file=mark, accepted_loss=3) as journal:
        journal.begin_incarnation()
        assert journal.submit(spec, 1.0).trainer_id == "t3"
    checked = CliRunner().invoke(cli, ["journal", "verify", restored])
    assert checked.output.startswith("Entries checked: 4;")


class Elsewhere(DaemonProcess):
    """A daemon whose journal is in a database."""

    url = ""

    def argv(self) -> tuple[str, ...]:
        return (*super().argv(), "--journal", self.url)

    def open(self) -> Journal:
        return Journal.open(self.url, clock=lambda: 0.0)


def daemon(tmp_path: Path, name: str, url: str, socket: Path) -> Elsewhere:
    made = Elsewhere(
        tmp_path / name, batch_system="local", batch_options={"socket": str(socket)}, policy=POLICY
    )
    made.url = url
    return made


@pytest.fixture
def site(url: str, tmp_path: Path) -> Iterator[Site]:
    with start_server(tmp_path / "local", n_nodes=2, cycle_s=0.5) as local:
        sidecar = daemon(tmp_path, "state", url, local.socket_path)
        try:
            sidecar.start()
            yield Site(tmp_path, local, sidecar)
        finally:
            sidecar.stop()


@pytest.mark.long
def test_a_daemon_outlives_its_database_and_the_next_one_takes_over(
    site: Site, server: Postgres, tmp_path: Path
) -> None:
    sidecar = site.sidecar
    assert isinstance(sidecar, Elsewhere)
    pid = sidecar.pid
    trainer = site.client.submit(light_spec(tmp_path / "one")).record.trainer_id
    site.trains_at(trainer, 2)
    server.stop(signal.SIGQUIT)
    try:
        with pytest.raises(BftError, match="BFT-2211"):
            site.client.submit(light_spec(tmp_path / "two"))
        wait_for(lambda: any("BFT-2211" in f for f in site.client.status().failures), what="said")
        assert "bftrainer_journal_writable 0" in site.client.metrics()
        site.trains_on(trainer)
    finally:
        server.start()
    wait_for(
        lambda: "bftrainer_journal_writable 1" in site.client.metrics(), what="it is written again"
    )
    assert sidecar.pid == pid
    assert sidecar.log.read_text().count("ERROR bftrainer.journal: BFT-2211") == 1, "said once"
    second = site.client.submit(light_spec(tmp_path / "two")).record.trainer_id
    sidecar.kill()
    sidecar.start()
    site.trains_at(trainer, 1, 2)
    site.trains_on(trainer)
    assert site.view(second).record.state is not TrainerState.FAILED
    with sidecar.open() as journal:
        assert journal.verify() > 0
        assert [one.trainer_id for one in journal.trainers()] == [trainer, second]
    # A daemon elsewhere, whose lock is another one, takes the journal over.
    other = daemon(tmp_path, "other", sidecar.url, site.server.socket_path)
    try:
        other.start()
        wait_for(lambda: not sidecar.is_running(), what="the first ends")
        assert "BFT-2209" in sidecar.out.read_text() + sidecar.log.read_text()
        assert other.client.status().incarnation == 3
    finally:
        other.stop()
