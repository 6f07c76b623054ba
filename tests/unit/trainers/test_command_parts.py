"""The pure parts of runtime ``command``: lines, rates, directories, environment, checks."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path
from typing import Any

import pytest

from bftrainer.daemon.explain.lives import restart_sentences
from bftrainer.fleet.runtimes.base import Resize, load_runtime, resize_of, worker_config
from bftrainer.fleet.wire.messages import StartWorker, decode_to_agent, encode
from bftrainer.ground.protocol import (
    MAX_REPORTS,
    Commit,
    Member,
    Reported,
    WorkerConfig,
    decode,
    from_body,
)
from bftrainer.model.errors import UsageError
from bftrainer.model.trainer import (
    CheckpointContract,
    Mark,
    MeasuredCosts,
    RestartCosts,
    TrainerRecord,
    TrainerSpec,
    TrainerState,
)
from trainers.command.conversation import REPORTED_S, Conversation, Pace, parse_line
from trainers.command.program import FencedError, directory_of, program_environment, take

SPEC = TrainerSpec(
    name="sim", user="u", script="/s/sim", args=("--mesh", "a b"), cwd="/s", n_max=4,
    checkpoint_dir="/s/ckpt", runtime="command", contract=CheckpointContract(grace_s=9.0),
)  # fmt: skip
RECORD = TrainerRecord(
    trainer_id="t7", spec=SPEC, state=TrainerState.RUNNING, submitted_s=1.5, reason=""
)


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("BFT step=8 samples=70", Mark(step=8, samples=70, epoch=1)),
        ("BFT  epoch=2 ", Mark(step=7, samples=60, epoch=2)),
        ("BFT ready", Mark(step=7, samples=60, epoch=1)),
        ("BFT ready step=0", Mark(step=0, samples=60, epoch=1)),
        ("BFT", None),
        ("BFTstep=8", None),
        (" BFT step=8", None),
        ("BFT step=-1", None),
        ("BFT step=8 loss=0.1", None),
        ("BFT step=٣", None),
        ("BFT step=" + "9" * 40, None),
        ("the step=8", None),
    ],
)
def test_lines(line: str, place: Mark | None) -> None:
    assert parse_line(line, Mark(step=7, samples=60, epoch=1)) == place


def test_rates_are_those_of_the_last_seconds() -> None:
    pace = Pace()
    assert pace.rates() == (0.0, 0.0)
    pace.add(Mark(step=0, samples=0), 0.0)
    assert pace.rates() == (0.0, 0.0)
    pace.add(Mark(step=10, samples=100), 2.0)
    assert pace.rates() == (0.2, 50.0)
    for second in range(3, 30):  # five times as fast from now on
        pace.add(Mark(step=10 + 25 * (second - 2), samples=100 + 250 * (second - 2)), second)
    assert pace.rates() == (0.04, 250.0)


def test_a_pace_of_many_lines_keeps_few_of_them() -> None:
    pace = Pace()
    for n in range(100_000):
        pace.add(Mark(step=n, samples=10 * n), n / 10_000)
    assert pace.rates() == pytest.approx((1e-4, 1e5))
    assert len(pace._seen) < 1000


def test_reports_come_together_and_none_is_missing() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(0)
        talk, told = Conversation(ours), list[Reported]()

        def heard() -> int:
            lines = theirs.recv(1 << 20).splitlines()
            told.extend(m for m in map(decode, lines) if isinstance(m, Reported))
            return len(lines)

        for n in range(10 * MAX_REPORTS):
            talk.place = Mark(step=n)
            talk.report(f"{n}", 1000.0)
        assert heard() <= 11
        due_s = talk.due_s
        assert due_s == 1000.0 + REPORTED_S
        talk.tick(due_s)
        assert heard() == 1
        assert talk.due_s is None
        talk.report("0.5", 1000.0 + REPORTED_S)
        talk.flush()
        assert heard() == 1
    assert {report.step for said in told for report in said.reports} == set(range(320))
    assert told[-1].reports[-1].value == 0.5


def test_checkpoints_move_with_the_generation_and_stragglers_cannot_write(tmp_path: Path) -> None:
    old = take(tmp_path, run="t1@1", generation=3)
    (old / "state").write_text("3")
    new = take(tmp_path, run="t1@1", generation=5)
    assert (new / "state").read_text() == "3"
    assert (tmp_path / "latest" / "state").read_text() == "3"
    with pytest.raises(FileNotFoundError):
        (old / "state.new").write_text("of a straggler")
    with pytest.raises(FencedError, match="generation 5"):
        take(tmp_path, run="t1@1", generation=4)
    old.mkdir()  # a straggler that makes its directory anew does no harm
    (old / "state").write_text("of a straggler")
    assert take(tmp_path, run="t1@1", generation=5) == new
    assert (take(tmp_path, run="t1@1", generation=6) / "state").read_text() == "3"


def test_a_new_submission_goes_on_from_an_older_ones_checkpoints(tmp_path: Path) -> None:
    (take(tmp_path, run="t1@1", generation=9) / "state").write_text("9")
    (directory_of(tmp_path, 1)).mkdir()
    (directory_of(tmp_path, 1) / "state").write_text("of a straggler of long ago")
    taken = take(tmp_path, run="t1@2", generation=1)
    assert taken == directory_of(tmp_path, 1)
    assert (taken / "state").read_text() == "9"
    assert (take(tmp_path, run="t1@2", generation=2) / "state").read_text() == "9"


def test_a_take_that_was_cut_short_is_taken_again(tmp_path: Path) -> None:
    (take(tmp_path, run="t1@1", generation=3) / "state").write_text("3")
    directory_of(tmp_path, 3).rename(directory_of(tmp_path, 4))  # and the power went out
    assert (take(tmp_path, run="t1@1", generation=5) / "state").read_text() == "3"


def test_what_the_user_exports_wins() -> None:
    config = WorkerConfig(
        trainer_id="t1", worker_id="w2", node="b", script="/p", samples=500,
        environment=(("MASTER_PORT", "1"), ("MY", "own")),
    )  # fmt: skip
    members = (
        Member(worker_id="w2", rank=1, node="b", address="10.0.0.2"),
        Member(worker_id="w1", rank=0, node="a", address="10.0.0.1"),
    )
    commit = Commit(
        generation=3, attempt=1, token="t", members=members,  # noqa: S106 - no secret
        store_host="10.0.0.1", store_port=4000,
    )  # fmt: skip
    told = program_environment(
        config, commit, 1, checkpoint_dir="/c", control_file="/f", inherited={"PATH": "/bin"}
    )
    assert told["BFT_ADDRESSES"] == "10.0.0.1,10.0.0.2"
    assert (told["PATH"], told["MASTER_PORT"], told["MY"]) == ("/bin", "1", "own")
    assert told["BFT_SAMPLES"] == "500"
    assert "BFT_EPOCHS" not in told


def test_the_order_says_all_that_a_keeper_needs() -> None:
    runtime = load_runtime("command")
    runtime.check(SPEC)
    assert resize_of("command") is Resize.RESTART
    assert resize_of("torch") is resize_of("of a plug-in that is gone") is Resize.IN_PLACE
    told = worker_config(
        RECORD, worker_id="w", node="n1", address="10.0.0.1", incarnation=3, log_path="/l"
    )
    order = runtime.start_message(RECORD, told)
    received = decode_to_agent(encode(order))
    assert isinstance(received, StartWorker)
    assert received.program == "trainers.command"
    assert received.options == {
        "launch": "every", "stop_signal": "USR1", "save_signal": "none", "saved_status": 85,
        "grace_s": 9.0, "run": "t7@1.5",
    }  # fmt: skip
    config = from_body(received.config)
    assert isinstance(config, WorkerConfig)
    assert (config.script, config.args) == ("/s/sim", ("--mesh", "a b"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stop_signal": "KILL"}, "KILL"),
        ({"stop_signal": "PIGEON"}, "PIGEON"),
        ({"stop_signal": "USR2", "save_signal": "USR2"}, "both USR2"),
        ({"saved_status": 0}, "status is 0"),
        ({"saved_status": 200}, "status is 200"),
        ({"grace_s": 0.0}, "grace is 0"),
        ({"grace_s": float("inf")}, "grace is inf"),
    ],
)
def test_contracts_that_cannot_be_kept_are_refused(changes: dict[str, Any], words: str) -> None:
    contract = dataclasses.replace(CheckpointContract(), **changes)
    with pytest.raises(UsageError, match=words) as caught:
        load_runtime("command").check(dataclasses.replace(SPEC, contract=contract))
    assert caught.value.code == "BFT-1305"


def test_both_requests_by_the_control_file_alone_are_fine() -> None:
    contract = CheckpointContract(stop_signal="none")
    load_runtime("command").check(dataclasses.replace(SPEC, contract=contract))


def test_a_torch_trainer_takes_no_contract() -> None:
    spec = dataclasses.replace(SPEC, runtime="torch", interpreter="/p/python")
    with pytest.raises(UsageError, match="resized in place"):
        load_runtime("torch").check(spec)


@pytest.mark.parametrize(
    ("restart", "words"),
    [
        (None, "has never run"),
        (RestartCosts(start_s=3.0), "no stop was measured yet"),
        (RestartCosts(start_s=3.0, stop_s=2.0), "uses 5.00 s in both directions"),
        (
            RestartCosts(start_s=3.0, stop_s=2.0, unsaved=2, unsaved_reason="Status -10."),
            "2 times without writing a checkpoint",
        ),
    ],
)
def test_what_a_resize_costs_is_said(restart: RestartCosts | None, words: str) -> None:
    record = dataclasses.replace(RECORD, costs=MeasuredCosts(restart=restart))
    text = " ".join(restart_sentences(record))
    assert "A resize of it is a restart" in text
    assert words in text
    torch = dataclasses.replace(RECORD, spec=dataclasses.replace(SPEC, contract=None))
    assert restart_sentences(torch) == ()
