"""What a trainer may ask of its nodes: sbatch's words, read as sbatch means them."""

from __future__ import annotations

import re

import pytest

from bftrainer.model.generic_resources import gpus_of
from bftrainer.model.node_request import NodeRequest, asked, gpus_of_type, request_of
from bftrainer.model.trainer import TrainerSpec
from tests.support.snapshots import node

A100 = node("n1", node_type="gpu:a100:4", gpus=4, features=("a100", "nvlink", "amd"))
V100 = node("n2", node_type="gpu:v100:2", gpus=2, features=("v100", "intel"))
MIXED = node("n3", node_type="gpu:a100:2,gpu:v100:2", gpus=4, features=("amd",))
CPU = node("n4", node_type="cpu", features=("amd",))
ALL = (A100, V100, MIXED, CPU)
SLICES = ("gpu:1g.10gb:4", "gpu:1g.10gb:5", "gpu:3g.40gb", "gpu:a100", "gpu:5", "gpu:6")


@pytest.mark.parametrize(
    ("gres", "constraint", "met_by"),
    [
        ("", "", "n1 n2 n3 n4"),
        ("none", "", "n1 n2 n3 n4"),
        ("gpu:0", "", "n1 n2 n3 n4"),
        ("gpu", "", "n1 n2 n3"),
        ("gpu:3", "", "n1 n3"),
        ("gpu:a100", "", "n1 n3"),
        ("gpu:a100:3", "", "n1"),
        ("gpu:a100:1,gpu:v100:2", "", "n3"),
        ("gpu:a100:5", "", ""),
        ("gpu:A100", "", ""),
        ("gpu:2080ti:1", "", ""),
        ("", "amd", "n1 n3 n4"),
        ("", "a100&nvlink", "n1"),
        ("", "a100|intel", "n1 n2"),
        ("", "amd&(nvlink|intel)", "n1"),
        ("", "h100", ""),
        ("gpu:2", "amd", "n1 n3"),
    ],
)
def test_a_request_is_met_by_nodes_that_have_all_of_it(
    gres: str, constraint: str, met_by: str
) -> None:
    request = request_of(gres, constraint)
    assert " ".join(one.name for one in ALL if request.is_met_by(one)) == met_by


@pytest.mark.parametrize(
    ("gres", "constraint", "why"),
    [
        ("shard:2", "", "'shard:2' is not gpu"),
        ("gpu:", "", "'gpu:' is not gpu"),
        ("gpu:a100:x", "", "'gpu:a100:x' is not gpu"),
        ("gpu:1,", "", "'' is not gpu"),
        ("gpu:1,gpu:a100:1", "", "both with and without a type"),
        ("", "a&", "not features joined by & and |"),
        ("", "!a", "not features joined by & and |"),
        ("", "a&b|c", "mixes & and | without parentheses"),
        ("", "[a|b]", "several nodes together"),
        ("", "a*2", "several nodes together"),
        ("", "a" * 2000, "not features joined by & and |"),
    ],
)
def test_what_no_single_node_can_be_asked_for_is_refused(
    gres: str, constraint: str, why: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        request_of(gres, constraint)


@pytest.mark.parametrize(
    ("gres", "n_workers", "met_by"),
    [("", 1, "n1 n2 n3 n4"), ("", 3, "n1 n3 n4"), ("", 5, "n4"), ("gpu:2", 2, "n1 n2 n3")],
)
def test_a_node_with_too_few_gpus_for_the_workers_is_none(
    gres: str, n_workers: int, met_by: str
) -> None:
    """Each worker gets one where the node has any (BFT-1417 otherwise)."""
    spec = TrainerSpec(name="t", user="bob", script="/s.py", gres=gres, workers_per_node=n_workers)
    assert " ".join(one.name for one in ALL if asked(spec).is_met_by(one)) == met_by


def test_slices_of_gpus_are_a_type_of_their_own() -> None:
    """MIG, as Slurm's gres.conf names them with AutoDetect=nvml."""
    total, node_type = gpus_of("gpu:1g.10gb:4(S:0),gpu:3g.40gb:1(S:1)")
    sliced = node("n5", node_type=node_type, gpus=total)
    assert (node_type, total) == ("gpu:1g.10gb:4,gpu:3g.40gb:1", 5)
    met = [gres for gres in SLICES if request_of(gres, "").is_met_by(sliced)]
    assert met == ["gpu:1g.10gb:4", "gpu:3g.40gb", "gpu:5"]
    assert not request_of("gpu:1g.10gb", "").is_met_by(A100)


def test_a_request_says_itself_and_counts_its_gpus() -> None:
    request = request_of("gpu:v100:2,gpu:a100", "amd&(nvlink|intel)")
    assert str(request) == "gpu:a100:1&gpu:v100:2&amd&(nvlink|intel)"
    assert (request.n_gpus, NodeRequest().n_gpus) == (3, 0)


def test_gpus_of_a_type_of_nodes() -> None:
    assert [gpus_of_type(one.node_type) for one in ALL] == [4, 2, 4, 0]
    assert [gpus_of_type(one.node_type, "v100") for one in ALL] == [0, 2, 2, 0]
    assert gpus_of_type("default") == 0


def test_gpus_with_and_without_a_type_stay_apart() -> None:
    """Slurm prints such nodes as ``gpu:a100:1(S:0),gpu:3(S:0)``; one may not ask for both."""
    total, node_type = gpus_of("gpu:a100:1(S:0),gpu:3(S:0),shard:16(S:0)")
    mixed = node("n5", node_type=node_type, gpus=total)
    assert (total, node_type) == (4, "gpu:a100:1,gpu:3")
    assert (gpus_of_type(node_type), gpus_of_type(node_type, "a100")) == (4, 1)
    asks = ("gpu:a100", "gpu:a100:2", "gpu:4", "gpu:v100")
    assert [gres for gres in asks if request_of(gres, "").is_met_by(mixed)] == ["gpu:a100", "gpu:4"]
