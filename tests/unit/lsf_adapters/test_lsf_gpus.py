"""GPUs that are left on a partly used host of LSF: what bjobs tells of the jobs on it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from bftrainer.batch.process import Completed
from bftrainer.model.cluster import Node, NodeState
from lsf_adapters.jobs import JobReader
from lsf_adapters.snapshot import SnapshotReader

Jobs = Sequence[dict[str, str]]

LSID = "IBM Spectrum LSF Standard 10.1.0.15, May 20 2024\n\nMy cluster name is lab\n"
LSHOSTS = (
    "HOST_NAME type model cpuf ncpus maxmem maxswp server RESOURCES\n"
    "h1 X86_64 Xeon 1.0 8 64G - Yes ()\nh2 X86_64 Xeon 1.0 8 64G - Yes ()\n"
)
GPUS = "HOST_NAME gpu_id gpu_model\n" + "h1 0 A100\n" + "".join(f"   {k} A100\n" for k in (1, 2, 3))
BQUEUES = "QUEUE: bf\n  -- x\n\nPRIO NICE STATUS\n 1 0 Open:Active\n\nUSERS: all\nHOSTS: all\n"


class Site:
    """Answers as LSF's commands would: 4 of 8 slots of h1 are in use, h2 has no GPUs."""

    def __init__(self, jobs: Jobs | None, gpus: str) -> None:
        self._jobs, self._gpus = jobs, gpus

    def query(self, argv: Sequence[str]) -> Completed:
        answers = {
            "lsid": LSID,
            "bparams": "MBD_SLEEP_TIME = 10\n",
            "lshosts": self._gpus if "-gpu" in argv else LSHOSTS,
            "lsload": "HOST_NAME status\nh1 ok\nh2 ok\n",
            "bqueues": BQUEUES,
            "bhosts": _records("bhosts", [_host("h1", 4), _host("h2", 4)]),
            "bjobs": "" if self._jobs is None else _records("bjobs", self._jobs),
        }
        text = answers.get(argv[0], "")
        code = 0 if text else 255
        return Completed(argv=tuple(argv), returncode=code, stdout=text, stderr="", wall_s=0.0)

    def why_failed(self, done: Completed) -> str:
        return f"{done.argv[0]} failed"

    def is_away(self, done: Completed) -> bool:
        return done.timed_out


def _records(command: str, records: Jobs) -> str:
    return json.dumps({"COMMAND": command, "RECORDS": list(records)})


def _host(name: str, used: int) -> dict[str, str]:
    counts = {"MAX": "8", "NJOBS": f"{used}", "RUN": f"{used}", "SSUSP": "0", "USUSP": "0"}
    return {"HOST_NAME": name, "STATUS": "ok", "RSV": "0", **counts}


def job(hosts: str, **told: str) -> dict[str, str]:
    """A running job; ``told``: what else bjobs says of it."""
    return {
        "JOBID": str(sum(map(ord, hosts + str(told)))), "JOBINDEX": "0", "USER": "ann",
        "STAT": "RUN", "QUEUE": "normal", "JOB_NAME": "x", "EXEC_HOST": hosts,
        "SUBMIT_TIME": "Nov 22 08:59", "START_TIME": "Nov 22 09:00", "COMBINED_RESREQ": "",
        **told,
    }  # fmt: skip


def nodes(jobs: Jobs | None, *, gpus: str = GPUS, gpus_per_node: int = 0) -> dict[str, Node]:
    site: Any = Site(jobs, gpus)
    reader = SnapshotReader(
        jobs=JobReader(site), user="bft", pilot_queue="bf", gpus_per_node=gpus_per_node
    )
    return {node.name: node for node in reader.read().nodes or ()}


OTHER = job("4*h2", GPU_NUM="")


@pytest.mark.parametrize(
    ("jobs", "left"),
    [
        pytest.param([job("4*h1", GPU_NUM="2")], 2, id="one"),
        pytest.param([job("h1", GPU_NUM="1"), job("3*h1", GPU_NUM="-")], 3, id="one-has-none"),
        pytest.param([job("h1", GPU_NUM="1"), job("3*h1", GPU_NUM="2")], 1, id="two"),
        pytest.param([job("4*h1", GPU_NUM="")], 4, id="none"),
        pytest.param([job("4*h1", GPU_NUM="2", STAT="SSUSP")], 2, id="suspended"),
        pytest.param([job("4*h1:2*h9", GPU_NUM="3")], 1, id="at-most-all-of-them-here"),
        pytest.param([job("4*h1", GPU_NUM="9")], 0, id="more-than-there-are"),
        pytest.param([job("4*h1")], 0, id="field-refused"),
        pytest.param([job("4*h1", GPU_NUM="1/task")], 0, id="per-task"),
        pytest.param(
            [job("4*h1", GPU_NUM="", COMBINED_RESREQ="rusage[ngpus_physical=1.00]")],
            0,
            id="by-another-resource",
        ),
        pytest.param([job("h1", GPU_NUM="0")], 0, id="other-jobs-are-not-shown"),
        pytest.param([], 0, id="no-job-is-shown"),
        pytest.param(None, 0, id="jobs-unread"),
    ],
)
def test_gpus_that_are_left(jobs: Jobs | None, left: int) -> None:
    seen = nodes(None if jobs is None else [*jobs, OTHER])
    h1, h2 = seen["h1"], seen["h2"]
    assert (h1.state, h1.gpus, h1.left and h1.left.cpus) == (NodeState.ALLOCATED, 4, 4)
    assert h1.left is not None
    assert h1.left.gpus == left
    assert (h2.gpus, h2.left and h2.left.gpus, h2.left and h2.left.cpus) == (0, 0, 4)


def test_gpus_that_lsf_does_not_know_are_not_left() -> None:
    """It cannot say who uses them."""
    seen = nodes([job("4*h1", GPU_NUM=""), OTHER], gpus="", gpus_per_node=4)
    assert (seen["h1"].gpus, seen["h1"].left and seen["h1"].left.gpus) == (4, 0)
