"""The embedded batch system and its daemon, started as a documentation page says."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bftrainer.api.address import SOCKET_NAME
from bftrainer.api.client import Client
from bftrainer.batch import process
from bftrainer.model.errors import BftError
from tests.support import pages
from tests.support.waiting import wait_for


def environment(page: str, home: Path) -> dict[str, str]:
    """What the page's reader has exported, in a directory of the reader's."""
    assert "export BFTRAINER_STATE_DIR=$PWD/state" in pages.unmarked(page)
    env = {
        **os.environ,
        "BFTRAINER_STATE_DIR": str(home / "state"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    env.pop("BFTRAINER_SOCKET", None)
    return env


@contextmanager
def begun(page: str, home: Path, env: Mapping[str, str]) -> Iterator[Client]:
    """Start what the page says to start in a shell, and end it as it says."""
    lines = [line for line in pages.unmarked(page) if line.endswith(" &")]
    assert len(lines) == 2
    ends = "kill %2; wait %2; kill %1; wait %1; exit"
    script = "\n".join((*lines, f"trap '{ends}' TERM", "wait"))
    with (home / "site.out").open("wb") as out:
        shell = process.spawn(("bash", "-c", script), env=env, cwd=home, stdout=out, stderr=out)
    try:
        client = Client(home / "state" / SOCKET_NAME)
        wait_for(lambda: _answers(client) or shell.poll() is not None)
        assert shell.poll() is None, (home / "site.out").read_text()
        yield client
        shell.terminate()
        shell.wait(30)
    finally:
        process.kill_group(shell.pid)
        shell.wait()


def _answers(client: Client) -> bool:
    try:
        client.status()
    except BftError:
        return False
    return True
