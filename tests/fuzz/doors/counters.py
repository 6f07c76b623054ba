"""Where a run is, as the header of a file in the user's directory tells before it is verified."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import torch

from bftrainer.elastic.loop.run_info import Length
from bftrainer.elastic.process.control import Control
from bftrainer.elastic.state.state import State
from bftrainer.elastic.state.writer import CheckpointWriter
from bftrainer.ground.protocol import WorkerConfig
from tests.fuzz.door import Door
from tests.fuzz.hostile import bytestrings, documents, with_checksum

_HEADER = {
    "layout": 5,
    "counters": {"seed": 1, "epoch": 2, "samples": 406, "is_complete": True, "asked_epochs": 2},
    "structure": {},
    "tensors": [],
}


@cache
def _state() -> State:
    model = torch.nn.Linear(1, 1)
    return State(model, torch.optim.SGD(model.parameters()), None, {})


def _peeked(raw: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="bft-fuzz-") as name:
        (Path(name) / "step-000000000007-generation-00000001.bft").write_bytes(raw)
        config = WorkerConfig(
            trainer_id="t1", worker_id="w1", node="n1", script="s", checkpoint_dir=name
        )
        known = CheckpointWriter(Control(config, None), _state()).peek()
        Length(epochs=3, samples=None).is_done(known)
        Length(epochs=None, samples=500).is_done(known)


DOORS = (
    Door(
        name="checkpoint-counters",
        call=_peeked,
        inputs=bytestrings(with_checksum(_HEADER)) | documents(_HEADER).map(with_checksum),
        from_bytes=bytes,
    ),
)
