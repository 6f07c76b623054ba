"""``submit --from-sbatch``: what is told, asked and submitted of a job script for sbatch."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from bftrainer.cli.main import main
from bftrainer.model.errors import ExitCode
from bftrainer.model.trainer import TrainerState
from tests.integration.cli.test_mistakes import HEAD, POLICY, TRAIN
from tests.integration.cli_fixtures import Output, home, output, service, spec_of
from tests.integration.daemon.test_daemon import DaemonSite
from tests.support.memory_service import MemoryService, error_code
from tests.support.site import opened_site

__all__ = ["home", "output", "service"]

JOB = """\
#!/bin/bash
#SBATCH --job-name=digits
#SBATCH --nodes=2
#SBATCH --time=1:00:00

export MODE=fast
srun python train.py --epochs 2 > log.txt
"""


shared_site = opened_site(DaemonSite, n_nodes=2, policy=POLICY)


def job(text: str = JOB) -> str:
    Path("job.sh").write_text(text)
    return "job.sh"


class Keyboard(io.StringIO):
    """A terminal on which somebody has typed."""

    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("service")
def test_it_is_told_and_submitted(output: Output) -> None:
    spec = spec_of("--from-sbatch", job(), "--yes")
    assert (spec.name, spec.script) == ("digits", str(Path.cwd() / "train.py"))
    assert (spec.n_min, spec.n_max, spec.args) == (1, 2, ("--epochs", "2"))
    assert dict(spec.environment)["MODE"] == "fast"
    out, err = output.readouterr()
    assert (
        "\n  bftrainer submit --job-name digits --nodes 1:2 --export ALL --export MODE=fast"
        " train.py --epochs 2\n"
    ) in out
    assert "    4  #SBATCH --time=1:00:00\n       It limits one job." in out
    assert "* train.py does not import bftrainer: five lines make it elastic" in out
    assert "Submitted trainer t1\n" in out
    assert "next: bftrainer status t1 " in err


def test_without_a_terminal_nothing_is_submitted_unless_it_is_agreed(
    service: MemoryService, output: Output
) -> None:
    assert main(["submit", "--from-sbatch", job()]) == ExitCode.USAGE
    out, err = output.readouterr()
    assert "job.sh becomes:\n  bftrainer submit --job-name digits" in out
    assert err.startswith("error BFT-1074: Nothing was submitted: there is no terminal")
    assert "next: Add --yes" in err
    assert service.records == {}


@pytest.mark.parametrize(("answer", "n_trainers"), [("y\n", 1), ("n\n", 0), ("\n", 0)])
def test_on_a_terminal_it_is_asked(
    answer: str, n_trainers: int, service: MemoryService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Keyboard(answer))
    status = main(["submit", "--from-sbatch", job()])
    assert len(service.records) == n_trainers
    assert (status == ExitCode.OK) == bool(n_trainers)


def test_a_dry_run_checks_and_submits_nothing(service: MemoryService, output: Output) -> None:
    assert main(["submit", "--from-sbatch", job(), "--dry-run"]) == ExitCode.OK
    out, err = output.readouterr()
    assert "job.sh becomes:\n" in out
    assert "ok                     script " in out
    assert "Nothing was submitted" in err
    assert (
        main(["submit", "--from-sbatch", job(JOB.replace("train.py", "no.py")), "--dry-run"]) == 2
    )
    assert error_code(output) == "BFT-1001"
    assert service.records == {}


@pytest.mark.usefixtures("service")
def test_what_is_typed_counts_more() -> None:
    job(JOB.replace("--nodes=2", "--gpus=8"))
    spec = spec_of("--yes", "-N", "2:6", "--from-sbatch=job.sh", "--job-name", "mine", "--hold")
    assert (spec.name, spec.n_min, spec.n_max, spec.gpus_per_unit) == ("mine", 2, 6, 0)
    assert spec.hold


@pytest.mark.usefixtures("service")
def test_arguments_of_the_job_script_follow_its_name() -> None:
    job(JOB.replace("--epochs 2", '--epochs "$1" --name ${2}'))
    spec = spec_of("--from-sbatch", "job.sh", "--yes", "7", "seven")
    assert spec.args == ("--epochs", "7", "--name", "seven")


@pytest.mark.usefixtures("service")
def test_the_preamble_is_submitted_with_it(tmp_path: Path, output: Output) -> None:
    environment = tmp_path / "env"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python").symlink_to(sys.executable)
    (environment / "bin" / "activate").write_text(f"PATH={environment}/bin:$PATH\n")
    spec = spec_of(
        "--from-sbatch",
        job(JOB.replace("export MODE=fast", "umask 027\nsource env/bin/activate")),
        "--yes",
    )
    assert spec.preamble == "umask 027\nsource env/bin/activate\n"
    assert spec.interpreter == f"{environment}/bin/python"
    told = output.readouterr().out
    assert "--preamble preamble.sh train.py" in told
    assert "\n  source env/bin/activate\n" in told


@pytest.mark.usefixtures("service")
def test_an_array_becomes_an_array(service: MemoryService) -> None:
    text = JOB.replace("--nodes=2", "--array=3-4").replace(
        "--epochs 2", "--seed $SLURM_ARRAY_TASK_ID"
    )
    assert main(["submit", "--from-sbatch", job(text), "--yes"]) == ExitCode.OK
    specs = [record.spec for record in service.records.values()]
    assert [spec.args for spec in specs] == [("--seed", "3"), ("--seed", "4")]
    assert [spec.name for spec in specs] == ["digits_3", "digits_4"]


def test_json_has_the_translation_in_one_document(service: MemoryService, output: Output) -> None:
    assert main(["submit", "--from-sbatch", job(), "--json"]) == ExitCode.USAGE
    out, err = output.readouterr()
    told = json.loads(out)
    assert told["schema"] == "bftrainer/from-sbatch/1"
    assert told["program"] == ["train.py", "--epochs", "2"]
    assert err.startswith("error BFT-1074: ")
    for options in (["--dry-run"], ["--yes"]):
        assert main(["submit", "--from-sbatch", "job.sh", "--json", *options]) == ExitCode.OK
        document = json.loads(output.readouterr().out)
        assert document["from_sbatch"] == told
    assert document["schema"] == "bftrainer/trainer/1"
    assert list(service.records) == ["t1"]


def test_parsable_prints_the_id_alone(service: MemoryService, output: Output) -> None:
    assert main(["submit", "--from-sbatch", job(), "--yes", "--parsable"]) == ExitCode.OK
    out, err = output.readouterr()
    assert out == "t1\n"
    assert "job.sh becomes:" in err
    assert list(service.records) == ["t1"]


@pytest.mark.parametrize(
    ("text", "code", "cause"),
    [
        ("#!/bin/csh\npython train.py\n", "BFT-1071", "The job script is for csh"),
        ("#!/bin/bash\n\0\n", "BFT-1071", "has the character"),
        ("#!/bin/bash\nfor x in 1 2; do python train.py; done\n", "BFT-1072", "in a loop"),
        ("#!/bin/bash\nhostname\n", "BFT-1073", "starts no Python script"),
        ("#!/bin/bash\ndeepspeed train.py\n", "BFT-1075", "DeepSpeed"),
    ],
)
def test_what_cannot_be_translated_says_why(
    text: str, code: str, cause: str, service: MemoryService, output: Output
) -> None:
    assert main(["submit", "--from-sbatch", job(text), "--yes"]) == ExitCode.USAGE
    err = output.readouterr().err
    assert err.startswith(f"error {code}: job.sh")
    assert cause in err
    assert "\nnext: " in err
    assert service.records == {}


@pytest.mark.usefixtures("service")
def test_what_does_not_go_together(output: Output) -> None:
    Path("bytes.sh").write_bytes(b"\xff\n")
    for argv, code in (
        (["--yes", "train.py"], "BFT-1000"),
        (["--from-sbatch", "no-such.sh"], "BFT-1071"),
        (["--from-sbatch", "bytes.sh"], "BFT-1071"),
        (["--from-sbatch"], "BFT-1000"),
        ([], "BFT-1000"),
    ):
        assert main(["submit", *argv]) == ExitCode.USAGE
        assert error_code(output) == code, argv


@pytest.mark.long
def test_a_job_script_ends_trained(
    site: DaemonSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines of a user's job script, and a script that imports bftrainer."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(HEAD + TRAIN + "print('rate', os.environ['RATE'], flush=True)\n")
    Path("job.sh").write_text(
        "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --time=5\nexport RATE=0.1\nsrun python train.py\n"
    )
    options = (
        "--socket",
        str(site.sidecar.state_dir / "daemon.sock"),
        "--interpreter",
        sys.executable,
        "--wait",
    )
    assert main(["submit", "--from-sbatch", "job.sh", "--yes", *options]) == ExitCode.OK
    (view,) = site.client.trainers()
    assert view.record.state is TrainerState.FINISHED
    assert "rate 0.1" in site.log_text(view.record.trainer_id)
