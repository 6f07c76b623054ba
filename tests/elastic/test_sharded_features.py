"""What torch offers beside sharding, with sharded models: the same training as without it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.elastic import journal
from tests.elastic.controller import Controller, TemplateProcess
from tests.elastic.test_sharded import TRAIN, each_sample_once, furthest, params_of, train

LONG = pytest.mark.long


def norms_of(directory: Path) -> dict[int, float]:
    return {e["step"]: e["value"] for e in journal.entries(directory, "norm")}


def alone(directory: Path, template: TemplateProcess, **settings: Any) -> Path:
    return train(directory, template, per_node=1, sharded=False, **settings)


def resumed(
    directory: Path,
    template: TemplateProcess,
    first: dict[str, Any],
    second: dict[str, Any],
    *,
    per_node: int = 2,
) -> None:
    """Park a training of two workers per node and go on with other settings."""
    with Controller(directory, template) as c:
        ids = c.begin(TRAIN, [json.dumps({"delay_s": 0.01, **first})], count=2, per_node=2)
        c.trained_to(13)
        c.park(saver=ids[1])
        again = c.start_again(TRAIN, [json.dumps(second)], count=1, per_node=per_node)
        assert c.form(again, new=again)[0].step >= 13
        c.finished()


@LONG
@pytest.mark.parametrize("wrapped", ["compile", "compile checkpoint"])
def test_wrapped_blocks_have_the_checkpoints_of_plain_ones(
    tmp_path: Path, template: TemplateProcess, wrapped: str
) -> None:
    resumed(tmp_path, template, {"wrapped": wrapped}, {})
    each_sample_once(tmp_path, 2)
    assert furthest(alone(tmp_path / "plain", template), tmp_path) < 1e-3


@LONG
def test_plain_blocks_have_the_checkpoints_of_wrapped_ones(
    tmp_path: Path, template: TemplateProcess
) -> None:
    resumed(tmp_path, template, {}, {"wrapped": "compile checkpoint"})
    each_sample_once(tmp_path, 2)
    assert furthest(alone(tmp_path / "plain", template), tmp_path) < 1e-3


@LONG
def test_it_computes_in_half_precision(tmp_path: Path, template: TemplateProcess) -> None:
    settings: dict[str, Any] = {"precision": "bfloat16", "optimizer": "sgd", "epochs": 1}
    plain = alone(tmp_path / "plain", template, optimizer="sgd", epochs=1)
    for nodes in (1, 2):
        found = train(tmp_path / f"{nodes}", template, nodes=nodes, **settings)
        assert 0 < furthest(plain, found) < 2e-2
        each_sample_once(found, 1)


@LONG
def test_accelerate_goes_backward_and_clips(tmp_path: Path, template: TemplateProcess) -> None:
    pytest.importorskip("accelerate")
    plain = alone(tmp_path / "plain", template, epochs=1)
    found = train(tmp_path / "sharded", template, nodes=2, accelerate=True, epochs=1)
    assert furthest(plain, found) < 5e-4
    each_sample_once(found, 1)


@LONG
def test_losses_are_scaled(tmp_path: Path, template: TemplateProcess) -> None:
    settings: dict[str, Any] = {"scaler": 64.0, "epochs": 1}
    plain = alone(tmp_path / "plain", template, epochs=1)
    for nodes in (1, 2):
        found = train(tmp_path / f"{nodes}", template, nodes=nodes, **settings)
        assert furthest(plain, found) < 5e-4
        each_sample_once(found, 1)


@LONG
def test_a_step_that_overflows_is_skipped_by_all(tmp_path: Path, template: TemplateProcess) -> None:
    settings: dict[str, Any] = {"scaler": 2.0**127, "optimizer": "sgd", "epochs": 1}
    plain = alone(tmp_path / "plain", template, **settings)
    assert all(p.isfinite().all() for p in params_of(plain))
    infinite = [n for n, norm in norms_of(plain).items() if not math.isfinite(norm)]
    assert infinite, "some steps are skipped"
    found = train(tmp_path / "sharded", template, nodes=2, **settings)
    assert all(p.isfinite().all() for p in params_of(found))
    assert journal.disagreements_of_shards(found) == []
    assert len(norms_of(found)) == len(norms_of(plain))


@LONG
def test_gradients_have_the_same_norm_at_every_number_of_nodes(
    tmp_path: Path, template: TemplateProcess
) -> None:
    settings: dict[str, Any] = {"epochs": 1, "optimizer": "sgd"}
    wanted = norms_of(alone(tmp_path / "plain", template, **settings))
    assert any(norm > 0.5 for norm in wanted.values()), "some are clipped"
    for nodes, given in ((1, False), (2, True), (4, False), (4, True)):
        directory = tmp_path / f"{nodes}-{given}"
        found = train(directory, template, nodes=nodes, iterator=given, **settings)
        assert norms_of(found) == pytest.approx(wanted, rel=1e-3)


@pytest.mark.long
@pytest.mark.parametrize(("nodes", "width"), [pytest.param(2, 16, marks=LONG), (1, 3)])
def test_after_the_loops_all_workers_of_one_node_gather_states(
    tmp_path: Path, template: TemplateProcess, nodes: int, width: int
) -> None:
    """With four workers per node; at width 3 the last has no row of any parameter."""
    settings: dict[str, Any] = {"states": True, "width": width, "epochs": 1}
    plain = alone(tmp_path / "plain", template, **settings)
    found = train(tmp_path / "sharded", template, nodes=nodes, per_node=4, **settings)
    assert furthest(plain, found) < 5e-4
    wanted, got = journal.result(plain), journal.result(found)
    for kind in ("model", "moments", "own"):
        assert got[kind].keys() == wanted[kind].keys()
        for name, values in wanted[kind].items():
            a, b = torch.tensor(got[kind][name]), torch.tensor(values)
            torch.testing.assert_close(a, b, rtol=1e-2, atol=5e-4)


@LONG
def test_an_average_of_weights_is_sharded_like_the_model(
    tmp_path: Path, template: TemplateProcess
) -> None:
    settings = {"ema": "sharded", "delay_s": 0.01}
    with Controller(tmp_path, template) as c:
        one, two = (c.start(TRAIN, [json.dumps(settings)], per_node=2)[0] for _ in range(2))
        c.form([one], new=[one])
        c.trained_to(5)
        c.form([one, two], new=[two])
        c.trained_to(10)
        c.park(saver=two)
        again = c.start(TRAIN, [json.dumps(settings)], per_node=4)
        c.form(again, new=again)
        c.finished()
    plain = alone(tmp_path / "plain", template, ema="sharded")
    assert furthest(plain, tmp_path) < 1e-3
    assert_same_average(plain, tmp_path)


def assert_same_average(one: Path, other: Path) -> None:
    pairs = zip(journal.result(one)["ema"], journal.result(other)["ema"], strict=True)
    for a, b in pairs:
        torch.testing.assert_close(torch.tensor(a), torch.tensor(b), rtol=1e-2, atol=1e-3)


@LONG
@pytest.mark.parametrize("sharded", [False, True])
def test_an_average_of_weights_is_resumed_whole_and_sharded(
    tmp_path: Path, template: TemplateProcess, sharded: bool
) -> None:
    """``sharded``: at first; not any more in what goes on."""
    settings = {"ema": "sharded"}
    first, second = {**settings, "sharded": sharded}, {**settings, "sharded": not sharded}
    with Controller(tmp_path, template) as c:
        args = [json.dumps({"delay_s": 0.01, **first})]
        c.begin(TRAIN, args, per_node=2 if sharded else 1)
        c.trained_to(10)
        c.park()
        again = c.start_again(TRAIN, [json.dumps(second)], per_node=1 if sharded else 2)
        assert c.form(again, new=again)[0].step >= 10
        c.finished()
    assert_same_average(alone(tmp_path / "plain", template, **settings), tmp_path)


@LONG
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ema": "copied"}, "before fully_shard"),
        ({"scaler": 64.0, "extra": True}, "on the whole model"),
    ],
    ids=["copied", "scaled"],
)
def test_what_torch_cannot_do_is_said(
    tmp_path: Path, template: TemplateProcess, settings: dict[str, Any], words: str
) -> None:
    with Controller(tmp_path, template) as c:
        ids = c.start(TRAIN, [json.dumps(settings)], per_node=2)
        said = c.failed(ids[0])
    assert said.code == "BFT-1401"
    assert words in said.next_step


@LONG
def test_each_sample_counts_once_at_four_two_and_four_nodes(
    tmp_path: Path, template: TemplateProcess
) -> None:
    settings = json.dumps({"delay_s": 0.01, "epochs": 3})
    with Controller(tmp_path, template) as c:
        ids = c.start(TRAIN, [settings], count=4, per_node=2)
        late = c.start(TRAIN, [settings], count=2, per_node=2)
        c.form(ids, new=ids)
        c.trained_to(7)
        c.form(ids[2:])
        c.trained_to(17)
        c.form([*ids[2:], *late], new=late)
        c.finished()
    each_sample_once(tmp_path, 3)
    assert journal.disagreements_of_shards(tmp_path) == []
