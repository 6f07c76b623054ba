"""Groups of parameters that a script adds, takes away or freezes while it trains."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bftrainer.elastic import ElasticError, Run
from bftrainer.elastic.checkpoints import checkpoint
from bftrainer.elastic.script.models import one_optimizer, parts_of
from bftrainer.elastic.state.state import Counters, State
from bftrainer.ground import fence
from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess

pytestmark = pytest.mark.usefixtures("plain")

THAWING = SCRIPTS / "thawing.py"
X = torch.randn(16, 4, generator=torch.Generator().manual_seed(5))


def state_of(count: int = 1) -> State:
    """Return the state of a script whose optimizers do not yet have all layers."""
    torch.manual_seed(2)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    first, second = ({"params": layer.parameters()} for layer in list(model)[:2])
    groups: list[dict[str, Any]] = [first, {**second, "lr": 0.02}]
    parts: list[Any] = [torch.optim.AdamW(groups, lr=0.01)]
    if count > 1:
        parts.append(torch.optim.SGD(model[3].parameters(), lr=0.1, momentum=0.9))
    return State(model, one_optimizer(parts), None, {})


def layer(state: State, number: int) -> nn.Module:
    return list(state.model.children())[number]


def first_of(state: State) -> torch.optim.Optimizer:
    first: torch.optim.Optimizer = parts_of(state.optimizer)[0]
    return first


def add(state: State) -> None:
    group = {"params": list(layer(state, 2).parameters()), "lr": 0.03, "weight_decay": 0.0}
    first_of(state).add_param_group(group)


def remove(state: State) -> None:
    del first_of(state).param_groups[0]


def move(state: State) -> None:
    weight, _ = first_of(state).param_groups[0]["params"]
    first_of(state).param_groups[0]["params"].remove(weight)
    first_of(state).add_param_group({"params": [weight], "lr": 0.001})


def freeze(state: State) -> None:
    layer(state, 1).requires_grad_(requires_grad=False)


def exchange(state: State) -> None:
    remove(state)
    add(state)


def come_back(state: State) -> None:
    """After ``remove``."""
    first_of(state).add_param_group({"params": list(layer(state, 0).parameters()), "lr": 0.04})


def steps(state: State, count: int = 3) -> None:
    for _ in range(count):
        for p in state.parameters():
            p.grad = None
        state.model(X).square().mean().backward()
        state.optimizer.step()


def copied(state: State, directory: Path, count: int) -> State:
    """Return what a worker has that starts anew, from a file."""
    structure, rest = state.encode_rest(Counters(seed=1))
    path = fence.path_for(directory, 4, 1)
    checkpoint.write(path, {"structure": structure}, [*state.model_tensors(), *rest])
    header, tensors = checkpoint.read(path)
    other = state_of(count)
    own = other.model_tensors()
    with torch.no_grad():
        for target, value in zip(own, tensors[: len(own)], strict=True):
            target.copy_(value)
    other.decode_rest(header["structure"], tensors[len(own) :])
    return other


def contents(state: State) -> Any:
    """Return all that the next updates depend on, with parameters as numbers."""
    numbers = {p: i for i, p in enumerate(state.parameters())}
    parts = parts_of(state.optimizer)
    return copy.deepcopy(
        (
            [t.tolist() for t in state.model_tensors()],
            [p.requires_grad for p in state.parameters()],
            [
                [{**g, "params": [numbers[p] for p in g["params"]]} for g in part.param_groups]
                for part in parts
            ],
            [
                sorted(
                    (numbers[p], [(k, torch.as_tensor(v).tolist()) for k, v in of.items()])
                    for p, of in part.state.items()
                )
                for part in parts
            ],
        )
    )


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("change", [add, remove, move, freeze, exchange])
def test_one_who_starts_anew_goes_on_with_the_groups_that_there_are(
    tmp_path: Path, change: Callable[[State], None], count: int
) -> None:
    state = state_of(count)
    steps(state)
    change(state)
    steps(state)
    other = copied(state, tmp_path, count)
    assert contents(other) == contents(state)
    for one in (state, other):
        steps(one)
    assert contents(other) == contents(state)


def test_what_is_kept_of_parameters_that_were_taken_away_counts_when_they_come_back(
    tmp_path: Path,
) -> None:
    state = state_of()
    steps(state)
    remove(state)
    steps(state)
    other = copied(state, tmp_path, 1)
    assert len(other.optimizer.state) == 4
    for one in (state, other):
        come_back(one)
        steps(one)
    assert contents(other) == contents(state)


def test_one_who_has_a_group_too_many_loses_it(tmp_path: Path) -> None:
    """Its script began with an epoch that the others have not reached."""
    state, ahead = state_of(), state_of()
    steps(state)
    add(ahead)
    structure, rest = state.encode_rest(Counters(seed=1))
    ahead.decode_rest(structure, rest)
    assert len(ahead.optimizer.param_groups) == 2
    add(ahead)
    assert len(ahead.optimizer.param_groups) == 3


def test_groups_added_in_vain_are_undone() -> None:
    state = state_of()
    steps(state)
    before, light = contents(state), state.snapshot_light()
    add(state)
    freeze(state)
    state.restore_light(light)
    assert contents(state) == before


def without(structure: Any, *names: str) -> Any:
    return {"d": [[k, v] for k, v in structure["d"] if k not in names]}


def test_a_state_of_an_earlier_release_loads_as_it_did() -> None:
    state, other = state_of(), state_of()
    steps(state)
    structure, rest = state.encode_rest(Counters(seed=1))
    other.decode_rest(without(structure, "grouping", "apart"), rest)
    assert contents(other)[2:] == contents(state)[2:]
    add(state)
    structure, rest = state.encode_rest(Counters(seed=1))
    with pytest.raises(ElasticError, match="different number of parameter groups") as refused:
        other.decode_rest(without(structure, "grouping", "apart"), rest)
    assert refused.value.code == "BFT-1408"


# ---- what cannot be restored -----------------------------------------------------------

Change = Callable[[nn.Sequential, torch.optim.Optimizer], object]


def run_with(change: Change, *, at: int = 3) -> int:
    """Train alone; at that step ``change``. Return the steps."""
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(40, 4), torch.randn(40, 1))
    run = Run(net, optimizer, DataLoader(data, batch_size=5), epochs=1)
    for _ in run.epochs():
        for number, (x, y) in enumerate(run.batches(), 1):
            if number == at:
                change(net, optimizer)
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            try:
                run.step()
            except ElasticError:
                assert number == at
                raise
    return run.step_count


def exchange_head(net: nn.Sequential, _optimizer: Any) -> None:
    net[3] = nn.Linear(4, 1)


def exchange_weight(net: nn.Sequential, _optimizer: Any) -> None:
    net[0].weight = nn.Parameter(torch.zeros(4, 4))


def append(net: nn.Sequential, _optimizer: Any) -> None:
    net.append(nn.Linear(1, 1))


def cut(net: nn.Sequential, _optimizer: Any) -> None:
    net[0].register_parameter("bias", None)


def grow_buffer(net: nn.Sequential, _optimizer: Any) -> None:
    net[2].register_buffer("seen", torch.zeros(3))


def resize_buffer(net: nn.Sequential, _optimizer: Any) -> None:
    net[1].num_batches_tracked = torch.zeros(2, dtype=torch.long)


def add_foreign(_net: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (exchange_head, "its parameter '3.weight' is another one"),
        (exchange_weight, "its parameter '0.weight' is another one"),
        (append, "its parameter '4.weight' is new"),
        (cut, "its parameter '0.bias' is gone"),
        (grow_buffer, "its buffer '2.seen' is new"),
        (resize_buffer, r"its buffer '1.num_batches_tracked' has shape \(2,\), int64 and had"),
        (add_foreign, "holds parameters that are not in the model"),
    ],
)
def test_what_no_state_can_hold_is_an_error_at_the_step_where_it_appears(
    change: Change, cause: str
) -> None:
    with pytest.raises(ElasticError, match=cause) as refused:
        run_with(change)
    assert refused.value.code == "BFT-1401"
    assert "before Run" in refused.value.next_step


def freeze_first(net: nn.Sequential, _optimizer: Any) -> None:
    net[0].requires_grad_(requires_grad=False)


def fill_buffer(net: nn.Sequential, _optimizer: Any) -> None:
    net[1].running_mean = torch.ones(4)


def exchange_activation(net: nn.Sequential, _optimizer: Any) -> None:
    net[2] = nn.GELU()


def reorder(_net: Any, optimizer: torch.optim.Optimizer) -> None:
    first = optimizer.param_groups[0]["params"].pop(0)
    optimizer.add_param_group({"params": [first], "lr": 0.01})


@pytest.mark.parametrize("change", [freeze_first, fill_buffer, exchange_activation, reorder])
def test_what_the_state_holds_is_none(change: Change) -> None:
    assert run_with(change) == 8


kept: list[Any] = []


def replace_optimizer(net: nn.Sequential, _optimizer: Any) -> None:
    kept[:] = [torch.optim.Adam(net.parameters())]


def test_another_optimizer_in_the_place_of_the_registered_one_is_told() -> None:
    def before_a_batch(run: Run, net: nn.Sequential) -> None:
        if run.step_count == 3:
            replace_optimizer(net, None)

    with pytest.raises(ElasticError, match="built another Adam") as refused:
        train_epochs(before_a_batch)
    assert refused.value.code == "BFT-1422"
    kept.clear()


def test_one_that_is_built_anew_in_every_batch_is_the_scripts_own() -> None:
    def look_ahead(_run: Run, net: nn.Sequential) -> None:
        replace_optimizer(net, None)

    train_epochs(look_ahead, is_inside=True)
    kept.clear()


def train_epochs(do: Callable[[Run, nn.Sequential], None], *, is_inside: bool = False) -> None:
    net = nn.Sequential(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(15, 4), torch.randn(15, 1))
    run = Run(net, optimizer, DataLoader(data, batch_size=5), epochs=3)
    for _ in run.epochs():
        if not is_inside:
            do(run, net)
        for x, y in run.batches():
            if is_inside:
                do(run, net)
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            run.step()


# ---- with workers ----------------------------------------------------------------------


def thawed(
    directory: Path, template: TemplateProcess, epochs: int | None = None, delay_s: float = 0.0
) -> dict[str, Any]:
    """Return the result of one worker that nobody disturbs; ``epochs``: as of the submission."""
    directory.mkdir()
    with Controller(directory, template) as c:
        c.begin(THAWING, [json.dumps({"delay_s": delay_s})], epochs=epochs)
        c.finished()
    return journal.result(directory)


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    pairs = zip(one.pop("parameters"), other.pop("parameters"), strict=True)
    return one == other and all(a == pytest.approx(b, abs=1e-5) for a, b in pairs)


@pytest.mark.long
def test_groups_come_along_over_joins_and_restarts(
    tmp_path: Path, template: TemplateProcess
) -> None:
    expected = thawed(tmp_path / "alone", template, epochs=12)
    directory = tmp_path / "moved"
    directory.mkdir()
    arguments = [json.dumps({"delay_s": 0.1, "epochs": 12})]
    hold = directory / "hold"  # while it is there, nobody trains: a joiner may take its time
    with Controller(directory, template) as c:
        ids = c.begin(THAWING, arguments)
        for step in (18, 27, 32):  # of 5 in an epoch: a group more, the neck frozen, a group fewer
            c.trained_to(step)
            hold.touch()
            joiners = c.start(THAWING, arguments)
            c.warm(joiners)
            hold.unlink()
            c.form([*ids, *joiners], new=joiners)
            c.trained_to(step + 1)
            c.park()
            ids = c.begin(THAWING, arguments)
        c.finished()
    assert same(journal.result(directory), expected)


@pytest.mark.parametrize("epochs", [3, 5, 6])
@pytest.mark.long
def test_what_is_done_at_the_beginning_of_an_epoch_is_done_where_a_complete_run_goes_on(
    tmp_path: Path, template: TemplateProcess, epochs: int
) -> None:
    expected = thawed(tmp_path / "alone", template)
    directory = tmp_path / "in_two"
    thawed(directory, template, epochs=epochs)
    with Controller(directory, template) as c:
        c.begin(THAWING, [json.dumps({"delay_s": 0.0})], count=2)
        c.finished()
    assert same(journal.result(directory), expected)


@pytest.mark.long
def test_a_joiner_of_a_run_that_goes_on_does_not_do_it_again(
    tmp_path: Path, template: TemplateProcess
) -> None:
    expected = thawed(tmp_path / "alone", template)
    directory = tmp_path / "joined"
    thawed(directory, template, epochs=3, delay_s=0.1)
    arguments = [json.dumps({"delay_s": 0.1})]
    with Controller(directory, template) as c:
        # Its newest checkpoint stays that of the complete run: the joiner finds it, too.
        ids = c.begin(THAWING, arguments, checkpoint_interval_s=3600.0)
        joiners = c.start(THAWING, arguments, checkpoint_interval_s=3600.0)
        c.trained_to(17)
        c.form([*ids, *joiners], new=joiners)
        c.finished()
    assert same(journal.result(directory), expected)


def test_a_layer_put_in_later_ends_the_trainer_at_that_step(
    tmp_path: Path, template: TemplateProcess
) -> None:
    with Controller(tmp_path, template) as c:
        ids = c.start(THAWING, [json.dumps({"replace_at": 1})])
        c.warm(ids)
        c.commit_only(ids)
        failed = c.failed(ids[0])
    assert failed.code == "BFT-1401"
    assert "'4.weight' is another one" in failed.cause
    assert journal.last_step(tmp_path) == 5
