"""What a script declares about batch and learning rate, and what comes of it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from bftrainer.elastic import (
    ElasticError,
    GlobalBatch,
    LogicalWorkers,
    PerWorkerBatch,
    Terms,
)
from bftrainer.elastic.gradients.rates import Rates, Updater
from bftrainer.elastic.script.batch import Cutting, DecidedBatch, cutting_of, in_words
from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess

TRAIN = SCRIPTS / "train_ids.py"

cuttings = st.one_of(
    st.builds(
        lambda least, most: Cutting(rule=GlobalBatch(max_per_worker=most), least=least),
        st.integers(1, 2),
        st.none() | st.integers(3, 9),
    ),
    st.builds(Cutting, logical=st.integers(1, 12), least=st.integers(1, 2)),
    st.builds(Cutting, rule=st.just(PerWorkerBatch())),
)


@given(cutting=cuttings, batch=st.integers(1, 120), size=st.integers(1, 9))
def test_the_pieces_of_all_workers_are_the_batch(cutting: Cutting, batch: int, size: int) -> None:
    cut = [cutting.pieces(batch, size, rank) for rank in range(size)]
    pieces = [piece for own in cut for piece in own]
    assert [i for p in pieces for i in range(p.start, p.stop)] == list(range(batch))
    assert min(p.samples for p in pieces) >= min(batch, cutting.least)
    assert [bool(own) for own in cut] == [r < cutting.active(batch, size) for r in range(size)]
    if (
        isinstance(cutting.rule, GlobalBatch)
        and cutting.rule.max_per_worker
        and not cutting.logical
    ):
        assert max(p.samples for p in pieces) <= cutting.rule.max_per_worker
        assert all(max(a.samples for a in own) - own[-1].samples <= 1 for own in cut if own)
    if cutting.logical:
        assert pieces == list(cutting.pieces(batch, 1, 0))
        assert all(a.logical < b.logical for a, b in pairwise(pieces))


def test_terms_are_said_in_words() -> None:
    whole = Cutting(rule=GlobalBatch(max_per_worker=4)).terms(32, 5, 1.0)
    assert whole == Terms(batch=32, lr_factor=1.0, shares=(7, 7, 6, 6, 6), passes=(2, 2, 2, 2, 2))
    assert in_words(whole, "3.1") == (
        "generation 3.1: 5 workers, global batch 32 = 2 x 7 + 3 x 6, in passes 5 x 2,"
        " learning rate x 1"
    )
    told = Cutting(rule=DecidedBatch(max_per_worker=16)).terms(32, 3, 2.0, 64)
    assert told == Terms(batch=64, scale=2.0, lr_factor=2.0, shares=(22, 21, 21), passes=(2, 2, 2))
    grown = Cutting(rule=PerWorkerBatch()).terms(32, 1, 0.5)
    assert in_words(grown, "1.1") == (
        "generation 1.1: 1 worker, global batch 32 = 32, learning rate x 0.5"
    )


@pytest.mark.parametrize(
    ("batch", "bitwise", "cause"),
    [
        (3, None, "batch is a int"),
        (None, 8, "bitwise is a int"),
        (PerWorkerBatch(rule="cubic"), None, "cubic"),  # type: ignore[arg-type]
        (PerWorkerBatch(base_workers=0), None, "base_workers=0"),
        (PerWorkerBatch(), LogicalWorkers(2), "same global batch"),
        (GlobalBatch(max_per_worker=2), None, "too small"),
        (None, LogicalWorkers(9), "9 logical workers"),
        (None, LogicalWorkers(0), "0 logical workers"),
        (GlobalBatch(max_per_worker=3), LogicalWorkers(4), "share of 4 samples"),
    ],
)
def test_what_cannot_be_is_refused(batch: Any, bitwise: Any, cause: str) -> None:
    with pytest.raises(ElasticError, match=cause) as refused:
        cutting_of(batch, bitwise, loader_batch=16, least=2)
    assert refused.value.code == "BFT-1403"
    assert refused.value.next_step


def test_a_submission_may_let_the_batch_be_decided() -> None:
    def asked(batch: Any = None, bitwise: Any = None, most: int = 8) -> Any:
        decided = DecidedBatch(max_per_worker=most, rule="sqrt")
        return cutting_of(batch, bitwise, loader_batch=16, least=2, decided=decided).rule

    assert asked() == DecidedBatch(max_per_worker=8, rule="sqrt")
    assert asked(GlobalBatch(max_per_worker=5)).max_per_worker == 5
    for wrong in ({"batch": PerWorkerBatch()}, {"bitwise": LogicalWorkers(2)}, {"most": 2}):
        with pytest.raises(ElasticError, match="--batch") as refused:
            asked(**wrong)
        assert refused.value.code == "BFT-1403"


# ---- the learning rate ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "size", "factor"),
    [
        (GlobalBatch(), 5, 1.0),
        (PerWorkerBatch(rule="linear"), 4, 4.0),
        (PerWorkerBatch(rule="sqrt"), 4, 2.0),
        (PerWorkerBatch(rule="linear", base_workers=4), 2, 0.5),
        (PerWorkerBatch(rule="adascale"), 4, 1.0),  # nothing is known yet
        (DecidedBatch(max_per_worker=64, rule="linear"), 4, 1.5),
        (DecidedBatch(max_per_worker=64, rule="none"), 4, 1.0),
        (DecidedBatch(max_per_worker=64), 4, 1.0),
    ],
)
def test_rules_without_measurements(rule: Any, size: int, factor: float) -> None:
    assert Rates(Cutting(rule=rule), 32).terms(size, told=48).lr_factor == factor


@pytest.mark.parametrize("noise_share", [0.0, 0.5, 0.99])
def test_the_gain_follows_the_noise_of_the_gradients(noise_share: float) -> None:
    """Gradients of known mean and variance: the gain is the one of the definition."""
    size, width = 8, 4000
    rates = Rates(Cutting(rule=DecidedBatch(max_per_worker=8)), 1)
    generator = torch.Generator().manual_seed(1)
    true = torch.full((width,), ((1 - noise_share) / width) ** 0.5, dtype=torch.float64)
    for _ in range(40):
        noise = torch.randn(size, width, generator=generator, dtype=torch.float64)
        gradients = true + noise * (noise_share / width) ** 0.5
        of_all = float((gradients**2).sum())
        rates.observe(size, of_all, float((gradients.mean(0) ** 2).sum()))
    if noise_share:
        expected = noise_share / (1 - noise_share)
        assert rates.noise_scale == pytest.approx(expected, rel=0.25 if expected > 9 else 0.05)
    gain = 1 / (noise_share / size + (1 - noise_share))  # noise + signal = 1
    assert rates.factor(size) == pytest.approx(gain, rel=0.03)
    assert 1.0 <= rates.factor(size) <= size
    again = Rates(Cutting(rule=DecidedBatch(max_per_worker=8)), 1)
    again.load_state_dict(rates.state_dict())
    assert again.factor(5) == rates.factor(5)
    seen = rates.state_dict()
    rates.observe(size, float("inf"), 1.0)
    assert rates.state_dict() == seen


def test_an_update_leaves_the_schedulers_rate_alone() -> None:
    net = nn.Linear(3, 1)
    rate = torch.tensor(0.1)
    groups: list[dict[str, Any]] = [{"params": [net.weight]}, {"params": [net.bias], "lr": rate}]
    optimizer = torch.optim.SGD(groups, 0.2)
    before = net.weight.detach().clone()
    net.weight.grad, net.bias.grad = torch.ones(1, 3), torch.ones(1)
    Updater(optimizer, {}).apply(3.0)
    torch.testing.assert_close(net.weight.detach(), before - 0.6)
    assert optimizer.param_groups[0]["lr"] == 0.2
    assert optimizer.param_groups[1]["lr"] is rate
    assert float(rate) == pytest.approx(0.1)


# ---- real workers ---------------------------------------------------------------------


def train(
    directory: Path, template: TemplateProcess, sizes: list[int], **settings: Any
) -> tuple[journal.Entry, Controller]:
    """Run at these sizes one after the other, four steps each, at the last one to the end."""
    directory.mkdir()
    holds = [[4 * number, number + 1] for number in range(1, len(sizes))]
    text = json.dumps({"optimizer": "sgd", "samples": 90, "holds": holds, **settings})
    with Controller(directory, template) as c:
        ids = c.start(TRAIN, [text], count=max(sizes))
        c.form(ids[: sizes[0]], new=ids)
        for size, (step, _) in zip(sizes[1:], holds, strict=True):
            c.trained_to(step - 1)
            c.form(ids[:size])
        c.finished()
    return journal.result(directory), c


def test_a_fixed_batch_per_worker_grows_the_update_and_its_rate(
    tmp_path: Path, template: TemplateProcess
) -> None:
    grown, c = train(tmp_path / "a", template, [2], batch=9, rule="linear", epochs=2)
    alone, _ = train(tmp_path / "b", template, [1], batch=18, lr=0.1, epochs=2)
    for exact in ("samples", "steps", "updates"):
        assert grown[exact] == alone[exact], exact
    # The same updates; what the scheduler set, its script reads as before.
    assert grown["lr"] == pytest.approx(alone["lr"] / 2, rel=1e-12)
    for ours, theirs in zip(grown["parameters"], alone["parameters"], strict=True):
        torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-4, atol=1e-6)
    entered = journal.entries(tmp_path / "a", "entered")
    assert {(e["batch"], e["lr_factor"], tuple(e["shares"])) for e in entered} == {
        (18, 2.0, (9, 9))
    }
    log = c.workers[c.members[0]].log.read_text()
    assert "2 workers, global batch 18 = 2 x 9, learning rate x 2" in log
    assert "bftrainer:" not in c.workers[c.members[1]].log.read_text()


def test_a_fixed_batch_per_worker_ends_after_the_same_samples(
    tmp_path: Path, template: TemplateProcess
) -> None:
    result, c = train(
        tmp_path / "a", template, [1, 3, 2], batch=4, rule="adascale", epochs=4, dropout=0.1
    )
    assert result["samples"] == 4 * 90
    counts = journal.committed_ids(tmp_path / "a")
    assert all(sorted(n.elements()) == list(range(90)) for n in counts.values())
    assert journal.disagreements(tmp_path / "a", "hash", "lr", "average") == []
    entered = journal.entries(tmp_path / "a", "entered")
    factors = {e["size"]: e["lr_factor"] for e in entered}
    assert factors[1] == factors[3] == 1.0  # nothing measured before there were several
    assert 1.0 < factors[2] < 2.0
    assert len({(e["generation"], e["lr_factor"]) for e in entered}) == 3
    assert "learning rate x 1." in c.workers[c.members[0]].log.read_text()


ACCUMULATED: list[dict[str, Any]] = [
    {"max_per_worker": 3},
    {"max_per_worker": 3, "guarded": True},
    {"max_per_worker": 3, "norm": True},
    {"passes": 3},
]


@pytest.mark.parametrize(
    "case",
    [
        ACCUMULATED[1],
        *(
            pytest.param(case, marks=pytest.mark.long)
            for case in (ACCUMULATED[0], *ACCUMULATED[2:])
        ),
    ],
    ids="-".join,
)
def test_accumulated_gradients_are_those_of_the_whole_batch(
    tmp_path: Path, template: TemplateProcess, case: dict[str, Any]
) -> None:
    parted, c = train(tmp_path / "parted", template, [1, 3, 2], batch=15, epochs=4, **case)
    for exact in ("samples", "steps", "updates"):
        assert parted[exact] == {"samples": 360, "steps": 24, "updates": 24}[exact]
    counts = journal.committed_ids(tmp_path / "parted")
    assert all(sorted(n.elements()) == list(range(90)) for n in counts.values())
    assert journal.disagreements(tmp_path / "parted", "hash", "lr", "average") == []
    if "max_per_worker" in case:
        tries = journal.entries(tmp_path / "parted", "try")
        assert max(len(e["ids"]) for e in tries) == 3
        assert "in passes" in c.workers[c.members[0]].log.read_text()
    if "norm" in case:
        return  # normalises over each piece: another function of the batch
    whole, _ = train(tmp_path / "whole", template, [1], batch=15, epochs=4)
    assert parted["lr"] == pytest.approx(whole["lr"], rel=1e-12)
    for close in ("parameters", "average"):
        for ours, theirs in zip(parted[close], whole[close], strict=True):
            torch.testing.assert_close(
                torch.tensor(ours), torch.tensor(theirs), rtol=1e-3, atol=1e-5
            )


@pytest.mark.parametrize(
    "more",
    [{}, pytest.param({"max_per_worker": 3}, marks=pytest.mark.long), {"logical": 4}],
    ids=str,
)
def test_mixed_precision_skips_a_step_everywhere_or_nowhere(
    tmp_path: Path, template: TemplateProcess, more: dict[str, Any]
) -> None:
    settings = {"amp": True, "overflow_at": 9, "batch": 15, "epochs": 4, **more}
    train(tmp_path / "a", template, [2, 3, 1], **settings)
    by_step: dict[int, set[tuple[str, float]]] = {}
    for e in journal.entries(tmp_path / "a", "commit"):
        by_step.setdefault(e["step"], set()).add((e["hash"], e["scale"]))
    assert sorted(by_step) == list(range(1, 25))
    assert {len(states) for states in by_step.values()} == {1}
    hashes = {step: next(iter(states))[0] for step, states in by_step.items()}
    scales = {step: next(iter(states))[1] for step, states in by_step.items()}
    assert hashes[9] == hashes[8]
    assert hashes[10] != hashes[9]
    assert len(set(hashes.values())) == 23
    assert scales[9] == scales[8] / 2
    assert scales[24] > scales[9]  # grows again, through the rescales
    assert journal.disagreements(tmp_path / "a", "hash", "scale", "average", "updates") == []
