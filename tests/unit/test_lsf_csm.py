"""What bslots and jobstat print, idle nodes, and pilots with jsrun: the pure parts."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from bftrainer import process
from bftrainer.errors import BatchSystemError, BftError, UsageError
from bftrainer.hostlist import ParseError
from bftrainer.poll.batch_system import PilotRequest
from lsf_adapters.adapter import create
from lsf_adapters.bslots import Window, windows
from lsf_adapters.csm.__main__ import main
from lsf_adapters.csm.compound import on_compute_nodes
from lsf_adapters.csm.idle import Gap, Poll, confirmed, gaps, poll_of
from lsf_adapters.csm.jobstat import JobStat, ListedJob, jobstat
from lsf_adapters.csm.placement import Csm, csm_of
from lsf_adapters.csm.polls import line_of, read_polls
from lsf_adapters.csm.trace import fragments
from lsf_adapters.requests import Asked, JobRow, job_of
from lsf_adapters.told.records import EarlierRecords, announcement
from tests.support.lsf_events import PILOTS, job_new
from tests.support.waiting import wait_for

# OLCF's Summit user guide, "Inspecting Backfill" and "Monitoring Jobs".
BSLOTS = """\
SLOTS          RUNTIME
42             25 hours 42 minutes 51 seconds
27384          1 hours 11 minutes 50 seconds
"""
JOBSTAT = """\
--------------------------- Running Jobs: 2 (4544 of 4604 nodes, 98.70%) ---------------------------
JobId    Username   Project          Nodes Remain     StartTime       JobName
331590   user     project           2     57:06      04/09 10:06:23  Not_Specified
331707   user     project           40    39:47      04/09 11:04:04  runA
----------------------------------------- Eligible Jobs: 3 -----------------------------------------
JobId    Username   Project          Nodes Walltime   QueueTime       Priority JobName
331712   user     project           80    45:00      04/09 11:06:23  501.00   runB
331713   user     project           90    45:00      04/09 11:07:19  501.00   runC
331714   user     project           100   45:00      04/09 11:07:49  501.00   runD
----------------------------------------- Blocked Jobs: 1 ------------------------------------------
JobId    Username   Project          Nodes Walltime   BlockReason
331715   user        project           12    2:00:00    Job dependency condition not satisfied
"""
# A window of Durham's COSMA (http://star-www.dur.ac.uk/~pdraper/cosma/backfill.html).
BSLOTS_LONG = """\
SLOTS:    70
RUNTIME:  6 hours 37 minutes 0 seconds
HOSTS:    12*m4140 12*m4168 11*m4071 11*m4153 12*m4061 12*m4084
"""
NOBODY = JobStat(nodes_used=None, nodes=None, running=(), eligible=(), blocked=())


# -- commands --------------------------------------------------------------------------------


def test_windows_of_summit() -> None:
    assert windows(BSLOTS) == (
        Window(slots=42, for_s=25 * 3600 + 42 * 60 + 51),
        Window(slots=27384, for_s=3600 + 11 * 60 + 50),
    )


def test_windows_with_hosts() -> None:
    text = f"LSF is down. Please wait ...\n{BSLOTS_LONG}\nSLOTS: 8\nRUNTIME: UNLIMITED\n"
    first, second = windows(f"{text}HOSTS: 4*a01n01\n 4*a01n02\n")
    assert (first.slots, first.for_s) == (70, 6 * 3600 + 37 * 60)
    assert first.hosts[:2] == (("m4140", 12), ("m4168", 12))
    assert second == Window(slots=8, for_s=math.inf, hosts=(("a01n01", 4), ("a01n02", 4)))


@pytest.mark.parametrize(
    "text",
    [
        "No backfill window exists at this time\n",
        "No backfill window meets these requirements at this time\n",
    ],
)
def test_no_window_is_an_answer(text: str) -> None:
    assert windows(text) == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        BSLOTS[:-30],
        BSLOTS_LONG[:-20] + "\n",  # hosts that do not add up
        BSLOTS_LONG.rpartition("HOSTS")[0],
        "CRENEAUX DUREE\n42 1 heure\n",
        "SLOTS          RUNTIME\n42\n",
        "SLOTS          RUNTIME\n42  a while\n",
        "SLOTS          RUNTIME\n42  1 hours and more\n",
        "RUNTIME: UNLIMITED\n",
        "SLOTS: 4\nSLOTS: 4\nRUNTIME: UNLIMITED\nHOSTS: 4*n1\n",
    ],
)
def test_other_windows_are_refused(text: str) -> None:
    with pytest.raises(ParseError):
        windows(text)


def test_jobstat_of_summit() -> None:
    seen = jobstat(JOBSTAT)
    assert (seen.nodes_used, seen.nodes, seen.n_free) == (4544, 4604, 60)
    assert seen.running[0] == ListedJob(job_id="331590", n_nodes=2, for_s=57 * 60 + 6)
    assert [job.n_nodes for job in seen.eligible] == [80, 90, 100]
    assert seen.blocked == (ListedJob(job_id="331715", n_nodes=12, for_s=7200),)


@pytest.mark.parametrize(
    "text",
    [
        "",
        JOBSTAT[:-10],
        JOBSTAT.replace("331713", "x31713"),
        "\n".join(JOBSTAT.split("\n")[:6]) + "\n",  # two eligible jobs are missing
        JOBSTAT.replace("45:00", "soon"),
        JOBSTAT.replace("Running", "Laufende"),
        JOBSTAT.replace("   80 ", "   8o "),
    ],
)
def test_other_jobs_are_refused(text: str) -> None:
    with pytest.raises(ParseError):
        jobstat(text)


# -- idle nodes ------------------------------------------------------------------------------


def test_named_nodes_are_idle_as_long_as_their_longest_window() -> None:
    found = (
        Window(slots=12, for_s=600, hosts=(("n1", 4), ("n2", 4), ("n3", 3), ("n4", 1))),
        Window(slots=4, for_s=math.inf, hosts=(("n1", 4),)),
    )
    poll = poll_of(5.0, found, NOBODY, slots_per_node=4)
    assert poll.idle == {"n1": math.inf, "n2": 600}
    assert poll.is_named


def test_unnamed_nodes_are_counted_and_jobstat_bounds_them() -> None:
    poll = poll_of(5.0, windows(BSLOTS), jobstat(JOBSTAT), slots_per_node=42)
    assert len(poll.idle) == 60  # of 652: by then the others had jobs
    assert poll.idle["idle00001"] == 92571
    assert set(list(poll.idle.values())[1:]) == {4310}
    assert not poll.is_named
    free = replace(jobstat(JOBSTAT), nodes=None)
    assert len(poll_of(5.0, windows(BSLOTS), free, slots_per_node=42).idle) == 652


def test_an_impossible_number_of_nodes_is_refused() -> None:
    found = windows("SLOTS          RUNTIME\n999999999      UNLIMITED\n")
    with pytest.raises(ParseError):
        poll_of(5.0, found, NOBODY, slots_per_node=42)


def polls(*idle: str, step_s: float = 10.0, at_s: float = 0.0) -> list[Poll]:
    """Polls in which the nodes of each word, one letter each, are idle for an hour."""
    return [
        Poll(at_s=at_s + k * step_s, idle=dict.fromkeys(word, 3600.0))
        for k, word in enumerate(idle)
    ]


def test_nodes_idle_in_one_poll_only_are_dropped() -> None:
    seen = confirmed(polls("ab", "abc", "a", "ad", "d", "e"))
    assert ["".join(sorted(poll.idle)) for poll in seen] == ["ab", "ab", "a", "ad", "d", ""]


def test_polls_with_a_gap_between_them_confirm_nothing() -> None:
    seen = confirmed([*polls("a", "ab"), *polls("ab", "a", at_s=100.0)])
    assert ["".join(sorted(poll.idle)) for poll in seen] == ["a", "a", "a", "a"]


def test_what_a_waiting_job_could_use_is_fillable() -> None:
    poll = Poll(
        at_s=0.0,
        idle={"a": 600.0, "b": 1200.0, "c": 3600.0, "d": math.inf},
        waiting=(
            ListedJob(job_id="1", n_nodes=2, for_s=3600.0),
            ListedJob(job_id="2", n_nodes=5, for_s=60.0),
            ListedJob(job_id="3", n_nodes=0, for_s=60.0),
        ),
    )
    assert gaps(poll) == (
        Gap(node="a", for_s=600.0, is_unfillable=True),
        Gap(node="b", for_s=1200.0, is_unfillable=True),
        Gap(node="c", for_s=3600.0, is_unfillable=False),
        Gap(node="d", for_s=math.inf, is_unfillable=False),
    )


# -- recordings and traces -------------------------------------------------------------------


def test_a_trace_has_a_fragment_per_idle_time() -> None:
    trace = fragments(polls("ab", "ab", "a", "", "b", "bc", "c", "c"))
    assert trace.names == ("a", "b", "c")
    assert list(zip(trace.node.tolist(), trace.start_s, trace.end_s, strict=True)) == [
        (0, 0.0, 30.0),
        (1, 0.0, 20.0),
        (1, 40.0, 60.0),
        (2, 50.0, 70.0),
    ]
    assert trace.span_s == (0.0, 70.0)
    assert trace.is_unfillable is not None
    assert trace.is_unfillable.all()


def test_where_polls_are_missing_nothing_is_idle() -> None:
    trace = fragments([*polls("ab", "ab", "a"), *polls("a", "a", at_s=120.0)])
    assert list(zip(trace.node.tolist(), trace.start_s, trace.end_s, strict=True)) == [
        (0, 0.0, 20.0),
        (0, 120.0, 130.0),
        (1, 0.0, 20.0),
    ]
    assert any("missing at 1 places" in note for note in trace.notes)


def test_a_trace_tells_what_a_waiting_job_could_have_used() -> None:
    waiting = (ListedJob(job_id="1", n_nodes=2, for_s=30.0),)
    seen = polls("ab", "ab", "ab", "ab", "ab", "a", "a", "a")
    seen[:3] = [replace(poll, waiting=waiting) for poll in seen[:3]]
    trace = fragments(seen)
    assert trace.is_unfillable is not None
    found = zip(trace.node.tolist(), trace.start_s, trace.end_s, trace.is_unfillable, strict=True)
    assert list(found) == [
        (0, 0.0, 30.0, False),
        (0, 30.0, 70.0, True),
        (1, 0.0, 30.0, False),
        (1, 30.0, 50.0, True),
    ]


@pytest.mark.parametrize("seen", [[], polls("a"), polls("a", "b", "c")])
def test_too_little_for_a_trace_is_refused(seen: list[Poll]) -> None:
    with pytest.raises(ValueError, match="poll"):
        fragments(seen)


def test_polls_are_read_as_they_were_written(tmp_path: Path) -> None:
    one = poll_of(1.5, windows(BSLOTS_LONG), jobstat(JOBSTAT), slots_per_node=12)
    other = Poll(at_s=11.5, idle={"n1": math.inf}, is_named=False)
    file = tmp_path / "polls.jsonl"
    file.write_text(line_of(one) + line_of(other))
    assert read_polls(file) == [one, other]
    file.write_text(line_of(one) + line_of(other)[:-9])  # the recorder was killed
    assert read_polls(file) == [one]


@pytest.mark.parametrize(
    "text",
    [
        "node,start_s,end_s\n",
        '{"schema": "another"}\n' + line_of(Poll(at_s=0.0, idle={})),
        line_of(Poll(at_s=5.0, idle={})) + line_of(Poll(at_s=5.0, idle={})),
        line_of(Poll(at_s=5.0, idle={"n1": -1.0})),
    ],
)
def test_what_is_no_recording_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "polls.jsonl"
    file.write_text(text)
    with pytest.raises(UsageError) as raised:
        read_polls(file)
    assert raised.value.code == "BFT-1229"


# -- pilots ----------------------------------------------------------------------------------


def request_in(folder: Path) -> PilotRequest:
    return PilotRequest(
        pilot_id="p000001",
        node="a01n01",
        time_limit_s=600,
        agent_argv=("/opt/agent", "--name", "it's"),
        log_path=folder / "pilot.log",
    )


def test_a_node_is_named_in_expert_mode() -> None:
    assert Csm().words(("a01n01",), 42) == (
        *("-csm", "y", "-R"),
        "1*{select[LN]span[hosts=1]} + 42*{select[CN&&(hname==a01n01)]span[ptile=42]}",
    )
    both = Csm(alloc_flags="smt4").words(("a", "b"), 4)
    assert "8*{select[CN&&(hname==a||hname==b)]span[ptile=4]}" in both[3]
    assert both[4:] == ("-alloc_flags", "smt4")
    assert Csm().easy_words(2) == ("-nnodes", "2")


@pytest.mark.parametrize("name", ["", "a b", "n1)]", "n1||hname==n2", "-n1", "n1\n"])
def test_a_name_that_is_more_than_a_name_is_refused(name: str) -> None:
    with pytest.raises(BatchSystemError) as raised:
        Csm().words((name,), 4)
    assert raised.value.code == "BFT-1219"


def test_larger_blocks_are_refused() -> None:
    assert csm_of("slots", 1) is None
    for block_nodes in (0, 2):
        with pytest.raises(BftError) as raised:
            create({"launch": "csm", "block_nodes": block_nodes})
        assert raised.value.code == "BFT-1218"


# It tells its options and each TERM, and leaves at the second one with status 7.
JSRUN = """\
#!/bin/sh
echo "$@" >>"$0.said"
trap 'echo TERM >>"$0.said"; n=$((n + 1)); [ $n -lt 2 ] || exit 7' TERM
n=0
while :; do sleep 0.02; done
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_the_script_passes_signals_on_to_jsrun_alone_and_ends_with_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    jsrun = tmp_path / "jsrun"
    jsrun.write_text(JSRUN)
    jsrun.chmod(0o755)
    script = tmp_path / "script"
    script.write_text(Csm().script(request_in(tmp_path), request_in(tmp_path).agent_argv))
    said = tmp_path / "jsrun.said"

    def lines() -> list[str]:
        return said.read_text().splitlines() if said.exists() else []

    job = process.spawn(("sh", str(script)), env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    try:
        wait_for(lambda: len(lines()) == 1, what="jsrun's options")
        os.kill(job.pid, number)  # the shell alone, not its group
        wait_for(lambda: lines()[1:] == ["TERM"], what="TERM at jsrun")
        assert job.poll() is None
        os.kill(job.pid, number)
        assert job.wait(30) == 7
    finally:
        process.kill_group(job.pid)
        job.wait()
    assert lines()[0] == (
        "--nrs 1 --rs_per_host 1 --tasks_per_rs 1 --cpu_per_rs ALL_CPUS --gpu_per_rs ALL_GPUS "
        "--bind none /opt/agent --name it's"
    )


def test_a_second_job_of_a_pilot_starts_nothing(tmp_path: Path) -> None:
    request = request_in(tmp_path)
    (tmp_path / "pilot.log.started").mkdir()
    script = Csm().script(request, request.agent_argv)
    done = process.run(("sh", "-s"), timeout_s=30, stdin=script, env={"PATH": os.environ["PATH"]})
    assert done.is_ok
    assert request.log_path.read_text() == ""


# -- jobs of the machine ---------------------------------------------------------------------

EASY = "1*{select[LN]span[hosts=1]} + 1680*{select[CN]span[ptile=42]}"
SLOTS_OF = {f"a01n{k:02d}": 42 for k in range(1, 51)}


def job_row(resources: str, hosts: tuple[str, ...] = ()) -> JobRow:
    asked = Asked(slots=1681, resources=resources, hosts=hosts)
    return JobRow(job_id="7", user="ada", state="PEND", queue="batch", name="x", asked=asked)


def test_a_waiting_job_wants_compute_nodes_only() -> None:
    job = job_of(on_compute_nodes(job_row(EASY)), SLOTS_OF)
    assert (job.n_nodes, job.cpus, job.cpus_per_node, job.unclear) == (40, 1680, 42, "")
    assert not job.can_share


def test_named_nodes_are_required_and_avoided_ones_are_unclear() -> None:
    text = EASY.replace("1680", "84").replace("[CN]", "[CN && (hname==a01n01||hname == a01n02)]")
    job = job_of(on_compute_nodes(job_row(text)), SLOTS_OF)
    assert (job.n_nodes, job.required_nodes, job.unclear) == (2, ("a01n01", "a01n02"), "")
    text = EASY.replace("[CN]", "[CN&&(hname!='a01n01')&&(type==any)]order[!-slots]")
    job = job_of(on_compute_nodes(job_row(text)), SLOTS_OF)
    assert job.n_nodes == 40
    assert "hname!=" in job.unclear


@pytest.mark.parametrize(
    "text",
    [
        "span[ptile=42]",
        "1*{select[LN]span[hosts=1]}",
        "4*{select[CN]} + 8*{select[CN]span[ptile=4]}",
        "1*{select[LN]} + 42*{select[CN||LN]span[ptile=42]}",
        "1*{select[LN]} + x*{select[CN]}",
        "",
    ],
)
def test_other_requirements_stay_as_they_are(text: str) -> None:
    assert on_compute_nodes(job_row(text)) == job_row(text)
    unread = replace(job_row(text), asked=None)
    assert on_compute_nodes(unread) == unread


def test_an_announced_job_wants_compute_nodes_only() -> None:
    line = job_new(slots=1681, resources=EASY)
    said = announcement(line, EarlierRecords(pilot_queue=PILOTS), SLOTS_OF)
    assert said is not None
    assert said.job is not None
    assert (said.job.n_nodes, said.job.cpus, said.job.unclear) == (40, 1680, "")


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (["record", "no-such-folder/polls", "--polls", "1"], 8, "BFT-4002"),
        (["show", "no-such-file"], 8, "BFT-4002"),
        (["trace", "too-short", "t.npz"], 8, "BFT-1229"),
        (["trace", "two", "t.txt"], 8, "BFT-4003"),
    ],
)
def test_the_commands_say_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], status: int, code: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("too-short").write_text(line_of(polls("a")[0]))
    Path("two").write_text("".join(map(line_of, polls("a", "a"))))
    done = CliRunner().invoke(main, words)
    assert done.exit_code == status
    assert code in done.output


def test_show_tells_what_is_idle_now(tmp_path: Path) -> None:
    file = tmp_path / "polls"
    waiting = (ListedJob(job_id="1", n_nodes=1, for_s=7200.0),)
    seen = [replace(poll, waiting=waiting) for poll in polls("ab", "abc")]
    seen[1] = replace(seen[1], idle={**seen[1].idle, "b": math.inf})
    file.write_text("".join(map(line_of, seen)))
    done = CliRunner().invoke(main, ["show", str(file)])
    assert done.output == "a for 3600 s, unfillable\nb without limit\n"
