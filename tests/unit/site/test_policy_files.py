"""Several policy files as one, and what differs between two policies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bftrainer.cli.main import main
from bftrainer.site.policy import PolicyErrors, load_policy_files

Capture = pytest.CaptureFixture[str]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True, mode=0o755)
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A file, and a directory of two and something else."""
    first = write(tmp_path / "site.yaml", "p_jmax: 3\nmax_nodes: 9\nt_fwd_s: 60\n")
    write(tmp_path / "policy.d" / "20.yaml", "max_nodes: 7\n")
    write(tmp_path / "policy.d" / "10.yaml", "\nmax_nodes: 8\np_jmax: 4\n")
    write(tmp_path / "policy.d" / "README", "not: [a, policy\n")
    return first, tmp_path / "policy.d"


def test_of_several_files_the_later_counts(files: tuple[Path, Path]) -> None:
    first, directory = files
    loaded = load_policy_files(files)
    assert (loaded.policy.p_jmax, loaded.policy.max_nodes, loaded.policy.t_fwd_s) == (4, 7, 60.0)
    assert loaded.origins["max_nodes"] == f"{directory}/20.yaml:1"
    assert loaded.overridden["max_nodes"] == (f"{directory}/10.yaml:2", f"{first}:2")
    assert loaded.origins["t_fwd_s"] == f"{first}:3"
    assert loaded.origins["log_level"] == "default"
    assert load_policy_files(files[::-1]).policy.max_nodes == 9


def test_all_mistakes_are_named_with_their_files(files: tuple[Path, Path]) -> None:
    first, directory = files
    write(first, "p_jmx: 3\nheartbeat_s: 4\n")
    write(directory / "20.yaml", "max_nodes: many\n")
    with pytest.raises(PolicyErrors) as caught:
        load_policy_files(files)
    places = {(problem.path, problem.code) for problem in caught.value.problems}
    assert places == {
        (first, "BFT-2110"),
        (first, "BFT-2113"),  # with agent_timeout_s, which no file sets
        (directory / "20.yaml", "BFT-2111"),
    }
    assert f"{directory}/20.yaml:1:12: BFT-2111" in str(caught.value)


def test_a_directory_that_everyone_may_change_is_refused(files: tuple[Path, Path]) -> None:
    files[1].chmod(0o777)
    with pytest.raises(PolicyErrors) as caught:
        load_policy_files(files)
    assert caught.value.code == "BFT-2103"


def test_show_names_each_place(files: tuple[Path, Path], capsys: Capture) -> None:
    first, directory = files
    argv = ["policy", "show", str(first), str(directory)]
    assert main([*argv, "--origin", "--batch-option", "partition=x"]) == 0
    lines = dict(line.split("  #", 1) for line in capsys.readouterr().out.splitlines())
    said = {key.split(":")[0]: value.strip() for key, value in lines.items()}
    assert said["max_nodes"] == f"{directory}/20.yaml:1, over {directory}/10.yaml:2, over {first}:2"
    assert said["batch_options"] == "default; partition: command line"
    assert main([*argv, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["settings"]
    assert told["max_nodes"] == {"value": 7, "origin": f"{directory}/20.yaml:1"}


def test_check_takes_several_files(files: tuple[Path, Path], capsys: Capture) -> None:
    assert main(["policy", "check", *map(str, files)]) == 0
    write(files[1] / "30.yaml", "p_jmax: 0\n")
    assert main(["policy", "check", *map(str, files)]) == 8
    assert f"{files[1]}/30.yaml:1:9: BFT-2112" in capsys.readouterr().err


def test_diff_says_when_a_change_takes_effect(files: tuple[Path, Path], capsys: Capture) -> None:
    new = write(files[0].with_name("new.yaml"), "p_jmax: 3\nlease_s: 900\n")
    assert main(["policy", "diff", str(files[0]), str(new)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["SETTING", "BEFORE", "AFTER", "TAKES", "EFFECT"]
    assert [row[:4] for row in rows[1:]] == [
        ["t_fwd_s", "60", "120", "reload"],
        ["max_nodes", "9", "null", "reload"],
        ["lease_s", "1800", "900", "restart:"],
    ]
    assert main(["policy", "diff", str(new), str(new), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changes"] == []
