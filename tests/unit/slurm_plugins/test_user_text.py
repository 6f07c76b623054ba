"""What users write of their jobs: read within bounds, and nobody else's job is read otherwise."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftrainer.decide.queue.models import PrintedQueue
from bftrainer.decide.queue.requests import MOST_WAYS
from bftrainer.model.census import census_of
from bftrainer.model.cluster import DEEPEST, MOST_NAMES, Job, Partition, meets
from bftrainer.model.hostlist import MAX_NAMES, ParseError, expand
from bftrainer.model.queue import JobNeeds
from slurm_plugins import job_requests, parse
from slurm_plugins.fields import MOST_NODES, MOST_PARTITIONS, UNREAD, Unread, ways_of
from slurm_plugins.hook.lines import announcement
from slurm_plugins.hook.squeue_row import ClusterFacts
from tests.support.snapshots import T0, node, pending, snapshot
from tests.unit.slurm_plugins.test_slurm_asked import text
from tests.unit.slurm_plugins.test_slurm_hook import submit

F, R = parse.FIELD, parse.RECORD
NESTED = "(" * 600 + "a" + ")" * 600
LONG = "|".join(["a"] * 60_000)
PAIRS = "&".join(f"(a{k}|b{k})" for k in range(18))
# Where a user's words stand in a record of the queue.
PLACES = {"partition": 1, "start": 4, "limit": 5, "features": 11, "gres": 12, "required": 14,
          "excluded": 15, "waits_for": 16}  # fmt: skip


def asks(job: Job, *partitions: str) -> JobNeeds:
    nodes = [node("n1", features=("a", "b")), node("n2", features=("c",))]
    seen = replace(snapshot(nodes), partitions=tuple(Partition(name=n) for n in partitions))
    return PrintedQueue(census_of(seen), T0, 30.0).requests.of(job)


class TestConstraints:
    @pytest.mark.parametrize(
        "expression",
        [NESTED, LONG, "|".join(["a"] * (MOST_NAMES + 1)), "(" * 33 + "a" + ")" * 33, "a" * 1025],
        ids=["nested", "long", "names", "depth", "letters"],
    )
    def test_one_beyond_bounds_is_a_doubt(self, expression: str) -> None:
        with pytest.raises(ParseError) as caught:
            ways_of(expression)
        assert len(str(caught.value)) < 200, "nobody's journal holds it all"

    def test_many_choices_are_understood_as_they_are_written(self) -> None:
        (way,) = ways_of(PAIRS)
        features = [f"{'ab'[k % 2]}{k}" for k in range(18)]
        assert meets(features, way.everywhere)
        assert not meets(features[1:], way.everywhere)
        assert ways_of("(" * DEEPEST + "a" + ")" * DEEPEST)

    def test_no_more_ways_are_looked_at_than_anybody_needs(self) -> None:
        names = [f"p{k}" for k in range(2 * MOST_WAYS)]
        nodes = [node(f"n{name}", partitions=(name,)) for name in names]
        partitions = tuple(Partition(name=name) for name in names)
        queue = PrintedQueue(census_of(replace(snapshot(nodes), partitions=partitions)), T0, 30.0)
        assert len(queue.requests.of(pending("7", 1, partition=",".join(names))).ways) == MOST_WAYS

    def test_in_a_partition_that_does_not_exist_nothing_starts(self) -> None:
        names = ",".join(f"p{k}" for k in range(10_000))
        assert "no node in partition p0" in asks(pending("7", 1, partition=names), "batch").why_not
        assert asks(pending("7", 1, partition=f"{names},batch"), "batch").ways


@dataclass(frozen=True, slots=True)
class Expression:
    """Names joined by operators, and both ways to read them."""

    written: str
    in_order: bool
    and_first: bool


HAS = frozenset("ab")


def joined(parts: list[tuple[str, Expression]]) -> Expression:
    written, in_order = parts[0][1].written, parts[0][1].in_order
    products = [[parts[0][1].and_first]]
    for operator, part in parts[1:]:
        written += operator + part.written
        if operator == "&":
            in_order = in_order and part.in_order
            products[-1].append(part.and_first)
        else:
            in_order = in_order or part.in_order
            products.append([part.and_first])
    return Expression(f"({written})", in_order, any(map(all, products)))


EXPRESSIONS = st.recursive(
    st.sampled_from("abcd").map(lambda name: Expression(name, name in HAS, name in HAS)),
    lambda inner: st.lists(st.tuples(st.sampled_from("&|"), inner), min_size=1, max_size=4).map(
        joined
    ),
    max_leaves=12,
)


@given(EXPRESSIONS)
def test_a_node_that_meets_either_reading_of_a_constraint_counts(drawn: Expression) -> None:
    (way,) = ways_of(drawn.written)
    assert meets(HAS, way.everywhere) == (drawn.in_order or drawn.and_first)


class TestHostLists:
    @pytest.mark.parametrize(
        "written",
        [
            "n" + "[1-200000]" * 20,
            "n[1-32769]",
            "n" + "[1]" * 90,
            "n" * 256,
            "n[1-9999]," * 9 + "n",
        ],
        ids=["product", "range", "brackets", "name", "repeated"],
    )
    def test_what_no_cluster_has_is_refused_before_it_is_written_out(self, written: str) -> None:
        with pytest.raises(ParseError):
            expand(written)

    def test_as_many_as_there_may_be_are_written_out(self) -> None:
        assert len(expand(f"n[1-{MAX_NAMES}]")) == MAX_NAMES
        with pytest.raises(ParseError):
            expand("n[1-9]", most=8)


class TestQueue:
    def looked(self, **fields: str) -> tuple[Job, ...]:
        """The recorded queue behind one job of which a user wrote that."""
        row = ["777", "batch", "PENDING", "None", "N/A", "5:00", "(null)", "", "1", "1795198022",
               "eve", "(null)", "N/A", "0", "", "", "(null)"]  # fmt: skip
        for name, value in fields.items():
            row[PLACES[name]] = value
        return parse.jobs(f"{R}{F.join(row)}\n" + text("busy.squeue"))

    @pytest.mark.parametrize(
        ("name", "value", "doubt"),
        [
            ("start", "-315619200", "a begin"),
            ("limit", "soon", "a time limit"),
            ("features", LONG, "a constraint"),
            ("gres", "gpu:1" + "," * 20_000, "GPUs"),
            ("required", "n" + "[1-200]" * 9, "nodes"),
            ("required", f"n[1-{MOST_NODES + 1}]", "nodes"),
            ("excluded", "n[", "nodes to avoid"),
            ("waits_for", "after:1," * 5_000, "dependencies"),
            ("partition", ",".join(f"p{k}" for k in range(10_000)), "a list of partitions"),
        ],
    )
    def test_what_nobody_can_read_is_a_doubt_about_that_job_alone(
        self, name: str, value: str, doubt: str
    ) -> None:
        hostile, *others = self.looked(**{name: value})
        assert hostile.unclear == doubt + UNREAD
        assert tuple(others) == parse.jobs(text("busy.squeue"))
        assert len(repr(hostile)) < 3_000 or name == "partition"
        assert asks(replace(hostile, partitions=())).ways, "it may start wherever the rest allows"

    def test_a_partition_named_again_and_again_is_one(self) -> None:
        often, *_ = self.looked(partition=",".join(["batch", "bf"] * 5_000))
        assert (often.partitions, often.unclear) == (("batch", "bf"), "")
        many, *_ = self.looked(partition=",".join(f"p{k}" for k in range(10_000)))
        assert len(many.partitions) == MOST_PARTITIONS

    def test_a_limit_of_all_minutes_there_are(self) -> None:
        job, *_ = self.looked(limit="2982616-00:00:00")
        assert (job.time_limit_s, job.unclear) == (2_982_616 * 86_400.0, "")

    def test_lists_of_nodes_are_bounded_in_all_too(self) -> None:
        row = f"{R}7 batch PENDING None N/A 5:00 - - 1 1 u - - 0 - LIST -\n".replace("-", "")
        row = row.replace(" ", F)
        wanted = [f"n[1-{MOST_NODES - k}]" for k in range(40)]
        found = parse.jobs("".join(row.replace("LIST", one) for one in wanted))
        assert 0 < sum(bool(job.unclear) for job in found) < 10
        again = parse.jobs(row.replace("LIST", wanted[0]) * 40)
        assert not any(job.unclear for job in again), "the same list is written out once"

    def test_what_a_job_asks_for_that_nobody_can_read_is_a_doubt_about_that_job_alone(self) -> None:
        row = ["777", "2", "1", "2", "9" * 30 + "M", "1", "0:00", "OK", "(null)", *["0"] * 3,
               *["N/A"] * 4, "cpu=2,node=1", "N/A", "N/A"]  # fmt: skip
        found = job_requests.rows(f"{F.join(row)}{R}\n" + text("asks.asked"))
        assert found.pop("777")["unclear"] == f"resources{UNREAD}"
        assert found == job_requests.rows(text("asks.asked"))

    def test_both_doubts_are_kept(self) -> None:
        (job, *_) = self.looked(features=LONG)
        known = job_requests.AskedFor()
        row = ["777", *["1"] * 8, "1", "0", "0", "(null)", *["0"] * 6]
        row[6], row[7], row[8] = "0:00", "OK", "(null)"
        known.learn([job], job_requests.rows(f"{F.join(row)}{R}\n"))
        (complete,) = known.complete((job,), None)
        assert complete.unclear == f"contiguous nodes and a constraint{UNREAD}"

    def test_it_is_said_once_with_their_number(self, caplog: pytest.LogCaptureFixture) -> None:
        unread = Unread()
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                unread.note(self.looked(features=LONG))
        (record,) = caplog.records
        assert "1 jobs" in record.getMessage()
        assert "job 777 of eve" in record.getMessage()
        unread.note(())
        unread.note(self.looked(features=LONG))
        assert unread.total == 2


class TestHook:
    @pytest.mark.parametrize(
        "name", ["at", "uid", "nodes", "tasks", "cpus_per_task", "cpus", "minutes", "begin"]
    )
    @pytest.mark.parametrize("value", ["9" * 400, "-1" * 20, "nan", "1e999", "٣", "1_0"])
    def test_a_line_with_a_number_that_slurm_has_not_is_none(self, name: str, value: str) -> None:
        fields = {"nodes": "", "tasks": "1", name: value}
        assert announcement(submit(**fields), 1, ClusterFacts(cpus_per_node=4)) is None

    def test_a_begin_may_lie_in_the_past(self) -> None:
        said = announcement(submit(begin="-315619200"), 1)
        assert said is not None
        assert said.job is not None
        assert said.job.reason == ""

    @pytest.mark.parametrize(
        ("changes", "doubt"),
        [
            ({"features": LONG}, "a constraint"),
            ({"gres": "gpu:1" + "," * 20_000}, "GPUs"),
            ({"required": "n" + "[1-200000]" * 9}, "nodes"),
            ({"partition": ",".join(f"p{k}" for k in range(10_000))}, "a list of partitions"),
        ],
    )
    def test_what_nobody_can_read_is_a_doubt(self, changes: dict[str, str], doubt: str) -> None:
        said = announcement(submit(**changes), 1)
        assert said is not None
        assert said.job is not None
        assert said.job.unclear == doubt + UNREAD
        assert len(repr(said)) < 3_000

    def test_a_line_longer_than_any_is_none(self) -> None:
        assert announcement(submit(gres="a" * 300_000), 1) is None


@pytest.mark.parametrize("value", ["0", "inf", "-1", "nan", "1e400", "99999999", "x", ""])
def test_a_parameter_that_slurm_does_not_take_has_its_default(value: str) -> None:
    words = ",".join(f"{name}={value}" for name in ("bf_interval", "bf_resolution", "bf_window"))
    config = parse.controller_config(f"SLURM_VERSION = 22.05.8\nSchedulerParameters = {words}\n")
    found = (config.bf_interval_s, config.bf_resolution_s, config.bf_window_s)
    assert found == (30.0, 60.0, 86_400.0)
