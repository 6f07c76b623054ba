"""bsub's command line at the stand-in: what is read, what is refused, and what a typo becomes."""

from __future__ import annotations

import time

import pytest

from lsf_adapters.testcluster import dependency
from lsf_adapters.testcluster.options import Options, RefusedError, parse
from lsf_adapters.testcluster.state import Job

NOW_S = time.mktime((2026, 11, 22, 8, 30, 0, 0, 0, -1))


def read(*argv: str, stdin: str = "", is_ibm: bool = False) -> Options:
    return parse(list(argv), stdin, is_ibm=is_ibm, now_s=NOW_S)


def refusal(*argv: str, stdin: str = "", is_ibm: bool = False) -> str:
    with pytest.raises(RefusedError) as caught:
        read(*argv, stdin=stdin, is_ibm=is_ibm)
    return caught.value.text


@pytest.mark.parametrize("is_ibm", [False, True])
def test_what_a_pilot_asks_for(is_ibm: bool) -> None:
    options = read(
        *("-q", "bf", "-J", "p1", "-n", "4", "-R", "span[ptile=4]", "-m", "n1", "-W", "1:30"),
        *("-t", "11:22:10:15", "-o", "/dev/null"),
        stdin="exec agent 'it''s'\n",
        is_ibm=is_ibm,
    )
    assert (options.name, options.min_slots, options.max_slots, options.ptile) == ("p1", 4, 4, 4)
    assert options.limit_s == 90 * 60
    assert options.term_s == NOW_S + 105 * 60
    assert options.hosts == ("n1",)
    assert options.script == "exec agent 'it''s'\n"


def test_words_of_a_command_are_joined() -> None:
    assert read("-n2", "echo", "a  b", "$HOME").script == "echo a  b $HOME"
    assert read("-n2", "x").min_slots == 2


def test_script_may_contain_options() -> None:
    options = read("-q", "normal", stdin="#!/bin/sh\n#BSUB -J 'my name' -q other -n 3\ndate\n")
    assert (options.name, options.values["q"], options.min_slots) == ("my name", "normal", 3)
    assert options.command == "#!/bin/sh;date"


def test_arrays_and_names() -> None:
    assert read("-J", "a[1-3,7,10-14:2]%2", "x").indices == (1, 2, 3, 7, 10, 12, 14)
    assert read("-J", "two\nlines", "x").name == "twolines"
    assert read("-J", 'a\'b "ä"\tc', "x").name == 'a\'b "ä"\tc'
    assert refusal("-J", "x" * 600, "x") == "Bad job name"


# As recorded: a typo is a job, or an odd refusal.
@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (("--nonsense", "sleep", "1"), "sleep 1"),
        (("-app", "x", "sleep", "1"), "x sleep 1"),
        (("-env", "none", "sleep", "1"), "none sleep 1"),
        (("-Jd", "text", "sleep", "1"), "sleep 1"),
    ],
)
def test_typos_are_jobs_at_volclava(argv: tuple[str, ...], command: str) -> None:
    assert read(*argv).command == command


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("-We", "5", "sleep"), "e: Bad RUNLIMIT specification"),
        (("-ti", "sleep"), "i: Bad time specification"),
        (("-sla", "x", "sleep"), "la: Illegal signal value"),
        (("-cwd", "/tmp", "sleep"), "wd: Bad CPULIMIT specification"),
        (("-nnodes", "1", "sleep"), "Bad argument for option -n"),
        (("-rn", "sleep"), "bsub: option cannot have an argument -- r"),
        (("-W", "zero", "sleep"), "zero: Bad RUNLIMIT specification"),
        (("-R", "select[", "sleep"), "Bad resource requirement syntax"),
        ((), "No command is specified"),
    ],
)
def test_recorded_refusals(argv: tuple[str, ...], said: str) -> None:
    assert refusal(*argv) == said


def test_ibm_knows_these_options_and_refuses_others() -> None:
    options = read(
        *("-rn", "-env", "none", "-We", "5", "-app", "x", "-gpu", "num=2:mode=shared", "sleep 1"),
        is_ibm=True,
    )
    assert options.command == "sleep 1"
    assert options.gpus == 2
    assert "Illegal option" in refusal("-nonsense", "sleep", is_ibm=True)
    assert refusal("--nonsense", "sleep", is_ibm=True) == "bsub: invalid option -- '-'"


def test_times_are_the_next_such_moment() -> None:
    assert read("-b", "9:00", "x").begin_s == NOW_S + 1800
    assert read("-t", "8:00", "x").term_s == NOW_S + 86400 - 1800
    assert refusal("-t", "25:00", "x") == "25:00: Bad time specification"


def job(number: int, state: str, name: str = "", user: str = "alice") -> Job:
    return Job(id=number, state=state, name=name, user=user)


JOBS = [job(1, "DONE", "a"), job(2, "EXIT", "b"), job(3, "RUN", "c"), job(4, "PEND")]


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("1", True),
        ("2", False),
        ("done(1) && ended(2)", True),
        ("done(2) || exit(2)", True),
        ("!(done(2)) && started(3)", True),
        ("ended(4)", False),
        ("done(1) && (ended(3) || ended(4))", False),
        ('ended("a")', True),
    ],
)
def test_dependency_conditions(condition: str, holds: bool) -> None:
    dependency.check(condition, JOBS, "alice")
    assert dependency.is_satisfied(condition, JOBS, "alice") is holds


def test_dependency_on_what_does_not_exist() -> None:
    for condition, said in (
        ("done(99999)", "99999: No matching job found"),
        ("ended(a)", "a: No matching job found"),
        ("done(1", "done(1: Bad dependency condition"),
    ):
        with pytest.raises(RefusedError) as caught:
            dependency.check(condition, JOBS, "bob")
        assert caught.value.text == said
    assert not dependency.is_satisfied("done(99999)", JOBS, "alice")
