"""A loss that is NaN or infinite update after update is told; nothing else is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic
from bftrainer.elastic.gradients import loss_alarm
from bftrainer.elastic.gradients.loss_alarm import FiniteLosses, limit_of
from bftrainer.elastic.gradients.loss_rule import end_looking
from bftrainer.elastic.process import control as control_module
from bftrainer.elastic.script.models import end_watch
from bftrainer.ground.errors import ElasticError
from bftrainer.ground.protocol import Diverged, Finished
from tests.elastic.controller import Controller, TemplateProcess

NAN, INF = math.nan, math.inf
BAD = [1.0, NAN, INF, NAN, NAN, NAN]  # the third in a row is the loss of step 4


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test is a process of its own as far as the runtime can tell."""
    monkeypatch.setattr(control_module, "_current", [])
    monkeypatch.delenv("BFT_NAN_UPDATES", raising=False)
    yield
    end_watch()
    end_looking()


# ---- counting ----------------------------------------------------------------------------


def told(updates: Sequence[Sequence[float]], limit: int = 3) -> list[tuple[int, int]]:
    """Return what is told of updates of these losses; one without any had no samples."""
    said: list[tuple[int, int]] = []
    losses = FiniteLosses(limit, lambda count, step: said.append((count, step)))
    for step, values in enumerate(updates, start=1):
        for value in values:
            losses.saw([torch.tensor(value)])
        losses.committed(step)
    losses.look(0)
    return said


@pytest.mark.parametrize(
    ("updates", "said"),
    [
        ([[1.0], [NAN], [INF], [-INF], [NAN]], [(3, 4)]),
        ([[NAN], [NAN], [1.0], [NAN], [NAN]], []),
        ([[1.0, NAN], [], [NAN, 2.0], [NAN]], [(3, 4)]),  # passes; no samples
        ([[NAN]] * 4 + [[0.0]] + [[INF]] * 4, [(3, 3), (3, 8)]),
        ([[1e38], [0.0], [-1e38]], []),
    ],
    ids=["row", "interrupted", "parts", "two rows", "finite"],
)
def test_updates_in_a_row_are_told_once(
    updates: list[list[float]], said: list[tuple[int, int]]
) -> None:
    assert told(updates) == said


def test_a_loss_of_several_elements_and_several_losses_are_one() -> None:
    said: list[int] = []
    losses = FiniteLosses(1, lambda _count, step: said.append(step))
    losses.saw([torch.tensor([1.0, NAN]), torch.tensor(1.0)])
    losses.committed(1)
    losses.saw((torch.tensor(1.0, dtype=torch.bfloat16), torch.ones(2, 2), None))
    losses.committed(2)
    assert said == [1]


def test_an_update_that_is_void_does_not_count_and_a_new_generation_is_told_again() -> None:
    said: list[int] = []
    losses = FiniteLosses(2, lambda _count, step: said.append(step))
    for step in (1, 2, 3):
        losses.saw([torch.tensor(NAN)])
        losses.entered()  # a member was lost
        losses.saw([torch.tensor(NAN if step > 1 else 1.0)])
        losses.committed(step)
    assert said == [3]
    losses.entered()
    losses.saw([torch.tensor(NAN)])
    losses.committed(4)
    assert said == [3, 4]


class Underway:
    """A loss that comes when it is told to, or when somebody waits for it."""

    def __init__(self, *, is_finite: bool) -> None:
        self.is_here, self.is_awaited, self._is_finite = False, False, is_finite

    def has_come(self) -> bool:
        return self.is_here

    @property
    def is_finite(self) -> bool:
        self.is_awaited = not self.is_here
        return self._is_finite


def test_losses_on_their_way_are_not_waited_for_until_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a GPU's are; those of most updates at once, and no more."""
    sent: list[Underway] = []

    def send(root: torch.Tensor, _scale: object) -> Underway:
        sent.append(Underway(is_finite=bool(root.isfinite())))
        return sent[-1]

    monkeypatch.setattr(loss_alarm, "value_of", send)
    said: list[int] = []
    losses = FiniteLosses(3, lambda _count, step: said.append(step))
    for step in range(1, loss_alarm.MOST_WAITING + 1):
        losses.saw([torch.tensor(NAN)])
        losses.committed(step)
    assert not any(one.is_awaited for one in sent)
    assert said == []
    sent[0].is_here = sent[1].is_here = sent[3].is_here = True
    losses.look()
    assert said == [], "the third has not come"
    sent[2].is_here = True
    losses.look()
    assert said == [3]
    for step in range(1, 7):
        losses.saw([torch.tensor(NAN)])
        losses.committed(loss_alarm.MOST_WAITING + step)
    assert [one.is_awaited for one in sent[4:7]] == [True, True, False], "four had come"
    losses.look(0)
    assert all(one.is_awaited for one in sent[6:])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_gpu_is_not_waited_for() -> None:
    said: list[int] = []
    losses = FiniteLosses(3, lambda _count, step: said.append(step))
    work, zero = torch.ones(8192, 8192, device="cuda"), torch.zeros((), device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")  # of operations that wait
    try:
        for step in range(1, 6):
            work = work @ work
            losses.saw([zero / zero])
            losses.committed(step)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    losses.look(0)
    assert said == [3]


@pytest.mark.parametrize(
    ("text", "limit"), [(None, 3), ("", 3), ("0", 0), ("10", 10), ("-1", 3), ("many", 3)]
)
def test_the_variable_has_a_number_of_updates(text: str | None, limit: int) -> None:
    assert limit_of(text) == limit


# ---- a script ----------------------------------------------------------------------------


def train(losses: Sequence[float], weights: Sequence[int] = (), **options: object) -> int:
    """Train an update on each loss, whose gradient is finite; return the updates."""
    net = nn.Linear(2, 1)
    loader = DataLoader(TensorDataset(torch.randn(4 * len(losses), 2)), batch_size=4)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    run = elastic.Run(net, sgd, loader, epochs=1, **options)  # type: ignore[arg-type]
    for _ in run.epochs():
        for (x,) in run.batches():
            sgd.zero_grad()
            if weights:
                run.weight(weights[run.step_count])
            (net(x).mean() + losses[run.step_count]).backward()
            run.step()
    return run.step_count


def test_a_script_is_told_in_its_log_and_trains_on(capfd: pytest.CaptureFixture[str]) -> None:
    """Also after the loss has been seen to be a mean, when nothing else is looked at."""
    assert train([1.0] * 20 + BAD) == 26
    said = capfd.readouterr().err
    assert said.count("BFT-1435") == 1
    assert "in 3 updates in a row, the last of them step 24." in said


def test_nothing_is_told_where_losses_are_finite_or_do_not_count(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train([1.0, NAN, 1.0, NAN, NAN, 1.0])
    train(BAD, weights=[4, 0, 0, 0, 0, 0])  # all tokens of these batches are padding
    monkeypatch.setenv("BFT_NAN_UPDATES", "0")
    train(BAD)
    monkeypatch.setenv("BFT_NAN_UPDATES", "6")
    train(BAD)
    assert "BFT-1435" not in capfd.readouterr().err


@pytest.mark.parametrize("updates", [BAD, [1.0, NAN, NAN, NAN]], ids=["amid", "at the end"])
def test_a_trial_ends(monkeypatch: pytest.MonkeyPatch, updates: list[float]) -> None:
    monkeypatch.setenv("BFT_STUDY", "s")
    monkeypatch.setenv("BFT_TRIAL", "3")
    with pytest.raises(ElasticError) as ended:
        train(updates)
    assert ended.value.code == "BFT-1435"


OF_ONE_MEMBER = """\
import torch
from torch.utils.data import DataLoader, TensorDataset
from bftrainer import elastic

net = torch.nn.Linear(2, 1)
loader = DataLoader(TensorDataset(torch.randn(48, 2)), batch_size=8)
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
run = elastic.Run(net, sgd, loader, epochs=1)
for _ in run.epochs():
    for (x,) in run.batches():
        sgd.zero_grad()
        (net(x).mean() + (float("nan") if run.rank == 1 else 0.0)).backward()
        run.step()
"""


def test_any_member_s_losses_count(tmp_path: Path, template: TemplateProcess) -> None:
    script = tmp_path / "one.py"
    script.write_text(OF_ONE_MEMBER)
    with Controller(tmp_path, template) as c:
        first, second = c.begin(script, count=2)
        c.until(lambda: c.workers[first].all(Finished), "it is finished")
        c.until(lambda: c.workers[second].all(Diverged), "it is told")
        assert c.workers[first].all(Diverged) == []
        [said] = c.workers[second].all(Diverged)
    assert said.step == 3
    assert said.cause.startswith("BFT-1435: ")
