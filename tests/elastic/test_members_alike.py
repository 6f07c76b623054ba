"""Members that are not alike: found before the update that would set them apart, and by name."""

from __future__ import annotations

import collections
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from bftrainer import elastic
from bftrainer.elastic import ElasticError
from bftrainer.elastic.gradients import comparison, light
from bftrainer.ground import files
from bftrainer.ground.protocol import Failed, Finished, Interrupted, Remarked
from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess, holds_of, settings_of

TRAIN = SCRIPTS / "train_alike.py"
MOST_MEMBERS = 4000
NUMBERS = st.integers(0, (1 << light.DIGEST_BITS) - 1)


# ---- the sums of votes -----------------------------------------------------------------------


def _sums(numbers: list[int]) -> list[float]:
    """Add votes as members do, in 32-bit floats."""
    total = torch.zeros(comparison.WIDTH)
    for number in numbers:
        total += torch.tensor(comparison.votes_of(number, asks=False))
    return total.tolist()


@given(numbers=st.lists(NUMBERS, min_size=1, max_size=8))
def test_sums_tell_whether_all_numbers_are_equal(numbers: list[int]) -> None:
    assert comparison.are_equal(_sums(numbers)) == (len(set(numbers)) == 1)


@given(number=NUMBERS, bit=st.integers(0, light.DIGEST_BITS - 1))
def test_one_bit_of_one_member_among_thousands_is_seen(number: int, bit: int) -> None:
    ours = torch.tensor(comparison.votes_of(number, asks=False))
    odd = torch.tensor(comparison.votes_of(number ^ 1 << bit, asks=False))
    many = ours * (MOST_MEMBERS - 1)
    assert comparison.are_equal((many + ours).tolist())
    assert not comparison.are_equal((many + odd).tolist())


def test_sums_of_thousands_are_whole_numbers_in_32_bits() -> None:
    largest = (1 << light.DIGEST_BITS) - 1
    sums = _sums([largest] * MOST_MEMBERS)
    exact = [MOST_MEMBERS * vote for vote in comparison.votes_of(largest, asks=False)]
    assert sums == exact


# ---- the light state -------------------------------------------------------------------------

PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**80), 2**80),
    st.floats(allow_nan=False),
    st.text(max_size=8),
)
TREES = st.recursive(
    PLAIN,
    lambda trees: st.lists(trees, max_size=4) | st.dictionaries(st.text(max_size=5), trees),
    max_leaves=12,
)


@given(one=TREES, other=TREES)
@example(one=[False, False], other=[False, 0])
@example(one={"lr": 1}, other={"lr": 1.0})
@example(one=[2**60], other=[2.0**60])
@example(one=[2**60 + 1], other=[2.0**60])
def test_digests_are_those_of_the_values(one: Any, other: Any) -> None:
    def exact(tree: Any) -> Any:  # 1 and True are one value, 0.0 and -0.0 are not
        if isinstance(tree, dict):
            return "table", sorted((key, exact(value)) for key, value in tree.items())
        if isinstance(tree, list):
            return [exact(part) for part in tree]
        is_number = isinstance(tree, bool | float) or (
            isinstance(tree, int) and float(tree) == tree
        )
        return repr(float(tree)) if is_number else repr(tree)

    is_same = exact(one) == exact(other)
    assert (light.digest([one]) == light.digest([other])) == is_same
    tables = {0: light.leaves(one, "x"), 1: light.leaves(other, "x")}
    if light.differing(tables):
        assert not is_same


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (np.float64(0.1), 0.1),
        (np.int64(3), 3),
        (np.array([1.0, 2.0]), [1.0, 2.0]),
        (torch.tensor(0.25), 0.25),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (collections.Counter({3: 1, 5: 2}), {5: 2, 3: 1}),
        (float("nan"), float("nan")),
        (float("inf") - float("inf"), float("nan")),  # with the sign bit, and without
        ({1, 2, 3}, {3, 2, 1}),
        ({True: 0.1, 2: 0.2}, {1.0: 0.1, 2.0: 0.2}),
        ({1, 2}, {True, 2.0}),
    ],
    ids=str,
)
def test_what_came_through_a_checkpoint_is_the_same_value(here: Any, there: Any) -> None:
    assert light.digest([here]) == light.digest([there])


def test_nothing_but_a_value_stands_for_it() -> None:
    trees: list[Any] = [
        None,
        math.nan,
        math.inf,
        [],
        {},
        [[]],
        [None],
        "",
        "None",
        0,
        [0],
        {"a": 0},
    ]
    assert len({light.digest([tree]) for tree in trees}) == len(trees)
    assert len({light.digest(trees[:length]) for length in range(len(trees))}) == len(trees)


def test_the_options_of_an_optimizer_count_without_its_parameters() -> None:
    group = {"lr": 0.1, "betas": (0.9, 0.99), "params": [torch.zeros(1)], "foreach": None}
    again = {"foreach": None, "params": [], "betas": [0.9, 0.99], "lr": 0.1}
    assert light.digest([7], [group]) == light.digest([7], [again])
    others = [
        [group | {"lr": 0.2}],
        [group | {"foreach": False}],
        [group | {"more": None}],
        [group, group],
        [],
    ]
    numbers = {light.digest([7], groups) for groups in [[group], *others]}
    assert len(numbers) == 1 + len(others)


def test_a_string_made_at_run_time_is_the_same_string() -> None:
    made = "minimum"[:3]
    assert light.digest([{"mode": made}]) == light.digest([{"mode": "min"}])


def test_differences_name_the_ranks_of_each_value_learning_rates_first() -> None:
    tables = {r: {"scheduler.best": b, "groups[0].lr": lr} for r, b, lr in
              [(0, 1.5, 0.1), (1, 1.5, 0.1), (2, 1.25, 0.05)]}  # fmt: skip
    assert list(map(str, light.differing(tables))) == [
        "groups[0].lr is 0.1 on ranks 0, 1, 0.05 on rank 2",
        "scheduler.best is 1.5 on ranks 0, 1, 1.25 on rank 2",
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.uint8])
@pytest.mark.parametrize("count", [1, 3, 8, 1001])
def test_one_changed_element_changes_the_digest_of_its_tensor(
    dtype: torch.dtype, count: int
) -> None:
    tensor = torch.arange(count).to(dtype)
    for place in {0, count // 2, count - 1}:
        other = tensor.clone()
        other[place] = 3 * other[place] + 1
        whole, odd = comparison.digests_of([tensor, other])
        assert whole != odd
        assert comparison.digests_of([tensor.clone()]) == [whole]
    shifted = torch.empty(count + 1, dtype=dtype)[1:].copy_(tensor)  # at another address
    assert comparison.digests_of([shifted]) == comparison.digests_of([tensor])


# ---- real workers ----------------------------------------------------------------------------

# Settings of 30 scripts, and what is done otherwise on one worker of each.
KINDS: dict[str, tuple[dict[str, Any], str]] = {
    "mlp sgd": ({}, "branch"),
    "mlp plateau": ({"schedule": "plateau"}, "evaluation"),
    "conv restarts": ({"schedule": "restarts", "network": "conv"}, "schedule"),
    "mlp adam one cycle": ({"schedule": "one-cycle", "optimizer": "adam"}, "schedule"),
    "tokens adamw warm-up": (
        {"schedule": "warm-up", "optimizer": "adamw", "network": "tokens"},
        "schedule",
    ),
    "groups lambda": ({"schedule": "lambda", "optimizer": "groups"}, "schedule"),
    "ema cosine": ({"average": "ema", "schedule": "cosine"}, "average"),
    "mixed step": ({"amp": True, "clip": 1.0, "schedule": "step"}, "scaling"),
    "rmsprop clip passes": ({"clip": 0.05, "optimizer": "rmsprop", "passes": 2}, "clipping"),
    "norm swa amsgrad": ({"network": "norm", "average": "swa", "optimizer": "amsgrad"}, "average"),
    "dropout adam": ({"network": "dropout", "optimizer": "adam"}, "seed"),
    "conv adamw": ({"network": "conv", "optimizer": "adamw"}, "order"),
    "tokens rmsprop": ({"network": "tokens", "optimizer": "rmsprop"}, "seed"),
    "conv plateau adam": (
        {"network": "conv", "schedule": "plateau", "optimizer": "adam"},
        "evaluation",
    ),
    "tokens plateau": ({"network": "tokens", "schedule": "plateau"}, "evaluation"),
    "adagrad step": ({"optimizer": "adagrad", "schedule": "step"}, "schedule"),
    "mixed conv": ({"amp": True, "network": "conv"}, "scaling"),
    "mixed ema": ({"amp": True, "average": "ema"}, "scaling"),
    "tokens ema": ({"network": "tokens", "average": "ema"}, "average"),
    "conv swa": ({"network": "conv", "average": "swa", "optimizer": "adam"}, "average"),
    "clip tokens": ({"network": "tokens", "clip": 0.02}, "clipping"),
    "clip adagrad": ({"optimizer": "adagrad", "clip": 0.01}, "seed"),
    "dropout cosine": ({"network": "dropout", "schedule": "cosine"}, "schedule"),
    "norm warm-up": ({"network": "norm", "schedule": "warm-up"}, "schedule"),
    "passes adamw": ({"passes": 3, "optimizer": "adamw"}, "data"),
    "passes ema": ({"passes": 2, "average": "ema"}, "average"),
    "groups step": ({"optimizer": "groups", "schedule": "step"}, "branch"),
    "amsgrad restarts": ({"optimizer": "amsgrad", "schedule": "restarts"}, "schedule"),
    "mixed tokens clip": ({"amp": True, "network": "tokens", "clip": 0.5}, "scaling"),
    "dropout clip": ({"network": "dropout", "clip": 0.03}, "clipping"),
}
NAMED: dict[str, tuple[str, str]] = {  # code, what is named
    "branch": (
        "BFT-1438",
        r"groups\[0\]\.weight_decay is 0\S* on rank 0, 0\.02 on",
    ),
    "schedule": ("BFT-1438", r"scheduler\.|\.lr is"),
    "evaluation": ("BFT-1438", r"scheduler\."),
    "scaling": ("BFT-1438", r"scaler\.scale"),
    "clipping": ("BFT-1439", "weight"),
    "seed": ("BFT-1439", "weight"),
    "average": ("BFT-1439", "weight"),
    "order": ("BFT-1433", r"sample \d+ is one on rank 0 \(.*another on rank 1"),
    "data": ("BFT-1433", r"sample \d+ is one on rank 0 \(.*another on rank 1"),
}
OF_DATA = ("order", "data")  # what is different before the first update
QUICK = ("mlp sgd", "conv restarts", "dropout adam")


def _run(
    directory: Path, template: TemplateProcess, count: int = 2, **settings: Any
) -> dict[str, Failed]:
    """Train until all have finished or failed; return what those said that failed."""
    with Controller(directory, template) as c:
        if settings.get("mutation") in OF_DATA:
            odd = {**settings, "odd": True}
            ids = [c.start(TRAIN, settings_of(**each))[0] for each in (settings, odd)]
            c.warm(ids)
            c.commit_only(ids)
        else:
            ids = c.begin(TRAIN, settings_of(**settings), count=count)
        c.until(lambda: all(c.workers[i].returncode is not None for i in ids), "they ended")
        said = {i: c.workers[i].all(Failed) for i in ids}
    return {i: failed for i, (failed,) in said.items() if failed} if any(said.values()) else {}


# Until tensors are compared: from one second after the beginning on.
LONG: dict[str, Any] = {"epochs": 1000, "delay_s": 0.002}


@pytest.mark.parametrize(
    "kind", [k if k in QUICK else pytest.param(k, marks=pytest.mark.long) for k in KINDS]
)
def test_a_worker_that_does_otherwise_ends_the_trainer_by_name(
    tmp_path: Path, template: TemplateProcess, kind: str
) -> None:
    settings, mutation = KINDS[kind]
    code, name = NAMED[mutation]
    failures = _run(tmp_path, template, **settings, mutation=mutation, **LONG)
    assert len(failures) == 2, "all members see it"
    for failed in failures.values():
        assert failed.code == code, failed
        assert re.search(name, failed.cause)
        assert re.search(r"rank 0.*rank 1|ranks 0, 1", failed.cause)
        assert mutation in OF_DATA or comparison.PAGE in failed.next_step
    if code == "BFT-1438":  # before the update that would have set the parameters apart
        sums: dict[int, set[float]] = collections.defaultdict(set)
        for entry in journal.entries(tmp_path, "commit"):
            sums[entry["step"]].add(entry["sum"])
        assert max(map(len, sums.values())) == 1


def test_extra_state_that_differs_is_named_once_and_the_training_goes_on(
    tmp_path: Path, template: TemplateProcess
) -> None:
    with Controller(tmp_path, template) as c:
        ids = c.begin(TRAIN, settings_of(mutation="counter"), count=2)
        c.finished()
        logs = {i: c.workers[i].log.read_text() for i in ids}
        [[remark], others] = [c.workers[i].all(Remarked) for i in ids]
    assert (remark.kind, remark.step, remark.generation, others) == ("extra notes", 4, 0, [])
    assert remark.cause.startswith("BFT-1438: The workers differ in extra state: extra.notes.")
    assert logs[ids[0]].count("BFT-1438: The workers differ in extra state:") == 1
    assert re.search(r"extra\.notes\.updates is \d+ on rank 0, \d+ on rank 1", logs[ids[0]])
    assert "BFT-1438" not in logs[ids[1]], "rank 0 says it"
    assert journal.result(tmp_path)["updates"] == 36


def test_adopt_takes_the_schedule_of_rank_0_and_says_so(
    tmp_path: Path, template: TemplateProcess
) -> None:
    settings = {"schedule": "step", "mutation": "schedule", "equal": "adopt"}
    with Controller(tmp_path, template) as c:
        ids = c.begin(TRAIN, settings_of(**settings), count=2)
        c.finished()
        log = c.workers[ids[0]].log.read_text()
        [[remark], others] = [c.workers[i].all(Remarked) for i in ids]
    assert log.count("Rank 0's values are taken") == 1
    assert (remark.kind, remark.step, others) == ("adopted", 4, [])
    assert f"bftrainer: warning: {remark.cause}\n" in log
    # Who goes on from its last checkpoint knows of it, and says it again.
    [path, *_] = files.newest_first(tmp_path / "checkpoints")
    assert remark.cause in json.dumps(files.peek(path)["structure"])
    rates: dict[int, set[float]] = collections.defaultdict(set)
    sums: dict[int, set[float]] = collections.defaultdict(set)
    for entry in journal.entries(tmp_path, "commit"):
        rates[entry["step"]].add(entry["lr"])
        sums[entry["step"]].add(entry["sum"])
    assert max(map(len, rates.values())) == 2, "the odd one had another rate between updates"
    assert max(map(len, sums.values())) == 1, "no update was made with it"
    assert journal.result(tmp_path)["lr"] == pytest.approx(0.05 * 0.8**7)


def test_workers_of_another_torch_are_not_compared_bit_for_bit_and_it_is_said(
    tmp_path: Path, template: TemplateProcess
) -> None:
    settings: dict[str, Any] = {"mutation": "seed", "epochs": 1000, "delay_s": 0.002}
    with Controller(tmp_path, template) as c:
        versions = ("", "2.0.1", "2.0.1")
        ids = [c.start(TRAIN, settings_of(**settings, torch=version))[0] for version in versions]
        c.form(ids[:2], new=ids)
        c.until(lambda: c.workers[ids[0]].all(Remarked), "it is said")
        c.form(ids)  # the last one alone does otherwise now, and has the torch of the second
        c.until(lambda: all(c.workers[i].all(Failed) for i in ids), "they differ")
        [first, second] = c.workers[ids[0]].all(Remarked)
        [failed] = c.workers[ids[0]].all(Failed)
        log = c.workers[ids[0]].log.read_text()
    assert (first.kind, first.generation, second.generation) == ("unlike", 1, 2)
    ours = re.escape(torch.__version__)
    assert first.cause.startswith("BFT-1446: ")
    assert re.search(rf": rank 0: torch {ours}, .*; rank 1: torch 2\.0\.1, ", first.cause)
    assert "; ranks 1, 2: torch 2.0.1, " in second.cause
    assert log.count("BFT-1446") == 1
    assert failed.code == "BFT-1439"
    assert failed.cause.startswith("The parameters of ranks 1, 2 differ before update ")


def test_adopt_never_takes_parameters(tmp_path: Path, template: TemplateProcess) -> None:
    settings: dict[str, Any] = {
        "mutation": "seed",
        "equal": "adopt",
        "epochs": 1000,
        "delay_s": 0.002,
    }
    failures = _run(tmp_path, template, **settings)
    assert {failed.code for failed in failures.values()} == {"BFT-1439"}


@pytest.mark.parametrize("equal", ["error", pytest.param("off", marks=pytest.mark.long)])
def test_a_worker_that_ends_alone_is_told_so_and_the_training_does_not_end(
    tmp_path: Path, template: TemplateProcess, equal: str
) -> None:
    with Controller(tmp_path, template) as c:
        ids = c.begin(TRAIN, settings_of(mutation="stopping", equal=equal), count=2)
        if equal == "off":
            c.finished(ids[1:])
            return
        failed = c.failed(ids[1])
        assert c.workers[ids[1]].all(Finished) == []
        c.until(lambda: c.workers[ids[0]].all(Interrupted), "the other one noticed")
        c.form(ids[:1], abandon=True)
        c.finished()
    assert failed.code == "BFT-1434"
    places = r"an update \(train_alike\.py:\d+\), others at the end of their training \(.*\)"
    assert re.search(rf"Some workers are at {places}, after 4 updates\.", failed.cause)
    assert journal.result(tmp_path)["steps"] == 36, "the whole training"


@pytest.mark.parametrize("stop", [7, pytest.param(12, marks=pytest.mark.long)])  # 12: of an epoch
def test_workers_that_end_early_together_end_well(
    tmp_path: Path, template: TemplateProcess, stop: int
) -> None:
    with Controller(tmp_path, template) as c:
        ids = c.begin(TRAIN, settings_of(stop=stop, holds=holds_of((2, 3), apart=3)), count=2)
        more = c.start(TRAIN, settings_of(stop=stop))
        c.warm(more)
        c.form([*ids[1:], *more, ids[0]])
        assert {finished.step for finished in c.finished()} == {stop}
    assert journal.result(tmp_path)["steps"] == stop


@pytest.mark.long
def test_a_worker_that_is_lost_where_all_end_early_holds_up_nobody(
    tmp_path: Path, template: TemplateProcess
) -> None:
    with Controller(tmp_path, template) as c:
        ids = c.begin(TRAIN, settings_of(stop=7, stray=1), count=3)
        c.trained_to(7)
        c.until((tmp_path / "stray").exists, "rank 1 is about to end, the others wait for it")
        c.kill(ids[1])
        c.until(lambda: c.workers[ids[1]].returncode is not None, "death noticed")
        left = [ids[0], ids[2]]
        c.commit(left, c.prepare(left), abandon=True)
        assert {finished.step for finished in c.finished(left)} == {7}
    assert journal.result(tmp_path)["steps"] == 7


def test_nothing_is_compared_where_the_script_says_so(
    tmp_path: Path, template: TemplateProcess
) -> None:
    settings: dict[str, Any] = {"schedule": "step", "mutation": "schedule", "equal": "off"}
    assert _run(tmp_path, template, **settings) == {}
    sums: dict[int, set[float]] = collections.defaultdict(set)
    for entry in journal.entries(tmp_path, "commit"):
        sums[entry["step"]].add(entry["sum"])
    assert max(map(len, sums.values())) == 2


def test_another_word_for_the_comparison_is_refused() -> None:
    model = torch.nn.Linear(2, 1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(2, 2)))
    with pytest.raises(ElasticError, match="equal='strict'") as refused:
        elastic.Run(model, torch.optim.SGD(model.parameters()), loader, epochs=1, equal="strict")
    assert refused.value.code == "BFT-1403"


@pytest.mark.parametrize(
    "kind",
    [k if k == "mixed step" else pytest.param(k, marks=pytest.mark.long) for k in KINDS],
)
def test_workers_that_do_alike_are_never_told_apart(
    tmp_path: Path, template: TemplateProcess, kind: str
) -> None:
    """Members come, leave and are lost; all updates are those of one learning rate and sum."""
    sizes = (2, 3, -2) if kind == "mixed step" else (2, 3, 1, -2, 3, 2, 1, 3, -2, 3, 2)
    script, _ = KINDS[kind]
    settings = settings_of(**script, epochs=3 + len(sizes) // 3, holds=holds_of(sizes, apart=3))
    with Controller(tmp_path, template) as c:
        c.through(sizes, TRAIN, settings, apart=3)
        logs = c.logs()
    assert "BFT-143" not in logs
    seen: dict[tuple[int, int], set[tuple[float, float]]] = collections.defaultdict(set)
    for entry in journal.entries(tmp_path, "commit"):
        seen[entry["generation"], entry["step"]].add((entry["sum"], entry["lr"]))
    assert max(map(len, seen.values())) == 1
    assert journal.result(tmp_path)["updates"] == journal.result(tmp_path)["steps"]
