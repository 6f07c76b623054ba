"""Workloads of trainers: the paper's experiments, and files in two formats.

``by_name`` and ``read_workload`` return a ``TrainerWorkload``, which the simulator replays.
"""

from __future__ import annotations

from bftrainer.lab.workloads.builders import (
    NETWORKS,
    Table2Network,
    by_name,
    diverse,
    hpo,
    workload_names,
)
from bftrainer.lab.workloads.documents import read_workload, write_workload
from bftrainer.lab.workloads.submission import Submission, TrainerWorkload

__all__ = [
    "NETWORKS",
    "Submission",
    "Table2Network",
    "TrainerWorkload",
    "by_name",
    "diverse",
    "hpo",
    "read_workload",
    "workload_names",
    "write_workload",
]
