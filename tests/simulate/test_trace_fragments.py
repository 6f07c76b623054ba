"""Fragments, pool changes and our own files, checked against counting by hand."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftrainer.batch.traces import (
    SAMPLE,
    Fragments,
    TraceError,
    make_fragments,
    read_trace,
    write_trace,
)
from bftrainer.batch.traces.statistics import as_document, bars, describe, fragment_cdf, statistics
from bftrainer.model.errors import ExitCode

PAPER_START_S = 1612988475
# Percent of nodes idle above the bars of the paper's Fig. 6.
FIG6_IDLE = (4.8, 2.0, 8.5, 13.0, 13.1, 11.8, 4.7, 9.4, 2.6, 11.5, 4.9, 6.7, 17.4, 5.6)


def _trace(**more: Any) -> Fragments:
    """Three nodes; b's idle time is in two parts; a and c change at 20 together."""
    fields: dict[str, Any] = {
        "names": ["a", "b", "c"],
        "node": [0, 1, 1, 2],
        "start_s": [0, 10, 20, 20],
        "end_s": [20, 20, 30, 40],
        "span_s": (0.0, 40.0),
    }
    return make_fragments(**(fields | more))


def test_simultaneous_changes_are_one_event_and_two_parts_of_one_idle_time_none() -> None:
    found = [(t, j.tolist(), g.tolist()) for t, j, g in _trace().pool_changes()]
    assert found == [(0, [0], []), (10, [1], []), (20, [2], [0]), (30, [], [1])]
    assert _trace().pool_changes().pool_sizes().tolist() == [1, 2, 2, 1]


def test_the_first_look_is_an_event_also_without_nodes_and_the_end_is_none() -> None:
    trace = _trace(node=[0], start_s=[5.5], end_s=[40])
    assert [t for t, _, _ in trace.pool_changes()] == [0, 5.5]


def test_sums_and_shares() -> None:
    trace = _trace()
    assert trace.node_seconds() == 60
    assert trace.equivalent_nodes() == 1.5
    assert trace.idle_share() == 0.5
    assert trace.idle_share(6) == 0.25


def test_restrict_cuts_fragments_and_keeps_the_instants_within() -> None:
    part = _trace().restrict(slice(1, 3), start_s=15, hours=20 / 3600)
    assert part.names == ("b", "c")
    assert list(part.span_s) == [15, 35]
    assert list(zip(part.node, part.start_s, part.end_s, strict=True)) == [
        (0, 15, 20),
        (0, 20, 30),
        (1, 20, 35),
    ]
    assert part.observed_s.tolist() == [20, 30]


@pytest.mark.parametrize(
    ("nodes", "start_s", "hours"),
    [
        (slice(2, 2), None, None),
        (slice(0, 3, 2), None, None),
        (slice(None), 39, 1),
        (slice(None), -1, None),
    ],
)
def test_a_choice_outside_the_trace_is_refused(
    nodes: slice, start_s: float | None, hours: float | None
) -> None:
    with pytest.raises(TraceError) as caught:
        _trace().restrict(nodes, start_s=start_s, hours=hours)
    assert caught.value.code == "BFT-4005"
    assert caught.value.exit_code == ExitCode.VALIDATION_FAILED


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"node": [0, 1, 1, 3]}, "fragment 3: there is no node 3"),
        ({"end_s": [20, 10, 30, 40]}, "fragment 1: it ends at 10"),
        ({"start_s": [0, 10, 15, 20]}, "fragment 2: node b is idle there twice"),
        ({"start_s": [0, 10, float("nan"), 20]}, "fragment 2"),
        ({"end_s": [20, 20, 30, 41]}, "fragment 3: it lies outside"),
        ({"names": ["a", "a", "c"]}, "one node twice"),
        ({"node_types": ["cpu"]}, "1 types for 3 nodes"),
        ({"partitions": ["cpu"]}, "1 partitions for 3 nodes"),
        ({"start_s": [0, 10, 20]}, "differ in length"),
        ({"node": [0.5, 1, 1, 2]}, "fractions"),
        ({"span_s": (40.0, 0.0)}, "begins at 40"),
        ({"observed_s": [50]}, "an instant lies outside"),
        ({"names": ["x"], "node": [], "start_s": [], "end_s": [], "span_s": None}, "no fragment"),
    ],
)
def test_contradictions_are_named_with_their_row(more: dict[str, Any], said: str) -> None:
    with pytest.raises(TraceError, match=said) as caught:
        _trace(**more)
    assert caught.value.code == "BFT-4007"


def test_what_was_read_cannot_be_changed() -> None:
    trace = _trace()
    for column in (trace.node, trace.start_s, trace.end_s, trace.observed_s):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1


@st.composite
def traces(draw: st.DrawFn) -> Fragments:
    n_nodes = draw(st.integers(1, 5))
    rows = []
    for node in range(n_nodes):
        instants = sorted(draw(st.sets(st.integers(0, 50), max_size=8)))
        pairs = zip(instants[::2], instants[1::2], strict=False)
        rows += [(node, start, end) for start, end in pairs]
        if len(instants) % 2 and rows and instants[-1] < 50 and draw(st.booleans()):
            rows.append((node, instants[-1], 50))
    columns = ([row[k] for row in rows] for k in range(3))
    nodes, starts, ends = columns
    flags = draw(st.none() | st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    names = [f"node {i}, é" for i in range(n_nodes)]
    return make_fragments(
        names=names,
        node=nodes,
        start_s=starts,
        end_s=ends,
        is_unfillable=flags,
        node_types=draw(
            st.none()
            | st.lists(st.sampled_from(["cpu", "gpu:a100:4"]), min_size=n_nodes, max_size=n_nodes)
        ),
        partitions=draw(
            st.none()
            | st.lists(st.sampled_from(["", "a b, é"]), min_size=n_nodes, max_size=n_nodes)
        ),
        span_s=(0.0, 51.0),
    )


@settings(max_examples=60, deadline=None)
@given(traces())
def test_replaying_the_changes_gives_the_pool_at_every_instant(trace: Fragments) -> None:
    pool: set[int] = set()
    pools: dict[int, set[int]] = {}
    events = list(trace.pool_changes())
    assert events[0][0] == 0
    assert all(len(joined) + len(left) for _, joined, left in events[1:])
    at = 0
    for second in range(51):
        while at < len(events) and events[at][0] <= second:
            _, joined, left = events[at]
            assert not pool & set(joined.tolist())
            assert set(left.tolist()) <= pool
            pool = (pool | set(joined.tolist())) - set(left.tolist())
            at += 1
        pools[second] = set(pool)
    for second, found in pools.items():
        inside = (trace.start_s <= second) & (second < trace.end_s)
        assert found == set(trace.node[inside].tolist())
    assert trace.node_seconds() == sum(len(p) for p in pools.values())


@settings(max_examples=25, deadline=None)
@given(traces(), st.sampled_from([".npz", ".csv", ".csv.gz"]))
def test_files_give_back_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, trace: Fragments, ending: str
) -> None:
    path = tmp_path_factory.mktemp("files") / f"t{ending}"
    write_trace(path, trace)
    _assert_same(read_trace(path), trace)


def _assert_same(found: Fragments, wanted: Fragments) -> None:
    assert found.names == wanted.names
    assert found.span_s == wanted.span_s
    assert found.node_types == wanted.node_types
    assert found.partitions == wanted.partitions
    for name in ("node", "start_s", "end_s", "observed_s", "is_unfillable"):
        ours, theirs = getattr(found, name), getattr(wanted, name)
        if theirs is None:
            assert ours is None
        else:
            assert ours.dtype == theirs.dtype, name
            assert ours.tolist() == theirs.tolist(), name


def test_parquet_where_pyarrow_is_installed_and_a_plain_refusal_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    if importlib.util.find_spec("pyarrow") is None:
        with pytest.raises(TraceError, match="pyarrow") as caught:
            write_trace(path, _trace())
        assert caught.value.code == "BFT-4004"
    else:
        write_trace(path, _trace(is_unfillable=[True, False, True, True]))
        _assert_same(read_trace(path), _trace(is_unfillable=[True, False, True, True]))


def test_a_csv_by_hand_needs_no_more_than_three_columns(tmp_path: Path) -> None:
    path = tmp_path / "hand.csv"
    path.write_text("start_s,node,end_s\n5,x,7.5\n\n1,y,9\n")
    trace = read_trace(path)
    assert trace.names == ("x", "y")
    assert list(trace.span_s) == [1, 9]
    assert trace.length_s.tolist() == [2.5, 8]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("node,start_s,end_s\na,1\n", "bad.csv:2: 2 cells, not 3"),
        ("node,start_s,end_s\na,1,x\n", "bad.csv:2: 'x' is not a number"),
        ("node,start_s,end_s\na,1,2\na,5,3\n", "bad.csv:3: end 3"),
        ("node,start_s\n", "bad.csv:1: the header lacks end_s"),
        ('# names: ["a"]\nnode,start_s,end_s\nb,1,2\n', "bad.csv:3: node 'b' is not among"),
        ("# names: {\n", "bad.csv:1: this is no JSON list"),
        ("# node_types: 3\n", "bad.csv:1: this is no JSON list"),
        ("", "no header"),
    ],
)
def test_a_malformed_csv_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=said) as caught:
        read_trace(path)
    assert caught.value.code == "BFT-4001"


def test_an_npz_with_objects_in_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "objects.npz"
    np.savez(path, node=np.array([object()]), start=[0], end=[1], names=["a"])
    with pytest.raises(TraceError, match="plain arrays"):
        read_trace(path)


def test_names_endings_and_formats_nobody_knows(tmp_path: Path) -> None:
    for call in (
        lambda: read_trace(tmp_path / "missing.npz"),
        lambda: read_trace(tmp_path / "missing"),
        lambda: write_trace(tmp_path / "no" / "where.csv", _trace()),
    ):
        with pytest.raises(TraceError) as caught:
            call()
        assert caught.value.code == "BFT-4002"
    (tmp_path / "prose").write_text("It was a dark night.\n")
    for call in (
        lambda: read_trace(tmp_path / "prose"),
        lambda: read_trace(tmp_path / "prose", "morse"),
        lambda: write_trace(tmp_path / "t.doc", _trace()),
    ):
        with pytest.raises(TraceError) as caught:
            call()
        assert caught.value.code == "BFT-4003"


def test_statistics_of_a_trace_counted_by_hand() -> None:
    trace = _trace(is_unfillable=[True, True, False, True])
    numbers = statistics(trace)
    assert numbers.events == 4
    assert numbers.events_per_hour == 3 / (40 / 3600)
    assert numbers.joins_per_hour == 2 / (40 / 3600)
    assert numbers.leaves_per_hour == 2 / (40 / 3600)
    assert numbers.increases_per_hour == numbers.decreases_per_hour == 1 / (40 / 3600)
    assert numbers.unfillable_share == 50 / 60
    assert numbers.pool_nodes["least"] == 1
    assert numbers.pool_nodes["p50"] == 1
    assert numbers.pool_nodes["most"] == 2
    assert numbers.length_s["mean"] == 20  # of a, b and c: the two parts of b are one idle time
    assert fragment_cdf(trace)[0] == {"minutes": 0.5, "by_count": 1.0, "by_node_time": 1.0}
    assert bars(trace) == [{"from_hour": 0.0, "to_hour": 40 / 3600, "events": 3, "idle_share": 0.5}]
    assert trace.unfillable().node_seconds() == 50


def test_the_document_holds_every_figure() -> None:
    document = as_document(read_trace(SAMPLE), "sample.npz")
    assert document["schema"] == "bftrainer/trace-info/1"
    assert len(document["fig6"]) == 4
    assert sum(bar["events"] for bar in document["fig6"]) == document["events"] - 1
    shares = [bar["idle_share"] for bar in document["fig6"]]
    assert np.mean(shares) == pytest.approx(document["idle_share"])


@pytest.fixture(scope="module")
def summit() -> Fragments:
    folder = os.environ.get("BFTRAINER_DATA")
    if not folder:
        pytest.skip("BFTRAINER_DATA is not set: the Summit trace is not here")
    return read_trace(Path(folder) / "summit-2021-02-10_17-idle-fragments.npz")


def test_the_papers_week_has_its_events_nodes_and_bars(summit: Fragments) -> None:
    week = summit.restrict(slice(0, 1024), start_s=PAPER_START_S, hours=168)
    assert len(week.pool_changes()) == 7212
    assert week.equivalent_nodes() == pytest.approx(85.1, abs=0.05)
    found = [100 * bar["idle_share"] for bar in bars(week)]
    assert found == pytest.approx(FIG6_IDLE, abs=0.15)


def test_the_whole_summit_trace_agrees_with_table_1(summit: Fragments) -> None:
    numbers = statistics(summit)
    assert len(summit.names) == 4734
    assert numbers.short_share == pytest.approx(0.58, abs=0.01)
    assert numbers.length_s["least"] == 70
    assert numbers.events_per_hour == pytest.approx(68, abs=1)
    assert numbers.joins_per_hour == pytest.approx(42, abs=1)
    assert numbers.leaves_per_hour == pytest.approx(31, abs=1)


def test_a_fragment_is_one_idle_time_for_info_and_for_whatif() -> None:
    """Five idle times of five nodes, counted by hand; the queue cuts three of them."""
    trace = make_fragments(
        names=["a", "b", "c", "d", "e"],
        node=[0, 0, 1, 2, 2, 2, 2, 4, 4],
        start_s=[0, 300, 100, 0, 60, 120, 1000, 500, 1100],
        end_s=[300, 900, 200, 60, 120, 180, 2200, 1100, 1700],
        span_s=(0.0, 3600.0),
        is_unfillable=[True, False, True, True, False, True, True, True, False],
    )
    # a: 900 s; b: 100 s; c: 180 s and 1,200 s; d: never; e: 1,200 s. In all 3,580 s.
    numbers, idle = statistics(trace), describe(trace)
    assert (numbers.fragments, numbers.parts) == (5, 9)
    assert idle.fragments == 5
    assert numbers.short_share == pytest.approx(2 / 5)
    assert numbers.short_time_share == pytest.approx(280 / 3580)
    (under_10_min,) = (one for one in idle.shorter if one.under_s == 600.0)
    assert under_10_min.of_fragments == pytest.approx(2 / 5)
    assert under_10_min.of_node_time == pytest.approx(280 / 3580)
    assert (numbers.length_s["p50"], idle.length_s["p50"]) == (900.0, 900.0)
    assert (numbers.length_s["least"], numbers.length_s["mean"]) == (100.0, 716.0)
    (up_to_2_min,) = (row for row in fragment_cdf(trace) if row["minutes"] == 2)
    assert up_to_2_min["by_count"] == pytest.approx(1 / 5)
    assert up_to_2_min["by_node_time"] == pytest.approx(100 / 3580)
    # Unfillable: a 300, b 100, c 60 + 60 + 1,200, e 600.
    assert numbers.unfillable_share == idle.unfillable_share == pytest.approx(2320 / 3580)
