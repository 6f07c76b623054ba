"""Sharded models: the same training at any number of nodes."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from bftrainer.ground.protocol import Failed
from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess

TRAIN = SCRIPTS / "train_sharded.py"
SAMPLES = 83
FOREVER = 1_000_000
OFTEN = {"checkpoint_interval_s": 1.0}


def params_of(directory: Path) -> list[torch.Tensor]:
    return [torch.tensor(p) for p in journal.result(directory)["params"]]


def furthest(one: Path, other: Path) -> float:
    pairs = zip(params_of(one), params_of(other), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


def train(
    directory: Path,
    template: TemplateProcess,
    *,
    nodes: int = 1,
    per_node: int = 2,
    **settings: Any,
) -> Path:
    directory.mkdir()
    with Controller(directory, template) as c:
        c.begin(TRAIN, [json.dumps(settings)], count=nodes, per_node=per_node)
        c.finished()
    return directory


def each_sample_once(directory: Path, epochs: int) -> None:
    counts = journal.committed_ids(directory)
    assert sorted(counts) == list(range(epochs))
    for epoch, ids in counts.items():
        assert sorted(ids) == list(range(SAMPLES)), epoch
        assert set(ids.values()) == {1}, epoch


def test_a_stranger_on_the_node_costs_a_start_and_is_no_failure(
    tmp_path: Path, template: TemplateProcess
) -> None:
    script = tmp_path / "alone.py"
    # Neither goes before the other is there, too: alone it would wait for one that is gone.
    script.write_text(
        "import os, pathlib, time\n"
        "from bftrainer import elastic\n"
        "from bftrainer.elastic.network import shards\n"
        f"here = pathlib.Path({str(tmp_path)!r})\n"
        "def found(*_):\n"
        "    (here / f'met-{os.getpid()}').touch()\n"
        "    while len(list(here.glob('met-*'))) < 2:\n"
        "        time.sleep(0.01)\n"
        "    raise RuntimeError('BFT-1344: a stranger connected to the port of rank 1')\n"
        "shards.prove_pairs = found\n"
        "elastic.node_mesh()\n"
    )
    with Controller(tmp_path, template) as c:
        workers = [c.workers[name] for name in c.of(c.start(script, per_node=2))]
        c.until(lambda: all(w.returncode is not None for w in workers), "ended")
        assert {w.returncode for w in workers} == {-signal.SIGTERM}
        assert not any(w.all(Failed) for w in workers)
        assert "BFT-1344" in workers[0].log.read_text()


@pytest.mark.long
def test_it_trains_as_unsharded(tmp_path: Path, template: TemplateProcess) -> None:
    plain = train(tmp_path / "plain", template, per_node=1, sharded=False)
    for nodes in (1, 2):
        found = train(tmp_path / f"sharded{nodes}", template, nodes=nodes)
        assert furthest(plain, found) < 2e-4
        each_sample_once(found, 2)


def test_nodes_come_and_go_and_die(tmp_path: Path, template: TemplateProcess) -> None:
    """1 → 2 → 3 nodes of 2 workers, one leaves, one dies by one of its workers, all park."""
    settings = json.dumps({"delay_s": 0.01, "extra": True, "epochs": 6})
    with Controller(tmp_path, template) as c:
        one, two, three, four = (c.start(TRAIN, [settings], per_node=2)[0] for _ in range(4))
        c.form([one], new=[one])
        c.trained_to(3)
        c.form([one, two], new=[two])
        c.trained_to(8)
        c.form([one, two, three], new=[three])
        c.trained_to(12)
        c.form([two, three])
        c.trained_to(16)
        c.form([two, three, four], new=[four])
        c.trained_to(19)
        c.lose(c.teams[three][1])
        c.form([two, four], abandon=True)
        c.trained_to(24)
        c.form([four])
        c.finished()
        assert not any(w.all(Failed) for w in c.workers.values()), "a neighbour's loss is none"
    each_sample_once(tmp_path, 6)
    assert journal.disagreements_of_shards(tmp_path) == []
    plain = train(tmp_path / "plain", template, per_node=1, sharded=False, extra=True, epochs=6)
    assert furthest(plain, tmp_path) < 2e-3


LONG = pytest.mark.long


@pytest.mark.parametrize("to", [(4, True), (2, True), (3, True), (1, False)])
@LONG
def test_it_resumes_with_another_number_of_workers(
    tmp_path: Path, template: TemplateProcess, to: tuple[int, bool]
) -> None:
    """Parked with two workers per node; ``to``: workers then, and whether still sharded."""
    per_node, sharded = to
    settings = {"delay_s": 0.01, "epochs": 3}
    with Controller(tmp_path, template) as c:
        first = c.begin(TRAIN, [json.dumps(settings)], count=2, per_node=2)
        c.trained_to(13)
        c.park(saver=first[1])
        args = [json.dumps({**settings, "sharded": sharded})]
        second = c.start_again(TRAIN, args, count=2, per_node=per_node)
        entered = c.form(second, new=second)
        assert entered[0].step >= 13
        c.finished()
    each_sample_once(tmp_path, 3)
    plain = train(tmp_path / "plain", template, per_node=1, sharded=False, epochs=3)
    assert furthest(plain, tmp_path) < 1e-3


@pytest.mark.long
def test_a_whole_checkpoint_is_resumed_sharded(tmp_path: Path, template: TemplateProcess) -> None:
    settings = {"delay_s": 0.01, "epochs": 3}
    with Controller(tmp_path, template) as c:
        c.begin(TRAIN, [json.dumps({**settings, "sharded": False})], count=2)
        c.trained_to(13)
        c.park()
        second = c.start_again(TRAIN, [json.dumps(settings)], count=2, per_node=2)
        assert c.form(second, new=second)[0].step >= 13
        c.finished()
    each_sample_once(tmp_path, 3)
    plain = train(tmp_path / "plain", template, per_node=1, sharded=False, epochs=3)
    assert furthest(plain, tmp_path) < 1e-3


@pytest.mark.long
def test_bitwise_it_is_the_same_at_every_number_of_nodes(
    tmp_path: Path, template: TemplateProcess
) -> None:
    results = []
    for nodes in (1, 2, 3):
        found = train(tmp_path / f"{nodes}", template, nodes=nodes, logical=4, extra=True, epochs=1)
        each_sample_once(found, 1)
        results.append(params_of(found))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [
        {"tensor": 2, "clip": 0},
        {"max_per_worker": 1},
        {"accumulate": 2},
        {"weights": True},
        {"evaluate": True},
        {"iterator": True},
        {"extra": True, "optimizer": "sgd"},
    ],
    ids=str,
)
def test_what_scripts_do(
    tmp_path: Path, template: TemplateProcess, settings: dict[str, Any]
) -> None:
    alone = {k: v for k, v in settings.items() if k not in ("tensor", "max_per_worker")}
    plain = train(tmp_path / "plain", template, per_node=1, sharded=False, epochs=1, **alone)
    per_node = 2 * settings.get("tensor", 1)
    found = train(tmp_path / "sharded", template, nodes=2, per_node=per_node, epochs=1, **settings)
    assert furthest(plain, found) < 5e-4
    if "tensor" not in settings:
        each_sample_once(found, 1)


CHANGES = ["grow", "shrink", "first", "lose", "lose", "lose all", "park"]
MOST_NODES = 3


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("settings", [{"optimizer": "sgd"}, {"logical": 4, "extra": True}], ids=str)
def test_many_changes_are_as_if_nothing_had_happened(
    tmp_path: Path, template: TemplateProcess, settings: dict[str, Any]
) -> None:
    """30 rescales and more, 10 losses and more, of one worker, of all nodes at once."""
    rng = random.Random(7)  # noqa: S311 - a test's schedule
    args = [json.dumps({"delay_s": 0.005, **settings})]
    rescales, losses = 0, 0

    def joiners(count: int) -> list[str]:
        new = c.start(TRAIN, args, count=count, per_node=2, epochs=FOREVER, **OFTEN)
        c.warm(new)
        return new

    with Controller(tmp_path, template) as c:
        c.form(joiners(2))
        while rescales < 30 or losses < 10:
            kind = rng.choice(CHANGES)
            is_several = len(c.members) > 1
            if kind == "grow" and len(c.members) < MOST_NODES:
                c.form(c.members + joiners(1))
            elif kind == "shrink" and is_several:
                c.form(rng.sample(c.members, len(c.members) - 1))
            elif kind == "first" and is_several:
                c.form(c.members[1:] + joiners(1))
            elif kind == "lose" and is_several:
                victim = rng.choice(c.members)
                c.lose(rng.choice(c.teams[victim]))
                c.form([m for m in c.members if m != victim], abandon=True)
                losses += 1
            elif kind == "lose all" and rng.random() < 0.5:
                c.trained_to(journal.last_step(tmp_path) + 20)
                for member in c.members:
                    c.lose(c.teams[member][1])
                c.members = []
                assert c.form(joiners(2))[0].resumed_from
                losses += 1
            elif kind == "park" and rng.random() < 0.5:
                c.park(saver=c.members[-1])
                assert c.form(joiners(rng.randint(1, 2)))[0].resumed_from
            else:
                continue
            rescales += 1
            c.trained_to(journal.last_step(tmp_path) + rng.randint(0, 5))
        c.park()
        epochs = 1 + max(e["epoch"] for e in journal.entries(tmp_path, "try"))
        c.begin(TRAIN, args, count=2, per_node=2, epochs=epochs)
        c.finished()
    each_sample_once(tmp_path, epochs)
    assert journal.disagreements_of_shards(tmp_path) == []
    fixed = {"per_node": 2} if "logical" in settings else {"per_node": 1, "sharded": False}
    other = train(tmp_path / "fixed", template, epochs=epochs, **fixed, **settings)
    assert furthest(other, tmp_path) <= (0.0 if "logical" in settings else 2e-3)
