"""``Run`` in a plain process, and what it refuses."""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bftrainer.batch import process
from bftrainer.elastic import ElasticError, GenerationInfo, Run
from bftrainer.elastic.gradients.buckets import GradientReducer
from bftrainer.elastic.gradients.gradient_bucket import layout
from bftrainer.elastic.loop.state_transfer import MemberStatus, choose_source
from bftrainer.elastic.process import control as control_module
from bftrainer.ground.protocol import Interrupted
from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess

TRAIN = SCRIPTS / "train_ids.py"


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test is a process of its own as far as the runtime can tell."""
    monkeypatch.setattr(control_module, "_current", [])


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def loader(samples: int = 20, batch: int = 6) -> DataLoader[Any]:
    data = TensorDataset(torch.randn(samples, 4), torch.randn(samples, 1))
    return DataLoader(data, batch_size=batch, shuffle=True)


def run_of(net: nn.Module, **more: Any) -> Run:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return Run(net, optimizer, loader(), **{"epochs": 1, **more})


def train(net: nn.Module, run: Run, optimizer: torch.optim.Optimizer) -> list[int]:
    epochs = []
    for epoch in run.epochs():
        epochs.append(epoch)
        for x, y in run.batches():
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            assert run.step()
    return epochs


def test_a_plain_run_is_one_worker_with_the_same_semantics() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    seen: list[tuple[str, GenerationInfo]] = []
    run = Run(net, optimizer, loader(), epochs=3)
    run.on_entered(lambda info: seen.append(("entered", info)))
    run.on_committed(lambda info: seen.append(("committed", info)))
    run.on_generation_end(lambda info: seen.append(("end", info)))
    assert train(net, run, optimizer) == [0, 1, 2]
    assert (run.rank, run.size, run.step_count, run.samples) == (0, 1, 12, 60)
    assert run.is_first
    assert not run.rehearsing
    assert [kind for kind, _ in seen] == ["entered", *["committed"] * 12, "end"]
    assert seen[-1][1].step == 12


def test_a_budget_of_samples_ends_the_run_within_an_epoch() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    run = Run(net, optimizer, loader(), samples=33)
    assert train(net, run, optimizer) == [0, 1]
    assert run.samples == 33


def test_a_script_run_plainly_trains_on_everything_once(tmp_path: Path) -> None:
    done = process.run(
        [sys.executable, str(TRAIN), json.dumps({"norm": True, "loader_workers": 1})],
        timeout_s=300,
        env={**os.environ, "BFT_TEST_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
    )
    assert done.is_ok, done.stderr
    assert done.stderr == ""
    counts = journal.committed_ids(tmp_path)
    assert all(sorted(c.elements()) == list(range(203)) for c in counts.values())
    assert sorted(counts) == [0, 1]
    assert journal.result(tmp_path)["samples"] == 406


def wrapped(net: nn.Module) -> Any:
    return nn.DataParallel(net)


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda n: run_of(wrapped(n)), "BFT-1401"),
        (lambda n: Run(n, torch.optim.SGD(model().parameters()), loader(), epochs=1), "BFT-1401"),
        (lambda n: run_of(n.requires_grad_(False)), "BFT-1401"),  # noqa: FBT003
        (lambda n: run_of(n, extra={"average": object()}), "BFT-1401"),
        (lambda n: run_of(n, scheduler=3), "BFT-1401"),
        (lambda n: run_of(n, epochs=None), "BFT-1403"),
        (lambda n: run_of(n, epochs=2, samples=2), "BFT-1403"),
        (lambda n: run_of(n, epochs=0), "BFT-1403"),
    ],
)
def test_what_does_not_fit_is_refused_at_once(make: Callable[[nn.Module], Run], code: str) -> None:
    with pytest.raises(ElasticError) as refused:
        make(model())
    assert refused.value.code == code
    assert refused.value.cause.endswith(".")
    assert refused.value.next_step.endswith(".")


def test_loops_and_steps_out_of_place_are_refused() -> None:
    run = run_of(model())
    with pytest.raises(ElasticError, match=r"outside run\.epochs") as refused:
        next(run.batches())
    assert refused.value.code == "BFT-1405"
    with pytest.raises(ElasticError, match="without a batch"):
        run.step()
    epochs = run.epochs()
    next(epochs)
    with pytest.raises(ElasticError, match="called twice"):
        next(run.epochs())
    batches = run.batches()
    next(batches)
    with pytest.raises(ElasticError, match=r"without run\.step") as refused:
        next(batches)
    assert refused.value.code == "BFT-1406"
    run.step()
    with pytest.raises(ElasticError, match="without a batch"):
        run.step()


def reducing(net: nn.Module, weight: float = 0.5) -> GradientReducer:
    reducer = GradientReducer(list(net.parameters()))
    reducer.begin(weight)
    return reducer


def test_two_backward_passes_in_one_step_are_refused() -> None:
    net = model()
    reducer = reducing(net)
    net(torch.ones(2, 4)).sum().backward()
    assert reducer.is_finished
    reducer.begin(0.5)
    out = net(torch.ones(2, 4)).sum()
    reducer._seen[0] = True
    with pytest.raises(ElasticError) as refused:
        out.backward()
    assert refused.value.code == "BFT-1404"


def test_a_backward_pass_after_the_gradients_were_averaged_is_refused() -> None:
    net = model()
    reducer = reducing(net)
    reducer.is_in_hand = True
    net(torch.ones(2, 4)).sum().backward()
    with pytest.raises(ElasticError) as refused:
        net(torch.ones(2, 4)).sum().backward()
    assert refused.value.code == "BFT-1404"


def test_sparse_gradients_are_refused() -> None:
    net = nn.Embedding(5, 2, sparse=True)
    reducing(net)
    with pytest.raises(ElasticError, match="sparse"):
        net(torch.tensor([1])).sum().backward()


def test_buckets_hold_weighted_gradients_last_parameters_first() -> None:
    net = model()
    reducer = reducing(net, weight=0.25)
    x = torch.randn(3, 4)
    other = copy.deepcopy(net)
    other(x).sum().backward()
    net(x).sum().backward()
    flat = reducer.buckets[0].flat
    expected = [p.grad for p in reversed(list(other.parameters())) if p.grad is not None]
    torch.testing.assert_close(
        flat[: -len(reducer.buckets[0].flags)], 0.25 * torch.cat([g.flatten() for g in expected])
    )
    assert reducer.buckets[0].flags.tolist() == [0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0]


def test_bucket_sizes_first_small_then_large() -> None:
    mega = [torch.empty(1 << 20) for _ in range(20)]  # 4 MB each
    assert [len(b) for b in layout(mega)] == [1, 7, 7, 5]
    mixed = [torch.empty(4), torch.empty(4, dtype=torch.float64), torch.empty(4)]
    assert layout(mixed) == [[2], [1], [0]]


def test_half_precision_gets_a_bucket_of_its_own_for_the_votes() -> None:
    reducer = reducing(model().to(torch.bfloat16))
    assert [b.flat.dtype for b in reducer.buckets] == [torch.bfloat16, torch.float32]


def test_parameters_frozen_later_leave_the_buckets() -> None:
    net = model()
    reducer = reducing(net)
    net[0].requires_grad_(False)  # noqa: FBT003
    reducer.begin(1.0)
    net(torch.ones(1, 4)).sum().backward()
    assert len(reducer.params) == 2
    assert reducer.is_finished


@pytest.mark.parametrize(
    ("steps", "source"),
    [([5, 5, 5], 0), ([4, 5, 5], 1), ([-1, 5, -1], 1), ([-1, -1], 0), ([5, 4], 0)],
)
def test_the_source_is_the_lowest_rank_that_is_furthest(steps: list[int], source: int) -> None:
    assert choose_source([MemberStatus(step=s, layout=1) for s in steps]) == source


# ---- what needs two real workers -----------------------------------------------------


@pytest.mark.parametrize("case", ["unused", "nosync", "clip", "nan", "restless", "frozen"])
def test_gradients_of_two_workers_are_those_of_one(
    tmp_path: Path, template: TemplateProcess, case: str
) -> None:
    results = []
    for size in (1, 2):
        directory = tmp_path / str(size)
        directory.mkdir()
        with Controller(directory, template) as c:
            c.begin(SCRIPTS / "gradients.py", [case], count=size)
            c.finished()
        results.append(journal.result(directory))
    alone, together = results
    assert alone["without_gradient"] == together["without_gradient"]
    for a, b in zip(alone["parameters"], together["parameters"], strict=True):
        torch.testing.assert_close(torch.tensor(a), torch.tensor(b), rtol=1e-4, atol=1e-6)


def test_workers_that_built_different_models_are_told(
    tmp_path: Path, template: TemplateProcess
) -> None:
    with Controller(tmp_path, template) as c:
        ids = [c.start(TRAIN, [json.dumps({"width": w})])[0] for w in (8, 9)]
        c.warm(ids)
        c.commit_only(ids)
        assert {c.failed(i).code for i in ids} == {"BFT-1408"}


@pytest.mark.parametrize(
    ("differ", "cause"),
    [
        ({"samples": [320, 640]}, "datasets of different length: 320 samples on {0}, 640 samples"),
        ({"batch": [16, 32]}, "loaders with different batches: 16 samples on {0}, 32 samples"),
        ({"shards": [2, 3]}, "loaders with different orders or shards: "),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else "",
)
def test_workers_that_read_different_data_are_told(
    tmp_path: Path, template: TemplateProcess, differ: dict[str, list[int]], cause: str
) -> None:
    [(name, values)] = differ.items()
    with Controller(tmp_path, template) as c:
        ids = [c.start(TRAIN, [json.dumps({name: value})])[0] for value in values]
        c.warm(ids)
        c.commit_only(ids)
        said = [c.failed(i) for i in ids]
        assert {f.code for f in said} == {"BFT-1421"}
        assert cause.format(*ids) in said[0].cause
        assert ids[1] in said[0].cause


def test_a_joiner_with_other_data_ends_and_the_others_train_on(
    tmp_path: Path, template: TemplateProcess
) -> None:
    with Controller(tmp_path, template) as c:
        (first,) = c.start(TRAIN, [json.dumps({"epochs": 1_000_000, "delay_s": 0.002})])
        (odd,) = c.start(TRAIN, [json.dumps({"epochs": 1_000_000, "samples": 640})])
        c.form([first], new=[first, odd])
        c.trained_to(3)
        c.commit_only([first, odd])
        assert c.failed(odd).code == "BFT-1421"
        c.until(lambda: c.workers[first].all(Interrupted), "the other one noticed")
        [entered] = c.form([first], abandon=True)
        assert entered.step >= 3
        c.trained_to(entered.step + 3)
        c.park()
    assert journal.disagreements(tmp_path, "hash") == []


def test_a_stop_ends_a_worker_without_a_trace(tmp_path: Path, template: TemplateProcess) -> None:
    with Controller(tmp_path, template) as c:
        ids = c.begin(TRAIN, [json.dumps({"epochs": 1_000_000})])
        first = c.until(c.saved, "its first checkpoint")[0]
        c.trained_to(first.step + 20)
        c.stop(ids[0])
        assert c.saved()[-1].step < journal.last_step(tmp_path)
