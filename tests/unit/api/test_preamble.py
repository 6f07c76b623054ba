"""What a preamble changes in orders and views, and what is said when it fails."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bftrainer.api.privacy import for_peer
from bftrainer.api.service import Peer
from bftrainer.fleet.runtimes.base import template_of
from bftrainer.ground.protocol import WorkerConfig, to_body
from bftrainer.model.preamble import MAX_BYTES, fault_of, why_not_started
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState, as_decided
from bftrainer.model.views import TrainerView

SPEC = TrainerSpec(
    name="t", user="ada", script="/s.py", interpreter="/python", preamble="export TOKEN=secret",
    notify="/bin/tell secret",
)  # fmt: skip
LOST = (
    "/p/x.sh: line 2: module: command not found\n\n"
    "bftrainer: The preamble ended with status 127\nlate words\n"
)
RECORD = TrainerRecord(trainer_id="t1", spec=SPEC, state=TrainerState.QUEUED, submitted_s=1.0)


@pytest.mark.parametrize(
    ("output", "status", "why"),
    [
        ("", 126, "What the preamble started ended with status 126"),
        ("bftrainer: The preamble ended with status 3", 126, "The preamble ended with status 3"),
        (
            LOST,
            126,
            "The preamble ended with status 127: preamble: line 2: module: command not found",
        ),
        (
            "FATAL: no image\n",
            255,
            "What the preamble started ended with status 255: FATAL: no image",
        ),
    ],
)
def test_the_reason_is_the_same_on_every_node(output: str, status: int, why: str) -> None:
    assert why_not_started(output, status, "/p/x.sh") == f"BFT-1061: {why}"


@pytest.mark.parametrize("text", ["a\0", "a\x1b[", "a\r\n", "\ud800", "a" * (MAX_BYTES + 1)])
def test_what_is_no_shell_file(text: str) -> None:
    assert fault_of(text)
    assert not fault_of("# für\n\tmodule load x\n")


def test_old_agents_hear_of_preambles_only_where_there_is_one() -> None:
    config = WorkerConfig(trainer_id="t1", worker_id="w1", node="n1", script="/s.py")
    assert "preamble" not in to_body(config)  # which they would refuse
    assert to_body(replace(config, preamble="x"))["preamble"] == "x"


def test_no_template_is_started_early_without_the_preamble() -> None:
    assert template_of(SPEC) == ""
    assert template_of(replace(SPEC, preamble="")) == "/python"


def test_others_see_neither_preamble_nor_notification() -> None:
    view = TrainerView(record=RECORD, planned_nodes=(), requested_nodes=(), observed_nodes=())
    assert "secret" not in repr(for_peer(view, Peer(uid=4711, user="bob", pid=1)))
    assert for_peer(view, Peer(uid=4711, user="ada", pid=1)) == view
    assert "secret" not in repr(as_decided(RECORD))
