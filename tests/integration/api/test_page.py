"""The page's server over the real API: who is let in, and what is told when."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from bftrainer.api.client import Client
from bftrainer.api.page.door import KEY_HEADER
from bftrainer.api.page.server import ASSETS, page_of
from bftrainer.api.page.source import LiveSource
from bftrainer.api.page.stream import user
from bftrainer.cli.main import main
from bftrainer.model.timeline import USES
from tests.integration.cli_fixtures import Output, home, output, service
from tests.support.memory_service import MemoryService, serving, socket_of
from tests.support.timelines import PLAN, trained

__all__ = ["home", "output", "service"]


@dataclass(slots=True)
class Browser:
    """What a browser does, over plain HTTP."""

    links: list[str]
    cookie: str = ""
    key: str = ""
    open_: list[http.client.HTTPConnection] = field(default_factory=list)

    @property
    def host(self) -> str:
        return urlsplit(self.links[0]).netloc

    @property
    def port(self) -> int:
        return urlsplit(self.links[0]).port or 0

    def close(self) -> None:
        for connection in self.open_:
            connection.close()

    def ask(
        self, path: str, *, method: str = "GET", body: str | None = None, **headers: str
    ) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        self.open_.append(connection)
        sent = {"Host": self.host, KEY_HEADER: self.key}
        sent |= {"Cookie": self.cookie} if self.cookie else {}
        sent |= {name.replace("_", "-"): text for name, text in headers.items()}
        connection.request(method, f"/{path}", body, sent)
        return connection.getresponse()

    def enter(self) -> None:
        answer = self.ask("enter", method="POST", body=self.links[-1].partition("#")[2])
        assert answer.status == 200
        self.cookie = str(answer.getheader("Set-Cookie")).partition(";")[0]
        self.key = answer.read().decode()

    def status(self, path: str, **headers: str) -> int:
        return self.ask(path, **headers).status

    def events(self) -> Iterator[tuple[str, Any]]:
        answer = self.ask("events")
        assert answer.status == 200
        kind = ""
        for line in answer:
            name, _, text = line.decode().rstrip("\n").partition(": ")
            if name == "event":
                kind = text
            elif name == "data":
                yield kind, json.loads(text)


@pytest.fixture
def browser(service: MemoryService) -> Iterator[Browser]:
    """A browser that has not been let in yet."""
    found = Browser([])
    with page_of(LiveSource(Client(socket_of()), "a site"), found.links.append):
        yield found
        found.close()


def test_nothing_is_told_without_cookie_and_key(browser: Browser) -> None:
    paths = ("known", "events", "explain/t1", "study/s")
    assert [browser.status(path) for path in paths] == [401] * 4
    browser.enter()
    assert browser.status("known") == 204
    key, browser.key = browser.key, "x"
    assert [browser.status(path) for path in paths] == [401] * 4
    assert browser.status(f"known?key={key}") == 401  # addresses are in the logs of proxies


def test_the_page_itself_is_no_secret_and_safe(browser: Browser) -> None:
    for path, (_, kind) in ASSETS.items():
        answer = browser.ask(path)
        assert answer.status == 200
        assert answer.getheader("Content-Type", "").startswith(kind)
        assert "default-src 'none'" in answer.getheader("Content-Security-Policy", "")
        assert answer.getheader("X-Content-Type-Options") == "nosniff"
        assert answer.getheader("Access-Control-Allow-Origin") is None
    assert browser.ask("page.js/../door.py").status in {401, 404}


def test_other_hosts_and_sites_are_refused(browser: Browser) -> None:
    browser.enter()
    assert browser.status("known", Host="evil.example") == 403
    assert browser.status("known", Host=f"127.0.0.1:{browser.port}") == 403
    assert browser.status("known", Origin="https://evil.example") == 403
    assert browser.status("known", Sec_Fetch_Site="cross-site") == 403
    token = browser.links[-1].partition("#")[2]
    assert browser.ask("enter", method="POST", body=token, Origin="null").status == 403


def test_an_address_that_others_had_before_says_nothing_of_the_page(browser: Browser) -> None:
    for name in ("127.0.0.1", "localhost", "[::1]"):
        answer = browser.ask("", Host=f"{name}:{browser.port}")
        assert answer.status == 403
        told = f"{answer.getheaders()} {answer.read().decode()}"
        assert "Open the link" in told
        assert browser.host.partition(":")[0] not in told


def test_a_token_that_is_too_long_is_not_read(browser: Browser) -> None:
    assert browser.ask("enter", method="POST", body="x" * 5000).status == 413


def test_a_whole_picture_comes_first_then_what_is_new(
    browser: Browser, service: MemoryService
) -> None:
    service.saw(trained(time.time(), n1="", n2="t1"), PLAN)
    browser.enter()
    events = browser.events()
    assert next(events) == ("hello", {"title": "a site", "is_live": True, "user": user()})
    kind, first = next(events)
    assert kind == "news"
    assert first["timeline"]["is_whole"]
    assert first["timeline"]["nodes"] == ["n1", "n2"]
    assert first["head"]["nodes"] == [2, 1, 1, 4]
    assert {"harm", "harvest by day", "harvest by user", "harvest by account"} <= first.keys()
    service.saw(trained(time.time(), n1="t1", n2="t1"), PLAN)
    kind, second = next(events)
    assert not second["timeline"]["is_whole"]
    assert [row[1:] for row in second["timeline"]["changes"]] == [[0, USES.index("training"), "t1"]]
    assert "harm" not in second  # it is as it was


def test_a_daemon_that_is_away_is_told_and_comes_back(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, links = MemoryService(home), list[str]()
    memory.saw(trained(time.time(), n1=""), PLAN)
    browser = Browser(links)
    with page_of(LiveSource(Client(socket_of()), "a site"), links.append):
        browser.enter()
        events = browser.events()
        next(events)
        assert next(events)[0] == "away"  # it has not started
        with serving(memory, socket_of()):
            kind, told = next(one for one in events if one[0] != "away")
            assert (kind, told["timeline"]["is_whole"]) == ("news", True)
        kind, told = next(one for one in events if one[0] != "news")
        assert (kind, told["code"]) == ("away", "BFT-1101")
        with serving(memory, socket_of()):
            kind, told = next(one for one in events if one[0] != "away")
            assert told["timeline"]["is_whole"]  # it may be another daemon
        browser.close()


def test_errors_of_the_daemon_are_passed_on(browser: Browser, service: MemoryService) -> None:
    browser.enter()
    answer = browser.ask("explain/t99")
    assert answer.status == 404
    assert json.loads(answer.read())["error"]["code"] == "BFT-1004"


def test_what_cannot_be_a_page_is_refused(
    service: MemoryService,
    output: Output,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert main(["web", "--public-url", "ftp://site"]) == 2
    assert "BFT-1111" in output.readouterr().err
    monkeypatch.setenv("BFTRAINER_WEB_TOKEN", "guessed")
    assert main(["web"]) == 2
    assert "BFT-1113" in output.readouterr().err
