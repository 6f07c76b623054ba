"""docs/howto/studies.md: its commands work on a local pool, and show what it says they show."""

from __future__ import annotations

from pathlib import Path

import pytest

from bftrainer.batch import process
from tests.support import pages
from tests.support.local_pool import begun, environment

PAGE = (Path(__file__).parents[3] / "docs" / "howto" / "studies.md").read_text()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    for name, text in pages.files(PAGE).items():
        (home / name).write_text(text)
    commands = [one for one in pages.commands(PAGE) if not one.not_run]
    assert len(commands) >= 4
    env = environment(PAGE, home)
    with begun(PAGE, home, env):
        for command in commands:
            done = process.run(("bash", "-c", command.text), timeout_s=120, env=env, cwd=home)
            assert done.is_ok, f"{command.text}: {done.stderr}"
            seen = done.stdout.replace(str(home), "/home/you")
            assert command.is_seen_in(seen), f"{command.text} printed:\n{seen}"
