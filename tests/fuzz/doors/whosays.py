"""What workers, programs and other agents say, and what agents say of workers."""

from __future__ import annotations

import functools
import logging
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from bftrainer.elastic.process.reports import finite
from bftrainer.fleet.generations import stimuli
from bftrainer.fleet.generations.adoption import adopt
from bftrainer.fleet.generations.generation import GenerationMachine
from bftrainer.fleet.generations.members import worker_on
from bftrainer.fleet.trainers.reported_workers import judge as judge_reports
from bftrainer.fleet.trainers.trainers import TrainerBook
from bftrainer.fleet.wire.messages import WorkerReport
from bftrainer.fleet.wire.peers import _ANSWERS, _QUESTIONS, PeerStanding
from bftrainer.fleet.wire.router import RefusedMessages
from bftrainer.ground import protocol
from bftrainer.ground.errors import ElasticError
from bftrainer.ground.fields import is_deep
from bftrainer.ground.protocol import ProtocolError
from bftrainer.journal.journal import Journal
from bftrainer.model.trainer import Mark, TrainerRecord, TrainerSpec, TrainerState
from bftrainer.site.policy.model import SitePolicy
from tests.fuzz.door import Door
from tests.fuzz.hostile import as_json, bytestrings, documents, numbers, texts
from tests.support.generations import machine_of, offer
from trainers.agent.regroup import Absent, Ask, Regroup
from trainers.agent.team import Gathered
from trainers.command.conversation import Pace, parse_line, value_in

_NUMBERS: Mapping[str, Any] = {"generation": 1, "attempt": 1, "step": 7, "epoch": 0, "samples": 70}
_MEMBERS = [
    {"worker_id": f"t1-1-{n}", "rank": n - 1, "node": f"n{n}", "address": f"10.0.0.{n}",
     "agent_endpoint": f"tcp://n{n}", "agent_public_key": "k" * 40}
    for n in (1, 2)
]  # fmt: skip
_COMMIT = {
    "type": "Commit", "generation": 1, "attempt": 1, "token": "t", "members": _MEMBERS,
    "store_host": "10.0.0.1", "store_port": 4000, "incarnation": 1,
}  # fmt: skip


def _some(kind: str, *names: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, **{name: _NUMBERS[name] for name in names}, **more}


_FROM_WORKER: tuple[dict[str, Any], ...] = (
    _some("Warm", warm_up_s=1.5),
    _some("Ready", "generation", "attempt", store_port=4000),
    _some("Entered", *_NUMBERS, rank=0, size=2, pause_s=0.1, transfer_s=0.2, shares=[3, 4]),
    _some("Progress", "generation", "step", "epoch", "samples", step_s=0.1, samples_per_s=9.5),
    _some("Reported", "generation", reports=[{"value": -0.5, "step": 7, "epoch": 1}]),
    _some("Interrupted", "generation", "attempt", "step", reason="reset"),
    _some("Saved", "generation", "step", "samples", path="/ck/1", wall_s=0.1),
    _some("Left", "generation", "step"),
    _some("Finished", "generation", "step", "epoch", "samples"),
    _some("Failed", code="BFT-1410", cause="It broke.", next_step="Mend it."),
)  # fmt: skip
_BODIES: tuple[dict[str, Any], ...] = (
    *_FROM_WORKER,
    _COMMIT,
    _some("Prepare", "generation", "attempt", open_store=True),
    {"type": "Stop", "reason": "over"},
    {"type": "WorkerConfig", "trainer_id": "t1", "worker_id": "t1-1-1", "node": "n1",
     "script": "/x.py", "args": ["-v"], "environment": [["A", "1"]], "samples": 7},
)  # fmt: skip


# ---- parsers -----------------------------------------------------------------------------


def _round_trip(body: Any) -> None:
    """What was accepted can be said again, means the same, and has only numbers in range."""
    message = protocol.from_body(body)
    assert protocol.from_body(protocol.to_body(message)) == message
    assert protocol.decode(protocol.encode(message)) == message
    for value in asdict(message).values():
        assert not isinstance(value, int | float) or 0 <= value < 2**53
    if isinstance(message, protocol.Reported):
        assert all(isfinite(report.value) for report in message.reports)


def _team(bodies: list[Any]) -> None:
    team = Gathered(2)
    for number, body in enumerate(bodies):
        try:
            message = protocol.from_body(body)
        except ProtocolError:
            continue
        if isinstance(message, protocol.FromWorker):
            team.said(number % 2, protocol.to_body(message))


def _program(lines: list[str]) -> None:
    pace, place = Pace(), Mark()
    for number, line in enumerate(lines):
        place = parse_line(line, place) or place
        pace.add(place, 1e-9 * number)
        if parse_line(line, place) and (value := value_in(line)) is not None:
            with suppress(ElasticError):
                assert isfinite(finite(value))
        step_s, samples_per_s = pace.rates()
        protocol.decode(
            protocol.encode(
                protocol.Progress(
                    generation=1, step=place.step, epoch=place.epoch, samples=place.samples,
                    step_s=step_s, samples_per_s=samples_per_s,
                )
            )
        )  # fmt: skip


# ---- peers -------------------------------------------------------------------------------


_PEER = {
    "worker_id": "t1-1-2", "commit": _COMMIT, "entered": _COMMIT, "interrupted": [1, 1],
    "ready": [-1, -1], "promised": [-1, -1], "step": 7, "has_left": False, "has_finished": False,
}  # fmt: skip
_PEERS_SAY = (
    {"type": "surveyed", "is_orphaned": True, "workers": [_PEER]},
    {"type": "done", "refusal": "no"},
)  # fmt: skip
_PEERS_ASK = (
    {"type": "survey", "trainer_id": "t1", "generation": 1, "attempt": 1},
    {"type": "promise", "trainer_id": "t1", "worker_id": "t1-1-1", "generation": 2, "attempt": 1},
    {"type": "pass-commit", "trainer_id": "t1", "worker_id": "t1-1-1", "body": _COMMIT},
)


def _regroup(said: tuple[bytes, bool]) -> None:
    """A peer answers a survey with anything: whatever is announced can be said."""
    raw, is_gone = said
    own = PeerStanding.model_validate_json(as_json({**_PEER, "worker_id": "t1-1-1"}))
    machine = Regroup("t1", me="tcp://n1", origin="p1", new_token=lambda: "t")
    asked = machine.advance([own], is_orphaned=True, now_s=1.0)
    answer = _ANSWERS.validate_json(raw)
    for _ in range(3):
        for instruction in asked:
            if isinstance(instruction, Ask):
                heard = Absent.GONE if is_gone else answer
                machine.on_answer(instruction, heard, now_s=1.1)
        asked = machine.advance([own], is_orphaned=True, now_s=1.1)


# ---- a daemon's book, and liars ----------------------------------------------------------


MOST_REPORTED_BYTES = 256 * 1024
_REPORTS = TypeAdapter(list[WorkerReport])
_SPEC = TrainerSpec(name="x", user="root", script="/x.py", n_max=4, checkpoint_dir="/tmp/none")
_RECORD = TrainerRecord(
    trainer_id="t1", spec=_SPEC, state=TrainerState.RUNNING, submitted_s=1.0, last_generation=1,
    workers=(("t1-1-1", "p-n1"), ("t1-1-2", "p-n2")),
)  # fmt: skip


def _adopt(raw: Mapping[str, bytes]) -> None:
    """Agents report anything that a Hello has room for; what is believed can be adopted."""
    reports = {
        pilot: _REPORTS.validate_json(known)
        for pilot, known in raw.items()
        if len(known) < MOST_REPORTED_BYTES
    }
    found = judge_reports(reports, {"t1": _RECORD})
    machine = machine_of(
        GenerationMachine, n_max=4, no_progress_s=60.0, last_generation=1, incarnation=2
    )
    believed = found.believed.get("t1", [])
    workers = [worker_on(offer(b.pilot_id[2:]), b.worker_id, 1.0) for b in believed]
    adopt(machine, workers, {b.worker_id: b.messages for b in believed})
    for now_s in (1.0, 2.0, 100.0):
        machine.handle(stimuli.TargetsSet(offers=(offer("n1"), offer("n2"))), now_s)
    assert all(dict(_RECORD.workers).get(m) for m in machine.crew.members)


@functools.cache
def _book() -> TrainerBook:
    """A trainer with two members; its journal is in a folder that ends with the process."""
    folder = tempfile.TemporaryDirectory()
    journal = Journal.open(Path(folder.name) / "journal.db", clock=lambda: 100.0)
    log = logging.getLogger("fuzz")
    log.disabled = True
    book = TrainerBook(
        journal=journal, policy=SitePolicy(), incarnation=journal.begin_incarnation(),
        send=lambda _pilot, _message: True, clock=lambda: 100.0, on_change=lambda: None,
        refusals=RefusedMessages(log),
    )  # fmt: skip
    book.keeps = (folder, journal)  # type: ignore[attr-defined]  # as long as the book
    record = journal.submit(_SPEC, 1.0)
    book.records["t1"] = record
    book._open(record)
    book.set_targets({"t1": [offer("n1"), offer("n2")]})
    for body in _FROM_WORKER[:3]:
        for number in (1, 2):
            book.on_body(f"p-n{number}", f"t1-1-{number}", body)
    assert book.records["t1"].progress.size == 2
    return book


def _lie(said: tuple[str, str, Any]) -> None:
    """Agents of other nodes say anything of a trainer's workers: nothing changes."""
    book, (kind, worker_id, body) = _book(), said
    machine = book.trainers["t1"].machine
    before = (
        book.records["t1"],
        machine.crew.members,
        machine.mark.step,
        machine.numbers.generation,
    )
    phases = {w.worker_id: w.phase for w in machine.crew.workers.values()}
    if kind == "body":
        book.on_body("p-n9", worker_id, body)
    elif kind == "exit":
        book.on_exit("p-n9", worker_id, 1, "It broke.")
    else:
        book.reconcile("p-n9", [WorkerReport(worker_id=worker_id, trainer_id="t1", pid=1)])
    book.tick()
    assert before == (
        book.records["t1"],
        machine.crew.members,
        machine.mark.step,
        machine.numbers.generation,
    )
    assert phases == {w.worker_id: w.phase for w in machine.crew.workers.values()}


def _report(**changes: Any) -> dict[str, Any]:
    return {"worker_id": "t1-1-1", "trainer_id": "t1", "pid": 9, "commit": _COMMIT,
            "latest": [_FROM_WORKER[0], _FROM_WORKER[2], _FROM_WORKER[3]], **changes}  # fmt: skip


_NAMES = st.sampled_from(("t1-1-1", "t1-1-2", "t1-1-9", "t1", "t9-1-1", "")) | texts("t1-1-1")

DOORS = (
    Door(
        name="worker-line",
        call=protocol.decode,
        refuses_with=(ProtocolError,),
        inputs=documents(*_BODIES).map(as_json) | bytestrings(*map(as_json, _BODIES)),
        from_bytes=bytes,
    ),
    Door(
        name="worker-body",
        call=_round_trip,
        refuses_with=(ProtocolError,),
        inputs=documents(*_BODIES),
    ),
    Door(
        name="worker-team",
        call=_team,
        inputs=st.lists(documents(*_FROM_WORKER), max_size=6),
    ),
    Door(
        name="json-depth",
        call=is_deep,
        inputs=bytestrings(*map(as_json, _BODIES)),
        from_bytes=bytes,
    ),
    Door(
        name="command-line",
        call=_program,
        inputs=st.lists(
            texts(
                "BFT ready",
                "BFT step=7 samples=448 value=-1.5e3",
                "BFT step=1 epoch=2 samples=999999",
            )
            | numbers().map(lambda n: f"BFT step=1 samples={n}"),
            max_size=5,
        ),
        from_bytes=lambda raw: raw.decode("utf-8", "replace").split("\n"),
    ),
    Door(
        name="peer-question",
        call=_QUESTIONS.validate_json,
        refuses_with=(ValidationError,),
        inputs=documents(*_PEERS_ASK).map(as_json) | bytestrings(*map(as_json, _PEERS_ASK)),
        from_bytes=bytes,
    ),
    Door(
        name="peer-answer",
        call=_regroup,
        refuses_with=(ValidationError,),
        inputs=st.tuples(documents(*_PEERS_SAY).map(as_json), st.booleans()),
        from_bytes=lambda raw: (raw, False),
    ),
    Door(
        name="adoption",
        call=_adopt,
        refuses_with=(ValidationError,),
        inputs=st.fixed_dictionaries(
            {},
            optional={
                pilot: st.lists(
                    documents(_report(), _report(worker_id="t1-1-2"), _report(commit=None)),
                    max_size=3,
                ).map(as_json)
                for pilot in ("p-n1", "p-n2", "p-n3")
            },
        ),
    ),
    Door(
        name="liars",
        call=_lie,
        refuses_with=(ValidationError,),
        inputs=st.tuples(
            st.sampled_from(("body", "exit", "hello")), _NAMES, documents(*_FROM_WORKER)
        ),
    ),
)
