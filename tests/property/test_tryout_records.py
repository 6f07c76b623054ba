"""The records of a try: whatever happened, each sample is counted as it was used."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftrainer.lab.try_records import EpochUse, Line, Records, epochs, losses, newest, speeds

SAMPLES, BATCH = 50, 8


@dataclass
class Event:
    """What happens in a step: who lives on afterwards, and how many had committed it by then."""

    size: int
    committed: int  # of the members; the others are told, if one of these lives on
    is_forgotten: bool  # nobody who has committed lives on, and the run goes back some steps


class Writer:
    """Writes what the workers of a run would."""

    def __init__(self) -> None:
        self.processes: dict[str, list[Line]] = defaultdict(list)
        self.generation, self.size, self.step, self.samples, self.at_s = 0, 0, 0, 0, 0.0
        self.saved = (0, 0)  # step, position
        self.position = 0

    def write(self, kind: str, rank: int, step: int, **what: Any) -> None:
        self.at_s += 0.5
        line = {"kind": kind, "generation": self.generation, "attempt": 1, "step": step}
        line |= {"rank": rank, "size": self.size, "samples": self.samples, "at_s": self.at_s}
        self.processes[f"n1-{100 * self.generation + rank}"].append({**line, **what})

    def enter(self, size: int) -> None:
        self.generation, self.size = self.generation + 1, size
        for rank in range(size):
            self.write("entered", rank, self.step)

    def try_step(self, event: Event) -> None:
        batch = min(BATCH, SAMPLES - self.position)
        cuts = [batch * rank // self.size for rank in range(self.size + 1)]
        for rank in range(self.size):
            first, last = self.position + cuts[rank], self.position + cuts[rank + 1]
            indices = [SAMPLES - 1 - place for place in range(first, last)]
            self.write(
                "handed", rank, self.step, epoch=0, number=0, at=first, of=SAMPLES, indices=indices
            )
        committed = min(event.committed, self.size)
        if committed and not event.is_forgotten:
            self.samples += batch
        for rank in range(committed):
            self.write("committed", rank, self.step + 1)
        if committed and not event.is_forgotten:
            self.step += 1
            self.position += batch
        if event.is_forgotten:
            self.step, self.position = self.saved
            self.samples = self.position
        if committed < self.size or event.is_forgotten:
            self.enter(event.size)


events = st.lists(
    st.builds(
        Event, size=st.integers(1, 4), committed=st.integers(0, 4), is_forgotten=st.booleans()
    ),
    max_size=12,
)


def run(schedule: list[Event], saved_after: int) -> Writer:
    writer = Writer()
    writer.enter(2)
    for number, event in enumerate(schedule):
        if writer.position < SAMPLES:
            writer.try_step(event)
        if number == saved_after:
            writer.saved = (writer.step, writer.position)
    while writer.position < SAMPLES:
        writer.try_step(Event(size=1, committed=4, is_forgotten=False))
    return writer


@given(schedule=events, saved_after=st.integers(0, 12))
def test_an_epoch_is_whole_whatever_was_lost_and_repeated(
    schedule: list[Event], saved_after: int
) -> None:
    found = epochs(run(schedule, saved_after).processes)
    assert found == [EpochUse(epoch=0, of=SAMPLES, used=SAMPLES)]
    assert found[0].is_once


@given(schedule=events, data=st.data())
def test_a_batch_that_is_missing_or_double_is_seen(schedule: list[Event], data: Any) -> None:
    writer = run(schedule, 0)
    counted = [
        (pid, i)
        for pid, lines in writer.processes.items()
        for i, line in enumerate(lines)
        if line["kind"] == "handed" and line["indices"] and line["generation"] == writer.generation
        and line["step"] < writer.step
    ]  # fmt: skip
    if not counted:
        return
    pid, i = data.draw(st.sampled_from(counted))
    line = writer.processes[pid][i]
    again = {**line, "number": 1}
    assert not epochs({**writer.processes, pid: [*writer.processes[pid], again]})[0].is_once
    others = {**writer.processes, pid: [x for x in writer.processes[pid] if x is not line]}
    use = epochs(others)
    assert not use or use[0].used + len(line["indices"]) == SAMPLES
    swapped = {**line, "indices": [-1 for _ in line["indices"]]}
    lines = [swapped if x is line else x for x in writer.processes[pid]]
    assert epochs({**writer.processes, pid: lines})[0].is_once == (len(line["indices"]) < 2)


def test_an_own_order_may_repeat_indices_but_not_places() -> None:
    writer = run([], 0)
    for lines in writer.processes.values():
        lines[:] = [
            {**x, "may_repeat": True, "indices": [0 for _ in x.get("indices", ())]} for x in lines
        ]
    assert epochs(writer.processes)[0].is_once


def test_speeds_and_the_newest_worker_are_of_their_generation() -> None:
    writer = Writer()
    writer.enter(2)
    for _ in range(2):
        writer.try_step(Event(size=2, committed=4, is_forgotten=False))
    place = newest(writer.processes)
    assert place is not None
    assert (place.pid, place.rank, place.size, place.step, place.of_generation) == (100, 0, 2, 2, 2)
    writer.enter(1)
    assert newest(writer.processes) is None, "it has made no update yet"
    [speed] = speeds(writer.processes)
    assert speed.size == 2
    assert speed.samples_per_s == pytest.approx(2 * BATCH / 4.0)


def test_lines_are_read_as_they_come_and_cut_ones_later(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.look()
    assert records.processes == {}
    path = tmp_path / "samples-n1-7.jsonl"
    lines = [json.dumps({"kind": "entered", "step": n}) + "\n" for n in range(3)]
    path.write_text(lines[0] + lines[1][:5])
    records.look()
    assert [line["step"] for line in records.processes["n1-7"]] == [0]
    path.write_text("".join(lines))
    records.look()
    records.look()
    assert [line["step"] for line in records.processes["n1-7"]] == [0, 1, 2]


@pytest.mark.parametrize(
    ("reduction", "weights", "wanted"),
    [("mean", (3, 1), 2.5), ("", (1, 1), 3.0), ("sum", (3, 1), 6.0), ("weighted", (0, 2), 4.0)],
)
def test_losses_of_shares_are_put_together_as_their_gradients(
    reduction: str, weights: tuple[float, float], wanted: float
) -> None:
    writer = Writer()
    writer.enter(2)
    for number, value in ((1, 0.5), (1, 1.5), (0, 9.0)):  # two parts of a share; of a step undone
        made = value if weights[0] or number == 0 else float("nan")
        writer.write(
            "loss", 0, 1 - number, loss=made, weight=weights[0], number=number, reduction=reduction
        )
    writer.write("loss", 1, 0, loss=4.0, weight=weights[1], number=1, reduction=reduction)
    for rank in range(2):
        writer.write("committed", rank, 1)
    assert losses(writer.processes) == {1: wanted}
