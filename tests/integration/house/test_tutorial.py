"""docs/tutorial.md: its files and commands work, in its order (the demonstration: test_demo.py)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bftrainer.batch import process
from tests.support import pages
from tests.support.local_pool import begun, environment
from tests.support.waiting import wait_for

PAGE = (Path(__file__).parents[3] / "docs" / "tutorial.md").read_text()
FILES = {"python": "train.py", "json": "jobs.json", "yaml": "policy.yaml"}
ENDLESS = ("bftrainer web", "--watch", "--follow")
LOOKS_BACK = ("journal", "replay")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    for kind, name in FILES.items():
        (text,) = re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
        assert f"`{name}`" in PAGE
        (home / name).write_text(text)
    env = environment(PAGE, home)

    def types(line: str) -> str:
        command = line.partition("#")[0]
        if any(option in line for option in ENDLESS):
            command = f"timeout 5 {command} || [ $? = 124 ]"
        done = process.run(("bash", "-c", command), timeout_s=120, env=env, cwd=home)
        assert done.is_ok, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout

    lines = [one for one in pages.unmarked(PAGE) if re.match(r"bftrainer \w.*[^&]$", one)]
    back = [one for one in lines if one.split()[1] in LOOKS_BACK]
    assert len(lines) - len(back) >= 6
    with begun(PAGE, home, env) as client:
        for line in (one for one in lines if one not in back):
            types(line)
            if "submit" in line and "--dry-run" not in line:
                wait_for(lambda: "epoch 0" in types("bftrainer logs t1 --rank 0"), timeout_s=90)
        assert "`bftrainer cancel t1`" in PAGE
        types("bftrainer cancel t1")
        wait_for(lambda: client.trainer("t1").record.state.is_final, timeout_s=60)
    for line in back:
        types(line)
