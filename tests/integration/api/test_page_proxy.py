"""The page behind nginx, as docs/howto/page.md says, and behind a portal's Apache."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bftrainer.api.client import Client
from bftrainer.api.page.door import Door, PageAddress
from bftrainer.api.page.listeners import listening
from bftrainer.api.page.server import app, serving_beside
from bftrainer.api.page.source import LiveSource
from tests.integration.api.test_page_browser import Page, record
from tests.integration.cli_fixtures import home, service
from tests.support.browser import chromium, complaints
from tests.support.memory_service import MemoryService, socket_of
from tests.support.timelines import PLAN, trained
from tests.support.waiting import wait_for

__all__ = ["home", "service"]
PAGE = Path(__file__).parents[3] / "docs" / "howto" / "page.md"
HOST = "127.0.0.2"  # as another host, of which portals know a name or an address
_NGINX = """\
daemon off; pid {base}/pid; error_log {base}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {base}/a; proxy_temp_path {base}/b; fastcgi_temp_path {base}/c;
    uwsgi_temp_path {base}/d; scgi_temp_path {base}/e;
    server {{ listen 127.0.0.1:{port}; {location} }}
}}
"""
_PORTAL = """\
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
LoadModule headers_module /usr/lib/apache2/modules/mod_headers.so
LoadModule proxy_module /usr/lib/apache2/modules/mod_proxy.so
LoadModule proxy_http_module /usr/lib/apache2/modules/mod_proxy_http.so
ServerName 127.0.0.1
Listen 127.0.0.1:{port}
DefaultRuntimeDir {base}
PidFile {base}/pid
ErrorLog {base}/error.log
User nobody
Group nogroup
<LocationMatch "^/rnode/(?<host>[^/]+)/(?<port>[0-9]+)/">
  Header always set Content-Security-Policy "frame-ancestors http://127.0.0.1:{port};"
  Header edit* Set-Cookie "; Path=[^;]*" "; Path=/rnode/%{{MATCH_HOST}}e/%{{MATCH_PORT}}e"
</LocationMatch>
ProxyPassMatch "^/rnode/([^/]+)/([0-9]+)(/.*)$" "http://$1:$2$3"
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where the proxy and the page listen."""

    proxy: int
    page: int


@contextmanager
def running(base: Path, name: str, configuration: str, *options: str) -> Iterator[None]:
    """Run a proxy that writes ``base/pid``."""
    program = shutil.which(name, path="/usr/sbin:/usr/bin:/usr/local/sbin")
    if program is None:
        pytest.skip(f"there is no {name}")
    file = base / "configuration"
    file.write_text(configuration)
    child = subprocess.Popen([program, *options, "-f" if name == "apache2" else "-c", str(file)])
    try:
        wait_for((base / "pid").exists, what=f"{name} runs")
        yield
    finally:
        child.terminate()
        child.wait()


def nginx(base: Path, ports: Ports) -> AbstractContextManager[None]:
    """Run it with the location of the how-to."""
    found = re.search(r"```nginx\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found
    location = found[1].replace("127.0.0.1:41641", f"{HOST}:{ports.page}")
    text = _NGINX.format(base=base, port=ports.proxy, location=location)
    return running(base, "nginx", text, "-p", str(base))


def portal(base: Path, ports: Ports) -> AbstractContextManager[None]:
    """Run Apache as Open OnDemand does: the backend's Host, the portal's paths of cookies."""
    return running(base, "apache2", _PORTAL.format(base=base, port=ports.proxy), "-DFOREGROUND")


PROXIES = {nginx: "bftrainer/ada", portal: f"rnode/{HOST}/{{page}}"}


@contextmanager
def published(proxy_port: int, path: str) -> Iterator[tuple[list[str], Ports]]:
    """Serve a page; yield its links."""
    links = list[str]()
    with listening(HOST, is_behind_proxy=True) as listeners:
        ports = Ports(proxy=proxy_port, page=listeners.port)
        public = f"http://127.0.0.1:{proxy_port}/{path.format(page=ports.page)}"
        door = Door(PageAddress(port=ports.page, public_url=public, hosts=(HOST,)), links.append)
        with serving_beside(app(LiveSource(Client(socket_of()), "a site"), door), listeners):
            door.offer()
            assert links[0].startswith(f"{public}/#")
            yield links, ports


@pytest.mark.long
@pytest.mark.parametrize("proxy", PROXIES)
def test_it_is_live_behind_a_proxy(
    proxy: Any, service: MemoryService, tmp_path_factory: pytest.TempPathFactory
) -> None:
    service.records["t1"] = record("t1")
    service.saw(trained(time.time(), n1="", n2="t1"), PLAN)
    with (
        published(free_port(), PROXIES[proxy]) as (links, ports),
        proxy(tmp_path_factory.mktemp("proxy"), ports),
        chromium() as driver,
    ):
        shows(Page(driver=driver, service=service, links=links), driver)


@pytest.mark.long
def test_pages_of_one_portal_do_not_shut_each_other_out(
    service: MemoryService, tmp_path_factory: pytest.TempPathFactory
) -> None:
    service.saw(trained(time.time(), n1=""), PLAN)
    port, path = free_port(), PROXIES[portal]
    with (
        published(port, path) as (first, ports),
        published(port, path) as (second, _),
        portal(tmp_path_factory.mktemp("proxy"), ports),
        chromium() as driver,
    ):
        for links in (first, second):
            Page(driver=driver, service=service, links=links).open()
        driver.get(first[0].partition("#")[0])
        Page(driver=driver, service=service, links=first).says("Live")


def shows(page: Page, driver: Any) -> None:
    page.open()
    page.says("net", "#trainers")
    page.service.records["t2"] = record("t2", name="second")
    page.service.saw(trained(time.time(), n1="t2", n2="t1"), PLAN)
    page.says("second", "#trainers")
    page.click('[data-trainer="t1"]')
    page.says("A third would gain less than it costs.", "#explain")
    assert complaints(driver) == []
