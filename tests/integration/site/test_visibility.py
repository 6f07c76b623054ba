"""What the socket tells users of the trainers of others, under either ``visibility``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bftrainer.model.study import Report
from bftrainer.model.trainer import (
    FailureRow,
    TrainerProgress,
    TrainerRecord,
    TrainerSpec,
    TrainerState,
)
from bftrainer.site.policy.keys import Visibility
from tests.integration.cli_fixtures import home, service
from tests.support.memory_service import MemoryService
from tests.support.other_users import NEIGHBOUR, STRANGER, ask_as, needs_root, serving_everybody

__all__ = ["home", "service"]

pytestmark = needs_root
SECRETS = ("hunter2", "/home/ada", "lr=0.1", "Traceback", "0.7531", "0.0864")
LOOKS = ("/v1/status", "/v1/nodes", "/v1/trainers", "/v1/timeline", "/v1/harm", "/metrics")
NOW_S = 1_000_000.0
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
            reports=(Report(step=3, value=0.0864),) if given is spec else (),
            progress=TrainerProgress(
                step=3,
                samples=96,
                size=2,
                samples_per_s=32.0,
                loss=0.7531 if given is spec else 0.25,
                reported_s=NOW_S,
            ),
        )
    service.wake_with_records(NOW_S)
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


def test_the_loss_is_told_to_its_owner_and_the_speed_to_all_who_see_the_trainer(
    door: tuple[Path, str],
) -> None:
    path, visibility = door
    for uid in (0, NEIGHBOUR):
        assert _curves(uid, path, "losses") == {"t1": [0.7531]}
    of_stranger = _curves(STRANGER, path, "losses")
    if visibility == Visibility.OWN:
        assert of_stranger == {}
        return
    assert of_stranger == {"t1": []}
    assert [point[1] for point in _curves(STRANGER, path, "points")["t1"]] == [32.0]


def _curves(uid: int, path: Path, name: str) -> dict[str, list[Any]]:
    timeline = json.loads(ask_as(uid, path, "GET /v1/timeline").partition("\r\n\r\n")[2])
    return {curve["trainer_id"]: curve[name] for curve in timeline["curves"]}


def test_owner_and_root_see_everything(door: tuple[Path, str]) -> None:
    path, _ = door
    for uid in (0, NEIGHBOUR):
        assert "hunter2" in ask_as(uid, path, "GET /v1/trainers")
        assert "200 OK" in ask_as(uid, path, "GET /v1/trainers/t1/logs")
