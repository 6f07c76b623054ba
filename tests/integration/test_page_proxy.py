"""The page behind nginx, configured as docs/howto/page.md says."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bftrainer.api.client import Client
from bftrainer.api.page.door import Door, PageAddress
from bftrainer.api.page.server import app, listen, serving_beside
from bftrainer.api.page.source import LiveSource
from tests.integration.cli_fixtures import home, service
from tests.integration.test_page_browser import Page, record
from tests.support.browser import chromium, complaints
from tests.support.memory_service import MemoryService, socket_of
from tests.support.timelines import PLAN, trained
from tests.support.waiting import wait_for

__all__ = ["home", "service"]
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "page.md"
_CONFIGURATION = """\
daemon off; pid {base}/pid; error_log {base}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {base}/a; proxy_temp_path {base}/b; fastcgi_temp_path {base}/c;
    uwsgi_temp_path {base}/d; scgi_temp_path {base}/e;
    server {{ listen 127.0.0.1:{port}; {location} }}
}}
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@contextmanager
def nginx(base: Path, port: int, page_port: int) -> Iterator[None]:
    """Run it with the location of the how-to."""
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin")
    if program is None:
        pytest.skip("there is no nginx")
    found = re.search(r"```nginx\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found
    location = found[1].replace("41641", str(page_port))
    base.joinpath("nginx.conf").write_text(
        _CONFIGURATION.format(base=base, port=port, location=location)
    )
    child = subprocess.Popen([program, "-p", str(base), "-c", str(base / "nginx.conf")])
    try:
        wait_for((base / "pid").exists, what="nginx runs")
        yield
    finally:
        child.terminate()
        child.wait()


@pytest.mark.long
def test_it_is_live_behind_nginx(
    service: MemoryService, tmp_path_factory: pytest.TempPathFactory
) -> None:
    service.records["t1"] = record("t1")
    service.saw(trained(time.time(), n1="", n2="t1"), PLAN)
    links, port = list[str](), free_port()
    public = f"http://127.0.0.1:{port}/bftrainer/ada"
    with listen("127.0.0.1", 0) as listener:
        address = PageAddress(port=listener.getsockname()[1], public_url=public)
        door = Door(address, links.append)
        page_app = app(LiveSource(Client(socket_of()), "a site"), door)
        with (
            serving_beside(page_app, listener),
            nginx(tmp_path_factory.mktemp("nginx"), port, address.port),
            chromium() as driver,
        ):
            door.open()
            assert links[0].startswith(f"{public}/#")
            shows(Page(driver=driver, service=service, links=links), driver)


def shows(page: Page, driver: Any) -> None:
    page.open()
    page.says("net", "#trainers")
    page.service.records["t2"] = record("t2", name="second")
    page.service.saw(trained(time.time(), n1="t2", n2="t1"), PLAN)
    page.says("second", "#trainers")
    page.click('[data-trainer="t1"]')
    page.says("A third would gain less than it costs.", "#explain")
    assert complaints(driver) == []
