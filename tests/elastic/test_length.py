"""How long a run is: asked for more it goes on, asked for as much or less it says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bftrainer.elastic.loop.run_info import Length
from bftrainer.elastic.state.state import Counters
from bftrainer.ground import protocol
from bftrainer.ground.errors import ElasticError
from bftrainer.ground.protocol import Failed
from bftrainer.model.trainer import happens_anywhere
from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess

TRAIN = SCRIPTS / "train_ids.py"


def run(directory: Path, template: TemplateProcess, *, size: int = 1, **asked: int) -> str:
    """Train to the end of what is asked for; return the log of the first worker."""
    directory.mkdir(exist_ok=True)
    with Controller(directory, template) as c:
        ids = c.begin(TRAIN, [json.dumps({})], count=size, **asked)
        c.finished()
        return c.workers[ids[0]].log.read_text()


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"epochs": 1}, {"epochs": 3}),
        ({"samples": 203}, {"samples": 500}),
        pytest.param({"steps": 5}, {"steps": 30}, marks=pytest.mark.long),
    ],
)
def test_a_complete_run_that_is_asked_for_more_goes_on_from_its_state(
    tmp_path: Path, template: TemplateProcess, first: dict[str, Any], then: dict[str, Any]
) -> None:
    run(tmp_path / "at_once", template, **then)
    run(tmp_path / "in_two", template, **first)
    log = run(tmp_path / "in_two", template, **then)
    assert "already complete" not in log
    outcomes = [journal.result(tmp_path / name) for name in ("at_once", "in_two")]
    assert outcomes[1] == outcomes[0]
    counts = journal.committed_ids(tmp_path / "in_two")
    assert set(counts[0].values()) == {1}
    assert sum(sum(c.values()) for c in counts.values()) == outcomes[0]["samples"]


@pytest.mark.parametrize("size", [1, pytest.param(3, marks=pytest.mark.long)])
def test_steps_are_updates_also_over_short_batches(
    tmp_path: Path, template: TemplateProcess, size: int
) -> None:
    """An epoch of 203 samples has twelve updates of 16 and one of 11."""
    run(tmp_path, template, size=size, steps=30)
    assert journal.result(tmp_path)["samples"] == 2 * 203 + 4 * 16
    log = run(tmp_path, template, size=size, steps=30)
    assert "bftrainer: already complete: 2 epochs, 470 samples done, 30 steps requested" in log


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_run_that_is_complete_says_so_and_trains_nothing(
    tmp_path: Path, template: TemplateProcess, epochs: int
) -> None:
    run(tmp_path, template, epochs=2)
    before = journal.result(tmp_path)
    tried = len(journal.entries(tmp_path, "try"))
    log = run(tmp_path, template, epochs=epochs, size=2)
    assert (
        f"bftrainer: already complete: 2 epochs, 406 samples done, {epochs} epochs requested" in log
    )
    assert len(journal.entries(tmp_path, "try")) == tried
    assert journal.result(tmp_path) == before


def counters(epoch: int, *, complete: Length | None = None) -> Counters:
    found = Counters(seed=1, epoch=epoch, samples=100 * epoch)
    if complete is not None:
        complete.complete(found)
    return found


def test_a_run_that_its_script_ended_early_stays_complete_until_more_is_asked_for() -> None:
    thirty, sixty = Length(epochs=30, samples=None), Length(epochs=60, samples=None)
    early = counters(5, complete=thirty)
    assert thirty.is_done(early)
    assert Length(epochs=20, samples=None).is_done(early)
    assert not sixty.is_done(early)
    assert not Length(epochs=None, samples=2000).is_done(early)
    sixty.open(early)
    assert early == counters(5)
    assert not thirty.is_done(early)


def test_a_complete_state_of_an_earlier_release_goes_on_where_more_is_asked_for() -> None:
    old = counters(2)
    old.is_complete = True
    assert Length(epochs=2, samples=None).is_done(old)
    assert not Length(epochs=4, samples=None).is_done(old)


def test_what_a_header_tells_is_taken_as_far_as_it_is_sound() -> None:
    told = {"epoch": 2, "is_complete": True, "samples": "many", "nobody": 3}
    assert Counters.known(told) == Counters(seed=0, epoch=2, is_complete=True)
    assert Counters.known(counters(3).as_dict()) == counters(3)


@pytest.mark.parametrize(
    "given",
    [
        *((None, None, None), (1, 1, None), (1, None, 1), (None, 1, 1)),
        *((0, None, None), (None, 0, None), (-1, None, None), (None, None, 0)),
    ],
)
def test_what_is_no_length_is_refused(given: tuple[int | None, int | None, int | None]) -> None:
    epochs, samples, steps = given
    with pytest.raises(ElasticError) as refused:
        Length(epochs=epochs, samples=samples, steps=steps)
    assert refused.value.code == "BFT-1403"


@pytest.mark.parametrize(
    ("value", "length", "total"),
    [
        (protocol.BY_AGENT, Length(epochs=3, samples=None), 300),
        (protocol.BY_AGENT, Length(epochs=None, samples=250), 250),
        (protocol.BY_AGENT, Length(epochs=10**18, samples=None), 0),  # ends by itself
        (protocol.BY_DAEMON, Length(epochs=3, samples=None), 0),  # the agent is an older one
        ("", Length(epochs=3, samples=None), 0),
    ],
)
def test_its_samples_are_told_to_who_knows_the_field(
    value: str, length: Length, total: int
) -> None:
    pairs = ((protocol.TELLS_TOTAL, value),) if value else ()
    config = protocol.WorkerConfig(
        trainer_id="t1", worker_id="w", node="n", script="/s", environment=pairs
    )
    assert length.total(100, config) == total
    said = protocol.Progress(
        generation=1, step=1, epoch=0, samples=1, step_s=1.0, samples_per_s=1.0, total=total
    )
    assert ("total" in protocol.to_body(said)) is bool(total)
    assert protocol.from_body(protocol.to_body(said)) == said


@pytest.mark.parametrize("steps", [1, 6, 7, 8, 23])
@pytest.mark.parametrize("samples", [96, 100])
def test_the_samples_of_steps_are_counted_batch_by_batch(samples: int, steps: int) -> None:
    environment = ((protocol.TELLS_TOTAL, protocol.BY_AGENT),)
    config = protocol.WorkerConfig(
        trainer_id="t1", worker_id="w", node="n", script="/s", environment=environment
    )
    used = position = 0
    for _ in range(steps):
        batch = min(16, samples - position)
        used, position = used + batch, (position + batch) % samples
    assert Length(epochs=None, samples=None, steps=steps).total(samples, config, 16) == used


def test_a_run_of_steps_stays_complete_until_more_are_asked_for() -> None:
    ten = Length(epochs=None, samples=None, steps=10)
    early = Counters(seed=1, epoch=1, step=7, samples=100)
    ten.complete(early)
    assert Counters.known(early.as_dict()) == early
    assert ten.is_done(early)
    assert not Length(epochs=None, samples=None, steps=11).is_done(early)
    assert not Length(epochs=2, samples=None).is_done(early), "asked for in another way"
    assert "steps" not in protocol.to_body(
        protocol.WorkerConfig(trainer_id="t1", worker_id="w", node="n", script="/s")
    ), "older agents refuse what they do not know"


USES = """\
import torch
from torch.utils.data import DataLoader, TensorDataset
from bftrainer import elastic


def main():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=2)
    run = elastic.Run(model, optimizer, loader, epochs=1)
    for epoch in run.epochs():
        for (x,) in run.batches():
            optimizer.zero_grad()
            loss = model(x).sum()
            loss.backward()
            run.step()
    {after}


{call}
"""
BODY = USES.partition("def main():\n")[2].splitlines()
OF_MODULE = "\n".join(line.removeprefix("    ") for line in BODY)


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (USES.format(after="print(loss.item())", call="main()"), "BFT-1449", "'loss'"),
        (
            USES.partition("def main")[0]
            + OF_MODULE.format(after="print(epoch, loss.item())", call=""),
            "BFT-1449",
            "name 'epoch' is not defined",
        ),
        (USES.format(after="print(lost)", call="main()"), "BFT-1410", "name 'lost' is not defined"),
    ],
    ids=["in a function", "in the module", "a slip"],
)
def test_a_variable_of_the_loops_that_a_complete_run_never_set_is_told_by_name(
    tmp_path: Path, template: TemplateProcess, text: str, code: str, said: str
) -> None:
    script = tmp_path / "uses.py"
    script.write_text(text)
    with Controller(tmp_path, template) as c:
        (first,) = c.begin(script)
        c.until(lambda: c.workers[first].returncode is not None, "it ended")
        is_slip = code == "BFT-1410"
        assert bool(c.workers[first].all(Failed)) == is_slip
        c.members = []
        (again,) = c.begin(script)
        failed = c.failed(again)
    assert failed.code == code
    assert said in failed.cause
    assert happens_anywhere(f"{failed.code}: {failed.cause}") != is_slip
