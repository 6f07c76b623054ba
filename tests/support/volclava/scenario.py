"""The scenarios that are played on the stand-in and on a real volclava, one function each."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable
from typing import Final

from tests.support.volclava.playing import Player

_FIELD: Final = re.compile(r'"(?:[^"]|"")*"|[^ ]+')

# A job that notes the signals it gets; deaf to all but KILL.
NOTING_SIGNALS: Final = """\
note() { echo "$(date +%s.%N) $1" >> FILE; }
trap 'note INT' INT
trap 'note TERM' TERM
trap 'note USR1' USR1
trap 'note USR2' USR2
note start
while :; do sleep 0.05; done
"""


def describing(play: Player) -> None:
    """What describes the cluster, and options that only IBM's commands have."""
    play.say("lsid")
    for command in ("bhosts", "bqueues", "bparams"):
        play.say(command)
    lines = play.quietly("lsload").stdout.splitlines()
    play.lines += ["# lsload: " + " ".join(line.split()[:2]) for line in sorted(lines)]
    play.say("bhosts", "-w", keeps_numbers=True)
    play.say("bqueues", "-w", keeps_numbers=True)
    play.say("bqueues", "-l", "bf", user="bft")
    play.say("bhosts", "nosuch")
    play.say("bqueues", "nosuch")
    play.say("bhosts", "-o", "host_name status")
    play.say("bhosts", "-json")
    play.say("bqueues", "-o", "queue_name status")
    play.say("bparams", "-a")


def submitting(play: Player) -> None:
    """Acceptance and refusals, and typos that become jobs."""
    null = ("-o", "/dev/null")
    play.say("bsub", *null, "sleep", "120")
    play.say("bsub", "-q", "normal", "-J", "three words here", "-P", "proj1", "-n", "4",
             "-W", "10", "-R", "span[ptile=4]", *null, "sleep 120")  # fmt: skip
    play.say("bsub", "-x", "-n", "1", "-W", "1:30", *null, "sleep", "120")
    play.say("bsub", stdin="#!/bin/sh\nsleep 120\n")
    refused = (
        ("-q", "nosuch", "sleep", "1"),
        ("-q", "bf", "sleep", "1"),
        ("-m", "nosuch", "sleep", "1"),
        ("-n", "999", *null, "sleep", "1"),
        ("-n", "nothing", "sleep", "1"),
        ("-W", "zero", "sleep", "1"),
        ("-R", "select[", "sleep", "1"),
        ("-w", "done(99999)", "sleep", "1"),
        ("-We", "5", "sleep", "1"),
        ("-ti", "sleep", "1"),
        ("-sla", "x", "sleep", "1"),
        ("-cwd", "/tmp", *null, "sleep", "1"),
        ("-nnodes", "1", "sleep", "1"),
        ("-rn", "sleep", "1"),
        ("-J", "x" * 600, *null, "sleep", "1"),
    )
    for options in refused:
        play.say("bsub", *options)
    play.say("bsub")
    play.say("bsub", "-q", "bf", "-W", "300", "sleep", "1", user="bft")
    play.say("bsub", *null, "sleep", "1", user="root")
    for typo in (("--nonsense",), ("-app", "x"), ("-Jd", "text"), ("-env", "none")):
        play.say("bsub", *typo, *null, "sleep", "1")
    play.say("bsub", "-H", *null, "sleep", "1")


def listing(play: Player) -> None:
    """Every form of bjobs, over jobs of every kind."""
    play.say("bjobs", user="bob")
    play.say("bjobs", "-u", "all", user="bob")
    play.say("bjobs", "424242")
    play.say("bjobs", "-o", "jobid stat", "-json")
    play.say("bjobs", "-o", "jobid stat", "-json", "424242")
    play.say("bjobs", "-q", "nosuch")
    play.say("bjobs", "-u", "nosuchuser")
    play.say("bjobs", "abc")
    play.submit("finished", work="sleep 2")
    play.submit("exit3", work="sleep 2; exit 3")
    play.wait_state("finished", "DONE")
    play.wait_state("exit3", "EXIT")
    play.submit("par", "-n", "8", "-R", "span[ptile=4]", "-W", "45", "-m", "n1 n2")
    play.wait_state("par", "RUN")
    play.submit("excl", "-x", "-W", "20", "-m", "n3", user="bob")
    play.wait_state("excl", "RUN")
    play.submit("susp", "-n", "4", "-R", "span[hosts=1]", "-W", "30", "-m", "n4")
    play.wait_state("susp", "RUN")
    play.submit("fills", "-n", "4", "-R", "span[ptile=4]", "-m", "n5")
    play.wait_state("fills", "RUN")
    play.say("bstop", "{susp}")
    play.wait_state("susp", "USUSP")
    play.submit("held", "-H")
    # Only where it could not start anyway: volclava's first pass does not look at the condition.
    play.submit("dep", "-w", "ended({par})", "-m", "n1")
    play.submit("pend", "-x", "-n", "20", user="bob")
    play.submit("pilot", "-n", "4", "-R", "span[ptile=4]", "-W", "15", "-m", "n1", user="bft")
    for name, reason in (("pilot", "Job slot limit"), ("dep", "dependency condition")):
        play.wait(functools.partial(_says, play, name, reason), f"why {name} waits")
    for options in (
        ("-u", "all"),
        ("-u", "all", "-w"),
        ("-r", "-u", "all"),
        ("-s", "-u", "all"),
        ("-q", "normal", "-u", "all", "-w"),
        ("-q", "bf", "-u", "all"),
        ("-d", "-u", "all", "-w", "-J", "finished"),
        ("-a", "-w", "-J", "exit3", "-u", "all"),
        ("-o", "jobid stat exec_host job_name queue user", "-json", "{par}", "{dep}", "{exit3}"),
        ("-o", "jobid stat:10", "{par}"),
        ("-o", "jobid stat delimiter='|'", "{par}"),
        ("-noheader", "-o", "jobid stat", "{par}"),
        ("-o", "nosuchfield", "{par}"),
        ("-json", "{par}"),
        ("-J", "pend", "-u", "all"),
        ("-J", "nosuch", "-u", "all"),
        ("{finished}", "424242"),
    ):
        play.say("bjobs", *options, user="lsfadm")
    # Not of the held job: volclava's reason is one or the other.
    for name in ("par", "excl", "susp", "dep", "finished", "exit3"):
        play.say("bjobs", "-l", f"{{{name}}}", user="lsfadm")
    play.say("bjobs", "-UF", "{par}", user="lsfadm")
    play.say("bhosts", "-w", keeps_numbers=True)
    play.say("bqueues", "-w", keeps_numbers=True)


def _details(play: Player, name: str) -> str:
    return play.quietly("bjobs", "-l", f"{{{name}}}", user="lsfadm").stdout


def _says(play: Player, name: str, text: str) -> bool:
    return text in _details(play, name)


def controlling(play: Player) -> None:
    """bkill, bstop, bresume, and who may."""
    play.submit("one")
    play.submit("two")
    play.submit("gone", work="sleep 2")
    play.wait_state("one", "RUN")
    play.wait_state("two", "RUN")
    play.wait_state("gone", "DONE")
    play.say("bkill", "{one}", user="bob")
    play.say("bkill", "424242")
    play.say("bkill", "{gone}")
    play.say("bkill", "abc")
    play.say("bkill")
    play.say("bstop", "{one}")
    play.wait_state("one", "USUSP")
    play.say("bresume", "{one}")
    play.wait_state("one", "RUN")
    play.say("bkill", "-s", "USR1", "{two}")
    play.wait_state("two", "EXIT")
    play.say("bkill", "{one}", "424242")
    play.wait_state("one", "EXIT")
    play.submit("held", "-H")
    play.wait_state("held", "PSUSP")
    play.say("bresume", "{held}")
    play.wait_state("held", "RUN")
    play.say("bkill", "-r", "{held}")
    play.wait_state("held", "EXIT")
    play.say("bkill", "-q", "bf", "0", user="bft")
    play.say("bkill", "0", user="bob")
    play.submit("a", user="bob")
    play.submit("b", user="bob")
    play.wait_state("a", "RUN")
    play.wait_state("b", "RUN")
    play.say("bkill", "-J", "a", "0", user="bob")
    play.wait_state("a", "EXIT")
    play.say("bkill", "0", user="bob")


def administering(play: Player) -> None:
    """Hosts and queues opened and closed."""
    play.say("badmin", "hclose", "n3")
    play.say("badmin", "hclose", "n3", user="lsfadm")
    play.say("bhosts", "-w", keeps_numbers=True)
    play.say("bhosts", keeps_numbers=True)
    play.say("badmin", "hopen", "n3", user="root")
    play.say("badmin", "qclose", "normal")
    play.say("badmin", "qclose", "bf", user="root")
    play.say("bqueues", keeps_numbers=True)
    play.say("bsub", "-q", "bf", "true", user="bft")
    play.say("badmin", "qopen", "bf", user="root")
    play.say("badmin", "qinact", "bf", user="root")
    play.say("bqueues", keeps_numbers=True)
    play.submit("waits", "-q", "bf", user="bft")
    play.say("badmin", "qact", "bf", user="root")
    play.wait_state("waits", "RUN")


def depending(play: Player) -> None:
    """Arrays, dependencies, exclusive jobs."""
    play.submit("arr[1-3]")
    for index in (1, 2, 3):
        play.wait_state(f"arr[{index}]", "RUN")
    play.say("bjobs", "-u", "all", "-w")
    play.say("bjobs", "-A", "{arr}")
    play.say("bkill", "{arr}[2]")
    play.wait_state("arr[2]", "EXIT")
    play.say("bkill", "-J", "arr", "0")
    play.wait_state("arr[1]", "EXIT")
    play.submit("first", "-n", "4", "-R", "span[hosts=1]", "-m", "n1", work="sleep 6")
    play.wait_state("first", "RUN")
    play.submit("second", "-w", "done({first})", "-m", "n1", work="sleep 2")
    play.submit("never", "-w", "exit({first})", "-m", "n1", work="sleep 2")
    play.wait_state("second", "DONE")
    play.say("bjobs", "-w", "-u", "all")
    play.submit("alone", "-x", "-m", "n2")
    play.wait_state("alone", "RUN")
    play.submit("beside", "-m", "n2")
    play.say("bhosts", "-w", keeps_numbers=True)
    play.say("bkill", "{alone}")
    play.wait_state("alone", "EXIT")
    play.wait_state("beside", "RUN")  # at lim's next exchange


def reserving(play: Player) -> None:
    """Slots reserved for a job that waits, and what backfills them."""
    n = len(play.cluster.node_names)
    play.submit("long", "-n", "4", "-R", "span[ptile=4]", "-W", "6", "-m", "n1")
    play.submit("short", "-n", "4", "-R", "span[ptile=4]", "-W", "3", "-m", "n2")
    play.wait_state("long", "RUN")
    play.wait_state("short", "RUN")
    play.submit("big", "-n", str(4 * n), "-R", "span[ptile=4]", "-W", "5", user="bob")
    play.wait(lambda: "Will be started" in _details(play, "big"), "an estimate")
    play.say("bhosts", "-w", keeps_numbers=True)
    play.say("bjobs", "-u", "all", "-w")
    text = _details(play, "big")
    reserved = text.partition("Reserved <")[2].partition(">")[0]
    play.lines.append(f"# slots reserved for big: {reserved}")
    play.submit("too_long", "-q", "bf", "-W", "10", "-m", "n3", user="bft")
    play.submit("fits", "-q", "bf", "-W", "1", "-m", "n3", user="bft")
    play.wait_state("fits", "RUN")
    play.say("bjobs", "-u", "all", "-w")
    play.say("bhosts", "-w", keeps_numbers=True)
    play.say("busers", "all", keeps_numbers=True)
    for name in ("long", "short"):
        play.say("bkill", f"{{{name}}}")
    play.say("bkill", "{fits}", user="bft")
    play.wait_state("big", "RUN")
    play.say("bhosts", "-w", keeps_numbers=True)


def naming(play: Player) -> None:
    """Names and texts of users that are not plain."""
    for name in ("a'b", "a b\tc", 'quo"te', "umlaut_ä", "per%Jcent", "-dash", "<b>", "back\\slash"):
        play.submit(name, "-H")
        play.say("bjobs", "-o", "jobid stat job_name", f"{{{name}}}")
        play.say("bjobs", "-o", "jobid stat job_name", "-json", f"{{{name}}}")
        play.say("bjobs", "-w", f"{{{name}}}")
    play.say("bsub", "-H", "-o", "/dev/null", "-J", "two\nlines", "true")
    play.say("bjobs", "-w")
    play.submit("text", work="printf '%s|' \"two  blanks\" '#' > {scratch}/text")
    play.wait_state("text", "DONE")
    play.lines.append(f"# {(play.scratch / 'text').read_text()}")


def ending_in_time(play: Player) -> None:
    """Termination times: a job that could not end in time is removed."""
    play.submit("fills", "-n", "4", "-R", "span[ptile=4]", "-m", "n1")
    play.wait_state("fills", "RUN")
    play.ids["minute"] = time.strftime("%H:%M", time.gmtime(time.time() + 30 * 60))
    play.submit("waits", "-m", "n1", "-t", "{minute}", "-W", "5")
    play.submit("cannot", "-m", "n1", "-t", "{minute}", "-W", "60")
    play.wait_state("cannot", "EXIT")
    play.say("bjobs", "-w", "-u", "all")
    play.say("bsub", "-t", "nonsense", "sleep", "1")


def signalling(play: Player) -> None:
    """What a job is sent: by bkill, by its run limit."""
    for name, options in (("limited", ("-W", "1")), ("killed", ("-n", "4"))):
        file = play.scratch / f"{name}.signals"
        script = NOTING_SIGNALS.replace("FILE", str(file))
        play.say("bsub", "-J", name, *options, "-o", "/dev/null", stdin=script)
        play.ids[name] = _newest(play)
        play.wait(file.exists, f"the start of {name}")
    began_s = time.time()
    play.say("bkill", "-s", "USR1", "{killed}")
    _wait_signal(play, "killed", "USR1", began_s)
    began_s = time.time()
    play.say("bkill", "{killed}")
    for signal in ("INT", "TERM"):
        _wait_signal(play, "killed", signal, began_s)
    play.wait_state("killed", "EXIT")
    play.time_it("bkill of a deaf job: gone", began_s)
    start_s = float((play.scratch / "limited.signals").read_text().split()[0])
    _wait_signal(play, "limited", "USR2", start_s)
    for name in ("limited", "killed"):
        text = (play.scratch / f"{name}.signals").read_text()
        play.lines.append(f"# {name}: {' '.join(text.split()[1::2])}")
    play.say("bjobs", "-w", "{limited}")


def _wait_signal(play: Player, name: str, signal: str, began_s: float) -> None:
    file = play.scratch / f"{name}.signals"
    play.wait(lambda: f" {signal}\n" in file.read_text(), f"{signal} at {name}", timeout_s=90)
    (line,) = [line for line in file.read_text().splitlines() if line.endswith(f" {signal}")][:1]
    what = "-W 1" if name == "limited" else "bkill of a deaf job"
    play.latencies_s.setdefault(f"{what}: {signal}", []).append(float(line.split()[0]) - began_s)


def _newest(play: Player) -> str:
    done = play.quietly("bjobs", "-a", "-u", "all", "-o", "jobid")
    return str(max(int(word) for word in done.stdout.split()[1:]))


def submitting_to_nobody(play: Player) -> None:
    """A bsub while mbatchd is stopped becomes several jobs; while it is dead, one."""
    play.cluster.stop_controller()
    looked = play.quietly("bjobs", timeout_s=15)
    play.lines.append(f"# bjobs ends: {not looked.timed_out}; says: {_said(looked.stderr)}")
    tried = play.quietly("bsub", "-J", "once", "-o", "/dev/null", "sleep 300", timeout_s=35)
    play.lines.append(f"# bsub ends: {not tried.timed_out}; says: {_said(tried.stderr)}")
    play.cluster.start_controller()
    play.wait(lambda: _count(play, "once") >= 3, "the jobs of the bsub that was killed")
    play.lines.append("# the bsub that was killed became several jobs")
    play.clear()
    play.cluster.kill_controller()
    tried = play.quietly("bsub", "-J", "dead", "-o", "/dev/null", "sleep 300", timeout_s=15)
    play.lines.append(f"# bsub ends: {not tried.timed_out}; says: {_said(tried.stderr)}")
    play.cluster.start_controller()
    play.wait(lambda: play.quietly("bhosts").returncode == 0, "mbatchd's answer")
    play.lines.append(f"# jobs of a bsub that nobody heard: {_count(play, 'dead')}")


def _said(text: str) -> str:
    return "; ".join(sorted(set(text.splitlines())))


def _count(play: Player, name: str) -> int:
    lines = play.quietly("bjobs", "-u", "all", "-w").stdout.splitlines()
    return sum(1 for line in lines if f" {name} " in line)


def journalling(play: Player) -> None:
    """The records of lsb.events for jobs of each kind: their order, fields and types of fields."""
    events = play.events_file
    before = len(events.read_text().splitlines())
    play.submit("plain", "-n", "2", "-W", "5", "-R", "span[ptile=1]", work="sleep 8")
    play.wait_state("plain", "DONE")
    play.submit("alone", "-x", "-m", "n3")
    play.wait(functools.partial(_says, play, "alone", "Execution Home"), "alone to run")
    play.wait_state("alone", "RUN")
    play.say("bkill", "{alone}")
    play.wait_state("alone", "EXIT")
    play.say("badmin", "hclose", "n4", user="root")
    play.say("badmin", "hopen", "n4", user="root")
    play.say("badmin", "qclose", "bf", user="root")
    play.say("badmin", "qopen", "bf", user="root")
    for line in events.read_text().splitlines()[before:]:
        shape = "".join("s" if word.startswith('"') else "n" for word in words_of(line))
        kind = line.split(" ", 1)[0].strip('"')
        number = len(shape)
        play.lines.append(f"# {kind}: {number} fields, {shape}")


def words_of(line: str) -> list[str]:
    """The fields of a record: numbers and strings, in which a quote is written twice."""
    return _FIELD.findall(line)


def timing(play: Player) -> None:
    """How long the usual things take, several times each."""
    host = ("-n", "4", "-R", "span[ptile=4]", "-m", "n1")
    for trial in range(5):
        note, began_s = play.scratch / f"timed{trial}", time.time()
        play.submit(f"timed{trial}", *host, work=f"touch {{scratch}}/timed{trial}; sleep 300")
        play.time_it("bsub returns", began_s)
        play.wait(note.exists, f"the start of timed{trial}")
        play.time_it("bsub: runs on an idle host", began_s)
        note = play.scratch / f"next{trial}"
        play.submit(f"next{trial}", *host, work=f"touch {{scratch}}/next{trial}; sleep 300")
        began_s = time.time()
        play.quietly("bkill", "-s", "KILL", f"{{timed{trial}}}")
        play.wait(note.exists, "the start of the job that waited")
        play.time_it("bkill -s KILL: the job that waits for the host runs", began_s)
        began_s = time.time()
        play.quietly("bkill", f"{{next{trial}}}")
        play.wait(functools.partial(_is_in, play, f"next{trial}", "EXIT"), "the end")
        play.time_it("bkill: EXIT in bjobs", began_s)
        play.wait(functools.partial(_host_is, play, "n1", "ok"), "a free host")


def _is_in(play: Player, name: str, state: str) -> bool:
    return play.states().get(name) == state


def _host_is(play: Player, host: str, status: str) -> bool:
    return play.hosts()[host][0] == status


def losing_a_host(play: Player) -> None:
    """A dead machine: unreach, unavail; its jobs UNKWN, one that may run again PEND; and back."""
    play.submit("lost", "-m", "n1")
    play.submit("again", "-r", "-m", "n1")
    for name in ("lost", "again"):
        play.wait(functools.partial(_says, play, name, "Execution Home"), f"{name} to run")
        play.wait_state(name, "RUN")
    began_s = time.time()
    play.cluster.kill_host("n1")
    for state in ("unreach", "unavail"):
        play.wait(functools.partial(_host_is, play, "n1", state), state, timeout_s=300)
        play.time_it(f"dead machine: {state}", began_s)
    play.wait(functools.partial(_is_in, play, "again", "PEND"), "the job that may run again")
    play.say("bhosts", "-w", keeps_numbers=True)
    play.say("bjobs", "-w", "-u", "all")
    play.say("bjobs", "-w", "{lost}")
    play.say("bjobs", "-w", "-a", "-u", "all", "-J", "lost")
    play.say("bjobs", "-o", "jobid stat", "-json", "{lost}")
    play.lines.append(f"# again: {' '.join(play.seen['again'])}")
    play.say("bkill", "{lost}")
    play.say("bjobs", "-w", "{lost}")
    play.say("bjobs", "-w")
    began_s = time.time()
    play.cluster.start_host("n1")
    play.wait(functools.partial(_host_is, play, "n1", "ok"), "ok", timeout_s=200)
    play.time_it("daemons started: ok", began_s)


SCENARIOS: Final[tuple[Callable[[Player], None], ...]] = (
    describing,
    submitting,
    listing,
    controlling,
    administering,
    depending,
    reserving,
    naming,
    ending_in_time,
    signalling,
    submitting_to_nobody,
    journalling,
    timing,
    losing_a_host,
)
