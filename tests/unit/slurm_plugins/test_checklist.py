"""CHECKLIST.md of ``site init`` and the administrator's guides: the same commands, in one order.

The guide of Slurm's sites is typed command by command on a machine by
``tests/integration/house/test_admin_guide.py``, so what it says is what works.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.model.site import SiteFile
from lsf_adapters import site_files as lsf
from lsf_adapters.queues import facts
from slurm_plugins import site_files as slurm
from slurm_plugins.doctor import SlurmSettings
from tests.unit.lsf_adapters.test_lsf_doctor import VOLCLAVA, ibm
from tests.unit.slurm_plugins.test_slurm_doctor import BATCH, CONFIG, GOOD

HOWTO = Path(__file__).parents[3] / "docs" / "howto"
IN_CODE = re.compile(r"`([^`]+)`")
PROGRAMS = frozenset({
    "badmin", "bftrainer", "bftrainer-slurm-hook", "bqueues", "cat", "chown", "install", "mkdir",
    "sacctmgr", "scontrol", "setfacl", "sinfo", "systemctl", "systemd-sysusers", "systemd-tmpfiles",
})  # fmt: skip
BARE = replace(GOOD, partitions=BATCH)
DATABASE = replace(
    BARE,
    config=CONFIG.replace("(null)", "accounting_storage/slurmdbd", 1)
    + "AccountingStorageEnforce = associations\n",
)
HELPED = {"submit_helper": "/run/bftrainer-submit.sock"}
PILOTS = Path("/home/bftrainer/pilots")
LSF_PILOTS = Path("/home/bft/pilots")
WITHOUT_QUEUE = {
    name: facts(replace(one, queues=one.queues.partition("\nQUEUE: bf")[0]))
    for name, one in (("ibm", ibm(conf="LSB_SHAREDIR=/lsf/work\n")), ("volclava", VOLCLAVA))
}
OPTIONS = {"lsf_envdir": "/lsf/conf", "pilot_queue": "bf", "user": "bft"}


def commands(files: tuple[SiteFile, ...]) -> list[str]:
    """The commands of the checklist, in its order."""
    (text,) = (file.text for file in files if file.name == "CHECKLIST.md")
    return [code for code in IN_CODE.findall(text) if code.split()[0] in PROGRAMS]


def typed(page: str) -> list[str]:
    """The commands of a guide, in its order: what its blocks have, without their output."""
    text = (HOWTO / page).read_text("utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    of_shells = [body for kind, body in blocks if kind in ("", "sh")]
    lines = [line.removeprefix("$ ") for body in of_shells for line in body.splitlines()]
    return [
        re.sub(r" +#.*", "", line)
        for line in lines
        if line.split()[:1] and line.split()[0] in PROGRAMS
    ]


@pytest.mark.parametrize(
    ("files", "page"),
    [
        (slurm.site_files(BARE, {}, pilots_dir=PILOTS), "slurm-site.md"),
        (lsf.site_files(WITHOUT_QUEUE["ibm"], OPTIONS, pilots_dir=LSF_PILOTS), "lsf-site.md"),
        (lsf.site_files(WITHOUT_QUEUE["volclava"], OPTIONS, pilots_dir=LSF_PILOTS), "lsf-site.md"),
    ],
    ids=["slurm", "ibm", "volclava"],
)
def test_the_guide_has_the_commands_of_the_checklist_in_its_order(
    files: tuple[SiteFile, ...], page: str
) -> None:
    steps, lines = commands(files), typed(page)
    assert len(steps) >= 12
    assert [step for step in steps if step not in lines] == []
    places = [lines.index(step) for step in steps]
    assert places == sorted(places), [(lines[i], i) for i in places]


@pytest.mark.parametrize(
    ("settings", "options"), [(DATABASE, {}), (BARE, HELPED)], ids=["slurmdbd", "many users"]
)
def test_the_guide_has_what_only_some_sites_need(
    settings: SlurmSettings, options: dict[str, str]
) -> None:
    usual = commands(slurm.site_files(BARE, {}))
    more = [one for one in commands(slurm.site_files(settings, options)) if one not in usual]
    assert len(more) >= 3
    assert [step for step in more if step not in typed("slurm-site.md")] == []


def test_every_file_but_the_checklist_has_a_step() -> None:
    for files in (
        slurm.site_files(DATABASE, HELPED, pilots_dir=PILOTS),
        lsf.site_files(WITHOUT_QUEUE["ibm"], OPTIONS, pilots_dir=LSF_PILOTS),
    ):
        *others, checklist = files
        # The hook's program writes its two scripts itself.
        by_hook = ("job_submit.lua", "bftrainer_epilog.sh")
        for file in others:
            assert file.name in checklist.text or file.name in by_hook, file.name


def test_nothing_is_created_from_a_file_that_is_not_there() -> None:
    """LSF's sites have no tmpfiles.bftrainer.conf."""
    for files in (
        slurm.site_files(BARE, {}),
        lsf.site_files(WITHOUT_QUEUE["ibm"], OPTIONS),
        lsf.site_files(WITHOUT_QUEUE["volclava"], OPTIONS),
    ):
        has_places = any(file.name == "tmpfiles.bftrainer.conf" for file in files)
        asks = any(step.startswith("systemd-tmpfiles") for step in commands(files))
        assert asks == has_places


def test_a_site_with_an_epilog_can_satisfy_the_checklist() -> None:
    """How long it takes is measured by a running daemon, so not before the first start."""
    settings = replace(BARE, config=CONFIG.replace("Epilog                  = (null)", "Epilog=/e"))
    (text,) = (f.text for f in slurm.site_files(settings, {}) if f.name == "CHECKLIST.md")
    (step,) = (line for line in text.splitlines() if "bftrainer doctor" in line)
    assert "status 0" in step
    assert "BFT-1274" in step
