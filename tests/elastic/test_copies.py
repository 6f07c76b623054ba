"""A lone worker's state in another agent's memory: real workers, the agents' real holder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bftrainer.elastic import checkpoint
from bftrainer.elastic.protocol import Copied, KeepCopy, Recall
from bftrainer.elastic.replica_sender import AGE_S, LEAST_GAP_S, MAX_SHARE, USUAL_GAP_S, gap_after
from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess
from trainers.agent.replica_store import CopyHolder

TRAIN = SCRIPTS / "train_ids.py"
SETTINGS = json.dumps({"delay_s": 0.005})
KEY = "k" * 64

BIG = """\
import torch
from torch.utils.data import DataLoader, TensorDataset
from bftrainer import elastic

model = torch.nn.Linear(2000, 2000)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
data = TensorDataset(torch.randn(64, 2000), torch.randn(64, 2000))
run = elastic.Run(model, optimizer, DataLoader(data, batch_size=4), epochs=1_000_000)
for epoch in run.epochs():
    for x, y in run.batches():
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        run.step()
"""


@pytest.fixture
def holder() -> Iterator[tuple[CopyHolder, int]]:
    """Another agent's memory, ready for trainer t1."""
    made = CopyHolder()
    port = made.start("127.0.0.1")
    made.hold("t1", KEY, 0)
    yield made, port
    made.close()


def keep(port: int, name: str = "p2") -> KeepCopy:
    return KeepCopy(holder=name, host="127.0.0.1", port=port, key=KEY)


def recall(port: int) -> Recall:
    return Recall(holder="p2", node="n2", host="127.0.0.1", port=port, key=KEY)


def copied(c: Controller, worker_id: str, *, count: int = 1) -> list[Copied]:
    def done() -> list[Copied] | None:
        said = c.workers[worker_id].all(Copied)
        return said if len([s for s in said if not s.refused]) >= count else None

    return c.until(done, f"{count} copies")


def lone(c: Controller, script: Path | str = TRAIN, **config: Any) -> str:
    """Start one worker without periodic checkpoints."""
    settings: dict[str, Any] = {"epochs": 1_000_000, "checkpoint_interval_s": 3600.0, **config}
    [worker_id] = c.start(script, [SETTINGS], **settings)
    c.warm([worker_id])
    return worker_id


def killed(c: Controller, *ids: str) -> None:
    for worker_id in ids:
        c.kill(worker_id)
    c.until(lambda: all(c.workers[i].returncode for i in ids), "dead")
    c.members = []


def committed_at(directory: Path, generation: int) -> dict[int, float]:
    """When each step of a generation was committed first, s."""
    found: dict[int, float] = {}
    for e in journal.entries(directory, "commit"):
        if e["generation"] == generation:
            found.setdefault(e["step"], e["at_s"])
    return found


def trained_s(at: dict[int, float], first: int) -> float:
    """How long was trained after a step; where everything stood still, half a second counts."""
    times = [at[step] for step in range(first, max(at) + 1)]
    return sum(min(b - a, 0.5) for a, b in pairwise(times))


def trained(c: Controller) -> dict[int, float]:
    """Wait until the newest generation has committed a step; when each was."""
    return c.until(lambda: committed_at(c.directory, c.generation), "trains")


def saved_again(c: Controller, count: int = 1) -> None:
    """Wait for more checkpoints."""
    known = len(c.saved())
    c.until(lambda: len(c.saved()) >= known + count, "checkpoints")


def test_the_only_node_lost_costs_five_seconds_at_most(
    tmp_path: Path, template: TemplateProcess, holder: tuple[CopyHolder, int]
) -> None:
    with Controller(tmp_path, template) as c:
        first = lone(c)
        c.form([first])
        c.tell(first, keep(holder[1]))
        before = [s.step for s in copied(c, first, count=3)]
        assert before == sorted(set(before))
        # Whatever is lost now was trained after the newest copy.

        def newest_step() -> int:
            return c.workers[first].all(Copied)[-1].step

        c.until(lambda: journal.last_step(tmp_path) > newest_step(), "trains on")
        killed(c, first)
        newest = newest_step()
        second = lone(c)
        c.tell(second, recall(holder[1]))
        [entered] = c.form([second])
        assert entered.resumed_from == f"copy on n2, step {entered.step}"
        assert entered.step >= newest
        assert entered.samples > 0
        c.tell(second, keep(holder[1]))
        copied(c, second)
        killed(c, second)
    old, new = committed_at(tmp_path, 1), committed_at(tmp_path, 2)
    assert trained_s(old, entered.step) <= AGE_S
    assert min(new) == entered.step + 1
    # Alone and without chance, steps done twice have the same outcome if the state was the same.
    hashes: dict[int, set[str]] = {}
    for e in journal.entries(tmp_path, "commit"):
        hashes.setdefault(e["step"], set()).add(e["hash"])
    twice = set(old) & set(new)
    assert twice
    assert all(len(hashes[step]) == 1 for step in twice)


def test_a_newer_checkpoint_goes_before_the_copy_and_an_older_one_after(
    tmp_path: Path, template: TemplateProcess, holder: tuple[CopyHolder, int]
) -> None:
    directory = tmp_path / "checkpoints"
    with Controller(tmp_path, template) as c:
        first = lone(c)
        c.form([first])
        c.tell(first, keep(holder[1]))
        copied(c, first)
        c.park()
        parked = checkpoint.newest_first(directory)[0]
        second = lone(c)
        c.tell(second, recall(holder[1]))
        [entered] = c.form([second])
        assert entered.resumed_from == str(parked)
        c.tell(second, keep(holder[1]))
        copied(c, second)
        killed(c, second)
        third = lone(c)
        c.tell(third, recall(holder[1]))
        [entered] = c.form([third])
        assert entered.resumed_from.startswith("copy on n2")
        assert entered.step > checkpoint.step_of(parked)


def test_without_its_holder_a_trainer_resumes_from_the_disk(
    tmp_path: Path, template: TemplateProcess, holder: tuple[CopyHolder, int]
) -> None:
    with Controller(tmp_path, template) as c:
        first = lone(c, checkpoint_interval_s=0.2)
        c.form([first])
        c.tell(first, keep(holder[1]))
        copied(c, first)
        c.until(lambda: len(c.saved()) >= 2, "checkpoints")
        killed(c, first)
        holder[0].close()
        newest = checkpoint.newest_first(tmp_path / "checkpoints")[0]
        second = lone(c)
        c.tell(second, recall(holder[1]))
        [entered] = c.form([second])
        assert entered.resumed_from == str(newest)
        log = c.workers[second].log.read_text()
        assert "skipped the copy in the memory of n2: it does not answer" in log


def test_a_lone_worker_moves_to_another_holder_and_stops_when_it_has_company(
    tmp_path: Path, template: TemplateProcess, holder: tuple[CopyHolder, int]
) -> None:
    other = CopyHolder()
    try:
        port = other.start("127.0.0.1")
        other.hold("t1", KEY, 0)
        with Controller(tmp_path, template) as c:
            first = lone(c)
            c.form([first])
            c.tell(first, keep(holder[1]))
            copied(c, first)
            holder[0].close()
            holder[0].drop("t1")
            c.tell(first, keep(port, "p3"))
            c.until(
                lambda: any(s.holder == "p3" for s in c.workers[first].all(Copied)), "at the next"
            )
            second = lone(c)
            c.form([first, second])
            count = len(c.workers[first].all(Copied))

            def lasts() -> bool:
                at = committed_at(tmp_path, 2).values()
                return bool(at) and max(at) - min(at) > USUAL_GAP_S + 1

            c.until(lasts, "trained together for longer than between two copies")
            # One that was on its way at the switch may still arrive.
            assert len(c.workers[first].all(Copied)) <= count + 1
    finally:
        other.close()


def test_a_refused_copy_is_said_with_its_reason(tmp_path: Path, template: TemplateProcess) -> None:
    small = CopyHolder(limit_bytes=lambda: 1 << 10)
    try:
        port = small.start("127.0.0.1")
        small.hold("t1", KEY, 0)
        with Controller(tmp_path, template) as c:
            first = lone(c)
            c.form([first])
            c.tell(first, keep(port))
            [refused] = c.until(lambda: c.workers[first].all(Copied), "an answer")
            assert "exceed the agent's limit" in refused.refused
            assert small.held() == []
    finally:
        small.close()


def test_all_nodes_lost_at_once_cost_the_checkpoint_interval_at_any_size(
    tmp_path: Path, template: TemplateProcess
) -> None:
    interval_s = 2.0
    directory = tmp_path / "checkpoints"
    with Controller(tmp_path, template) as c:
        config = {"epochs": 1_000_000, "checkpoint_interval_s": interval_s}
        ids = c.start(TRAIN, [SETTINGS], count=2, **config)
        c.warm(ids)
        c.form(ids)
        c.until(lambda: len(c.saved()) >= 2, "two checkpoints")
        killed(c, *ids)
        shutil.copytree(directory, tmp_path / "kept")
        old = committed_at(tmp_path, 1)
        written_s = max(s.wall_s for s in c.saved())
        for size in (1, 2, 3):
            shutil.rmtree(directory)
            shutil.copytree(tmp_path / "kept", directory)
            again = c.start(TRAIN, [SETTINGS], count=size, **config)
            c.warm(again)
            entered = c.form(again)
            assert {e.step for e in entered} == {entered[0].step}
            assert entered[0].resumed_from.endswith(".bft")
            assert trained_s(old, entered[0].step) <= interval_s + written_s
            assert min(trained(c)) == entered[0].step + 1
            c.park()
    assert journal.disagreements(tmp_path, "hash", "lr", "updates", "average") == []


def test_a_worker_killed_while_it_writes_leaves_the_checkpoint_before(
    tmp_path: Path, template: TemplateProcess
) -> None:
    directory = tmp_path / "checkpoints"
    script = tmp_path / "big.py"
    script.write_text(BIG)
    with Controller(tmp_path, template) as c:
        for _ in range(20):
            worker_id = lone(c, script, checkpoint_interval_s=0.05)
            c.form([worker_id])
            saved_again(c, 2)
            c.until(lambda: list(directory.glob(".*.tmp")), "a write under way")
            killed(c, worker_id)
            if left := list(directory.glob(".step-*.tmp")):
                break
        assert left
        complete = checkpoint.newest_first(directory)
        assert complete[0].name < left[0].name.removeprefix(".")
        worker_id = lone(c, script, checkpoint_interval_s=0.05)
        [entered] = c.form([worker_id])
        assert entered.resumed_from == str(complete[0])
        saved_again(c)
        assert not left[0].exists()


def test_how_often_follows_from_what_it_costs() -> None:
    assert gap_after(0.0, 0.0) == USUAL_GAP_S
    assert gap_after(0.001, 0.5) == USUAL_GAP_S
    assert gap_after(0.001, 2.0) == AGE_S - 3.0
    assert gap_after(0.001, 60.0) == LEAST_GAP_S
    assert gap_after(0.1, 0.5) == pytest.approx(0.1 / MAX_SHARE)
