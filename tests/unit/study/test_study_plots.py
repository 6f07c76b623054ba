"""Pictures of studies: what is drawn of events and trials, and the verb."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure

from bftrainer.api.documents import document
from bftrainer.cli.main import cli
from bftrainer.model.errors import BftError, UsageError
from bftrainer.model.trainer import TrainerSpec
from bftrainer.study import plots
from bftrainer.study.configurations import (
    CategoricalParameter,
    FloatParameter,
    IntParameter,
    Parameter,
)
from bftrainer.study.directory import StudyDirectory, new_directory, write_directory
from bftrainer.study.document import StudyDocument
from bftrainer.study.plots import (
    KINDS,
    Material,
    Scale,
    Stay,
    importances,
    material,
    scale_of,
    shade_of,
)
from bftrainer.study.trial_table import SUMMARY_SCHEMA, StudySummary, TrialRow, answer
from bftrainer.study.trials import TrialStage
from tests.support.report_words import check_same_words

LR = FloatParameter(type="float", low=1e-4, high=1e-1, log=True)
WIDTH = IntParameter(type="int", low=16, high=256)
KIND = CategoricalParameter(type="categorical", choices=("sgd", "adam"))
PARAMETERS: dict[str, Parameter] = {"lr": LR, "width": WIDTH, "kind": KIND}
BEGAN_S = 1000.0
# Two trials train one epoch; the better one goes on to three, and the other one is stopped.
EVENTS = (
    {"at_s": 1000.0, "event": "pool", "nodes": 4},
    {"at_s": 1001.0, "event": "started", "trial": 0, "budget": 1},
    {"at_s": 1001.0, "event": "started", "trial": 1, "budget": 1},
    {"at_s": 1011.0, "event": "reported", "trial": 0, "units": 1, "value": 0.5},
    {"at_s": 1021.0, "event": "reported", "trial": 1, "units": 1, "value": 0.4},
    {"at_s": 1031.0, "event": "grown", "trial": 1, "budget": 3},
    {"at_s": 1041.0, "event": "pool", "nodes": 2},
    {"at_s": 1051.0, "event": "reported", "trial": 1, "units": 3, "value": 0.2},
    {"at_s": 1056.0, "event": "complete", "trial": 1, "reason": ""},
    {"at_s": 1061.0, "event": "stopped", "trial": 0, "reason": "Its study is over."},
)


def row(number: int, value: float | None, units: int = 1, **parameters: Any) -> TrialRow:
    """Return a trial that has reported a value."""
    return TrialRow(
        number=number,
        stage=str(TrialStage.STOPPED),
        parameters={"lr": 0.01, "width": 64, "kind": "adam", **parameters},
        value=value,
        units=units,
        budget=units,
        values={} if value is None else {units: value},
        nodes=0,
        node_s=3600.0,
        bracket=0,
        parent=None,
        attempt=0,
        trainer_id="",
        checkpoint_dir="",
        reason="",
        began_s=None,
        ended_s=None,
    )


def summary(*rows: TrialRow, direction: str = "minimize") -> StudySummary:
    """Return a study that is over."""
    return StudySummary(
        study="digits-000000",
        name="digits",
        directory="digits.study",
        state="over",
        metric="error",
        direction=direction,
        unit="epochs",
        retry=1,
        rule={"name": "asha", "most": 3},
        at_s=2000.0,
        created_s=BEGAN_S,
        pool_nodes=2,
        nodes=0,
        node_s=7200.0,
        active=0,
        waiting=0,
        over=len(rows),
        best=rows[-1].number if rows else None,
        rungs=(),
        trials=rows,
    )


@pytest.fixture
def found() -> Material:
    """What the events above tell."""
    return material(summary(row(0, 0.5), row(1, 0.2, 3)), PARAMETERS, EVENTS)


def stay(trial: int, begin_s: float, end_s: float, budget: int, *, is_active: bool) -> Stay:
    """Return a stay."""
    return Stay(trial=trial, begin_s=begin_s, end_s=end_s, budget=budget, is_active=is_active)


def test_stays_follow_from_events(found: Material) -> None:
    assert set(found.stays) == {
        stay(0, 1, 11, 1, is_active=True),
        stay(0, 11, 61, 1, is_active=False),
        stay(1, 1, 21, 1, is_active=True),
        stay(1, 21, 31, 1, is_active=False),
        stay(1, 31, 56, 3, is_active=True),
    }
    assert found.pool == ((0.0, 4), (41.0, 2))
    assert found.duration_s == 61.0  # the study's, not until somebody looked
    assert found.clock == (1.0, "seconds")


def test_an_event_may_be_there_twice_or_missing(found: Material) -> None:
    twice = [event for event in EVENTS for _ in range(2)]
    again = material(found.summary, PARAMETERS, twice)
    assert (set(again.stays), again.reported, again.ended) == (
        set(found.stays),
        found.reported,
        found.ended,
    )
    lost = [event for event in EVENTS if event["event"] != "started"]
    assert stay(1, 31, 56, 3, is_active=True) in material(found.summary, PARAMETERS, lost).stays


def test_what_goes_on_is_drawn_until_now() -> None:
    going_on = EVENTS[:6]
    running = StudySummary(
        **{**_fields(summary(row(0, 0.5))), "state": "running", "at_s": 1000.0 + 7200.0}
    )
    found = material(running, PARAMETERS, going_on)
    assert stay(1, 31, 7200, 3, is_active=True) in found.stays
    assert found.clock == (3600.0, "hours")


def _fields(of: StudySummary) -> dict[str, Any]:
    return {name: getattr(of, name) for name in StudySummary.__dataclass_fields__}


@pytest.mark.parametrize(
    ("direction", "best"), [("minimize", [0.5, 0.4, 0.2]), ("maximize", [0.5, 0.5, 0.5])]
)
def test_history_shows_the_best_so_far(direction: str, best: list[float]) -> None:
    found = material(summary(row(0, 0.5), direction=direction), PARAMETERS, EVENTS)
    figure: Any = Figure()
    plots.draw_history(figure, found)
    (axes,) = figure.axes
    assert list(axes.lines[0].get_ydata())[:3] == best
    assert sum(len(one.get_offsets()) for one in axes.collections) == 3
    assert axes.get_ylabel() == f"error (to {direction})"


def test_rungs_shows_every_stay(found: Material) -> None:
    figure: Any = Figure()
    plots.draw_rungs(figure, found)
    upper, lower = figure.axes
    lines = [one for one in upper.collections if hasattr(one, "get_segments")]
    assert sum(len(one.get_segments()) for one in lines) == len(found.stays)
    labels = upper.get_legend_handles_labels()[1]
    assert labels[:3] == ["waits at its rung", "trains to 1 epochs", "trains to 3 epochs"]
    nodes, active = lower.lines
    assert list(nodes.get_ydata()) == [4, 2, 2]
    assert max(active.get_ydata()) == 2
    assert active.get_ydata()[-1] == 0


def test_parallel_has_a_line_per_trial_and_an_axis_per_parameter(found: Material) -> None:
    figure: Any = Figure()
    plots.draw_parallel(figure, found)
    (axes,) = figure.axes
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert names == ["lr", "width", "kind", "error"]
    lines = [line for line in axes.lines if len(line.get_xdata()) == len(names)]
    assert len(lines) == 2
    (best,) = (line for line in lines if line.get_label() == "best, trial 1")
    assert best.get_ydata()[-1] == 0.0  # the least value is at the bottom


@pytest.mark.parametrize(
    ("parameter", "value", "place"),
    [(LR, 1e-4, 0.0), (LR, 1e-1, 1.0), (LR, 10**-2.5, 0.5), (WIDTH, 136, 0.5), (KIND, "sgd", 0.25)],
)
def test_places_on_an_axis(parameter: Any, value: Any, place: float) -> None:
    assert scale_of(parameter).place(value) == pytest.approx(place)


def test_an_axis_of_one_value_has_one_tick() -> None:
    assert Scale(low=3.0, high=3.0).ticks() == [(0.5, "3")]


def test_the_parameter_that_decides_is_the_important_one() -> None:
    rows = [row(60, math.nan), row(61, None)]  # which say nothing
    rows += [
        row(n, abs(n - 30) / 60, 3 if abs(n - 30) < 10 else 1, width=16 + 4 * n, lr=_other(n))
        for n in range(60)
    ]
    found = importances(material(summary(*rows), PARAMETERS, ()))
    assert next(iter(found)) == "width"
    assert sum(found.values()) == pytest.approx(1.0)
    assert found["width"] > 0.5


def _other(number: int) -> float:
    return float(1e-4 * 1000 ** ((number * 17 % 60) / 60))


def test_few_trials_say_nothing_of_importance(found: Material) -> None:
    assert importances(found) == {}


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StudyDirectory:
    """A study's directory as its loop leaves it, without a storage."""
    monkeypatch.chdir(tmp_path)
    document_ = StudyDocument(name="digits", parameters=PARAMETERS, rule={"name": "none"})
    spec = TrainerSpec(name="digits", user="ann", script="/train.py")
    made = new_directory(tmp_path / "digits.study", document_, spec)
    write_directory(made)
    write_summary(made, summary(row(0, 0.5), row(1, 0.2, 3)))
    made.events.write_text("".join(json.dumps(event) + "\n" for event in EVENTS))
    return made


def write_summary(study: StudyDirectory, said: StudySummary) -> None:
    """Write what ``status`` shows."""
    study.summary.write_text(json.dumps(document(SUMMARY_SCHEMA, said)))


def plot(*arguments: str) -> Any:
    """Run the verb."""
    return CliRunner().invoke(cli, ["study", "plot", "digits", *arguments])


@pytest.mark.parametrize("kind", [*KINDS, None])
def test_the_verb_writes_a_picture(study: StudyDirectory, kind: str | None) -> None:
    result = plot("--json", *(["--kind", kind] if kind else []))
    assert result.exit_code == 0, result.output
    said: Mapping[str, Any] = json.loads(result.output)
    assert said["kinds"] == ([kind] if kind else list(KINDS))
    file = study.path.parent / (f"digits-{kind}.png" if kind else "digits.png")
    assert said["file"] == str(file)
    assert file.read_bytes().startswith(b"\x89PNG")


def test_the_ending_says_the_format(study: StudyDirectory) -> None:
    result = plot("--kind", "history", "--out", "values.svg")
    assert result.output == "wrote values.svg\n"
    assert "error (to minimize)" in (study.path.parent / "values.svg").read_text()


def test_nothing_to_draw_and_nowhere_to_write(study: StudyDirectory) -> None:
    for out in ("values.nonsense", "missing/values.png"):
        error = plot("--out", out).exception
        assert isinstance(error, UsageError)
        assert error.code == "BFT-1662"
        assert out in error.cause
    write_summary(study, summary(row(0, None)))
    error = plot().exception
    assert isinstance(error, BftError)
    assert error.code == "BFT-1661"


def test_a_page_begins_with_the_best_trial(study: StudyDirectory) -> None:
    rows = (row(0, 0.5), row(1, 0.2, 3), row(2, None))
    write_summary(study, dataclasses.replace(summary(*rows), best=1, unit="$<b>$"))
    result = plot("--out", "digits.html")
    assert result.exit_code == 0, result.output
    text = (study.path.parent / "digits.html").read_text()
    answer = (
        "The best of digits is trial 1: error 0.2 after 3 $&lt;b&gt;$, with lr=0.01, width=64, "
        "kind=adam; 3 of 3 trials are over."
    )
    assert f'<p class="answer">{answer}</p>' in text
    assert text.count("<svg") == len(KINDS)
    printed = CliRunner().invoke(cli, ["study", "status", "digits", "--all"])
    check_same_words(text, printed.output)
    assert text.index(answer) < text.index("<svg") < text.index("<table")
    places = [text.index(f'<td class="num">{number}</td><td>stopped') for number in (1, 0, 2)]
    assert places == sorted(places)  # best first, who has no value last
    assert "://" not in text
    assert plot("--kind", "rungs", "--out", "one.html").exit_code == 0
    assert (study.path.parent / "one.html").read_text().count("<svg") == 1
    error = plot("--out", "missing/page.html").exception
    assert isinstance(error, UsageError)
    assert error.code == "BFT-1662"


def test_the_answer_says_when_there_is_none_yet() -> None:
    running = dataclasses.replace(summary(row(0, None)), state="running", over=0)
    assert answer(running) == "No trial of digits has reported a value yet; 0 of 1 trials are over."
    running = dataclasses.replace(summary(row(0, 0.25)), state="running", over=0)
    assert answer(running).startswith("The best of digits so far is trial 0: error 0.25 after 1 ")


@pytest.mark.parametrize("part", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_lines_can_be_seen_on_a_light_and_on_a_dark_page(part: float) -> None:
    """Contrast as WCAG 2.2 defines it, to white and to the dark ground of the page (#0d1117)."""

    def luminance(colour: tuple[float, ...]) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    shade = luminance(shade_of(part))
    dark = luminance((13 / 255, 17 / 255, 23 / 255))
    assert 1.05 / (shade + 0.05) > 2.0
    assert (shade + 0.05) / (dark + 0.05) > 3.0
