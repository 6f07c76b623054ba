"""Settings of an LSF site, and what is said of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.model.hostlist import ParseError
from bftrainer.model.site import NOTHING, Finding, Measured, Weight
from lsf_adapters import doctor
from lsf_adapters.commands import LsfCommands
from lsf_adapters.queues import LsfSettings, facts, read_settings

RECORDED = Path(__file__).parents[2] / "fixtures" / "lsf" / "volclava"
VOLCLAVA = LsfSettings(
    lsid=(RECORDED / "lsid.txt").read_text(),
    queues=(RECORDED / "bqueues-l.txt").read_text(),
    parameters=(RECORDED / "bparams-l.txt").read_text(),
    conf=None,
    pilot_queue="bf",
    user="bft",
)
BLOCK = """
QUEUE: {name}
  -- {about}

PARAMETERS/STATISTICS
PRIO NICE STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN SSUSP USUSP  RSV
 {priority}    0  {status}       -    -    -    -     0     0     0     0     0    0
Interval for a host to accept two jobs is 0 seconds

MAXIMUM LIMITS:
 RUNLIMIT
 {limit} min

SCHEDULING POLICIES:  {policies}

USERS: {users}
HOSTS:  all
{more}
"""
NORMAL = {
    "name": "normal",
    "about": "This is the default queue.",
    "priority": "30",
    "status": "Open:Active",
    "limit": "1440.0",
    "policies": "BACKFILL  EXCLUSIVE",
    "users": " all",
    "more": "",
}
PILOTS = NORMAL | {
    "name": "bf",
    "about": "pilots",
    "priority": " 1",
    "limit": "240.0",
    "policies": "BACKFILL  PREEMPTABLE",
    "users": "bft staff",
    "more": "TERMINATE_WHEN = PREEMPT",
}
PARAMETERS = {
    "MBD_SLEEP_TIME": "10 (seconds)",
    "SBD_SLEEP_TIME": "7 (seconds)",
    "JOB_ACCEPT_INTERVAL": "0 (* MBD_SLEEP_TIME)",
    "JOB_TERMINATE_INTERVAL": "10",
    "PREEMPT_JOBTYPE": "EXCLUSIVE BACKFILL",
    "MAX_JOB_PREEMPT": "2147483647",
}
CONF = "LSB_USE_SEQUENTIAL_SIGNAL=Y\nLSB_DISABLE_LIMLOCK_EXCL=y\nLSB_SHAREDIR=/lsf/work\n"


def ibm(
    pilots: dict[str, str] | None = None,
    normal: dict[str, str] | None = None,
    parameters: dict[str, str] | None = None,
    **more: str | None,
) -> LsfSettings:
    """As LSF 10.1 prints a good site, but for these."""
    said = PARAMETERS | (parameters or {})
    settings = LsfSettings(
        lsid="IBM Spectrum LSF Standard 10.1.0.13, Apr 15 2022\n\nMy cluster name is lab\n",
        queues=BLOCK.format(**NORMAL | (normal or {})) + BLOCK.format(**PILOTS | (pilots or {})),
        parameters="".join(f"\nWhat it is:\n    {k} = {v}\n" for k, v in said.items()),
        conf=CONF,
        pilot_queue="bf",
        user="bft",
    )
    return replace(settings, **more)  # type: ignore[arg-type]


def found(settings: LsfSettings, measured: Measured = NOTHING) -> tuple[Finding, ...]:
    return doctor.findings(facts(settings), measured)


def codes(settings: LsfSettings) -> dict[str, Weight]:
    return {f.code: f.weight for f in found(settings)}


def test_a_site_that_is_as_it_should_be() -> None:
    assert found(ibm()) == ()


def test_of_a_good_volclava_preemption_is_missing_and_nothing_else() -> None:
    (finding,) = found(VOLCLAVA)
    assert (finding.code, finding.weight) == ("BFT-1292", Weight.HARM)
    assert "volclava has no preemption" in finding.setting


@pytest.mark.parametrize(
    ("settings", "code", "weight"),
    [
        (ibm(pilots={"policies": "BACKFILL"}), "BFT-1292", Weight.HARM),
        (ibm(pilots={"policies": "BACKFILL PREEMPTABLE[top]"}), "BFT-1292", Weight.HARM),
        (ibm(pilots={"more": ""}), "BFT-1293", Weight.HARM),
        (ibm(pilots={"more": "TERMINATE_WHEN = LOAD"}), "BFT-1293", Weight.HARM),
        (ibm(parameters={"PREEMPT_DELAY": "30"}), "BFT-1294", Weight.HARM),
        (ibm(normal={"more": "PREEMPT_DELAY: 30 seconds"}), "BFT-1294", Weight.HARM),
        (ibm(parameters={"NO_PREEMPT_INTERVAL": "120 (minutes)"}), "BFT-1294", Weight.HARM),
        (ibm(parameters={"MAX_JOB_PREEMPT": "3"}), "BFT-1295", Weight.HARM),
        (
            ibm(pilots={"more": "TERMINATE_WHEN = PREEMPT\nMAX_JOB_PREEMPT: 3"}),
            "BFT-1295",
            Weight.HARM,
        ),
        (ibm(parameters={"NO_PREEMPT_RUN_TIME": "60"}), "BFT-1295", Weight.HARM),
        (ibm(parameters={"NO_PREEMPT_FINISH_TIME": "10"}), "BFT-1295", Weight.HARM),
        (ibm(why_not_told="events_file is not set"), "BFT-1296", Weight.HARM),
        (ibm(pilots={"priority": "30"}), "BFT-1297", Weight.HARM),
        (ibm(pilots={"policies": "PREEMPTABLE"}), "BFT-1298", Weight.LOSS),
        (ibm(pilots={"limit": "30.0"}), "BFT-1299", Weight.LOSS),
        (ibm(parameters={"PREEMPT_JOBTYPE": ""}), "BFT-1235", Weight.HARM),
        (ibm(parameters={"PREEMPT_JOBTYPE": "EXCLUSIVE"}), "BFT-1235", Weight.HARM),
        (ibm(parameters={"PREEMPT_JOBTYPE": "BACKFILL"}), "BFT-1235", Weight.HARM),
        (ibm(conf="LSB_USE_SEQUENTIAL_SIGNAL=Y\n"), "BFT-1235", Weight.HARM),
        (ibm(parameters={"MBD_SLEEP_TIME": "60 (seconds)"}), "BFT-1236", Weight.LOSS),
        (
            replace(VOLCLAVA, parameters="    MBD_SLEEP_TIME = 60 (seconds)\n"),
            "BFT-1236",
            Weight.HARM,
        ),
        (
            replace(VOLCLAVA, queues=VOLCLAVA.queues.replace("two jobs is 0", "two jobs is 10")),
            "BFT-1236",
            Weight.HARM,
        ),
        (ibm(parameters={"JOB_TERMINATE_INTERVAL": "30"}), "BFT-1237", Weight.LOSS),
        (
            ibm(
                pilots={
                    "more": "TERMINATE_WHEN = PREEMPT\n\nJOB_CONTROLS:\n    TERMINATE: [SIGTERM]"
                }
            ),
            "BFT-1237",
            Weight.HARM,
        ),
        (ibm(conf="LSB_DISABLE_LIMLOCK_EXCL=y\n"), "BFT-1237", Weight.LOSS),
        (ibm(conf=None), "BFT-1238", Weight.UNKNOWN),
        (ibm(lsid="Openlava project 3.3\nMy cluster name is x\n"), "BFT-1238", Weight.UNKNOWN),
        (
            replace(VOLCLAVA, queues=VOLCLAVA.queues + "RERUNNABLE :  yes\n"),
            "BFT-1239",
            Weight.LOSS,
        ),
        (replace(VOLCLAVA, user="root"), "BFT-1240", Weight.STOP),
        (ibm(user="carol"), "BFT-1240", Weight.LOSS),
        (ibm(pilots={"users": "all ~bft"}), "BFT-1240", Weight.LOSS),
        (ibm(pilots={"status": "Closed:Active"}), "BFT-1240", Weight.STOP),
        (ibm(pilots={"status": "Open:Inact"}), "BFT-1240", Weight.STOP),
        (ibm(pilot_queue="none"), "BFT-1291", Weight.STOP),
    ],
)
def test_each_wrong_setting_has_a_finding(settings: LsfSettings, code: str, weight: Weight) -> None:
    is_volclava = settings.lsid == VOLCLAVA.lsid
    rest = {"BFT-1292": Weight.HARM} if is_volclava else {}
    assert codes(settings) == {code: weight} | rest
    for finding in found(settings):
        assert finding.setting
        assert finding.cost.endswith(".")
        assert finding.remedy


@pytest.mark.parametrize(
    "settings",
    [
        ibm(pilots={"policies": "BACKFILL", "more": "PREEMPTION:  PREEMPTABLE[normal]\n"
                    "TERMINATE_WHEN:  PREEMPT"}),
        ibm(normal={"policies": "BACKFILL PREEMPTIVE(bf+2)"}, pilots={"policies": "BACKFILL"}),
        ibm(pilots={"users": "admins/"}),
        ibm(normal={"policies": "BACKFILL"}, parameters={"PREEMPT_JOBTYPE": "BACKFILL"}),
        ibm(pilots={"more": "TERMINATE_WHEN = PREEMPT\nRERUNNABLE :  yes"}),  # bsub -rn
        ibm(pilots={"more": "TERMINATE_WHEN = PREEMPT\n    TERMINATE: [SIGKILL]"}),
    ],
)  # fmt: skip
def test_what_is_well_in_another_way(settings: LsfSettings) -> None:
    assert found(settings) == ()


def test_the_worst_come_first() -> None:
    settings = ibm(pilots={"limit": "30.0", "more": ""}, parameters={"PREEMPT_DELAY": "9"})
    assert [f.code for f in found(settings)] == ["BFT-1293", "BFT-1294", "BFT-1299"]


def test_a_pilot_queue_above_another_is_told_which_line_to_change() -> None:
    (low,) = found(ibm(normal={"priority": " 1"}))
    assert low.remedy == "lsb.queues, normal: PRIORITY above 1"
    (high,) = found(ibm(pilots={"priority": "40"}))
    assert high.remedy == "lsb.queues, bf: PRIORITY = 29"


def test_a_node_that_is_late_by_measurement() -> None:
    late = Measured(end_s=9.4, promise_s=8.0)
    (finding,) = found(ibm(), late)
    assert (finding.code, finding.weight) == ("BFT-1237", Weight.HARM)
    assert "9.4 s" in finding.cost
    assert found(ibm(), replace(late, promise_s=10.0)) == ()


@pytest.mark.parametrize("text", ["", "garbage\n", VOLCLAVA.queues[:300]])
def test_queues_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ParseError):
        facts(replace(VOLCLAVA, queues=text))


def _read(tmp_path: Path, why_not_told: str = "", **scripts: str) -> LsfSettings:
    """Read with commands that are these shell scripts, and lsf.conf's folder."""
    for name, text in scripts.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    (tmp_path / "queues").write_text(ibm().queues)
    return read_settings(
        LsfCommands(bindir=tmp_path, timeout_s=10),
        pilot_queue="bf",
        user="bft",
        envdir=tmp_path / "conf",
        why_not_told=why_not_told,
    )


def test_lsf_conf_is_read_or_else_badmin_is_asked(tmp_path: Path) -> None:
    banner = "echo 'IBM Spectrum LSF Standard 10.1.0.13'; echo 'My cluster name is lab'"
    read = _read(
        tmp_path,
        "no file",
        lsid=banner,
        bqueues=f"cat {tmp_path}/queues",
        bparams="[ $1 = -a ] && echo '  MBD_SLEEP_TIME = 7 (seconds)'",
        badmin='[ "$*" = "showconf mbd" ] && echo "  LSB_SHAREDIR=/of/badmin"',
    )
    said = facts(read)
    assert said.number("MBD_SLEEP_TIME") == 7.0
    assert (said.conf, said.why_not_told) == ({"LSB_SHAREDIR": "/of/badmin"}, "no file")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "lsf.conf").write_text("LSB_SHAREDIR=/of/file\n")
    assert facts(_read(tmp_path)).conf == {"LSB_SHAREDIR": "/of/file"}
    (tmp_path / "badmin").unlink()
    (tmp_path / "conf" / "lsf.conf").unlink()
    assert facts(_read(tmp_path)).conf is None


def test_a_command_that_fails_is_told_in_its_words(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match=r"lsid ended with status 255: LIM is down; try later\."):
        _read(tmp_path, lsid="echo 'LIM is down; try later' >&2; exit 255")
