"""The network of dl2: inference, gradient, learner and file."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bftrainer.decide.policies.dl2_network import (
    Array,
    ModelError,
    Network,
    fresh,
    of_bytes,
    of_text,
    probabilities,
    to_bytes,
)
from bftrainer.lab.teach.learner import (
    Adam,
    Batch,
    LearningStep,
    batch_of,
    forward,
    improve,
    warm_up,
)
from bftrainer.model.plugins import content_of

FEATURES, ACTIONS, WINDOW, WIDTH = 5, 3, 6, 7


def network(seed: int = 1) -> Network:
    return fresh(FEATURES, ACTIONS, WINDOW, WIDTH, seed)


def steps(*numbers_of_trainers: int, seed: int = 0) -> list[LearningStep]:
    chance = np.random.default_rng(seed)
    found = []
    for n in numbers_of_trainers:
        mask = np.ones(ACTIONS * n + 1, bool)
        mask[: n // 2] = False
        wanted = np.zeros(len(mask))
        wanted[chance.choice(np.flatnonzero(mask))] = 1.0
        found.append(LearningStep(rows=chance.normal(size=(n, FEATURES)), mask=mask, wanted=wanted))
    return found


def loss(one: Network, batch: Batch) -> float:
    share = probabilities(forward(one, batch).scores, batch.mask)
    return float(-np.log((share * batch.wanted).sum(1)).sum())


def _with(one: Network, name: str, numbers: Array) -> Network:
    changed: dict[str, Any] = {name: numbers}
    return replace(one, **changed)


def test_a_batch_gives_what_each_step_gives() -> None:
    taken = steps(3, 6, 1)
    found = forward(network(), batch_of(taken)).scores
    for i, step in enumerate(taken):
        alone = network().scores(step.rows)
        assert found[i, : len(alone) - 1] == pytest.approx(alone[:-1])
        assert found[i, -1] == pytest.approx(alone[-1])


def test_the_order_of_trainers_changes_nothing() -> None:
    [step] = steps(4)
    turned = network().scores(step.rows[::-1])
    assert turned[:-1].reshape(4, -1)[::-1] == pytest.approx(
        network().scores(step.rows)[:-1].reshape(4, -1)
    )


def test_the_gradient_is_that_of_small_differences() -> None:
    batch, one, small = batch_of(steps(3, 6, 1, 2)), network(), 1e-6
    done = forward(one, batch)
    found = done.gradient(probabilities(done.scores, batch.mask) - batch.wanted)
    assert found.keys() == one.arrays().keys()
    for name, numbers in one.arrays().items():
        for at in np.ndindex(*(min(2, n) for n in numbers.shape)):
            more, less = numbers.copy(), numbers.copy()
            more[at] += small
            less[at] -= small
            slope = loss(_with(one, name, more), batch) - loss(_with(one, name, less), batch)
            assert found[name][at] == pytest.approx(slope / (2 * small), abs=1e-6)


def test_it_imitates_and_the_same_seed_gives_the_same_numbers() -> None:
    batch = batch_of(steps(3, 4, 5, 2, 6))
    one, other = (warm_up(network(), batch, seed=3, steps=1500) for _ in range(2))
    share = probabilities(forward(one, batch).scores, batch.mask)
    assert (share * batch.wanted).sum(1).min() > 0.9
    assert all((one.arrays()[k] == v).all() for k, v in other.arrays().items())


def test_what_went_better_than_expected_gets_likelier() -> None:
    batch = batch_of(steps(3, 4, 5, 2))
    gain, one = np.array([1.0, -1.0, 1.0, -1.0]), network()
    for turn in range(5):
        one = improve(one, batch, gain, Adam(rate=0.01), np.random.default_rng(turn), entropy=0.0)
    before, after = (
        (probabilities(forward(n, batch).scores, batch.mask) * batch.wanted).sum(1)
        for n in (network(), one)
    )
    assert ((after > before) == (gain > 0)).all()


def test_a_file_holds_the_network() -> None:
    again = of_text(content_of(to_bytes(network())))
    assert again.window == WINDOW
    assert all((again.arrays()[k] == v).all() for k, v in network().arrays().items())


def _stored(**changes: object) -> bytes:
    buffer = io.BytesIO()
    arrays = {**network().arrays(), "window": np.array(WINDOW), **changes}
    np.savez(buffer, **{k: v for k, v in arrays.items() if v is not None})  # type: ignore[arg-type]
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage",
        _stored()[:-100],
        _stored(window=None),
        _stored(window=np.array(0)),
        _stored(more=np.zeros(3)),
        _stored(inner=None),
        _stored(inner=np.zeros((2, 2))),
        _stored(inner=np.full((WIDTH, WIDTH), np.nan)),
        _stored(row_in=np.zeros(3)),
        _stored(out=np.array(["text"])),
        _stored(void=np.array([{}], dtype=object)),
        b"x" * 200_000,
    ],
)
def test_what_is_not_a_network_is_refused(content: bytes) -> None:
    with pytest.raises(ModelError):
        of_bytes(content)


def test_text_that_is_no_base64_is_refused() -> None:
    with pytest.raises(ModelError, match="base64"):
        of_text("base64:?")
