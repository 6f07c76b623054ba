"""Idle GPUs of a Slurm log: on whole and on partly used nodes, by type and by partition."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from bftrainer.batch.traces import (
    Fragments,
    ReadOptions,
    TraceError,
    jobs,
    read_trace,
    write_trace,
)
from bftrainer.batch.traces.gpu_pools import idle_gpus

FIXTURES = Path(__file__).parents[1] / "fixtures" / "traces"
HOUR_S, DAY_H = 3600, 24
HEADER = "JobID|Submit|Start|End|NNodes|NodeList|State|Partition|Timelimit|AllocTRES"
# Twenty-four hours in which each figure is a whole number of hours.
SPAN_S = (0, DAY_H * HOUR_S)
SINFO = """\
a1|gpu*|gpu:a100:4(S:0-1)
a2|gpu*|gpu:a100:4(S:0-1)
v1|old|gpu:v100:2
m1|gpu*|gpu:a100:2,gpu:v100:2
c1|cpu|(null)
a1|all|gpu:a100:4(S:0-1)
"""
# id, hours from and to, nodes, partition, AllocTRES
ALL_DAY = ("99", 0, 24, "c1", "cpu", "cpu=8,mem=4G,node=1")
DAY = (
    ("2", 0, 6, "a1", "gpu", "billing=2,cpu=8,gres/gpu=1,gres/gpu:a100=1,node=1"),
    ("3", 3, 12, "a[1-2]", "gpu", "cpu=16,gres/gpu=3,gres/gpu:a100=3,node=2"),
    ("4", 2, 4, "v1", "old", "cpu=2,gres/gpu=1,node=1"),
    ("5", 20, 24, "v1", "old", "cpu=2,node=1"),
)
Pools = dict[tuple[str, str], tuple[float, float | None]]


def _log(rows: Iterable[tuple[str, float, float, str, str, str]], header: str = HEADER) -> str:
    lines = [
        f"{job_id}|{start * HOUR_S:g}|{start * HOUR_S:.0f}|{end * HOUR_S:.0f}|1|{nodes}|COMPLETED|"
        f"{partition}|1:00|{tres}"
        for job_id, start, end, nodes, partition, tres in (ALL_DAY, *rows)
    ]
    return "\n".join([header, *lines, ""])


@dataclass(frozen=True, kw_only=True)
class Written:
    """A log and what describes its machine."""

    log: Path
    options: ReadOptions

    def read(self, **changes: object) -> Fragments:
        return read_trace(self.log, "sacct", options=replace(self.options, **changes))  # type: ignore[arg-type]


def _written(folder: Path, text: str, sinfo: str = SINFO, closed: str = "") -> Written:
    (folder / "log.txt").write_text(text)
    (folder / "sinfo.txt").write_text(sinfo)
    (folder / "closed.txt").write_text(f"NodeName|TimeStart|TimeEnd\n{closed}")
    options = ReadOptions(
        start_s=SPAN_S[0],
        end_s=SPAN_S[1],
        sinfo=folder / "sinfo.txt",
        closed=folder / "closed.txt",
        ignored=("bf",),
    )
    return Written(log=folder / "log.txt", options=options)


def _pools(trace: Fragments) -> Pools:
    """Return whole and leftover GPU-hours a day by partition and type."""
    gpus = idle_gpus(trace)
    assert gpus is not None
    return {
        (pool.partition, pool.gpu_type): (pool.whole_gpu_h_per_day, pool.leftover_gpu_h_per_day)
        for pool in gpus.pools
    }


def test_a_day_worked_out_by_hand(tmp_path: Path) -> None:
    trace = _written(tmp_path, _log(DAY)).read()
    # a1: 0-3 h one used, 3 left; 3-6 h one and two (3 of 2 nodes, rounded up), 1 left; 6-12 h
    # two, 2 left: 9 + 3 + 12 = 24; whole 12 h of 4. a2: 3-12 h two left: 18; whole 15 h of 4.
    # m1: never a job: 24 h of two a100 and of two v100, of partition gpu.
    # v1: 2-4 h one of two left: 2; 20-24 h a job without GPU: 8; whole 18 h of 2.
    assert _pools(trace) == {
        ("gpu", "a100"): (48 + 60 + 48, 24 + 18),
        ("gpu", "v100"): (48, 0),
        ("old", "v100"): (36, 2 + 8),
    }
    gpus = idle_gpus(trace)
    assert gpus is not None
    assert gpus.n_gpus_by_type == {"a100": 10, "v100": 4}
    assert {(p.partition, p.gpu_type): (p.n_nodes, p.n_gpus) for p in gpus.pools} == {
        ("gpu", "a100"): (3, 10), ("gpu", "v100"): (1, 2), ("old", "v100"): (1, 2),
    }  # fmt: skip
    # Whole nodes are idle as without sinfo, and m1, on which no job ran, is known now.
    idle_h = trace.node_seconds() / HOUR_S
    assert idle_h == 12 + 15 + 18 + 24
    assert dict(zip(trace.names, trace.node_types or (), strict=True)) == {
        "c1": "cpu", "a1": "gpu:a100:4", "a2": "gpu:a100:4", "v1": "gpu:v100:2",
        "m1": "gpu:a100:2,gpu:v100:2",
    }  # fmt: skip
    without = _written(tmp_path, _log(DAY)).read(sinfo=None)
    assert without.node_seconds() / HOUR_S == 12 + 15 + 18
    assert without.gpus is None


def test_a_closed_node_has_no_idle_gpu(tmp_path: Path) -> None:
    closed = f"a1|{4 * HOUR_S}|{13 * HOUR_S}\nm1|0|{24 * HOUR_S}\n"
    pools = _pools(_written(tmp_path, _log(DAY), closed=closed).read())
    # a1 is open 0-4 h (9, then 1 left) and 13-24 h (whole).
    assert pools == {
        ("gpu", "a100"): (44 + 60, 9 + 1 + 18),
        ("gpu", "v100"): (0, 0),
        ("old", "v100"): (36, 10),
    }


def test_a_part_of_nodes_and_time_is_cut_out(tmp_path: Path) -> None:
    trace = _written(tmp_path, _log(DAY)).read()
    at = trace.names.index("a1")
    part = trace.restrict(slice(at, at + 2), start_s=2.0 * HOUR_S, hours=8.0)
    assert part.names == ("a1", "a2")
    # A third of a day, told for a day. a1: 3 + 3 + 8 left. a2: 14 left, whole 1 h.
    assert _pools(part) == {("gpu", "a100"): (3 * 4, 3 * (14 + 14))}


def test_what_the_log_does_not_tell_counts_as_used(tmp_path: Path) -> None:
    rows = [
        ("1", 0, 10, "a1", "gpu", ""),  # nothing: all
        ("2", 0, 10, "a2", "gpu", "cpu=1,gres/shard=1,node=1"),  # a part: one
        ("3", 0, 10, "m1", "gpu", "cpu=1,gres/gpu=1,node=1"),  # no type: one of each
        ("4", 0, 10, "v1", "old", "gres/gpu=3,gres/gpu:h100=3"),  # a type that it lacks
        ("6", 10, 20, "m1", "gpu", "gres/gpu=2,gres/gpu:a100=2"),
        ("7", 10, 20, "v1", "bf", "gres/gpu=1"),  # a pilot
        ("8", 10, 20, "a2", "gpu", "gres/gpu=oops"),
        ("9", 20, 24, "m1", "gpu", "gres/gpu:V100=1,gres/gpu=1"),  # in capitals
    ]
    trace = _written(tmp_path, _log(rows)).read()
    assert _pools(trace) == {
        ("gpu", "a100"): (14 * 4 + 4 * 4, 30 + 10 + 8),
        ("gpu", "v100"): (0, 10 + 20 + 4),
        ("old", "v100"): (2 * 14, 0),
    }
    notes = " / ".join(trace.notes)
    assert "of 2 runs the log says nothing of GPUs" in notes
    assert "on nodes with several types" in notes
    assert "more GPUs of 1 node than sinfo lists" in notes


@pytest.mark.parametrize(
    ("column", "tres", "why"),
    [
        ("JobName", "gres/gpu=1", "no column AllocTRES"),
        ("AllocTRES", "cpu=1,node=1", "AccountingStorageTRES"),
        ("ReqTRES", "gres/gpu=1", ""),
    ],
)
def test_leftover_is_not_told_where_the_log_has_no_gpus(
    tmp_path: Path, column: str, tres: str, why: str
) -> None:
    rows = [("1", 0, 12, "a1", "gpu", tres)]
    text = _log(rows, HEADER.replace("AllocTRES", column))
    gpus = idle_gpus(_written(tmp_path, text, "a1|gpu|gpu:4").read())
    assert gpus is not None
    assert why in gpus.unclear
    assert [(p.whole_gpu_h_per_day, p.leftover_gpu_h_per_day) for p in gpus.pools] == [
        (48.0, None if why else 36.0)
    ]


def test_unfillable_time_is_of_whole_nodes(tmp_path: Path) -> None:
    trace = _written(tmp_path, _log(DAY)).read().unfillable()
    gpus = idle_gpus(trace)
    assert gpus is not None
    assert "pending job" in gpus.unclear
    assert {pool.leftover_gpu_h_per_day for pool in gpus.pools} == {None}


def test_what_a_real_slurm_printed() -> None:
    begin_s, end_s = 1795949116.0, 1795949134.0
    sinfo = FIXTURES / "sinfo-gpus.txt"
    options = ReadOptions(start_s=begin_s, end_s=end_s, sinfo=sinfo, ignored=("bf",))
    trace = read_trace(FIXTURES / "sacct-gpus.txt", options=options)
    # Seconds from the begin. n1: job 1 from 0 to 4, job 2 from 1 to 5, job 3 from 4 to 8, of one
    # a100 each; 4 of two, 7 of both: 1 and 3 s one is left, 8-9 and 13-14 both. n2: 3, of one a100,
    # from 4 to 8, 4 and 5 take all from 9 to 13, as the type of 5 is not told and 3 of 4's GPUs
    # on 2 nodes are two each.
    seconds = (end_s - begin_s) / DAY_H
    told = _pools(trace).items()
    pools = {key: (whole * seconds, (left or 0.0) * seconds) for key, (whole, left) in told}
    assert pools == {
        ("batch", "a100"): pytest.approx((2 * 2 + 10 * 2, 1 + 3 + 4)),
        ("batch", "v100"): pytest.approx((10, 4)),
    }
    assert trace.node_types == ("gpu:a100:2", "gpu:a100:2,gpu:v100:1", "cpu")


# A machine whose every second is counted. Node: partition and GPUs by type.
MACHINE: Mapping[str, tuple[str, Mapping[str, int]]] = {
    "n0": ("p", {"a": 4}),
    "n1": ("p", {"a": 4}),
    "n2": ("q", {"a": 2, "b": 3}),
    "n3": ("q", {"b": 8}),
    "n4": ("q", {}),
}
SECONDS = 300


@dataclass(frozen=True, kw_only=True)
class Job:
    """A made-up job: GPUs of each of its nodes by type, "" without one."""

    number: int
    start_s: int
    end_s: int
    nodes: tuple[str, ...]
    gpus: Mapping[str, int]

    def line(self) -> str:
        count = len(self.nodes)
        typed = [f"gres/gpu:{kind}={n * count}" for kind, n in self.gpus.items() if kind]
        total = f"gres/gpu={sum(self.gpus.values()) * count}"
        return (
            f"{self.number}|{self.start_s}|{self.start_s}|{self.end_s}|{count}|"
            f"{','.join(self.nodes)}|COMPLETED|p|1:00|cpu=1,{','.join([total, *typed])}"
        )


def _jobs(chance: random.Random) -> list[Job]:
    made = []
    for number in range(1, 60):
        start_s = chance.randrange(-50, SECONDS)
        nodes = tuple(chance.sample(sorted(MACHINE), chance.choice([1, 1, 1, 2])))
        kinds = chance.sample(["a", "b", ""], chance.choice([0, 1, 1, 2]))
        made.append(
            Job(
                number=number,
                start_s=start_s + 1000,
                end_s=start_s + 1000 + chance.choice([0, 1, 5, 20, 40]),
                nodes=nodes,
                gpus={kind: chance.randrange(1, 4) for kind in kinds},
            )
        )
    return made


def _by_second(made: list[Job], closed: Mapping[str, tuple[int, int]]) -> Counter[tuple[str, ...]]:
    """Count idle GPUs second by second: a row of GPUs for each node, from which jobs take some."""
    idle = Counter[tuple[str, ...]]()
    for second, node in itertools.product(range(1000, 1000 + SECONDS), MACHINE):
        partition, offer = MACHINE[node]
        begin_s, end_s = closed.get(node, (0, 0))
        if begin_s <= second < end_s:
            continue
        here = [job for job in made if node in job.nodes and job.start_s <= second < job.end_s]
        for kind, n_gpus in offer.items():
            left = [True] * n_gpus
            for job in here:
                for wanted, n_taken in job.gpus.items():
                    is_taken = wanted == kind or wanted not in offer
                    for _ in range(n_taken if is_taken else 0):
                        if True in left:
                            left[left.index(True)] = False
            idle[partition, kind, "leftover" if here else "whole"] += left.count(True)
    return idle


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("pairs_at_once", [2_000_000, 10])
def test_idle_gpus_are_those_counted_second_by_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, pairs_at_once: int
) -> None:
    monkeypatch.setattr("bftrainer.batch.traces.gpu_use.PAIRS_AT_ONCE", pairs_at_once)
    assert pairs_at_once in {10, jobs.PAIRS_AT_ONCE}
    chance = random.Random(seed)  # noqa: S311
    made = _jobs(chance)
    closed = {"n1": (1040, 1100), "n2": (1200, 1210)}
    sinfo = [
        f"{name}|{partition}|{','.join(f'gpu:{k}:{n}' for k, n in offer.items()) or '(null)'}"
        for name, (partition, offer) in MACHINE.items()
    ]
    events = [f"{name}|{begin_s}|{end_s}" for name, (begin_s, end_s) in closed.items()]
    text = "\n".join([HEADER, *(job.line() for job in made)])
    written = _written(tmp_path, text, "\n".join(sinfo), "\n".join(events))
    trace = written.read(start_s=1000.0, end_s=1000.0 + SECONDS)
    gpus = idle_gpus(trace)
    assert gpus is not None
    read = Counter[tuple[str, ...]]()
    for pool in gpus.pools:
        for what, hours in (
            ("whole", pool.whole_gpu_h_per_day),
            ("leftover", pool.leftover_gpu_h_per_day or 0.0),
        ):
            read[pool.partition, pool.gpu_type, what] = round(hours / DAY_H * SECONDS)
    counted = _by_second(made, closed)
    assert sum(counted.values()) > 500
    assert read == counted
    assert read.total() == counted.total()


def test_the_rows_of_a_node_and_type_do_not_overlap_and_are_joined(tmp_path: Path) -> None:
    gpus = _written(tmp_path, _log(DAY)).read().gpus
    assert gpus is not None
    of_a2 = gpus.node == 2
    # Job 3 alone; a1 has three rows.
    assert list(zip(gpus.start_s[of_a2], gpus.end_s[of_a2], gpus.count[of_a2], strict=True)) == [
        (3 * HOUR_S, 12 * HOUR_S, 2)
    ]
    assert (np.bincount(gpus.node) == [0, 3, 1, 2]).all()


def test_rows_of_different_nodes_are_not_joined(tmp_path: Path) -> None:
    rows = [("1", 0, 10, "a1", "gpu", "gres/gpu=1"), ("2", 10, 24, "a2", "gpu", "gres/gpu=1")]
    gpus = _written(tmp_path, _log(rows)).read().gpus
    assert gpus is not None
    assert (gpus.node.tolist(), gpus.count.tolist()) == ([1, 2], [3, 3])


def test_npz_keeps_the_gpus_and_csv_does_not(tmp_path: Path) -> None:
    trace = _written(tmp_path, _log(DAY)).read()
    for told in (trace, trace.unfillable()):
        write_trace(tmp_path / "day.npz", told)
        again = read_trace(tmp_path / "day.npz")
        assert idle_gpus(again) == idle_gpus(told)
        assert again.node_types == trace.node_types
    write_trace(tmp_path / "day.csv", trace)
    assert read_trace(tmp_path / "day.csv").gpus is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gpu_installed", np.array([[4]])),
        ("gpu_installed", -np.ones((5, 2), dtype=np.int64)),
        ("gpu_count", np.array([9, 9, 9, 9, 9, 9])),
        ("gpu_count", np.array([1])),
        ("gpu_node", np.array([7, 7, 7, 7, 7, 7])),
        ("gpu_kind", np.array(["a", "b", "c", "d", "e", "f"])),
        ("gpu_end", np.zeros(6)),
        ("gpu_start", np.full(6, np.nan)),
        ("gpu_kinds", np.array(["a100", "a100"])),
        ("gpu_node", np.full(6, 1 << 40)),
    ],
)
def test_gpus_of_npz_that_contradict_each_other_are_refused(
    tmp_path: Path, name: str, value: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
) -> None:
    write_trace(tmp_path / "day.npz", _written(tmp_path, _log(DAY)).read())
    with np.load(tmp_path / "day.npz") as arrays:
        held = dict(arrays)
    assert held["gpu_count"].shape == (6,)
    np.savez(tmp_path / "bad.npz", **{**held, name: value})
    with pytest.raises(TraceError) as refused:
        read_trace(tmp_path / "bad.npz")
    assert refused.value.code == "BFT-4001"


@pytest.mark.parametrize(
    ("sinfo", "code"),
    [
        ("a1 gpu gpu:4\n", "BFT-4012"),
        ("a1|gpu|gpu:4)\n", "BFT-4012"),
        ("a[1-|gpu|gpu:4\n", "BFT-4012"),
        ("\n", "BFT-4012"),
        ("a1|gpu|gpu:999999999P\n", "BFT-4012"),
        ("zz|gpu|gpu:4\n", "BFT-4013"),
    ],
)
def test_a_list_of_nodes_that_is_none_is_refused(tmp_path: Path, sinfo: str, code: str) -> None:
    written = _written(tmp_path, _log(DAY), sinfo)
    with pytest.raises(TraceError, match=r"sinfo\.txt") as refused:
        written.read()
    assert refused.value.code == code
    assert "sinfo --noheader" in refused.value.next_step


def test_damage_of_either_file_gives_a_trace_or_an_error_of_traces(tmp_path: Path) -> None:
    chance = random.Random(5)  # noqa: S311
    codes = Counter[str]()
    odd = (b"|", b",", b":", b"(", b"[1-99]", b"=", b"9" * 19, b"gpu", b"P", b"\xff", b"\n", b"")
    written = _written(tmp_path, "")
    for _ in range(120):
        files = [_log(DAY).encode(), SINFO.encode()]
        number = chance.randrange(2)
        at = chance.randrange(len(files[number]))
        cut = at + chance.randrange(8)
        files[number] = files[number][:at] + chance.choice(odd) + files[number][cut:]
        for path, raw in zip((written.log, tmp_path / "sinfo.txt"), files, strict=True):
            path.write_bytes(raw)
        try:
            written.read()
            codes["read"] += 1
        except TraceError as problem:
            codes[problem.code] += 1
    assert codes["read"] > 20
    assert codes["BFT-4012"] > 5


def test_a_job_with_more_gpus_than_any_machine_uses_all(tmp_path: Path) -> None:
    rows = [("1", 0, 24, "a1", "gpu", f"gres/gpu={'9' * 9}P")]
    pools = _pools(_written(tmp_path, _log(rows), "a1|gpu|gpu:4\n").read())
    assert pools == {("gpu", "gpu"): (0, 0)}


def test_a_list_of_nodes_that_is_not_there_is_named(tmp_path: Path) -> None:
    written = _written(tmp_path, _log(DAY))
    with pytest.raises(TraceError, match=r"none\.txt.*No such file") as refused:
        written.read(sinfo=tmp_path / "none.txt")
    assert refused.value.code == "BFT-4002"


def test_a_list_of_nodes_is_refused_for_a_trace_that_is_no_log_of_slurm(tmp_path: Path) -> None:
    written = _written(tmp_path, _log(DAY))
    write_trace(tmp_path / "day.npz", written.read())
    with pytest.raises(TraceError, match="read as npz") as refused:
        read_trace(tmp_path / "day.npz", options=written.options)
    assert refused.value.code == "BFT-4014"


@pytest.mark.parametrize("form", ["{0}", "NODELIST|PARTITION|GRES\n{0}", "{0}|8|64000"])
def test_headers_and_further_columns_of_sinfo_do_no_harm(tmp_path: Path, form: str) -> None:
    sinfo = "\n".join(form.format(line) for line in ["a[1-2]|gpu|gpu:a100:4(S:0-1)"])
    pools = _pools(_written(tmp_path, _log(DAY), sinfo).read())
    assert pools == {("gpu", "a100"): (108, 42)}


def test_gpus_whose_use_nobody_counts_are_left_out(tmp_path: Path) -> None:
    sinfo = "a1|gpu|gpu:a100:4,gpu:b:no_consume:2\nv1|old|gpu:no_consume:4\n"
    pools = _pools(_written(tmp_path, _log(DAY), sinfo).read())
    assert pools == {("gpu", "a100"): (48, 24)}


def test_a_node_of_several_partitions_counts_to_that_of_its_jobs(tmp_path: Path) -> None:
    sinfo = "\n".join(
        f"{node}|{partition}|gpu:{1 + number}"
        for number, node in enumerate(["n1", "n2", "n3", "n4"])
        for partition in ("bf", "all", "short", "long")
    )
    sinfo += "\nn5|bf|gpu:9\nn5|quiet|gpu:9\n"
    rows = [
        ("1", 0, 10, "n1", "long", "gres/gpu=1"),
        ("2", 10, 11, "n1", "short", "gres/gpu=1"),
        ("3", 0, 1, "n2", "short", "gres/gpu=1"),
        ("4", 0, 1, "n3", "bf", "gres/gpu=1"),
    ]
    trace = _written(tmp_path, _log(rows), sinfo).read()
    # n3 had pilots only and n4 nothing: the first partition of theirs with jobs.
    assert dict(zip(trace.names, trace.partitions or (), strict=True)) == {
        "c1": "cpu", "n1": "long", "n2": "short", "n3": "short", "n4": "short", "n5": "quiet",
    }  # fmt: skip
