"""A poll whose commands fail in every way has a sentence for each, and orders tell a refusal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pytest

from bftrainer.batch.batch_system import PilotObservation, PilotRequest
from bftrainer.batch.commands import ByCommands, Commands, PollCommands
from bftrainer.model.cluster import Snapshot
from bftrainer.model.errors import BatchSystemError


class Small(ByCommands):
    """The least that an adapter adds."""

    name = "small"
    idle_confirmations = 1
    cycle_s = 1.0

    def snapshot(self, *, wants_cycle: bool = True) -> Snapshot:
        raise NotImplementedError

    def launch_pilot(self, request: PilotRequest) -> str:
        raise NotImplementedError

    def cancel_pilots(self, job_ids: Sequence[str], *, force: bool = False) -> None:
        raise NotImplementedError

    def pilot_states(self, job_ids: Sequence[str]) -> Mapping[str, PilotObservation]:
        raise NotImplementedError


def commands(timeout_s: float = 30.0) -> Commands:
    return Commands(kind_of=lambda argv: argv[-1], timeout_s=timeout_s)


def shell(text: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", text, "count")


def test_a_part_is_read_or_none_and_its_failure_is_told() -> None:
    reading = PollCommands(commands(), answers=(0, 3))
    assert reading.of(shell("echo 7"), int) == 7
    assert reading.of(shell("echo 8; exit 3"), int) == 8
    assert reading.of(shell("echo 9; echo no >&2; exit 4"), int) is None
    assert reading.of(shell("echo nine"), int) is None
    assert reading.of(shell("echo {}"), lambda _: dict[str, int]()["key"]) is None
    assert reading.of(("/no/such/program", "count"), int) is None
    status, odd, missing, unknown = reading.failures
    assert status == "sh ended with status 4: no."
    assert odd.startswith("sh printed something unexpected (ValueError: ")
    assert missing == "sh printed something unexpected (KeyError: 'key')."
    assert unknown.startswith("program cannot be started")


def test_after_a_command_without_an_answer_no_other_is_tried() -> None:
    asked = commands(timeout_s=0.2)
    reading = PollCommands(asked)
    assert reading.of(shell("exec sleep 60"), str) is None
    assert reading.of(shell("echo 1"), int) is None
    assert len(reading.failures) == 1
    assert "did not answer" in reading.failures[0]
    assert asked.request_counts() == {"count": 1}
    assert PollCommands(asked).of(shell("echo 1"), int) == 1


def test_an_order_succeeds_fails_or_was_not_needed() -> None:
    system = Small(commands())
    gone = re.compile(r"(\w+ is gone\n)+")
    assert system.order(shell("echo ' 17 '"), code="BFT-1371") == "17"
    some_gone = shell("echo a is gone >&2; echo b is gone >&2; exit 1")
    assert system.order(some_gone, code="BFT-1372", harmless=gone) == ""
    for refused in ("echo a is gone >&2; echo no >&2; exit 1", "exit 1", "echo no >&2; exit 1"):
        with pytest.raises(BatchSystemError, match="BFT-1372"):
            system.order(shell(refused), code="BFT-1372", harmless=gone)
    with pytest.raises(BatchSystemError, match=r"BFT-1371: .* status 1: no\."):
        system.order(shell("echo no >&2; exit 1"), code="BFT-1371")
    assert system.request_counts() == {"count": 6}


def test_the_rest_is_inherited() -> None:
    system = Small(commands())
    assert system.findings() == ()
    assert system.open_announcer() is None
    system.close()
    assert system.reading().failures == []
