"""Mistakes that people make most often, and what they are told (tests/fixtures/mistakes.txt)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from bftrainer.batch.process import Completed
from bftrainer.cli import no_daemon
from bftrainer.cli.main import main
from bftrainer.model.errors import NoDaemonError
from slurm_plugins.commands import SlurmCommands, why_failed
from slurm_plugins.own_site import SlurmSites

Output = pytest.CaptureFixture[str]
LIST = Path(__file__).parents[2] / "fixtures" / "mistakes.txt"
MISTAKES = [
    tuple(part.strip() for part in line.split(" | "))
    for line in LIST.read_text("utf-8").splitlines()
    if not line.startswith("#")
]
FILES = {
    "train.py": "import torch\nfrom bftrainer import elastic\n",
    "broken.py": "def f(:\n",
    "head.py": "#BFT --nodez 3\nimport torch\n",
    "plain.txt": "hello\n",
    "typo.yaml": "t_fwd: 120\n",
    "many.yaml": "reserve_nodes_per_type: many\n",
    "study.yaml": "name: x\n",
    "job.sbatch": "#!/bin/bash\n#SBATCH -p gpu\nmodule load python\nsrun python train.py\n",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a beginner's files, without a daemon and without Slurm."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "bin").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("BFTRAINER_SOCKET", "SLURM_CONF"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("BFTRAINER_STATE_DIR", str(tmp_path / "state"))
    no_daemon.partitions.cache_clear()
    return tmp_path


def test_they_are_many() -> None:
    assert len(MISTAKES) >= 60
    assert len({line for line, *_ in MISTAKES}) == len(MISTAKES)


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("line", "status", "code", "cause", "step"), MISTAKES, ids=[line for line, *_ in MISTAKES]
)
def test_a_typical_mistake_is_told_with_cause_and_next_step(
    line: str, status: str, code: str, cause: str, step: str, capsys: Output
) -> None:
    assert main(shlex.split(line)) == int(status)
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    if err.startswith("error "):
        first, next_step = err.splitlines()
        assert first.startswith(f"error {code}: ")
        assert next_step.startswith("next: ")
        assert cause in first
        assert step in next_step
    else:  # a mistake in a file: its place, the code, the cause and the step in one line
        assert code in err
        assert cause in err
        assert step in err


@pytest.mark.parametrize("is_of_site", [True, False])
def test_who_administers_is_led_to_what_works_without_a_daemon(
    is_of_site: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(no_daemon, "partitions", lambda: ("scavenge",))
    error = NoDaemonError("BFT-1101", "No daemon.", "Tell its administrator.")
    error.is_of_site = is_of_site
    for verb in no_daemon.WITHOUT:
        step = no_daemon.led(error, verb).next_step
        assert "Tell its administrator" not in step
        assert not re.match(r"Start your own|Try your script", step)
    user = no_daemon.led(error, "status").next_step
    assert user.startswith("Tell its" if is_of_site else "Start your own: bftrainer up")


CONFIG = "PreemptType             = preempt/partition_prio\nPreemptMode             = REQUEUE\n"
BATCH = "PartitionName=batch PriorityTier=10 PreemptMode=OFF\n"
SCAVENGE = "PartitionName=scavenge PriorityTier=1 PreemptMode=REQUEUE\n"
SPARE = "PartitionName=spare PriorityTier=2 PreemptMode=CANCEL\n"


@pytest.mark.parametrize(
    ("partitions", "seen", "step"),
    [
        (BATCH + SCAVENGE, ("scavenge",), "Start your own: bftrainer up (jobs of scavenge"),
        (BATCH + SCAVENGE + SPARE, ("scavenge", "spare"), "bftrainer up --partition scavenge "),
        (BATCH, (), "Try your script without one: bftrainer try SCRIPT"),
        (None, (), "Try your script without one: bftrainer try SCRIPT"),  # Slurm does not answer
    ],
)
def test_without_a_daemon_the_site_decides_what_is_next(
    partitions: str | None,
    seen: tuple[str, ...],
    step: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Output,
) -> None:
    (home / "bin" / "scontrol").write_text("")
    (home / "bin" / "scontrol").chmod(0o755)

    def query(_: SlurmCommands, argv: Sequence[str]) -> Completed:
        text = partitions if "partition" in " ".join(argv).lower() else CONFIG
        code = 1 if partitions is None else 0
        return Completed(
            argv=tuple(argv), returncode=code, stdout=text or "", stderr="", wall_s=0.0
        )

    monkeypatch.setattr(SlurmCommands, "query", query)
    assert SlurmSites().preemptable() == seen
    assert main(["status"]) == 6
    err = capsys.readouterr().err
    assert f"next: {step}" in err or step in err
    assert "bftrainer daemon" not in err


@pytest.mark.parametrize("name", ["bad.yaml", "writable.yaml", "gone.yaml"])
def test_of_a_directory_the_file_with_the_mistake_is_named(
    name: str, home: Path, capsys: Output
) -> None:
    (home / "conf").mkdir()
    (home / "conf" / "a.yaml").write_text("max_nodes: 3\n")
    if name == "bad.yaml":
        (home / "conf" / name).write_bytes(b"max_nodes: 2\n# \xff\n")
    elif name == "writable.yaml":
        (home / "conf" / name).write_text("max_nodes: 2\n")
        (home / "conf" / name).chmod(0o666)
    else:
        (home / "conf" / name).symlink_to("nowhere.yaml")
    place = {"bad.yaml": ":2:3: BFT-2105", "writable.yaml": ": BFT-2103", "gone.yaml": ": BFT-2102"}
    assert main(["policy", "check", "conf"]) == 8
    assert capsys.readouterr().err.startswith(f"conf/{name}{place[name]}: ")
    assert main(["policy", "check", "conf", "--json"]) == 8
    assert f'"file": "conf/{name}"' in capsys.readouterr().out


@pytest.mark.usefixtures("home")
def test_of_an_empty_directory_another_one_is_asked_for(capsys: Output) -> None:
    Path("milp").mkdir()
    Path("conf").mkdir()
    assert main(["policy", "show", "conf"]) == 8
    assert "next: Name a file, or another directory." in capsys.readouterr().err
    assert main(["policy", "show", "milp"]) == 8
    assert "bftrainer help milp" in capsys.readouterr().err


@pytest.mark.usefixtures("home")
def test_the_doctor_without_slurm_names_where_to_run_it(capsys: Output) -> None:
    assert main(["doctor"]) == 8
    words = " ".join(capsys.readouterr().out.split())
    assert "change: Run the doctor again on a host where sinfo answers. next: sinfo" in words


def test_a_host_of_no_cluster_is_told_in_words_instead_of_scontrols_lines() -> None:
    """Slurm 22.05.8's lines on a host without slurm.conf."""
    lines = (
        "scontrol: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
        "scontrol: error: fetch_config: DNS SRV lookup failed\n"
        "scontrol: error: _establish_config_source: failed to fetch config\n"
        "scontrol: fatal: Could not establish a configuration source\n"
    )
    done = Completed(argv=("scontrol",), returncode=1, stdout="", stderr=lines, wall_s=0.0)
    why = why_failed(done)
    assert why.startswith("This host is of no cluster of Slurm: it has no slurm.conf")
    assert "res_nsearch" not in why


def test_the_help_of_no_daemon_says_for_whom_each_step_is(capsys: Output) -> None:
    assert main(["help", "1101"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    first = words.partition("next: ")[2].partition(" Your daemon (")[0]
    steps = first.split(" Or: ")
    assert len(steps) == 3
    assert [step.partition(":")[0] for step in steps] == [
        "If you have none",
        "If its socket is closed to you",
        "If it is the site's",
    ]


def test_who_drains_without_a_daemon_closes_the_partition_first() -> None:
    step = no_daemon.WITHOUT["drain"]
    assert step.index("another host") < step.index("State=DOWN") < step.index("scancel")
    assert "no further node" not in step


@pytest.mark.parametrize(
    "line", [line for line, *_ in MISTAKES if line in ("uninstall", "install")]
)
def test_the_page_that_a_mistake_leads_to_is_installed(line: str, capsys: Output) -> None:
    assert main([line]) == 2
    command = capsys.readouterr().err.rpartition("next: ")[2].split()
    assert main(command[1:]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 20
