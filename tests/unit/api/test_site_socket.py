"""Which sockets of other accounts users trust, and where verbs look for the site's."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.api import address
from tests.support.other_users import needs_root

SERVICE, PERSON = 997, 4711


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory of root's, as /run is."""
    directory = Path(tempfile.mkdtemp(prefix="bft-run-", dir="/run"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@needs_root
def test_a_service_is_trusted_where_root_alone_could_put_it(place: Path) -> None:
    own = place / "bftrainer"
    own.mkdir(mode=0o755)
    assert address.site_uid(own) == 0
    os.chown(own, SERVICE, SERVICE)
    assert address.site_uid(own) == SERVICE
    address.check_directory(own, uid=SERVICE)
    below = own / "more"  # anybody could be let in there
    below.mkdir()
    os.chown(below, SERVICE, SERVICE)
    assert address.site_uid(below) is None
    place.chmod(0o1777)  # as /tmp
    assert address.site_uid(own) is None


@needs_root
def test_no_person_is_a_service(place: Path) -> None:
    own = place / "bftrainer"
    own.mkdir()
    os.chown(own, PERSON, PERSON)
    assert address.site_uid(own) is None
    assert address.site_uid(place / "none") is None


def test_verbs_look_for_ones_own_daemon_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, home = tmp_path / "site.sock", tmp_path / "home"
    monkeypatch.setattr(address, "SITE_SOCKET", site)
    environ = {"HOME": str(home)}
    own = home / ".bftrainer" / "daemon.sock"
    assert address.socket_path(None, environ) == own
    site.touch()
    assert address.socket_path(None, environ) == site
    assert address.socket_path(None, {**environ, "BFTRAINER_STATE_DIR": "/s"}) == Path(
        "/s/daemon.sock"
    )
    assert address.socket_path("/x", environ) == Path("/x")
    own.parent.mkdir(parents=True)
    own.touch()
    assert address.socket_path(None, environ) == own
