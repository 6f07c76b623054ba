"""docs/howto/studies.md: its commands work on a local pool, and show what it says they show."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from bftrainer.api.address import SOCKET_NAME
from bftrainer.api.client import Client
from bftrainer.batch import process
from bftrainer.model.errors import BftError
from tests.support import pages
from tests.support.waiting import wait_for

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "studies.md").read_text()


@contextmanager
def begun(home: Path, env: Mapping[str, str]) -> Iterator[None]:
    """Start what the page says to start in a shell, and end it as it says."""
    lines = [line for line in pages.unmarked(PAGE) if line.endswith(" &")]
    assert len(lines) == 2
    ends = "kill %2; wait %2; kill %1; wait %1; exit"
    script = "\n".join((*lines, f"trap '{ends}' TERM", "wait"))
    with (home / "site.out").open("wb") as out:
        shell = process.spawn(("bash", "-c", script), env=env, cwd=home, stdout=out, stderr=out)
    try:
        client = Client(home / "state" / SOCKET_NAME)
        wait_for(lambda: _answers(client) or shell.poll() is not None)
        assert shell.poll() is None, (home / "site.out").read_text()
        yield
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


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    for name, text in pages.files(PAGE).items():
        (home / name).write_text(text)
    commands = [one for one in pages.commands(PAGE) if not one.not_run]
    assert len(commands) >= 4
    env = {
        **os.environ,
        "BFTRAINER_STATE_DIR": str(home / "state"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    env.pop("BFTRAINER_SOCKET", None)
    assert "export BFTRAINER_STATE_DIR=$PWD/state" in pages.unmarked(PAGE)
    with begun(home, env):
        for command in commands:
            done = process.run(("bash", "-c", command.text), timeout_s=120, env=env, cwd=home)
            assert done.is_ok, f"{command.text}: {done.stderr}"
            seen = done.stdout.replace(str(home), "/home/you")
            assert command.is_seen_in(seen), f"{command.text} printed:\n{seen}"
