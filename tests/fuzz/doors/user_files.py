"""Files in a user's checkpoint directory: they are the user's, and may be anything."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bftrainer.elastic.checkpoints import checkpoint
from bftrainer.elastic.mpi.state import MpiState
from bftrainer.elastic.mpi.state_transfer import Disk
from bftrainer.elastic.process.control import Control
from bftrainer.ground.errors import ElasticError
from bftrainer.ground.fence import Fence, claim
from bftrainer.ground.protocol import WorkerConfig
from tests.fuzz.door import Door
from tests.fuzz.hostile import as_json, bytestrings, documents, with_checksum

LAYOUT = 5
MOST_BYTES = 250_000  # a larger one, which only its user can have made, costs in proportion
_HEADER = {
    "layout": LAYOUT,
    "step": 7,
    "samples": 56,
    "counters": {"samples": 56, "is_complete": False},
    "structure": {"d": [["trained", {"l": [True, {"t": 0}]}], ["name", {"u": [1, {"b": "eA=="}]}]]},
    "tensors": [["float32", [0]]],
    "bytes": [0],
}
_FENCE = b'{"incarnation": 1, "generation": 2, "token": "x", "trainer_id": "t3"}'


CONFIG = WorkerConfig(trainer_id="", worker_id="fuzz", node="", script="")


class _NoState(MpiState):
    """The state of an MPI program that has registered nothing."""

    def __init__(self) -> None:
        self.arrays = {}

    def layout(self) -> int:
        return LAYOUT


def _resumed(raw: bytes) -> None:
    """Resume from a directory with this file in it, as PyTorch and as MPI trainers do."""
    with tempfile.TemporaryDirectory(prefix="bft-fuzz-") as name:
        directory = Path(name)
        (directory / "step-000000000007-generation-00000001.bft").write_bytes(raw)
        checkpoint.find(directory, (LAYOUT,))
        Disk(Control(CONFIG, None), _NoState(), name).load()


def _claimed(raw: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="bft-fuzz-") as name:
        (Path(name) / "fence.json").write_bytes(raw)
        claim(Path(name), Fence(incarnation=1, generation=9, token="y", trainer_id="t3"))  # noqa: S106


DOORS = (
    Door(
        name="checkpoint-file",
        call=_resumed,
        refuses_with=(ElasticError,),  # of another model
        inputs=(bytestrings(with_checksum(_HEADER)) | documents(_HEADER).map(with_checksum)).filter(
            lambda raw: len(raw) <= MOST_BYTES
        ),
        from_bytes=bytes,
    ),
    Door(
        name="fence-file",
        call=_claimed,
        inputs=bytestrings(_FENCE)
        | documents({"incarnation": 1, "generation": 2, "token": "x"}).map(as_json),
        from_bytes=bytes,
    ),
)
