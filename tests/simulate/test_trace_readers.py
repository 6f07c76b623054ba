"""Readers of other people's files: what they make of them, and what they refuse."""

from __future__ import annotations

import random
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bftrainer.batch.traces import FORMATS, Fragments, ReadOptions, TraceError, read_trace
from bftrainer.batch.traces.fragments import make_fragments
from bftrainer.batch.traces.jobs import JobTable, Pending, idle_fragments, mark_unfillable
from bftrainer.batch.traces.text import duration_s, iso_seconds, time_zone
from bftrainer.batch.traces.window import Coverage

FIXTURES = Path(__file__).parents[1] / "fixtures" / "traces"
Row = tuple[str, float, float, bool | None]
OPTIONS = ReadOptions(year=2021, ignored=("bf", "killable"), time_zone="UTC")
# The fixtures are whole histories of small clusters, which their records alone cannot say.
WHOLE = {"sacct.txt": (1714557600.0, 1714564800.0), "bhist.txt": (1612916400.0, 1612919400.0)}


def _whole(name: str, **changes: object) -> ReadOptions:
    start_s, end_s = WHOLE[name]
    return replace(OPTIONS, start_s=start_s, end_s=end_s, **changes)  # type: ignore[arg-type]


def _rows(trace: Fragments) -> list[Row]:
    """Fragments by name, in seconds after the begin."""
    flags = [None] * len(trace) if trace.is_unfillable is None else trace.is_unfillable.tolist()
    begin_s = trace.span_s[0]
    columns = (trace.node.tolist(), trace.start_s.tolist(), trace.end_s.tolist(), flags)
    return [
        (trace.names[node], start - begin_s, end - begin_s, flag)
        for node, start, end, flag in zip(*columns, strict=True)
    ]


def test_sacct_steps_requeues_running_pending_and_pilots() -> None:
    trace = read_trace(FIXTURES / "sacct.txt", options=_whole("sacct.txt"))
    assert list(trace.span_s) == [1714557600, 1714557600 + 7200]  # 10:00 to 12:00 UTC
    assert _rows(trace) == [
        ("n3", 0, 600, True),  # 101 waits, but wants 30 minutes
        ("n3", 1200, 1800, True),
        ("n3", 3000, 3600, False),  # 103 wants 5 minutes
        ("n4", 0, 600, False),  # 101 would have fitted here
        ("n4", 600, 1320, True),
        ("n4", 1320, 1800, False),  # 101 again, after its node failed
        ("n4", 1800, 2400, True),
        ("n4", 2400, 3900, False),
    ]
    assert any("partition bf" in note for note in trace.notes)
    with_pilots = read_trace(FIXTURES / "sacct.txt", options=_whole("sacct.txt", ignored=()))
    assert ("n4", 600, 1860, True) in _rows(with_pilots)  # the pilot makes it too short for 101


def test_sacct_a_node_that_only_pilots_used_was_idle(tmp_path: Path) -> None:
    header, *rows = (FIXTURES / "sacct.txt").read_text().splitlines()
    columns = header.split("|")
    pilot = next(r for r in rows if "|bf|" in r and "." not in r.split("|")[0]).split("|")
    pilot[columns.index("JobID")] = "9999"
    pilot[columns.index("NodeList")] = "n77"
    path = tmp_path / "sacct.txt"
    path.write_text("\n".join([header, *rows, "|".join(pilot)]) + "\n")
    trace = read_trace(path, options=_whole("sacct.txt"))
    spans = [(start, end) for name, start, end, _ in _rows(trace) if name == "n77"]
    assert sum(end - start for start, end in spans) == 7200


SHARED = """\
JobID|Submit|Eligible|Start|End|NNodes|NodeList|State|Partition|Timelimit
1|0|0|0|100|2|n[1-2]|COMPLETED|cpu|00:10:00
2|0|0|0|1000|1|n3|COMPLETED|gpu|00:10:00
3|100|100|100|400|1|n2|COMPLETED|gpu|00:10:00
4|100|100|100|900|1|n4|COMPLETED|bf|00:20:00
5|500|500|500|1000|2|n[1-2]|COMPLETED|long|00:10:00
6|0|0|0|400|1|n5|COMPLETED|cpu|00:10:00
7|400|400|400|450|1|n5|COMPLETED|gpu|00:10:00
"""


def test_a_node_is_of_the_partition_whose_jobs_ran_there_longest(tmp_path: Path) -> None:
    path = tmp_path / "sacct.txt"
    path.write_text(SHARED)
    options = replace(OPTIONS, start_s=0.0, end_s=1000.0)
    trace = read_trace(path, "sacct", options=options)
    # n1: cpu 100 s, long 500 s. n2: cpu 100, gpu 300, long 500. n4: a pilot alone. n5: cpu 400,
    # gpu 50.
    assert dict(zip(trace.names, trace.partitions or (), strict=True)) == {
        "n1": "long", "n2": "long", "n3": "gpu", "n4": "", "n5": "cpu",
    }  # fmt: skip
    # Until 500 long had no job: n2 had more of gpu than of cpu.
    trace = read_trace(path, "sacct", options=replace(options, end_s=500.0))
    assert dict(zip(trace.names, trace.partitions or (), strict=True)) == {
        "n1": "cpu", "n2": "gpu", "n3": "gpu", "n4": "", "n5": "cpu",
    }  # fmt: skip
    assert trace.restrict(slice(1, 3)).partitions == (trace.partitions or ())[1:3]
    alone = [line for line in SHARED.splitlines() if "gpu" not in line and "long" not in line]
    path.write_text("\n".join(alone))
    assert read_trace(path, "sacct", options=options).partitions is None  # of one alone


def test_the_queues_of_lsf_are_partitions(tmp_path: Path) -> None:
    path = tmp_path / "lsb.acct"
    path.write_text(
        (FIXTURES / "lsb.acct").read_text().replace('"bob" "batch"', '"bob" "night"', 1)
    )
    trace = read_trace(path, options=OPTIONS)
    assert trace.names == ("h1", "h2", "h3", "h4")
    assert trace.partitions == ("batch", "batch", "night", "night")  # job 202 was on h3 and h4


def test_sacct_times_are_those_of_the_cluster() -> None:
    options = ReadOptions(time_zone="Europe/Berlin", ignored=("bf",))
    utc = read_trace(FIXTURES / "sacct.txt", options=OPTIONS)
    berlin = read_trace(FIXTURES / "sacct.txt", options=options)
    assert berlin.span_s[0] == utc.span_s[0] - 7200
    assert _rows(berlin) == _rows(utc)
    with pytest.raises(TraceError, match="time zone"):
        read_trace(FIXTURES / "sacct.txt", options=ReadOptions(time_zone="Mars/Olympus"))


def test_an_hour_that_comes_twice_and_other_forms_of_times() -> None:
    berlin = time_zone("Europe/Berlin")
    first = iso_seconds("2024-10-27T02:30:00", berlin)
    assert iso_seconds("2024-10-27T02:10:00", berlin, first) == first - 1200 + 3600
    assert iso_seconds("1714557600", berlin) == 1714557600
    assert iso_seconds("2024-05-01T12:00:00+02:00", time_zone("UTC")) == 1714557600
    assert [duration_s(text) for text in ("90", "10:30", "1:00:00", "2-00", "1-02:03:04")] == [
        5400, 630, 3600, 172800, 93784,
    ]  # fmt: skip
    assert duration_s("UNLIMITED") is None
    with pytest.raises(ValueError, match="not a duration"):
        duration_s("soon")


def test_lsb_acct_finished_started_never_and_pilots() -> None:
    trace = read_trace(FIXTURES / "lsb.acct", options=OPTIONS)
    assert list(trace.span_s) == [1612915200, 1612922400]
    assert _rows(trace) == [
        ("h1", 3600, 5400, None),
        ("h2", 3600, 7200, None),
        ("h3", 0, 1800, None),
        ("h3", 4800, 7200, None),
        ("h4", 0, 1800, None),
        ("h4", 4800, 7200, None),
    ]
    assert any("no time limits" in note for note in trace.notes)


def test_bhist_dispatched_requeued_and_still_running() -> None:
    trace = read_trace(FIXTURES / "bhist.txt", options=_whole("bhist.txt"))
    assert list(trace.span_s) == [1612916400, 1612919400]  # Feb 10, 00:20 to 01:10
    assert _rows(trace) == [
        ("h3", 0, 600, True),
        ("h3", 600, 1200, False),  # 202 wants ten minutes
        ("h3", 1500, 2400, False),  # and again, requeued
    ]


def test_swf_jobs_get_the_lowest_free_nodes() -> None:
    trace = read_trace(FIXTURES / "machine.swf")
    assert trace.names == ("n00000", "n00001", "n00002", "n00003")
    assert list(trace.span_s) == [1000000, 1001500]
    assert _rows(trace) == [
        ("n00002", 0, 60, True),
        ("n00002", 460, 600, True),
        ("n00003", 0, 200, True),
        ("n00003", 200, 360, False),  # job 4 waits and wants 120 s
        ("n00003", 360, 600, True),
    ]


def test_swf_without_a_header_and_with_shared_nodes_says_what_it_assumed(tmp_path: Path) -> None:
    path = tmp_path / "log.swf"
    line = " {} {} 0 100 {} -1 -1 -1 -1 -1 1 1 1 -1 1 1 -1 -1\n"
    path.write_text(line.format(1, 0, 3) + line.format(2, 50, 2) + line.format(3, 150, 1))
    trace = read_trace(path)
    assert len(trace.names) == 3
    assert any("no MaxNodes" in note for note in trace.notes)
    assert any("1 of 3 jobs found too few" in note for note in trace.notes)


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("sacct.txt", "n[1-2]|COMPLETED", "n[2-1]|COMPLETED", ":2: not a range"),
        ("sacct.txt", "T11:00:00|2", "T09:00:00|2", ":2: it ends at 2024-05-01T09:00:00, before"),
        ("sacct.txt", "|2|n[1-2]", "|two|n[1-2]", ":2: NNodes is 'two'"),
        ("sacct.txt", "NodeList|", "Nodes|", ":1: the header lacks NodeList"),
        ("sacct.txt", "02:00:00", "02:00:00|x", ":2: 11 fields"),
        ("machine.swf", "1200 -1", "1200", ":7: 17 fields"),
        ("machine.swf", "600  4", "many 4", ":7: a field is not a number"),
        ("machine.swf", "MaxNodes: 4", "MaxNodes: four", ":4: maxnodes is 'four'"),
        ("lsb.acct", ' 4 "h1"', ' 5 "h1"', ":1: a broken JOB_FINISH"),
        ("lsb.acct", "1612918800", "noon", ":1: a broken JOB_FINISH"),
        ("bhist.txt", "Feb 10 00:20:00", "Feb 30 00:20:00", ":7: day is out of range"),
    ],
)
def test_a_malformed_line_is_named(
    tmp_path: Path, name: str, old: str, new: str, said: str
) -> None:
    text = (FIXTURES / name).read_text()
    assert old in text
    path = tmp_path / name
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(TraceError) as caught:
        read_trace(path, options=OPTIONS)
    assert caught.value.code == "BFT-4001"
    assert f"{name}{said}" in caught.value.cause


def test_bhist_of_the_wrong_year_is_a_year_away_not_a_crash() -> None:
    found = read_trace(FIXTURES / "bhist.txt", options=ReadOptions(year=2022))
    assert found.span_s[0] == 1612919400 + 365 * 86400  # the first end


def test_a_pickle_is_refused_unread(tmp_path: Path) -> None:
    canary, path = tmp_path / "canary", tmp_path / "idle.pkl"
    path.write_bytes(b"cos\nsystem\n(S'touch " + str(canary).encode() + b"'\ntR.")
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert caught.value.code == "BFT-4003"
    assert not canary.exists()


def _damaged(content: bytes, chance: random.Random) -> bytes:
    """The content with a few bytes changed, cut, doubled or exchanged."""
    data = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 5])):
        at = chance.randrange(len(data) + 1)
        to = min(len(data), at + chance.choice([1, 1, 4, 40]))
        data[at:to] = chance.choice(
            [
                b"",
                bytes(chance.randrange(256) for _ in range(to - at)),
                data[at:to] * 2,
                chance.choice(
                    [b"-1", b"99999999999999", b"nan", b"\x00", b"|", b"\n", b"[", b"\xff"]
                ),
            ]
        )
    return bytes(data)


@pytest.mark.parametrize(
    "name",
    [
        "sacct.txt", "lsb.acct", "bhist.txt", "machine.swf",
        "small.csv", "small.csv.gz", "small.npz",
    ],
)  # fmt: skip
def test_damage_gives_a_trace_or_a_trace_error_and_nothing_else(name: str, tmp_path: Path) -> None:
    if name.startswith("small"):
        from bftrainer.batch.traces import write_trace

        source = tmp_path / name
        write_trace(source, read_trace(FIXTURES / "sacct.txt"))
    else:
        source = FIXTURES / name
    content = source.read_bytes()
    formats = {"sacct.txt": "sacct", "bhist.txt": "bhist", "lsb.acct": "lsb.acct"}
    chance = random.Random(name)  # noqa: S311
    damaged = tmp_path / f"damaged-{name}"
    codes: list[str] = []
    for _ in range(150):
        damaged.write_bytes(_damaged(content, chance))
        try:
            read_trace(damaged, formats.get(name, "auto"), options=OPTIONS)
        except TraceError as problem:
            codes.append(problem.code)
    # bhist prints much that says nothing about nodes: what is not understood is left out.
    assert len(codes) > 10 or name == "bhist.txt"
    assert {code[:6] for code in codes} <= {"BFT-40"}


def test_an_npz_that_unpacks_to_more_than_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("node.npy", b"x")
        archive.infolist()[0].file_size = 5 << 30  # what the directory will claim
    with pytest.raises(TraceError, match=r"unpacks to more|not an npz archive"):
        read_trace(path)


def test_progress_is_told_from_0_to_1(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    header = "JobID|Start|End|NodeList"
    path.write_text(
        "\n".join([header, *(f"{i}|{i}|{i + 2}|n{i % 7}" for i in range(1, 30001))]) + "\n"
    )
    shares: list[float] = []
    trace = read_trace(path, "sacct", progress=shares.append)
    assert len(trace.names) == 7
    assert len(shares) > 3
    assert all(0 <= share <= 1 for share in shares)


def _idle_by_hand(
    runs: list[tuple[int, int, int, int]], n_nodes: int, span: range
) -> set[tuple[int, int]]:
    busy = {
        (node, second)
        for start, end, first, count in runs
        for node in range(first, first + count)
        for second in range(start, end)
    }
    return {(n, s) for n in range(n_nodes) for s in span if (n, s) not in busy}


@pytest.mark.parametrize("seed", range(25))
def test_idle_is_what_no_job_covers_second_by_second(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    n_nodes = chance.randint(1, 5)
    table = JobTable(path=Path("jobs"))
    for i in range(n_nodes):
        table.index(f"n{i}")
    runs = []
    for _ in range(chance.randint(1, 12)):
        start = chance.randint(0, 40)
        first = chance.randrange(n_nodes)
        runs.append(
            (start, start + chance.randint(1, 15), first, chance.randint(1, n_nodes - first))
        )
        table.add_run(start, runs[-1][1], [runs[-1][2:]], line=1)
    span = range(min(r[0] for r in runs), max(r[1] for r in runs))
    seen_s = float(span.start), float(span.stop)
    trace = idle_fragments(
        table, Coverage(recorded_s=seen_s, complete_s=seen_s, why=""), ReadOptions()
    )
    assert list(trace.span_s) == [span.start, span.stop]
    rows = zip(trace.node.tolist(), trace.start_s.tolist(), trace.end_s.tolist(), strict=True)
    found = {(node, s) for node, start, end in rows for s in range(int(start), int(end))}
    assert found == _idle_by_hand(runs, n_nodes, span)


def _fillable_by_hand(
    trace: Fragments, jobs: list[tuple[int, int, int, float]], moments: list[int], second: int
) -> set[int]:
    """Nodes that a pending job could have used, asked at the last moment before."""
    at = max(m for m in moments if m <= second)
    rows = list(zip(trace.node.tolist(), trace.start_s.tolist(), trace.end_s.tolist(), strict=True))
    idle = {node: end for node, start, end in rows if start <= at < end}
    fillable: set[int] = set()
    for from_s, to_s, size, limit_s in jobs:
        if from_s <= at < to_s:
            long_enough = {node for node, end in idle.items() if end >= at + limit_s}
            if len(long_enough) >= size:
                fillable |= long_enough
    return fillable


@pytest.mark.parametrize("seed", range(40))
def test_unfillable_is_what_no_pending_job_could_use_second_by_second(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    n_nodes, end = chance.randint(1, 5), 60
    rows = []
    for node in range(n_nodes):
        instants = sorted(chance.sample(range(end + 1), 2 * chance.randint(0, 3)))
        rows += [(node, *pair) for pair in zip(instants[::2], instants[1::2], strict=True)]
    nodes, starts, stops = ([r[k] for r in rows] for k in range(3))
    trace = make_fragments(
        names=[f"n{i}" for i in range(n_nodes)], node=np.array(nodes, dtype=np.int64),
        start_s=np.array(starts, dtype=float), end_s=np.array(stops, dtype=float),
        span_s=(0.0, end),
    )  # fmt: skip
    jobs = []
    for _ in range(chance.randint(1, 8)):
        from_s = chance.randint(-10, 50)
        limit_s = chance.choice([5.0, 10.0, 20.0, float("inf")])
        jobs.append((from_s, from_s + chance.randint(1, 30), chance.randint(1, 3), limit_s))
    jobs.append((0, 3, 1, 50.0))
    pending = Pending(
        from_s=np.array([float(j[0]) for j in jobs]), to_s=np.array([float(j[1]) for j in jobs]),
        n_nodes=np.array([j[2] for j in jobs]), limit_s=np.array([j[3] for j in jobs]),
    )  # fmt: skip
    marked = mark_unfillable(trace, pending)
    assert marked.is_unfillable is not None
    assert marked.node_seconds() == trace.node_seconds()
    moments = sorted({0, *starts, *stops, *(t for j in jobs if j[3] < 1e9 for t in j[:2])})
    flags = marked.is_unfillable
    for second in range(end):
        inside = (marked.start_s <= second) & (second < marked.end_s)
        fillable = _fillable_by_hand(trace, jobs, moments, second)
        assert set(marked.node[inside & ~flags].tolist()) == fillable


def test_every_format_is_in_the_table() -> None:
    assert set(FORMATS) == {
        "npz", "csv", "parquet", "swf", "sacct", "lsb.acct", "bhist",
    }  # fmt: skip
