"""What packages add for administrators: manual pages, completions, the changelog."""

from __future__ import annotations

import gzip
import re
import shutil
import sys
from pathlib import Path

import pytest

from bftrainer.batch.process import run
from bftrainer.cli.main import VERBS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is written below /usr/share."""
    stage = tmp_path_factory.mktemp("stage")
    argv = (sys.executable, str(ROOT / "packaging" / "write_pages.py"), str(stage), "Ann <a@b.c>")
    done = run(argv, timeout_s=120)
    assert done.is_ok, done.stderr
    return stage / "usr" / "share"


def test_every_verb_has_a_manual_page(share: Path) -> None:
    names = {path.name.removesuffix(".1.gz") for path in (share / "man" / "man1").iterdir()}
    assert {"bftrainer", *(f"bftrainer-{verb}" for verb in VERBS)} <= names
    assert {"bftrainer-policy-check", "bftrainer-study-run"} <= names
    page = share / "man" / "man1" / "bftrainer-status.1.gz"
    text = gzip.decompress(page.read_bytes()).decode()
    assert r"bftrainer\-status \- Show the daemon" in text
    assert r"\-h, \-\-help" in text
    if shutil.which("groff"):
        for one in sorted(page.parent.iterdir()):
            body = gzip.decompress(one.read_bytes()).decode()
            done = run(("groff", "-man", "-Tutf8", "-ww", "-z"), stdin=body, timeout_s=60)
            assert (done.returncode, done.stderr) == (0, ""), one.name


def test_completions_and_changelog(share: Path) -> None:
    bash = share / "bash-completion" / "completions" / "bftrainer"
    assert run(("bash", "-n", str(bash)), timeout_s=60).is_ok
    assert "_BFTRAINER_COMPLETE=bash_complete" in bash.read_text()
    for place in ("zsh/site-functions/_bftrainer", "fish/vendor_completions.d/bftrainer.fish"):
        assert "_BFTRAINER_COMPLETE" in (share / place).read_text()
    log = (share / "doc" / "bftrainer" / "changelog.Debian.gz").read_bytes()
    assert re.search(r"^ -- Ann <a@b.c>  \w{3}, \d\d", gzip.decompress(log).decode(), re.MULTILINE)
