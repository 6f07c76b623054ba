"""Files for ``submit --curve``, and what they say of memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bftrainer.cli.curve_file import read_curve, read_curve_file
from bftrainer.cli.option_values import parse_sizes
from bftrainer.cli.spec import build_spec
from bftrainer.model.errors import UsageError
from milp.problem import Curve

CURVE: dict[str, Any] = {"sizes": [3, 8], "samples_per_s": [10, 35.5]}


def test_a_curve_is_read(tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    path.write_text(json.dumps({"sizes": [1, 4], "samples_per_s": [10, 35.5]}))
    assert read_curve(str(path)) == Curve(sizes=(1, 4), samples_per_s=(10.0, 35.5))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"sizes": [1], "samples_per_s": [1], "more": 1}',
        '{"sizes": [], "samples_per_s": []}',
        '{"sizes": [1, 2], "samples_per_s": [1]}',
        '{"sizes": [0, 2], "samples_per_s": [1, 2]}',
        '{"sizes": [2, 2], "samples_per_s": [1, 2]}',
        '{"sizes": [1.5], "samples_per_s": [1]}',
        '{"sizes": [1], "samples_per_s": [-1]}',
        '{"sizes": [1], "samples_per_s": [NaN]}',
        '{"sizes": [1], "samples_per_s": [1e999]}',
        '{"sizes": [1], "samples_per_s": [0]}',
        '{"sizes": [true], "samples_per_s": [1]}',
        " " * (2 * 1024 * 1024),
    ],
)
def test_a_curve_that_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "curve.json"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_curve(str(path))
    assert caught.value.code == "BFT-1015"


@pytest.mark.parametrize("path", [".", "absent", "nul\0"])
def test_a_curve_file_that_cannot_be_read(path: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_curve(path)
    assert caught.value.code == "BFT-1015"


def written(tmp_path: Path, **more: Any) -> str:
    path = tmp_path / "curve.json"
    path.write_text(json.dumps({**CURVE, "fits_from": 3, "workers_per_node": 2, **more}))
    return str(path)


@pytest.mark.parametrize(
    "more", [{"fits_from": 0}, {"fits_from": True}, {"fits_from": "3"}], ids=str
)
def test_nodes_that_are_no_number(tmp_path: Path, more: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        read_curve_file(written(tmp_path, **more))
    assert caught.value.code == "BFT-1015"


@pytest.mark.parametrize(
    ("nodes", "advice"),
    [
        ("1:8", "--nodes 3:8."),
        ("2:3", "--nodes 3:3."),
        ("1,2,4,8", "--nodes 4,8."),
        ("2,4", "--nodes 4."),
        ("1:2", "--nodes 3:6, or"),
        ("1,2", "--nodes 3:6, or"),
    ],
)
def test_too_few_nodes_are_refused(tmp_path: Path, nodes: str, advice: str) -> None:
    values = {"sizes": parse_sizes(nodes), "curve": written(tmp_path), "workers_per_node": 2}
    with pytest.raises(UsageError) as caught:
        build_spec("/s/train.py", (), values, {})
    assert caught.value.code == "BFT-1068"
    assert "from 3 nodes on" in caught.value.cause
    assert ("No size" in caught.value.cause) == ("or" in advice)
    assert advice in caught.value.next_step


@pytest.mark.parametrize("nodes", ["3", "4:8", "3,8"])
def test_enough_nodes_are_not(tmp_path: Path, nodes: str) -> None:
    values = {"sizes": parse_sizes(nodes), "curve": written(tmp_path), "workers_per_node": 2}
    assert build_spec("/s/train.py", (), values, {}).curve == Curve(
        sizes=(3, 8), samples_per_s=(10.0, 35.5)
    )


def test_of_other_workers_per_node_it_says_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {"sizes": (1, 8, ()), "curve": written(tmp_path), "workers_per_node": 4}
    assert build_spec("/s/train.py", (), values, {}).n_min == 1
    assert "of 2 workers per node, not of 4" in capsys.readouterr().err
