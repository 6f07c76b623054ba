"""What ``trace``, ``whatif`` and ``simulate`` say of idle GPUs, and that types are kept apart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bftrainer.batch.traces import ReadOptions, read_trace
from bftrainer.batch.traces.gpu_pools import MOST_ROWS, GpuPool, IdleGpus, gpu_rows, gpu_sentences
from bftrainer.batch.traces.statistics import held_down
from bftrainer.cli.main import main
from bftrainer.lab.simulator.session import Choices, play
from bftrainer.lab.workloads import Submission
from bftrainer.model.decision import DecisionInput, Plan
from milp.problem import Curve

Output = pytest.CaptureFixture[str]
LOG = """\
JobID|Submit|Start|End|NNodes|NodeList|State|Partition|Timelimit|AllocTRES
1|0|0|86400|1|c1|COMPLETED|cpu|1-00:00:00|cpu=8,node=1
2|0|0|43200|1|a1|COMPLETED|gpu|1-00:00:00|cpu=8,gres/gpu=1,gres/gpu:a100=1,node=1
"""
NODES = """\
c1|cpu|(null)
a[1-2]|gpu|gpu:a100:4(S:0-1)
v[1-2]|gpu|gpu:v100:2
"""
# a1: half a day three left, half a day whole; a2 and both v whole all day.
POOLS = [
    {
        "partition": "gpu", "gpu_type": "a100", "n_nodes": 2, "n_gpus": 8,
        "whole_gpu_h_per_day": 48.0 + 96.0, "leftover_gpu_h_per_day": 36.0,
    },
    {
        "partition": "gpu", "gpu_type": "v100", "n_nodes": 2, "n_gpus": 4,
        "whole_gpu_h_per_day": 96.0, "leftover_gpu_h_per_day": 0.0,
    },
]  # fmt: skip
GPUS = {"n_gpus_by_type": {"a100": 8, "v100": 4}, "pools": POOLS, "unclear": ""}
SPAN = ("--start=0", "--end=86400")
QUICK = ("--t-fwd=120", "--p-jmax=2", "--hold-down=0", "--processes=1")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "log.txt").write_text(LOG)
    (tmp_path / "nodes.txt").write_text(NODES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _run(capsys: Output, *argv: str) -> str:
    assert main([*argv]) == 0
    return capsys.readouterr().out


def _document(capsys: Output, *argv: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(_run(capsys, *argv, "--json"))
    return document


def _is_told(text: str) -> None:
    """Check the sentences and the rows."""
    assert "The nodes have 12 GPUs: 8 a100 and 4 v100." in text
    assert "cannot use the leftover" in text
    assert "'lend: auto'" in text
    rows = [line.split() for line in text.splitlines() if line.startswith("gpu ")]
    assert ["gpu", "a100", "2", "8", "144", "36"] in rows
    assert ["gpu", "v100", "2", "4", "96", "0"] in rows


def test_trace_info_tells_idle_gpus(files: Path, capsys: Output) -> None:
    argv = ("trace", "info", "log.txt", *SPAN, "--sinfo=nodes.txt")
    _is_told(_run(capsys, *argv))
    assert _document(capsys, *argv)["gpus"] == GPUS
    without = argv[:-1]
    assert "GPU" not in _run(capsys, *without)
    assert _document(capsys, *without)["gpus"] is None


def test_whatif_tells_idle_gpus_and_keeps_types_apart(files: Path, capsys: Output) -> None:
    argv = ("whatif", "--sacct=log.txt", *SPAN, *QUICK, "--sinfo=nodes.txt")
    text = _run(capsys, *argv, "--report=page.html")
    _is_told(text)
    page = (files / "page.html").read_text()
    assert "Idle GPUs" in page
    assert "cannot use the leftover" in page
    assert "of one type at a time" in text
    document = _document(capsys, *argv)
    assert document["idle"]["gpus"] == GPUS
    assert {kind["name"] for kind in document["kinds"]} == {
        "cpu, cpu", "gpu, gpu:a100:4", "gpu, gpu:v100:2",
    }  # fmt: skip
    assert not any("All nodes are alike" in sentence for sentence in document["assumptions"])


def test_simulate_tells_idle_gpus(files: Path, capsys: Output) -> None:
    argv = ("simulate", "--trace=log.txt", *SPAN, "--sinfo=nodes.txt", "--csv=table.csv")
    _is_told(_run(capsys, *argv))
    document = _document(capsys, *argv)
    assert document["gpus"] == GPUS
    assert document["selection"]["sinfo"] == "nodes.txt"
    assert "gpus" not in (files / "table.csv").read_text().splitlines()[0].split(",")


def test_convert_says_where_gpus_are_lost(files: Path, capsys: Output) -> None:
    argv = ("trace", "convert", "log.txt")
    assert "GPUs are kept" not in _run(capsys, *argv, "day.npz", *SPAN, "--sinfo=nodes.txt")
    assert "GPUs are kept in .npz" in _run(capsys, *argv, "day.csv", *SPAN, "--sinfo=nodes.txt")
    assert _document(capsys, "trace", "info", "day.npz")["gpus"] == GPUS


@pytest.mark.parametrize(
    ("nodes", "code", "words"),
    [
        ("a1 gpu gpu:4\n", "BFT-4012", 'sinfo --noheader --Node --all --format "%N|%R|%G"'),
        ("other1|gpu|gpu:4\n", "BFT-4013", "on the cluster of the log"),
    ],
)
@pytest.mark.parametrize("verb", [("trace", "info", "log.txt"), ("whatif", "--sacct=log.txt")])
def test_a_wrong_list_of_nodes_is_told(
    files: Path, capsys: Output, verb: tuple[str, ...], nodes: str, code: str, words: str
) -> None:
    (files / "nodes.txt").write_text(nodes)
    assert main([*verb, *SPAN, "--sinfo=nodes.txt"]) == 8
    said = capsys.readouterr().err
    assert f"error {code}: " in said
    assert "nodes.txt" in said
    assert words in said
    assert "Traceback" not in said


def test_the_sample_is_no_log_of_slurm(files: Path, capsys: Output) -> None:
    assert main(["simulate", "--sinfo=nodes.txt"]) == 8
    assert "error BFT-4014: sample.npz is read as npz" in capsys.readouterr().err


def _trainer(name: str) -> Submission:
    return Submission(
        submit_s=0.0,
        name=name,
        n_min=1,
        n_max=4,
        samples=1e12,
        curve=Curve(sizes=(1, 2, 4), samples_per_s=(10.0, 19.0, 37.0)),
        rescale_up_s=1.0,
        rescale_down_s=1.0,
    )


def _most_types(sinfo: Path | None) -> int:
    """Return of how many types a trainer had nodes at once, at most."""
    options = ReadOptions(start_s=0.0, end_s=86400.0, sinfo=sinfo)
    # Held down as for ``whatif``, which must not lose the types.
    trace = held_down(read_trace(Path("log.txt"), "sacct", options=options), 10.0)
    type_of = {"a": "a100", "v": "v100", "c": "cpu"}
    most = 0

    def look(_: DecisionInput, plan: Plan) -> None:
        nonlocal most
        types: dict[str, set[str]] = {}
        for node, trainer in plan.assignment.items():
            types.setdefault(trainer, set()).add(type_of[node[0]])
        most = max([most, *map(len, types.values())])

    play(trace, [_trainer("one")], Choices(p_jmax=1), on_plan=look)
    return most


def test_a_trainer_of_a_replay_has_nodes_of_one_type(files: Path) -> None:
    Path("log.txt").write_text(f"{LOG}3|0|0|10|2|v[1-2]|COMPLETED|gpu|1:00|cpu=1\n")
    assert _most_types(sinfo=None) == 2
    assert _most_types(sinfo=files / "nodes.txt") == 1


def _pool(number: int, **changes: object) -> GpuPool:
    pool = GpuPool(
        partition=f"p{number}",
        gpu_type="a100",
        n_nodes=1,
        n_gpus=4,
        whole_gpu_h_per_day=1.0,
        leftover_gpu_h_per_day=None,
    )
    return replace(pool, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("types", "count", "words"),
    [
        ({}, 0, "no GPU that sinfo counts"),
        ({"a100": 1}, 1, "The nodes have 1 GPU: 1 a100."),
        ({"a100": 1, "b": 2, "c": 3}, 3, "6 GPUs: 1 a100, 2 b and 3 c."),
        ({"a100": 99}, MOST_ROWS + 1, f"has the {MOST_ROWS} of {MOST_ROWS + 1} pools"),
    ],
)
def test_sentences_for_few_and_many_pools(types: Mapping[str, int], count: int, words: str) -> None:
    pools = tuple(_pool(number) for number in range(count))
    gpus = IdleGpus(n_gpus_by_type=dict(types), pools=pools, unclear="it was lost")
    text = " ".join(gpu_sentences(gpus))
    assert words in text
    assert ("The leftover is not known: it was lost." in text) == bool(count)
    assert len(gpu_rows(gpus)) == min(count, MOST_ROWS)
    assert {row[-1] for row in gpu_rows(gpus)} <= {"not told"}
