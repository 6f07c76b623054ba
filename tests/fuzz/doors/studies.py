"""A study's document and the files of its directory: anybody may have edited them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bftrainer.model.errors import BftError
from bftrainer.study.directory import read_directory, read_wishes
from bftrainer.study.document import StudyErrors, read_study
from bftrainer.study.verbs.lookup import read_summary
from tests.fuzz.door import Door
from tests.fuzz.hostile import as_json, bytestrings, documents

_STUDY = {
    "parameters": {
        "lr": {"type": "float", "low": 0.1, "high": 1.0, "step": 0.1},
        "width": {"type": "int", "low": 1, "high": 64},
        "act": ["relu", "tanh"],
    },
    "sampler": "grid",
    "rule": {"name": "asha", "trials": 8, "least": 1, "most": 9, "eta": 3},
}
_YAML = b"""\
metric: loss
parameters:
  lr: {type: float, low: 0.001, high: 1.0, log: true}
  width: [16, 32, 64]
configurations:
- {lr: 0.1, width: 16}
- lr: &x !!float 0.2
  width: *x
rule: {name: asha, trials: 9, least: 1, most: 9, eta: 3}
nodes: 1:2
submit: {export: [A=1, "B=2"], gres: 'gpu:1'}
unit_s: {1: 60, 2: 33}
"""
_WISHES = {"is_paused": False, "is_stopped": False, "more": 3}
_BEGUN = {"study_id": "s-1", "document": _STUDY, "base": {"name": "s"}, "created_s": 1.0}
_SUMMARY: dict[str, Any] = {
    "schema": "bftrainer/study-summary/1",
    "study": "s-1",
    "trials": [],
    "rungs": [],
    "best": None,
}


def _reads(
    name: str, read: Callable[[Path], object], *, is_file: bool = False
) -> Callable[[bytes], None]:
    """Return a call that reads a directory with this file in it, or the file."""

    def call(raw: bytes) -> None:
        with tempfile.TemporaryDirectory(prefix="bft-fuzz-") as folder:
            path = Path(folder) / name
            path.write_bytes(raw)
            read(path if is_file else Path(folder))

    return call


DOORS = (
    Door(
        name="study-document",
        call=_reads("study.yaml", read_study, is_file=True),
        refuses_with=(StudyErrors,),
        inputs=bytestrings(_YAML) | documents(_STUDY).map(as_json),
        from_bytes=bytes,
    ),
    Door(
        name="study-begun",
        call=_reads("study.json", read_directory),
        refuses_with=(BftError,),
        inputs=bytestrings(as_json(_BEGUN)) | documents(_BEGUN).map(as_json),
        from_bytes=bytes,
    ),
    Door(
        name="study-summary",
        call=_reads("summary.json", read_summary),
        refuses_with=(BftError,),
        inputs=bytestrings(as_json(_SUMMARY)) | documents(_SUMMARY).map(as_json),
        from_bytes=bytes,
    ),
    Door(
        name="study-wishes",
        call=_reads("wishes.json", read_wishes),
        refuses_with=(BftError,),
        inputs=bytestrings(as_json(_WISHES)) | documents(_WISHES).map(as_json),
        from_bytes=bytes,
    ),
)
