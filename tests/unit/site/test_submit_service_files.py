"""What ``bftrainer site init`` writes for the submit helper."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from bftrainer.batch import process
from bftrainer.model.site import SiteFile
from bftrainer.site.submit import helper
from bftrainer.site.submit.service_files import SERVICE_NAME, SOCKET_NAME
from slurm_plugins import site_files as slurm
from tests.support import submit_helper
from tests.support.other_users import needs_root
from tests.unit.site.test_site_service import EXPOSURE, MOST_EXPOSURE, needs_systemd
from tests.unit.slurm_plugins.test_slurm_doctor import GOOD

OPTIONS = {"submit_helper": "/run/bftrainer-submit.sock", "user": "daemon"}


@pytest.fixture
def files() -> dict[str, SiteFile]:
    return {file.name: file for file in slurm.site_files(GOOD, OPTIONS)}


def test_only_a_site_that_asks_for_it_gets_it(files: dict[str, SiteFile]) -> None:
    without = {file.name for file in slurm.site_files(GOOD, {})}
    assert set(files) - without == {
        *(SOCKET_NAME, SERVICE_NAME, "bftrainer-submit-helper", "submit-helper.json"),
    }


def test_what_a_user_makes_of_sbatch_has_little_memory(files: dict[str, SiteFile]) -> None:
    """Seen failing before: no bound."""
    assert "\nMemoryMax=128M\nTasksMax=32\n" in files[SERVICE_NAME].text


@needs_systemd
def test_systemd_finds_nothing_wrong(files: dict[str, SiteFile], tmp_path: Path) -> None:
    for name in (SOCKET_NAME, SERVICE_NAME):
        text = re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", files[name].text)
        (tmp_path / name).write_text(text)
    units = [str(tmp_path / name) for name in (SOCKET_NAME, SERVICE_NAME)]
    done = process.run(("systemd-analyze", "verify", "--man=no", *units), timeout_s=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    argv = ("systemd-analyze", "security", "--offline=true", "--no-pager", units[1])
    found = EXPOSURE.search(process.run(argv, timeout_s=60).stdout)
    assert found
    assert float(found[1]) <= MOST_EXPOSURE


@needs_root
def test_the_helper_takes_the_configuration(files: dict[str, SiteFile]) -> None:
    root = Path("/run") / f"bft-files-{id(files)}"
    root.mkdir(mode=0o755)
    try:
        path = root / "submit-helper.json"
        path.write_text(files[path.name].text)
        config = helper.read_config(path)
        assert (config.partition, config.users, config.min_uid) == ("bf", None, 1000)
        assert {"slurm", "munge", "nobody"} <= config.denied
        assert config.agent[1:] == ("-I", "-m", "trainers.agent")
        answer = submit_helper.asked(path, json.dumps({}).encode())
        assert answer["error"]["code"] == "BFT-1526"  # we are not the daemon
    finally:
        shutil.rmtree(root)
