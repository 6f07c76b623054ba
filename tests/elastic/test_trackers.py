"""One run of a tracker for all workers of a trainer, by the code of docs/howto/trackers.md."""

from __future__ import annotations

import csv
import importlib
import json
import re
import signal
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bftrainer.fleet.runtimes.base import WANDB
from bftrainer.ground.protocol import Finished
from tests.elastic import journal
from tests.elastic.controller import ROOT, SCRIPTS, Controller, TemplateProcess

PAGE = (ROOT / "docs" / "howto" / "trackers.md").read_text()
LOOP, *OTHERS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
BLOCKS = dict(zip(re.findall(r"^## (.*)$", PAGE, re.MULTILINE), OTHERS, strict=True))
STEPS = 40
ENVIRONMENT = {
    "BFT_RUN_ID": "t7-1a", "WANDB_RUN_ID": "t7-1a", **dict(WANDB), "OMP_NUM_THREADS": "1",
    "WANDB_MODE": "offline", "WANDB_SILENT": "true", "MLFLOW_TRACKING_URI": "sqlite:///mlflow.db",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}  # fmt: skip
Steps = list[int]


def of_csv(directory: Path) -> Steps:
    with (directory / "metrics.csv").open(newline="") as lines:
        return [int(row[0]) for row in csv.reader(lines)]


def of_tensorboard(directory: Path) -> Steps:
    """Return what all files of the run's only folder hold; each rank 0 writes its own file."""
    module = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    found = module.EventAccumulator(str(directory / "tensorboard"))
    found.Reload()
    return [one.step for one in found.Scalars("loss")]


def of_mlflow(directory: Path) -> Steps:
    """Return what the server has of the only run."""
    mlflow = importlib.import_module("mlflow")
    client = mlflow.MlflowClient(f"sqlite:///{directory / 'mlflow.db'}")
    [run] = client.search_runs(["0"])
    return [one.step for one in client.get_metric_history(run.info.run_id, "loss")]


def of_wandb(directory: Path) -> Steps:
    """Return what the folders of all rank 0s hold, which are of one run."""
    records = importlib.import_module("wandb.proto.wandb_internal_pb2")
    steps: Steps = []
    folders = sorted((directory / "wandb").glob("offline-run-*"))
    assert {one.name.split("-", 3)[3] for one in folders} == {"t7-1a"}
    for path in sorted((directory / "wandb").glob("offline-run-*/*.wandb")):
        for data in leveldb_records(path.read_bytes()):
            record = records.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                steps.append(record.history.step.num)
    return steps


def leveldb_records(data: bytes) -> Iterator[bytes]:
    """Return the records of a log: blocks of 32 KiB, fragments with checksum, length and kind."""
    at, whole = 7, b""  # after W&B's mark
    while at + 7 <= len(data):
        if at % 32768 > 32768 - 7:
            at += -at % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        if at + 7 + length > len(data):
            return  # not written yet
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield whole
            whole = b""


READERS: dict[str, tuple[str, Callable[[Path], Steps]]] = {
    "CSV": ("csv", of_csv),
    "TensorBoard": ("tensorboard", of_tensorboard),
    "MLflow": ("mlflow", of_mlflow),
    "W&B": ("wandb", of_wandb),
}


def test_the_page_has_all_trackers() -> None:
    assert BLOCKS.keys() == READERS.keys()


def script(directory: Path, tracker: str) -> Path:
    """Return a script of the page's blocks."""
    start = (SCRIPTS / "tracked.py").read_text()
    path = directory / "tracked.py"
    hold = "        hold(run, holds)\n        loss ="
    path.write_text(f"{start}\n{BLOCKS[tracker]}\n{LOOP.replace('        loss =', hold)}")
    return path


@pytest.mark.filterwarnings("ignore")  # the packages' own
@pytest.mark.parametrize(
    "tracker",
    [pytest.param(name, marks=[] if name == "CSV" else pytest.mark.long) for name in READERS],
)
def test_a_trainer_is_one_run_and_no_step_stands_there_twice(
    tmp_path: Path, template: TemplateProcess, tracker: str
) -> None:
    module, steps_in = READERS[tracker]
    pytest.importorskip(module)
    path = script(tmp_path, tracker)
    environment = tuple(
        {**ENVIRONMENT, "BFT_TEST_DIR": str(tmp_path), "BFT_TEST_SCRIPTS": str(SCRIPTS)}.items()
    )
    # That step not before this generation: 5 has no members, 7 repeats what is lost.
    holds = [[6, 2], [12, 3], [18, 4], [24, 5], [31, 7]]
    with Controller(tmp_path, template) as c:

        def started(count: int) -> list[str]:
            return c.start(path, [json.dumps(holds)], count=count, environment=environment)

        a, b, d = started(3)
        c.form([a], new=[a, b, d])
        c.trained_to(5)
        c.form([a, b])
        c.trained_to(11)
        c.form([b])  # rank 0 has moved
        c.trained_to(17)
        c.form([b, d])
        c.trained_to(23)
        c.park(saver=b)
        e, f = started(2)
        c.form([e], new=[e, f])
        c.until(lambda: 30 in steps_in(tmp_path), "30 steps are logged")
        c.kill(e)
        c.until(lambda: c.workers[e].returncode is not None, "death noticed")
        c.members = []
        c.form([f])  # it repeats from the checkpoint of the park
        c.finished()
    redone = [one["step"] for one in journal.entries(tmp_path, "commit")].count(27)
    assert redone == 2, "what the killed worker had logged was trained again"
    # A rank 0 that leaves writes its last step beside the first ones of the next.
    assert sorted(steps_in(tmp_path)) == list(range(1, STEPS + 1))


def test_a_script_s_own_handler_does_not_end_the_run(
    tmp_path: Path, template: TemplateProcess
) -> None:
    """SIGTERM may reach all processes of a pilot: a loop left early would complete the run."""
    path = tmp_path / "handled.py"
    path.write_text(HANDLED)
    with Controller(tmp_path, template) as c:
        (a,) = c.begin(path)
        c.until(lambda: "trains" in c.workers[a].log.read_text(), "it trains")
        c.kill(a, signal.SIGTERM)
        c.until(lambda: c.workers[a].returncode is not None, "it has ended")
        assert c.workers[a].returncode == -signal.SIGTERM
        assert not c.workers[a].all(Finished)
        assert "the handler save_and_stop is not called" in c.workers[a].log.read_text()


HANDLED = """
import signal
import torch
from torch import nn
from torch.utils.data import DataLoader
import bftrainer.elastic as elastic

asked = []

def save_and_stop(*_):
    asked.append(1)

signal.signal(signal.SIGTERM, save_and_stop)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = elastic.Run(model, optimizer, DataLoader(torch.zeros(8, 4), batch_size=4), epochs=10**9)
for epoch in run.epochs():
    for x in run.batches():
        model(x).sum().backward()
        run.step()
        if run.step_count == 1:
            print("trains", flush=True)
    if asked:
        break
"""
