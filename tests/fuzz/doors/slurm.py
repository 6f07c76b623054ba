"""What Slurm's commands print and its hook writes, with what users wrote in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hypothesis.strategies import SearchStrategy

from bftrainer.decide.queue.models import PrintedQueue
from bftrainer.lab.harm.replica import share_of
from bftrainer.model.census import census_of
from bftrainer.model.cluster import Partition, meets, rule_of
from bftrainer.model.generic_resources import gpus_of
from bftrainer.model.hostlist import ParseError, expand
from slurm_plugins import doctor, job_requests, parse, states
from slurm_plugins.described_site import read_site
from slurm_plugins.fields import ways_of, whole
from slurm_plugins.gres import gpus_left, gpus_needed
from slurm_plugins.hook.lines import announcement
from slurm_plugins.hook.squeue_row import ClusterFacts
from tests.fuzz.door import Door
from tests.fuzz.hostile import texts
from tests.support.snapshots import T0, node, pending, snapshot

_RECORDED = Path(__file__).parents[2] / "fixtures" / "slurm" / "22.05"
_NAMES = [f"n{i}" for i in range(64)]
_NODES = [node(name, features=("abcd"[len(name) % 4], "fast")) for name in _NAMES]
_SITE = replace(snapshot(_NODES, []), partitions=(Partition(name="batch"), Partition(name="p")))
# Of a job in the queue, and of what it asks for: all but its id may be odd, most by its user.
_JOB = (
    "7",
    "",
    "PENDING",
    "None",
    "",
    "",
    "(null)",
    "",
    "1",
    "1795198022",
    "u",
    "",
    "",
    "0",
    "",
    "",
    "",
)
_OF_JOB = range(1, 17)
_ASKED = ("7", *[""] * 18)
_OF_ASKED = range(1, 19)
_NO_SEPARATORS = dict.fromkeys(map(ord, ("\n", parse.RECORD, parse.FIELD)))
# What is seen of the others.
_QUEUE = (_RECORDED / "busy.squeue.txt").read_text()
_QUEUED = parse.jobs(_QUEUE)
_WANTS = (_RECORDED / "asks.asked.txt").read_text()
_WANTED = {**job_requests.rows(_WANTS), "7": None}


def _recorded(*names: str) -> SearchStrategy[str]:
    return texts(*((_RECORDED / f"{name}.txt").read_text() for name in names))


def _ask(text: str) -> None:
    """Judge jobs that ask for it, and nodes by it."""
    meets(("a", "fast"), rule_of(text) or ())
    job = pending("7", 2)
    queue = PrintedQueue(census_of(_SITE), T0, 30.0)
    for one in (
        replace(job, wants=ways_of(text)),
        replace(job, partitions=tuple(text.split(","))),
        replace(job, waits_for=text),
    ):
        queue.requests.of(one)


def _written(fields: tuple[str, ...], odd: range, text: str) -> str:
    """Return a record in which these fields say that."""
    plain = text[:100_000].translate(_NO_SEPARATORS)  # it is written into many fields
    return parse.FIELD.join(plain if i in odd else value for i, value in enumerate(fields))


def _beside_another(text: str) -> None:
    """Have a job in the queue that says so in all its fields: others are seen as ever."""
    row = f"{parse.RECORD}{_written(_JOB, _OF_JOB, text)}\n"
    if parse.jobs(row + _QUEUE)[1:] != _QUEUED:
        raise AssertionError("another job was read otherwise")
    row = f"{_written(_ASKED, _OF_ASKED, text)}{parse.RECORD}\n"
    if {**job_requests.rows(row + _WANTS), "7": None} != _WANTED:
        raise AssertionError("what another job asks for was read otherwise")


def _configured(text: str) -> None:
    config = parse.controller_config(text)
    for number in (config.bf_interval_s, config.bf_resolution_s, config.bf_window_s):
        assert 1.0 <= number <= 3e6


def _advised(text: str) -> None:
    for config, partitions in ((text, ""), (f"SchedulerParameters={text[:999]}", text)):
        doctor.findings(
            doctor.SlurmSettings(
                config=config, partitions=partitions, pilot_partition="bf", queue_length=3,
                n_nodes=3, has_hook=False,
            )
        )  # fmt: skip


def _value(text: str) -> None:
    for reader in (parse.duration_s, parse.time_s, parse.memory_mb_of, whole):
        try:
            reader(text)
        except ParseError:
            continue


def _gres_used(text: str) -> None:
    """Whatever is said to be in use, no more GPUs are left than there are."""
    left = gpus_left("gpu:a100:2(S:0),gpu:2,shard:16", text)
    assert 0 <= left.count <= 4
    assert not (left.unclear and left.count)
    assert len(left.unclear) < 200


def _state(text: str) -> None:
    states.node_state(text)
    states.is_to_reboot(text)
    states.job_state(text)
    states.observation(text, node=None, start_s=None, reason="")


def _said(text: str) -> None:
    for line in text.split("\n")[:20]:
        announcement(line, 1, ClusterFacts(cpus_per_node=4))


def _described(text: str) -> None:
    """Read it as slurm.conf, and as what scontrol shows; nodes have what is left for jobs."""
    text = text[:20_000]  # the administrator's own file may be long
    for words in ((text,), (_DESCRIBED, text)):
        try:
            site = read_site(*words)
        except ParseError:
            continue
        assert site.nodes
        assert all(node.cpus >= 0 and node.memory_mb >= 0 for node in site.nodes)
        assert all(set(p.nodes) <= {node.name for node in site.nodes} for p in site.partitions)


def _resources(text: str) -> None:
    share = share_of(text, 3, has_memory=True)
    assert share.cpus >= 1
    assert min(share.memory_mb, share.gpus) >= 0


def _door(
    name: str, call: Callable[[str], object], inputs: SearchStrategy[str], *, refuses: bool = False
) -> Door:
    return Door(name=name, call=call, inputs=inputs, refuses_with=(ParseError,) if refuses else ())


_CONSTRAINTS = texts("a&b", "(a|b)&c|d", "[rack1|rack2]&fast", "[(a&b)*1&c*2]", "a*4", "batch,p")
_LINES = texts(
    "submit\t1795198022\t1000\tbatch\t4\t8\t2\t8\t10\t(a|b)&c\tn[1-2]\tgres:gpu:2\t0\t0\t\t4\tbatch",
    "end\t1795198022\t17\tbatch\tn[1-3]",
)
_GRES_USED = texts(
    "gpu:(null):2(IDX:0-1),shard:a100:5(3/4,2/4,-/4)", "gres/gpu=1,gres/gpu:a100=1", "mps:1K"
)
_DESCRIBED = """\
SchedulerParameters=bf_interval=60,bf_window=2880
NodeName=DEFAULT Sockets=2 CoresPerSocket=16 RealMemory=256000
NodeName=n[01-03,05] CoreSpecCount=2 Weight=5 Gres=gpu:a100:4(S:0-1)
NodeSet=some Nodes=n[01-02]
PartitionName=batch Nodes=some OverSubscribe=EXCLUSIVE MaxTime=1-00:00:00
"""
_SHOWN = "NodeName=n1 CPUEfctv=4 CPUTot=4 State=IDLE\nPartitionName=b Nodes=n1 PriorityTier=2\n"
_RESOURCES = texts("cpu=9,gres/gpu=4,gres/gpu:a100=4,mem=3G,node=2", "mem=500M")
_VALUES = texts("2-03:04:05", "1795165335", "2026-11-20T09:02:15", "1.50G", "500M", "12+", "3-00")

DOORS = (
    _door("slurm-host-list", expand, texts("n[1-3,07],login", "r[1-2]n[0-1]x8"), refuses=True),
    _door("slurm-constraint", _ask, _CONSTRAINTS, refuses=True),
    _door("slurm-gres-used", _gres_used, _GRES_USED),
    _door("slurm-gres-asked", gpus_needed, _GRES_USED, refuses=True),
    _door("slurm-gres", gpus_of, texts("gpu:a100:4(S:0-1),nvme:1", "gres:gpu"), refuses=True),
    _door("slurm-jobs", parse.jobs, _recorded("busy.squeue", "asks.squeue"), refuses=True),
    _door("slurm-job-beside-another", _beside_another, _CONSTRAINTS | _VALUES),
    _door("slurm-asked", job_requests.rows, _recorded("busy.asked", "asks.asked"), refuses=True),
    _door("slurm-nodes", parse.node_rows, _recorded("busy.sinfo", "trouble.sinfo"), refuses=True),
    _door("slurm-names", parse.pilot_names, _recorded("busy.names"), refuses=True),
    _door(
        "slurm-reservations", parse.reservations, _recorded("trouble.reservations"), refuses=True
    ),
    _door("slurm-cycle", parse.backfill_stats, _recorded("busy.sdiag", "idle.sdiag"), refuses=True),
    _door("slurm-config", _configured, _recorded("config"), refuses=True),
    _door("slurm-description", _described, texts(_DESCRIBED, _SHOWN)),
    _door("slurm-resources", _resources, _RESOURCES, refuses=True),
    _door("slurm-doctor", _advised, _recorded("config")),
    _door("slurm-value", _value, _VALUES),
    _door("slurm-state", _state, texts("idle*", "MIXED-", "PENDING", "down~*")),
    _door("slurm-hook-line", _said, _LINES),
)
