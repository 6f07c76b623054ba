"""#BFT lines: where they count, what they may hold, and where a mistake is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bftrainer.api.admission import check_spec
from bftrainer.cli.environment import parse_variable
from bftrainer.cli.option_values import parse_sizes
from bftrainer.cli.spec import build_spec
from bftrainer.cli.submit_options import merge, read_directives
from bftrainer.model.errors import UsageError


def read(tmp_path: Path, text: str | bytes) -> dict[str, Any]:
    script = tmp_path / "train.py"
    script.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_directives(str(script))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("import sys\n#BFT --epochs 3\n", {}),
        ("#BFT --epochs 3\n", {"epochs": 3}),
        ("#BFT --epochs 3", {"epochs": 3}),
        ("#BFT\t--epochs=3\r\n#BFT -N 1-8\r\n", {"epochs": 3, "sizes": (1, 8, ())}),
        ("#!/usr/bin/python\n\n   # words\n  \n#BFT --epochs 3\n", {"epochs": 3}),
        ("#BFT --epochs 3\n#BFT --epochs 4\n", {"epochs": 4}),
        ("#BFT -J 'a name' --nodes 2:4 # --epochs 9\n", {"name": "a name", "sizes": (2, 4, ())}),
        ("# BFT --epochs 3\n##BFT --epochs 4\n#BFTX\n#bft --epochs 5\n #BFT --epochs 6\n", {}),
        ("#BFT --export A=1 --export B=2\n#BFT --export A=3\n",
         {"environment": (("A", "1"), ("B", "2"), ("A", "3"))}),
        ("#BFT --gres gpu:a100:4 --constraint 'a100&nvlink'\n",
         {"gres": "gpu:a100:4", "constraint": "a100&nvlink"}),
        ("#BFT --venv /a\n#BFT --interpreter /b\n", {"interpreter": "/b"}),
        (b"\xef\xbb\xbf#BFT --epochs 3\n", {"epochs": 3}),
        ('"""Docstring."""\n#BFT --epochs 3\n', {}),
    ],
)  # fmt: skip
def test_only_the_head_counts(tmp_path: Path, text: str | bytes, expected: dict[str, Any]) -> None:
    assert read(tmp_path, text) == expected


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("# one\n#BFT --frobnicate\n", "BFT-1003", 2),
        ("#BFT --epochs few\n", "BFT-1003", 1),
        ("#BFT --epochs\n", "BFT-1003", 1),
        ("#BFT surplus\n", "BFT-1003", 1),
        ("#BFT -J 'open\n", "BFT-1003", 1),
        ("#BFT --dry-run\n", "BFT-1003", 1),
        ("#BFT --wait\n", "BFT-1003", 1),
        ("#BFT --help\n", "BFT-1003", 1),
        ("\n\n#BFT --nodes 8:1\n", "BFT-1002", 3),
        ("#BFT --gres shard:1\n", "BFT-1040", 1),
        ("# one\n#BFT -C 'a&'\n", "BFT-1040", 2),
        ("#BFT --export BFT_NOT_SET_HERE\n", "BFT-1003", 1),
    ],
)
def test_a_mistake_names_file_and_line(tmp_path: Path, text: str, code: str, line: int) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    assert caught.value.code == code
    assert caught.value.cause.startswith(f"{tmp_path}/train.py:{line}: ")


def test_a_binary_file_has_no_directives(tmp_path: Path) -> None:
    assert read(tmp_path, bytes(range(256)) * 1000) == {}
    assert read(tmp_path, b"#" * 1_000_000) == {}


def test_the_later_value_wins_and_variables_add_up() -> None:
    values: dict[str, Any] = {"venv": "/a", "environment": (("A", "1"),), "epochs": 1}
    merge(values, "interpreter", "/b")
    merge(values, "environment", (("A", "2"),))
    merge(values, "epochs", 2)
    assert values == {
        "interpreter": "/b",
        "environment": (("A", "1"), ("A", "2")),
        "epochs": 2,
    }


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("4", (4, 4, ())),
        ("1:8", (1, 8, ())),
        ("1-8", (1, 8, ())),
        ("8:8", (8, 8, ())),
        ("1,2,4,8", (1, 8, (1, 2, 4, 8))),
        ("4,2,2", (2, 4, (2, 4))),
    ],
)
def test_sizes(text: str, sizes: tuple[int, int, tuple[int, ...]]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "8:1",
        "1:",
        ":4",
        "-1",
        "1:2:3",
        "1.5",
        "٣",
        "9" * 40,
        "1,",
        ",1",
        "0,2",
        "1:2,4",
        "1,2," * 400 + "4",
        ",".join(map(str, range(1, 66))),
    ],
)
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_sizes(text)
    assert caught.value.code == "BFT-1002"


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BFT_SET_HERE", "a=b")
    assert parse_variable("BFT_SET_HERE") == ("BFT_SET_HERE", "a=b")
    assert parse_variable("A=") == ("A", "")
    assert parse_variable("A=b=c") == ("A", "b=c")


@pytest.mark.parametrize(
    ("values", "workers"),
    [
        ({}, 1),
        ({"gres": "gpu:a100:4"}, 4),
        ({"gres": "gpu:4", "workers_per_node": 2}, 2),
        ({"gres": "gpu:4", "runtime": "mpi"}, 1),
    ],
)
def test_one_worker_for_each_gpu_that_is_asked_for(values: dict[str, Any], workers: int) -> None:
    spec = build_spec("/s/train.py", (), values, {})
    assert (spec.workers_per_node, spec.gres) == (workers, values.get("gres", ""))


def test_workers_that_cannot_share_the_gpus_are_refused() -> None:
    spec = build_spec("/s/train.py", (), {"gres": "gpu:a100:4", "workers_per_node": 3}, {})
    with pytest.raises(UsageError) as caught:
        check_spec(spec)
    assert caught.value.code == "BFT-1041"


def test_paths_become_absolute_and_names_become_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = build_spec("sub/../train.py", (), {"name": "../../etc/x y"}, {})
    assert spec.script == f"{tmp_path}/train.py"
    assert spec.cwd == str(tmp_path)
    assert spec.checkpoint_dir == f"{tmp_path}/bft-.._.._etc_x_y"
    assert spec.name == "../../etc/x y"
    assert build_spec("a/train.py", (), {}, {}).name == "train"


@pytest.mark.parametrize(
    ("values", "environ", "interpreter"),
    [
        ({"interpreter": "/p/python"}, {"VIRTUAL_ENV": "/v"}, "/p/python"),
        ({"venv": "/w"}, {"VIRTUAL_ENV": "/v"}, "/w/bin/python"),
        ({}, {"VIRTUAL_ENV": "/v", "CONDA_PREFIX": "/c"}, "/v/bin/python"),
        ({}, {"CONDA_PREFIX": "/c"}, "/c/bin/python"),
    ],
)
def test_which_python(values: dict[str, Any], environ: dict[str, str], interpreter: str) -> None:
    assert build_spec("/s.py", (), values, environ).interpreter == interpreter


def test_the_python_of_a_virtual_environment_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to("/usr/bin/env")
    spec = build_spec("/s.py", (), {"venv": str(tmp_path)}, {})
    assert spec.interpreter == f"{tmp_path}/bin/python"
