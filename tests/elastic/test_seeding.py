"""Random streams of a worker before its script begins, and of Horovod's members."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from bftrainer.elastic.state.state import part_streams
from bftrainer.elastic.worker import seed_alike


@pytest.fixture(autouse=True)
def _streams_of_this_process() -> Iterator[None]:
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 - the stream in question
    with torch.random.fork_rng():
        yield
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002 - likewise


def _drawn() -> tuple[float, float, float]:
    return torch.rand(1).item(), random.random(), np.random.random()  # noqa: NPY002, S311 - likewise


def test_workers_draw_the_same_from_each_stream_and_other_seeds_draw_others() -> None:
    seed_alike(5)
    first = _drawn()
    seed_alike(5)
    assert _drawn() == first
    seed_alike(0)
    assert all(a != b for a, b in zip(_drawn(), first, strict=True))


def test_members_draw_apart_unless_the_script_has_seeded_torch() -> None:
    drawn = []
    for rank in range(3):
        seed_alike(0)
        part_streams(0, rank)
        drawn.append(torch.rand(1).item())
    assert len(set(drawn)) == 3
    torch.manual_seed(0)
    expected = torch.rand(1).item()
    for rank in range(3):
        torch.manual_seed(0)
        part_streams(0, rank)
        assert torch.rand(1).item() == expected
