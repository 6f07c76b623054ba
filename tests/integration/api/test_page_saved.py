"""A page whose daemon has ended: what it told last, served on and as one file."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from bftrainer.api.client import Client
from bftrainer.api.page.door import tunnel
from bftrainer.api.page.saved import SavedSource, write_page
from bftrainer.api.page.source import LiveSource
from bftrainer.cli.main import main
from bftrainer.lab.demo.page import RunPage
from bftrainer.model.errors import BftError
from bftrainer.model.trainer import TrainerState
from tests.integration.api.test_page_browser import HOSTILE, Page, record
from tests.support.browser import complaints, driver, resize
from tests.support.memory_service import MemoryService, prepare_home, serving, socket_of
from tests.support.timelines import PLAN, trained
from tests.support.waiting import wait_for

__all__ = ["driver"]


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryService:
    memory = MemoryService(prepare_home(tmp_path, monkeypatch))
    memory.records["t1"] = record("t1", state=TrainerState.FINISHED)
    memory.records["t2"] = record("t2", name=HOSTILE, state=TrainerState.FAILED, reason="Out.")
    memory.saw(trained(time.time() - 60.0, n1="", n2="t1"), PLAN)
    memory.saw(trained(time.time(), n1="t2", n2="t1"), PLAN)
    return memory


def test_one_file_shows_all_without_a_server(
    driver: Any, service: MemoryService, tmp_path: Path
) -> None:
    file = tmp_path / "new" / "page.html"
    with serving(service, socket_of()):
        write_page(SavedSource(LiveSource(Client(socket_of()), "a </title> site")), file)
    page = Page(driver=driver, service=service, links=[])
    resize(driver, 1280, 900)
    driver.get(file.as_uri())
    page.says("As it was at", "#link")
    page.says("finished", "#trainers")  # nobody trains: those that have ended are there at once
    page.says("<img", "#trainers")
    page.click('[data-trainer="t1"]')
    page.says("A third would gain less than it costs.", "#explain")
    page.says("2 held, 1 requested, 1 idle, 4 in all", "#head")
    page.says("node-hours without ordinary jobs", "#sum")
    assert page.run("return document.title") == "a </title> site"
    assert page.run("return performance.getEntriesByType('resource').length") == 0
    assert complaints(driver) == []


def test_the_page_of_a_run_stays_until_enter(
    driver: Any, service: MemoryService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its daemon ends while somebody looks; the picture and the trainers stay."""
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.7 40000 192.0.2.1 22")
    leader, follower = os.openpty()
    said: list[str] = []
    shown = Page(driver=driver, service=service, links=said)
    with (
        os.fdopen(follower) as terminal,
        RunPage(said.append, tmp_path / "page.html", is_served=True) as run,
    ):
        monkeypatch.setattr(sys, "stdin", terminal)
        with serving(service, socket_of()), run.of(Client(socket_of())):
            assert "ssh -N -L" in said[1]
            link = said[2].removeprefix("Open ")
            driver.get(link)
            shown.says("Live", "#link")
        waiting = threading.Thread(target=run.wait)
        waiting.start()
        shown.says("As it was at", "#link")
        shown.says("finished", "#trainers")
        shown.click('[data-trainer="t1"]')
        shown.says("A third would gain less than it costs.", "#explain")
        assert waiting.is_alive()
        os.write(leader, b"\n")
        waiting.join(60)
        assert not waiting.is_alive()
        port = int(link.partition("#")[0].rstrip("/").rpartition(":")[2])
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=10)
    os.close(leader)
    driver.get("about:blank")
    complaints(driver)
    assert (tmp_path / "page.html").exists()
    assert any("page stays until you press Enter" in line for line in said)


def test_nobody_waits_without_a_terminal(
    service: MemoryService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with RunPage(lambda _: None, is_served=True) as run:
        with serving(service, socket_of()), run.of(Client(socket_of())):
            pass
        with (tmp_path / "train.py").open() as no_terminal:
            monkeypatch.setattr(sys, "stdin", no_terminal)
            run.wait()
            assert no_terminal.tell() == 0


def test_a_page_that_cannot_be_written_is_told(service: MemoryService, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file")
    said: list[str] = []
    with serving(service, socket_of()):
        saved = SavedSource(LiveSource(Client(socket_of()), "a site"))
        with pytest.raises(BftError, match="cannot be written") as told:
            write_page(saved, taken / "page.html")
        with RunPage(said.append, taken / "page.html") as run, run.of(Client(socket_of())):
            pass
    assert told.value.code == "BFT-1460"
    assert said[-1].startswith("The page is not kept: BFT-1460: ")


@pytest.mark.parametrize(
    ("names", "connection", "host"),
    [
        (("login1.site", "login1"), "", "login1.site"),
        (("localhost", "login1"), "192.0.2.7 4 192.0.2.1 22", "login1"),
        (("localhost.localdomain", "localhost"), "192.0.2.7 4 192.0.2.1 22", "192.0.2.1"),
    ],
)
def test_a_tunnel_ends_at_no_localhost(
    names: tuple[str, str], connection: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.getfqdn", lambda: names[0])
    monkeypatch.setattr("socket.gethostname", lambda: names[1])
    monkeypatch.setenv("SSH_CONNECTION", connection)
    assert tunnel(4711)[1].endswith(f"@{host}")


def test_a_submission_tells_what_comes_next(
    service: MemoryService, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(service, socket_of()):
        assert main(["submit", "--socket", str(socket_of()), "train.py"]) == 0
        told = capfd.readouterr()
        assert told.out == "Submitted trainer t3\n"
        named = f"--socket {socket_of()}"
        for command in ("status t3", "logs t3 --follow", "cancel t3"):
            assert f"next: bftrainer {command} {named}" in told.err
        assert main(["submit", "--parsable", "-J", "other", "train.py"]) == 0
        assert "next:" not in capfd.readouterr().err
    wait_for(lambda: not socket_of().exists())
