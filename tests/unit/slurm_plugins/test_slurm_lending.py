"""Which GPUs Slurm's nodes lend one by one, with how many CPUs and how much memory, and why not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftrainer.batch import lending_findings
from bftrainer.batch.batch_system import PilotRequest
from bftrainer.model.cluster import (
    LentGpus,
    Node,
    NodeState,
    Snapshot,
    not_idle_where_jobs_run,
)
from bftrainer.model.parts import NOT_SHARED, Lend, NodePart, as_lent
from bftrainer.model.site import Weight
from bftrainer.site.submit.helper import _SBATCH
from lsf_adapters.hosts import WHOLE_HOSTS
from slurm_plugins import adapter, lending, parse
from slurm_plugins.lending import SharingLimits
from slurm_plugins.parse import UnusedPart
from tests.support.parted_nodes import lent_by
from tests.support.snapshots import running, snapshot

FIXTURES = Path(__file__).parents[2] / "fixtures" / "slurm"
PILOTS_WHOLE = lending.PILOTS_EXCLUSIVE.format(name="bf")
RELEASES = ("22.05", "23.11", "25.05", "25.11", "26.05")
CLUSTER = "SelectType = select/cons_tres\nSelectTypeParameters = CR_CPU_MEMORY\n"
# As scontrol -o prints it: 22.05.8, cut to what is read, and 26.05, which has its own words.
PARTITION = (
    "PartitionName={} ExclusiveUser=NO MaxCPUsPerNode=UNLIMITED OverSubscribe=NO JobDefaults=(null)"
    " MaxMemPerNode=UNLIMITED"
)
NODE = (
    "NodeName=n1 CoresPerSocket=8 CPUAlloc=0 CPUEfctv=16 CPUTot=16 RealMemory=64000 Sockets=2"
    " Boards=1 ThreadsPerCore=1"
)
THREADS = "CoresPerSocket={} ThreadsPerCore=2"


def partitions(pilots: str = "", ordinary: str = "") -> str:
    """The partitions bf and batch; ``PARTITION`` with some words replaced: "A=B C=D"."""
    lines = []
    for name, changes in (("bf", pilots), ("batch", ordinary)):
        words = dict(word.split("=", 1) for word in PARTITION.format(name).split())
        words |= dict(word.split("=", 1) for word in changes.split())
        lines.append(" ".join(f"{key}={value}" for key, value in words.items()))
    return "\n".join(lines) + "\n"


def limits(
    pilots: str = "", ordinary: str = "", node: str = "", cluster: str = CLUSTER
) -> SharingLimits:
    words = dict(word.split("=", 1) for word in f"{NODE} {node}".split())
    line = " ".join(f"{key}={value}" for key, value in words.items())
    return SharingLimits(
        cluster=lending.cluster_limits(cluster),
        partitions=lending.partition_limits(partitions(pilots, ordinary)),
        nodes=lending.node_limits(line + "\n"),
    )


def row(
    gres: str = "gpu:4",
    gres_used: str = "gpu:0",
    cpus: str = "0/16/0/16",
    memory_used: int = 0,
    state: str = "mixed",
) -> parse.NodeRow:
    fields = (
        *("n1", state, "bf", gres, "16", "64000", "(null)", cpus, f"{memory_used}", gres_used),
        *("up", "12:00:00", "1-infinite", "1", "NO", "none"),
    )
    [found] = parse.node_rows(parse.FIELD.join(fields) + parse.RECORD + "\n")
    return found


def lent(found: parse.NodeRow, of: SharingLimits, pilots_gpus: int = 0) -> Node:
    assert found.room is not None
    node = replace(found.node, partitions=("batch", "bf"))
    return lending.with_parts(node, found.room, "bf", of, pilots_gpus)


@pytest.mark.parametrize(
    ("gres", "used", "cpus", "memory_used", "expected"),
    [
        ("gpu:4", "gpu:0", "0/16/0/16", 0, [("", 4, 4, 4, 16000)]),
        ("gpu:a100:4(S:0-1)", "gpu:a100:1(IDX:0)", "4/12/0/16", 16000, [("a100", 4, 3, 4, 16000)]),
        # Types, of which slices are some: CPUs and memory are divided by all GPUs.
        (
            *("gpu:a100:2,gpu:1g.10gb:6", "gpu:a100:1,gpu:1g.10gb:4", "6/10/0/16", 0),
            [("a100", 2, 1, 2, 8000), ("1g.10gb", 6, 2, 2, 8000)],
        ),
        # A GPU with a share in use is free for nobody.
        (
            *("gpu:4,shard:16", "gpu:0,shard:(null):2(1/4,1/4,0/4,0/4)", "2/14/0/16", 0),
            [("", 4, 2, 4, 16000)],
        ),
        # A job with more CPUs than its part leaves fewer to each other GPU, down to a quarter.
        ("gpu:4", "gpu:1", "10/6/0/16", 0, [("", 4, 3, 2, 16000)]),
        ("gpu:4", "gpu:1", "13/3/0/16", 0, [("", 4, 3, 1, 16000)]),
        ("gpu:4", "gpu:1", "14/2/0/16", 0, [("", 4, 2, 1, 16000)]),
        ("gpu:4", "gpu:1", "16/0/0/16", 0, [("", 4, 0, 1, 16000)]),
        # Memory is not divided any further: workers that ran with their part would run out of it.
        ("gpu:4", "gpu:1", "4/12/0/16", 40000, [("", 4, 1, 4, 16000)]),
        ("gpu:4", "gpu:1", "4/12/0/16", 64000, [("", 4, 0, 4, 16000)]),
        ("gpu:4", "gpu:4", "4/12/0/16", 0, [("", 4, 0, 4, 16000)]),
    ],
)  # fmt: skip
def test_what_a_node_lends(
    gres: str,
    used: str,
    cpus: str,
    memory_used: int,
    expected: list[tuple[str, int, int, int, int]],
) -> None:
    node = lent(row(gres, used, cpus, memory_used), limits())
    assert (lent_by(node), node.is_shared, node.why_whole) == (expected, True, "")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"pilots": "JobDefaults=DefCpuPerGPU=3,DefMemPerGPU=1000"}, (4, 4, 3, 1000)),
        ({"pilots": "JobDefaults=DefCpuPerGPU=12,DefMemPerGPU=60000"}, (4, 4, 4, 16000)),
        ({"cluster": CLUSTER + "JobDefaults = DefCpuPerGPU=2\n"}, (4, 4, 2, 16000)),
        ({"pilots": "MaxCPUsPerNode=8"}, (4, 4, 2, 16000)),
        ({"pilots": "MaxCPUsPerSocket=6"}, (4, 4, 3, 16000)),
        ({"pilots": "MaxMemPerNode=20000"}, (4, 4, 4, 5000)),
        ({"pilots": "MaxMemPerCPU=500"}, (4, 4, 4, 2000)),
        ({"cluster": CLUSTER + "MaxMemPerNode = 20000\n"}, (4, 4, 4, 5000)),
        # Cores and memory for the system: sinfo counts those cores as idle (measured on 22.05.8).
        ({"node": "CPUEfctv=14 CoreSpecCount=2 CPUSpecList=0,1"}, (4, 4, 3, 16000)),
        ({"node": "MemSpecLimit=4000"}, (4, 4, 4, 15000)),
        # Two threads to a core: a job has whole cores.
        ({"node": THREADS.format(4), "pilots": "MaxCPUsPerNode=12"}, (4, 4, 2, 16000)),
        ({"node": THREADS.format(8), "pilots": "MaxCPUsPerNode=12"}, (4, 4, 3, 16000)),
        ({"node": "RestrictedCoresPerGPU=2(0-7)"}, (4, 4, 4, 16000)),
        ({"cluster": CLUSTER.replace("_MEMORY", "")}, (4, 4, 4, 0)),
    ],
)  # fmt: skip
def test_settings_of_the_site_bound_a_part(
    settings: dict[str, str], expected: tuple[int, int, int, int]
) -> None:
    node = lent(row(), limits(**settings))
    assert lent_by(node) == [("", *expected)]


def test_cores_for_the_system_are_not_free() -> None:
    of = limits(node="CPUEfctv=12 CoreSpecCount=4")
    assert lent_by(lent(row("gpu:4", "gpu:3", "13/3/0/16"), of)) == [("", 4, 0, 1, 16000)]
    assert lent_by(lent(row("gpu:4", "gpu:3", "11/5/0/16"), of)) == [("", 4, 1, 1, 16000)]


def test_cores_of_gpus_in_use_are_none_of_the_others() -> None:
    """Three GPUs in use with one core each: of their twelve restricted ones nine are idle."""
    of = limits(node="RestrictedCoresPerGPU=4(0-15)")
    assert lent_by(lent(row("gpu:4", "gpu:3", "3/13/0/16"), of)) == [("", 4, 1, 4, 16000)]
    assert lent_by(lent(row("gpu:4", "gpu:2", "2/14/0/16"), of)) == [("", 4, 2, 4, 16000)]


def test_fewer_cpus_than_gpus_for_pilots_bound_their_number() -> None:
    of = limits(pilots="MaxCPUsPerNode=2")
    assert lending.bounds_cpus("bf", of)
    assert not lending.bounds_cpus("bf", limits(ordinary="MaxCPUsPerNode=4"))
    for n_used, n_free in ((0, 2), (1, 1), (2, 0), (3, 0)):
        assert lent_by(lent(row(), of, n_used)) == [("", 4, n_free, 1, 16000)]
    assert lent(row(), limits(pilots="MaxMemPerNode=3")).why_whole == lending.NO_CPU.format(
        name="bf"
    )


@pytest.mark.parametrize(
    ("settings", "why", "is_shared"),
    [
        ({"ordinary": "OverSubscribe=FORCE:2"}, "Partition batch has OverSubscribe=FORCE:2", True),
        ({"ordinary": "OverSubscribe=YES:4"}, "Partition batch has OverSubscribe=YES:4", True),
        ({"pilots": "OverSubscribe=FORCE:1"}, "Partition bf has OverSubscribe=FORCE:1", True),
        ({"pilots": "OverSubscribe=EXCLUSIVE"}, PILOTS_WHOLE, True),
        ({"pilots": "Exclusive=NODE"}, PILOTS_WHOLE, True),
        ({"pilots": "ExclusiveTopo=YES"}, PILOTS_WHOLE, True),
        ({"ordinary": "ExclusiveUser=YES"}, "Partition batch is ExclusiveUser", True),
        ({"ordinary": "Exclusive=USER"}, "Partition batch is ExclusiveUser", True),
        ({"pilots": "ExclusiveUser=YES"}, "Partition bf is ExclusiveUser", True),
        ({"pilots": "SelectTypeParameters=CR_SOCKET_MEMORY"}, "whole sockets", True),
        ({"cluster": "SelectType = select/linear\n"}, "SelectType=select/linear", False),
        ({"cluster": CLUSTER.replace("CPU", "SOCKET")}, "whole sockets", False),
        ({"ordinary": "MaxCPUsPerNode=many"}, "limits of partition batch could not be read", False),
        ({"node": "CPUTot=many"}, "Its cores or limits could not be read", True),
        ({"node": "NodeName=n2"}, "Its cores or limits could not be read", True),
    ],
)  # fmt: skip
def test_why_a_node_is_lent_as_a_whole(
    settings: dict[str, str], why: str, *, is_shared: bool
) -> None:
    node = lent(row(), limits(**settings))
    assert (node.lends, node.is_shared) == ((), is_shared)
    assert why in node.why_whole
    assert node.why_whole.endswith(".")


def test_jobs_with_whole_nodes_leave_parts_to_pilots_alone() -> None:
    for words in ("OverSubscribe=EXCLUSIVE", "Exclusive=TOPO"):
        node = lent(row(), limits(ordinary=words))
        assert (len(node.lends), node.is_shared) == (1, False)


def test_what_slurm_does_not_tell_lends_nothing() -> None:
    assert lent(row("gpu:4", "(null)"), limits()).why_whole.startswith(
        "Slurm does not tell how many of its GPUs are in use ("
    )
    unread = lent(row(), SharingLimits())
    assert (unread.lends, unread.why_whole) == ((), lending.CLUSTER_UNREAD)


@pytest.mark.parametrize("state", ["down", "drained", "reserved"])
def test_a_node_that_cannot_take_jobs_now_has_no_free_gpu(state: str) -> None:
    assert lent_by(lent(row(state=state), limits())) == [("", 4, 0, 4, 16000)]


def test_a_node_on_which_a_job_started_since_it_was_read_has_no_free_gpu() -> None:
    """What the job has is told by the next look; with --exclusive it is everything."""
    read = row(state="idle")
    assert read.room is not None
    (node,) = not_idle_where_jobs_run([read.node], [running("7", "n1")])
    node = replace(node, partitions=("batch", "bf"))
    full = lending.with_parts(node, read.room, "bf", limits())
    assert lent_by(full) == [("", 4, 0, 4, 16000)]
    as_last_read = lent(read, limits())
    assert lent_by(as_last_read) == [("", 4, 4, 4, 16000)]
    assert lent_by(not_idle_where_jobs_run([as_last_read], [running("7", "n1")])[0]) == lent_by(
        full
    )


def test_gpus_of_a_node_on_which_a_job_completes_are_those_that_it_does_not_have() -> None:
    """They are not for anybody now, and have been given to nobody either."""
    ((_, n_gpus, n_free, _, _),) = lent_by(
        lent(row("gpu:4", "gpu:1", state="completing"), limits())
    )
    assert (n_gpus, n_free) == (4, 3)


@pytest.mark.parametrize("release", RELEASES)
def test_recorded_settings_are_read(release: str) -> None:
    recorded = FIXTURES / release
    read = lending.partition_limits((recorded / "partitions.txt").read_text())
    assert set(read) >= {"batch", "bf"}
    assert read["bf"] == lending.PartitionLimits()
    cluster = lending.cluster_limits((recorded / "config.txt").read_text())
    assert (cluster.why_whole, cluster.is_memory_counted) == ("", True)


def test_what_people_write_of_a_node_changes_none_of_its_limits() -> None:
    comment = "Comment=CPUEfctv=1 Sockets=9 MemSpecLimit=7 Reason=CPUTot=2"
    assert lending.node_limits(f"{NODE} {comment}\n")["n1"] == replace(
        lending.node_limits(NODE)["n1"], memory_mb=7
    ), "a setting that Slurm left out may be invented, to lend less"


@given(
    used=st.integers(0, 4),
    n_cpus=st.integers(0, 16),
    memory_mb=st.integers(0, 64_000),
    most=st.sampled_from(["", "MaxCPUsPerNode=8", "JobDefaults=DefCpuPerGPU=3", "MaxMemPerCPU=9"]),
)
def test_parts_always_fit_into_what_is_free(
    used: int, n_cpus: int, memory_mb: int, most: str
) -> None:
    gres_used = f"gpu:a:{used // 2},gpu:b:{used - used // 2}"
    found = row("gpu:a:2,gpu:b:2", gres_used, f"{16 - n_cpus}/{n_cpus}/0/16", 64_000 - memory_mb)
    node = lent(found, limits(pilots=most))
    n_free = sum(gpus.n_free for gpus in node.lends)
    assert 0 <= n_free <= 4 - used
    assert all(gpus.cpus >= 1 and gpus.memory_mb >= 1 for gpus in node.lends)
    assert sum(gpus.n_free * gpus.cpus for gpus in node.lends) <= n_cpus
    assert sum(gpus.n_free * gpus.memory_mb for gpus in node.lends) <= memory_mb


# ---- what the policy makes of it ---------------------------------------------------------

WITH_PARTS = Node(
    name="n1",
    state=NodeState.IDLE,
    gpus=4,
    is_shared=True,
    lends=(LentGpus(gpu_type="", n_gpus=4, n_free=4, cpus=4, memory_mb=1),),
)
AS_A_WHOLE = replace(WITH_PARTS, name="n2", lends=(), why_whole="It is so.")
NOT_BESIDE = replace(WITH_PARTS, name="n3", is_shared=False)
PLAIN = Node(name="n4", state=NodeState.IDLE)
ALL = (WITH_PARTS, AS_A_WHOLE, NOT_BESIDE, PLAIN)


def test_whole_nodes_show_nothing_of_parts() -> None:
    seen: Snapshot = snapshot(ALL)
    nodes = as_lent(seen, Lend.NODES).nodes or ()
    assert {(node.lends, node.is_shared, node.why_whole) for node in nodes} == {((), False, "")}
    again = as_lent(seen, Lend.NODES, as_lent(seen, Lend.NODES)).nodes or ()
    assert all(map(Node.__eq__, nodes, again))
    plain = snapshot((PLAIN,))
    assert as_lent(plain, Lend.NODES) is plain


def test_auto_lends_gpus_where_jobs_share_nodes() -> None:
    nodes = as_lent(snapshot(ALL), Lend.AUTO).nodes or ()
    assert [node.why_whole for node in nodes] == ["", "It is so.", NOT_SHARED, ""]
    assert [bool(node.lends) for node in nodes] == [True, False, False, False]
    seen = snapshot(ALL)
    assert as_lent(seen, Lend.GPUS) is seen


def test_findings_name_what_is_not_lent() -> None:
    def codes(lend: Lend, *nodes: Node) -> list[tuple[str, Weight]]:
        return [(one.code, one.weight) for one in lending_findings.findings(nodes, lend)]

    assert codes(Lend.NODES, *ALL) == [("BFT-2120", Weight.LOSS)]
    assert codes(Lend.NODES, AS_A_WHOLE, NOT_BESIDE, PLAIN) == []
    assert codes(Lend.AUTO, *ALL) == [("BFT-2121", Weight.LOSS)]
    assert codes(Lend.AUTO, WITH_PARTS, NOT_BESIDE, PLAIN) == []
    assert codes(Lend.GPUS, AS_A_WHOLE) == [("BFT-2122", Weight.STOP)]
    assert codes(Lend.GPUS, PLAIN) == [("BFT-2122", Weight.STOP)]
    [found] = lending_findings.findings((AS_A_WHOLE, replace(AS_A_WHOLE, name="n5")), Lend.AUTO)
    assert found.cost == "2 nodes (n2 and others) are lent as a whole. It is so."


def test_a_batch_system_that_lends_whole_nodes_alone_says_so() -> None:
    """LSF: the policy asks for GPUs, and hosts are lent as a whole."""
    of_lsf = replace(AS_A_WHOLE, is_shared=False, why_whole=WHOLE_HOSTS)

    def told(lend: Lend, *nodes: Node) -> list[tuple[str, str]]:
        each = lending_findings.findings(nodes, lend, lends_parts=False)
        return [(one.code, one.cost) for one in each]

    cost = "Node n2 is lent as a whole. Pilots of LSF have whole hosts."
    assert told(Lend.AUTO, of_lsf, PLAIN) == [("BFT-2121", cost)]
    assert told(Lend.AUTO, PLAIN) == []
    assert told(Lend.NODES, of_lsf) == []
    assert [code for code, _ in told(Lend.GPUS, of_lsf)] == ["BFT-2122"]


# ---- a pilot's request -------------------------------------------------------------------


def _part(gpu_type: str = "gpu:a100", memory_mb: int = 900) -> NodePart:
    return NodePart(name="n1/0", node="n1", gpu_type=gpu_type, gpus=2, cores=8, memory_mb=memory_mb)


@pytest.fixture
def argv(tmp_path: Path) -> Callable[..., tuple[str, ...]]:
    system = adapter.create({})

    def made(part: NodePart | None, *, is_enforced: bool = False) -> tuple[str, ...]:
        request = PilotRequest(
            pilot_id="p000001",
            node="n1" if part is None else part.name,
            time_limit_s=600.0,
            agent_argv=("/usr/bin/python3", "-c", "pass"),
            log_path=tmp_path / "log",
            gpus=4,
            part=part,
        )
        system._slurm.is_binding_enforced = is_enforced
        words = system.launcher._argv(request, 10, 30.0)
        return tuple(word for word in words if not word.startswith("--deadline"))

    return made


def test_a_pilot_asks_for_its_part(argv: Callable[..., tuple[str, ...]]) -> None:
    words = argv(_part())
    asked = ("--nodelist=n1", "--ntasks=1", "--cpus-per-task=8", "--mem=900M", "--gres=gpu:a100:2")
    assert set(asked) <= set(words)
    assert not any(word.startswith(("--exclusive", "--comment", "--gres-flags")) for word in words)
    assert "--gres=gpu:2" in argv(_part("gpu"))
    assert not any(word.startswith("--mem") for word in argv(_part(memory_mb=0)))
    assert "--gres-flags=disable-binding" in argv(_part(), is_enforced=True)


def test_a_whole_node_is_asked_for_as_ever(argv: Callable[..., tuple[str, ...]]) -> None:
    words = argv(None, is_enforced=True)
    assert {"--exclusive", "--mem=0", "--gres=gpu:4", "--nodelist=n1"} <= set(words)
    assert not any(word.startswith(("--ntasks", "--gres-flags", "--comment")) for word in words)


def test_the_submit_helper_takes_the_options_of_parts(
    argv: Callable[..., tuple[str, ...]],
) -> None:
    for part in (_part(), _part("gpu:1g.10gb"), _part("gpu", 0), None):
        words = argv(part, is_enforced=True)[1:]
        assert [word for word in words if not _SBATCH.fullmatch(word)] == []


def test_a_room_is_known_of_nodes_with_gpus_alone() -> None:
    assert row("nvme:1", "nvme:0").room is None
    room = row("gpu:2", "gpu:1", "4/12/0/16", 1000).room
    assert isinstance(room, UnusedPart)
    assert (room.cpus, room.memory_mb, room.gpus[0].free) == (12, 63_000, 1)
