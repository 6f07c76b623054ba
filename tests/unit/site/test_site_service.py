"""The service that ``bftrainer site init`` writes, and what ``doctor`` says of an installed one."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.api.address import SITE_SOCKET
from bftrainer.batch import process
from bftrainer.batch.service_files import PROGRAM, SOCKET, findings, service_files
from bftrainer.model.errors import ExitCode
from bftrainer.model.site import SiteFile, Weight
from slurm_plugins import site_files as slurm
from slurm_plugins.site_files import usual_service
from tests.unit.slurm_plugins.test_slurm_doctor import GOOD

EXPOSURE = re.compile(r"Overall exposure level for \S+: ([0-9.]+)")
MOST_EXPOSURE = 3.0
SERVICES = {
    "slurm": slurm.site_files(GOOD, {}),
    "lsf": service_files("lsf", account="carol", writes=("/shared/told",)),
}
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def unit_in(directory: Path, files: tuple[SiteFile, ...], program: str) -> Path:
    """The unit, as for a program that is there."""
    (unit,) = (file for file in files if file.name == "bftrainer.service")
    path = directory / unit.name
    path.write_text(unit.text.replace(PROGRAM, program))
    return path


def installed_in(root: Path, files: tuple[SiteFile, ...]) -> None:
    for file in files:
        if file.path:
            path = root / file.path.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file.text)
    wants = root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True)
    (wants / "bftrainer.service").symlink_to("/etc/systemd/system/bftrainer.service")


@needs_systemd
@pytest.mark.parametrize("batch_system", SERVICES)
def test_systemd_finds_nothing_wrong(batch_system: str, tmp_path: Path) -> None:
    unit = unit_in(tmp_path, SERVICES[batch_system], "/bin/true")
    done = process.run(("systemd-analyze", "verify", "--man=no", str(unit)), timeout_s=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    broken = unit.with_name("broken.service")
    broken.write_text(unit.read_text().replace("ProtectHome", "ProtectHouse"))
    done = process.run(("systemd-analyze", "verify", "--man=no", str(broken)), timeout_s=60)
    assert "ProtectHouse" in done.stderr


@needs_systemd
@pytest.mark.parametrize("batch_system", SERVICES)
def test_the_service_is_confined(batch_system: str, tmp_path: Path) -> None:
    unit = unit_in(tmp_path, SERVICES[batch_system], PROGRAM)
    argv = ("systemd-analyze", "security", "--offline=true", "--no-pager", str(unit))
    said = process.run(argv, timeout_s=60).stdout
    found = EXPOSURE.search(said)
    assert found, said
    assert float(found[1]) <= MOST_EXPOSURE


def test_restarts_are_for_failures_that_may_pass() -> None:
    (unit,) = (f for f in SERVICES["slurm"] if f.name == "bftrainer.service")
    prevented = re.search(r"^RestartPreventExitStatus=(.*)$", unit.text, re.MULTILINE)
    assert prevented
    assert set(map(int, prevented[1].split())) == {
        ExitCode.USAGE,
        ExitCode.VALIDATION_FAILED,
        ExitCode.ALREADY_RUNNING,
    }


def test_another_account_and_a_directory_that_is_written_to() -> None:
    files = {file.name: file.text for file in SERVICES["lsf"]}
    unit = files["bftrainer.service"]
    assert "\nUser=carol\n" in unit
    assert "\nReadWritePaths=/shared/told\n" in unit
    assert "u carol - " in files["sysusers.bftrainer.conf"]
    assert "ReadWritePaths" not in usual_service()[0].text


def test_verbs_look_where_the_daemon_listens() -> None:
    assert str(SITE_SOCKET) == SOCKET


def test_an_installed_site_has_nothing_to_find(tmp_path: Path) -> None:
    installed_in(tmp_path, SERVICES["slurm"])
    assert findings(SERVICES["slurm"], tmp_path) == ()


def test_files_of_a_package_count(tmp_path: Path) -> None:
    installed_in(tmp_path, SERVICES["slurm"])
    for name in ("systemd/system/bftrainer.service", "sysusers.d/bftrainer.conf"):
        (tmp_path / "usr/lib" / name).parent.mkdir(parents=True)
        (tmp_path / "etc" / name).rename(tmp_path / "usr/lib" / name)
    assert findings(SERVICES["slurm"], tmp_path) == ()


def test_nothing_is_installed(tmp_path: Path) -> None:
    found = findings(SERVICES["slurm"], tmp_path)
    assert {(f.code, f.weight) for f in found} == {("BFT-1501", Weight.LOSS)}
    assert [f.setting.split("/")[2] for f in found] == [
        "systemd",
        "sysusers.d",
        "tmpfiles.d",
    ]


def test_a_file_that_differs_is_named_with_its_line(tmp_path: Path) -> None:
    installed_in(tmp_path, SERVICES["slurm"])
    unit = tmp_path / "etc/systemd/system/bftrainer.service"
    unit.write_text(unit.read_text().replace("PrivateTmp=yes", "PrivateTmp=no"))
    (found,) = findings(SERVICES["slurm"], tmp_path)
    assert found.code == "BFT-1502"
    assert "'PrivateTmp=no', not 'PrivateTmp=yes'" in found.cost
    unit.write_text(unit.read_text().replace("PrivateTmp=no", "PrivateTmp=yes") + "\n")
    (found,) = findings(SERVICES["slurm"], tmp_path)
    assert found.cost.endswith("is '', not 'nothing'.")


def test_hook_scripts_of_an_older_release_and_merged_ones(tmp_path: Path) -> None:
    installed_in(tmp_path, SERVICES["slurm"])
    (lua,) = (f for f in SERVICES["slurm"] if f.name == "job_submit.lua")
    path = tmp_path / lua.path.lstrip("/")
    path.write_text(lua.text.replace("MAX_BYTES", "MOST_BYTES"))
    assert [f.code for f in findings(SERVICES["slurm"], tmp_path)] == ["BFT-1502"]
    path.write_text("-- of the site\n" + lua.text)
    assert findings(SERVICES["slurm"], tmp_path) == ()
    path.unlink()  # the controller is elsewhere
    assert findings(SERVICES["slurm"], tmp_path) == ()


def test_a_service_that_does_not_start_at_boot(tmp_path: Path) -> None:
    installed_in(tmp_path, SERVICES["slurm"])
    (tmp_path / "etc/systemd/system/multi-user.target.wants/bftrainer.service").unlink()
    assert [f.code for f in findings(SERVICES["slurm"], tmp_path)] == ["BFT-1503"]


def test_a_site_with_accounting_gets_qos_and_account() -> None:
    config = GOOD.config + (
        "AccountingStorageType = accounting_storage/slurmdbd\n"
        "AccountingStorageEnforce = associations,limits\n"
    )
    files = {f.name: f for f in slurm.site_files(replace(GOOD, config=config, partitions=""), {})}
    assert "MaxNodes=1 QOS=bfqos\n" in files["slurm.conf.bftrainer"].text
    steps = files["CHECKLIST.md"].text
    assert "sacctmgr add qos bfqos UsageFactor=0 Priority=0 Flags=NoReserve" in steps
    assert "sacctmgr -i add user bftrainer account=bftrainer qos=+bfqos" in steps
