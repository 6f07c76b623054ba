"""``#SBATCH`` lines as a real sbatch reads them, beside how ``submit --from-sbatch`` reads them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bftrainer.cli.sbatch_options import OPTIONS
from bftrainer.cli.sbatch_script.directives import read_directives
from slurm_plugins.testcluster import SlurmTestCluster
from tests.integration.slurm_fixtures import cluster_with

pytestmark = [pytest.mark.slurm, pytest.mark.long]

# Option -> the field of scontrol with its value, and what it is without the option.
FIELDS = {
    "job-name": (r"JobName=(.*)", "job.sh"),
    "comment": (r"Comment=(.*?) ?$", ""),
    "nodes": (r"NumNodes=(\S+)", "1"),
}
LINES = (
    "#SBATCH -N2 -J plain",
    "#SBATCH --nodes=2-3\n#SBATCH --job-name=later --job-name last",
    "#SBATCH -J 'two words' --comment=\"a 'b'\"",
    '#SBATCH -J"a b"c --comment="a \\"b\\""',
    "#SBATCH --comment='a\\'b' -J a\\\\b",
    "#SBATCH -J two\\ words",
    "#SBATCH -J 'open",
    "#SBATCH -J name # -N3",
    "#SBATCH -J na#me -N3",
    "#SBATCH -J na\\#me",
    "##SBATCH -N3\n# SBATCH -N3\n #SBATCH -N3\n#SBATCH -J once",
    "\n# text\n   \n#SBATCH -J behind-a-comment",
    "true\n#SBATCH -J too-late",
    "#SBATCH --comm short",
    "#SBATCH --no 2",
    "#SBATCH --frobnicate",
    "#SBATCH word",
    "#SBATCH -J",
    "#SBATCH\t-J\ttab",
    "#SBATCH -HJjoined",
    "#SBATCH-J first\n#SBATCH--comment=near\n#SBATCH -sN2",
    "#SBATCHX -N3",
)


cluster = cluster_with(n_nodes=3)


@pytest.mark.parametrize("lines", LINES)
def test_directives_are_read_as_a_real_sbatch_reads_them(
    cluster: SlurmTestCluster, tmp_path: Path, lines: str
) -> None:
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/bash\n{lines}\ntrue\n")
    done = cluster.command(
        "sbatch", "--hold", "--parsable", "--chdir=/", "--output=/dev/null", str(script)
    )
    directives = read_directives(script.read_text())
    assert done.is_ok is not any(directive.fault for directive in directives), done.stderr
    if not done.is_ok:
        return
    read = {d.option.name: d.value for d in directives if d.option}
    shown = cluster.command("scontrol", "show", "job", done.stdout.strip()).stdout
    for name, (pattern, usual) in FIELDS.items():
        match = re.search(pattern, shown, re.MULTILINE)
        value = read.get(name, usual)
        if name == "nodes" and value.isdecimal() and name in read:
            value = f"{value}-{value}"
        assert (match[1] if match else "") == value, shown


def test_every_option_of_this_sbatch_is_in_the_table(cluster: SlurmTestCluster) -> None:
    text = cluster.command("sbatch", "--help").stdout
    options = re.findall(r"^\s+(?:-(\w),? +)?--([\w-]+)", text, re.MULTILINE)
    assert len(options) > 60
    assert {name: OPTIONS[name].short for _, name in options} == {
        name: letter for letter, name in options
    }
