"""The mean training loss that workers report: of the samples, whatever the loss is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic
from bftrainer.elastic.gradients import loss_alarm
from bftrainer.elastic.gradients.loss_alarm import MOST_WAITING, FiniteLosses
from bftrainer.elastic.gradients.loss_rule import end_looking
from bftrainer.elastic.gradients.training_loss import LossMean, LossReporter, reporter_for
from bftrainer.elastic.process import control as control_module
from bftrainer.elastic.process.control import Control
from bftrainer.elastic.script.models import end_watch
from bftrainer.ground.protocol import BY_AGENT, BY_DAEMON, TELLS_LOSS, TrainingLoss, WorkerConfig
from tests.elastic.controller import Controller, TemplateProcess

NAN, INF = math.nan, math.inf


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test is a process of its own as far as the runtime can tell."""
    monkeypatch.setattr(control_module, "_current", [])
    yield
    end_watch()
    end_looking()


# ---- the mean ----------------------------------------------------------------------------


def test_the_mean_is_over_samples_and_a_weight_is_that_of_an_update() -> None:
    """Two updates: 3 samples with loss 1.0 and 1 with 5.0; then 2 with 6.0. One without any."""
    mean = LossMean()
    losses = FiniteLosses(3, lambda _count, _step: None, mean.add)
    losses.saw([torch.tensor(1.0)], number=1, weight=3)
    losses.saw([torch.tensor(5.0)], number=2, weight=1)
    losses.committed(1)
    losses.saw([torch.tensor(6.0)], number=3, weight=2)
    losses.committed(2)
    losses.committed(3)
    assert mean.take(is_sum=False) == (20 / 6, 2.0)
    assert mean.take(is_sum=False) is None, "it begins anew"


def test_a_sum_is_divided_by_its_samples() -> None:
    mean = LossMean()
    losses = FiniteLosses(3, lambda _count, _step: None, mean.add)
    losses.saw([torch.tensor(12.0)], number=1, weight=3)
    losses.saw([torch.tensor(2.0)], number=2, weight=1)
    losses.committed(1)
    assert mean.take(is_sum=True) == (3.5, 4.0)


@pytest.mark.parametrize(("is_added_up", "loss"), [(True, 7.0), (False, 2.0)])
def test_backward_passes_over_the_same_samples_are_added_up_or_the_first_counts(
    *, is_added_up: bool, loss: float
) -> None:
    mean = LossMean()
    losses = FiniteLosses(3, lambda _count, _step: None, mean.add)
    for value in (2.0, 5.0):
        losses.saw([torch.tensor(value)], number=1, weight=4, is_added_up=is_added_up)
    losses.committed(1)
    assert mean.take(is_sum=False) == (loss, 4.0)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_loss_that_is_not_finite_leaves_no_mean_until_the_next_report(value: float) -> None:
    mean = LossMean()
    losses = FiniteLosses(0, lambda _count, _step: None, mean.add)
    for step, loss in enumerate((1.0, value, 3.0), start=1):
        losses.saw([torch.tensor(loss)], number=step, weight=2)
        losses.committed(step)
    assert mean.take(is_sum=False) == (None, 2.0)
    losses.saw([torch.tensor(4.0)], number=9, weight=2)
    losses.committed(4)
    assert mean.take(is_sum=False) == (4.0, 2.0)


def test_an_update_that_is_void_does_not_count() -> None:
    mean = LossMean()
    losses = FiniteLosses(3, lambda _count, _step: None, mean.add)
    losses.saw([torch.tensor(100.0)], number=1, weight=4)
    losses.entered()  # a member was lost
    losses.saw([torch.tensor(1.0)], number=2, weight=2)
    losses.committed(1)
    assert mean.take(is_sum=False) == (1.0, 2.0)


def scaled(scaler: torch.amp.GradScaler, loss: float) -> torch.Tensor:
    parameter = torch.tensor(loss, requires_grad=True)
    return scaler.scale(parameter * 1.0)


def test_what_a_scaler_multiplied_by_is_taken_away_and_what_else_was_done_does_not_count() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    mean = LossMean()
    losses = FiniteLosses(3, lambda _count, _step: None, mean.add)
    root = scaled(scaler, 0.75)
    assert root.item() == 768.0
    losses.saw([root], number=1, weight=2, scale=scaler._scale)
    losses.committed(1)
    assert mean.take(is_sum=False) == (0.75, 2.0)
    losses.saw([scaled(scaler, 0.75) / 2], number=2, weight=2, scale=scaler._scale)
    losses.committed(2)
    losses.saw([torch.tensor(0.75, requires_grad=True) * 3], weight=2, scale=scaler._scale)
    losses.committed(3)
    assert mean.take(is_sum=False) is None


def test_losses_on_their_way_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a GPU's are; the mean is of those that have come."""

    class Underway:
        def __init__(self, number: float) -> None:
            self.number, self.is_finite, self.is_here = number, True, False

        def has_come(self) -> bool:
            return self.is_here

    sent: list[Underway] = []

    def send(root: torch.Tensor, _scale: object) -> Underway:
        sent.append(Underway(root.item()))
        return sent[-1]

    monkeypatch.setattr(loss_alarm, "value_of", send)
    mean = LossMean()
    losses = FiniteLosses(3, lambda _count, _step: None, mean.add)
    for step in range(1, MOST_WAITING + 1):
        losses.saw([torch.tensor(float(step))], number=step, weight=1)
        losses.committed(step)
    assert not mean.is_there
    sent[0].is_here = sent[1].is_here = sent[3].is_here = True
    losses.look()
    assert mean.take(is_sum=False) == (1.5, 1.0), "the first two"
    losses.look(0)
    assert mean.take(is_sum=False) == ((3 + 64) / 2, 1.0), "at the end all others, 3 to 64"


@pytest.mark.parametrize("value", ["", BY_DAEMON, BY_AGENT])
def test_it_is_told_where_agent_and_daemon_understand_it(value: str) -> None:
    environment = ((TELLS_LOSS, value),) if value else ()
    config = WorkerConfig(
        trainer_id="t1", worker_id="w", node="n", script="/s", environment=environment
    )
    assert (reporter_for(Control(config, None)) is not None) is (value == BY_AGENT)


# ---- a script ----------------------------------------------------------------------------

X = torch.arange(1.0, 13.0)  # twelve samples, four in an update


def told_by(
    monkeypatch: pytest.MonkeyPatch,
    backward: Callable[[Any, torch.Tensor, torch.Tensor], None],
    scaler: torch.amp.GradScaler | None = None,
    **options: Any,
) -> list[tuple[float | None, float]]:
    """Train without changing anything, one report for each update; return losses and weights."""
    sent: list[TrainingLoss] = []
    monkeypatch.setattr(Control, "send", lambda _control, message: sent.append(message))
    monkeypatch.setattr("bftrainer.elastic.gradients.training_loss.REPORT_EVERY_S", 0.0)
    monkeypatch.setattr(loss_alarm, "reporter_for", LossReporter)
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 2.0)
    sgd = torch.optim.SGD(net.parameters(), lr=0.0)
    extra = {} if scaler is None else {"scaler": scaler}
    loader = DataLoader(TensorDataset(X[:, None]), batch_size=4)
    run = elastic.Run(net, sgd, loader, epochs=1, extra=extra, **options)
    for _ in run.epochs():
        for (x,) in run.batches():
            sgd.zero_grad()
            backward(run, net(x).squeeze(1), x.squeeze(1))
            run.step()
    return [(m.loss, m.weight) for m in sent if isinstance(m, TrainingLoss)]


# Of sample x the loss is 2 x, so that of updates 2.5, 6.5 and 10.5 times two.
MEANS = [(5.0, 4.0), (13.0, 4.0), (21.0, 4.0)]


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize(
    ("backward", "options", "told"),
    [
        (lambda _run, out, _x: out.mean().backward(), {}, MEANS),
        (lambda _run, out, _x: out.sum().backward(), {"loss": "sum"}, MEANS),
        (lambda _run, out, _x: out.backward(torch.ones_like(out)), {"loss": "sum"}, MEANS),
        (
            lambda _run, out, _x: out.mean().backward(),
            {"batch": elastic.GlobalBatch(max_per_worker=3)},  # shares of 2 and 2
            MEANS,
        ),
        (
            lambda _run, out, _x: [
                (out[:3].sum() / 4).backward(retain_graph=True), (out[3:].sum() / 4).backward()
            ],
            {},
            MEANS,
        ),
        (
            lambda _run, out, _x: torch.autograd.backward([out.mean(), out.mean()]),
            {},
            [(2 * loss, weight) for loss, weight in MEANS],
        ),
    ],
    ids=["mean", "sum", "elements", "parts", "two passes", "two losses"],
)  # fmt: skip
def test_a_script_s_loss_is_that_of_a_sample(
    monkeypatch: pytest.MonkeyPatch,
    backward: Callable[..., Any],
    options: dict[str, Any],
    told: list[tuple[float, float]],
) -> None:
    assert told_by(monkeypatch, backward, **options) == told


@pytest.mark.usefixtures("plain")
def test_a_mean_over_words_counts_by_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Odd samples are padding: two words in each share of two, but none in the last update."""

    def backward(run: Any, out: torch.Tensor, x: torch.Tensor) -> None:
        is_word = (x % 2 == 0) & (x < 9)
        run.weight(is_word.sum())
        (out[is_word].sum() / is_word.sum().clamp(min=1)).backward()

    assert told_by(monkeypatch, backward) == [(6.0, 2.0), (14.0, 2.0)]


@pytest.mark.usefixtures("plain")
def test_a_scaled_loss_is_told_as_the_script_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)

    def backward(_run: Any, out: torch.Tensor, _x: torch.Tensor) -> None:
        scaler.scale(out.mean()).backward()

    assert told_by(monkeypatch, backward, scaler) == MEANS


# ---- real workers ------------------------------------------------------------------------

SCRIPT = """\
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset
from bftrainer import elastic

torch.set_default_dtype(torch.float64)
x = torch.arange(1.0, 71.0)[:, None] / 70
net = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.constant_(net.weight, 3.0)
sgd = torch.optim.SGD(net.parameters(), lr=0.05)
order = lambda epoch: range(70)
run = elastic.Run(net, sgd, DataLoader(TensorDataset(x), batch_size=7), epochs=1, indices=order)
for _ in run.epochs():
    for (share,) in run.batches():
        sgd.zero_grad()
        losses = (net(share) - share) ** 2
        (losses.sum() if sys.argv[1] == "sum" else losses.mean()).backward()
        run.step()
"""


def losses_of_samples(*, is_sum: bool) -> list[list[float]]:
    """Train the same in a plain loop; return the losses of the samples of each update."""
    x = [i / 70 for i in range(1, 71)]
    weight, found = 3.0, []
    for step in range(10):
        batch = x[7 * step :][:7]
        found.append([(weight * one - one) ** 2 for one in batch])
        gradient = sum(2.0 * (weight * one - one) * one for one in batch)
        weight -= 0.05 * gradient / (1.0 if is_sum else 7.0)
    return found


@pytest.mark.parametrize("kind", ["mean", "sum"])
def test_workers_with_unlike_shares_tell_their_own(
    tmp_path: Path, template: TemplateProcess, kind: str
) -> None:
    """The first has 4 samples of each update, the second 3."""
    script = tmp_path / "unlike.py"
    script.write_text(SCRIPT)
    with Controller(tmp_path, template) as c:
        pairs = (("OMP_NUM_THREADS", "1"), (TELLS_LOSS, BY_AGENT))
        ids = c.begin(script, [kind], count=2, environment=pairs)
        c.finished(ids)
        told = [c.workers[worker_id].all(TrainingLoss) for worker_id in ids]
    losses = losses_of_samples(is_sum=kind == "sum")
    for reports, share in zip(told, (slice(0, 4), slice(4, 7)), strict=True):
        assert reports[-1].step == 10
        assert {one.weight for one in reports} == {float(share.stop - share.start)}
        for before, now in pairwise([0, *(one.step for one in reports)]):
            own = [loss for of_update in losses[before:now] for loss in of_update[share]]
            [report] = [one for one in reports if one.step == now]
            assert report.loss == pytest.approx(sum(own) / len(own), rel=1e-6), (before, now)
