"""The text of a policy: an administrator's file, or the wrong file."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bftrainer.site.policy import PolicyErrors, load_policy
from tests.fuzz.door import Door
from tests.fuzz.hostile import bytestrings

_POLICY = b"""\
%YAML 1.2
---
policy: milp  # or another
policy_options: {objective: throughput}
poll_interval_s: 0.5
eligible_node_types: [cpu, 'gpu a', "gpu b"]
max_trainers_per_user:
  alice: 3
idle_confirmations: &x !!int 3
gap_margin_s: *x
log_level: |
  info
"""


def _loaded(raw: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="bft-fuzz-") as folder:
        path = Path(folder) / "own.yaml"
        path.write_bytes(raw)
        load_policy(path)


DOORS = (
    Door(
        name="policy-text",
        call=_loaded,
        refuses_with=(PolicyErrors,),
        inputs=bytestrings(_POLICY, *_POLICY.splitlines(keepends=True)),
        from_bytes=bytes,
    ),
)
