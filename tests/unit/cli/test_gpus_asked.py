"""Trainers that ask for GPUs: options, what nodes and parts meet them, words, checks, workers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bftrainer.api.admission import check_lent, check_spec
from bftrainer.api.page.parts import row
from bftrainer.cli.sizes import changed_sizes
from bftrainer.cli.spec import build_spec
from bftrainer.cli.submit import _worth_reading
from bftrainer.cli.submit_options import read_directives
from bftrainer.daemon.explain.constraints import constraint_sentences
from bftrainer.daemon.explain.sizes import explain_trainer, impossible
from bftrainer.fleet.runtimes.base import worker_config
from bftrainer.ground import protocol
from bftrainer.model.canonical import from_plain, to_plain
from bftrainer.model.cluster import LentGpus, Node
from bftrainer.model.decision import Memory, Plan, Settings
from bftrainer.model.errors import ExitCode, UsageError
from bftrainer.model.node_request import asked
from bftrainer.model.parts import Lend, NodePart
from bftrainer.model.size_words import (
    least_nodes,
    limit_words,
    short_limits,
    short_size,
    size_words,
)
from bftrainer.model.trainer import TrainerRecord, TrainerSpec
from bftrainer.model.views import ConstraintEffect, TrainerView
from bftrainer.study.document import parse_study
from bftrainer.study.verbs.run import base_spec
from tests.support.generations import Driver
from tests.support.snapshots import node, record
from trainers.agent.team import split
from trainers.command.program import program_environment


def spec_of(*words: str, runtime: str = "torch") -> TrainerSpec:
    """Return the trainer that ``submit`` would make of these options."""
    return build_spec("/s/train.py", (), {"runtime": runtime, **values_of(*words)}, {})


def values_of(*words: str, path: Path | None = None) -> dict[str, Any]:
    script = path or Path(DIRECTORY) / "train.py"
    script.write_text(f"#BFT {' '.join(words)}\n")
    return read_directives(str(script))


DIRECTORY = ""


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(f"{__name__}.DIRECTORY", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "sizes", "per_unit", "gres", "workers"),
    [
        (("--nodes", "1:8"), "1:8", 0, "", 1),
        (("--gpus", "1:16"), "1:16", 1, "", 1),
        (("--gpus=4",), "4:4", 1, "", 1),
        (("-G", "a100:2"), "2:2", 1, "gpu:a100", 1),
        (("--gpus=a100:4:16",), "4:16", 1, "gpu:a100", 1),
        (("--gpus", "1g.10gb:1,2,4"), "1,2,4", 1, "gpu:1g.10gb", 1),
        (("--gpus-per-node", "4"), "1:1", 4, "", 4),
        (("--gpus-per-node=h100:4", "--nodes", "1:4"), "1:4", 4, "gpu:h100", 4),
        (("--gpus", "8:16", "--gpus-per-node", "4"), "2:4", 4, "", 4),
        (("--gpus", "8,16", "--gpus-per-node", "4", "--workers-per-node", "2"), "2,4", 4, "", 2),
        (("--gpus", "1:4", "--gres", "gpu:a100"), "1:4", 1, "gpu:a100", 1),
        (("--gpus", "a100:4", "--gres", "gpu:8"), "4:4", 1, "gpu:a100:8", 1),
        (("--gpus-per-node", "2", "--gres", "gpu:8"), "1:1", 2, "gpu:8", 2),
    ],
)
def test_options_say_sizes_and_what_they_count(
    words: tuple[str, ...], sizes: str, per_unit: int, gres: str, workers: int
) -> None:
    spec = spec_of(*words)
    check_spec(spec)
    assert (spec.nodes, spec.gpus_per_unit) == (sizes, per_unit)
    assert (spec.gres, spec.workers_per_node) == (gres, workers)
    # As ``study best --script`` and errors write them; a type is in --gres.
    typed = ("--gres", spec.gres) if spec.gres else ()
    again = spec_of(*spec.size_words, *typed, "--workers-per-node", str(workers))
    assert replace(again, name="", args=()) == replace(spec, name="", args=())


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--gpus", "many"), "BFT-1002", "not a number of GPUs"),
        (("--gpus", "0:4"), "BFT-1002", "at least 1 GPU"),
        (("--gpus", "4:2"), "BFT-1002", "--gpus MIN:MAX"),
        (("--gpus-per-node", "0"), "BFT-1016", "from 1 to"),
        (("--gpus-per-node", "1:4"), "BFT-1016", "--gpus-per-node is '1:4'"),
        (("--gpus", "6", "--gpus-per-node", "4"), "BFT-1037", "4 or 8 instead of 6"),
        (("--gpus", "2:8", "--gpus-per-node", "4"), "BFT-1037", "4: 4 instead of 2"),
        (("--gpus", "8", "--nodes", "2"), "BFT-1002", "--nodes 2 --gpus-per-node 4"),
        (("--gpus", "a100:8", "--nodes", "2"), "BFT-1002", "--gpus-per-node a100:4"),
        (("--gpus", "1:8", "--nodes", "1:2"), "BFT-1002", "Leave out --nodes"),
        (("--gpus", "a100:8", "--gres", "gpu:h100"), "BFT-1040", "a100, h100"),
        (("--gpus", "a100:8", "--gpus-per-node", "h100:4"), "BFT-1040", "a100, h100"),
        (("--gpus", "4", "--gres", "gpu:a100:1,gpu:h100:1"), "BFT-1040", "a100, h100"),
        (("--gpus", "4", "--workers-per-node", "2"), "BFT-1041", "--gpus-per-node K"),
        (("--gpus-per-node", "4", "--workers-per-node", "3"), "BFT-1041", "multiple"),
    ],
)
def test_what_cannot_be_is_refused_with_the_next_step(
    words: tuple[str, ...], code: str, says: str
) -> None:
    with pytest.raises(UsageError) as caught:
        check_spec(spec_of(*words))
    assert caught.value.code == code
    assert says in f"{caught.value.cause} {caught.value.next_step}"


def test_other_runtimes_have_one_worker_with_all_gpus_of_a_unit() -> None:
    spec = spec_of("--gpus-per-node", "4", runtime="horovod")
    assert (spec.workers_per_node, asked(spec).n_gpus) == (1, 4)
    assert config_of(spec, "n1/0").gpus == 4


def test_a_trainer_of_nodes_is_written_as_before() -> None:
    assert "gpus_per_unit" not in to_plain(spec_of("--nodes", "4"))
    spec = spec_of("--gpus-per-node", "4")
    plain = to_plain(spec)
    assert plain["gpus_per_unit"] == 4
    assert from_plain(plain, TrainerSpec) == spec


def test_a_study_asks_for_gpus(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("#BFT --nodes 3\n")
    text = "metric: loss\nrule: {name: asha, trials: 4, least: 1, most: 4}\ngpus: 2:8\n"
    text += "submit: {gpus-per-node: 'a100:2'}\nparameters: {lr: [1, 2]}\n"
    document = parse_study(text, tmp_path / "study.yaml")
    spec = base_spec(document, str(script), ())
    assert (spec.nodes, spec.gpus_per_unit, spec.gres) == ("1:4", 2, "gpu:a100")
    with pytest.raises(UsageError, match="both nodes and gpus"):
        base_spec(document.model_copy(update={"nodes": "1:2"}), str(script), ())


def test_a_change_counts_as_the_trainer_does() -> None:
    single, units, nodes = (
        spec_of("--gpus", "1:16"),
        spec_of("--gpus-per-node", "4"),
        spec_of("--nodes", "2"),
    )
    gpus, sizes = values_of("--gpus", "8:16")["gpus"], values_of("--nodes", "2:3")["sizes"]
    assert changed_sizes(single, None, gpus) == (8, 16, ())
    assert changed_sizes(units, None, gpus) == (2, 4, ())
    assert changed_sizes(units, sizes, None) == changed_sizes(nodes, sizes, None) == (2, 3, ())
    assert changed_sizes(nodes, None, None) is None
    for spec, new_nodes, new_gpus, step in (
        (single, sizes, None, "--gpus MIN:MAX"),
        (nodes, None, gpus, "--nodes MIN:MAX"),
        (single, sizes, gpus, "Leave out --nodes"),
    ):
        with pytest.raises(UsageError) as caught:
            changed_sizes(spec, new_nodes, new_gpus)
        assert caught.value.code == "BFT-1002"
        assert step in caught.value.next_step


# ---- nodes and parts -------------------------------------------------------------------


def lending(name: str, **gpus: int) -> Node:
    """Return a node that lends GPUs of these types and numbers, eight cores each."""
    lends = tuple(
        [LentGpus(gpu_type=t, n_gpus=n, n_free=n, cpus=8, memory_mb=0) for t, n in gpus.items()]
    )
    node_type = ",".join([f"gpu:{t}:{n}" for t, n in gpus.items()])
    whole = node(name, node_type=node_type, gpus=sum(gpus.values()))
    return replace(whole, lends=lends, is_shared=True)


def part(name: str, gpu_type: str, gpus: int) -> NodePart:
    host = name.partition("/")[0]
    return NodePart(name=name, node=host, gpu_type=gpu_type, gpus=gpus, cores=8, memory_mb=0)


PLAN = Plan(
    assignment={},
    claims=(),
    releases=(),
    pool=(),
    not_used={},
    reserve=(),
    allocation=None,
    memory=Memory(),
)
MIXED = lending("n1", a100=2, h100=4)
WHOLE = node("n2", node_type="gpu:a100:8", gpus=8)


@pytest.mark.parametrize(
    ("words", "met_by", "parts"),
    [
        (("--nodes", "1"), "n1 n2", "n1"),
        (("--gpus", "1"), "n1", "n1/0 n1/1"),
        (("--gpus", "h100:1"), "n1", "n1/1"),
        (("--gpus", "v100:1"), "", ""),
        (("--gpus-per-node", "4"), "n1", "n1/1"),
        (("--gpus-per-node", "a100:4"), "", ""),
        (("--gpus", "1", "--gres", "gpu:h100:8"), "", ""),
    ],
)
def test_requests_are_met_by_parts_of_one_type(
    words: tuple[str, ...], met_by: str, parts: str
) -> None:
    request = asked(spec_of(*words))
    assert " ".join(n.name for n in (MIXED, WHOLE) if request.is_met_by(n)) == met_by
    shown = (part("n1/0", "gpu:a100", 2), part("n1/1", "gpu:h100", 4))
    whole = part("n1", MIXED.node_type, 6)
    assert " ".join(p.name for p in (*shown, whole) if request.is_met_by_part(p, MIXED)) == parts


def test_requests_that_differ_have_different_texts() -> None:
    specs = [spec_of(*words) for words in (
        ("--nodes", "1", "--gres", "gpu:1"), ("--gpus", "1"), ("--gpus", "a100:1"),
        ("--gpus-per-node", "4"), ("--nodes", "1", "--gres", "gpu:4"),
    )]  # fmt: skip
    assert len({str(asked(spec)) for spec in specs}) == len(specs)


def test_gpus_count_as_shares_of_nodes() -> None:
    nodes = (MIXED, WHOLE)
    assert [least_nodes(9, each, nodes) for each in (0, 1, 4)] == [9, 2, 5]
    assert [least_nodes(9, each, ()) for each in (0, 1)] == [9, 1]


# ---- words -----------------------------------------------------------------------------


def test_sizes_in_words() -> None:
    assert [size_words(1, each) for each in (0, 1, 4)] == ["1 node", "1 GPU", "1 x 4 GPUs"]
    assert [size_words(3, each) for each in (0, 1, 4)] == ["3 nodes", "3 GPUs", "3 x 4 GPUs"]
    assert [short_size(3, each) for each in (0, 1, 4)] == ["3", "3 GPUs", "3 x 4 GPUs"]
    options = (("--nodes", "1:8"), ("--gpus", "1:16"), ("--gpus-per-node", "4"), ("--gpus", "2"))
    specs = [spec_of(*words) for words in options]
    assert list(map(limit_words, specs)) == ["1 to 8 nodes", "1 to 16 GPUs", "1 x 4 GPUs", "2 GPUs"]
    assert list(map(short_limits, specs)) == ["1:8", "1:16 GPUs", "1:1 x 4 GPUs", "2:2 GPUs"]


def trainer(*words: str) -> TrainerRecord:
    return replace(record("t1"), spec=spec_of(*words))


def explained(its: TrainerRecord, nodes: tuple[Node, ...], plan: Plan, observed: int = 0) -> str:
    return " ".join(explain_trainer(its, plan, Settings(), [its], nodes, observed))


def test_explanations_count_gpus() -> None:
    nodes, plan = (MIXED, WHOLE), PLAN
    says = explained(trainer("--gpus", "8:16"), nodes, plan)
    assert "It needs 8 GPUs (n_min) of one type" in says
    assert "has 4." in says
    assert "--gpus MIN:MAX' lets it run on fewer" in says
    wide = trainer("--gpus-per-node", "8")
    assert impossible([wide], nodes) == {
        "t1": "No node of this cluster meets its request (gpu:8&8 GPUs of a node together)."
    }
    assert not impossible([trainer("--gpus", "4:8")], nodes)
    effect = ConstraintEffect(
        names=("x",), meanings=("the limit",), nodes=("n1/0",), nodes_without=("n1/0", "n1/1")
    )
    assert constraint_sentences([effect], 1)[0].endswith("2 GPUs instead of 1.")


def test_a_dry_run_tells_sizes_in_what_they_count() -> None:
    assert _worth_reading(spec_of("--nodes", "1:8"))["nodes"] == "1:8"
    rows = _worth_reading(spec_of("--gpus", "1:16"))
    assert rows["gpus"] == "1:16 GPUs"
    assert not {"nodes", "gpus_per_unit"} & rows.keys()


def test_the_page_says_what_sizes_count() -> None:
    view = TrainerView(
        record=trainer("--gpus", "1:16"), planned_nodes=(), requested_nodes=(), observed_nodes=()
    )
    assert row(view)["limits"] == "1:16 GPUs"


# ---- admission -------------------------------------------------------------------------


def test_where_whole_nodes_are_lent_gpus_are_refused() -> None:
    with pytest.raises(UsageError) as caught:
        check_lent(spec_of("--gpus", "1:4"), Lend.NODES)
    assert (caught.value.code, caught.value.exit_code) == ("BFT-1036", ExitCode.REFUSED_BY_POLICY)
    assert "--nodes" in caught.value.next_step
    assert "lend: auto" in caught.value.next_step
    check_lent(spec_of("--nodes", "4"), Lend.NODES)
    for lend in (Lend.AUTO, Lend.GPUS):
        check_lent(spec_of("--gpus", "1:4"), lend)


# ---- workers, several pilots on a host ---------------------------------------------------


def config_of(spec: TrainerSpec, place: str) -> protocol.WorkerConfig:
    return worker_config(
        replace(record("t1"), spec=spec),
        worker_id="t1-1-1",
        node=place,
        address="127.0.0.1",
        incarnation=1,
        log_path="",
    )


def test_workers_of_a_unit_share_its_gpus() -> None:
    config = config_of(spec_of("--gpus-per-node", "4", "--workers-per-node", "2"), "n1/0")
    seen = split(config, gpus=4, environ={"CUDA_VISIBLE_DEVICES": "2,3,6,7"})
    assert [dict(one.environment)["CUDA_VISIBLE_DEVICES"] for one in seen] == ["2,3", "6,7"]
    (alone,) = split(
        config_of(spec_of("--gpus", "4"), "n1/3"), gpus=1, environ={"CUDA_VISIBLE_DEVICES": "5"}
    )
    assert dict(alone.environment)["CUDA_VISIBLE_DEVICES"] == "5"


def test_a_trainer_grows_and_shrinks_by_parts_of_one_host() -> None:
    d = Driver(n_max=4)
    d.form("n1/0", "n1/1", "n2/0")
    assert d.nodes() == ["n1/0", "n1/1", "n2/0"]
    assert len({d.on(place) for place in d.nodes()}) == 3
    d.lose_agent("n1/1")
    d.target("n1/0", "n2/0")
    d.ready()
    d.enter(step=1)
    assert sorted(d.nodes()) == ["n1/0", "n2/0"]


def test_programs_are_told_hosts() -> None:
    members = tuple(
        protocol.Member(worker_id=f"w{k}", rank=k, node=place, address="127.0.0.1")
        for k, place in enumerate(("n1/0", "n1/1", "n2"))
    )
    commit = protocol.Commit(generation=1, attempt=1, token="", members=members)
    told = program_environment(
        config_of(spec_of("--gpus", "3"), "n1/0"),
        commit,
        0,
        checkpoint_dir="/c",
        control_file="/f",
        inherited={},
    )
    assert told["BFT_NODES"] == "n1,n1,n2"
