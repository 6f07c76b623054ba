"""What the socket tells users of the trainers of others, under either ``visibility``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.model.trainer import FailureRow, TrainerRecord, TrainerSpec, TrainerState
from bftrainer.site.policy.keys import Visibility
from tests.integration.cli_fixtures import home, service
from tests.support.memory_service import MemoryService
from tests.support.other_users import NEIGHBOUR, STRANGER, ask_as, needs_root, serving_everybody

__all__ = ["home", "service"]

pytestmark = needs_root
SECRETS = ("hunter2", "/home/ada", "lr=0.1", "Traceback")
LOOKS = ("/v1/status", "/v1/nodes", "/v1/trainers", "/v1/harm", "/metrics")
OF_ONE = ("GET /v1/trainers/t1/logs", "GET /v1/trainers/t1/explain")
CHANGES = (
    *("DELETE /v1/trainers/t1", "DELETE /v1/trainers/t1?now=1", "POST /v1/trainers/t1/requeue"),
)


@pytest.fixture
def trained(service: MemoryService) -> MemoryService:
    """A trainer of the neighbour's, and one of the stranger's that waits for it."""
    spec = TrainerSpec(
        name="ada-net",
        user=str(NEIGHBOUR),
        script="/home/ada/train.py",
        args=("lr=0.1",),
        cwd="/home/ada",
        checkpoint_dir="/home/ada/kept",
        environment=(("TOKEN", "hunter2"),),
        preamble="/home/ada/pre.sh",
    )
    failing = FailureRow(count=1, cause="Traceback: hunter2", log_path="/home/ada/log")
    own = TrainerSpec(name="mine", user=str(STRANGER), script="/s.py", after=("t1",))
    for number, (given, state) in enumerate(
        ((spec, TrainerState.RUNNING), (own, TrainerState.QUEUED)), start=1
    ):
        service.records[f"t{number}"] = TrainerRecord(
            trainer_id=f"t{number}",
            spec=given,
            state=state,
            submitted_s=0.0,
            reason="Traceback: hunter2" if given is spec else "",
            failing=failing if given is spec else FailureRow(),
        )
    service.slow_nodes = ("n2 is slow for t1.",)
    service.add_log("t1", "worker", "hunter2")
    return service


@pytest.fixture(params=list(Visibility))
def door(trained: MemoryService, request: pytest.FixtureRequest) -> Iterator[tuple[Path, str]]:
    with serving_everybody(trained, request.param) as path:
        yield path, request.param


def test_nobody_is_told_secrets_of_another(door: tuple[Path, str]) -> None:
    path, _ = door
    for look in (*(f"GET {one}" for one in LOOKS), "GET /v1/trainers/t1", *OF_ONE):
        said = ask_as(STRANGER, path, look)
        assert not [secret for secret in SECRETS if secret in said], look
    assert "hunter2" in ask_as(NEIGHBOUR, path, "GET /v1/trainers/t1")


def test_others_are_shown_or_counted(door: tuple[Path, str]) -> None:
    path, visibility = door
    status = json.loads(ask_as(STRANGER, path, "GET /v1/status").partition("\r\n\r\n")[2])
    nodes = ask_as(STRANGER, path, "GET /v1/nodes")
    shown = [view["record"]["trainer_id"] for view in status["trainers"]]
    if visibility == Visibility.ALL:
        assert (shown, status["other_trainers"]) == (["t1", "t2"], 0)
        assert '"trainer_id":"t1"' in nodes.replace(" ", "")
        return
    assert (shown, status["other_trainers"]) == (["t2"], 1)
    assert status["slow_nodes"] == ["n2 is slow for another user's trainer."]
    assert "t1" not in status["trainers"][0]["waits"]
    assert '"t1"' not in nodes
    assert "ada-net" not in ask_as(STRANGER, path, "GET /v1/trainers")


def test_what_is_not_ones_own_is_refused_or_not_there(door: tuple[Path, str]) -> None:
    path, visibility = door
    code = "BFT-1005" if visibility == Visibility.ALL else "BFT-1004"
    for request in (*OF_ONE, *CHANGES):
        said = ask_as(STRANGER, path, request)
        assert code in said, request
        assert (str(NEIGHBOUR) in said) == (visibility == Visibility.ALL)
    one = ask_as(STRANGER, path, "GET /v1/trainers/t1")
    assert ("BFT-1004" in one) == (visibility == Visibility.OWN)
    assert "200 OK" in ask_as(STRANGER, path, "GET /v1/trainers/t2/explain")


def test_owner_and_root_see_everything(door: tuple[Path, str]) -> None:
    path, _ = door
    for uid in (0, NEIGHBOUR):
        assert "hunter2" in ask_as(uid, path, "GET /v1/trainers")
        assert "200 OK" in ask_as(uid, path, "GET /v1/trainers/t1/logs")
