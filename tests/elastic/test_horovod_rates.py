"""``--continue`` under Horovod: the script's rates in the state of a checkpoint.

The states are stand-ins with what Horovod 0.28 keeps (``horovod/torch/elastic/state.py``): values
in ``_saved_state``, and handlers with a ``value`` and a copy of what was committed.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from bftrainer.elastic.checkpoints.origin_check import CONTINUE
from bftrainer.elastic.horovod.session import Counts, Saver
from bftrainer.elastic.process.control import Control
from bftrainer.elastic.process.reports import Reports
from bftrainer.ground.errors import ElasticError
from bftrainer.ground.fence import Fence
from bftrainer.ground.protocol import WorkerConfig

FENCE = Fence(incarnation=1, generation=3, token="")


class _Handler:
    def __init__(self, value: Any) -> None:
        self.value = value
        self.save()

    def save(self) -> None:
        self._saved_one = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        self.value.load_state_dict(self._saved_one)


class _State:
    """A state whose schedule has a handler, or is an object like any other."""

    def __init__(self, lr: float, *, is_handled: bool, has_schedule: bool = True) -> None:
        self.model = torch.nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=lr, momentum=0.9, weight_decay=lr / 10
        )
        self._handlers = {"model": _Handler(self.model), "optimizer": _Handler(self.optimizer)}
        self._saved_state: dict[str, Any] = {"epoch": 0}
        self.schedule: Any = None
        if has_schedule:
            self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, gamma=0.5)
        if has_schedule and is_handled:
            self._handlers["schedule"] = _Handler(self.schedule)
        elif has_schedule:
            self._saved_state["schedule"] = self.schedule
        self.save()

    def save(self) -> None:
        for handler in self._handlers.values():
            handler.save()

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()

    def train(self, updates: int) -> list[float]:
        """Train; return the rate of each update."""
        rates = []
        for _ in range(updates):
            self.optimizer.zero_grad()
            self.model(torch.ones(4, 3)).sum().backward()
            rates.append(self.optimizer.param_groups[0]["lr"])
            self.optimizer.step()
            if self.schedule is not None:
                self.schedule.step()
        return rates


def _saver(directory: Path, lr: float, way: str = "") -> Saver:
    config = WorkerConfig(
        trainer_id="t1",
        worker_id="w1",
        node="n",
        script="s",
        args=(f"--lr={lr}",),
        environment=((CONTINUE, way),),
        checkpoint_dir=str(directory),
    )
    return Saver(Control(config, None), Counts(), Reports())


@pytest.mark.parametrize("is_handled", [True, False])
def test_the_schedule_goes_on_at_the_script_s_rate(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    is_handled: bool,
) -> None:
    first = _State(0.4, is_handled=is_handled)
    assert first.train(3) == [0.4, 0.4, 0.2]
    first.save()
    _saver(tmp_path, 0.4).save_now(first, FENCE)
    again = _State(0.1, is_handled=is_handled)
    sent: list[Any] = []
    monkeypatch.setattr(Control, "send", lambda _control, message: sent.append(message))
    assert _saver(tmp_path, 0.1, "arguments").load(again)[0]
    [group] = again.optimizer.param_groups
    assert group["weight_decay"] == pytest.approx(0.01)
    again.restore()  # what is committed has it, too
    # StepLR halves after every second update: of seven the last four at 0.1 have these rates.
    assert again.train(4) == pytest.approx([0.05, 0.025, 0.025, 0.0125])
    momentum = again.optimizer.state_dict()["state"][0]["momentum_buffer"]
    assert momentum.abs().sum() > 0
    assert "group 0 of the optimizer has lr 0.05 (it had 0.2)" in capfd.readouterr().err
    (remark,) = sent
    assert "lr 0.05 (it had 0.2)" in remark.cause


def test_without_a_schedule_the_script_s_rate_counts(tmp_path: Path) -> None:
    first = _State(0.4, is_handled=False, has_schedule=False)
    first.train(2)
    first.save()
    _saver(tmp_path, 0.4).save_now(first, FENCE)
    again = _State(0.1, is_handled=False, has_schedule=False)
    _saver(tmp_path, 0.1, "arguments").load(again)
    assert again.train(1) == [0.1]


def test_without_the_wish_other_arguments_are_refused(tmp_path: Path) -> None:
    _saver(tmp_path, 0.4).save_now(_State(0.4, is_handled=True), FENCE)
    with pytest.raises(ElasticError, match="BFT-1450"):
        _saver(tmp_path, 0.1).load(_State(0.1, is_handled=True))
