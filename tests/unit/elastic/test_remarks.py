"""What a user should know of a training that goes on: who says it, and what is compared."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bftrainer.elastic.gradients import light
from bftrainer.elastic.gradients.in_common import ExtraComparison, ScalerCopy, of_callbacks
from bftrainer.elastic.process.control import Control
from bftrainer.elastic.process.generations import GenerationInfo
from bftrainer.elastic.state.remarks import MOST, Remarks
from bftrainer.elastic.state.state import Counters, State
from bftrainer.ground.protocol import Remarked, WorkerConfig


class Sent(Control):
    """Keeps what a worker tells its agent."""

    def __init__(self) -> None:
        super().__init__(WorkerConfig(trainer_id="t1", worker_id="w", node="n", script="s"), None)
        self.messages: list[Any] = []

    def send(self, message: Any) -> None:
        self.messages.append(message)


def state() -> State:
    model = torch.nn.Linear(1, 1)
    return State(model, torch.optim.SGD(model.parameters(), lr=0.1), None, {})


def place(rank: int, generation: int = 1) -> GenerationInfo:
    return GenerationInfo(
        generation=generation, attempt=1, step=0, epoch=0, samples=0, rank=rank, size=2
    )


def test_rank_0_says_it_and_the_state_of_all_members_has_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    members = [(Sent(), state()) for _ in range(2)]
    for rank, (control, own) in enumerate(members):
        remarks = Remarks(control, own)
        remarks.step = lambda: 7
        remarks.begin(place(rank))
        remarks.lasts("adopted", "BFT-1438: first.")
        remarks.lasts("adopted", "BFT-1438: second.")
    row = {"kind": "adopted", "step": 7, "cause": "BFT-1438: first."}
    assert [own.remarks for _, own in members] == [[row], [row]]
    said = Remarked(kind="adopted", step=7, cause="BFT-1438: first.")
    assert [control.messages for control, _ in members] == [[said], []]
    assert capfd.readouterr().err == "bftrainer: warning: BFT-1438: first.\n"


def test_who_goes_on_from_a_state_says_again_what_it_has() -> None:
    before, after, control = state(), state(), Sent()
    Remarks(None, before).lasts("adopted", "BFT-1438: it differs.")
    structure, tensors = before.encode_rest(Counters(seed=1, step=9))
    remarks = Remarks(control, after)
    remarks.begin(place(0))
    assert control.messages == []
    after.decode_rest(structure, tensors)
    remarks.begin(place(1, generation=2))
    assert control.messages == [], "another one is rank 0"
    remarks.begin(place(0, generation=3))
    remarks.begin(place(0, generation=4))
    assert control.messages == [Remarked(kind="adopted", step=0, cause="BFT-1438: it differs.")]


def test_a_state_without_remarks_is_as_the_release_before_has_it() -> None:
    structure, tensors = state().encode_rest(Counters(seed=1))
    assert "remarks" not in str(structure)
    other = state()
    other.remarks = [{"kind": "x", "step": 1, "cause": "y"}]
    other.decode_rest(structure, tensors)
    assert other.remarks == []


def test_a_state_keeps_few_remarks_of_bounded_length() -> None:
    own = state()
    remarks = Remarks(None, own)
    for number in range(MOST + 3):
        remarks.lasts(f"kind {number}", "x" * 9999)
    assert len(own.remarks) == MOST
    assert {len(row["cause"]) for row in own.remarks} == {600}


def test_what_is_of_a_generation_is_said_in_each_and_printed_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    control = Sent()
    remarks = Remarks(control, state())
    for generation in (1, 2):
        remarks.begin(place(0, generation))
        remarks.of_generation("unlike", "BFT-1446: unlike.")
        remarks.of_generation("unlike", "BFT-1446: unlike.")
    assert [message.generation for message in control.messages] == [1, 2]
    assert capfd.readouterr().err.count("BFT-1446") == 1


# ---- what members have in common -------------------------------------------------------------


class Copied:
    """Stands for the copy of a scale that is on its way from a GPU."""

    def begin(self, scale: torch.Tensor, growth: torch.Tensor) -> None:
        assert (scale.device.type, growth.device.type) == ("meta", "meta")

    def numbers(self) -> tuple[float, int]:
        return 512.0, 2


def scaler_on_device() -> Any:
    scaler: Any = torch.amp.GradScaler("cpu", init_scale=256.0)
    scaler._scale = torch.empty((), device="meta")  # cannot be read: it would raise
    scaler._growth_tracker = torch.empty((), device="meta")
    return scaler


def scaler_in_host(scale: float, growth: int) -> Any:
    scaler: Any = torch.amp.GradScaler("cpu", init_scale=scale)
    scaler.scale(torch.ones(()))
    scaler._growth_tracker.fill_(growth)
    return scaler


def test_a_scaler_on_a_gpu_counts_as_one_in_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExtraComparison, "new_copy", Copied)
    compared = ExtraComparison({"scaler": scaler_on_device()})

    def digest(scale: float, growth: int) -> int:
        host = ExtraComparison({"scaler": scaler_in_host(scale, growth)})
        return light.digest(host.in_votes())

    compared.ask()
    assert light.digest(compared.in_votes()) == digest(512.0, 2)
    assert light.digest(compared.in_votes()) != digest(512.0, 1)
    assert light.digest(compared.in_votes()) != digest(256.0, 2)
    assert compared.leaves()["scaler.scale"] == 512.0
    assert compared.leaves()["scaler._growth_tracker"] == 2
    compared.begin()  # a generation; in its first batch nothing was on its way
    assert light.digest(compared.in_votes()) == digest(256.0, 0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_scale_arrives_from_a_gpu() -> None:
    copy = ScalerCopy()
    for scale, growth in ((1024.0, 3), (2.0**24, 1999)):
        copy.begin(
            torch.full((), scale, device="cuda"),
            torch.full((), growth, dtype=torch.int32, device="cuda"),
        )
        assert copy.numbers() == (scale, growth)


def test_schedules_among_extra_objects_steer_but_their_best_metric_is_told() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    plateau.step(0.25)
    leaves = ExtraComparison({"second": plateau}).leaves()
    assert leaves["extra.second.best"] == 0.25
    assert leaves["second.num_bad_epochs"] == 0
    assert "second.best" not in leaves


def _callback(name: str, module: str) -> Any:
    return type(name, (), {"__module__": module})()


def test_counts_of_a_library_steer_and_measured_values_are_told() -> None:
    stopping = _callback("EarlyStopping", "lightning.pytorch.callbacks.early_stopping")
    averaging = _callback("StochasticWeightAveraging", "lightning.pytorch.callbacks.averaging")
    own = _callback("Own", "__main__")
    common = of_callbacks(
        [
            (stopping, {"wait_count": 1, "best_score": torch.tensor(0.5), "reason": "none"}),
            (stopping, {"wait_count": 2, "best_score": torch.ones(2)}),
            (averaging, {"n_averaged": 3, "average_model_state": {"w": torch.ones(9)}}),
            (own, {"seen": 4}),
        ],
        {"lightning"},
    )
    assert common.steering == {
        "EarlyStopping": {"wait_count": 1},
        "EarlyStopping 2": {"wait_count": 2},
    }
    assert common.measured == {
        "EarlyStopping": {"best_score": torch.tensor(0.5)},
        "EarlyStopping 2": {},
        "StochasticWeightAveraging": {"n_averaged": 3},
        "Own": {"seen": 4},
    }
