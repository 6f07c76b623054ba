"""Idle time from logs of jobs: right in every form of a log, whatever its edges lack."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from bftrainer.batch.traces import Fragments, ReadOptions, TraceError, closed, read_trace, sinfo
from bftrainer.batch.traces import sacct as sacct_module
from bftrainer.batch.traces.statistics import describe, node_time
from bftrainer.cli.main import cli
from tests.support.job_log import (
    DAY_S,
    Site,
    lsb_acct,
    made_site,
    sacct,
    sacctmgr_events,
    swf,
    with_closed,
)

ROOT = Path(__file__).parents[2]
BEGIN_S = int(datetime(2024, 5, 1, tzinfo=UTC).timestamp())


@pytest.fixture(scope="module", params=[1, 2, 3])
def site(request: pytest.FixtureRequest) -> Site:
    """A busy cluster's week."""
    return made_site(request.param, BEGIN_S)


def read(
    path: Path,
    text: str,
    form: str = "sacct",
    *,
    start_s: float | None = None,
    end_s: float | None = None,
    time_zone: str | None = "UTC",
    events: Path | None = None,
) -> Fragments:
    path.write_text(text)
    options = ReadOptions(start_s=start_s, end_s=end_s, time_zone=time_zone, closed=events)
    return read_trace(path, form, options=options)


def check(trace: Fragments, site: Site, *, least_days: float) -> None:
    """Compare idle and used node-seconds with the truth; enough of the week must be left."""
    begin_s, end_s = trace.span_s
    assert site.begin_s <= begin_s < end_s <= site.end_s
    assert end_s - begin_s >= least_days * DAY_S
    assert len(trace.names) == site.n_nodes
    idle_s = site.idle_node_s(begin_s, end_s)
    assert trace.node_seconds() == idle_s
    assert trace.used_node_seconds() == site.used_node_s(begin_s, end_s)
    assert node_time(trace).accounted_share() == pytest.approx(1.0, abs=1e-12)


class TestSacct:
    @pytest.mark.parametrize("days_later", [-1.5, 0, 3])
    @pytest.mark.parametrize("is_truncated", [True, False])
    def test_both_forms_agree_with_the_truth(
        self, site: Site, tmp_path: Path, is_truncated: bool, days_later: float
    ) -> None:
        """Asked while the week is going on, at its end, and after all its jobs have ended."""
        now_s = int(site.end_s + days_later * DAY_S)
        text = sacct(site, is_truncated=is_truncated, now_s=now_s)
        trace = read(tmp_path / "week.txt", text)
        check(trace, site, least_days=5.0 if days_later < 0 else 6.5)
        assert trace.span_s[1] <= now_s
        assert bool(trace.left_out) != is_truncated
        assert not trace.warnings

    @pytest.mark.parametrize("is_truncated", [True, False])
    def test_the_window_that_is_named_is_taken(
        self, site: Site, tmp_path: Path, is_truncated: bool
    ) -> None:
        text = sacct(site, is_truncated=is_truncated)
        trace = read(tmp_path / "w", text, start_s=site.begin_s, end_s=site.end_s)
        assert list(trace.span_s) == [site.begin_s, site.end_s]
        check(trace, site, least_days=7)

    def test_a_job_that_starts_after_the_window_ends_before_its_start(
        self, site: Site, tmp_path: Path
    ) -> None:
        """As sacct --truncate prints it: not a damaged file."""
        late = next(run for run in site.runs if run.start_s - 60 > site.begin_s + 2 * DAY_S)
        cut = replace(site, end_s=late.start_s - 60)
        late = replace(late, submit_s=cut.end_s - 600)
        cut = replace(cut, runs=(*[r for r in site.runs if r.job_id != late.job_id], late))
        text = sacct(cut, is_truncated=True)
        assert f"|{late.start_s}|{cut.end_s}|" in text
        check(read(tmp_path / "w", text), cut, least_days=1.5)

    @pytest.mark.parametrize("change", ["2024-03-31", "2024-10-27"])
    @pytest.mark.parametrize("has_elapsed", [True, False])
    def test_local_times_over_a_clock_change(
        self, tmp_path: Path, change: str, has_elapsed: bool
    ) -> None:
        """In spring an hour is missing; in autumn one comes twice, and ``ElapsedRaw`` decides."""
        began_s = int(datetime.fromisoformat(f"{change}T01:00+00:00").timestamp()) - 3 * DAY_S
        site = made_site(4, began_s)
        text = sacct(site, is_truncated=False, zone="Europe/Berlin", has_elapsed=has_elapsed)
        trace = read(tmp_path / "w", text, time_zone="Europe/Berlin")
        if change == "2024-03-31":
            check(trace, site, least_days=6.5)
            return
        # Of what began and ended within the hour that comes twice nothing tells which one it was.
        second_s = began_s + 3 * DAY_S
        hidden = [r for r in site.runs if second_s <= r.start_s and r.end_s < second_s + 3600]
        unclear_s = sum((run.end_s - run.start_s) * len(run.nodes) for run in hidden)
        wrong_s = abs(trace.node_seconds() - site.idle_node_s(*trace.span_s))
        assert any("clock change repeats" in note for note in trace.notes)
        assert unclear_s < 3600 * site.n_nodes / 5
        assert wrong_s <= (unclear_s if has_elapsed else 3600 * site.n_nodes)

    def test_local_times_read_as_utc_are_warned_of(self, tmp_path: Path) -> None:
        began_s = int(datetime(2024, 3, 28, tzinfo=UTC).timestamp())
        site = made_site(5, began_s)
        text = sacct(site, is_truncated=False, zone="Europe/Berlin")
        trace = read(tmp_path / "w", text, time_zone=None)
        assert any("--time-zone" in warning for warning in trace.warnings)
        assert any("an hour more or less" in warning for warning in trace.warnings)

    def test_missing_duplicates_are_told(self, site: Site, tmp_path: Path) -> None:
        full = read(tmp_path / "full", sacct(site, is_truncated=True))
        assert not full.warnings
        assert any("suspended count as used" in note for note in full.notes)
        header, *rows = sacct(site, is_truncated=True).splitlines()
        first_of: dict[str, str] = {}
        for row in rows:
            first_of.setdefault(row.split("|")[0], row)
        trace = read(tmp_path / "w", "\n".join([header, *first_of.values()]) + "\n")
        assert any("--duplicates" in warning for warning in trace.warnings)

    def test_two_exports_in_one_file(self, tmp_path: Path) -> None:
        """Jobs over the border are in both, cut there in each."""
        site = made_site(6, BEGIN_S, days=8)
        halves = [
            Site(runs=site.runs, n_nodes=site.n_nodes, begin_s=begin_s, end_s=end_s)
            for begin_s, end_s in pairwise(range(site.begin_s, site.end_s + 1, 4 * DAY_S))
        ]
        texts = [sacct(half, is_truncated=True) for half in halves]
        joined = texts[0] + texts[1].partition("\n")[2]
        check(read(tmp_path / "w", joined), site, least_days=7.5)

    def test_of_a_day_without_an_end_nothing_is_proven(self, tmp_path: Path) -> None:
        text = "JobID|Submit|Start|End|NodeList\n1|10|20|500|n1\n2|30|40|Unknown|n2\n"
        with pytest.raises(TraceError) as caught:
            read(tmp_path / "w", text)
        assert caught.value.code == "BFT-4008"
        assert "--start" in caught.value.next_step
        named = read(tmp_path / "w", text, start_s=20.0, end_s=500.0)
        assert named.node_seconds() == 20  # n2 until its job starts

    def test_an_edge_that_jobs_are_missing_at_is_warned_of(self, tmp_path: Path) -> None:
        """Whoever names a time that the export does not cover learns it from the use of nodes."""
        site = made_site(10, BEGIN_S, n_nodes=96)
        text = sacct(site, is_truncated=False)
        begin_s, end_s = float(site.begin_s), float(site.end_s)
        right = read(tmp_path / "w", text, start_s=begin_s, end_s=end_s)
        assert not right.warnings
        early = read(tmp_path / "w", text, start_s=begin_s - 0.5 * DAY_S, end_s=end_s)
        assert any("at the beginning" in warning for warning in early.warnings)
        late = read(tmp_path / "w", text, start_s=begin_s, end_s=end_s + 1.2 * DAY_S)
        assert any("at the end" in warning for warning in late.warnings)

    def test_a_time_hardly_recorded_is_refused(self, site: Site, tmp_path: Path) -> None:
        text = sacct(site, is_truncated=True)
        for start_s, end_s in (
            (site.begin_s, site.end_s + 30 * DAY_S),
            (site.end_s + DAY_S, None),
        ):
            with pytest.raises(TraceError) as caught:
                read(tmp_path / "w", text, start_s=start_s, end_s=end_s)
            assert caught.value.code == "BFT-4005"


class TestClosed:
    @pytest.mark.parametrize("is_truncated", [True, False])
    def test_nodes_that_were_closed_were_not_idle(
        self, site: Site, tmp_path: Path, is_truncated: bool
    ) -> None:
        site = with_closed(site, 5)
        events = tmp_path / "closed.txt"
        events.write_text(sacctmgr_events(site, now_s=site.end_s))
        text = sacct(site, is_truncated=is_truncated, now_s=site.end_s)
        trace = read(tmp_path / "week.txt", text, events=events)
        check(trace, site, least_days=6.5)
        open_only = replace(site, closed=())
        idle_s = open_only.idle_node_s(*trace.span_s) - site.idle_node_s(*trace.span_s)
        assert trace.closed_node_seconds() == idle_s > 0

    def test_another_output_is_named(self, site: Site, tmp_path: Path) -> None:
        events = tmp_path / "closed.txt"
        for text, cause in (
            ("Cluster|State\n", "closed.txt:1: the header lacks NodeName, TimeStart, TimeEnd."),
            ("NodeName|TimeStart|End\n", "closed.txt:1: the header lacks TimeEnd."),
            ("NodeName|TimeStart|TimeEnd\nn1|2\n", "closed.txt:2: 2 fields"),
            ("NodeName|TimeStart|TimeEnd\nn1|soon|Unknown\n", "closed.txt:2: 'soon' is not"),
        ):
            events.write_text(text)
            with pytest.raises(TraceError) as caught:
                read(tmp_path / "w", sacct(site, is_truncated=True), events=events)
            assert caught.value.code == "BFT-4001"
            assert caught.value.cause.startswith(cause)


class TestOthers:
    def test_lsb_acct_lists_only_what_has_ended(self, tmp_path: Path) -> None:
        site = made_site(7, BEGIN_S, days=21)
        trace = read(tmp_path / "lsb.acct", lsb_acct(site), "lsb.acct")
        check(trace, site, least_days=14)
        assert any("lists jobs when they end" in note for note in trace.left_out)

    def test_a_short_lsb_acct_is_warned_of(self, site: Site, tmp_path: Path) -> None:
        few = Site(
            runs=site.runs, n_nodes=site.n_nodes,
            begin_s=site.begin_s, end_s=site.begin_s + 2 * DAY_S,
        )  # fmt: skip
        trace = read(tmp_path / "lsb.acct", lsb_acct(few), "lsb.acct")
        assert any("overstated" in warning for warning in trace.warnings)

    @pytest.mark.parametrize("by", ["submit_s", "end_s"])
    def test_swf_chosen_by_submission_or_by_end(self, tmp_path: Path, by: str) -> None:
        site = made_site(8, BEGIN_S, days=35)
        chosen = [run for run in site.runs if site.begin_s <= getattr(run, by) < site.end_s]
        trace = read(tmp_path / "log.swf", swf(site, chosen), "swf")
        begin_s, end_s = trace.span_s
        assert end_s - begin_s > 17 * DAY_S
        assert trace.node_seconds() == site.idle_node_s(begin_s, end_s)


class TestCommandLine:
    def run(self, *arguments: str) -> str:
        done = CliRunner().invoke(cli, ["trace", "info", *arguments])
        assert done.exit_code == 0, done.output
        return done.output

    def test_dates_and_hours_name_the_window(self, site: Site, tmp_path: Path) -> None:
        """A week that the records cover but for two minutes is no error."""
        path = tmp_path / "week.txt"
        path.write_text(sacct(site, is_truncated=False))
        share = site.idle_node_s(site.begin_s, site.end_s) / (7 * DAY_S * site.n_nodes)
        for arguments in (
            ("--start", "2024-05-01", "--end", "2024-05-08"),
            ("--start", "2024-05-01T02:00", "--hours=168", "--time-zone=Europe/Berlin"),
            ("--start", str(site.begin_s), "--hours", "168"),
        ):
            shown = self.run(str(path), *arguments)
            assert f"{share:.2%}" in shown, arguments
        assert re.search(r"used [0-9.]+% \+ idle [0-9.]+% \+ closed 0\.00% = 100\.00%", shown)

    def test_wrong_times(self, tmp_path: Path) -> None:
        path = tmp_path / "x"
        path.write_text("node,start_s,end_s\na,0,100000\n")
        for arguments in (("--start", "soon"), ("--end", "5", "--hours", "1")):
            done = CliRunner().invoke(cli, ["trace", "info", str(path), *arguments])
            assert done.exit_code == 2
        assert "100" in self.run(str(path), "--hours", "27.79")  # of 27.78


def test_a_trace_is_cut_where_it_ends_a_poll_earlier() -> None:
    from bftrainer.batch.traces import make_fragments

    trace = make_fragments(
        names=["a"], node=[0], start_s=[10.0], end_s=[50.0], span_s=(0.0, 604_680.0)
    )
    part = trace.restrict(start_s=0.0, hours=168)  # 120 s more
    assert part.span_s == (0.0, 604_680.0)
    with pytest.raises(TraceError, match="not 0 to 608400"):
        trace.restrict(start_s=0.0, hours=169)


def test_unnamed_nodes_are_closed_and_fillable_time_is_apart(tmp_path: Path) -> None:
    site = made_site(9, BEGIN_S)
    trace = read(tmp_path / "w", sacct(site, is_truncated=True)).unfillable()
    sums = describe(trace, site.n_nodes + 5).node_time
    days = (trace.span_s[1] - trace.span_s[0]) / DAY_S
    assert sums.closed_h == pytest.approx(5 * days * 24)
    assert sums.fillable_h > 0
    assert sums.accounted_share() == pytest.approx(1.0, abs=1e-12)
    none = read_trace(ROOT / "bftrainer/batch/traces/data/sample.npz")
    assert "does not tell" in node_time(none).sentence()
    assert np.isfinite(node_time(none).idle_h)


@pytest.mark.parametrize(
    ("command", "begins"),
    [
        (sacct_module.COMMAND, "sacct --allusers"),
        (closed.COMMAND, "show event"),
        (sinfo.COMMAND, "sinfo --noheader"),
    ],
)
def test_every_page_prints_the_command(command: str, begins: str) -> None:
    """In whatever lines it is broken."""
    patterns = ("docs/**/*.md", "docs/**/*.ipynb", "README.md", "bftrainer/batch/**/*.py")
    texts = [path.read_text() for pattern in patterns for path in ROOT.glob(pattern)]
    pages = [re.sub(r"[\\\s\"]+", "", text) for text in texts if f"{begins} " in text]
    assert len(pages) >= 2
    assert all(re.sub(r"[\\\s\"]+", "", command) in page for page in pages)
