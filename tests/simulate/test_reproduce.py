"""``bftrainer reproduce``: results, their runs, what is compared and how that is said."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bftrainer.batch.traces import SAMPLE
from bftrainer.cli.main import main
from bftrainer.lab.papers import report
from bftrainer.lab.papers.bftrainer.diverse import runtimes_h
from bftrainer.lab.papers.bftrainer.paper import FULL, PAPER, QUICK
from bftrainer.lab.papers.bftrainer.replays import (
    REPLAYER_SHARE,
    PaperReplay,
    Record,
    ReplayerShare,
    play,
)
from bftrainer.lab.papers.bftrainer.scenario import (
    DIVERSE_FILE,
    PAPER_EVENTS,
    TABLES,
    WEEK_FILE,
    Sweeps,
    choose_scenario,
    network_name,
    workload_of,
)
from bftrainer.lab.papers.bftrainer.series import Series, share_followed, static_outcome, windows_of
from bftrainer.lab.papers.findings import Finding, ValueLine
from bftrainer.lab.papers.paper import Extent, Reproduction, Result, Scenario, play_all, reproduce
from bftrainer.lab.workloads import NETWORKS
from bftrainer.model.errors import UsageError
from milp.check import find_violations
from milp.problem import Curve, Problem, ProblemNode, ProblemTrainer
from tests.support.policies import allocated

Output = pytest.CaptureFixture[str]
TINY = Sweeps(
    name="tiny",
    hours=12.0,
    t_fwd_s=(10, 120),
    diverse_t_fwd_s=(10, 120),
    p_jmax=(5, 10, 35),
    cost_factors=(1, 10),
    networks_hours=6.0,
)
needs_data = pytest.mark.skipif(
    not os.environ.get("BFTRAINER_DATA"), reason="BFTRAINER_DATA is not set: no original data"
)


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return choose_scenario(None, None, _hours(6.0))


@pytest.fixture(scope="module")
def record(scenario: Scenario) -> Record:
    played = play(scenario.content, PaperReplay(workload="alexnet", p_jmax=4))
    assert played is not None
    return played


def _hours(hours: float) -> Sweeps:
    return replace(FULL, hours=hours)


def _cut(scenario: Scenario, *nodes: slice, **span: float) -> Scenario:
    week = scenario.content
    return replace(scenario, content=replace(week, trace=week.trace.restrict(*nodes, **span)))


def _data() -> Path:
    return Path(os.environ["BFTRAINER_DATA"])


class TestScene:
    def test_without_data_it_is_the_sample(self, scenario: Scenario, tmp_path: Path) -> None:
        about = scenario.document["trace"]
        assert about["is_synthetic"]
        assert not scenario.is_papers
        assert about["file"] == SAMPLE.name
        assert about["hours"] == 6.0
        assert choose_scenario(None, tmp_path, FULL).document["trace"]["is_synthetic"]

    def test_a_file_that_is_named_is_not_synthetic(self) -> None:
        given = choose_scenario(SAMPLE, None, FULL)
        assert not given.document["trace"]["is_synthetic"]
        assert not given.is_papers
        assert given.content.trace.duration_s == 48 * 3600

    @needs_data
    def test_the_original_is_cut_to_the_paper_s_week(self) -> None:
        scenario = choose_scenario(None, _data(), FULL)
        week = scenario.content
        assert scenario.is_papers
        assert len(week.trace.names) == 1024
        assert len(week.trace.pool_changes()) == PAPER_EVENTS
        assert week.diverse_file == _data() / DIVERSE_FILE
        named = choose_scenario(_data() / WEEK_FILE, None, _hours(3.0))
        assert named.content.trace.duration_s == 3 * 3600

    @needs_data
    def test_the_published_names_are_those_of_table_2(self) -> None:
        week = choose_scenario(None, _data(), _hours(1.0)).content
        names = {network_name(s.network) for s in workload_of(week, "diverse", 1.0)}
        assert names == {network.name for network in NETWORKS.values()}

    def test_costs_are_scaled(self, scenario: Scenario) -> None:
        first = next(iter(workload_of(scenario.content, "vgg-16", 3.0)))
        assert (first.rescale_up_s, first.rescale_down_s) == (54.0, 36.0)


class TestSeries:
    def test_intervals_add_up_to_the_replay_s_own_totals(self, record: Record) -> None:
        found, series = record.metrics, record.series
        assert len(series.pool) == found.events
        assert series.net().sum() == pytest.approx(found.a_e, rel=1e-9)
        assert series.rescale.sum() / found.a_s == pytest.approx(found.cost_rescale, rel=1e-9)
        assert series.preemption.sum() / found.a_s == pytest.approx(found.cost_preemption, rel=1e-9)
        assert series.preempted.sum() == found.preemptions
        n_eq = (series.pool * np.diff(series.at_s)).sum() / (series.at_s[-1] - series.at_s[0])
        assert n_eq == pytest.approx(found.n_eq, rel=1e-12)
        assert found.preemptions > 0  # else this says little

    def test_windows_add_up_to_the_whole(self, record: Record) -> None:
        windows = windows_of(record.series, 2.0)
        assert windows.hours.tolist() == [0, 2, 4, 6]
        assert windows.outcome.sum() == pytest.approx(record.metrics.a_e)
        assert windows.n_eq.mean() == pytest.approx(record.metrics.n_eq)

    def test_a_window_that_is_not_full_is_left_out(self, record: Record) -> None:
        assert windows_of(record.series, 4.0).hours.tolist() == [0, 4]

    def test_the_share_followed_by_a_loss(self) -> None:
        zeros = np.zeros(4)
        series = Series(
            at_s=np.array([0.0, 100.0, 200.0, 300.0, 400.0]),
            pool=zeros, rate=zeros, rescale=zeros,
            preemption=np.zeros(5), preempted=np.array([0.0, 0.0, 2.0, 0.0, 0.0]),
            excess=np.zeros(5),
        )  # fmt: skip
        # The loss at 200 s is 200 s after the first event, 100 s after the second.
        assert share_followed(series, [99.0, 100.0, 200.0, 1e9]) == [0.0, 0.25, 0.5, 0.5]

    def test_static_outcome_is_that_of_equal_shares(self) -> None:
        curve = Curve(sizes=(1, 3), samples_per_s=(10.0, 20.0))
        assert static_outcome(curve, np.array([4.0]), 2, 100.0).tolist() == [3000.0]


class TestReplayerShare:
    @staticmethod
    def _problem(n_nodes: int, n_trainers: int, n_max: int = 64) -> Problem:
        curve = Curve(sizes=(1, 64), samples_per_s=(1.0, 64.0))
        return Problem(
            nodes=tuple(ProblemNode(name=f"n{i:03d}") for i in range(n_nodes)),
            trainers=tuple(
                ProblemTrainer(
                    trainer_id=f"t{j}", n_min=1, n_max=n_max, curve=curve,
                    rescale_up_s=1.0, rescale_down_s=1.0,
                )
                for j in range(n_trainers)
            ),
            t_fwd_s=120.0,
            p_jmax=10,
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("n_nodes", "expected"),
        [
            (29, {"t0": 11, "t1": 9, "t2": 9}),  # the remainder is the first one's
            (5, {"t0": 5}),  # a share of n_min counts as none
            (400, {"t0": 64, "t1": 64, "t2": 64}),
        ],
    )
    def test_the_remainder_goes_to_the_first(self, n_nodes: int, expected: dict[str, int]) -> None:
        problem = self._problem(n_nodes, 3)
        allocation = allocated(ReplayerShare(), problem)
        assert allocation.sizes() == expected
        assert find_violations(problem, allocation) == []

    def test_what_the_first_cannot_take_goes_to_the_next(self) -> None:
        assert allocated(ReplayerShare(), self._problem(11, 4, n_max=3)).sizes() == {
            "t0": 3, "t1": 3, "t2": 3, "t3": 2,
        }  # fmt: skip


class TestRuns:
    def test_the_same_for_any_number_of_processes(self, scenario: Scenario) -> None:
        short = _cut(scenario, hours=0.5)
        runs = [
            PaperReplay(),
            PaperReplay(p_jmax=5),
            PaperReplay(policy=REPLAYER_SHARE),
            PaperReplay(hours=0.25),
        ]
        alone = play_all(PAPER, short, [*runs, *runs], processes=1)
        together = play_all(PAPER, short, runs, processes=2)
        assert set(alone) == set(together) == set(runs)
        for run in runs:
            assert alone[run].series.net().tolist() == together[run].series.net().tolist()
            assert alone[run].trainers == together[run].trainers
        assert alone[runs[3]].series.at_s[-1] - alone[runs[3]].series.at_s[0] == 900.0

    def test_progress_reaches_the_end(self, scenario: Scenario) -> None:
        seen: list[float] = []
        short = _cut(scenario, hours=0.25)
        play_all(
            PAPER,
            short,
            [PaperReplay(), PaperReplay(p_jmax=5)],
            processes=1,
            on_progress=seen.append,
        )
        assert seen == [0.5, 1.0]


class TestRegistry:
    def test_every_result_of_section_5_is_there(self) -> None:
        known = [result.result_id for result in PAPER.results]
        assert len(known) == len(set(known))
        expected = {"fig7a", "fig7b", "table3", "table4", "statements"}
        expected |= {f"fig{n}" for n in (5, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16)}
        assert expected <= set(known)

    def test_tables_have_a_row_per_network(self) -> None:
        for table in (TABLES["table3"], TABLES["table4"]):
            assert set(table["rows"]) == {network.name for network in NETWORKS.values()}
            assert {len(row) for row in table["rows"].values()} == {len(FULL.p_jmax)}

    def test_choice_keeps_the_paper_s_order(self) -> None:
        assert [r.result_id for r in PAPER.choose(["table3", "FIG7A"])] == ["fig7a", "table3"]
        assert PAPER.choose([]) == PAPER.results
        with pytest.raises(UsageError) as caught:
            PAPER.choose(["fig99"])
        assert caught.value.code == "BFT-4160"


def test_runtimes_are_of_completed_trainers_by_network(record: Record) -> None:
    ends = record.trainers[:3]
    made = replace(
        record,
        trainers=(
            replace(ends[0], network="AlexNet", started_s=0.0, finished_s=3600.0),
            replace(ends[1], network="AlexNet", started_s=3600.0, finished_s=14400.0),
            replace(ends[2], network="VGG-16", started_s=0.0, finished_s=None),
        ),
    )
    assert runtimes_h(made) == {"AlexNet": 2.0}


class TestReport:
    @staticmethod
    def _made(
        scenario: Scenario, line: ValueLine, extent: Extent = FULL
    ) -> tuple[Result, Reproduction]:
        result = Result(result_id="x", shows="x", how="x", why="because", find=lambda *_: None)
        made = Finding(known={}, drawn={}, lines=[line])
        return result, Reproduction(
            paper=PAPER, scenario=scenario, extent=extent, results=(result,), findings={"x": made}
        )

    def test_deviations_are_in_points_or_percent(self) -> None:
        assert ValueLine(what="", ours=78.0, paper=75.0).deviation == 3.0
        assert ValueLine(what="", ours=3.0, paper=2.0, unit="h").deviation == 50.0
        assert ValueLine(what="", ours=None, paper=2.0).deviation is None

    def test_only_what_is_far_is_explained(self, scenario: Scenario) -> None:
        week = replace(scenario, is_papers=True)
        near = ValueLine(what="", ours=76.0, paper=75.0)
        far = replace(near, ours=60.0)
        result, made = self._made(week, near)
        assert report.explain(near, result, made) == ""
        assert report.explain(far, result, made) == "because"
        assert report.explain(replace(far, why="its own"), result, made) == "its own"
        shape = ValueLine(what="", ours=1.0, says="grows", holds=False)
        assert report.explain(shape, result, made) == "because"
        assert report.explain(replace(shape, holds=True), result, made) == ""
        _, quick = self._made(week, far, QUICK)
        assert report.beside_full(far, result, quick).startswith("shortened")

    def test_another_trace_is_said_to_be_one(self, scenario: Scenario) -> None:
        far = ValueLine(what="", ours=10.0, paper=75.0)
        result, made = self._made(scenario, far)
        assert report.explain(far, result, made) == "another trace"
        assert "NOT comparable" in report.remarks(made)[0]
        assert "NOT comparable" in report.markdown(made, {})


@pytest.mark.parametrize(
    "without",
    [
        ("fig12", "fig13", "fig14", "fig15", "table3", "table4"),  # many replays
        ("fig13",),
    ],
)
@pytest.mark.long
def test_everything_on_the_sample(without: tuple[str, ...]) -> None:
    sample = choose_scenario(None, None, _hours(12.0))
    short = _cut(sample, slice(0, 100))
    made = reproduce(
        PAPER, short, TINY, [r for r in PAPER.results if r.result_id not in without], processes=1
    )
    document = json.loads(json.dumps(report.document(made), allow_nan=False))
    results = {result["id"]: result for result in document["results"]}
    assert results["table1"]["status"] == "not attempted"
    assert "Theta" in results["table1"]["why"]
    [why] = {line["why"] for line in results["two-weeks"]["lines"]}
    assert "needs two weeks of Summit" in why
    lines = {line["what"]: line for line in results["fig9"]["lines"]}
    assert lines["U of the heuristic"]["paper"] == 75.0
    assert 0 < lines["U of the heuristic"]["ours"] < 120
    if "table3" not in without:
        assert len(results["table3"]["lines"]) == 3 + 7 * len(TINY.p_jmax)
    text = report.markdown(made, {})
    for result in PAPER.results:
        assert (f"## {result.result_id}\n" in text) == (result.result_id not in without)
    assert len(report.rows(made, most=3)) < len(report.rows(made))


class TestCommand:
    def test_results_are_listed(self, capsys: Output) -> None:
        assert main(["reproduce", "bftrainer", "--list"]) == 0
        assert "fig7a" in capsys.readouterr().out

    def test_one_result_with_pictures_and_documents(
        self, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("matplotlib", reason="pictures need matplotlib (extra demo)")
        monkeypatch.delenv("BFTRAINER_DATA", raising=False)
        file = tmp_path / "quiet.csv"
        file.write_text("node,start_s,end_s\n" + "".join(
            f"n{i},{j * 1000 + 70 * i},{j * 1000 + 70 * i + 600}\n"
            for i in range(12) for j in range(10)
        ))  # fmt: skip
        out, document = tmp_path / "out", tmp_path / "found.json"
        argv = ["reproduce", "bftrainer", "--only", "fig7a", "--only", "table1", "--trace"]
        argv += [str(file), "--processes", "1", "--out", str(out), "--json", str(document)]
        assert main(argv) == 0
        text = capsys.readouterr().out
        assert "not the paper's week" in text
        assert "not attempted" in text
        assert (out / "fig7a.png").read_bytes().startswith(b"\x89PNG")
        assert (
            "![Preemption within the forward-looking time](fig7a.png)"
            in (out / "report.md").read_text()
        )
        page, answer = (out / "report.html").read_text(), text.splitlines()[0]
        verdicts = [line["verdict"] for result in json.loads(document.read_text())["results"]
                    for line in result["lines"] if line["verdict"]]  # fmt: skip
        assert answer.startswith(f"{len(verdicts)} published numbers: ")
        assert page.index(f'<p class="answer">{answer}</p>') < page.index("<svg")
        assert page.index("<svg") < page.index("<th") < page.index("</main>")
        first = document.read_text()
        assert json.loads(first)["schema"] == "bftrainer/reproduction/2"
        assert main([*argv[:-2], "--json", "-"]) == 0
        assert capsys.readouterr().out == first  # bit for bit

    def test_what_cannot_be_done_is_said_before_anything_is_played(
        self, tmp_path: Path, capsys: Output
    ) -> None:
        assert main(["reproduce", "bftrainer", "--only", "fig99"]) == 2
        assert "error BFT-4160" in capsys.readouterr().err
        (tmp_path / "file").write_text("")
        argv = ["reproduce", "bftrainer", "--trace", str(SAMPLE), "--json"]
        assert main([*argv, str(tmp_path / "file" / "x.json")]) == 4
        assert "error BFT-4161" in capsys.readouterr().err
        assert main([*argv[:-1], "--out", str(tmp_path / "file")]) == 2
        assert "error BFT-4161" in capsys.readouterr().err


@needs_data
@pytest.mark.long
def test_the_published_bookkeeping_is_met() -> None:
    """U within the tolerance of the values beside the data (README there: 0.004)."""
    week = choose_scenario(None, _data(), FULL)
    made = reproduce(PAPER, week, FULL, PAPER.choose(["exact-replay"]), processes=2)
    lines = made.findings["exact-replay"].lines
    assert len(lines) == 2 * (1 + len(TABLES["exact-replay"]["columns"]))
    for line in lines:
        assert line.deviation is not None
        # Ties: T_fwd 1,200 s by name and 60 s at random are further off: docs/design/reproduce.md.
        is_apart = "1200 s, nodes by name" in line.what or "60 s, nodes at random" in line.what
        assert abs(line.deviation) <= (0.8 if is_apart else 0.45), line
