"""Workloads of trainers: the paper's, other people's files, and our own."""

from __future__ import annotations

import json
import os
import random
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bftrainer.batch.traces import TraceError
from bftrainer.lab import workloads
from bftrainer.lab.workloads import (
    NETWORKS,
    Submission,
    TrainerWorkload,
    by_name,
    diverse,
    hpo,
    read_workload,
    workload_names,
)
from milp.problem import Curve
from tests.support.json_schema import violations

DOCUMENT: dict[str, Any] = {
    "schema": "bftrainer/workload/1",
    "name": "two",
    "trainers": [
        {
            "submit_s": 110, "name": "b", "n_min": 2, "n_max": 4, "samples": 1e6,
            "curve": {"sizes": [1, 4], "values": [10, 35.5]},
            "rescale_up_s": 1, "rescale_down_s": 0.5, "weight": 2,
            "utility": {"sizes": [1], "values": [1]},
        },
        {
            "submit_s": 100, "name": "a", "network": "n", "n_min": 1, "n_max": 1, "samples": 5,
            "curve": {"sizes": [1], "values": [1]}, "rescale_up_s": 0, "rescale_down_s": 0,
        },
    ],
}  # fmt: skip


JOB = {
    "name": "J-a",
    "submit": 1,
    "n_min": 1,
    "n_max": 1,
    "samples": 1,
    "curve": 0,
    "t_up": 1,
    "t_down": 1,
}


def test_table_2_is_the_papers() -> None:
    assert len(NETWORKS) == 7
    assert NETWORKS["shufflenet"].curve.sizes == (1, 2, 4, 8, 16, 32, 64)
    assert NETWORKS["shufflenet"].curve.samples_per_s[0] == 2800
    assert NETWORKS["resnet18"].curve.samples_per_s[-1] == 262_700
    # Measured by the paper: AlexNet scales worst, DenseNet nearly ideally.
    rates = {slug: network.curve.samples_per_s for slug, network in NETWORKS.items()}
    efficiency = {slug: rates_of[-1] / rates_of[0] / 64 for slug, rates_of in rates.items()}
    assert min(efficiency, key=efficiency.__getitem__) == "alexnet"
    assert efficiency["densenet"] == pytest.approx(0.903, abs=0.001)


def test_hpo_is_identical_trials_from_the_first_instant() -> None:
    trials = by_name("hpo-shufflenet", n_trainers=3)
    assert [trial.name for trial in trials] == [f"shufflenet-{i:05d}" for i in range(3)]
    assert {trial.submit_s for trial in trials} == {0}
    assert {(t.rescale_up_s, t.rescale_down_s, t.samples) for t in trials} == {(18, 12, 130e6)}
    assert len(by_name("hpo-vgg-16")) == 1000
    assert hpo(NETWORKS["vgg-16"], n_trainers=2).name == "hpo-vgg-16"


def test_diverse_trainers_take_turns_and_come_as_a_poisson_process() -> None:
    workload = diverse(n_trainers=2000, seed=3)
    assert workload == diverse(n_trainers=2000, seed=3)
    assert workload != diverse(n_trainers=2000, seed=4)
    assert [s.network for s in workload][:8] == [*(n.name for n in NETWORKS.values()), "AlexNet"]
    gaps = np.diff([s.submit_s for s in workload])
    assert gaps.mean() == pytest.approx(36, rel=0.08)
    assert gaps.std() == pytest.approx(36, rel=0.12)
    up = np.array([s.rescale_up_s for s in workload])
    assert (up.min(), up.max(), up.mean()) == pytest.approx((17, 19, 18), abs=0.05)


def test_diverse_trainers_can_be_drawn_and_come_when_a_trace_says() -> None:
    workload = diverse(arrivals_s=[5.0, 1.0, 1.0], is_cyclic=False, seed=2)
    assert [s.submit_s for s in workload] == [1, 1, 5]
    many = diverse(n_trainers=700, mean_arrival_s=0, is_cyclic=False, seed=2)
    counts = [sum(s.network == n.name for s in many) for n in NETWORKS.values()]
    assert min(counts) > 60
    assert {s.submit_s for s in many} == {0}


def test_a_workload_nobody_knows_is_answered_with_those_there_are() -> None:
    with pytest.raises(TraceError, match="no workload called 'hpo-gpt'") as caught:
        by_name("hpo-gpt")
    assert caught.value.code == "BFT-4011"
    for name in workload_names():
        assert name in caught.value.next_step
        assert len(by_name(name, n_trainers=2)) == 2


def test_our_own_form_counts_from_the_first_submission(tmp_path: Path) -> None:
    path = tmp_path / "two.json"
    path.write_text(json.dumps(DOCUMENT))
    workload = read_workload(path)
    assert [(s.submit_s, s.name) for s in workload] == [(0, "a"), (10, "b")]
    assert workload.submissions[1].utility == Curve(sizes=(1,), samples_per_s=(1.0,))
    assert workload.submissions[1].weight == 2


def document_of(workload: TrainerWorkload) -> dict[str, Any]:
    """Return our form of a workload, without the fields that are empty."""
    rows = []
    for submission in workload.submissions:
        row = asdict(submission)
        for curve in filter(None, (row["curve"], row["utility"])):
            curve["values"] = curve.pop("samples_per_s")
        rows.append({field: value for field, value in row.items() if value not in (None, "", ())})
    return {"schema": "bftrainer/workload/1", "name": workload.name, "trainers": rows}


def test_our_form_is_read_and_follows_the_schema(tmp_path: Path) -> None:
    schema_path = Path(workloads.__file__).with_name("workload.schema.json")
    schema = json.loads(schema_path.read_text())
    plain = hpo(NETWORKS["densenet"], n_trainers=2)
    asking = tuple(replace(one, gres="gpu:a100:4", sizes=(1, 2)) for one in plain)
    typed = TrainerWorkload(name="typed", submissions=asking)
    for workload in (diverse(n_trainers=9), plain, typed):
        path = tmp_path / f"{workload.name}.json"
        path.write_text(json.dumps(document_of(workload)))
        assert read_workload(path) == workload
        assert violations(json.loads(path.read_text()), schema, schema) == []
    assert violations(DOCUMENT, schema, schema) == []


def _changed(**more: Any) -> dict[str, Any]:
    first = DOCUMENT["trainers"][0] | more
    return DOCUMENT | {"trainers": [first]}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "no JSON object"),
        ({}, "neither schema"),
        ({"schema": "bftrainer/workload/1"}, "trainers"),
        (DOCUMENT | {"trainers": [1]}, r"trainers\[0\] must be an object"),
        (_changed(samples="many"), r"trainers\[0\].samples must be a number"),
        (_changed(samples=0), r"trainers\[0\] samples is 0"),
        (_changed(n_min=2.5), "n_min must be a whole number"),
        (_changed(n_min=5), "n_min 5 and n_max 4"),
        (_changed(colour="red"), "colour is not a known field"),
        (_changed(curve={"sizes": [2, 2], "values": [1, 1]}), "sizes of a curve rise"),
        (_changed(curve={"sizes": [], "values": []}), "at least one"),
        (_changed(curve=None), "curve must be an object"),
        (_changed(gres="shard:1"), "'shard:1' is not gpu"),
        (_changed(name=""), "name is empty"),
        (DOCUMENT | {"trainers": DOCUMENT["trainers"][:1] * 2}, "two trainers have one name"),
        ({"nodes": [0, 1], "curves": [], "jobs": [JOB]}, "no curve 0"),
        ({"nodes": [0, 1], "curves": [], "jobs": [{"curve": 0}]}, r"jobs\[0\].n_max is missing"),
    ],
)
def test_a_malformed_workload_is_named_with_trainer_and_field(
    tmp_path: Path, document: object, said: str
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(document))
    with pytest.raises(TraceError, match=said) as caught:
        read_workload(path)
    assert caught.value.code == "BFT-4010"


def test_damage_gives_a_workload_or_a_trace_error(tmp_path: Path) -> None:
    content = json.dumps(DOCUMENT).encode()
    chance = random.Random(9)  # noqa: S311
    path = tmp_path / "damaged.json"
    refused = 0
    for _ in range(300):
        data = bytearray(content)
        at = chance.randrange(len(data))
        data[at : at + chance.choice([1, 3])] = chance.choice(
            [b"", b"9", b"-", b"null", b"1e999", b"\xff"]
        )
        path.write_bytes(bytes(data))
        try:
            read_workload(path)
        except TraceError:
            refused += 1
    assert 50 < refused < 300


def test_a_submission_nobody_could_run_is_refused() -> None:
    curve = Curve(sizes=(1,), samples_per_s=(1.0,))
    fine: dict[str, Any] = {"submit_s": 0, "name": "x", "n_min": 1, "n_max": 1, "samples": 1,
            "curve": curve, "rescale_up_s": 0, "rescale_down_s": 0}  # fmt: skip
    one = Submission(**fine)
    for wrong in ({"submit_s": -1}, {"rescale_up_s": float("nan")}, {"weight": 0}, {"n_min": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Submission(**(fine | wrong))
    with pytest.raises(ValueError, match="order"):
        TrainerWorkload(
            name="w", submissions=(Submission(**(fine | {"submit_s": 2, "name": "y"})), one)
        )


@pytest.fixture(scope="module")
def data() -> Path:
    folder = os.environ.get("BFTRAINER_DATA")
    if not folder:
        pytest.skip("BFTRAINER_DATA is not set: the paper's workloads are not here")
    return Path(folder)


def test_the_papers_trials_are_read(data: Path) -> None:
    workload = read_workload(data / "jobs-hps-shufflenet.json")
    assert len(workload) == 1000
    first = workload.submissions[0]
    assert first.curve.sizes == (1, 2, 4, 8, 16, 32, 64)
    assert first.curve.samples_per_s == pytest.approx(
        NETWORKS["shufflenet"].curve.samples_per_s, rel=0.02
    )
    assert first.utility is None
    assert (first.rescale_up_s, first.rescale_down_s, first.samples) == (18, 12, 130e6)
    assert first.submit_s == 0


def test_the_papers_diverse_trainers_are_read_with_both_objectives(data: Path) -> None:
    by_rate = read_workload(data / "jobs-ImageNet-imgps.json")
    by_efficiency = read_workload(data / "jobs-ImageNet-spdup.json")
    assert len(by_rate) == len(by_efficiency) == 1001
    assert by_rate.submissions[0].utility is None
    utility = by_efficiency.submissions[0].utility
    assert utility is not None
    assert utility.samples_per_s[0] == 1
    assert utility.samples_per_s[-1] == pytest.approx(28.4, abs=0.05)
    assert {s.network for s in by_rate} == {
        "AlexNet", "vgg16", "resnet18", "DenseNet", "mnasnet1", "shufflenet", "mobilenet",
    }  # fmt: skip
