"""``bftrainer site init``: the files are right for the site, and are written over nothing."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.batch.batch_system import BatchSystem
from bftrainer.cli.main import main
from bftrainer.cli.site import write
from bftrainer.model.errors import BatchSystemError, ExitCode, UsageError
from bftrainer.model.hostlist import ParseError
from bftrainer.model.site import SiteFile
from bftrainer.site.policy import load_policy_file
from bftrainer.site.policy.model import SitePolicy
from lsf_adapters import site_files as lsf
from lsf_adapters.adapter import LsfOptions
from lsf_adapters.adapter import create as create_lsf
from lsf_adapters.doctor import findings
from lsf_adapters.notifications import script
from lsf_adapters.queues import LsfSettings, facts
from slurm_plugins import site_files as slurm
from slurm_plugins.adapter import create as create_slurm
from tests.support import pages
from tests.support.assignments import values_in
from tests.unit.lsf_adapters.test_lsf_doctor import VOLCLAVA, ibm
from tests.unit.slurm_plugins.test_slurm_doctor import BATCH, CONFIG, GOOD

OPTIONS = {"lsf_envdir": "/lsf/conf", "pilot_queue": "bf"}
Output = pytest.CaptureFixture[str]
SERVICE = ("bftrainer.service", "sysusers.bftrainer.conf")
_STEP = re.compile(r"^(\d+)\. ", re.MULTILINE)


def lsf_files(settings: LsfSettings) -> dict[str, SiteFile]:
    return {file.name: file for file in lsf.site_files(facts(settings), OPTIONS)}


def queue_of(file: SiteFile) -> dict[str, str]:
    """The stanza's settings."""
    lines = [line for line in file.text.splitlines() if not line.startswith("#")]
    assert (lines[0], lines[-1]) == ("Begin Queue", "End Queue")
    return values_in(lines[1:-1])


@pytest.fixture
def policy_of(tmp_path: Path) -> Callable[[SiteFile, str], SitePolicy]:
    """Load a first policy as the daemon would."""

    def load(file: SiteFile, batch_system: str) -> SitePolicy:
        path = tmp_path / file.name
        path.write_text(file.text)
        path.chmod(0o644)
        return load_policy_file(path, batch_system=batch_system).policy

    return load


def assert_is_numbered(file: SiteFile, *parts: str) -> None:
    numbers = [int(number) for number in _STEP.findall(file.text)]
    assert numbers == list(range(1, len(numbers) + 1))
    steps = _STEP.split(file.text)
    places = [next(i for i, step in enumerate(steps) if part in step) for part in parts]
    assert places == sorted(places)


# -- LSF ---------------------------------------------------------------------------------


def test_the_queue_of_ibms_lsf() -> None:
    without = replace(ibm(), queues=ibm().queues.partition("\nQUEUE: bf")[0])
    files = lsf_files(without)
    assert queue_of(files["lsb.queues.bftrainer"]) == {
        "QUEUE_NAME": "bf",
        "DESCRIPTION": "pilots of bftrainer, on idle hosts only",
        "PRIORITY": "29",
        "BACKFILL": "Y",
        "RERUNNABLE": "NO",
        "RUNLIMIT": "10 240",
        "USERS": "bft",
        "HOSTS": "all",
        "PREEMPTION": "PREEMPTABLE",
        "TERMINATE_WHEN": "PREEMPT",
    }
    assert files["lsb.queues.bftrainer"].about == (
        "append it to LSB_CONFDIR/lab/configdir/lsb.queues"
    )
    assert list(files) == [*SERVICE, "lsb.queues.bftrainer", "policy.yaml", "CHECKLIST.md"]


def test_the_administrators_page_shows_the_same_queue() -> None:
    page = (Path(__file__).parents[3] / "docs" / "howto" / "lsf-site.md").read_text()
    lines = page.partition("Begin Queue\n")[2].partition("End Queue")[0].splitlines()
    shown = values_in(line.partition("#")[0] for line in lines)
    queue = queue_of(lsf_files(ibm(pilots={"users": "bft"}))["lsb.queues.bftrainer"])
    assert shown == {key: value for key, value in queue.items() if key != "DESCRIPTION"}
    for option in LsfOptions.model_fields:
        assert f"`{option}`" in page, option


def test_volclava_gets_no_line_that_it_does_not_know() -> None:
    queue = queue_of(lsf_files(VOLCLAVA)["lsb.queues.bftrainer"])
    assert not {"PREEMPTION", "TERMINATE_WHEN"} & queue.keys()
    assert (queue["USERS"], queue["NEW_JOB_SCHED_DELAY"]) == ("lsfadm bft", "0")


def test_values_of_the_site_are_kept() -> None:
    settings = ibm(
        pilots={"limit": "60.0", "users": "admins/ carol", "priority": " 5"},
        normal={"priority": " 1"},
    )
    settings = replace(settings, queues=settings.queues.replace("HOSTS:  all", "HOSTS: gpu/ n007"))
    file = lsf_files(settings)["lsb.queues.bftrainer"]
    queue = queue_of(file)
    assert queue["RUNLIMIT"] == "10 60"
    assert queue["USERS"] == "admins/ carol bft"
    assert queue["HOSTS"] == "gpu n007"
    assert queue["PRIORITY"] == "1"
    assert file.text.startswith("Begin Queue\n# Raise PRIORITY of normal above 1 first.\n")
    assert file.about.startswith("it replaces the queue bf in ")


def test_parameters_are_those_that_the_doctor_asks_for() -> None:
    files = lsf_files(
        ibm(
            parameters={"PREEMPT_JOBTYPE": "", "PREEMPT_DELAY": "30", "MBD_SLEEP_TIME": "60"},
            conf="LSB_CONFDIR=/lsf/conf/lsbatch\n",
        )
    )
    params = files["lsb.params.bftrainer"]
    assert params.about == "put its lines into /lsf/conf/lsbatch/lab/configdir/lsb.params"
    lines = params.text.splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        "PREEMPT_JOBTYPE = BACKFILL EXCLUSIVE",
        "MBD_SLEEP_TIME = 10",
    ]
    assert "# remove PREEMPT_DELAY" in lines
    conf = files["lsf.conf.bftrainer"]
    assert conf.about == "put its lines into /lsf/conf/lsf.conf"
    assert [line for line in conf.text.splitlines() if not line.startswith("#")] == [
        "LSB_DISABLE_LIMLOCK_EXCL=Y",
        "LSB_USE_SEQUENTIAL_SIGNAL=Y",
    ]


def test_what_is_installed_satisfies_the_doctor() -> None:
    """The stanza, read back as bqueues would print it, leaves nothing to find."""
    wrong = ibm(pilots={"policies": "", "priority": "50", "users": "carol", "more": ""})
    queue = queue_of(lsf_files(wrong)["lsb.queues.bftrainer"])
    fixed = ibm(
        pilots={
            "priority": queue["PRIORITY"].rjust(2),
            "policies": f"{'BACKFILL' if queue['BACKFILL'] == 'Y' else ''} {queue['PREEMPTION']}",
            "limit": f"{queue['RUNLIMIT'].split()[1]}.0",
            "users": queue["USERS"],
            "more": f"TERMINATE_WHEN = {queue['TERMINATE_WHEN']}",
        }
    )
    assert findings(facts(wrong)) != ()
    assert findings(facts(fixed)) == ()


def test_lsfs_first_policy_loads(policy_of: Callable[[SiteFile, str], SitePolicy]) -> None:
    policy = policy_of(lsf_files(ibm(pilots={"limit": "60.0"}))["policy.yaml"], "lsf")
    assert (policy.max_nodes, policy.harm_slo_s, policy.pilot_time_limit_s) == (2, 8.0, 3600.0)
    assert policy.batch_options == OPTIONS | {"events_file": "/lsf/work/lab/logdir/lsb.events"}
    known = replace(VOLCLAVA, conf='LSB_SHAREDIR="/vol/work"\n')
    policy = policy_of(lsf_files(known)["policy.yaml"], "lsf")
    assert (policy.harm_slo_s, policy.lease_s) == (3.0, 300.0)
    assert policy.batch_options == OPTIONS | {"events_file": "/vol/work/logdir/lsb.events"}


def test_lsfs_checklist() -> None:
    files = lsf_files(ibm(conf="LSB_SHAREDIR=/lsf/work\n"))
    assert_is_numbered(
        files["CHECKLIST.md"],
        "`lsb.queues.bftrainer`",
        "badmin ckconfig",
        "badmin reconfig",
        "badmin mbdrestart",
        "/lsf/work/lab/logdir/lsb.events",
        "policy check",
        "bftrainer doctor",
        "systemctl enable",
        "report harm",
    )
    assert "BFT-1292" not in files["CHECKLIST.md"].text
    assert "BFT-1292 remains" in lsf_files(VOLCLAVA)["CHECKLIST.md"].text


@pytest.mark.parametrize(("settings", "name"), [(ibm(), script.AFTER), (VOLCLAVA, script.BEFORE)])
def test_a_site_that_tells_by_esub(settings: LsfSettings, name: str) -> None:
    options = {"esub_place": "/shared/told"}
    files = {file.name: file for file in lsf.site_files(facts(settings), options)}
    assert files[name].is_executable
    assert files[name].text == script.script(Path("/shared/told"))
    assert files["policy.yaml"].text.endswith('batch_options:\n  esub_place: "/shared/told"\n')
    assert_is_numbered(files["CHECKLIST.md"], f"`{name}`", "mkdir -m 1733 /shared/told")
    with pytest.raises(ParseError, match="esub_place: "):
        lsf.site_files(facts(settings), {"esub_place": "not absolute"})


def test_nothing_is_said_of_an_unknown_lsf() -> None:
    with pytest.raises(ParseError):
        lsf_files(ibm(lsid="Openlava project 3.3\nMy cluster name is x\n"))


@pytest.mark.parametrize(
    ("create", "where"),
    [
        (create_lsf, "where lsid, bqueues -l and bparams -l answer"),
        (create_slurm, "on a host where sinfo answers"),
    ],
    ids=["lsf", "slurm"],
)
def test_a_host_without_the_batch_system_is_told_with_the_exit_status_of_the_unreachable(
    create: Callable[[dict[str, object]], BatchSystem], where: str, tmp_path: Path
) -> None:
    """As ``up`` has it; 6 is "daemon or batch system unreachable" of ``bftrainer -h``."""
    system = create({"environment": {"PATH": str(tmp_path)}})
    with pytest.raises(BatchSystemError) as refused:
        system.site_files()
    assert refused.value.exit_code == 6
    assert refused.value.next_step == f"Repeat it {where}."


@pytest.mark.parametrize("create", [create_lsf, create_slurm], ids=["lsf", "slurm"])
def test_settings_that_cannot_be_read_are_an_error(
    create: Callable[[dict[str, object]], BatchSystem], tmp_path: Path
) -> None:
    """No command is found there."""
    system = create({"environment": {"PATH": str(tmp_path)}})
    with pytest.raises(BatchSystemError, match=r"BFT-1247: .* settings cannot be read: "):
        system.site_files()


# -- Slurm -------------------------------------------------------------------------------


def test_slurms_files_of_a_site_without_the_partition(
    policy_of: Callable[[SiteFile, str], SitePolicy],
) -> None:
    config = CONFIG.replace(
        "EpilogSlurmctld         = /etc/slurm/bftrainer_epilog.sh",
        "EpilogSlurmctld         = /opt/site.sh\nSLURM_CONF = /opt/slurm/slurm.conf",
    ).replace("KillWait                = 10", "KillWait                = 30")
    settings = replace(GOOD, config=config, partitions=BATCH, has_hook=False)
    files = {file.name: file for file in slurm.site_files(settings, {"account": "sidecar"})}
    conf = files["slurm.conf.bftrainer"]
    assert conf.about == "put its lines into /opt/slurm/slurm.conf"
    partition, *lines = conf.text.splitlines()
    assert partition == (
        "PartitionName=bf Nodes=ALL PriorityTier=1 PreemptMode=CANCEL GraceTime=0 "
        "MaxTime=04:00:00 DefaultTime=00:10:00 MaxNodes=1"
    )
    assert lines == [
        "JobSubmitPlugins=lua",
        "# EpilogSlurmctld is /opt/site.sh: add /opt/slurm/bftrainer_epilog.sh to it.",
        "# BFT-1267: A pilot that hangs keeps its node 30 s longer; ours end at once.",
        "# change: KillWait=10",
    ]
    assert files["bftrainer_epilog.sh"].is_executable
    assert slurm.HOOK_FILE in files["job_submit.lua"].text
    policy = policy_of(files["policy.yaml"], "slurm")
    assert policy.batch_options == {"account": "sidecar", "hook_file": slurm.HOOK_FILE}
    assert_is_numbered(
        files["CHECKLIST.md"],
        "slurm.conf.bftrainer",
        "bftrainer-slurm-hook",
        "systemctl restart slurmctld",
        "policy check",
        "bftrainer doctor",
        "systemctl enable",
        "report harm",
    )


def test_the_page_of_slurm_shows_all_that_is_printed_and_written() -> None:
    """Seen failing before: the page showed three of nine printed lines as if they were all."""
    page = (Path(__file__).parents[3] / "docs" / "howto" / "slurm-site.md").read_text()
    shown = {command.text: command.shown for command in pages.commands(page)}
    unset = CONFIG.replace("/etc/slurm/bftrainer_epilog.sh", "(null)")
    settings = replace(GOOD, config=unset, partitions=BATCH, has_hook=False)
    files = slurm.site_files(settings, {}, pilots_dir=Path("/home/bftrainer/pilots"))
    printed = tuple([f"bftrainer-site/{file.name}: {file.about}" for file in files])
    assert shown["bftrainer site init --write"] == printed
    (conf,) = [file for file in files if file.name == "slurm.conf.bftrainer"]
    assert shown["cat slurm.conf.bftrainer"] == tuple(conf.text.splitlines())


def test_slurms_site_that_has_all_of_it() -> None:
    settings = replace(GOOD, config=CONFIG + "Epilog = /etc/slurm/check\n")
    files = {file.name: file for file in slurm.site_files(settings, {})}
    assert "PartitionName" not in files["slurm.conf.bftrainer"].text
    assert 'SLURM_JOB_PARTITION" = bf ] && exit 0' in files["CHECKLIST.md"].text


# -- the verb ----------------------------------------------------------------------------

FILES = (
    SiteFile(name="a.conf", text="x = ü\n", about="into a"),
    SiteFile(name="b.sh", text="#!/bin/sh\n", about="into b", is_executable=True),
)


def test_where_nodes_are_other_hosts_pilots_have_a_directory_that_they_see(
    policy_of: Callable[[SiteFile, str], SitePolicy],
) -> None:
    there = Path("/shared/pilots")
    for kind, made in (
        ("slurm", slurm.site_files(GOOD, {}, pilots_dir=there)),
        ("lsf", lsf.site_files(facts(ibm()), OPTIONS, pilots_dir=there)),
    ):
        files = {file.name: file for file in made}
        assert policy_of(files["policy.yaml"], kind).pilots_dir == str(there)
        assert f"ReadWritePaths={there}\n" in files["bftrainer.service"].text
        assert f"-m 700 {there}`" in files["CHECKLIST.md"].text
    helped = slurm.site_files(GOOD, {"submit_helper": "/run/helper.sock"}, pilots_dir=None)
    assert not any("pilots_dir" in file.text for file in helped)


def test_files_are_written_once_and_again(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "site"
    paths = (directory / "a.conf", directory / "b.sh")
    for _ in range(2):
        assert write(directory, FILES) == paths
        assert paths[0].read_text(encoding="utf-8") == "x = ü\n"
        assert [path.stat().st_mode & 0o777 for path in paths] == [0o644, 0o755]


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_umask_gives_nothing_away(tmp_path: Path, umask: int) -> None:
    directory, before = tmp_path / "new" / "site", os.umask(umask)
    try:
        write(directory, FILES)
    finally:
        os.umask(before)
    modes = [path.stat().st_mode & 0o777 for path in sorted((tmp_path / "new").rglob("*"))]
    assert modes == [0o755, 0o644, 0o755]
    assert directory.parent.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("place", ["site", "site/new"])
def test_nothing_is_written_where_everybody_writes(tmp_path: Path, place: str) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site").chmod(0o777)
    with pytest.raises(UsageError, match=r"BFT-1249: .*/site: everybody can write to it"):
        write(tmp_path / place, FILES)
    assert not list((tmp_path / "site").iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can plant files of others")
def test_a_file_that_another_user_can_change_later_is_not_ours(tmp_path: Path) -> None:
    directory = tmp_path / "site"
    write(directory, FILES)
    os.chown(directory / "a.conf", 65534, 65534)
    with pytest.raises(UsageError, match=r"BFT-1249: .*a\.conf: there, but with another"):
        write(directory, FILES)
    os.chown(directory, 65534, 65534)
    (directory / "a.conf").unlink()
    with pytest.raises(UsageError, match=r"BFT-1249: .*it belongs to another user"):
        write(directory, FILES)


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "b.sh").write_text("mine\n")
    with pytest.raises(UsageError, match=r"BFT-1249: .*b\.sh: there, but with another content"):
        write(tmp_path, FILES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.sh"]
    assert (tmp_path / "b.sh").read_text() == "mine\n"


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "a.conf").symlink_to(target)
    with pytest.raises(UsageError, match="BFT-1249"):
        write(tmp_path / "site", FILES)
    assert not target.exists()


def test_a_directory_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"BFT-1249: The files cannot be written into .*/file/x"):
        write(tmp_path / "file" / "x", FILES)


def test_a_batch_system_without_such_files(capsys: Output, tmp_path: Path) -> None:
    argv = ["site", "init", "--batch-system", "local", "--batch-option", f"socket={tmp_path}/s"]
    assert main([*argv, "--json"]) == ExitCode.USAGE
    assert capsys.readouterr().err.startswith("error BFT-1248: The batch system local needs no")


def test_the_verb_prints_or_writes(capsys: Output, tmp_path: Path) -> None:
    bindir = tmp_path / "bin"
    bindir.mkdir()
    for name, said in {
        "lsid": VOLCLAVA.lsid,
        "bqueues": VOLCLAVA.queues,
        "bparams": VOLCLAVA.parameters,
    }.items():
        (tmp_path / name).write_text(said)
        (bindir / name).write_text(f"#!/bin/sh\ncat {tmp_path / name}\n")
        (bindir / name).chmod(0o755)
    argv = ["site", "init", "--batch-system", "lsf", "--batch-option", f"bindir={bindir}",
            "--batch-option", "user=carol"]  # fmt: skip
    assert main(argv) == ExitCode.OK
    printed = capsys.readouterr().out
    assert "# ---- lsb.queues.bftrainer: it replaces the queue bf in " in printed
    assert re.search(r"^USERS +=  *lsfadm bft carol$", printed, re.MULTILINE)
    assert main([*argv, "--json", "--write", "--directory", str(tmp_path / "out")]) == ExitCode.OK
    said = json.loads(capsys.readouterr().out)
    assert said["schema"] == "bftrainer/site/1"
    for file, path in zip(said["files"], said["written"], strict=True):
        assert Path(path) == tmp_path / "out" / file["name"]
        assert Path(path).read_text() == file["text"]
    policy = str(tmp_path / "out" / "policy.yaml")
    assert main(["policy", "check", policy, "--batch-system", "lsf"]) == ExitCode.OK
    capsys.readouterr()
    assert main([*argv, "--policy", policy, "--directory", str(tmp_path / "out"), "--write"]) == 0
    assert f"{policy}: edit it" in capsys.readouterr().out
