"""What a message may hold: numbers finite and in range, texts bounded and in one line."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from pydantic import ValidationError

from bftrainer.fleet.wire.messages import (
    MAX_WORD_BYTES,
    Hello,
    Leaving,
    LongHelloError,
    WireError,
    WorkerReport,
    decode_from_agent,
    encode,
)
from bftrainer.ground import protocol
from bftrainer.ground.fields import MOST, checks_of, in_one_line, is_deep, shortened
from bftrainer.ground.protocol import ProtocolError, from_body
from bftrainer.model.trainer import Mark
from trainers.command.conversation import Pace, parse_line

PROGRESS = {
    "type": "Progress", "generation": 1, "step": 2, "epoch": 0, "samples": 3,
    "step_s": 0.5, "samples_per_s": 4,
}  # fmt: skip
NO_NUMBERS: tuple[Any, ...] = (
    float("nan"), float("inf"), -1, 10**400, 2**53, True, "7", None, [1], {},
)  # fmt: skip


def test_a_number_that_is_in_range_comes_through_and_a_whole_one_does_for_seconds() -> None:
    said = from_body(PROGRESS)
    assert isinstance(said, protocol.Progress)
    assert (said.step, said.samples_per_s) == (2, 4.0)
    assert from_body({**PROGRESS, "samples": MOST})


@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda v: str(v)[:8])
@pytest.mark.parametrize("name", ["step", "samples", "step_s", "samples_per_s", "own_s"])
def test_what_is_no_number_in_range_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ProtocolError, match=name):
        from_body({**PROGRESS, name: value})


@pytest.mark.parametrize("value", [0, -7, -2.5, 1.7e308, 5e-324], ids=str)
def test_a_report_holds_any_finite_number(value: float) -> None:
    said = from_body({"type": "Reported", "generation": 1, "reports": [{"value": value}]})
    assert isinstance(said, protocol.Reported)
    assert said.reports == (protocol.Report(value=float(value)),)
    assert protocol.decode(protocol.encode(said)) == said


@pytest.mark.parametrize(
    "reports",
    [
        *([{"value": v}] for v in NO_NUMBERS if v not in (-1, 2**53)),
        [{"value": 1.0, "step": -1}],
        [{"value": 1.0, "more": 1}],
        [{}],
        [1.0],
        [{"value": 1.0}] * (protocol.MAX_REPORTS + 1),
    ],
    ids=lambda v: str(v)[:24],
)
def test_what_is_no_report_is_refused(reports: Any) -> None:
    with pytest.raises(ProtocolError, match="reports"):
        from_body({"type": "Reported", "generation": 1, "reports": reports})


@pytest.mark.parametrize(
    "body",
    [
        {"type": "Ready", "generation": 1, "attempt": 1, "store_port": 65536},
        {"type": "Prepare", "generation": 1, "attempt": 1, "open_store": 1},
        {"type": "Failed", "code": "x" * 300, "cause": "", "next_step": ""},
        {"type": "Failed", "code": "\ud800", "cause": "", "next_step": ""},
        {"type": "Left", "generation": 1},
        {"type": "Left", "generation": 1, "step": 1, 7: 8},
        {"type": ["Left"]},
        {"type": "Commit", "generation": 1, "attempt": 1, "token": "t", "members": [[]]},
        {"type": "Commit", "generation": 1, "attempt": 1, "token": "t", "members": 5},
        {"type": "WorkerConfig", "trainer_id": "t", "worker_id": "w", "node": "n",
         "script": "s", "environment": [["a", 1]]},
        {"type": "WorkerConfig", "trainer_id": "t", "worker_id": "w", "node": "n",
         "script": "s", "environment": 7},
    ],
)  # fmt: skip
def test_what_a_field_may_not_hold_is_refused(body: dict[Any, Any]) -> None:
    with pytest.raises(ProtocolError):
        from_body(body)


def test_every_field_of_every_message_is_checked() -> None:
    cls: Any
    for cls in protocol._types().values():
        assert checks_of(cls).keys() == {f.name for f in dataclasses.fields(cls)}


def test_a_long_cause_is_cut_and_brought_into_one_line_at_both_ends_alike() -> None:
    body = {"type": "Failed", "code": "BFT-1410", "cause": "a\n2026 ERROR b\x1b[2J" + "x" * 9000}
    said = from_body({**body, "next_step": ""})
    assert isinstance(said, protocol.Failed)
    assert said.cause.startswith("a\\n2026 ERROR bxxx")
    assert len(said.cause) < 2100
    assert from_body(protocol.to_body(said)) == said


def test_brackets_within_brackets_are_refused_before_they_are_parsed() -> None:
    for line in (b"[" * 100_000, b'{"a":' * 100_000, b'{"type":"Left","x":' + b"[" * 100_000):
        with pytest.raises(ProtocolError, match="brackets"):
            protocol.decode(line)
    deep_text = {"type": "Stop", "reason": '[[[{{"' * 100 + "\\"}
    assert protocol.decode(json.dumps(deep_text).encode())
    assert not is_deep(b"[]" * 1000)
    assert not is_deep(b"[" * 32 + b"]" * 32)
    assert is_deep(b"[" * 33 + b"]" * 33)


def test_what_is_wrong_with_a_message_is_said_in_one_line() -> None:
    forged = "x\n2026-01-01T00:00:00.000Z INFO bftrainer.daemon: all is well"
    bad_type = json.dumps({"type": forged, "v": 1})
    bad_name = json.dumps({"type": "heartbeat", "pilot_id": "p1", forged: 1})
    for frame in (bad_type, bad_name):
        with pytest.raises(WireError) as refused:
            decode_from_agent(frame.encode())
        assert "\n" not in str(refused.value)
        assert len(str(refused.value)) < 600
    for body in ({"type": forged}, {"type": "Left", forged: 1}):
        with pytest.raises(ProtocolError) as unknown:
            from_body(body)
        assert "\n" not in str(unknown.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "worker-exited", "worker_id": "w", "returncode": 2**40},
        {"type": "worker-exited", "worker_id": "w", "returncode": True},
        {"type": "worker-exited", "worker_id": "w", "returncode": "1"},
        {"type": "worker-exited", "worker_id": "w" * 300, "returncode": 1},
        {"type": "worker-started", "worker_id": "w", "pid": -1},
        {"type": "leaving", "pilot_id": "p1", "reason": "told", "told_s": float("nan")},
        {"type": "leaving", "pilot_id": "p1", "reason": "told", "left_s": 1e300},
        {"type": "heartbeat", "pilot_id": "p1", "incarnation": -1},
        {"type": "heartbeat", "pilot_id": "p1", "workers": ["w"] * 5000},
    ],
)
def test_agents_numbers_are_in_range_too(fields: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        decode_from_agent(json.dumps(fields).encode())


def test_an_agents_words_are_brought_into_one_line() -> None:
    frame = b'{"type":"worker-exited","worker_id":"w","returncode":1,"cause":"a\\nb\\u001b"}'
    said = decode_from_agent(frame)
    assert said.model_dump()["cause"] == "a\\nb\\x1b"


def test_a_word_has_its_bound() -> None:
    frame = b'{"type":"worker-said","worker_id":"w","body":{"x":"' + b"y" * MAX_WORD_BYTES + b'"}}'
    with pytest.raises(WireError, match=f"a message of {len(frame)} bytes, not {MAX_WORD_BYTES}"):
        decode_from_agent(frame)


def _hello(size: int) -> Hello:
    """Of an agent whose worker is in a generation of that many, with names as long as usual."""
    domain = ".compute.cluster.example.org"
    roster = tuple(
        protocol.Member(
            worker_id=f"t12345-67-{rank}",
            rank=rank,
            node=f"node{rank:05}{domain}",
            address=f"node{rank:05}-ib{domain}",
            agent_endpoint=f"tcp://node{rank:05}-ib{domain}:49152",
            agent_public_key="k" * 40,
        )
        for rank in range(size)
    )
    commit = protocol.Commit(generation=9, attempt=1, token="t" * 32, members=roster)
    entered = protocol.Entered(
        generation=9, attempt=1, rank=0, size=size, step=10**6, epoch=3, samples=10**9,
        pause_s=0.1, transfer_s=0.1, shares=(128,) * size,
    )  # fmt: skip
    report = WorkerReport(
        worker_id="t12345-67-0", trainer_id="t12345", pid=1, commit=protocol.to_body(commit),
        latest=[protocol.to_body(entered)],
    )  # fmt: skip
    return Hello(
        pilot_id="p000001", node="n1", address="a", pid=1, peer_endpoint="", peer_public_key="",
        workers=[report, report],
    )  # fmt: skip


@pytest.mark.parametrize("size", [1, 4, 100, 1000, 3000])
def test_the_rosters_of_all_the_agents_there_are_fit_a_hello(size: int) -> None:
    said = decode_from_agent(encode(_hello(size)), n_agents=size)
    assert isinstance(said, Hello)


def test_a_hello_is_as_long_as_there_are_agents_and_no_longer() -> None:
    with pytest.raises(LongHelloError, match=r"a Hello of .* bytes, not 67584"):
        decode_from_agent(encode(_hello(1000)), n_agents=2)


def test_an_agent_of_an_earlier_release_is_understood() -> None:
    said = json.loads(encode(_hello(1)))
    held = {"trainer_id": "t1", "generation": 1, "step": 9}
    frame = json.dumps({**said, "copy_port": 4000, "copies": [held]}).encode()
    understood = decode_from_agent(frame)
    assert isinstance(understood, Hello)
    assert [w.worker_id for w in understood.workers] == ["t12345-67-0"] * 2
    with pytest.raises(WireError, match="unknown field 'copy_ports'"):
        decode_from_agent(frame.replace(b"copy_port", b"copy_ports"))


def test_what_we_say_ourselves_is_checked_as_well() -> None:
    with pytest.raises(ValidationError):
        Leaving(pilot_id="p1", reason="told", told_s=float("inf"))


def test_a_program_that_prints_numbers_nobody_trains_to_has_said_nothing() -> None:
    before = Mark(step=7)
    assert parse_line(f"BFT step=1 samples={'9' * 18}", before) is None
    assert parse_line(f"BFT step=1 samples={'9' * 15}", before) == Mark(step=1, samples=10**15 - 1)


def test_the_rate_of_a_program_is_one_that_can_be_sent() -> None:
    pace = Pace()
    pace.add(Mark(), 1.0)
    pace.add(Mark(step=1, samples=10**15 - 1), 1.0 + 1e-9)
    step_s, samples_per_s = pace.rates()
    assert 0 < samples_per_s <= MOST
    assert step_s > 0


def test_a_line_is_a_line() -> None:
    assert in_one_line("Größe 7 … fine") == "Größe 7 … fine"
    assert in_one_line("a\r\n\t\u202e\ud800") == "a\\r\\n\\t\\u202e\\ud800"


def test_a_long_text_loses_whole_words_of_its_middle_and_all_escape_codes() -> None:
    link = "\x1b]8;;https://x.example\x1b\\link\x1b]8;;\x07"
    assert shortened(f"\x1b[1;31mNo\x1b[0m such\n  file: {link}", 100) == "No such file: link"
    text = f"Caught {' '.join(f'word{n}' for n in range(99))} ValueError: bad"
    cut = shortened(text, 60)
    assert 40 < len(cut) <= 60
    head, tail = cut.split(" ... ")
    assert head.split() == text.split()[: len(head.split())]
    assert tail.split() == text.split()[-len(tail.split()) :]
    assert len(shortened("x" * 99, 60)) <= 60
