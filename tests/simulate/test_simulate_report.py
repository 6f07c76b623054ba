"""What a replay leaves to read: its course over time, documents, pages."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from bftrainer.batch.traces.generator import GeneratorParameters, generate
from bftrainer.batch.traces.text import TraceError
from bftrainer.lab import report
from bftrainer.lab.report import FIGURES, ReportSetup
from bftrainer.lab.simulator.metrics import WORDS, Metrics
from bftrainer.lab.simulator.session import Choices, ReplayRun, play, record
from bftrainer.model.errors import UsageError
from tests.simulate.test_simulate import trace, trial

DOCS = Path(__file__).parents[2] / "docs"
SETUP = ReportSetup(
    trace="T <b>", workload="w", costs="paper", command="bftrainer simulate --seed 1"
)


@pytest.fixture(scope="module")
def runs() -> list[ReplayRun]:
    given = generate(GeneratorParameters(n_nodes=32, hours=6.0, seed=3))
    workload = [trial(f"t{i}", 5e4, submit_s=300.0 * i) for i in range(20)]
    names = ("milp", "equal-share", "fcfs-greedy", "no-rescale")
    return [record(given, workload, Choices(policy=name, p_jmax=4)) for name in names]


class TestMetrics:
    def test_every_figure_has_words_and_a_line_in_the_docs(self) -> None:
        names = [field.name for field in fields(Metrics)]
        assert list(WORDS) == names
        text = (DOCS / "design" / "simulator.md").read_text()
        for name in names:
            if name.startswith("decision_ms_p") or name == "decision_ms_max":
                name = "_" + name.removeprefix("decision_ms_")  # noqa: PLW2901 - as docs name it
            assert f"`{name}`" in text

    def test_those_who_start_with_the_trace_count_for_fairness(self) -> None:
        # Two on one node each from second 0 on: alike. Then one of them on two.
        _, found = play(trace((0, 0, 1000), (1, 0, 1000)), [trial("t"), trial("u")], Choices())
        assert found.jain_index == pytest.approx(1.0)
        three = trace((0, 0, 1000), (1, 0, 1000), (2, 0, 1000))
        _, found = play(three, [trial("t"), trial("u")], Choices(policy="fcfs-greedy", p_jmax=2))
        assert found.jain_index == pytest.approx(1.0)  # one of them has not run at all
        _, found = play(three, [trial("t"), trial("u")], Choices(policy="equal-share", p_jmax=2))
        assert found.jain_index == pytest.approx((2 + 1) ** 2 / (2 * (2**2 + 1**2)))

    def test_times_of_trainers(self) -> None:
        # 1,000 samples at 10/s each, one after the other; ends are seen at the events.
        given = trace((0, 0, 1000), (1, 150, 160), (1, 300, 310))
        workload = [trial(name, 1000.0, submit_s=0.0) for name in "tu"]
        _, found = play(given, workload, Choices(policy="fcfs-greedy", p_jmax=1))
        # t: 0 to 150; u: 150 to 300 on one or two nodes.
        assert found.completed == 2
        assert (found.runtime_mean_s, found.runtime_median_s) == (150.0, 150.0)
        assert (found.queue_time_mean_s, found.queue_time_max_s) == (75.0, 150.0)
        assert (found.jct_mean_s, found.jct_median_s) == (225.0, 225.0)
        assert found.jct_p90_s == pytest.approx(150 + 0.9 * 150)
        alone_s = 1000.0 / (10 * found.n_eq)
        assert found.slowdown_mean == pytest.approx(150.0 / alone_s)
        assert found.slowdown_max == pytest.approx(150.0 / alone_s)

    def test_the_parts_of_what_is_missing_add_up(self, runs: list[ReplayRun]) -> None:
        for run in runs:
            m = run.metrics
            parts = m.utilization + m.cost_preemption + m.cost_rescale + m.cost_unused
            assert parts == pytest.approx(1.0)
            assert 0 < m.utilization < 1

    def test_decision_times_are_of_every_decision(self, runs: list[ReplayRun]) -> None:
        m, taken_s = runs[0].metrics, runs[0].outcome.decision_s
        assert len(taken_s) == m.decisions
        assert 1e3 * sum(taken_s) / len(taken_s) == pytest.approx(m.decision_ms_mean)
        assert m.decision_ms_p50 is not None
        assert m.decision_ms_p99 is not None
        assert m.decision_ms_max is not None
        assert 0 < m.decision_ms_p50 <= m.decision_ms_p99 <= m.decision_ms_max


class TestWindows:
    def test_windows_of_a_replay_by_hand(self) -> None:
        # One node for 500 s, two from then on; no costs but the growth at 500.
        run = record(trace((0, 0, 1000), (1, 500, 1000)), [trial("t")], Choices(p_jmax=1))
        edges = report.edges_of(run.outcome.trace, 500 / 3600)
        assert edges.tolist() == [0, 500, 1000]
        assert report.nodes_offered(run.outcome.trace, edges).tolist() == [1, 2]
        assert report.nodes_training(run, edges).tolist() == pytest.approx([1, 2])
        # The fine of 18 s at 10/s is noted together with the instant of the growth.
        found = report.utilization(run, edges)
        total = found @ np.array([500 * 10, 500 * 20])
        assert total == pytest.approx(500 * 10 + 500 * 20 - 18 * 10)

    def test_windows_add_up_to_the_whole(self, runs: list[ReplayRun]) -> None:
        for run in runs:
            given, notes = run.outcome.trace, run.outcome.notes
            assert notes[-1].processed == pytest.approx(run.metrics.a_e)
            assert notes[-1].at_s == given.span_s[1]
            edges = report.edges_of(given, 1.0)
            offered = report.nodes_offered(given, edges)
            assert offered.mean() == pytest.approx(run.metrics.n_eq)
            training = report.nodes_training(run, edges)
            assert training.mean() == pytest.approx(
                run.metrics.node_share_training * offered.mean()
            )
            assert (training <= offered + 1e-9).all()

    def test_where_nothing_is_idle_there_is_no_utilization(self) -> None:
        run = record(trace((0, 500, 1000)), [trial("t")], Choices(p_jmax=1))
        found = report.utilization(run, report.edges_of(run.outcome.trace, 500 / 3600))
        assert np.isnan(found[0])
        assert found[1] == pytest.approx(1.0)

    @pytest.mark.parametrize(("hours", "width"), [(168, 6.0), (48, 2.0), (1, 0.05), (7200, 240)])
    def test_widths_are_those_people_count_in(self, hours: float, width: float) -> None:
        given = trace((0, 0, 1), end_s=hours * 3600)
        assert report.window_h(given, 30) == pytest.approx(width)


class TestTables:
    def test_a_document_holds_every_figure_and_choice(self, runs: list[ReplayRun]) -> None:
        found = report.document(runs[3], SETUP, {"nodes": "0:4", "start_s": None, "ignored": ()})
        json.dumps(found, allow_nan=False)
        assert found["policy"] == "no-rescale"
        assert found["job_nodes"] == 1
        assert found["selection"] == {"nodes": "0:4"}
        for field in fields(Metrics):
            assert found[field.name] == getattr(runs[3].metrics, field.name)

    def test_csv_has_one_line_per_run(self, runs: list[ReplayRun], tmp_path: Path) -> None:
        path = tmp_path / "runs.csv"
        report.write_csv(path, [report.document(run, SETUP, {}) for run in runs])
        with path.open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        assert [row["policy"] for row in rows] == [run.choices.policy for run in runs]
        assert [float(row["utilization"]) for row in rows] == [
            run.metrics.utilization for run in runs
        ]
        with pytest.raises(TraceError, match="BFT-4002"):
            report.write_csv(tmp_path / "no" / "runs.csv", [{"policy": "milp"}])

    def test_the_comparison_has_a_column_per_run(self, runs: list[ReplayRun]) -> None:
        (table,) = report.report_of(runs, SETUP).sections[-1].tables
        assert len(table.rows) == len(WORDS)
        figures = [f"{run.metrics.utilization:.4f}" for run in runs]
        assert table.rows[0] == ("utilization U", *figures, "A_e / A_s (section 4.1)")


class TestPage:
    @pytest.fixture(autouse=True)
    def _needs_matplotlib(self) -> None:
        pytest.importorskip("matplotlib", reason="reports need matplotlib (extra demo)")

    def test_html_holds_everything_and_loads_nothing(
        self, runs: list[ReplayRun], tmp_path: Path
    ) -> None:
        path = tmp_path / "report.html"
        shares: list[float] = []
        report.write_report(path, runs, SETUP, shares.append)
        text = path.read_text()
        assert text.count("<figure id=") == text.count("<svg") == 5
        assert text.count("<figcaption><b>Figure") == len(FIGURES)
        assert text.count(f"<code>{SETUP.command}</code>") == 1
        assert text.index(report.answer(runs)) < text.index("<svg") < text.index("<table")
        assert "Trace T &lt;b&gt;: 32 nodes, 6 h" in text
        assert "A job of no-rescale asks for 1 node." in text
        assert not re.findall(r'(?:src|href)="(?!#)', text)
        assert "://" not in text
        assert not re.findall(r"<(?:script|link|iframe)", text)
        for run in runs:
            assert f'<td class="num">{run.metrics.utilization:.4f}</td>' in text
        assert shares == sorted(shares)
        assert shares[-1] == 1.0
        report.write_report(tmp_path / "again.html", runs, SETUP)
        assert (tmp_path / "again.html").read_text() == text

    def test_png_is_a_picture(self, runs: list[ReplayRun], tmp_path: Path) -> None:
        path = tmp_path / "report.png"
        report.write_report(path, runs[:1], SETUP)
        assert path.read_bytes().startswith(b"\x89PNG")

    def test_every_axis_has_a_name_with_its_unit(self, runs: list[ReplayRun]) -> None:
        figure_class = pytest.importorskip("matplotlib.figure").Figure
        for figure in FIGURES:
            axes = figure_class().add_subplot()
            figure.draw(axes, runs)
            assert axes.get_xlabel() == "policy" or axes.get_xlabel().endswith("(h)")
            assert axes.get_ylabel() == "nodes" or axes.get_ylabel().endswith("(%)")
            assert figure.caption(runs).endswith(".")

    def test_bars_show_the_parts_of_a_s(self, runs: list[ReplayRun]) -> None:
        axes = pytest.importorskip("matplotlib.figure").Figure().add_subplot()
        split = next(figure for figure in FIGURES if figure.key == "cost-split")
        split.draw(axes, runs)
        heights = np.array([[bar.get_height() for bar in parts] for parts in axes.containers])
        assert heights.sum(axis=0).tolist() == pytest.approx([100.0] * len(runs))
        assert heights[0].tolist() == pytest.approx([100 * r.metrics.utilization for r in runs])

    @pytest.mark.parametrize(
        ("name", "code"), [("report.pdf", "BFT-4110"), ("no/report.html", "BFT-4002")]
    )
    def test_what_cannot_be_written_is_refused(
        self, runs: list[ReplayRun], tmp_path: Path, name: str, code: str
    ) -> None:
        with pytest.raises(UsageError) as caught:
            report.write_report(tmp_path / name, runs, SETUP)
        assert caught.value.code == code
        assert not (tmp_path / name).exists()
