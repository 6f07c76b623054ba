"""How the daemon asks the submit helper, and what it makes of answers, late ones and none."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bftrainer.batch.batch_system import PilotRequest
from bftrainer.model.cluster import Job
from bftrainer.model.errors import BatchSystemError
from bftrainer.site.submit.client import SubmitHelper
from bftrainer.site.submit.helper import parse
from slurm_plugins.commands import SlurmCommands
from slurm_plugins.launcher import PilotLauncher
from tests.support.snapshots import running

REQUEST = PilotRequest(
    pilot_id="p000017",
    node="n1",
    time_limit_s=3600,
    agent_argv=("/usr/bin/python3", "-m", "trainers.agent"),
    log_path=Path("/var/lib/bftrainer/pilots/p000017/agent.log"),
    gpus=2,
    user="alice",
    files={"agent.json": "{}", "agent.key": "key"},
    account="physics",
)
GONE = "scancel: error: Kill job error on job id 7: Invalid job id specified\n"


class Asked:
    """A helper that notes what it is asked, and says what a test tells it."""

    def __init__(self, base: Path, says: dict[str, Any] | str, status: int = 0) -> None:
        self.heard = base / "heard"
        text = says if isinstance(says, str) else json.dumps(says)
        (base / "says").write_text(text)
        program = base / "helper"
        program.write_text(f"#!/bin/sh\ncat >>{self.heard}\ncat {base}/says\nexit {status}\n")
        program.chmod(0o755)
        self.launcher = PilotLauncher(
            commands=SlurmCommands(),
            partition="bf",
            sbatch_options=("--account=site", "--qos=bfqos"),
            helper=SubmitHelper(f"sh {program}"),
        )
        self.launcher.pilots_are_in(Path("/var/lib/bftrainer/pilots"))

    def launch(self) -> str:
        return self.launcher.launch(REQUEST, cycle_s=10)


def test_a_pilot_is_asked_for_as_its_user_and_for_his_account(tmp_path: Path) -> None:
    site = Asked(tmp_path, {"status": 0, "stdout": "7\n", "stderr": ""})
    assert site.launch() == "7"
    asked = parse(site.heard.read_bytes())  # the helper's own rules
    assert (asked.user, asked.pilot, asked.files) == ("alice", "p000017", REQUEST.files)
    accounts = [word for word in asked.options if word.startswith("--account")]
    assert accounts == ["--account=physics"]
    assert {"--partition=bf", "--nodelist=n1", "--gres=gpu:2", "--qos=bfqos"} <= {*asked.options}
    assert site.launcher.commands.request_counts() == {"submit": 1}


@pytest.mark.parametrize(
    ("says", "status", "code", "why"),
    [
        (
            {"status": 1, "stdout": "", "stderr": "Invalid account"},
            0,
            "BFT-1222",
            "Invalid account",
        ),
        (
            {"error": {"code": "BFT-1528", "cause": "There is no user alice"}},
            0,
            "BFT-1523",
            "alice",
        ),
        ({"error": {"code": "BFT-1530", "cause": "It took too long"}}, 0, "BFT-1223", "not known"),
        ({"error": {"code": "BFT-1530", "cause": "It took too long"}}, 0, "BFT-1223", "too long"),
        ({"status": 0, "stdout": "what?", "stderr": ""}, 0, "BFT-1223", "no job id"),
        ("", 0, "BFT-1223", "not known"),
        ("[]", 0, "BFT-1223", "not known"),
        ("nonsense", 0, "BFT-1223", "not known"),
        ("", 1, "BFT-1524", "status 1"),
    ],
)
def test_what_was_not_submitted_is_said(
    tmp_path: Path, says: dict[str, Any] | str, status: int, code: str, why: str
) -> None:
    with pytest.raises(BatchSystemError) as refused:
        Asked(tmp_path, says, status).launch()
    assert refused.value.code == code
    assert why in refused.value.cause


@pytest.mark.parametrize("printed", ["7\n", "7;bf\n", "7\nand more, whoever wrote it\n"])
def test_the_first_line_is_the_job(tmp_path: Path, printed: str) -> None:
    """Seen failing before with more lines: it was not known whether it was submitted."""
    assert Asked(tmp_path, {"status": 0, "stdout": printed, "stderr": ""}).launch() == "7"


def test_the_files_of_a_pilot_without_a_job_are_forgotten(tmp_path: Path) -> None:
    site = Asked(tmp_path, {"status": 0, "stdout": "", "stderr": ""})
    site.launcher.forget("alice", "p000017")
    asked = parse(site.heard.read_bytes())
    assert (asked.do, asked.user, asked.pilot) == ("forget", "alice", "p000017")
    assert asked.site == site.launcher.token
    old = Asked(tmp_path, {"error": {"code": "BFT-1527", "cause": "The request is malformed"}})
    old.launcher.forget("alice", "p000017")  # a helper of the release before; no error


def pilot_of(user: str, job_id: str) -> Job:
    return replace(running(job_id, "n1"), pilot_id=f"p{job_id}", user=user)


def test_pilots_are_cancelled_by_their_users(tmp_path: Path) -> None:
    site = Asked(tmp_path, {"status": 1, "stdout": "", "stderr": GONE})
    jobs = [(7, "alice"), (8, "bob"), (9, "alice")]
    site.launcher.learn_users(
        [
            *(pilot_of(user, str(number)) for number, user in jobs),
            running("10", "n2"),  # an ordinary job
        ]
    )
    site.launcher.running = frozenset({"8", "9"})
    site.launcher.cancel(["7", "8", "9"], force=False)
    decoder, text, asked = json.JSONDecoder(), site.heard.read_text(), []
    while text:
        one, end = decoder.raw_decode(text)
        asked.append((one["user"], one["jobs"], one["how"]))
        text = text[end:]
    assert asked == [("alice", ["9"], "ask"), ("bob", ["8"], "ask"), ("alice", ["7"], "end")]
    assert "10" not in site.launcher.users


def test_a_cancel_that_fails_is_an_error(tmp_path: Path) -> None:
    site = Asked(tmp_path, {"error": {"code": "BFT-1528", "cause": "Nothing may run as alice"}})
    site.launcher.learn_users([pilot_of("alice", "7")])
    with pytest.raises(BatchSystemError, match=r"BFT-1225.*Nothing may run as alice"):
        site.launcher.cancel(["7"], force=True)


def _served(path: Path, answer: Callable[[socket.socket], None]) -> threading.Thread:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        connection, _ = listener.accept()
        with listener, connection:
            answer(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_a_socket_is_asked_the_same(tmp_path: Path) -> None:
    heard: list[bytes] = []

    def answer(connection: socket.socket) -> None:
        while chunk := connection.recv(1 << 16):
            heard.append(chunk)
        connection.sendall(b'{"status": 0, "stdout": "", "stderr": ""}\n')

    thread = _served(tmp_path / "s", answer)
    assert SubmitHelper(str(tmp_path / "s")).cancel("alice", ["7"], "ask").is_ok
    thread.join()
    assert parse(b"".join(heard)).jobs == ("7",)


def test_a_connection_that_breaks_off_may_have_done_it(tmp_path: Path) -> None:
    thread = _served(tmp_path / "s", lambda connection: connection.close())
    done = SubmitHelper(str(tmp_path / "s")).cancel("alice", ["7"], "ask")
    thread.join()
    assert done.timed_out


def test_no_socket_is_no_helper(tmp_path: Path) -> None:
    with pytest.raises(BatchSystemError, match="BFT-1524"):
        SubmitHelper(str(tmp_path / "none")).cancel("alice", ["7"], "ask")
