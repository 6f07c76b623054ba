"""How a pilot is submitted to LSF: its latest end, its time zone, and answers of bsub that mislead.

The commands are small scripts that note how they were called and print what a test gave them.
"""

from __future__ import annotations

import shutil
import time
from calendar import timegm
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftrainer.batch.batch_system import PilotRequest
from bftrainer.batch.pilot_job import job_name, pilot_of, token_of, token_of_place
from bftrainer.model.cluster import Presence
from bftrainer.model.errors import BatchSystemError
from lsf_adapters.commands import LsfCommands
from lsf_adapters.jobs import JobReader
from lsf_adapters.launcher import PilotLauncher, _minute, taken_by

LSID = "volclava project 2.2, Nov 22 2026\n\nMy cluster name is lab\nMy master name is lsfm\n"
SUBMITTED = "Job <7> is submitted to queue <bf>.\n"
WAITED = "batch system daemon not responding ... still trying\n"
NONE = "Job <x> is not found\n"
COMMAND = """\
#!/bin/sh
said=${0%/bin/*}/said/${0##*/}
cat >"$said.stdin"
echo "$*" >>"$said.args"
echo "${TZ-unset}" >"$said.zone"
cat "$said.out"
cat "$said.err" >&2
status=$(cat "$said.status")
for part in out err; do [ ! -e "$said.$part.next" ] || mv "$said.$part.next" "$said.$part"; done
exit "$status"
"""


class Site:
    """Commands of LSF that say what they are told to, and a launcher that uses them."""

    def __init__(self, base: Path, **environment: str) -> None:
        self.said, self.base = base / "said", base
        for folder in ("bin", "said", "pilots"):
            (base / folder).mkdir()
        for name in ("lsid", "bsub", "bjobs", "bkill"):
            path = base / "bin" / name
            path.write_text(COMMAND)
            path.chmod(0o755)
            self.says(name)
        self.says("lsid", LSID)
        self.says("bsub", SUBMITTED)
        self.says("bjobs", "", NONE, 255)
        commands = LsfCommands(bindir=base / "bin", extra_environment=environment)
        self.jobs = JobReader(commands)
        self.launcher = PilotLauncher(
            commands=commands, jobs=self.jobs, queue="bf", slots_of=lambda _: 4
        )

    def says(self, name: str, out: str = "", err: str = "", status: int = 0) -> None:
        for part, text in (("out", out), ("err", err), ("status", str(status))):
            (self.said / f"{name}.{part}").write_text(text)

    def then_says(self, name: str, out: str) -> None:
        """After the next answer of ``bjobs``."""
        (self.said / f"{name}.out.next").write_text(out)

    def heard(self, name: str, part: str = "args") -> str:
        path = self.said / f"{name}.{part}"
        return path.read_text() if path.exists() else ""

    def request(self, pilot_id: str = "p000001", **environment: str) -> PilotRequest:
        folder = self.base / "pilots" / pilot_id
        folder.mkdir(exist_ok=True)
        return PilotRequest(
            pilot_id=pilot_id,
            node="n1",
            time_limit_s=3600,
            agent_argv=("/bin/echo", "agent"),
            log_path=folder / "agent.log",
            environment=environment,
        )

    def launch(self, request: PilotRequest) -> str:
        return self.launcher.launch(request, cycle_s=10.0)

    def lists(self, request: PilotRequest, *jobs: tuple[int, str]) -> str:
        head = "JOBID USER STAT QUEUE FROM_HOST EXEC_HOST JOB_NAME SUBMIT_TIME\n"
        rows = (
            f"{number} bft {state} bf lsfm {'n1' if state == 'RUN' else '-'} "
            f"{job_name(request)} Nov 22 08:33\n"
            for number, state in jobs
        )
        return head + "".join(rows)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


# -- the latest end, time zones ------------------------------------------------------------


def as_bsub_reads(text: str, now_s: float) -> float:
    """Read ``-t`` as bsub of volclava 2.2 does, in UTC: what is past is of the next year."""
    month, day, hour, minute = (int(word) for word in text.split(":"))
    now = time.gmtime(now_s)
    is_past = (month, day, hour, minute) < (now.tm_mon, now.tm_mday, now.tm_hour, now.tm_min)
    return float(timegm((now.tm_year + is_past, month, day, hour, minute, 0)))


@given(
    now_s=st.integers(timegm((2024, 1, 1, 0, 0, 0)), timegm((2036, 1, 1, 0, 0, 0))),
    limit_min=st.integers(1, 14400),
)
def test_the_latest_end_is_read_back_as_it_was_meant(now_s: int, limit_min: int) -> None:
    end_s = now_s + 60.0 * limit_min + 100
    assert 0 <= as_bsub_reads(_minute(end_s), now_s) - end_s < 60


@pytest.mark.parametrize(
    "now",
    [
        (2026, 12, 31, 23, 30, 1),  # the year ends before the pilot
        (2026, 11, 1, 5, 30, 0),  # in New York 1:30 comes twice
        (2027, 3, 14, 6, 45, 0),  # and 2:30 does not come
        (2028, 2, 28, 23, 59, 59),
    ],
)
@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kathmandu", "UTC0"])
def test_no_time_zone_and_no_change_of_clocks_moves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zone: str, now: tuple[int, ...]
) -> None:
    site = Site(tmp_path, TZ=zone)
    now_s = float(timegm((*now, 0, 0, 0)[:9]))
    monkeypatch.setattr("lsf_adapters.launcher.calendar_s", lambda: now_s)
    site.launch(site.request())
    words = site.heard("bsub").split()
    end_s = as_bsub_reads(words[words.index("-t") + 1], now_s)
    assert site.heard("bsub", "zone") == "UTC0\n"
    assert 0 <= end_s - (now_s + 3600 + 4 * 10.0 + 60) < 60
    # The agent has the zone of the site.
    assert f"exec /usr/bin/env TZ={zone} /bin/echo agent\n" in site.heard("bsub", "stdin")


def test_an_agent_has_the_time_zone_of_its_request_or_none(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TZ", raising=False)
    site.launch(site.request())
    assert "exec /usr/bin/env -u TZ /bin/echo agent\n" in site.heard("bsub", "stdin")
    site.launch(site.request("p000002", TZ="Europe/Berlin"))
    assert "exec /usr/bin/env TZ=Europe/Berlin /bin/echo agent" in site.heard("bsub", "stdin")
    assert site.heard("bsub", "zone") == "UTC0\n"


# -- answers of bsub --------------------------------------------------------------------------


def test_a_plain_answer_needs_no_further_look(site: Site) -> None:
    assert site.launch(site.request()) == "7"
    assert site.heard("bjobs") == ""


@pytest.mark.parametrize(
    ("out", "err", "status"),
    [
        (SUBMITTED, WAITED, 0),
        (f"LSF is down. Please wait ...\n{SUBMITTED}", "", 0),
        ("", "", 0),
        ("Job <7> is subm", "", 0),
        ("\0\x01{[}]\n", "", 0),
        ("Job <7> wurde an Queue <bf> gesendet.\n", "", 0),
        ("", "Failed in an LSF library call: Connection reset by peer\n", 255),
    ],
)
def test_after_an_odd_answer_the_queue_tells_which_job_it_is(
    site: Site, out: str, err: str, status: int
) -> None:
    request = site.request()
    site.says("bsub", out, err, status)
    site.says("bjobs", site.lists(request, (9, "PEND"), (8, "RUN"), (6, "PEND")))
    assert site.launch(request) == "8"
    assert site.heard("bkill") == "6 9\n"
    assert not taken_by(request.log_path).exists()


def test_a_refusal_is_told_in_lsfs_words(site: Site) -> None:
    request = site.request()
    site.says("bsub", "", "bf: Queue has been closed. Job not submitted.\n", 255)
    with pytest.raises(BatchSystemError) as caught:
        site.launch(request)
    assert caught.value.code == "BFT-1204"
    assert "bf: Queue has been closed" in caught.value.cause
    assert taken_by(request.log_path).is_dir()  # if it is none, its job ends at once


def test_if_no_job_is_known_none_becomes_an_agent(site: Site) -> None:
    request = site.request()
    site.says("bsub", SUBMITTED, WAITED)
    with pytest.raises(BatchSystemError) as caught:
        site.launch(request)
    assert caught.value.code == "BFT-1205"
    assert taken_by(request.log_path).is_dir()


def test_a_pilot_that_starts_during_the_look_is_found(site: Site) -> None:
    request = site.request()
    site.says("bsub", "", "")
    site.then_says("bjobs", site.lists(request, (8, "RUN")))
    taken_by(request.log_path).mkdir()  # the agent does it
    assert site.launch(request) == "8"
    assert len(site.heard("bjobs").splitlines()) == 2


def test_without_a_folder_for_its_log_it_is_not_known(site: Site) -> None:
    request = site.request()
    site.says("bsub", "", "")
    shutil.rmtree(request.log_path.parent)
    with pytest.raises(BatchSystemError) as caught:
        site.launch(request)
    assert caught.value.code == "BFT-1205"


@pytest.mark.parametrize("said", ["", "LIM is down; try later\n", "My cluster is called lab\n"])
def test_nothing_is_submitted_before_lsid_has_answered(site: Site, said: str) -> None:
    site.says("lsid", said, "", 255 if "down" in said else 0)
    with pytest.raises(BatchSystemError) as caught:
        site.launch(site.request())
    assert caught.value.code == "BFT-1208"
    assert "lsid" in caught.value.cause
    assert site.heard("bsub") == ""
    site.says("lsid", LSID)
    assert site.launch(site.request()) == "7"


# -- looks and cancellations --------------------------------------------------------------------


def test_a_job_of_which_nothing_is_said_is_unknown(site: Site) -> None:
    request = site.request()
    site.says("bjobs", site.lists(request, (8, "PEND")), "Job <9> is not found\n", 255)
    site.then_says("bjobs", "Job <8>, \nSun Nov 22 08:33:00: Submitted from host <lsfm>;\n")
    seen = site.launcher.observe(["8", "9", "10"])
    assert {one.presence for one in seen.values()} == {Presence.UNKNOWN}
    assert "job 10" in seen["8"].reason


def test_messages_that_lsf_waits_are_no_answer(site: Site) -> None:
    site.says("bjobs", "LSF is down. Please wait ...\n", f"{WAITED}No unfinished job found\n", 254)
    assert site.jobs.all() == []
    site.says("bkill", "", f"{WAITED}Job <7>: Job has already finished\n", 255)
    site.launcher.cancel(["7"], force=True)
    site.says("bkill", "", "Job <7>: User permission denied\n", 255)
    with pytest.raises(BatchSystemError) as caught:
        site.launcher.cancel(["7"], force=True)
    assert caught.value.code == "BFT-1207"
    assert "User permission denied" in caught.value.cause


# -- names -------------------------------------------------------------------------------------


def test_names_of_two_daemons_differ_and_each_knows_its_own(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    mine, other = Site(first), Site(second)
    request, foreign = mine.request(), other.request()
    assert job_name(request) != job_name(foreign)
    assert token_of(request) == token_of(mine.request("p000002"))
    assert token_of(request) == token_of_place(first / "pilots")
    assert mine.launcher.tokens == frozenset()
    mine.launch(request)
    own = mine.launcher.tokens
    assert pilot_of(job_name(request), own) == "p000001"
    assert pilot_of(job_name(foreign), own) == job_name(foreign)
    assert pilot_of(job_name(foreign)) == "p000001"  # while nobody knows
    assert pilot_of("thesis", own) == ""


def test_minutes_are_rounded_up() -> None:
    assert _minute(timegm((2026, 11, 22, 8, 33, 0, 0, 0, 0))) == "11:22:08:33"
    assert _minute(timegm((2026, 11, 22, 8, 33, 0, 0, 0, 0)) + 0.5) == "11:22:08:34"


@pytest.mark.parametrize(
    ("words", "has_failed"),
    [
        ("Exited with exit code 1. The CPU time used is 0.0 seconds.", True),
        ("Exited by signal 9. The CPU time used is 0.0 seconds.", True),
        ("Exited with exit code 143. The CPU time used is 0.0 seconds.", False),  # TERM
        ("Exited;", False),  # removed while it was pending
    ],
)
def test_who_has_failed_by_itself(site: Site, words: str, *, has_failed: bool) -> None:
    site.says("bjobs", site.lists(site.request(), (8, "EXIT")))
    site.then_says(
        "bjobs",
        "Job <8>, \nSun Nov 22 08:33:00: Submitted from host <lsfm>;\n"
        f"Sun Nov 22 08:35:00: {words}\n",
    )
    seen = site.launcher.observe(["8"])["8"]
    assert (seen.presence, seen.has_failed) == (Presence.ABSENT, has_failed)


def test_a_pilot_whose_host_was_lost_has_not_failed(site: Site) -> None:
    long = "Job <8>, \nSun Nov 22 08:33:00: Submitted from host <lsfm>;\n"
    site.says("bjobs", site.lists(site.request(), (8, "UNKWN")))
    site.then_says("bjobs", long)
    assert site.launcher.observe(["8"])["8"].presence is Presence.UNKNOWN
    site.says("bjobs", site.lists(site.request(), (8, "EXIT")))
    site.then_says("bjobs", f"{long}Sun Nov 22 08:35:00: Exited with exit code 137.\n")
    assert not site.launcher.observe(["8"])["8"].has_failed
