"""The policy file takes the options of the batch system, and says where one is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from bftrainer.cli.main import cli
from bftrainer.model.parts import Lend
from bftrainer.site.policy import (
    PolicyErrors,
    SitePolicy,
    load_policy,
    load_policy_file,
    policy_hash,
)
from slurm_plugins.adapter import SlurmOptions

DOCUMENTED = (Path(__file__).parents[3] / "docs" / "howto" / "slurm-site.md").read_text()
MISTAKES = """\
p_jmax: 0
batch_options:
  slurmconf: /etc/slurm.conf
  command_timeout_s: soon
  environment:
    PATH: /opt/slurm/bin
    A B: c
    N: 3
"""


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    def write_file(text: str) -> Path:
        path = tmp_path / "policy.yaml"
        path.write_text(text)
        path.chmod(0o644)
        return path

    return write_file


def places(path: Path, **checked: object) -> list[tuple[int, int, str]]:
    with pytest.raises(PolicyErrors) as caught:
        load_policy_file(path, **checked)  # type: ignore[arg-type]
    return [(p.line, p.column, p.code) for p in caught.value.problems]


def test_every_documented_option_is_taken(written: Callable[[str], Path]) -> None:
    table = DOCUMENTED.partition("## What the policy file may say")[2].partition("\n## ")[0]
    names = {
        n
        for cell in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        for n in re.findall(r"\w+", cell)
    }
    assert names == set(SlurmOptions.model_fields)
    example = re.findall(r"```yaml\n(.*?)```", table, re.DOTALL)[0]
    loaded = load_policy_file(written(example), batch_system="slurm")
    assert SlurmOptions.model_validate(loaded.policy.batch_options).environment["PATH"]


def test_each_wrong_option_has_its_code_and_place(written: Callable[[str], Path]) -> None:
    assert places(written(MISTAKES), batch_system="slurm") == [
        (1, 9, "BFT-2112"),
        (3, 14, "BFT-1220"),
        (4, 22, "BFT-1220"),
        (7, 10, "BFT-1220"),
        (8, 8, "BFT-1220"),
    ]
    path = written("batch_options:\n  environment:\n    N: .inf\n")
    assert places(path, batch_system="slurm") == [(3, 8, "BFT-2112")]


def test_the_batch_system_that_is_used_checks_them(written: Callable[[str], Path]) -> None:
    path = written("batch_options:\n  account: x\n")
    assert load_policy(path).batch_options == {"account": "x"}
    assert places(path, batch_system="local") == [(2, 12, "BFT-1256")]


@pytest.mark.parametrize("option", ["launch: csm", "block_nodes: 1", "alloc_flags: smt4"])
def test_an_option_that_was_removed_is_to_be_deleted(
    written: Callable[[str], Path], option: str
) -> None:
    path = written(f"batch_options:\n  {option}\n")
    with pytest.raises(PolicyErrors) as caught:
        load_policy_file(path, batch_system="lsf")
    (problem,) = caught.value.problems
    name = option.partition(":")[0]
    assert (problem.line, problem.code) == (2, "BFT-1202")
    assert problem.cause.startswith(f"{name} is no option of the LSF batch system any more: ")
    assert problem.next_step == "Delete it."


def test_a_section_whose_last_line_was_deleted_is_empty(written: Callable[[str], Path]) -> None:
    path = written("batch_options:\n  # hook_file: /x\npolicy_options:\nmax_nodes_by_user:\n")
    assert load_policy_file(path, batch_system="slurm").policy == SitePolicy()


def test_what_the_command_line_says_comes_before_the_file(written: Callable[[str], Path]) -> None:
    path = written("batch_options: {command_timeout_s: soon}\n")
    loaded = load_policy_file(path, batch_system="slurm", batch_options={"command_timeout_s": "3"})
    assert loaded.policy.batch_options == {"command_timeout_s": "soon"}


@pytest.mark.parametrize("value", ["3", "[a]", "slurm"])
def test_options_are_a_mapping(written: Callable[[str], Path], value: str) -> None:
    path = written(f"batch_options: {value}\n")
    assert places(path, batch_system="slurm") == [(1, 16, "BFT-2111")]


def test_an_option_that_is_set_twice_is_named(written: Callable[[str], Path]) -> None:
    path = written("batch_options:\n  qos: a\n  qos: b\n")
    assert places(path, batch_system="slurm") == [(3, 3, "BFT-2109")]


def test_they_are_part_of_the_policy(written: Callable[[str], Path]) -> None:
    loaded = load_policy_file(written("batch_options: {qos: low}\n"))
    assert loaded.policy == SitePolicy(batch_options={"qos": "low"})
    assert loaded.sha256 == policy_hash(loaded.policy) != policy_hash(SitePolicy())


def test_check_names_them(written: Callable[[str], Path]) -> None:
    path = written("batch_options:\n  slurmconf: /etc/slurm.conf\n")
    result = CliRunner().invoke(cli, ["policy", "check", str(path)])
    assert result.exit_code == 8
    assert result.stderr.startswith(f"{path}:2:14: BFT-1220: Option 'slurmconf'")
    result = CliRunner().invoke(cli, ["policy", "check", str(path), "--batch-system", "local"])
    assert "BFT-1256" in result.stderr


def test_the_daemon_ends_with_the_place_of_a_wrong_option(
    written: Callable[[str], Path], tmp_path: Path
) -> None:
    path = written("batch_options:\n  slurmconf: /etc/slurm.conf\n")
    for verb in (["daemon", "--state-dir", str(tmp_path / "state")], ["doctor"]):
        result = CliRunner().invoke(cli, [*verb, "--policy", str(path)])
        assert isinstance(result.exception, PolicyErrors)
        assert f"{path}:2:14" in str(result.exception)


def test_shares_of_earlier_releases_are_refused_before_a_daemon_is_stopped(
    written: Callable[[str], Path],
) -> None:
    path = written("p_jmax: 3\nbatch_options:\n  slot_gpus: 1\n  slot_cpus: 4\n")
    assert places(path, batch_system="slurm") == [(3, 14, "BFT-1461"), (4, 14, "BFT-1461")]


def test_gpus_alone_lend_nothing_where_pilots_have_whole_nodes(
    written: Callable[[str], Path],
) -> None:
    path = written("lend: gpus\n")
    assert places(path, batch_system="lsf") == [(1, 7, "BFT-1465")]
    for text, batch_system, lend in (
        ("lend: gpus", "slurm", Lend.GPUS),
        ("lend: auto", "lsf", Lend.AUTO),
        ("p_jmax: 3", "lsf", Lend.NODES),
    ):
        loaded = load_policy_file(written(f"{text}\n"), batch_system=batch_system)
        assert loaded.policy.lend is lend
    with pytest.raises(PolicyErrors, match="BFT-2112"):
        load_policy_file(written("lend: slots\n"), batch_system="slurm")
