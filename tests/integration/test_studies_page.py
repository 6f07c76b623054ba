"""docs/howto/studies.md: its commands work on a local pool, and show what it says they show."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bftrainer import process
from tests.integration.study_fixtures import POLICY
from tests.support import pages
from tests.support.site import Site

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "studies.md").read_text()


@pytest.mark.timeout(300)
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    for name, text in pages.files(PAGE).items():
        (home / name).write_text(text)
    commands = [one for one in pages.commands(PAGE) if not one.not_run]
    assert len(commands) >= 4
    with Site.open(tmp_path / "site", n_nodes=3, policy=POLICY) as site:
        env = {
            **os.environ,
            "BFTRAINER_SOCKET": str(site.client.socket_path),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        for command in commands:
            done = process.run(("bash", "-c", command.text), timeout_s=120, env=env, cwd=home)
            assert done.is_ok, f"{command.text}: {done.stderr}"
            seen = done.stdout.replace(str(home), "/home/you")
            assert command.is_seen_in(seen), f"{command.text} printed:\n{seen}"
