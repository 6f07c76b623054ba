"""Study documents: what is read, and what is said of those that are wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bftrainer.study.configurations import CategoricalParameter, FloatParameter, IntParameter
from bftrainer.study.document import (
    StudyDocument,
    StudyErrors,
    json_schema,
    parse_study,
    read_study,
)

SOUND = """\
metric: loss
parameters:
  lr: {type: float, low: 0.001, high: 1, log: true}
  width: {type: int, low: 16, high: 64, step: 16}
  act: [relu, tanh]
rule: {name: asha, trials: 8, least: 1, most: 9, eta: 3}
"""
PATH = Path("digits.yaml")


def parse(text: str) -> StudyDocument:
    return parse_study(text, PATH)


def refused(text: str) -> StudyErrors:
    with pytest.raises(StudyErrors) as caught:
        parse(text)
    return caught.value


def test_a_document_has_the_name_of_its_file_and_defaults() -> None:
    found = parse(SOUND)
    assert (found.name, found.direction, found.unit, found.sampler) == (
        *("digits", "minimize", "epochs", "tpe"),
    )
    assert found.parameters == {
        "lr": FloatParameter(type="float", low=0.001, high=1.0, log=True),
        "width": IntParameter(type="int", low=16, high=64, step=16),
        "act": CategoricalParameter(type="categorical", choices=("relu", "tanh")),
    }
    assert (found.sign, parse(SOUND + "direction: maximize\n").sign) == (1.0, -1.0)
    assert found.rule_with(4).describe()["trials"] == 12


def test_written_as_json_and_read_it_is_the_same() -> None:
    text = SOUND.replace("trials: 8", "trials: 1")
    found = parse(text + "configurations: [{lr: 0.1, width: 16, act: relu}]\n")
    again = StudyDocument.model_validate_json(json.dumps(found.model_dump(mode="json")))
    assert again == found


@pytest.mark.parametrize(
    ("before", "after", "place", "said"),
    [
        ("metric: loss", "metrik: loss", "1:1", "Did you mean metric?"),
        ("high: 1,", "hihg: 1,", "3:33", "Did you mean high?"),
        ("high: 1,", "", "3:7", "parameters.lr.high is missing"),
        ("low: 0.001", "low: 2.0", "3:7", "low must not be above high"),
        ("low: 0.001", "low: 0", "3:7", "log needs low > 0"),
        ("type: float", "type: real", "3:7", "must be float, int or cat"),
        ("step: 16", "step: 0.5", "4:47", "parameters.width.step is 0.5, but"),
        ("[relu, tanh]", "[]", "5:8", "parameters.act"),
        ("[relu, tanh]", "relu", "5:8", "or a list of values, is required"),
        ("metric: loss", "direction: up", "1:12", "'minimize' or 'maximize'"),
        ("metric: loss", "sampler: anneal", "1:10", "'tpe', 'random', 'grid' or 'qmc'"),
        ("metric: loss", "retry: -1", "1:8", "retry is -1, but"),
        ("metric: loss", "parallel: 0", "1:11", "parallel is 0, but"),
        ("metric: loss", "name: a/b", "1:7", "name is"),
        ("rule: {", "rul: {", "6:1", "Did you mean rule?"),
        ("metric: loss", "submit: [a]", "1:9", "a mapping is required"),
        ("metric: loss", "sampler: grid", "3:7", "A grid needs a step of lr."),
        ("metric: loss", "configurations: []", "1:17", "There is no configuration."),
        ("metric: loss", "configurations: [{lr: 1}]", "1:18", "Give each of: lr, width, act."),
        (
            "metric: loss",
            "configurations: [{lr: 1, width: 17, act: relu}]",
            "1:33",
            "which is no value of it",
        ),
        ("metric: loss", "configurations: none.csv", "1:17", "cannot be read"),
        ("metric: loss", 'configurations: "\\0"', "1:17", "cannot be read"),
        ("metric: loss", "configurations: /dev/zero", "1:17", "not a regular file"),
        ("metric: loss", "metric: loss\nmetric: x", "2:1", "set twice"),
        ("metric: loss", "metric: &a loss", "1:9", "Anchors"),
    ],
)
def test_every_mistake_has_its_place(before: str, after: str, place: str, said: str) -> None:
    assert before in SOUND
    error = refused(SOUND.replace(before, after))
    assert {one.code for one in error.problems} == {"BFT-1621"}
    lines = [one.render(PATH) for one in error.problems]
    assert any(line.startswith(f"digits.yaml:{place}: ") and said in line for line in lines), lines
    assert error.exit_code == 8


@pytest.mark.parametrize(
    ("before", "after", "place", "said"),
    [
        ("name: asha", "name: ashe", "6:14", "did you mean asha"),
        ("name: asha, ", "", "6:7", "name is missing"),
        ("eta: 3", "eta: 1", "6:55", "eta is 1"),
        ("eta: 3", "etta: 3", "6:56", "etta is not a setting of asha"),
        ("most: 9, ", "", "6:7", "most is missing"),
        ("trials: 8", "trials: many", "6:28", "trials is 'many'"),
    ],
)
def test_mistakes_of_the_rule_have_their_own_code(
    before: str, after: str, place: str, said: str
) -> None:
    (problem,) = refused(SOUND.replace(before, after)).problems
    assert problem.code == "BFT-1622"
    assert f"{problem.line}:{problem.column}" == place
    assert said in problem.cause


@pytest.mark.parametrize(
    ("rule", "column", "said"),
    [
        ("name: asha, trials: 9, least: 1, most: 9, eta: 3", 28, "trials is 9, but there are only"),
        ("name: pbt, population: 9, interval: 1, most: 9", 31, "population is 9, but there are"),
        ("name: hyperband, trials: 9, most: 9, eta: 3", 33, "trials is 9, but there are only"),
        ("name: hyperband, trials: 0, most: 9, eta: 3", 33, "trials of one pass is 17, but there"),
    ],
)
@pytest.mark.parametrize("grid", [True, False])
def test_no_rule_begins_more_trials_than_there_are_configurations(
    rule: str, column: int, said: str, *, grid: bool
) -> None:
    how = "sampler: grid" if grid else f"configurations: [{', '.join(['{a: 1}'] * 8)}]"
    text = f"parameters: {{a: [{', '.join(map(str, range(1, 9)))}]}}\n{how}\n"
    (problem,) = refused(f"{text}rule: {{{rule}}}\n").problems
    assert (problem.code, problem.line, problem.column) == ("BFT-1622", 3, column)
    assert said in problem.cause
    assert "only 8 configurations" in problem.cause
    for count in ("8", "2"):  # fewer are a user's choice
        fewer = re.sub(r"(trials|population): \d", rf"\1: {count}", rule)
        assert parse(f"{text}rule: {{{fewer}}}\n").rule_with().most == 9


def test_one_pass_of_hyperband_has_a_number_of_trials() -> None:
    text = "parameters: {a: [1]}\nrule: {name: hyperband, least: 1, most: 9, eta: 3}\n"
    one_pass = 9 + 5 + 3
    for found in (parse(text), parse(text.replace("most", "trials: 0, most"))):
        assert found.rule_settings()["trials"] == one_pass
        assert found.rule_settings(4)["trials"] == one_pass + 4
        assert found.rule_with(4).describe()["trials"] == one_pass + 4
    (problem,) = refused(text.replace("most: 9", "most: 1000000000000")).problems
    assert "trials of one pass is too great" in problem.cause


@pytest.mark.filterwarnings("error")
def test_a_range_ends_with_its_last_step_as_optuna_s_does() -> None:
    pytest.importorskip("optuna")
    from bftrainer.study.storage import distributions_of

    text = SOUND.replace("low: 0.001, high: 1, log: true", "low: 0, high: 1, step: 0.3")
    found = parse(text.replace("high: 64", "high: 79"))
    lr, width = found.parameters["lr"], found.parameters["width"]
    assert lr == FloatParameter(type="float", low=0.0, high=0.9, step=0.3)
    assert width == IntParameter(type="int", low=16, high=64, step=16)
    drawn = distributions_of(found.parameters)  # Optuna warns of ranges that it changes
    assert (vars(drawn["lr"])["high"], vars(drawn["width"])["high"]) == (0.9, 64)
    for low, high, step in ((0.1, 0.3, 0.1), (-1.0, 1.0, 0.05), (1e-5, 1.0, 0.1), (2.0, 3.0, 5.0)):
        one = FloatParameter(type="float", low=low, high=high, step=step)
        distributions_of({"one": one})
        assert high - step < one.high <= high
        again = FloatParameter.model_validate_json(one.model_dump_json())
        assert again == one
    fine = SOUND.replace("high: 1, log: true", "high: 1.0e+30, step: 1.0e-3")
    assert "step and the bounds have too many digits" in refused(fine).problems[0].cause


def test_values_that_no_step_reaches_are_refused() -> None:
    text = "parameters: {a: {type: float, low: 0, high: 1, step: 0.3}}\n"
    rule = "rule: {name: none, trials: 1, most: 1}\n"
    assert parse(f"{text}configurations: [{{a: 0.6}}]\n{rule}").configurations == ({"a": 0.6},)
    for value in ("0.35", "1.0"):
        (problem,) = refused(f"{text}configurations: [{{a: {value}}}]\n{rule}").problems
        assert f"a = {value}, which is no value of it" in problem.cause


def test_the_last_point_of_a_grid_is_not_beyond_its_bound() -> None:
    text = "parameters: {a: {type: float, low: 0.1, high: 0.3, step: 0.1}}\nsampler: grid\n"
    found = parse(f"{text}rule: {{name: none, trials: 3, most: 1}}\n")
    assert found.configurations == ({"a": 0.1}, {"a": 0.2}, {"a": 0.3})  # 0.1 + 2 * 0.1 is more


def test_several_mistakes_are_told_together() -> None:
    error = refused(SOUND.replace("metric", "metrik").replace("type: int", "type: whole"))
    assert error.code == "BFT-1623"
    assert len(error.problems) == 2
    assert "The study digits.yaml has 2 problems." in error.cause


@pytest.mark.parametrize("text", ["", "- a\n", "parameters: {}\nrule: {name: none}\n", "{"])
def test_what_is_no_study_is_refused(text: str) -> None:
    for problem in refused(text).problems:
        assert problem.code in ("BFT-1621", "BFT-1622")
        assert "policy" not in problem.cause.lower()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"configurations: [{'{a: 1, b: 2, c: 3}, ' * 400}]\n", "too many entries. Put config"),
        (f"---\n{SOUND}---\n{SOUND}", "second document"),
        ("parameters: {\n\ta: [1]\n", "tab here"),
    ],
)
def test_of_what_was_not_read_nothing_is_said_to_be_missing(text: str, said: str) -> None:
    (problem,) = refused(text).problems
    assert said in problem.render(PATH)


def test_a_file_that_is_too_large_is_told_of_csv_files(tmp_path: Path) -> None:
    (path := tmp_path / "own.yaml").write_text(SOUND + "#" * 70_000)
    with pytest.raises(StudyErrors, match=r"larger than 64 KiB\.(.|\n)*CSV file \(up to 10000"):
        read_study(path)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(StudyErrors, match=r"BFT-1621.*No such file"):
        read_study(tmp_path / "none.yaml")


def test_a_grid_and_a_csv_file_are_lists_of_configurations(tmp_path: Path) -> None:
    text = SOUND.replace("low: 0.001, high: 1, log: true", "low: 0, high: 1, step: 0.5")
    found = parse(text + "sampler: grid\n")
    assert isinstance(found.configurations, tuple)
    assert len(found.configurations) == 3 * 4 * 2
    assert found.configurations[1] == {"lr": 0.0, "width": 16, "act": "tanh"}
    (tmp_path / "own.csv").write_text("lr,act\n0.1,relu\n0.2,tanh\n")
    path = tmp_path / "own.yaml"
    path.write_text("configurations: own.csv\nrule: {name: sha, least: 1, most: 4, eta: 2}\n")
    own = read_study(path)
    assert own.configurations == ({"lr": 0.1, "act": "relu"}, {"lr": 0.2, "act": "tanh"})
    assert own.parameters["lr"] == FloatParameter(type="float", low=0.1, high=0.2)
    assert own.parameters["act"] == CategoricalParameter(
        type="categorical", choices=("relu", "tanh")
    )
    assert own.rule_with().describe()["trials"] == 2, "as many as there are configurations"


def test_the_schema_names_every_key() -> None:
    schema = json_schema()
    assert set(schema["properties"]) == set(StudyDocument.model_fields)
    assert all(re.search(r"\w", p["description"]) for p in schema["properties"].values())
