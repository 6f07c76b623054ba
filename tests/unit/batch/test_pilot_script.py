"""The text that becomes an agent keeps every character of a request, in a real shell."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bftrainer.batch import process
from bftrainer.batch.batch_system import PilotRequest
from bftrainer.batch.pilot_job import fault_of, script_of

TELL = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['GIVEN']]))"
words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


def request_of(log: Path, word: str = "") -> PilotRequest:
    return PilotRequest(
        pilot_id="p000001",
        node="n1",
        time_limit_s=60,
        agent_argv=(sys.executable, "-IS", "-c", TELL, word),
        log_path=log,
        environment={"GIVEN": word},
    )


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(word=words)
def test_words_arrive_as_they_are_and_the_log_is_appended_to(tmp_path: Path, word: str) -> None:
    log = tmp_path / 'it\'s $(touch pwned) a "log"\n'
    log.write_text("before\n")
    request = request_of(log, word)
    assert fault_of(request) == ""
    environment = {"PYTHONUTF8": "1"}
    argv = ("/bin/sh", "-c", script_of(request))
    done = process.run(argv, timeout_s=30, env=environment, cwd=tmp_path, stdin="not read")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    before, told = log.read_text().splitlines()
    assert before == "before"
    assert json.loads(told) == [[word], word]
    assert not (tmp_path / "pwned").exists()


def test_a_preamble_s_command_line_takes_the_agent_s_place(tmp_path: Path) -> None:
    text = script_of(request_of(tmp_path / "log"), ("/bin/bash", "-c", "a b"))
    assert text.splitlines()[-1] == "exec /bin/bash -c 'a b'"


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"pilot_id": "p 1"}, "its id is not made of"),
        ({"pilot_id": "p1\n"}, "its id is not made of"),
        ({"environment": {"A=B": "c"}}, "'A=B' is not the name of a variable"),
        ({"environment": {"A": "\0"}}, "null character"),
        ({"agent_argv": ("/bin/true", "\0")}, "null character"),
    ],
)
def test_what_no_shell_can_take_is_a_fault(
    tmp_path: Path, changed: dict[str, Any], fault: str
) -> None:
    request = replace(request_of(tmp_path / "log"), **changed)
    assert fault in fault_of(request)
