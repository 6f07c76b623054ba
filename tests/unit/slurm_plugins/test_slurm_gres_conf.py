"""Nodes of which gres.conf keeps from jobs which GPUs they have, and what is said of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurm_plugins import lending
from slurm_plugins.gres_conf import UntoldGpus, untold_gpus
from tests.unit.slurm_plugins.test_slurm_lending import CLUSTER, lent, limits, row

FILES = "Name=gpu File=/dev/nvidia[0-3]"
SILENT = f"{FILES} Flags=no_gpu_env"
N1 = UntoldGpus(names=frozenset({"n1"}))
HIDDEN = "ConstrainDevices = yes\nTaskPlugin = task/affinity,task/cgroup\n"


@pytest.mark.parametrize(
    ("text", "untold"),
    [
        ("", ""),
        (f"{FILES}\n", ""),
        (f"AutoDetect=off\n{SILENT} # of all\n", "n1 n2 n3"),
        ("AutoDetect=nvml\nNAME=GPU FLAGS=NO_GPU_ENV\n", "n1 n2 n3"),
        (f"NodeName=n[1-2] {SILENT}\nNodeName=n3 {FILES}\n", "n1 n2"),
        (f"{SILENT}\nNodeName=n3 {FILES} Flags=nvidia_gpu_env\n", "n1 n2"),
        # What one record of a node sets, is set for all of its GPUs.
        (f"NodeName=n[1-2] {SILENT}\nNodeName=n1 {FILES}\n", "n2"),
        (f"NodeName=n1 {SILENT}\n{FILES}\n", ""),
        ("NodeName=n1 \\\n Name=gpu Flags=no_gpu_env\n", "n1"),
        ("NodeName=n1 Name=nic Flags=no_gpu_env\n# NodeName=n2 Name=gpu Flags=no_gpu_env\n", ""),
        (f"NodeName=n[1- {SILENT}\nInclude other.conf\n", ""),
    ],
)
def test_on_which_nodes_jobs_are_not_told_their_gpus(text: str, untold: str) -> None:
    of = untold_gpus(text)
    assert [node for node in ("n1", "n2", "n3") if of.has(node)] == untold.split()


def test_such_a_node_is_lent_as_a_whole_unless_cgroups_hide_other_devices() -> None:
    assert lent(row(), limits()).lends
    of = replace(limits(), untold_gpus=N1)
    node = lent(row(), of)
    assert (node.lends, node.is_shared, node.why_whole) == ((), True, lending.NO_GPU_ENV)
    assert not of.says_the_same(limits())
    assert lent(row(), replace(limits(cluster=CLUSTER + HIDDEN), untold_gpus=N1)).lends
    unused = HIDDEN.replace(",task/cgroup", "")
    assert not lent(row(), replace(limits(cluster=CLUSTER + unused), untold_gpus=N1)).lends
