"""Members whose datasets yield other samples are told so; random by design is not that."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from bftrainer.elastic.data import sample_prints
from bftrainer.elastic.data.loader import Loader
from bftrainer.elastic.data.sample_prints import NOT_COMPARED, UNKNOWN, SamplePrint, print_of
from bftrainer.ground.errors import ElasticError
from bftrainer.ground.protocol import Interrupted, Remarked
from tests.elastic.controller import Controller, TemplateProcess

SCRIPT = """\
import json, os, random, sys, time
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from bftrainer import elastic

kind, workers = sys.argv[1], int(sys.argv[2])
if kind == "earlier":  # as in the release before: shorter nonces, and no prints
    from bftrainer.elastic.data import sample_prints
    from bftrainer.elastic.network import group
    group.NONCE_BYTES, sample_prints.encoded = 16, lambda prints: []
torch.manual_seed(3)
inputs = torch.randn(64, 4)
unseeded = np.random.default_rng()
if kind == "split":
    inputs = inputs[unseeded.permutation(64)[:48]]

class Data(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, i):
        noise = 0.0
        if kind == "augmented":
            noise = torch.rand(1).item() + random.random() + np.random.random()
        if kind == "noisy":
            noise = unseeded.normal()
        return {"x": inputs[i] + noise, "file": os.path.join("/local", str(os.getpid()), "a.png")}

def collated(rows):
    return torch.stack([row["x"] for row in rows])

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
reading = {"num_workers": workers, "collate_fn": collated}
loader = DataLoader(Data(), batch_size=8, shuffle=True, **reading)
run = elastic.Run(model, optimizer, loader, epochs=1_000_000)
for epoch in run.epochs():
    for x in run.batches():
        time.sleep(0.005)
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        run.step()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "reads.py"
    path.write_text(SCRIPT)
    return path


def test_members_with_other_samples_all_end_and_name_sample_ranks_and_nodes(
    tmp_path: Path, template: TemplateProcess, script: Path
) -> None:
    with Controller(tmp_path, template) as c:
        ids = c.start(script, ["split", "0"], count=2)
        c.warm(ids)
        c.commit_only(ids)
        said = [c.failed(i) for i in ids]
    assert {f.code for f in said} == {"BFT-1433"}
    assert said[0].cause == (
        "The workers of this trainer read different data: sample 0 is one on rank 0"
        f" ({ids[0]}), another on rank 1 ({ids[1]})."
    )
    assert "docs/howto/train-pytorch.md" in said[0].next_step


def test_a_joiner_with_other_samples_ends_and_the_others_train_on(
    tmp_path: Path, template: TemplateProcess, script: Path
) -> None:
    with Controller(tmp_path, template) as c:
        (first,) = c.start(script, ["split", "0"])
        (odd,) = c.start(script, ["split", "0"])
        c.form([first], new=[first, odd])
        c.commit_only([first, odd])
        assert c.failed(odd).code == "BFT-1433"
        c.until(lambda: c.workers[first].all(Interrupted), "the other one noticed")
        [entered] = c.form([first], abandon=True)
        assert entered.size == 1
        c.park()


def test_members_of_the_release_before_are_not_compared(
    tmp_path: Path, template: TemplateProcess, script: Path
) -> None:
    with Controller(tmp_path, template) as c:
        ids = [c.start(script, [kind, "0"])[0] for kind in ("split", "earlier")]
        assert {entered.size for entered in c.form(ids, new=ids)} == {2}
        new, _ = ids
        c.until(lambda: c.workers[new].all(Remarked), "it is said")
        [remark] = c.workers[new].all(Remarked)
        assert (remark.kind, remark.generation) == ("release", 1)
        assert remark.cause.startswith("BFT-1447: ")
        assert remark.cause in c.workers[new].log.read_text()
        c.form([new])
        assert c.workers[new].all(Remarked) == [remark], "alone there is nothing to compare"
        c.park()


@pytest.mark.long
@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize("kind", ["plain", "augmented", "noisy"])
def test_equal_samples_and_random_ones_are_trained_on(
    tmp_path: Path, template: TemplateProcess, script: Path, kind: str, workers: str
) -> None:
    with Controller(tmp_path, template) as c:
        ids = c.begin(script, [kind, workers], count=2)
        more = c.start(script, [kind, workers])
        c.form([*ids, *more], new=more)
        c.park()
        logs = [c.workers[i].log.read_text() for i in (*ids, *more)]
    assert all(("differ each time they are read" in log) is (kind == "noisy") for log in logs)
    assert not any("not compared:" in log.replace("read: not compared", "") for log in logs)


@pytest.mark.long
def test_the_processes_of_a_loader_tell_other_samples_apart(
    tmp_path: Path, template: TemplateProcess, script: Path
) -> None:
    with Controller(tmp_path, template) as c:
        ids = c.start(script, ["split", "2"], count=2)
        c.warm(ids)
        c.commit_only(ids)
        assert {c.failed(i).code for i in ids} == {"BFT-1433"}


# ---- prints ------------------------------------------------------------------------------

IMAGE = torch.linspace(0, 1, 3 * 32 * 32).reshape(3, 32, 32)
SAMPLES: dict[str, Any] = {
    "image": IMAGE,
    "another image": IMAGE.flip(2),
    "brighter": IMAGE * 1.05,
    "other type": IMAGE.double(),
    "other shape": IMAGE.reshape(3, 1024),
    "pixels": (IMAGE * 255).to(torch.uint8),
    "tokens": torch.arange(100),
    "other tokens": torch.arange(100).roll(1),
    "one other token": torch.arange(100).index_fill(0, torch.tensor([50]), 7),
    "array": np.arange(100.0),
    "pair": (IMAGE, 3),
    "pair of another class": (IMAGE, 4),
    "list": [IMAGE, 3],
    "text": "a fox",
    "other text": "a dog",
    "bytes": b"a fox",
    "named": {"x": IMAGE, "y": 3},
    "named otherwise": {"x": IMAGE, "z": 3},
    "object": SimpleNamespace(x=IMAGE, y=3),
    "other object": SimpleNamespace(x=IMAGE, y=4),
    "numbers": (0.5, 0.25),
    "exchanged numbers": (0.25, 0.5),
    "nothing": None,
    "complex": torch.tensor([1 + 2j]),
    "other complex": torch.tensor([1 - 2j]),
    "half precision": IMAGE.bfloat16(),
    "unordered": {"a", "b"},
    "with a gap": torch.tensor([1.0, float("nan")]),
    "without": torch.tensor([1.0, 0.0]),
}


def test_every_two_of_these_samples_have_other_prints() -> None:
    prints = {name: print_of(sample) for name, sample in SAMPLES.items()}
    alike = [(a, b) for a in prints for b in prints if a < b and prints[a].is_like(prints[b])]
    assert alike == []
    assert all(own.exact != NOT_COMPARED for own in prints.values())


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_print_does_not_depend_on_when_it_is_taken(name: str) -> None:
    first = print_of(SAMPLES[name])
    torch.rand(3)
    assert print_of(SAMPLES[name]) == first
    assert sample_prints.decoded(sample_prints.encoded([first]))[:2] == [first, UNKNOWN]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (IMAGE, IMAGE * (1 + 1e-6)),
        (IMAGE, IMAGE + 1e-6 * torch.rand(IMAGE.shape)),
        (torch.zeros(1000), 1e-12 * torch.randn(1000)),
        (np.linspace(0, 1, 99), np.linspace(0, 1, 99) + 1e-9),
        ((IMAGE * 255).to(torch.uint8), ((IMAGE * 255).to(torch.uint8) ^ (IMAGE > 0.999))),
        ("/scratch/n1/17/cat.png", "/scratch/n2/4/cat.png"),
        (Path("/scratch/n1/17/cat.png"), Path("/local/cat.png")),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ],
    ids=["scaled", "noise", "of zero", "array", "pixels", "path", "Path", "order"],
)
def test_rounding_and_places_of_files_are_no_difference(one: Any, other: Any) -> None:
    assert print_of(one).is_like(print_of(other))


def test_large_and_endless_samples_cost_little() -> None:
    endless: list[Any] = []
    endless.append(endless)
    large = torch.zeros(1).expand(1 << 33)  # 32 GiB, if it were copied
    for sample in (endless, large, [0] * 10**6, "x" * 10**7):
        assert print_of(sample) == print_of(sample)


# ---- reading -----------------------------------------------------------------------------


class Drawn(Dataset[Any]):
    """Samples made by a function of the index."""

    def __init__(self, make: Any, count: int = 40) -> None:
        self.make, self.count = make, count
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        return self.make(index)


def _prints(make: Any, **more: Any) -> tuple[list[SamplePrint], Drawn]:
    data = Drawn(make)
    loader = Loader(DataLoader(data, batch_size=4), **more)
    prints = loader.prints()
    assert loader.prints() is prints, "they are read once"
    return prints, data


def test_random_streams_are_as_before_and_equal_for_all_members() -> None:
    def augmented(index: int) -> Any:
        return index + torch.rand(2), random.random(), np.random.random()  # noqa: NPY002, S311

    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - the stream in question
    expected = augmented(0)
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - likewise
    here, _ = _prints(augmented)
    after = augmented(0)
    assert torch.equal(after[0], expected[0])
    assert after[1:] == expected[1:]
    assert _prints(augmented)[0] == here, "other states, the same draws"
    assert NOT_COMPARED not in {own.exact for own in here}


def test_few_samples_are_read_twice_and_those_of_the_scripts_order() -> None:
    _, data = _prints(lambda index: index)
    assert len(data.asked) == 2 * sample_prints.INDICES
    assert {0, 39} <= set(data.asked)
    _, data = _prints(lambda index: index, indices=lambda _epoch: [5, 7, 5, 9])
    assert set(data.asked) <= {5, 7, 9}


def test_what_is_random_by_design_cannot_be_read_or_is_slow_is_not_compared(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unseeded = np.random.default_rng()
    prints, _ = _prints(lambda index: unseeded.normal() if index else 1.0)
    assert [own == UNKNOWN for own in prints] == [False, True, True, True]
    assert "differ each time they are read: not compared" in caplog.text

    def refused(index: int) -> int:
        if index:
            raise OSError("no such file")
        return 1

    prints, _ = _prints(refused)
    assert [own == UNKNOWN for own in prints] == [False, True, True, True]
    assert "no such file" in caplog.text
    clock = iter(range(100))
    monkeypatch.setattr(
        sample_prints, "time", SimpleNamespace(monotonic=lambda: float(next(clock)) * 0.75)
    )
    prints, data = _prints(lambda index: index)
    assert [own == UNKNOWN for own in prints] == [False, False, True, True]
    assert len(data.asked) == 4


# ---- comparing ---------------------------------------------------------------------------

A, B, C = SamplePrint(1, 0.5), SamplePrint(2, 0.5), SamplePrint(1, 0.75)


def _refused(*kinds: SamplePrint, source: int, mine: int, has_state: bool) -> str:
    nodes = [f"n{rank}" for rank in range(len(kinds))]
    prints = [[A, own] for own in kinds]
    try:
        problem = sample_prints.refuse(
            prints, [3, 17], nodes, source=source, mine=mine, has_state=has_state
        )
    except ElasticError as error:
        return f"ends: {error.cause}"
    return "" if problem is None else f"goes on: {problem.cause}"


def test_those_that_differ_from_the_state_end_and_without_a_state_all_do() -> None:
    for rank in range(3):
        assert _refused(A, A, A, source=0, mine=rank, has_state=True) == ""
        assert _refused(A, UNKNOWN, A, source=0, mine=rank, has_state=False) == ""
        said = _refused(A, B, A, source=0, mine=rank, has_state=False)
        assert said.startswith("ends: ")
        assert "sample 17 is one on rank 0 (n0), rank 2 (n2), another on rank 1 (n1)." in said
        said = _refused(A, A, C, source=1, mine=rank, has_state=True)
        assert said.startswith("goes on" if rank < 2 else "ends")
    many = _refused(*[A] * 9, B, source=0, mine=0, has_state=False)
    assert "rank 2 (n2) and 6 more, another on rank 9 (n9)." in many


def test_three_kinds_are_three() -> None:
    assert sample_prints.parted([A, B, UNKNOWN, C, A]) == [[0, 4], [1], [3]]
