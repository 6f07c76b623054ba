"""``bftrainer whatif --harm`` on a drawn site, from its files to the report."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import write_json_fields
from click.testing import CliRunner, Result

from bftrainer.cli.main import cli
from bftrainer.lab.harm import study as harm_study
from bftrainer.model.errors import BftError, UsageError

T = 1_714_521_600  # 2024-05-01
HOURS = 1.6
SHORT = ("--start", str(T), "--hours", str(HOURS), "--no-settings", "--processes", "1")
CONF = """\
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
NodeName=n[1-4] CPUs=8 RealMemory=8000
NodeName=g[1-2] CPUs=8 RealMemory=8000 Gres=gpu:a100:4
PartitionName=batch Nodes=n[1-4] OverSubscribe=EXCLUSIVE
PartitionName=gpu Nodes=g[1-2] PriorityTier=2
"""
HEADER = "JobID|Eligible|Start|End|NNodes|NodeList|State|Partition|Timelimit|Priority|AllocTRES"
LIKE_BATCH = "1|n1|COMPLETED|batch|00:10:00|1|cpu=8,mem=8000M,node=1"
LIKE_GPU = "1|g1|COMPLETED|gpu|00:10:00|1|cpu=2,gres/gpu=1,gres/gpu:a100=1,mem=2000M,node=1"


def log_rows() -> str:
    """Return a log in which each partition has a job of 500 s every 200 s."""
    rows = [HEADER]
    for number in range(30):
        at_s = T + 200 * number
        for job_id, like in ((2 * number + 1, LIKE_BATCH), (2 * number + 2, LIKE_GPU)):
            rows.append(f"{job_id}|{at_s}|{at_s + 3}|{at_s + 503}|{like}")
    return "\n".join(rows) + "\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The slurm.conf and the log of a small site with two partitions."""
    place = tmp_path_factory.mktemp("site")
    conf, log = place / "slurm.conf", place / "jobs.txt"
    conf.write_text(CONF)
    log.write_text(log_rows())
    return conf, log


def ask(files: tuple[Path, Path], *more: str) -> Result:
    conf, log = files
    words = ["whatif", "--harm", "--slurm-conf", str(conf), "--sacct", str(log), *more]
    return CliRunner().invoke(cli, words)


def refused(result: Result) -> BftError:
    assert isinstance(result.exception, BftError), result.output
    return result.exception


@pytest.fixture(scope="module")
def document(files: tuple[Path, Path]) -> dict[str, Any]:
    result = ask(files, *SHORT, "--watts-per-node", "cpu=400", "--price-per-kwh", "0.5",
                 "--price-per-gpu-hour", "2", "--json")  # fmt: skip
    assert result.exception is None, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_answer_is_of_the_files(document: dict[str, Any]) -> None:
    assert {kind["node_type"]: kind["nodes"] for kind in document["node_types"]} == {
        "cpu": 4,
        "gpu:a100:4": 2,
    }
    assert document["blocks"] == 2
    assert document["slurm"]["bf_interval_s"] == 30.0
    assert document["log_hours"] == pytest.approx(HOURS)
    assert document["left_out"] == []
    assert document["settings"] == []
    by_name = {harm["partition"]: harm for harm in document["partitions"]}
    assert by_name.keys() == {"batch", "gpu"}
    assert document["everybody"]["jobs"] == sum(harm["jobs"] for harm in by_name.values())
    for harm in by_name.values():
        assert harm["wait_s"] <= 6.0  # the next pass of the main scheduler
        assert harm["logged_wait_s"] == pytest.approx(3.0)


def test_no_more_is_held_than_is_idle(document: dict[str, Any]) -> None:
    for kind in document["node_types"]:
        assert 0.0 <= kind["trained_node_hours"] <= kind["held_node_hours"]
        assert kind["held_node_hours"] <= kind["idle_node_hours"] <= 24.0 * kind["nodes"]
    cpu, _ = document["node_types"]
    assert cpu["trained_node_hours"] > 0.0


def test_energy_and_money_are_told_where_prices_are_given(document: dict[str, Any]) -> None:
    cpu, gpu = document["node_types"]
    assert cpu["energy_kwh"] == pytest.approx(0.4 * cpu["trained_node_hours"])
    assert gpu["trained_gpu_hours"] == pytest.approx(4 * gpu["trained_node_hours"])
    assert gpu["energy_kwh"] is None  # no draw is given for this type
    worth = document["worth"]
    assert worth["energy_kwh"] == pytest.approx(cpu["energy_kwh"])
    assert worth["energy_cost"] == pytest.approx(0.5 * cpu["energy_kwh"])
    assert worth["gpu_value"] == pytest.approx(2.0 * gpu["trained_gpu_hours"])
    assert worth["node_value"] is None


def test_the_document_has_the_fields_that_the_page_names(document: dict[str, Any]) -> None:
    page = write_json_fields.PAGE.read_text(encoding="utf-8")
    (line,) = re.findall(r"^\| `bftrainer/whatif-harm/1` .*$", page, re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", line.rpartition(" | ")[2]))
    section = page.partition("\n## HarmFindings\n")[2].partition("\n## ")[0]
    named |= set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    assert set(document) == {"schema", *(named - {"HarmFindings", "Worth", "UnplayedJobs"})}


def test_the_report_begins_with_plain_sentences(files: tuple[Path, Path]) -> None:
    text = ask(files, *SHORT).stdout
    first, second, *_ = text.splitlines()
    assert re.fullmatch(
        r"bftrainer would give trainers [\d.]+ node-hours a day \(\d+% of the idle time\)"
        r"(, [\d.]+ GPU-hours)?\.",
        first,
    )
    assert second.startswith("Jobs of partition batch would wait ")
    assert "two runs without bftrainer differ by up to" in second
    titles = (
        "What jobs notice",
        "What trainers would get",
        "Assumptions",
        "Not modelled",
        "How long",
    )
    assert "'bftrainer whatif --harm --lend auto' says" in " ".join(text.split())
    places = [text.index(f"\n{title}") for title in titles]
    assert places == sorted(places)
    assert "kWh" not in text


@pytest.fixture(scope="module")
def parted(files: tuple[Path, Path]) -> dict[str, Any]:
    """The answer for lend: auto."""
    result = ask(files, *SHORT, "--lend", "auto", "--json")
    assert result.exception is None, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def test_single_gpus_are_lent_where_that_is_asked_for(
    parted: dict[str, Any], document: dict[str, Any]
) -> None:
    assert (document["lend"], parted["lend"]) == ("nodes", "auto")
    assert (document["policy"], parted["policy"]) == ({}, {"lend": "auto"})
    (_, whole), (cpu, gpu) = document["node_types"], parted["node_types"]
    assert cpu["held_gpu_hours"] == cpu["idle_gpu_hours"] == 0.0
    assert cpu["trained_node_hours"] > 0.0
    # A job of one GPU runs nearly all the time: whole nodes leave the three others of its node.
    assert gpu["held_gpu_hours"] > whole["held_gpu_hours"] + 24.0
    assert gpu["held_gpu_hours"] <= gpu["idle_gpu_hours"] <= 24.0 * 8
    assert gpu["held_gpu_hours"] == pytest.approx(4 * gpu["held_node_hours"])
    by_name = {harm["partition"]: harm["node_types"] for harm in parted["partitions"]}
    assert by_name == {"batch": ["cpu"], "gpu": ["gpu:a100:4"]}
    assert parted["everybody"]["node_types"] == ["cpu", "gpu:a100:4"]
    assert (
        "2 nodes of gpu:a100:4: each GPU is lent with 2 CPUs and 2,000 MB, with fewer CPUs where "
        "jobs leave fewer." in parted["assumptions"]
    )
    left_out = "GPUs that are left on nodes with jobs"
    told = [any(left_out in line for line in one["not_modelled"]) for one in (document, parted)]
    assert told == [True, False]


def test_the_answer_of_single_gpus_counts_gpu_hours(parted: dict[str, Any]) -> None:
    lent, whole, *rest = parted["answers"]
    assert re.fullmatch(
        r"bftrainer would lend [\d.]+ GPU-hours a day \(\d+% of the idle GPU time\); trainers "
        r"would train in [\d.]+ of them\.",
        lent,
    )
    assert re.fullmatch(
        r"On nodes without GPUs it would give trainers [\d.]+ node-hours a day \(\d+% of the idle "
        r"time\)\.",
        whole,
    )
    assert [line.partition(" would ")[0] for line in rest] == [
        "Jobs of partition batch",
        "Jobs of partition gpu",
    ]


@pytest.mark.long
def test_whole_nodes_of_shared_nodes_have_a_proposal(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the words of doctor, with the gain and the waits of jobs beside those of whole nodes."""
    monkeypatch.setattr(harm_study, "variants", lambda _: ())
    words = (*SHORT[:4], "--processes", "1", "--play", "0.1")
    result = ask(files, *words, "--json")
    assert result.exception is None, result.output
    answer = json.loads(result.stdout)
    proposal = answer["proposal"]
    assert (proposal["nodes"], proposal["gpus"], proposal["blocks"]) == (2, 8, answer["blocks"])
    now, then = proposal["now"], proposal["proposed"]
    assert proposal["gained_gpu_hours"] == then["held_gpu_hours"] - now["held_gpu_hours"]
    assert proposal["gained_gpu_hours"] > 24.0
    for arm, lend in ((now, "nodes"), (then, "auto")):
        assert arm["lend"] == lend
        assert [harm["partition"] for harm in arm["partitions"]] == ["batch", "gpu"]
    assert now["node_types"] == answer["node_types"]
    hidden, gain, *waits = answer["answers"][3:]
    assert hidden == (
        "Ordinary jobs share 2 nodes (g1 and others) with 8 GPUs: while a job uses one GPU of a "
        "node, its other GPUs are not lent. (BFT-2120)"
    )
    assert gain.startswith("With 'lend: auto' in the policy bftrainer would lend ")
    assert [wait.partition(" would ")[0] for wait in waits] == [
        "With 'lend: auto' jobs of partition batch",
        "With 'lend: auto' jobs of partition gpu",
    ]
    assert answer["settings"] == []


@pytest.mark.parametrize(
    ("words", "code", "cause"),
    [
        (("--lend", "gpus", "--ignore", "gpu"), "BFT-2123", "no node of the site lends GPUs"),
        (("--t-fwd", "60"), "BFT-4142", "--t-fwd has no effect with --harm"),
        (("--report", "x.html"), "BFT-4142", "--report has no effect with --harm"),
        (("--policy", "srtf", "--policy", "milp"), "BFT-4142", "one policy, not 2"),
        (("--policy", "best"), "BFT-3050", "best"),
        (("--watts-per-node", "gpu:h100:8=900"), "BFT-4147", "no nodes of type 'gpu:h100:8'"),
        (("--watts-per-node", "much"), "BFT-4147", "'much' is not a number of watts"),
        (("--watts-per-node", "-1"), "BFT-4147", "'-1' is not a number of watts"),
        (("--ignore", "pilots"), "BFT-4147", "has a partition 'pilots'"),
        (("--ignore", "batch", "--ignore", "gpu"), "BFT-4008", "no job"),
        (("--start", str(T), "--hours", "1"), "BFT-4146", "The log covers 1.0 h"),
    ],
)
def test_an_option_that_cannot_be_taken_is_refused(
    files: tuple[Path, Path], words: tuple[str, ...], code: str, cause: str
) -> None:
    problem = refused(ask(files, *words))
    assert problem.code == code
    assert cause in str(problem)
    assert problem.next_step


def test_files_that_cannot_be_taken_are_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    conf, log = files
    shown = tmp_path / "config.txt"
    shown.write_text("Configuration data as of 2024-05-01T10:00:00\nSLURM_VERSION = 23.11.4\n")
    assert refused(ask((shown, log))).code == "BFT-4144"
    broken = tmp_path / "slurm.conf"
    broken.write_text("NodeName=n[1-\n")
    problem = refused(ask((broken, log)))
    assert (problem.code, "slurm.conf" in str(problem)) == ("BFT-4143", True)
    assert refused(ask((conf, conf))).code == "BFT-4001"
    assert refused(ask((tmp_path / "none", log))).code == "BFT-4002"
    assert refused(ask((conf, tmp_path / "none"))).code == "BFT-4002"
    other = tmp_path / "other.conf"
    other.write_text("NodeName=n1\nPartitionName=p Nodes=n1\n")
    assert refused(ask((other, log))).code == "BFT-4145"


def test_each_question_refuses_the_options_of_the_other() -> None:
    missing = CliRunner().invoke(cli, ["whatif", "--harm"])
    assert refused(missing).code == "BFT-4142"
    idle = CliRunner().invoke(cli, ["whatif", "--sacct", "x", "--bf-cycle", "2"])
    problem = refused(idle)
    assert isinstance(problem, UsageError)
    assert (problem.code, "only with --harm" in str(problem)) == ("BFT-4142", True)
